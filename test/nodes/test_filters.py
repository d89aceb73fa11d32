"""The synchroniser in the filter chain, fed by real topics."""

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from sensor_msgs.msg import Image

from flashrt_ros.nodes.base import RELIABLE, to_time
from flashrt_ros.nodes.filters import CameraSynchronizer, SimpleFilter, Subscriber
from flashrt_ros.observation.frame import CameraRule
from flashrt_ros.observation.gaps import GapCounter
from flashrt_ros.observation.intake import FrameIntake
from flashrt_ros.observation.synchronizer import Synchronizer

pytestmark = pytest.mark.graph
MS = 1_000_000


class Chain:
    def __init__(self, graph, slop_ms=20):
        node = graph.client
        self.graph = graph
        self.publishers = {c: node.create_publisher(Image, f"/{c}", RELIABLE) for c in "AB"}
        inputs = {c: Subscriber(node, Image, f"/{c}", qos_profile=RELIABLE) for c in "AB"}
        self.intake = FrameIntake(
            Synchronizer(
                [CameraRule("A"), CameraRule("B")], slop_ns=slop_ms * MS, max_future_ns=10**18
            ),
            {c: GapCounter() for c in "AB"},
        )
        self.filter = CameraSynchronizer(
            node,
            inputs,
            self.intake,
        )
        self.sets = []
        self.filter.registerCallback(self.sets.append)
        for publisher in self.publishers.values():
            graph.wait_for(lambda p=publisher: p.get_subscription_count() == 1, "the subscription")

    def publish(self, camera, stamp_ns):
        image = Image(height=1, width=1, encoding="mono8", step=1, data=[0])
        image.header.stamp = to_time(stamp_ns)
        self.publishers[camera].publish(image)

    def received(self):
        return sum(fates.received for fates in self.intake.fates().values())

    def wait_received(self, count):
        self.graph.wait_for(lambda: self.received() >= count, f"{count} frames")


def test_it_is_a_filter(graph):
    assert isinstance(Chain(graph).filter, SimpleFilter)


def test_row_1_callback_that_raises_holds_nothing(graph):
    chain = Chain(graph)

    def broken(frame_set):
        raise RuntimeError("a user's mistake")

    chain.filter.registerCallback(broken)
    after = []
    chain.filter.registerCallback(after.append)
    for k in range(5):
        for camera in "AB":
            chain.publish(camera, 10**18 + 33 * k * MS)
    chain.wait_received(10)
    graph.wait_for(lambda: len(after) == 5, "the sets for the callback after the broken one")
    assert len(chain.sets) == 5


def test_row_2_bag_that_loops(graph):
    """Three rounds of the same stamps, as a looping bag plays them, with a partner missing at each end."""
    chain = Chain(graph)
    sent = 0
    for _ in range(3):
        for k in range(60):
            for camera in "AB":
                if camera == "A" or k < 55:
                    chain.publish(camera, 10**18 + 33 * k * MS)
                    sent += 1
            chain.wait_received(sent)
    assert len(chain.sets) == 3 * 55
    assert sorted({s.epoch for s in chain.sets}) == [0, 1, 2]
    assert sum(f.unexplained for f in chain.intake.fates().values()) == 0


def test_row_3_identical_stamps_without_slop(graph):
    chain = Chain(graph, slop_ms=0)
    for k in range(3):
        for camera in "AB":
            chain.publish(camera, 10**18 + 33 * k * MS)
    chain.wait_received(6)
    graph.wait_for(lambda: len(chain.sets) == 3, "3 sets")


def test_rows_4_and_5_over_topics(graph):
    chain = Chain(graph, slop_ms=50)
    arrivals = (("A", 0), ("B", 40), ("A", 41), ("A", 74), ("B", 75), ("B", 42))
    for number, (camera, ms) in enumerate(arrivals, start=1):
        chain.publish(camera, 10**18 + ms * MS)
        chain.wait_received(number)
    offsets = [(s.stamp_ns - 10**18) // MS for s in chain.sets]
    assert offsets == [0, 40, 74]
    assert [s.skew_ns // MS for s in chain.sets] == [40, 1, 1]
    assert chain.intake.fates()["B"].late == 1
