"""What a robot was told to do, as a bag has it, at any moment: what replayed actions are measured against."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.observation.timeline import to_ns

ACTION_APPLIED = "flashrt_ros/msg/ActionApplied"
JOINT_STATE = "sensor_msgs/msg/JointState"
TRAJECTORY = "trajectory_msgs/msg/JointTrajectory"
MULTI_ARRAY = "std_msgs/msg/Float64MultiArray"
TYPES = (ACTION_APPLIED, TRAJECTORY, JOINT_STATE, MULTI_ARRAY)
"""Message types that actions are read from; the first two are looked for where none is named."""


class RecordedActions:
    """Joint positions over time, by the messages of one topic.

    Args:
        joint_names: in the order of the replayed actions; messages are ordered by name.
        max_gap_ns: between two recorded actions; nothing is interpolated over a longer one.
    """

    def __init__(self, joint_names: Sequence[str], max_gap_ns: int) -> None:
        self._names = list(joint_names)
        self._max_gap_ns = max_gap_ns
        self._times_ns: list[int] = []
        self._positions: list[NDArray[np.float64]] = []
        self.refused = 0
        """Messages without a position for each joint."""

    def __len__(self) -> int:
        return len(self._times_ns)

    def add(self, kind: str, message: Any, record_ns: int) -> None:
        """Take one message of a type in `TYPES`; what it says of times that were filled before is news."""
        if kind == TRAJECTORY:
            start_ns = to_ns(message.header.stamp) or record_ns
            for number, point in enumerate(message.points):
                time_ns = start_ns + to_ns(point.time_from_start)
                self._put(message.joint_names, point.positions, time_ns, fresh=number == 0)
        elif kind == ACTION_APPLIED:
            self._put(message.joint_names, message.positions, to_ns(message.planned), fresh=True)
        elif kind == JOINT_STATE:
            stamp_ns = to_ns(message.header.stamp) or record_ns
            self._put(message.name, message.position, stamp_ns, fresh=True)
        else:
            self._put(self._names, message.data, record_ns, fresh=True)

    def at(self, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Positions at given times, linear between recorded ones.

        Args:
            times_ns: int64 [n], ROS time.

        Returns:
            float64 [n, joints]; NaN before the first, after the last and within gaps.
        """
        found = np.full((len(times_ns), len(self._names)), np.nan)
        if len(self._times_ns) < 2:
            return found
        # Differences of int64 stamps are exact; as floats the stamps themselves would not be.
        zero_ns = self._times_ns[0]
        known = np.array(self._times_ns, dtype=np.int64) - zero_ns
        table = np.array(self._positions)
        wanted = np.asarray(times_ns, dtype=np.int64) - zero_ns
        right = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
        left = right - 1
        span = known[right] - known[left]
        inside = (wanted >= known[0]) & (wanted <= known[-1]) & (span <= self._max_gap_ns)
        share = ((wanted - known[left]) / span)[:, None]
        values = table[left] * (1 - share) + table[right] * share
        found[inside] = values[inside]
        return found

    def _put(
        self, names: Sequence[str], positions: Sequence[float], time_ns: int, *, fresh: bool
    ) -> None:
        index = {name: at for at, name in enumerate(names)}
        if len(names) != len(positions) or any(name not in index for name in self._names):
            self.refused += 1
            return
        if fresh or (self._times_ns and self._times_ns[-1] >= time_ns):
            keep = bisect_left(self._times_ns, time_ns)
            del self._times_ns[keep:], self._positions[keep:]
        self._times_ns.append(time_ns)
        self._positions.append(np.array([positions[index[name]] for name in self._names]))
