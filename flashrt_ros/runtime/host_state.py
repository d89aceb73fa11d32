"""What the host knows of the buffers without asking the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HostState:
    """What an engine remembers on the host of what its buffers hold."""

    slots: tuple[int, ...] = ()
    """Camera of each view, in the prefix's order."""
    staged: frozenset[int] = frozenset()
    """Cameras whose buffer holds a picture."""
    fixed: tuple[int, ...] = ()
    """Ids of the prompt's fixed tokens."""
    moving: tuple[int, ...] = ()
    """Ids of the tokens behind them."""
    has_prompt: bool = False
    has_state: bool = False
    chunk: Tensor | None = None
    """Normalised actions of the last call, float32 [H, A]."""

    @property
    def length(self) -> int:
        """Valid tokens of the prompt."""
        return len(self.fixed) + len(self.moving)
