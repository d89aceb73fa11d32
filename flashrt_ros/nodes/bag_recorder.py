"""Records topics into a rosbag2 recording, by the names and QoS that it finds, where there is no `ros2 bag`."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from flashrt_ros.control.parameters import BAG_RECORDER
from flashrt_ros.nodes.base import Parameters, run

_LOOK_PERIOD_S = 0.1
_DEPTH = 200
_NEVER = ("/rosout", "/parameter_events", "/clock")
_PRIVATE = "/_"


def message_class(name: str) -> Any:
    """Class of a message type such as sensor_msgs/msg/Image.

    Raises:
        ImportError: its package is not installed.
        AttributeError: it has no such message.
    """
    package, _, kind = name.split("/")
    return getattr(importlib.import_module(f"{package}.msg"), kind)


class BagRecorder(Node):
    """Subscribes to every topic as it appears and writes what comes, serialised as it is."""

    def __init__(self) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer
        from rosbags.typesys import Stores, get_typestore

        super().__init__("bag_recorder")
        settings = Parameters(self, BAG_RECORDER)
        path = Path(settings["bag"]).expanduser()
        if not settings["bag"] or path.exists():
            raise ValueError(f"parameter bag: expected a folder that does not exist, found {path}")
        self._wanted = set(settings["topics"])
        self._sim_time = bool(self.get_parameter("use_sim_time").value)
        self._store = get_typestore(Stores.LATEST)
        self._refused: set[str] = set()
        self._counts: dict[str, int] = {}
        plugin = StoragePlugin[settings["storage"].upper()]
        self._writer = Writer(path, version=9, storage_plugin=plugin)
        self._writer.open()
        self.create_timer(_LOOK_PERIOD_S, self._look)
        self.get_logger().info(f"recording to {path}")

    def close(self) -> None:
        """Write the index and metadata.yaml."""
        self._writer.close()
        total = sum(self._counts.values())
        self.get_logger().info(f"{total} messages of {len(self._counts)} topics recorded")

    def _look(self) -> None:
        for topic, types in self.get_topic_names_and_types():
            known = topic in self._counts or topic in self._refused
            if known or topic in _NEVER or _PRIVATE in topic:
                continue
            if self._wanted and topic not in self._wanted:
                continue
            publishers = self.get_publishers_info_by_topic(topic)
            if publishers:
                self._subscribe(topic, types[0], [info.qos_profile for info in publishers])

    def _subscribe(self, topic: str, kind: str, offered: list[QoSProfile]) -> None:
        try:
            message_type = message_class(kind)
            self._learn(kind)
        except (ImportError, AttributeError, OSError, ValueError) as error:
            self._refused.add(topic)
            self.get_logger().error(f"{topic} is not recorded: type {kind}: {error}")
            return
        # What all of its publishers offer, so that each is heard.
        reliable = all(q.reliability == ReliabilityPolicy.RELIABLE for q in offered)
        latched = all(q.durability == DurabilityPolicy.TRANSIENT_LOCAL for q in offered)
        profile = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=_DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        connection = self._writer.add_connection(
            topic,
            kind,
            typestore=self._store,
            offered_qos_profiles=[_recorded_qos(reliable, latched)],
        )
        self._counts[topic] = 0
        write = functools.partial(self._write, topic, connection)
        self.create_subscription(
            message_type, topic, lambda data, info: write(data, info), profile, raw=True
        )

    def _write(self, topic: str, connection: Any, data: bytes, info: Any) -> None:
        # When it came, not when this node got round to it; a simulated clock is the node's alone.
        received_ns = 0 if self._sim_time else int(info["received_timestamp"])
        record_ns = received_ns or int(self.get_clock().now().nanoseconds)
        self._writer.write(connection, record_ns, data)
        self._counts[topic] += 1

    def _learn(self, kind: str) -> None:
        """Register a message type that rosbags does not bring, and what it is made of, from its installed .msg file."""
        from rosbags.typesys import get_types_from_msg

        if kind in self._store.fielddefs:
            return
        package, _, name = kind.split("/")
        file = Path(get_package_share_directory(package)) / "msg" / f"{name}.msg"
        types = get_types_from_msg(file.read_text(encoding="utf-8"), kind)
        for member in _members(types[kind]):
            self._learn(member)
        self._store.register(types)


def _members(definition: Any) -> set[str]:
    """Names of the message types within one, by rosbags' description of its fields."""
    found: set[str] = set()

    def visit(part: Any) -> None:
        if isinstance(part, str) and "/msg/" in part:
            found.add(part)
        elif isinstance(part, (list, tuple)):
            for inner in part:
                visit(inner)

    visit(definition[1])
    return found


def _recorded_qos(reliable: bool, latched: bool) -> Any:
    from rosbags.interfaces import (
        Qos,
        QosDurability,
        QosHistory,
        QosLiveliness,
        QosReliability,
        QosTime,
    )

    for_ever = QosTime(9223372036, 854775807)
    return Qos(
        QosHistory.KEEP_LAST,
        10,
        QosReliability.RELIABLE if reliable else QosReliability.BEST_EFFORT,
        QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE,
        for_ever,
        for_ever,
        QosLiveliness.AUTOMATIC,
        for_ever,
        False,
    )


def main() -> int:
    """Run the node."""
    return run(BagRecorder)


if __name__ == "__main__":
    sys.exit(main())
