"""Warm start: denoise in few steps from what is left of the chunk before.

With r actions executed, in normalised action space before trimming:

    S[0:H-r] = A_prev[r:];  S[H-r:H] = A_prev[H-1];  x = α·S + (1-α)·ε at flow time 1-α

then N steps of (1-α)/N down to 0. After ApxInf, which has α = 0.5, N = 1 and a fixed r; here r is what was executed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.policy import Denoising


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Settings of the warm start."""

    enabled: bool = False
    steps: int = 1
    alpha: float = 0.5
    """Share of the chunk before in the start, between 0 and 1; the rest is noise."""
    max_divergence: float = 0.5
    """Largest root mean square of (chunk - start), normalised units, for which a warm chunk is taken."""

    @property
    def start_time(self) -> float:
        """Flow time at which it begins."""
        return 1.0 - self.alpha

    def request(self, start: NDArray[np.float32]) -> Denoising:
        """The denoising from a shifted chunk, float32 [horizon, width]."""
        return Denoising(self.steps, self.start_time, start)


def shift(previous: NDArray[np.float32], executed: int) -> NDArray[np.float32]:
    """What is left of a chunk [H, width] after `executed` actions, its last action repeated to the end, float32."""
    horizon = len(previous)
    rows = np.minimum(np.arange(horizon) + max(0, executed), horizon - 1)
    return previous[rows]


def divergence(
    chunk: NDArray[np.float32], start: NDArray[np.float32], rows: slice, joints: int
) -> float:
    """Root mean square of the difference over `rows` and the first `joints` numbers; 0 without rows."""
    difference = chunk[rows, :joints] - start[rows, :joints]
    return float(np.sqrt(np.mean(np.square(difference)))) if difference.size else 0.0
