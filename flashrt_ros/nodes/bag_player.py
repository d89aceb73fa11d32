"""Plays a recording into live nodes at its own pace, with /clock, where there is no `ros2 bag`.

Time stands at the first message until every topic has a subscriber; then messages go out at their record times.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock

from flashrt_ros.control.parameters import BAG_PLAYER
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.nodes.bag_recorder import message_class
from flashrt_ros.nodes.base import LATCHED, RELIABLE, Parameters, run, sensor_qos, to_time
from flashrt_ros.offline.bag import Bag
from flashrt_ros.offline.bag_topics import STRING, find_topics

_PICTURE_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_LOOK_PERIOD_S = 0.02


class BagPlayer(Node):
    """Publishes a recording's messages as they are, and ends by itself."""

    def __init__(self) -> None:
        super().__init__("bag_player")
        settings = Parameters(self, BAG_PLAYER)
        if not settings["bag"]:
            raise ValueError("parameter bag: expected a recording, found none")
        self.done = False
        """All was played."""
        self._rate = settings["rate"]
        self._wait_s, self._drain_s = settings["wait_s"], settings["drain_s"]
        self._bag = Bag(Path(settings["bag"]).expanduser())
        topics = settings["topics"] or self._input_topics(settings)
        self._outputs = {topic: self._output(topic) for topic in topics}
        for note in self._bag.notes:
            self.get_logger().warning(note)
        self._clock_publisher = self.create_publisher(Clock, "/clock", RELIABLE)
        self._begin_s: float | None = None
        self._stopping = threading.Event()
        clock_period_s = 1.0 / settings["clock_rate"]
        self._workers = [
            threading.Thread(target=self._tick, args=(clock_period_s,), name="clock", daemon=True),
            threading.Thread(target=self._play, name="player", daemon=True),
        ]
        for thread in self._workers:
            thread.start()

    def close(self) -> None:
        """Stop playing."""
        self._stopping.set()
        for thread in self._workers:
            thread.join()
        self._bag.close()

    def _input_topics(self, settings: Parameters) -> list[str]:
        robot = load_robot(find_robot(settings["robot"]))
        found = find_topics(self._bag, robot, settings["robot_namespace"] or None)
        inputs = [*found.cameras.values(), found.joint_states, found.instruction]
        return [topic for topic in inputs if topic]

    def _output(self, topic: str) -> Any:
        kind = self._bag.type_of(topic)
        if not kind:
            raise ValueError(f"parameter topics: the bag has no {topic}")
        # As their sources: sensors best effort, what is latched latched.
        profile: QoSProfile = LATCHED if kind == STRING else RELIABLE
        if kind in _PICTURE_TYPES:
            profile = sensor_qos(4)
        return self.create_publisher(message_class(kind), topic, profile)

    def _now_ns(self) -> int:
        """Time of the recording."""
        if self._begin_s is None:
            return self._bag.start_ns
        return self._bag.start_ns + round((time.monotonic() - self._begin_s) * 1e9 * self._rate)

    def _tick(self, period_s: float) -> None:
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s - time.monotonic())):
            self._clock_publisher.publish(Clock(clock=to_time(self._now_ns())))
            due_s = max(due_s + period_s, time.monotonic())

    def _play(self) -> None:
        self._await_subscribers()
        self._begin_s = time.monotonic()
        played = 0
        for topic, record_ns, data in self._bag.raw(set(self._outputs)):
            wait_s = (record_ns - self._now_ns()) / 1e9 / self._rate
            if self._stopping.wait(max(0.0, wait_s)):
                return
            self._outputs[topic].publish(bytes(data))
            played += 1
        self.get_logger().info(f"{played} messages of {len(self._outputs)} topics played")
        self._stopping.wait(self._drain_s)
        self.done = True

    def _await_subscribers(self) -> None:
        deadline_s = time.monotonic() + self._wait_s
        while lonely := [
            topic for topic, p in self._outputs.items() if not p.get_subscription_count()
        ]:
            if self._stopping.wait(_LOOK_PERIOD_S):
                return
            if time.monotonic() > deadline_s:
                self.get_logger().warning(f"nobody listens to {', '.join(lonely)}: playing anyway")
                return


def main() -> int:
    """Run the node."""
    return run(BagPlayer, until=lambda node: node.done)


if __name__ == "__main__":
    sys.exit(main())
