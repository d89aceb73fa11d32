"""Parameters of a node as its code reads them: kept between changes, and never behind one."""

import threading

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from flashrt_ros.control.parameter import Parameter
from flashrt_ros.nodes.base import Parameters

pytestmark = pytest.mark.graph
TABLE = (
    Parameter("rate", 1.0, "Some rate.", minimum=0.0, maximum=1e9, live=True),
    Parameter("delay_ms", 5.0, "Some delay.", "ms", 0.0, 100.0, live=True),
)


def both(parameters):
    return parameters["rate"], parameters.ns("delay_ms")


class AskedNode(Node):
    """A node that counts how often it is asked for a parameter."""

    asked = 0

    def get_parameter(self, name):
        self.asked += 1
        return super().get_parameter(name)


@pytest.fixture
def node(graph):
    made = AskedNode("parameters", context=graph.context, start_parameter_services=False)
    yield made
    made.destroy_node()


def test_node_is_asked_again_only_after_a_change(node):
    if not hasattr(node, "add_post_set_parameters_callback"):
        pytest.skip("this rclpy does not say when a change is in force")
    parameters = Parameters(node, TABLE)
    before = node.asked
    assert [parameters["rate"] for _ in range(5)] == [1.0] * 5
    assert [parameters.ns("delay_ms") for _ in range(5)] == [5_000_000] * 5
    assert [parameters.made(both) for _ in range(5)] == [(1.0, 5_000_000)] * 5
    assert node.asked - before == 2
    node.set_parameters([RosParameter("rate", value=2.0)])
    assert [parameters["rate"] for _ in range(5)] == [2.0] * 5
    assert [parameters.made(both) for _ in range(5)] == [(2.0, 5_000_000)] * 5
    assert parameters.made(both) is parameters.made(both)
    assert parameters.ns("delay_ms") == 5_000_000


def test_change_is_read_at_once_and_a_refused_one_never(node):
    parameters = Parameters(node, TABLE)
    assert (parameters["delay_ms"], parameters.made(both)) == (5.0, (1.0, 5_000_000))
    assert node.set_parameters([RosParameter("delay_ms", value=7)])[0].successful
    assert (parameters["delay_ms"], parameters.made(both)) == (7.0, (1.0, 7_000_000))
    assert not node.set_parameters([RosParameter("delay_ms", value=700.0)])[0].successful
    assert parameters["delay_ms"] == 7.0
    rate, delay = RosParameter("rate", value=3.0), RosParameter("delay_ms", value=-1.0)
    assert not node.set_parameters_atomically([rate, delay]).successful
    assert (parameters["rate"], parameters["delay_ms"]) == (1.0, 7.0)


def test_change_callback_reads_what_changed(node):
    if not hasattr(node, "add_post_set_parameters_callback"):
        pytest.skip("this rclpy does not say when a change is in force")
    heard = []
    parameters = Parameters(
        node, TABLE, changed=lambda name, value: heard.append((name, value, parameters[name]))
    )
    assert parameters["rate"] == 1.0
    node.set_parameters([RosParameter("rate", value=4.0)])
    assert heard == [("rate", 4.0, 4.0)]


@pytest.mark.parametrize("read", [lambda p: p["rate"], lambda p: p.made(both)[0]])
def test_value_read_while_it_changes_is_not_kept(node, read):
    parameters = Parameters(node, TABLE)
    asking, changed = threading.Event(), threading.Event()
    ask = node.get_parameter

    def slow(name):
        value = ask(name)
        asking.set()
        assert changed.wait(30)
        return value

    node.get_parameter = slow
    reader = threading.Thread(target=lambda: read(parameters))
    reader.start()
    assert asking.wait(30)
    node.get_parameter = ask
    node.set_parameters([RosParameter("rate", value=5.0)])
    changed.set()
    reader.join()
    assert read(parameters) == 5.0
