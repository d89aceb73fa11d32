"""Plays chunks at their time: one action when it is due, a hold when there is none that may be applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HOLD_EXHAUSTED = "exhausted"
"""The last action was applied and no newer chunk came."""
HOLD_STALE = "stale"
"""The observation behind the chunk is too old."""
HOLD_CLOCK = "clock_jump"
"""The clock went back behind the chunk's capture."""


@dataclass(frozen=True, slots=True, eq=False)
class PlayableChunk:
    """What a player needs of a chunk."""

    chunk_id: int
    capture_ns: int
    planned_start_ns: int
    period_ns: int
    first_valid_index: int
    joint_names: Sequence[str]
    actions: NDArray[np.float32]
    """[horizon, joints]"""


@dataclass(frozen=True, slots=True, eq=False)
class DueAction:
    """An action whose time has come."""

    chunk_id: int
    action_index: int
    planned_ns: int
    positions: NDArray[np.float32]


class ChunkPlayer:
    """Keeps the newest chunk and gives out each of its actions at most once.

    Args:
        joint_names: joints that this player commands, in order; every chunk must name the same ones.
        max_age_ns: an action is not applied when its observation is older than this.
    """

    def __init__(self, joint_names: Sequence[str], max_age_ns: int) -> None:
        self._joint_names = list(joint_names)
        self.max_age_ns = max_age_ns
        self._chunk: PlayableChunk | None = None
        self._next_index = 0
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Chunks that were not taken, by reason."""
        self.holds: Counter[str] = Counter()
        """Times that a hold began, by reason."""
        self.hold_reason = ""
        """Why nothing is being applied; empty while actions flow or none was ever received."""

    def accept(self, chunk: PlayableChunk, now_ns: int) -> str:
        """Take a chunk in place of the one before.

        Returns:
            Empty when it was taken, else the reason, which is counted: `joint_names`, `shape`, `not_finite`, `older`,
            `all_past`, `stale`.
        """
        reason = self._why_not(chunk, now_ns)
        if reason:
            self.refused[reason] += 1
            return reason
        self._chunk = chunk
        self._next_index = chunk.first_valid_index
        self.accepted += 1
        return ""

    def due(self, now_ns: int) -> DueAction | None:
        """The action to apply now, if a new one is due; the newest when several are."""
        chunk = self._chunk
        if chunk is None:
            return None
        if now_ns < chunk.capture_ns:
            self._chunk = None
            return self._hold(HOLD_CLOCK)
        if now_ns - chunk.capture_ns > self.max_age_ns:
            return self._hold(HOLD_STALE)
        index = (now_ns - chunk.planned_start_ns) // chunk.period_ns
        if index >= len(chunk.actions) and self._next_index >= len(chunk.actions):
            return self._hold(HOLD_EXHAUSTED)
        index = min(index, len(chunk.actions) - 1)
        if index < self._next_index:
            return None
        self._next_index = index + 1
        self.hold_reason = ""
        return DueAction(
            chunk_id=chunk.chunk_id,
            action_index=index,
            planned_ns=chunk.planned_start_ns + index * chunk.period_ns,
            positions=chunk.actions[index],
        )

    def _hold(self, reason: str) -> DueAction | None:
        if self.hold_reason != reason:
            self.holds[reason] += 1
        self.hold_reason = reason
        return None

    def _why_not(self, chunk: PlayableChunk, now_ns: int) -> str:
        if list(chunk.joint_names) != self._joint_names:
            return "joint_names"
        if chunk.actions.ndim != 2 or chunk.actions.shape[1] != len(self._joint_names):
            return "shape"
        if not np.isfinite(chunk.actions).all():
            return "not_finite"
        current = self._chunk
        # A chunk id that starts again at 1 is a policy that was restarted: its captures are newer.
        if current is not None and chunk.capture_ns <= current.capture_ns <= now_ns:
            return "older"
        end_ns = chunk.planned_start_ns + len(chunk.actions) * chunk.period_ns
        if chunk.first_valid_index >= len(chunk.actions) or end_ns <= now_ns:
            return "all_past"
        if now_ns - chunk.capture_ns > self.max_age_ns:
            return "stale"
        return ""
