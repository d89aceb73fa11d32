"""Where one chunk ends and the next goes on: replaced, blended, averaged, or denoised to fit (`rtc`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.plan import Plan


class SeamKind(str, Enum):
    """How a chunk follows the one before."""

    REPLACE = "replace"
    """It takes over as it is."""
    BLEND = "blend"
    """Over a few actions, linearly from the one before."""
    ENSEMBLE = "ensemble"
    """Each action is the mean of what all chunks say of its time, after ACT (Zhao et al. 2023, arXiv 2304.13705)."""
    RTC = "rtc"
    """It was denoised so that it fits: real-time chunking."""


@dataclass(frozen=True, slots=True)
class Seams:
    """Settings of the seam."""

    kind: SeamKind = SeamKind.REPLACE
    blend_actions: int = 4
    """Actions over which `blend` goes from one chunk to the other."""
    coefficient: float = 0.01
    """Of `ensemble`: the i-th oldest prediction weighs exp(-coefficient · i)."""


class Splicer:
    """Joins each chunk to those before it, in robot units and by time."""

    def __init__(self) -> None:
        self._predictions: deque[Plan] = deque()

    def forget(self) -> None:
        """What earlier chunks said does not hold any more."""
        self._predictions.clear()

    def join(
        self, new: Plan, plan: Plan | None, first: int, settings: Seams
    ) -> NDArray[np.float32]:
        """The actions to publish, float32 [horizon, joints].

        Args:
            new: the chunk as its policy gave it.
            plan: what the robot executes; None when it stands or is elsewhere.
            first: the first action that will be executed: it is not in the past.
            settings: how.
        """
        earlier = list(self._predictions)
        if settings.kind is SeamKind.ENSEMBLE:
            self._predictions.append(new)
            while len(self._predictions) > len(new.actions):
                self._predictions.popleft()
        else:
            self._predictions.clear()
        if plan is None or settings.kind in (SeamKind.REPLACE, SeamKind.RTC):
            return new.actions
        if settings.kind is SeamKind.ENSEMBLE and earlier:
            return ensemble([*earlier, new], settings.coefficient)
        # An ensemble whose memory was just dropped has nothing to average: it blends this once.
        return blend(new, plan, first, settings.blend_actions)


def action_times_ns(plan: Plan) -> NDArray[np.int64]:
    """When each action is due, int64 [horizon]."""
    return plan.planned_start_ns + plan.period_ns * np.arange(len(plan.actions), dtype=np.int64)


def blend(new: Plan, before: Plan, first: int, actions: int) -> NDArray[np.float32]:
    """Linear from `before` to `new` over `actions` actions from `first` on; before it, what is executed meanwhile."""
    weight = np.clip((np.arange(len(new.actions)) - first + 1) / (actions + 1), 0.0, 1.0)[:, None]
    old = before.positions_at(action_times_ns(new))
    return ((1.0 - weight) * old + weight * new.actions).astype(np.float32)


def ensemble(predictions: Sequence[Plan], coefficient: float) -> NDArray[np.float32]:
    """Mean over all that chunks, oldest first, say of the times of the last one's actions."""
    times_ns = action_times_ns(predictions[-1])
    total = np.zeros(predictions[-1].actions.shape)
    weights = np.zeros(len(times_ns))
    for rank, prediction in enumerate(predictions):
        last_ns = prediction.planned_start_ns + (len(prediction.actions) - 1) * prediction.period_ns
        speaks = (times_ns >= prediction.planned_start_ns) & (times_ns <= last_ns)
        # Where the oldest say nothing any more, the rest weigh the same against each other.
        weight = speaks * np.exp(-coefficient * rank)
        total += weight[:, None] * prediction.positions_at(times_ns)
        weights += weight
    return (total / weights[:, None]).astype(np.float32)
