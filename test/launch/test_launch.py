"""Launch files as `ros2 launch` starts them: up to the first chunk, and down again without a stack trace."""

import os
import re
import signal

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")
pytest.importorskip(
    "ros2launch",
    reason="ros2launch (launch_ros) is not installed: ROS 2 from wheels has none, `flashrt demo` starts the nodes",
)

from flashrt_ros.msg import ActionAge, ActionChunk
from flashrt_ros.offline.run_log import read_run

from ..nodes.graph import ACTIVATE, CONFIGURE, LIMIT_S, Drivers, Graph
from ..offline.bags import T0, TINY, make_bag

pytestmark = pytest.mark.graph


@pytest.fixture
def graph(tmp_path):
    # A shell's background job ignores SIGINT, and what it starts does too, unless a handler is there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    made = Graph(tmp_path)
    yield made
    made.close()
    signal.signal(signal.SIGINT, before)


def launch(graph, name, **arguments):
    given = [f"{key}:={value}" for key, value in arguments.items()]
    return graph.run("launch", ["ros2", "launch", "flashrt_ros", name, *given])


def check_ended(graph, process, *nodes):
    """Launch has ended well, and so has each of the nodes, without a word of complaint."""
    assert process.wait(LIMIT_S) == 0, graph.log("launch")
    log = graph.log("launch")
    ended = re.findall(r"\[(\w+)-\d+\]: process has finished cleanly", log)
    assert sorted(ended) == sorted(nodes), log
    for complaint in ("Traceback", "never retrieved", "Failed to publish", "[ERROR] [launch]"):
        assert complaint not in log, log


def interrupt(graph, process, *nodes):
    os.kill(process.pid, signal.SIGINT)
    check_ended(graph, process, *nodes)


def test_policy_becomes_active_by_itself(graph, tmp_path):
    drivers = Drivers(graph).run()
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    process = launch(
        graph, "policy.launch.py", instruction="touch the blue block", log_dir=tmp_path
    )
    graph.wait_for(lambda: chunks, "a chunk")
    drivers.stop()
    assert graph.state() == "active"
    assert chunks[0].instruction == "touch the blue block"
    interrupt(graph, process, "policy", "age_logger")
    run = read_run(tmp_path / "ages.jsonl")
    assert run.ended
    assert len(run.chunks)


def test_policy_waits_for_transitions_from_outside(graph):
    process = launch(graph, "policy.launch.py", autostart="false", instruction="5")
    assert graph.state() == "unconfigured"
    # Text stays text, even where it looks like a number.
    assert graph.parameter("instruction").string_value == "5"
    assert graph.set_parameter("instruction", "touch the red block").successful
    assert graph.change_state(CONFIGURE)
    assert graph.change_state(ACTIVATE)
    assert graph.state() == "active"
    interrupt(graph, process, "policy", "age_logger")


def test_demo_plays_until_it_is_interrupted(graph):
    ages = graph.collect(ActionAge, "/age_logger/action_age")
    process = launch(graph, "demo.launch.py")
    graph.wait_for(lambda: any(age.apply_source == ActionAge.MEASURED for age in ages), "an action")
    nodes = ("policy", "age_logger", "action_player", "sim_camera", "sim_robot")
    interrupt(graph, process, *nodes)


def test_demo_ends_after_its_duration(graph, tmp_path):
    process = launch(
        graph,
        "demo.launch.py",
        namespace="arm",
        follow="trajectory",
        duration=15,
        log_dir=tmp_path,
    )
    check_ended(graph, process, "policy", "age_logger", "sim_camera", "sim_robot")
    run = read_run(tmp_path / "ages.jsonl")
    assert run.ended
    assert len(run.chunks)


def test_replay_ends_with_its_bag(graph, tmp_path):
    bag = make_bag(tmp_path / "drive", frames=60)
    process = launch(
        graph,
        "replay.launch.py",
        bag=bag,
        checkpoint=TINY,
        instruction="pick up the cup",
        log_dir=tmp_path,
    )
    check_ended(graph, process, "policy", "age_logger", "action_player", "bag_player")
    run = read_run(tmp_path / "ages.jsonl")
    assert run.ended
    assert len(run.chunks)
    # Ages of the recording, not of the day on which it is played.
    assert (run.chunks["capture_ns"] < T0 + 10_000_000_000).all()
