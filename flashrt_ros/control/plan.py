"""The chunk that the robot executes, and how far it has come with it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.chunk import Chunk


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A published chunk, as the next one needs it."""

    chunk_id: int
    planned_start_ns: int
    period_ns: int
    actions: NDArray[np.float32]
    """[horizon, joints], robot units, as published."""
    end_index: int
    """Actions from here on are not executed: they are too old."""
    normalized: NDArray[np.float32] | None
    """[horizon, width] as denoised, before trimming; None for a policy that does not denoise."""
    joint_positions: NDArray[np.float64]
    """[joints] of the observation that it was computed from."""

    @classmethod
    def of(cls, chunk: Chunk, joint_positions: NDArray[np.float64]) -> Plan:
        """The plan that a chunk is for the chunk after it."""
        return cls(
            chunk_id=chunk.chunk_id,
            planned_start_ns=chunk.planned_start_ns,
            period_ns=chunk.inference.period_ns,
            actions=chunk.actions,
            end_index=chunk.end_index,
            normalized=chunk.inference.normalized,
            joint_positions=joint_positions,
        )

    @property
    def end_ns(self) -> int:
        """When its last action is over."""
        return self.planned_start_ns + self.end_index * self.period_ns

    def index_at(self, time_ns: int) -> int:
        """The action whose time is nearest, from 0 to the horizon (where all are over); halves count up."""
        elapsed_ns = time_ns - self.planned_start_ns
        nearest = (2 * elapsed_ns + self.period_ns) // (2 * self.period_ns)
        return min(max(nearest, 0), len(self.actions))

    def positions_at(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Commanded positions at times [n], float64 [n, joints]: interpolated, the first and last executed held."""
        place = (times_ns - self.planned_start_ns) / self.period_ns
        place = np.clip(place, 0, min(self.end_index, len(self.actions)) - 1)
        low = np.minimum(place.astype(np.int64), max(0, len(self.actions) - 2))
        share = (place - low)[:, None]
        high = np.minimum(low + 1, len(self.actions) - 1)
        actions = self.actions.astype(np.float64)
        between: NDArray[np.float64] = (1.0 - share) * actions[low] + share * actions[high]
        return between


class Execution:
    """Which action of each chunk was applied last, as reported. From any thread.

    Args:
        memory: chunks that are remembered.
    """

    def __init__(self, memory: int = 64) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._applied: dict[int, list[tuple[int, int]]] = {}

    def report(self, chunk_id: int, action_index: int, apply_ns: int) -> None:
        """An action reached the robot at `apply_ns`."""
        with self._lock:
            self._applied.setdefault(chunk_id, []).append((apply_ns, action_index))
            while len(self._applied) > self._memory:
                del self._applied[next(iter(self._applied))]

    def executed(self, plan: Plan, time_ns: int) -> int:
        """Actions of the plan that lie behind the robot at `time_ns`, 0 to the horizon.

        By the last report of one of its actions where there is any up to then: the robot is at that action and goes on
        to the next one a period later, no further. Else by the time elapsed since the plan's start. To the nearest.
        """
        with self._lock:
            reports = [
                report
                for report in self._applied.get(plan.chunk_id, ())
                # An earlier one is another chunk's: of a policy that counted from 1 as well.
                if plan.planned_start_ns <= report[0] <= time_ns
            ]
        if not reports:
            return plan.index_at(time_ns)
        apply_ns, index = max(reports)
        gone_on = 2 * (time_ns - apply_ns) >= plan.period_ns
        return min(index + int(gone_on), len(plan.actions))

    def forget(self) -> None:
        """Drop all reports: chunk ids begin anew, or the clock went back."""
        with self._lock:
            self._applied.clear()
