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
    """[horizon, joints], robot units, checked."""
    period_ns: int
    infer_start_ns: int
    infer_end_ns: int
    infer_steady_ns: int
    """Duration on a steady clock."""
    instruction: str
    steps: int
    warm_start: bool
    reset_reason: str
    plan_id: str


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A published chunk."""

    chunk_id: int
    inference: Inference
    timeline: Timeline
    planned_start_ns: int
    """When action 0 is meant; action k one period later each."""

    @property
    def horizon(self) -> int:
        """Number of actions."""
        return len(self.inference.actions)

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
        )


def first_due_index(planned_start_ns: int, period_ns: int, horizon: int, now_ns: int) -> int:
    """First action whose time is `now_ns` or later; `horizon` when all are past."""
    elapsed_ns = now_ns - planned_start_ns
    return min(max(0, -(-elapsed_ns // period_ns)), horizon)


def trajectory_points(
    chunk: Chunk, now_ns: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[int]]:
    """The part of a chunk that lies ahead, as a trajectory that a stock controller accepts.

    Returns:
        Positions and velocities, float64 [points, joints] in robot units (and per second), and the time of each point
        after `now_ns` [ns]: positive, strictly increasing. Velocities are central differences; the last is 0, as
        joint_trajectory_controller demands of a trajectory's end. No points when every action is past.
    """
    period_ns = chunk.inference.period_ns
    first = first_due_index(chunk.planned_start_ns, period_ns, chunk.horizon, now_ns + 1)
    actions = chunk.inference.actions.astype(np.float64)
    velocities = np.zeros_like(actions)
    if len(actions) > 1:
        velocities[:-1] = np.gradient(actions, period_ns / 1e9, axis=0)[:-1]
    times_ns = [
        chunk.planned_start_ns + index * period_ns - now_ns for index in range(first, chunk.horizon)
    ]
    return actions[first:], velocities[first:], times_ns
