"""When nothing may be carried over from one chunk to the next, and the name of the reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.robot import Robot
from flashrt_ros.observation.frame import Observation

EPISODE = "episode"
"""The node was activated, or `~/reset` was called."""
INSTRUCTION = "instruction"
STATE_JUMP = "state_jump"
"""A joint is where its motor cannot have taken it since the observation before."""
VIEW_CHANGE = "view_change"
"""A picture differs from the one before by more than motion explains."""
GAP = "gap"
"""The observation before is longer ago than the chunk lasts."""
CLOCK_JUMP = "clock_jump"
HOLD = "hold"
"""The robot was held, or a chunk was refused."""
DIVERGENCE = "divergence"
"""The warm chunk went too far from its start: the same call went on with all steps."""

RESETS = (EPISODE, INSTRUCTION, STATE_JUMP, VIEW_CHANGE, GAP, CLOCK_JUMP, HOLD, DIVERGENCE)
MOTION_GOES_ON = frozenset({"", INSTRUCTION, VIEW_CHANGE, DIVERGENCE})
"""After these the robot still executes the chunk before, so that the seam to it must be smooth; after the others it
is elsewhere, or stands."""

_THUMBNAIL_PIXELS = 24


@dataclass(frozen=True, slots=True)
class ResetRules:
    """Thresholds of the resets by content. 0 turns a rule off."""

    state_jump: float = 0.05
    """Share of a joint's range, beyond what it can move at its maximum velocity in the time between observations."""
    view_change: float = 100.0
    """Mean absolute difference of two pictures of a camera, grey levels of 255. A wrist camera's differ by up to 73 in
    normal motion, those of a lens that is covered by 146: `benchmarks/reset_thresholds.py`."""
    gap_ns: int = 0
    """Longest time between two observations; 0 is the chunk's length."""


class ResetMonitor:
    """Compares each observation with the one that was inferred before it. Called from one thread, but for `request`."""

    def __init__(self, robot: Robot) -> None:
        lower, upper = robot.limits()
        self._range = upper - lower
        self._max_velocity = robot.max_velocity()
        self._pending = EPISODE
        self._lock = threading.Lock()
        self._instruction = ""
        self._last: Observation | None = None
        self._thumbnails: dict[str, NDArray[np.int16]] = {}

    @property
    def pending(self) -> str:
        """The reset that the next inference begins with; empty for none that is known yet."""
        with self._lock:
            return self._pending

    @property
    def instruction(self) -> str:
        """Of the last inference."""
        return self._instruction

    def request(self, reason: str) -> None:
        """Reset at the next inference; from any thread. The first of several reasons is kept."""
        with self._lock:
            self._pending = self._pending or reason

    def check(
        self, observation: Observation, instruction: str, rules: ResetRules, chunk_ns: int
    ) -> str:
        """Why this inference starts afresh; empty when it does not. What was asked for comes first.

        Args:
            observation: the one to be inferred.
            instruction: to be inferred with.
            rules: thresholds.
            chunk_ns: how long a chunk lasts [ns].
        """
        with self._lock:
            pending, self._pending = self._pending, ""
        thumbnails = {name: thumbnail(image) for name, image in observation.images.items()}
        reason = pending
        if not reason and instruction != self._instruction:
            reason = INSTRUCTION
        if not reason and self._last is not None:
            reason = self._by_content(self._last, observation, thumbnails, rules, chunk_ns)
        self._last, self._instruction, self._thumbnails = observation, instruction, thumbnails
        return reason

    def _by_content(
        self,
        last: Observation,
        now: Observation,
        thumbnails: dict[str, NDArray[np.int16]],
        rules: ResetRules,
        chunk_ns: int,
    ) -> str:
        passed_ns = now.frame_set.stamp_ns - last.frame_set.stamp_ns
        if now.frame_set.epoch != last.frame_set.epoch or passed_ns < 0:
            return CLOCK_JUMP
        if passed_ns > (rules.gap_ns or chunk_ns):
            return GAP
        moved = np.abs(now.joint_positions - last.joint_positions)
        possible = self._max_velocity * max(0, now.state_capture_ns - last.state_capture_ns) / 1e9
        if rules.state_jump and (moved > possible + rules.state_jump * self._range).any():
            return STATE_JUMP
        if rules.view_change and any(
            view_change(self._thumbnails[name], seen) > rules.view_change
            for name, seen in thumbnails.items()
            if name in self._thumbnails
        ):
            return VIEW_CHANGE
        return ""


def thumbnail(image: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Every n-th pixel of uint8 [height, width, 3], at least 24 a side: cheap, and its mean is the picture's."""
    step = max(1, min(image.shape[:2]) // _THUMBNAIL_PIXELS)
    return image[step // 2 :: step, step // 2 :: step].astype(np.int16)


def view_change(before: NDArray[np.int16], now: NDArray[np.int16]) -> float:
    """Mean absolute difference of two thumbnails in grey levels; infinite when the picture's size changed."""
    if before.shape != now.shape:
        return float("inf")
    return float(np.abs(now - before).mean())
