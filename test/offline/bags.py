"""Recordings made for tests: written by rosbags, without ROS, in seconds of virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.robot import find_robot, load_robot

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
PERIOD_NS = 33_333_333
INPUT_NS = 6 * MS
"""From capture to record."""
CAMERAS = ("overhead", "wrist")
IMAGE, JOINT_STATE = "sensor_msgs/msg/Image", "sensor_msgs/msg/JointState"
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny_so101"
REPLAYED = {"checkpoint": str(TINY), "steps": 1, "instruction": "pick up the cup"}
"""Parameters of a policy that runs anywhere."""


def typestore():
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.LATEST)


class BagWriter:
    """Writes messages made of keyword arguments."""

    def __init__(self, path: Path, storage: str = "mcap", compression: str = "") -> None:
        from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

        self.store = typestore()
        self._writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
        if compression:
            self._writer.set_compression(
                CompressionMode[compression.upper()], CompressionFormat.ZSTD
            )
        self._connections: dict[tuple[str, str], Any] = {}

    def __enter__(self) -> BagWriter:
        self._writer.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def write_raw(self, topic: str, kind: str, record_ns: int, data: bytes) -> None:
        key = (topic, kind)
        if key not in self._connections:
            self._connections[key] = self._writer.add_connection(topic, kind, typestore=self.store)
        self._writer.write(self._connections[key], record_ns, data)

    def write(self, topic: str, kind: str, record_ns: int, message: Any) -> None:
        self.write_raw(topic, kind, record_ns, self.store.serialize_cdr(message, kind))

    def make(self, kind: str, **values: Any) -> Any:
        return self.store.types[kind](**values)

    def header(self, stamp_ns: int) -> Any:
        stamp = self.make(
            "builtin_interfaces/msg/Time",
            sec=stamp_ns // 1_000_000_000,
            nanosec=stamp_ns % 1_000_000_000,
        )
        return self.make("std_msgs/msg/Header", stamp=stamp, frame_id="")

    def image(self, topic: str, stamp_ns: int, record_ns: int, seed: int, size: int = 32) -> None:
        pixels = np.random.default_rng(seed).integers(0, 255, size * size * 3, dtype=np.uint8)
        message = self.make(
            IMAGE,
            header=self.header(stamp_ns),
            height=size,
            width=size,
            encoding="rgb8",
            is_bigendian=0,
            step=3 * size,
            data=pixels,
        )
        self.write(topic, IMAGE, record_ns, message)

    def joint_state(self, topic: str, stamp_ns: int, record_ns: int, position: Any) -> None:
        names = load_robot(find_robot("so101")).joint_names
        message = self.make(
            JOINT_STATE,
            header=self.header(stamp_ns),
            name=names,
            position=np.asarray(position, dtype=np.float64),
            velocity=np.zeros(0),
            effort=np.zeros(0),
        )
        self.write(topic, JOINT_STATE, record_ns, message)


def position_at(stamp_ns: int) -> np.ndarray:
    """Where the arm of `write_drive` is: each joint swings by itself."""
    seconds = (stamp_ns - T0) / 1e9
    return 0.3 * np.sin(seconds * np.arange(1, 7))


def write_drive(writer: BagWriter, frames: int = 30, namespace: str = "", start: int = 0) -> None:
    """Both cameras and joint states of an SO-101 at 30 Hz, each picture another."""
    for k in range(start, start + frames):
        stamp_ns = T0 + k * PERIOD_NS
        writer.joint_state(
            f"{namespace}/joint_states", stamp_ns, stamp_ns + MS, position_at(stamp_ns)
        )
        for number, camera in enumerate(CAMERAS):
            record_ns = stamp_ns + INPUT_NS + number * MS
            writer.image(f"{namespace}/{camera}/image_raw", stamp_ns, record_ns, 2 * k + number)


def make_bag(path: Path, storage: str = "mcap", compression: str = "", **drive: Any) -> Path:
    """A bag of `write_drive`."""
    with BagWriter(path, storage, compression) as writer:
        write_drive(writer, **drive)
    return path
