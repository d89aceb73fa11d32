"""Real-time chunking: the new chunk is denoised so that it goes on from the one that is being executed.

The actions that will be executed while the inference runs are frozen; those behind them are drawn to the previous
chunk with a weight that decays to 0. After Black, Galliker, Levine 2025 (arXiv 2506.07339) with the weights and
strengths of LeRobot's `rtc` (0.6, commit 7427f31), which takes the identity for the network's Jacobian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.policy import Denoising, Guidance


class Schedule(str, Enum):
    """How the weight decays behind the frozen actions."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    ONES = "ones"
    """Full weight up to the horizon."""
    ZEROS = "zeros"
    """Nothing but the frozen actions is guided."""


class Strength(str, Enum):
    """How strongly an error is corrected at each step."""

    BOUNDED = "bounded"
    """As LeRobot's, but never beyond the target: at most 1 / |step size|. Needed with few steps."""
    LEROBOT = "lerobot"
    """As LeRobot computes it: with fewer steps than `max_strength` it overshoots."""


@dataclass(frozen=True, slots=True)
class Rtc:
    """Settings of real-time chunking."""

    horizon: int = 10
    """Actions, counted from the chunk's first, that are guided; at most those that the previous chunk still has."""
    schedule: Schedule = Schedule.EXPONENTIAL
    strength: Strength = Strength.BOUNDED
    max_strength: float = 10.0

    def guidance(
        self, request: Denoising, target: NDArray[np.float32], left: int, frozen: int
    ) -> Guidance:
        """Guidance of one denoising.

        Args:
            request: its steps and start time.
            target: float32 [horizon of the chunk, width], normalised; the rows from `left` on do not count.
            left: actions that the previous chunk still has.
            frozen: actions that will have been executed when the chunk arrives.
        """
        weights = prefix_weights(len(target), frozen, min(self.horizon, left), self.schedule)
        times = [request.start_time * (1.0 - i / request.steps) for i in range(request.steps)]
        cap = self.max_strength
        if self.strength is Strength.BOUNDED:
            cap = min(cap, request.steps / request.start_time)
        return Guidance(target, weights, tuple(min(cap, _strength(time)) for time in times))


def prefix_weights(
    length: int, frozen: int, horizon: int, schedule: Schedule
) -> NDArray[np.float32]:
    """Weight of each action of a chunk, float32 [length]: 1 while frozen, decaying up to `horizon`, then 0.

    `frozen` beyond `horizon` counts as `horizon`: what the previous chunk does not have cannot be frozen.
    """
    horizon = max(0, min(horizon, length))
    frozen = max(0, min(frozen, horizon))
    weights = np.zeros(length)
    weights[:frozen] = 1.0
    if schedule is Schedule.ONES:
        weights[:horizon] = 1.0
    elif schedule is not Schedule.ZEROS and horizon > frozen:
        decay = np.linspace(1.0, 0.0, horizon - frozen + 2)[1:-1]
        if schedule is Schedule.EXPONENTIAL:
            decay = decay * np.expm1(decay) / math.expm1(1.0)
        weights[frozen:horizon] = decay
    return weights.astype(np.float32)


def _strength(time: float) -> float:
    """The paper's guidance weight (1-τ)/τ · ((1-τ)² + τ²)/(1-τ)² at τ = 1 - flow time; infinite for pure noise."""
    tau = 1.0 - time
    if tau <= 0.0:
        return math.inf
    return (time / tau) * (time**2 + tau**2) / time**2
