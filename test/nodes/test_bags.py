"""Recordings made by real nodes and played into real nodes, over DDS."""

import os
import signal

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from rosgraph_msgs.msg import Clock

from flashrt_ros.control.robot import find_robot
from flashrt_ros.msg import ActionChunk
from flashrt_ros.nodes.base import sensor_qos
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.offline.bag import Bag
from flashrt_ros.offline.replay import ReplaySettings, replay

from ..offline.bags import CAMERAS, PERIOD_NS, REPLAYED, T0, make_bag
from .graph import LIMIT_S

pytestmark = pytest.mark.graph
# Every set in order, however long the machine takes: there is much to compare.
PARAMETERS = REPLAYED | {
    "max_age_ms": 60_000.0,
    "max_action_age_ms": 60_000.0,
    "start": "now",
    "ease_in_ms": 0.0,
    "sync_policy": "fifo",
    "fifo_depth": 100,
}


def test_the_same_bag_gives_the_same_chunks_live_and_offline(graph, monkeypatch):
    """Whatever each of the two drops: a chunk of the same pictures and joint state is the same to the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setitem(graph._environment, "OMP_NUM_THREADS", "1")
    bag = make_bag(graph.folder / "drive", frames=60)
    # How far a chunk jumps at its seam depends on when it was published, which differs: no step limit may show.
    robot = graph.folder / "fast.yaml"
    contract = find_robot("so101").read_text(encoding="utf-8")
    robot.write_text(contract.replace("max_velocity: 6.0", "max_velocity: 1000.0"))
    parameters = PARAMETERS | {"robot": str(robot)}
    recording = graph.folder / "recording"
    recorder = graph.start(
        "bag_recorder", bag=str(recording), topics=["/policy/action_chunk"], use_sim_time=True
    )
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    graph.start("policy", autostart=True, use_sim_time=True, **parameters)
    player = graph.start("bag_player", bag=str(bag))
    assert player.wait(LIMIT_S) == 0, graph.log("bag_player")
    graph.wait_for(lambda: len(chunks) >= 20, "chunks")
    os.kill(recorder.pid, signal.SIGINT)
    assert recorder.wait(LIMIT_S) == 0, graph.log("bag_recorder")

    live = {}
    with Bag(recording) as recorded:
        assert recorded.notes == []
        for _, _, chunk in recorded.messages({"/policy/action_chunk"}):
            captures = tuple(to_ns(camera.capture) for camera in chunk.cameras)
            actions = np.asarray(chunk.actions, np.float32).reshape(chunk.horizon, -1)
            live[(*captures, to_ns(chunk.state_capture))] = actions

    folder = graph.folder / "offline"
    replay(ReplaySettings(bag, folder, parameters, "1"))
    torch.set_num_threads(before)
    columns = np.genfromtxt(folder / "actions.csv", delimiter=",", names=True, dtype=None)
    joints = columns.dtype.names[3:9]
    table = np.array([columns[joint] for joint in joints], np.float32).T.reshape(60, -1, 6)
    compared = 0
    for captures, actions in live.items():
        frame = round((captures[0] - T0) / PERIOD_NS)
        if captures == (T0 + frame * PERIOD_NS,) * 3:
            compared += 1
            assert np.array_equal(table[frame], actions), frame
    assert compared >= 20


def test_player_holds_time_until_it_is_heard_and_then_follows_the_record(graph):
    bag = make_bag(graph.folder / "drive", frames=15)
    clocks = graph.collect(Clock, "/clock")
    graph.start("bag_player", bag=str(bag))
    graph.wait_for(lambda: len(clocks) > 50, "the clock")
    with Bag(bag) as opened:
        start_ns, end_ns = opened.start_ns, opened.end_ns
    assert {to_ns(message.clock) for message in list(clocks)} == {start_ns}

    from sensor_msgs.msg import Image, JointState

    pictures = [graph.collect(Image, f"/{camera}/image_raw", sensor_qos(50)) for camera in CAMERAS]
    states = graph.collect(JointState, "/joint_states")
    graph.wait_for(lambda: len(states) == 15 and not graph.alive("bag_player"), "the end")
    sent = [T0 + k * PERIOD_NS for k in range(15)]
    assert [to_ns(message.header.stamp) for message in states] == sent
    for messages in pictures:
        # Best effort: what comes comes in order.
        stamps = [to_ns(message.header.stamp) for message in messages]
        assert stamps == [stamp for stamp in sent if stamp in stamps]
        assert stamps
    times = [to_ns(message.clock) for message in clocks]
    assert times == sorted(times)
    assert times[-1] >= end_ns
    assert "45 messages of 3 topics played" in graph.log("bag_player")


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({}, "parameter bag: expected a recording, found none"),
        ({"bag": "/nowhere/at/all"}, "/nowhere/at/all: no such bag"),
        ({"topics": ["/none"]}, "parameter topics: the bag has no /none"),
    ],
)
def test_player_says_in_one_line_why_it_does_not_play(graph, parameters, told):
    if "topics" in parameters:
        parameters = parameters | {"bag": str(make_bag(graph.folder / "drive", frames=2))}
    process = graph.start("bag_player", **parameters)
    assert process.wait(LIMIT_S) == 1
    assert graph.log("bag_player").strip() == f"error: {told}"


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_recorder_writes_what_was_sent_with_type_and_qos(graph, drivers, storage):
    path = graph.folder / "bag"
    process = graph.start("bag_recorder", bag=str(path), storage=storage)
    graph.wait_for(lambda: path.is_dir() and "recording to" in graph.log("bag_recorder"), "a file")
    subscribers = [*drivers.images.values(), drivers.states]
    graph.wait_for(lambda: all(p.get_subscription_count() for p in subscribers), "the recorder")
    stamps = []
    drivers.change = lambda camera, image: stamps.append(to_ns(image.header.stamp)) or image
    drivers.run(rate_hz=30.0)
    graph.wait_for(lambda: drivers.sent >= 30, "thirty pictures")
    drivers.stop()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(LIMIT_S) == 0
    with Bag(path) as bag:
        assert bag.notes == []
        kinds = {topic: bag.type_of(topic) for topic in bag.topics}
        found = [
            (topic, to_ns(message.header.stamp))
            for topic, _, message in bag.messages({"/joint_states", "/wrist/image_raw"})
        ]
    assert kinds["/wrist/image_raw"] == "sensor_msgs/msg/Image"
    for topic in ("/joint_states", "/wrist/image_raw"):
        received = [stamp for name, stamp in found if name == topic]
        assert received == sorted(received)
        assert set(received) <= set(stamps)
        assert received
    assert "best_effort" in (path / "metadata.yaml").read_text()


def test_recorder_overwrites_nothing(graph):
    process = graph.start("bag_recorder", bag=str(graph.folder))
    assert process.wait(LIMIT_S) == 1
    assert "expected a folder that does not exist" in graph.log("bag_recorder")
