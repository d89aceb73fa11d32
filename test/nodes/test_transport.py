"""The Fast DDS profile is really used, and a large image goes through it whole."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

from flashrt_ros.demo import node_environment
from flashrt_ros.paths import config_path

pytestmark = pytest.mark.graph

PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
LIMIT_S = 60.0
WIDTH, HEIGHT = 1280, 720

# Prints the size of each Fast DDS segment that the process of a node has mapped.
SEGMENTS = """
import rclpy
rclpy.init()
node = rclpy.create_node("segments")
for line in open("/proc/self/maps"):
    if "/dev/shm/fastdds_" in line or "/dev/shm/fastrtps_" in line:
        begin, end = line.split()[0].split("-")
        print(int(end, 16) - int(begin, 16))
"""
PUBLISH = """
import array, sys, time
import rclpy
from sensor_msgs.msg import Image
from flashrt_ros.nodes.base import sensor_qos
rclpy.init()
node = rclpy.create_node("camera")
publisher = node.create_publisher(Image, "/image_raw", sensor_qos(4))
image = Image(data=array.array("B", sys.stdin.buffer.read()))
while True:
    publisher.publish(image)
    time.sleep(0.1)
"""
SUBSCRIBE = """
import hashlib
import rclpy
from sensor_msgs.msg import Image
from flashrt_ros.nodes.base import sensor_qos
rclpy.init()
node = rclpy.create_node("subscriber")
received = []
node.create_subscription(Image, "/image_raw", received.append, sensor_qos(4))
while not received:
    rclpy.spin_once(node)
print(hashlib.sha256(received[0].data).hexdigest())
"""


def environment(profile: bool) -> dict[str, str]:
    inherited = {k: v for k, v in node_environment().items() if k not in PROFILE_VARIABLES}
    if profile:
        inherited |= dict.fromkeys(PROFILE_VARIABLES, str(config_path("fastdds.xml")))
    # Other tests' domains are below 200.
    return inherited | {"ROS_DOMAIN_ID": str(200 + os.getpid() % 30)}


def output_of(script: str, profile: bool) -> str:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment(profile),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_S,
    ).stdout


def profile_segment_bytes() -> int:
    tree = ElementTree.parse(config_path("fastdds.xml"))
    (size,) = tree.iter("{http://www.eprosima.com}segment_size")
    return int(size.text)


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir(), reason="shared memory has no folder on this system"
)
@pytest.mark.parametrize("profile", [True, False])
def test_segment_is_the_profile_s_own(profile):
    """ros_failures: frames lost in a segment that is too small."""
    sizes = [int(line) for line in output_of(SEGMENTS, profile).split()]
    assert sizes, "the node has no shared-memory segment"
    assert (max(sizes) >= profile_segment_bytes()) == profile


def test_profile_holds_three_large_cameras():
    assert profile_segment_bytes() >= 2 * 3 * 3 * WIDTH * HEIGHT


def test_large_image_arrives_whole():
    pixels = np.random.default_rng(0).bytes(3 * WIDTH * HEIGHT)
    publisher = subprocess.Popen(
        [sys.executable, "-c", PUBLISH], env=environment(True), stdin=subprocess.PIPE
    )
    try:
        publisher.stdin.write(pixels)
        publisher.stdin.close()
        digest = output_of(SUBSCRIBE, profile=True).strip()
    finally:
        publisher.kill()
        publisher.wait()
    assert digest == hashlib.sha256(pixels).hexdigest()
