"""A chunk of actions with its stamps, and its arithmetic in time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.observation.ages import ChunkRecord
from flashrt_ros.observation.timeline import Timeline


class Start(str, Enum):
    """When action 0 of a chunk is meant."""

    ALIGNED = "aligned"
    """At the observation's capture: what passed since is skipped."""
    NOW = "now"
    """At publication: the chunk is played from its first action."""


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """Actions of one inference, before it is decided when they are played."""

    actions: NDArray[np.float32]
    """[horizon, joints], robot units: finite, and within the limits that cannot be clipped."""
    period_ns: int
    infer_start_ns: int
    infer_end_ns: int
    infer_steady_ns: int
    """Duration on a steady clock."""
    instruction: str
    steps: int
    warm_start: bool
    """Started from the shifted chunk before, and taken."""
    reset_reason: str
    plan_id: str
    normalized: NDArray[np.float32] | None = None
    """[horizon, width] as denoised; None for a policy that does not denoise."""
    executed: int = 0
    """Actions of the chunk before that lay behind at the start of this one: by so many it was shifted."""
    frozen: int = 0
    """First actions that were taken unchanged from the chunk before (seam `rtc`)."""
    divergence: float = 0.0
    """Of a warm chunk from its start, root mean square in normalised units; 0 for a cold one."""
    foreseen_delay_ns: int = 0
    """Delay, capture to publication, that the chunk was made for."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A published chunk."""

    chunk_id: int
    inference: Inference
    actions: NDArray[np.float32]
    """[horizon, joints], robot units: joined to the chunk before, inside every limit."""
    timeline: Timeline
    planned_start_ns: int
    """When action 0 is meant; action k one period later each."""
    end_index: int
    """Actions from here on are too old to be applied."""
    seam: str = ""
    """How it was joined to the chunk before; empty when there was none to go on from."""
    clipped: int = 0
    """Numbers that were brought inside the limits, among the actions that may be applied."""
    recovery_ns: int = 0
    """Start of inference to publication, where the inference recovered from a reset; else 0."""
    deadline_missed: bool = False
    """The chunk before ran out during this inference."""

    @property
    def horizon(self) -> int:
        """Number of actions."""
        return len(self.actions)

    @property
    def first_valid_index(self) -> int:
        """First action that is not in the past at publication; `horizon` when all are."""
        return first_due_index(
            self.planned_start_ns, self.inference.period_ns, self.horizon, self.timeline.publish_ns
        )

    @property
    def record(self) -> ChunkRecord:
        """What the ages need to know of it."""
        return ChunkRecord(
            chunk_id=self.chunk_id,
            timeline=self.timeline,
            planned_start_ns=self.planned_start_ns,
            period_ns=self.inference.period_ns,
            horizon=self.horizon,
            first_valid_index=self.first_valid_index,
            end_index=self.end_index,
        )


def first_due_index(planned_start_ns: int, period_ns: int, horizon: int, now_ns: int) -> int:
    """First action whose time is `now_ns` or later; `horizon` when all are past."""
    elapsed_ns = now_ns - planned_start_ns
    return min(max(0, -(-elapsed_ns // period_ns)), horizon)


def end_index(
    capture_ns: int, planned_start_ns: int, period_ns: int, horizon: int, max_action_age_ns: int
) -> int:
    """First action that is due more than `max_action_age_ns` after the capture; `horizon` when none is."""
    last = (capture_ns + max_action_age_ns - planned_start_ns) // period_ns
    return min(max(0, last + 1), horizon)


def trajectory_points(
    chunk: Chunk, now_ns: int, stop_ns: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
    """The part of a chunk that lies ahead, as a trajectory that a stock controller accepts.

    Args:
        chunk: its actions up to `end_index` count.
        now_ns: ROS time.
        stop_ns: how long the motion takes to come to rest after the last action; 0 stops with it.

    Returns:
        Positions and velocities, float64 [points, joints] in robot units (and per second), and the time of each point
        after `now_ns` [ns]: positive, strictly increasing. Velocities are central differences; the last is 0, as
        joint_trajectory_controller demands of a trajectory's end. No points when every action is past.
    """
    period_ns, end = chunk.inference.period_ns, chunk.end_index
    first = first_due_index(chunk.planned_start_ns, period_ns, end, now_ns + 1)
    actions = chunk.actions[:end].astype(np.float64)
    if stop_ns and first < end > 1:
        speed = (actions[-1] - actions[-2]) / period_ns
        actions = np.vstack((actions, stopping(actions[-1], speed, period_ns, stop_ns)))
    velocities = np.zeros_like(actions)
    if len(actions) > 1:
        velocities[:-1] = np.gradient(actions, period_ns / 1e9, axis=0)[:-1]
    last = len(actions) if first < end else first
    times_ns = [chunk.planned_start_ns + index * period_ns - now_ns for index in range(first, last)]
    return actions[first:last], velocities[first:last], times_ns


def stopping(
    position: NDArray[np.float64], velocity: NDArray[np.float64], period_ns: int, stop_ns: int
) -> NDArray[np.float64]:
    """Positions [points, joints], a period apart, from `velocity` (per nanosecond) to rest in `stop_ns`.

    The velocity falls linearly. The last point is at rest.
    """
    points = -(-stop_ns // period_ns)
    times = np.minimum(np.arange(1, points + 1) * period_ns, stop_ns)[:, None].astype(np.float64)
    return position + velocity * (times - times**2 / (2.0 * stop_ns))
