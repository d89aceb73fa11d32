"""The whole pipeline: simulated robot and cameras, policy, player, logger, each a process, over real DDS."""

import csv
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from sensor_msgs.msg import JointState

from flashrt_ros.msg import ActionAge, ActionApplied, ActionChunk, AgeStatistics
from flashrt_ros.nodes.base import sensor_qos
from flashrt_ros.observation.ages import FATES
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.offline.run_log import read_run
from flashrt_ros.paths import config_path, executable_path

from .graph import ACTIVATE, CONFIGURE, LIMIT_S, counts

pytestmark = pytest.mark.graph
DEMO = ["--params-file", str(config_path("demo.yaml"))]
MS = 1_000_000


def flashrt(*arguments):
    command = [sys.executable, "-m", "flashrt_ros.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)


def start_all(graph, max_age_ms=300.0):
    graph.start("policy", *DEMO, max_age_ms=max_age_ms, diagnostics_rate=20.0)
    graph.start("action_player", *DEMO, max_age_ms=max_age_ms)
    graph.start("age_logger", *DEMO, log_file=str(graph.folder / "ages.jsonl"), rate=10.0)
    graph.start("sim_camera", *DEMO)
    graph.start("sim_robot", *DEMO, "-r", "~/command:=action_player/command")


@pytest.mark.parametrize(("follow", "storage"), [("player", "mcap"), ("trajectory", "sqlite3")])
def test_demo_ends_by_itself_with_every_figure_accounted_for(tmp_path, follow, storage):
    bag = tmp_path / "bag"
    options = ["--json", tmp_path / "out.json", "--follow", follow, "--storage", storage]
    ended = flashrt("record", bag, "--duration", 10, *options)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["task"]["reached"], ended.stdout
    assert summary["frames_unexplained"] == 0
    assert summary["terms_off_by_ns"] == 0
    assert summary["ended_in_order"]
    assert summary["actions"] > 0
    assert (summary["actions_measured"] > 0) == (follow == "player")
    if follow == "player":
        assert summary["player"]["chunks_accepted"] > 0
    fates = summary["action_fates"]
    assert sum(fates.values()) == 16 * summary["chunks"]
    for fates in summary["cameras"].values():
        explained = fates["used"] + fates["superseded"] + fates["late"] + fates["pending"]
        assert fates["received"] == explained + sum(fates["rejected"].values())
    with (tmp_path / "ages.csv").open() as file:
        rows = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert len(rows) == summary["actions"]
    terms = ("input_ns", "queue_ns", "infer_ns", "output_ns", "wait_ns")
    for row in rows:
        assert row["age_ns"] == row["apply_ns"] - row["capture_ns"] == sum(row[t] for t in terms)
    ages_ms = np.array([row["age_ns"] for row in rows]) / 1e6
    assert summary["age"]["p99_ms"] == np.percentile(ages_ms, 99, method="inverted_cdf")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "touch the red block" in (tmp_path / "report.html").read_text()
    assert all(len(line) <= 80 for line in ended.stdout.splitlines() if str(tmp_path) not in line)
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
    check_recording(bag, summary, tmp_path / "replay")


def check_recording(bag, summary, folder):
    """The circle closes: what the demo recorded replays without ROS, and is what the demo saw and did."""
    ended = flashrt("replay", bag, "--out", folder, "--latency", 5)
    assert ended.returncode == 0, ended.stderr + ended.stdout
    result = json.loads((folder / "replay.json").read_text())
    assert result["bag"]["notes"] == []
    assert result["summary"]["instructions"] == [summary["task"]["instruction"]]
    assert result["summary"]["frames_unexplained"] == 0
    # The recorder and the policy hear the cameras each for itself: what one missed the other may have.
    assert result["recorded_chunks"]["same_observation"] > 0
    assert result["action_error"]["compared"] > 0
    measured = "flashrt_ros/msg/ActionApplied" in result["actions_compared_with"]
    assert measured == (summary["actions_measured"] > 0)


def test_row_8_killed_cameras_hold_the_arm_and_it_resumes(graph):
    """Nothing is applied beyond max_age, whoever dies: the ages themselves say so."""
    ages = graph.collect(ActionAge, "/age_logger/action_age")
    last = graph.statuses()
    start_all(graph)
    graph.wait_for(lambda: len(ages) > 30, "actions")
    graph.kill("sim_camera")
    status = graph.until_status(
        last, "policy: camera overhead", lambda s: s.level == DiagnosticStatus.ERROR
    )
    assert "camera overhead is silent" in status.message
    graph.until_status(last, "action_player", lambda s: s.message.startswith("holding"))
    have = len(ages)
    state = graph.collect(JointState, "/joint_states", sensor_qos(10))
    graph.wait_for(lambda: len(state) > 150, "joint states while the arm holds")
    assert len(ages) == have, "nothing is applied while the cameras are dead"
    still = np.array([message.position for message in state[100:]])
    assert np.ptp(still, axis=0).max() < 0.02, "the arm holds still [rad]"
    tick_ns = 5 * MS
    assert max(age.age_ns for age in ages) <= 300 * MS + tick_ns
    graph.start("sim_camera", *DEMO)
    graph.wait_for(lambda: len(ages) > have + 30, "actions again")
    assert max(age.age_ns for age in ages) <= 300 * MS + tick_ns
    graph.until_status(last, "policy: camera overhead", lambda s: s.level != DiagnosticStatus.ERROR)


def test_killed_policy_holds_the_arm(graph):
    applied = graph.collect(ActionApplied, "/action_player/action_applied")
    ages = graph.collect(ActionAge, "/age_logger/action_age")
    last = graph.statuses()
    start_all(graph)
    graph.wait_for(lambda: len(applied) > 30, "actions")
    graph.kill("policy")
    graph.until_status(last, "action_player", lambda s: s.message.startswith("holding"))
    assert max(age.age_ns for age in ages) <= 305 * MS
    have = len(applied)
    graph.start("policy", *DEMO)
    graph.wait_for(lambda: len(applied) > have + 10, "actions of the restarted policy")


def test_killed_logger_leaves_a_log_that_reads(graph):
    ages = graph.collect(ActionAge, "/age_logger/action_age")
    start_all(graph)
    graph.wait_for(lambda: len(ages) > 60, "ages")
    seen = {(age.chunk_id, age.action_index) for age in list(ages)}
    graph.kill("age_logger")
    run = read_run(graph.folder / "ages.jsonl")
    logged = set(zip(run.ages["chunk_id"].tolist(), run.ages["action_index"].tolist(), strict=True))
    assert seen <= logged, "all that was published had been written"
    assert not run.ended
    assert set(run.frames) == {"overhead", "wrist"}
    oldest = np.minimum(*(frames[:, 0] for frames in run.frames.values()))
    assert np.array_equal(oldest, run.chunks["capture_ns"])
    told = flashrt("report", "--table", graph.folder / "ages.jsonl")
    assert told.returncode == 0, told.stderr
    assert "A = apply - capture" in told.stdout
    assert "the logger was killed" in told.stdout


def test_ages_and_statistics_agree_with_their_sources(graph):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    applied = graph.collect(ActionApplied, "/action_player/action_applied")
    ages = graph.collect(ActionAge, "/age_logger/action_age")
    statistics = graph.collect(AgeStatistics, "/age_logger/statistics")
    start_all(graph)

    def comparable():
        ids = {chunk.chunk_id for chunk in chunks}
        told = {(a.chunk_id, a.action_index) for a in applied}
        return sum(a.chunk_id in ids and (a.chunk_id, a.action_index) in told for a in ages)

    graph.wait_for(lambda: comparable() > 60 and len(statistics) > 5, "ages and statistics")
    by_id = {chunk.chunk_id: chunk for chunk in chunks}
    reports = {(a.chunk_id, a.action_index): a for a in applied}
    compared = 0
    for age in list(ages):
        chunk, report = by_id.get(age.chunk_id), reports.get((age.chunk_id, age.action_index))
        if chunk is None or report is None:
            continue
        compared += 1
        assert age.apply_source == ActionAge.MEASURED
        assert age.age_ns == to_ns(report.header.stamp) - to_ns(chunk.header.stamp)
        terms = (age.input_ns, age.queue_ns, age.infer_ns, age.output_ns, age.wait_ns)
        assert age.age_ns == sum(terms)
        assert min(terms) >= 0
        assert age.infer_ns == to_ns(chunk.infer_end) - to_ns(chunk.infer_start)
        row = np.array(chunk.actions).reshape(chunk.horizon, -1)[age.action_index]
        assert np.array_equal(np.array(report.positions, np.float32), row.astype(np.float32))
        planned = to_ns(chunk.planned_start) + age.action_index * to_ns(chunk.period)
        assert to_ns(report.planned) == planned <= to_ns(report.header.stamp)
    assert compared > 50
    for message in list(statistics):
        assert list(message.terms) == ["age", "input", "queue", "infer", "output", "wait"]
        assert tuple(message.fates) == FATES
        for row in zip(message.p50_ns, message.p95_ns, message.p99_ns, message.max_ns, strict=True):
            assert list(row) == sorted(row)


def layout_paths():
    """(topic, path within its messages) of every curve of the live layouts; / is PlotJuggler's word for a dot."""
    foxglove = json.loads(config_path("foxglove_layout.json").read_text())["configById"]
    for name, panel in foxglove.items():
        if name.startswith("Plot!"):
            for path in panel["paths"]:
                value = re.sub(r"\.@\w+(\(\d+\))?", "", path["value"])
                topic, _, rest = value.partition(".")
                yield topic, rest
        else:
            yield panel["topicToRender"], "status"
    for curve in ElementTree.parse(config_path("plotjuggler_layout.xml")).iter("curve"):
        _, node, topic, *rest = curve.get("name").split("/")
        yield f"/{node}/{topic}", ".".join(rest)


def test_live_layouts_show_what_the_running_nodes_publish(graph):
    topics = {
        "/age_logger/action_age": ActionAge,
        "/age_logger/statistics": AgeStatistics,
        "/policy/action_chunk": ActionChunk,
        "/action_player/action_applied": ActionApplied,
        "/diagnostics": DiagnosticArray,
    }
    got = {topic: graph.collect(kind, topic) for topic, kind in topics.items()}
    start_all(graph)
    graph.wait_for(lambda: all(got.values()), "a message of every topic")
    shown = list(layout_paths())
    assert {topic for topic, _ in shown} == set(topics), "each topic is in a layout"
    for topic, path in shown:
        value = got[topic][-1]
        for field, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
            value = getattr(value, field)
            value = value[int(index)] if index else value
        assert topic == "/diagnostics" or isinstance(value, int), f"{topic}.{path}"
    statistics = got["/age_logger/statistics"][-1]
    assert list(statistics.terms)[2] == "queue", "the row of the queue panels"
    assert list(statistics.fates)[:4] == ["applied", "superseded", "expired", "skipped"]


def test_thresholds_of_the_age_are_watched(graph):
    """Real ages against thresholds that are moved around them while the node runs."""
    last = graph.statuses()
    start_all(graph)
    status = graph.until_status(last, "age_logger", lambda s: s.message.startswith("P50"))
    assert status.level == DiagnosticStatus.OK, "far below the defaults"
    assert graph.set_parameter("warn_age_ms", 1.0, "/age_logger").successful
    status = graph.until_status(last, "age_logger", lambda s: s.level == DiagnosticStatus.WARN)
    assert "above warn_age_ms = 1" in status.message
    refused = graph.set_parameter("error_age_ms", 0.5, "/age_logger")
    assert not refused.successful
    assert refused.reason == (
        "parameter error_age_ms: expected warn_age_ms ≤ error_age_ms, found 1 > 0.5 ms"
    )
    assert graph.set_parameter("error_age_ms", 2, "/age_logger").successful
    status = graph.until_status(last, "age_logger", lambda s: s.level == DiagnosticStatus.ERROR)
    assert "above error_age_ms = 2" in status.message
    values = {item.key: item.value for item in status.values}
    assert 0 < float(values["p50_ms"]) <= float(values["p99_ms"])
    assert int(values["actions"]) > 0
    settings = read_run(graph.folder / "ages.jsonl").settings
    assert settings == {"warn_age_ms": 200.0, "error_age_ms": 400.0}, "as they were at the start"


def test_thresholds_in_the_wrong_order_are_told_at_the_start(graph):
    process = graph.start("age_logger", warn_age_ms=300.0, error_age_ms=100.0)
    assert process.wait(timeout=LIMIT_S) == 1
    assert "expected warn_age_ms ≤ error_age_ms, found 300 > 100 ms" in graph.log("age_logger")


def test_checkpoint_runs_and_says_what_it_is(graph, drivers, request):
    checkpoint = request.config.rootpath / "test/data/tiny_so101"
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    graph.start(
        "policy",
        autostart=True,
        instruction="pick up the cup",
        checkpoint=str(checkpoint),
        device="cpu",
        steps=2,
        max_age_ms=5000.0,
        start="now",
    )
    drivers.run(rate_hz=10.0)
    graph.wait_for(lambda: len(chunks) >= 3, "chunks of the network")
    assert chunks[0].plan_id == "pi05/tiny_so101/float32/cpu/reference"
    assert {chunk.steps for chunk in chunks} == {2}
    assert {chunk.horizon for chunk in chunks} == {10}
    assert chunks[0].instruction == "pick up the cup"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"checkpoint": "golden/openpi_pi05_e2e"},
            "the policy's state has 7 numbers, the robot 6 joints",
        ),
        ({"checkpoint": "golden"}, "golden"),
        ({"checkpoint": "tiny_so101", "device": "cuda"}, "torch sees no CUDA device"),
    ],
)
def test_checkpoint_that_does_not_fit_is_found_at_configure(graph, request, change, message):
    if change.get("device") == "cuda":
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has a CUDA device")
    folder = request.config.rootpath / "test/data" / change.pop("checkpoint")
    graph.start("policy", **change, checkpoint=str(folder))
    assert graph.change_state(CONFIGURE) is False
    assert graph.state() == "unconfigured"
    assert message in graph.log("policy")
    assert "Traceback" not in graph.log("policy")
    graph.set_parameter("checkpoint", "expert")
    graph.set_parameter("device", "cpu")
    assert graph.change_state(CONFIGURE)
    assert graph.change_state(ACTIVATE)


def test_camera_delay_is_seen_as_input_age(graph):
    """What a slow driver adds is measured where it belongs: in the term `input`, not in any other."""
    chunks = graph.collect(ActionChunk, "/policy/action_chunk")
    graph.start("policy", *DEMO)
    graph.start("sim_camera", *DEMO, delay_ms=80.0)
    graph.start("sim_robot", *DEMO)
    graph.wait_for(lambda: len(chunks) > 20, "chunks")
    assert min(to_ns(c.receive) - to_ns(c.header.stamp) for c in chunks) >= 80 * MS


def test_dropped_pictures_are_counted(graph):
    last = graph.statuses()
    graph.start("policy", *DEMO)
    graph.start("sim_camera", *DEMO, drop=0.3)
    graph.start("sim_robot", *DEMO)
    graph.until_status(
        last,
        "policy",
        lambda s: counts(s).get("cameras", {}).get("wrist", {}).get("lost_before", 0) >= 10,
    )


@pytest.mark.parametrize(
    "node",
    [
        "policy",
        "age_logger",
        "action_player",
        "sim_robot",
        "sim_camera",
        "bag_recorder",
        "bag_player",
    ],
)
def test_executables_are_installed(node):
    assert executable_path(node).stat().st_mode & 0o111
