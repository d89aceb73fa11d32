"""Ways to compute each site of the fused network, and what they are called.

The tiles are those that were fastest on an H200 among several dozen; those without bulk copies run on any GPU that
Triton supports. Where only a residual follows the product, a library may be faster than any of them. Which of all these
is used is decided by selection, on the machine that they run on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from flashrt_ros.kernels.attention import AttentionTile
from flashrt_ros.kernels.gate_up import StayingTile
from flashrt_ros.kernels.launch import Launch
from flashrt_ros.kernels.linear import Tile
from flashrt_ros.kernels.split_attention import SplitTile


@dataclass(frozen=True)
class Library:
    """PyTorch's product with the residual in its epilogue, rounded once, and a kernel for the row sums behind it."""

    def fitted(self, m: int, n: int, k: int, head_dim: int | None = None) -> Library:
        """Itself: the library fits its own tiles."""
        return self

    def spread(self, m: int, n: int, at_once: int) -> Library:
        """Itself, too."""
        return self

    def parts(self, n: int) -> int:
        """One: the sum of a whole row."""
        return 1


Product: TypeAlias = Tile | Library
"""What computes a linear layer."""

Choice: TypeAlias = Product | AttentionTile | SplitTile | Launch | bool
"""A product, a tile, a way to launch, or whether the kernel is used at all, where it has no parameters."""

REFERENCE = "reference"

CANDIDATES: dict[str, tuple[Choice, ...]] = {
    "vision_resize": (True,),
    "vision_patch": (Tile(64, 64, 64, 1, 4, 4), Tile(64, 64, 64, 1, 4, 3, bulk=False)),
    "vision_qkv": (Tile(64, 128, 64, 1, 4, 4), Tile(64, 128, 32, 1, 4, 4, bulk=False)),
    "vision_attention": (AttentionTile(64, 64, 4, 3), AttentionTile(64, 64, 4, 2)),
    "vision_out": (Tile(64, 64, 64, 1, 4, 6), Tile(64, 64, 64, 1, 4, 3, bulk=False)),
    "vision_fc1": (Tile(64, 128, 64, 1, 4, 3), Tile(64, 128, 32, 1, 4, 4, bulk=False)),
    "vision_fc2": (Tile(128, 64, 64, 1, 4, 6), Tile(64, 64, 64, 1, 4, 3, bulk=False)),
    "vision_project": (Tile(64, 64, 64, 1, 4, 4), Tile(64, 64, 64, 1, 4, 3, bulk=False)),
    "prefix_embed": (True,),
    "prefix_qkv": (Tile(64, 128, 64, 1, 4, 4), Tile(64, 128, 32, 1, 4, 4, bulk=False)),
    "prefix_attention": (AttentionTile(64, 64, 4, 3, bulk=True), AttentionTile(64, 32, 4, 3)),
    "prefix_out": (
        Library(),
        Tile(64, 128, 64, 1, 4, 4),
        Tile(64, 64, 64, 1, 4, 3, bulk=False),
    ),
    "prefix_gate_up": (
        StayingTile(128, 256, 64, 1, 8, 4),
        Tile(128, 256, 64, 1, 8, 4),
        Tile(128, 128, 32, 1, 8, 4, bulk=False),
    ),
    "prefix_down": (
        Library(),
        Tile(128, 128, 64, 1, 4, 5),
        Tile(128, 128, 32, 1, 8, 4, bulk=False),
    ),
    "prefix_launch": (Launch("late"),),
    "expert_step": (True,),
    "expert_time": (Tile(64, 16, 128, 1, 4, 4), Tile(64, 16, 64, 1, 4, 4, bulk=False)),
    "expert_qkv": (Tile(64, 32, 128, 1, 4, 6), Tile(64, 32, 128, 1, 4, 4, bulk=False)),
    "expert_attention": (
        SplitTile(32, 128, 16, 8, 2, meet=True),
        SplitTile(16, 128, 4, 4, 2, bulk=False),
        SplitTile(16, 64, 4, 4, 2, bulk=False),
    ),
    "expert_out": (
        Tile(64, 16, 128, 2, 4, 6),
        Tile(64, 16, 256, 1, 4, 4),
        Tile(64, 16, 128, 1, 4, 4, bulk=False),
    ),
    "expert_gate_up": (Tile(64, 64, 128, 1, 4, 5), Tile(64, 64, 128, 1, 4, 3, bulk=False)),
    "expert_down": (Tile(64, 32, 128, 4, 4, 6), Tile(64, 32, 64, 4, 4, 4, bulk=False)),
    "expert_launch": (Launch("late"),),
}
"""By site, the likely best one first; the reference is a candidate of each, too."""

JUDGED = sorted(CANDIDATES, key=lambda s: ("expert", "prefix", "vision").index(s.partition("_")[0]))
"""Sites in the order that they are judged: denoising takes most of a call, so that all later trials are shorter."""


def label(choice: Choice) -> str:
    """What a candidate is called in verdicts: tile, splits, warps and stages.

    p: loads by pointers; m: programs meet; +: programs stay for several tiles.

    >>> label(Tile(64, 32, 128, 4, 4, 5))
    '64x32x128/4 w4 s5'
    """
    if isinstance(choice, bool):
        return "fused"
    if isinstance(choice, Library):
        return "library"
    if isinstance(choice, Launch):
        return f"dependent {choice.dependent}"
    tail = f"w{choice.warps} s{choice.stages}"
    if isinstance(choice, AttentionTile):
        return f"{choice.rows}x{choice.keys} {tail}" + ("" if choice.bulk else " p")
    if isinstance(choice, SplitTile):
        shape = f"{choice.rows}x{choice.keys}/{choice.splits}"
    else:
        shape = f"{choice.rows}x{choice.columns}x{choice.depth}" + (
            f"/{choice.splits}" if choice.splits > 1 else ""
        )
    marks = ("" if choice.bulk else " p") + (" m" if getattr(choice, "meet", False) else "")
    return f"{shape} {tail}{marks}" + (" +" if isinstance(choice, StayingTile) else "")


def by_name(site: str) -> dict[str, Choice | None]:
    """A site's candidates, the reference (None) first."""
    return {REFERENCE: None} | {label(choice): choice for choice in CANDIDATES[site]}
