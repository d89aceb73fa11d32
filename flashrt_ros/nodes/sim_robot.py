"""The simulated arm: physics in step with the clock, joint states, camera shutters, commands.

Pictures are taken here and developed elsewhere: when a camera's shutter opens, the world's state is read, stamped and
sent to `sim_camera`, a process of its own as cameras are on a robot.
"""

from __future__ import annotations

import array
import heapq
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.control.parameters import SIM_ROBOT
from flashrt_ros.nodes.base import RELIABLE, Parameters, run, sensor_qos, to_time
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.sim.world import BeltWorld


class SimRobot(Node):
    """Follows `~/command` (JointState) and `~/joint_trajectory` alike; the newest of either counts."""

    def __init__(self) -> None:
        super().__init__("sim_robot")
        parameters = Parameters(self, SIM_ROBOT)
        self._world = BeltWorld(
            seed=parameters["seed"],
            belt_speed_m_s=parameters["belt_speed"],
            image_size=(parameters["image_height"], parameters["image_width"]),
        )
        self._names = list(self._world.joint_names)
        self._lock = threading.Lock()
        self._trajectory: tuple[np.ndarray, np.ndarray] | None = None
        self._touched: set[str] = set()
        self._task_log = (
            Path(parameters["task_log"]).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
            if parameters["task_log"]
            else None
        )
        self._states = self.create_publisher(JointState, "joint_states", sensor_qos(10))
        self._shutters = self.create_publisher(JointState, "~/shutter", RELIABLE)
        self._reached = self.create_publisher(String, "~/reached", RELIABLE)
        self.create_subscription(JointState, "~/command", self._on_command, RELIABLE)
        self.create_subscription(
            JointTrajectory, "~/joint_trajectory", self._on_trajectory, RELIABLE
        )
        self._start_ns = time.monotonic_ns()
        self._stopping = threading.Event()
        self._clockwork = threading.Thread(target=self._run, args=(parameters,), daemon=True)
        self._clockwork.start()

    def close(self) -> None:
        """Stop the clockwork."""
        self._stopping.set()
        self._clockwork.join()
        if self._task_log is not None:
            self._task_log.close()

    def _run(self, parameters: Parameters) -> None:
        """Do what is due, each at its own rate and phase: one thread, so that nothing is read while it moves."""
        ticks: list[tuple[float, float, Callable[[], None]]] = [
            (0.0, 1.0 / parameters["state_rate"], self._publish_state)
        ]
        for at, camera in enumerate(parameters["cameras"]):
            ticks.append(
                (
                    at * parameters["camera_skew_ms"] / 1e3,
                    1.0 / parameters["camera_rate"],
                    lambda camera=camera: self._open_shutter(camera),  # type: ignore[misc]
                )
            )
        queue = [(phase_s, number, period_s) for number, (phase_s, period_s, _) in enumerate(ticks)]
        heapq.heapify(queue)
        while not self._stopping.is_set():
            due_s, number, period_s = heapq.heappop(queue)
            if self._stopping.wait(max(0.0, due_s - self._elapsed_s())):
                return
            ticks[number][2]()
            # A late tick is made up for by the next one; a long pause is not.
            heapq.heappush(
                queue, (max(due_s + period_s, self._elapsed_s() - period_s), number, period_s)
            )

    def _elapsed_s(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9

    def _advance(self) -> int:
        """Bring the physics up to now; returns the stamp of the state that it is then in."""
        with self._lock:
            now_ns = self._now_ns()
            if self._trajectory is not None:
                times_ns, positions = self._trajectory
                self._world.set_joint_targets(
                    [np.interp(now_ns, times_ns, column) for column in positions.T]
                )
            self._world.step_until(self._elapsed_s())
            return self._now_ns()

    def _publish_state(self) -> None:
        stamp_ns = self._advance()
        message = JointState(
            name=self._names,
            position=array.array("d", self._world.joint_positions.tobytes()),
            velocity=array.array("d", self._world.joint_velocities.tobytes()),
        )
        message.header.stamp = to_time(stamp_ns)
        self._states.publish(message)
        self._note_touches(stamp_ns)

    def _open_shutter(self, camera: str) -> None:
        stamp_ns = self._advance()
        # The world's whole state as positions without names; frame_id says whose shutter it was.
        message = JointState(position=array.array("d", self._world.state().tobytes()))
        message.header.stamp = to_time(stamp_ns)
        message.header.frame_id = camera
        self._shutters.publish(message)

    def _note_touches(self, stamp_ns: int) -> None:
        for colour in self._world.colours:
            if not self._world.touching(colour):
                self._touched.discard(colour)
            elif colour not in self._touched:
                self._touched.add(colour)
                self._reached.publish(String(data=colour))
                self.get_logger().info(f"the {colour} block was reached")
                if self._task_log is not None:
                    record = {"type": "reached", "block": colour, "stamp_ns": stamp_ns}
                    self._task_log.write(json.dumps(record) + "\n")

    def _on_command(self, message: JointState) -> None:
        positions = self._ordered(message.name, message.position)
        if positions is not None:
            with self._lock:
                self._trajectory = None
                self._world.set_joint_targets(positions)

    def _on_trajectory(self, message: JointTrajectory) -> None:
        rows = [self._ordered(message.joint_names, point.positions) for point in message.points]
        if not rows or any(row is None for row in rows):
            return
        stamp_ns = to_ns(message.header.stamp) or self._now_ns()
        times_ns = [stamp_ns + to_ns(point.time_from_start) for point in message.points]
        if np.any(np.diff(times_ns) <= 0):
            self.get_logger().error("trajectory refused: times must strictly increase")
            return
        with self._lock:
            now = (self._now_ns(), self._world.joint_positions)
            times = [now[0], *times_ns] if times_ns[0] > now[0] else times_ns
            values = [now[1], *rows] if times_ns[0] > now[0] else rows
            self._trajectory = (np.array(times, dtype=np.float64), np.array(values))

    def _ordered(self, names: list[str], positions: array.array) -> list[float] | None:
        """Positions in the world's order; None, with a word in the log, when they do not fit."""
        index = {name: at for at, name in enumerate(names)}
        if sorted(index) != sorted(self._names) or len(positions) != len(names):
            self.get_logger().error(
                f"command refused: expected one position for each of {self._names}, found {list(names)}",
                throttle_duration_sec=1.0,
            )
            return None
        values = [positions[index[name]] for name in self._names]
        if not np.isfinite(values).all():
            self.get_logger().error(f"command refused: not finite: {values}")
            return None
        return values

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def main() -> int:
    """Run the node."""
    return run(SimRobot)


if __name__ == "__main__":
    sys.exit(main())
