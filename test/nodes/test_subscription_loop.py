"""The loop that takes an input's messages, over real topics."""

import threading

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

import rclpy
from std_msgs.msg import Int32

from flashrt_ros.nodes.base import RELIABLE, sensor_qos
from flashrt_ros.nodes.filters import Subscriber
from flashrt_ros.nodes.subscription_loop import SubscriptionLoop

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

pytestmark = pytest.mark.graph
PERIOD_NS = 50_000_000
MESSAGES = 8


class Looped:
    """Two subscriptions on a node that no executor spins, and the publishers that they hear."""

    def __init__(self, graph):
        self.graph = graph
        self.node = rclpy.create_node("looped", context=graph.context)
        self.heard = []
        self.threads = set()
        self.incompatible = []
        self.publishers = {}
        self.subscribers = []
        for name in "AB":
            subscriber = Subscriber(
                self.node,
                Int32,
                f"/{name}",
                qos_profile=RELIABLE,
                event_callbacks=SubscriptionEventCallbacks(
                    incompatible_qos=lambda event, name=name: self.incompatible.append(name)
                ),
            )
            subscriber.registerCallback(self.hear, name)
            self.subscribers.append(subscriber)
            self.publishers[name] = graph.client.create_publisher(Int32, f"/{name}", RELIABLE)
        for publisher in self.publishers.values():
            graph.wait_for(lambda p=publisher: p.get_subscription_count() == 1, "the subscription")
        self.loop = SubscriptionLoop([s.sub for s in self.subscribers], graph.context)

    def hear(self, message, name):
        self.heard.append((name, message.data))
        self.threads.add(threading.get_ident())

    def spin_until(self, condition, what):
        def done():
            self.loop.spin_once(PERIOD_NS)
            return condition()

        self.graph.wait_for(done, what)

    def close(self):
        del self.loop
        self.node.destroy_node()


@pytest.fixture
def looped(graph):
    made = Looped(graph)
    yield made
    made.close()


def test_every_message_comes_once_in_its_order_and_in_the_calling_thread(looped):
    for number in range(MESSAGES):
        for publisher in looped.publishers.values():
            publisher.publish(Int32(data=number))
    looped.spin_until(lambda: len(looped.heard) >= 2 * MESSAGES, "all messages")
    looped.loop.spin_once(0)
    for name in "AB":
        assert [n for heard, n in looped.heard if heard == name] == list(range(MESSAGES))
    assert looped.threads == {threading.get_ident()}


def test_a_flood_on_one_topic_does_not_hold_back_another(looped):
    for number in range(MESSAGES):
        for publisher in looped.publishers.values():
            publisher.publish(Int32(data=number))
    while len(looped.heard) < 2 * MESSAGES:
        before = len(looped.heard)
        looped.loop.spin_once(PERIOD_NS)
        names = [name for name, _ in looped.heard[before:]]
        assert len(names) == len(set(names)), "at most one message of each in a round"


def test_qos_event_is_told(looped):
    looped.graph.client.create_publisher(Int32, "/B", sensor_qos(1))
    looped.spin_until(lambda: looped.incompatible, "the event")
    looped.publishers["A"].publish(Int32(data=7))
    looped.spin_until(lambda: looped.heard, "a message after it")
    assert looped.incompatible == ["B"]
    assert looped.heard == [("A", 7)]


def test_what_a_callback_raises_reaches_the_caller(looped):
    def fail(message):
        raise RuntimeError("on purpose")

    looped.subscribers[0].registerCallback(fail)
    looped.publishers["A"].publish(Int32(data=1))
    with pytest.raises(RuntimeError, match="on purpose"):
        looped.spin_until(lambda: False, "the error")
    looped.publishers["B"].publish(Int32(data=2))
    looped.spin_until(lambda: ("B", 2) in looped.heard, "the next message")
