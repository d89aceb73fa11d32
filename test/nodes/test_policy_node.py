"""The policy node in its own process, over real DDS, against what robots have thrown at nodes like it."""

import os
import threading

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from diagnostic_msgs.msg import DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.msg import ActionChunk
from flashrt_ros.nodes.base import LATCHED
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.paths import config_path

from .graph import ACTIVATE, CLEANUP, CONFIGURE, DEACTIVATE, JOINTS, counts

pytestmark = pytest.mark.graph
MS = 1_000_000


def start_policy(graph, **parameters):
    graph.start(
        "policy",
        **{
            "autostart": True,
            "instruction": "touch the red block",
            "diagnostics_rate": 20.0,
            **parameters,
        },
    )


def test_chunks_carry_every_stamp_and_match_their_trajectory(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    trajectories = graph.collect(JointTrajectory, "/policy/joint_trajectory")
    start_policy(graph)
    drivers.run()
    graph.wait_for(lambda: len(chunks) >= 20 and len(trajectories) >= 20, "20 chunks")
    ids = [chunk.chunk_id for chunk in chunks]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    captures = [to_ns(chunk.header.stamp) for chunk in chunks]
    assert captures == sorted(set(captures)), "stamps strictly increase"
    for chunk in chunks:
        stamps = [chunk.header.stamp, chunk.receive, chunk.sync, chunk.infer_start, chunk.infer_end]
        stamps = [to_ns(stamp) for stamp in (*stamps, chunk.publish)]
        assert stamps == sorted(stamps)
        assert to_ns(chunk.planned_start) == stamps[0]
        assert [c.camera for c in chunk.cameras] == ["overhead", "wrist"]
        assert min(to_ns(c.capture) for c in chunk.cameras) == stamps[0]
        assert list(chunk.joint_names) == JOINTS
        actions = np.array(chunk.actions).reshape(chunk.horizon, 6)
        assert np.isfinite(actions).all()
        due = stamps[0] + chunk.first_valid_index * to_ns(chunk.period)
        assert due >= stamps[-1], "the first valid action is not past"
        assert chunk.plan_id == "expert"
    assert [c.reset_reason for c in chunks if c.chunk_id == 1] == ["episode"] or ids[0] > 1
    for trajectory in trajectories:
        times = [to_ns(point.time_from_start) for point in trajectory.points]
        assert times[0] > 0, "row 12: nothing in the past"
        assert all(b > a for a, b in zip(times, times[1:], strict=False))
        assert to_ns(trajectory.header.stamp) > 0, "row 13: the start is stamped"
        assert not np.any(trajectory.points[-1].velocities)


def test_row_19_pictures_that_do_not_change_are_not_dropped(graph, drivers):
    last = graph.statuses()
    start_policy(graph)
    drivers.run()
    status = graph.until_status(
        last, "policy", lambda s: counts(s).get("sets", {}).get("taken", 0) >= 30
    )
    sets = counts(status)["sets"]
    assert sets["received"] == sets["taken"] + sets["superseded"] + sets["waiting"]
    assert not sets["rejected"]


def test_row_9_failed_configure_names_the_cause_and_a_second_one_works(graph):
    last = graph.statuses()
    start_policy(graph, autostart=False, robot="no_such_robot")
    assert graph.change_state(CONFIGURE) is False
    assert graph.state() == "unconfigured"
    assert (
        "expected a .yaml file or one of aloha, franka_droid, so101, found 'no_such_robot'"
        in graph.log("policy")
    )
    graph.until_status(last, "policy", lambda s: counts(s)["incidents"] == {"configure_failed": 1})
    assert graph.set_parameter("robot", "so101").successful
    assert graph.change_state(CONFIGURE)
    assert graph.change_state(ACTIVATE)
    assert graph.state() == "active"
    assert graph.change_state(DEACTIVATE)
    assert graph.change_state(CLEANUP)
    assert graph.state() == "unconfigured"
    assert graph.change_state(CONFIGURE)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"robot": "/no/such/robot.yaml"}, "no file /no/such/robot.yaml"),
        ({"robot": "aloha"}, "the scripted expert moves"),
        ({"checkpoint": "/no/such/checkpoint"}, "/no/such/checkpoint"),
        ({"instruction": "dance"}, "dance"),
    ],
)
def test_configure_refuses_what_cannot_work(graph, parameters, message):
    start_policy(graph, autostart=False, **parameters)
    assert graph.change_state(CONFIGURE) is False
    assert graph.state() == "unconfigured"
    assert "configure failed" in graph.log("policy")
    assert message in graph.log("policy")
    assert "Traceback" not in graph.log("policy")


def test_rows_9_and_10_slow_configure_shows_progress_and_refuses_other_transitions(graph, tmp_path):
    """The contract is read from a pipe that is not written yet: a configure that takes its time, for real."""
    pipe = tmp_path / "robot.yaml"
    os.mkfifo(pipe)
    last = graph.statuses()
    start_policy(graph, autostart=False, robot=str(pipe))
    configured = graph.call_async(
        ChangeState,
        "/policy/change_state",
        ChangeState.Request(transition=Transition(id=CONFIGURE)),
    )
    graph.until_status(last, "policy", lambda s: "reading" in s.message)
    assert graph.state() == "configuring"
    assert graph.change_state(ACTIVATE) is False
    assert graph.state() == "configuring"
    pipe.write_text(config_path("robots/so101.yaml").read_text())
    graph.wait_for(configured.done, "the end of configure")
    assert configured.result().success
    assert graph.state() == "inactive"


def test_row_10_invalid_transitions_are_refused(graph):
    start_policy(graph, autostart=False)
    for transition in (ACTIVATE, DEACTIVATE, CLEANUP, 250):
        assert graph.change_state(transition) is False
        assert graph.state() == "unconfigured"
    assert graph.change_state(CONFIGURE)
    for transition in (CONFIGURE, DEACTIVATE):
        assert graph.change_state(transition) is False
        assert graph.state() == "inactive"
    assert graph.alive("policy")


def test_row_11_activate_and_deactivate_under_load(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    start_policy(graph, autostart=False)
    drivers.run(rate_hz=200.0)
    assert graph.change_state(CONFIGURE)
    for _ in range(15):
        assert graph.change_state(ACTIVATE)
        have = len(chunks)
        graph.wait_for(lambda have=have: len(chunks) > have, "a chunk after activate")
        assert graph.change_state(DEACTIVATE)
    assert graph.alive("policy")
    assert "Traceback" not in graph.log("policy")
    have = len(chunks)
    sent = drivers.sent
    graph.wait_for(lambda: drivers.sent > sent + 50, "pictures that nobody takes")
    assert len(chunks) - have <= 1, "nothing in flight after deactivate"


def test_row_6_zero_stamps_are_rejected_counted_and_named(graph, drivers):
    def forget_stamp(camera, image):
        if camera == "wrist":
            image.header.stamp.sec = image.header.stamp.nanosec = 0
        return image

    drivers.change = forget_stamp
    last = graph.statuses()
    start_policy(graph)
    drivers.run()
    status = graph.until_status(
        last, "policy: camera wrist", lambda s: "'zero_stamp': " in str([v.value for v in s.values])
    )
    assert status.level == DiagnosticStatus.WARN
    node = graph.until_status(
        last,
        "policy",
        lambda s: counts(s)["cameras"]["wrist"]["rejected"].get("zero_stamp", 0) > 60,
    )
    assert counts(node)["cameras"]["wrist"]["unexplained"] == 0
    named = graph.log("policy").count("camera wrist: frame stamped 0.000 s")
    assert 1 <= named <= 10, "named once a second at most"


def test_row_7_incompatible_qos_is_reported_with_the_topic(graph, drivers):
    start_policy(graph, reliability="reliable")
    drivers.run()
    graph.wait_for(
        lambda: "a publisher on overhead/image_raw offers a QoS" in graph.log("policy"),
        "the report",
    )


def test_row_15_integers_are_doubles_and_ranges_are_told(graph):
    start_policy(graph, autostart=False, max_age_ms=400)
    assert graph.set_parameter("slop_ms", 1).successful
    # Humble's rclpy has no pre-set callback: an integer that is set later stays one there.
    kinds = {ParameterType.PARAMETER_DOUBLE}
    if not hasattr(graph.client, "add_pre_set_parameters_callback"):
        kinds.add(ParameterType.PARAMETER_INTEGER)
    assert graph.parameter("slop_ms").type in kinds
    assert graph.parameter("max_age_ms").type == ParameterType.PARAMETER_DOUBLE
    refused = graph.set_parameter("slop_ms", 2000)
    assert not refused.successful
    # rclpy's words where it sees a double out of its descriptor's range, else our own.
    for word in ("slop_ms", "1000", "2000"):
        assert word in refused.reason
    refused = graph.set_parameter("sync_policy", "oldest")
    assert "newest | fifo | exact" in refused.reason
    refused = graph.set_parameter("dry_run", "yes")
    assert "expected bool, found 'yes'" in refused.reason
    descriptor = graph.describe("slop_ms")
    assert "[ms]" in descriptor.description
    assert descriptor.floating_point_range[0].to_value == 1000.0


def test_out_of_range_at_start_is_one_line(graph):
    process = graph.start("policy", slop_ms=-3.0)
    assert process.wait(60) == 1
    assert "error:" in graph.log("policy")
    assert "slop_ms" in graph.log("policy")
    assert "Traceback" not in graph.log("policy")


def break_image(camera, image, kind):
    if camera == "wrist":
        if kind == "empty":
            image.height = image.width = 0
        elif kind == "short_data":
            image.data = image.data[:-1]
        elif kind == "short_step":
            image.step = 10
        elif kind == "encoding":
            image.encoding = "16UC1"
    return image


@pytest.mark.parametrize("kind", ["empty", "short_data", "short_step", "encoding"])
def test_rows_16_and_17_broken_images_are_rejected_and_the_node_goes_on(graph, drivers, kind):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    last = graph.statuses()
    drivers.change = lambda camera, image: break_image(camera, image, kind)
    start_policy(graph)
    drivers.run()
    graph.until_status(
        last,
        "policy",
        lambda s: (
            counts(s).get("cameras", {}).get("wrist", {}).get("rejected", {}).get(kind, 0) >= 3
        ),
    )
    assert not chunks
    if kind == "encoding":
        assert "expected one of rgb8" in graph.log("policy")
    drivers.change = lambda camera, image: image
    graph.wait_for(lambda: chunks, "a chunk once the pictures are whole")


def test_row_18_missing_joint_stops_inference_and_is_named(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    drivers.joint_names = JOINTS[:-1]
    start_policy(graph)
    drivers.run()
    graph.wait_for(lambda: "it lacks gripper" in graph.log("policy"), "the name of the joint")
    assert not chunks
    drivers.joint_names = list(reversed(JOINTS))
    graph.wait_for(lambda: chunks, "a chunk once all joints are there")


def test_row_8_silent_camera_holds_the_robot_is_named_and_recovers(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    trajectories = graph.collect(JointTrajectory, "/policy/joint_trajectory")
    last = graph.statuses()
    start_policy(graph, max_age_ms=200.0)
    drivers.run()
    graph.wait_for(lambda: len(chunks) > 5, "chunks")
    drivers.change = lambda camera, image: None if camera == "wrist" else image
    status = graph.until_status(
        last, "policy: camera wrist", lambda s: s.level == DiagnosticStatus.ERROR
    )
    assert "camera wrist is silent" in status.message
    graph.until_status(last, "policy", lambda s: s.message == "holding the robot: silent: wrist")
    graph.wait_for(lambda: len(trajectories[-1].points) == 1, "a trajectory that stays")
    hold = trajectories[-1]
    assert not np.any(hold.points[0].velocities)
    assert np.allclose(hold.points[0].positions, 0.0)
    assert len(chunks[-1].actions) > 0
    have = len(chunks)
    drivers.change = lambda camera, image: image
    graph.wait_for(lambda: len(chunks) > have, "chunks again")
    assert chunks[have].reset_reason == "hold"
    graph.until_status(last, "policy", lambda s: s.level == DiagnosticStatus.OK)


def test_instruction_topic_and_parameter_are_kept_in_step(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    said = graph.collect(String, "/policy/instruction", LATCHED)
    start_policy(graph)
    drivers.run()
    graph.wait_for(lambda: chunks, "a chunk")
    assert graph.set_parameter("instruction", "touch the blue block").successful
    graph.wait_for(lambda: said and said[-1].data == "touch the blue block", "the topic to follow")
    graph.wait_for(lambda: chunks[-1].instruction == "touch the blue block", "the policy to follow")
    publisher = graph.client.create_publisher(String, "/policy/instruction", LATCHED)
    publisher.publish(String(data="touch the green block"))
    graph.wait_for(
        lambda: chunks[-1].instruction == "touch the green block", "the policy to follow"
    )
    assert graph.parameter("instruction").string_value == "touch the green block"
    reasons = [chunk.reset_reason for chunk in chunks if chunk.reset_reason]
    assert reasons.count("instruction") == 2
    refused = graph.set_parameter("instruction", "touch something")
    assert not refused.successful
    assert "touch something" in refused.reason
    publisher.publish(String(data="dance"))
    graph.wait_for(lambda: "instruction refused" in graph.log("policy"), "the refusal")
    assert graph.parameter("instruction").string_value == "touch the green block"


def test_an_instruction_that_was_said_before_is_news_again(graph, drivers):
    """The topic keeps its newest message: of three in a row, the node may never see its own first two come back."""
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    said = graph.collect(String, "/policy/instruction", LATCHED)
    start_policy(graph)
    drivers.run()
    graph.wait_for(lambda: chunks, "a chunk")
    instructions = [f"touch the {colour} block" for colour in ("blue", "red", "green")]
    changes = [Parameter("instruction", value=text).to_parameter_msg() for text in instructions]
    request = SetParameters.Request(parameters=changes)
    answer = graph.call(SetParameters, "/policy/set_parameters", request)
    assert all(result.successful for result in answer.results)
    graph.wait_for(lambda: said and said[-1].data == instructions[-1], "the topic to follow")
    graph.wait_for(lambda: chunks[-1].instruction == instructions[-1], "the policy to follow")
    publisher = graph.client.create_publisher(String, "/policy/instruction", LATCHED)
    publisher.publish(String(data=instructions[0]))
    graph.wait_for(lambda: chunks[-1].instruction == instructions[0], "the policy to follow")


def test_empty_instruction_moves_nothing(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    last = graph.statuses()
    start_policy(graph, instruction="")
    drivers.run()
    graph.until_status(
        last,
        "policy",
        lambda s: counts(s).get("sets", {}).get("rejected", {}).get("no_instruction", 0) > 5,
    )
    assert not chunks


def test_dry_run_publishes_chunks_and_no_trajectory(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    trajectories = graph.collect(JointTrajectory, "/policy/joint_trajectory")
    start_policy(graph, dry_run=True)
    drivers.run()
    graph.wait_for(lambda: len(chunks) > 10, "chunks")
    assert not trajectories
    graph.set_parameter("dry_run", False)
    graph.wait_for(lambda: trajectories, "a trajectory after dry_run")


def test_reset_service(graph, drivers):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    start_policy(graph, autostart=False)
    answer = graph.call(Trigger, "/policy/reset", Trigger.Request())
    assert not answer.success
    assert "not configured" in answer.message
    assert graph.change_state(CONFIGURE)
    assert graph.change_state(ACTIVATE)
    drivers.run()
    graph.wait_for(lambda: chunks, "a chunk")
    have = len(chunks)
    assert graph.call(Trigger, "/policy/reset", Trigger.Request()).success
    graph.wait_for(lambda: any(c.reset_reason == "episode" for c in chunks[have:]), "the reset")


def test_lost_frames_are_noticed(graph, drivers):
    """Each fifth picture of one camera never arrives: diagnostics count them and point at the transport."""
    sent = {"overhead": 0, "wrist": 0}
    lock = threading.Lock()

    def lose(camera: str, image: Image):
        with lock:
            sent[camera] += 1
            return None if camera == "wrist" and sent[camera] % 5 == 0 else image

    drivers.change = lose
    last = graph.statuses()
    start_policy(graph)
    drivers.run()
    graph.until_status(
        last,
        "policy",
        lambda s: counts(s).get("cameras", {}).get("wrist", {}).get("lost_before", 0) >= 5,
    )
    status = graph.until_status(
        last, "policy: camera wrist", lambda s: s.level == DiagnosticStatus.WARN
    )
    assert "were lost before this node" in status.message
