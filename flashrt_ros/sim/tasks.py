"""When a task is done and how smoothly: the arithmetic of success, the same for every policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Fingertip centre to block centre. Resting on the middle of a block's top it is 0.027 m, so this
# allows 0.019 m to the side: the fingertip is on the block, wherever on it.
REACH_RADIUS_M = 0.033


class Reach:
    """The task `reach`: the fingertip comes within a radius of the named block, at rest or on the
    belt.

    `reached_at_s` is the time of the first moment at which it did, None until then; it does not
    move afterwards.
    """

    def __init__(self, colour: str, radius_m: float = REACH_RADIUS_M):
        self.colour = colour
        self.radius_m = radius_m
        self.reached_at_s: float | None = None

    def update(
        self,
        time_s: float,
        tip_position_m: NDArray[np.floating],
        block_position_m: NDArray[np.floating],
    ) -> bool:
        """Take in fingertip and block centre [3] (m) at `time_s`; whether the block has been
        reached by now."""
        if self.reached_at_s is None:
            distance = float(np.linalg.norm(np.subtract(tip_position_m, block_position_m)))
            if distance <= self.radius_m:
                self.reached_at_s = time_s
        return self.reached_at_s is not None


def jerk(
    joint_positions: Sequence[NDArray[np.floating]] | NDArray[np.floating], period_s: float
) -> float:
    """Integral over time of the squared jerk, summed over the joints, rad²/s⁵.

    `joint_positions` [T, J] (rad) sampled every `period_s`; the jerk is their third difference over
    period³. Raises ValueError for fewer than four samples, which have no third difference.
    """
    positions = np.asarray(joint_positions, dtype=np.float64)
    if positions.ndim != 2 or len(positions) < 4:
        raise ValueError(f"joint positions of shape {list(positions.shape)}: expected [T >= 4, J]")
    third = np.diff(positions, n=3, axis=0) / period_s**3
    return float(np.square(third).sum() * period_s)
