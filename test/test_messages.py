"""The generated messages: all there, fast to fill, and the same after a way over DDS."""

from __future__ import annotations

import array
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rclpy
from rclpy.serialization import deserialize_message, serialize_message

import flashrt_ros.msg as messages
from flashrt_ros.msg import ActionApplied, ActionChunk, AgeStatistics, CameraStamp

NAMES = sorted(path.stem for path in (Path(__file__).resolve().parents[1] / "msg").glob("*.msg"))


def filled_chunk() -> ActionChunk:
    chunk = ActionChunk(chunk_id=7, horizon=50, joint_names=[f"joint{i}" for i in range(6)])
    chunk.header.stamp.sec = 12
    chunk.cameras = [CameraStamp(camera="overhead", status=CameraStamp.HELD)]
    values = np.linspace(-1.0, 1.0, 300, dtype=np.float32)
    chunk.actions = array.array("f", values.tobytes())
    return chunk


@pytest.mark.parametrize("name", NAMES)
def test_survives_serialisation(name):
    message = getattr(messages, name)()
    assert deserialize_message(serialize_message(message), type(message)) == message


def test_every_message_is_tested():
    assert sorted(name for name in dir(messages) if name[0].isupper()) == NAMES


def test_values_survive_serialisation():
    chunk = filled_chunk()
    back = deserialize_message(serialize_message(chunk), ActionChunk)
    assert back == chunk
    np.testing.assert_array_equal(
        np.frombuffer(back.actions, np.float32), np.linspace(-1.0, 1.0, 300, dtype=np.float32)
    )


@pytest.mark.parametrize(
    ("message", "field", "typecode"),
    [
        (ActionChunk, "actions", "f"),
        (ActionApplied, "positions", "f"),
        (AgeStatistics, "p50_ns", "q"),
        (AgeStatistics, "fate_counts", "Q"),
    ],
)
def test_arrays_are_taken_whole(message, field, typecode):
    instance = message()
    values = np.arange(5, dtype=typecode)
    # Not the NumPy array itself: older distributions refuse it, newer ones go through it value by value.
    setattr(instance, field, array.array(typecode, values.tobytes()))
    np.testing.assert_array_equal(np.frombuffer(getattr(instance, field), values.dtype), values)


PUBLISHER = """
import sys
import rclpy
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from test_messages import filled_chunk
rclpy.init()
node = rclpy.create_node("sender")
qos = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
publisher = node.create_publisher(type(filled_chunk()), "chunk", qos)
publisher.publish(filled_chunk())
sys.stdin.read()
"""


@pytest.mark.graph
def test_arrives_from_another_process(monkeypatch):
    from rclpy.qos import QoSDurabilityPolicy, QoSProfile

    monkeypatch.setenv("ROS_DOMAIN_ID", str(100 + os.getpid() % 100))
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    received = []
    sender = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER], stdin=subprocess.PIPE, cwd=Path(__file__).parent
    )
    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        node = rclpy.create_node("receiver", context=context)
        qos = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
        node.create_subscription(ActionChunk, "chunk", received.append, qos)
        executor = rclpy.executors.SingleThreadedExecutor(context=context)
        executor.add_node(node)
        deadline = node.get_clock().now().nanoseconds + 20_000_000_000
        while not received and node.get_clock().now().nanoseconds < deadline:
            executor.spin_once(timeout_sec=1.0)
    finally:
        rclpy.shutdown(context=context)
        sender.communicate()
    assert received == [filled_chunk()]
    assert sender.returncode == 0
