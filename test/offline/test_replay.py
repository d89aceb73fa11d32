"""Replays in virtual time: the figures against an independent computation, and nothing that depends on the machine."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[bags]'")

from flashrt_ros.observation.age_log import read_records
from flashrt_ros.offline.latency import LatencyError, make_latency
from flashrt_ros.offline.replay import ReplayError, ReplaySettings, replay
from flashrt_ros.offline.replay_many import replay_bags
from flashrt_ros.offline.replay_table import result_lines
from flashrt_ros.offline.run_log import read_run

from .bags import INPUT_NS, MS, PERIOD_NS, REPLAYED, BagWriter, make_bag, position_at, write_drive

HORIZON = 10


def run(bag, folder, latency="20", **settings):
    parameters = REPLAYED | settings.pop("parameters", {})
    return replay(ReplaySettings(bag, folder, parameters, latency, **settings))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of a tiny network wait for each other longer than they work, on a machine that does other things too."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bag(tmp_path_factory):
    return make_bag(tmp_path_factory.mktemp("bag") / "drive", frames=40)


@pytest.fixture(scope="module")
def replayed(bag, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "out"
    return folder, run(bag, folder)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_everything_has_a_fate_and_virtual_latency_is_exact(replayed):
    folder, result = replayed
    summary = result["summary"]
    assert summary["chunks"] == 40
    assert summary["frames_unexplained"] == 0
    assert summary["terms_off_by_ns"] == 0
    assert sum(summary["action_fates"].values()) == HORIZON * summary["chunks"]
    assert summary["terms"]["infer"]["p50_ms"] == summary["terms"]["infer"]["max_ms"] == 20.0
    assert summary["terms"]["input"]["max_ms"] == INPUT_NS / 1e6
    assert summary["terms"]["queue"]["max_ms"] == 1.0, "the other camera's picture"
    assert summary["resets"] == {"episode": 1}
    assert not summary["holds"]
    run_log = read_run(folder / "ages.jsonl")
    assert run_log.ended
    assert run_log.settings["time"] == "virtual"
    assert json.loads((folder / "replay.json").read_text()) == result


def test_action_error_equals_numpy_on_the_csv(replayed):
    """The recorded actions are the joint states here, which follow a known curve."""
    folder, result = replayed
    table = rows(folder / "actions.csv")
    joints = list(result["action_error"]["per_joint"])
    actions = np.array([[float(row[j]) for j in joints] for row in table])
    recorded = np.array([[float(row[f"recorded.{j}"]) for j in joints] for row in table])
    planned = np.array([int(row["planned_ns"]) for row in table])
    known = ~np.isnan(recorded).any(axis=1)
    assert known.sum() == result["action_error"]["compared"] > 300
    assert (~known).sum() == result["action_error"]["not_compared"]
    curve = np.array([position_at(ns) for ns in planned[known].tolist()])
    # Linear between samples 33 ms apart of a curve that bends by at most 0.3 * 36 rad/s².
    assert np.abs(recorded[known] - curve).max() < 0.3 * 36 * (PERIOD_NS / 1e9) ** 2 / 8
    error = (actions - recorded)[known]
    index = np.array([int(row["action_index"]) for row in table])[known]
    for at, joint in enumerate(joints):
        told = result["action_error"]["per_joint"][joint]
        assert told["unit"] == "rad"
        assert told["mae"] == pytest.approx(np.abs(error[:, at]).mean(), rel=1e-6)
        assert told["rmse"] == pytest.approx(np.sqrt((error[:, at] ** 2).mean()), rel=1e-6)
        by_index = result["action_error"]["by_horizon_index"][joint]
        for k in range(HORIZON):
            expected = np.abs(error[index == k, at]).mean()
            assert by_index["mae"][k] == pytest.approx(expected, rel=1e-6)


def test_consistency_equals_numpy_on_the_csv(replayed):
    folder, result = replayed
    table = rows(folder / "actions.csv")
    joints = list(result["chunk_consistency"]["per_joint"])
    actions = np.array([[float(row[j]) for j in joints] for row in table])
    actions = actions.reshape(-1, HORIZON, len(joints))
    # Sets come one period of the actions apart: index k of a chunk is index k + 1 of the one before.
    change = actions[1:, :-1] - actions[:-1, 1:]
    for at, joint in enumerate(joints):
        told = result["chunk_consistency"]["per_joint"][joint]
        assert told["rmse"] == pytest.approx(np.sqrt((change[..., at] ** 2).mean()), rel=1e-4)
        assert told["max"] == pytest.approx(np.abs(change[..., at]).max(), rel=1e-4)


def test_parquet_holds_what_the_csv_holds(replayed):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    folder, _ = replayed
    for name in ("actions", "ages"):
        columns = parquet.read_table(folder / f"{name}.parquet").to_pydict()
        table = rows(folder / f"{name}.csv")
        assert list(columns) == list(table[0])
        for column, values in columns.items():
            expected = [float(row[column]) for row in table]
            assert np.array_equal(np.array(values, dtype=float), expected, equal_nan=True)


def test_table_fits_a_terminal(replayed):
    folder, result = replayed
    lines = "\n".join(result_lines(result, folder)).splitlines()
    assert max(len(line) for line in lines if str(folder) not in line) <= 80
    assert any("times real time" in line for line in lines)


def test_sets_that_come_during_an_inference_are_superseded(bag, tmp_path):
    summary = run(bag, tmp_path / "out", latency="90")["summary"]
    assert summary["sets"]["received"] == 40
    assert summary["sets"]["superseded"] > 20
    assert summary["terms"]["infer"]["p50_ms"] == 90.0
    # The newest set waits less than a period for the worker, plus 1 ms for the other camera.
    assert summary["terms"]["queue"]["max_ms"] <= PERIOD_NS / 1e6 + 1


def test_latency_is_drawn_from_a_run(bag, replayed, tmp_path):
    log = replayed[0] / "ages.jsonl"
    summary = run(bag, tmp_path / "out", latency=str(log))["summary"]
    assert summary["terms"]["infer"]["p50_ms"] == 20.0


def test_real_latency_is_measured(bag, tmp_path):
    result = run(
        bag, tmp_path / "out", latency="real", parameters={"max_age_ms": 60_000.0, "start": "now"}
    )
    assert result["summary"]["chunks"] > 0
    for record in read_records(tmp_path / "out" / "ages.jsonl"):
        if record["type"] == "chunk":
            infer_ns = record["infer_end_ns"] - record["infer_start_ns"]
            assert 0 < record["infer_steady_ns"] <= infer_ns


@pytest.mark.parametrize("text", ["-3", "nan", "soon", "runs/none.jsonl"])
def test_latency_that_is_none(text):
    with pytest.raises(LatencyError, match="expected"):
        make_latency(text)


def test_same_seed_same_chunks_and_another_seed_others(bag, replayed, tmp_path):
    again = run(bag, tmp_path / "again")
    other = run(bag, tmp_path / "other", parameters={"seed": 1})
    first = (replayed[0] / "actions.csv").read_bytes()
    assert (tmp_path / "again/actions.csv").read_bytes() == first
    assert (tmp_path / "other/actions.csv").read_bytes() != first
    assert again["action_error"] == replayed[1]["action_error"] != other["action_error"]


def test_many_bags_in_processes_equal_one_by_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    bags = [make_bag(tmp_path / f"bag_{n}", frames=8, start=20 * n) for n in range(3)]
    empty = make_bag(tmp_path / "bag_none", frames=0)
    settings = {"parameters": REPLAYED, "latency": "15", "namespace": None, "actions": ""}
    for workers, name in ((1, "serial"), (2, "parallel")):
        code = replay_bags([*bags, empty], tmp_path / name, workers=workers, **settings)
        assert code == 1
    told = capsys.readouterr().out
    assert told.count("bag_none: the bag holds no message") == 2
    assert max(map(len, (line for line in told.splitlines() if str(tmp_path) not in line))) <= 80
    for bag in bags:
        for file in ("actions.csv", "ages.csv"):
            serial, parallel = (tmp_path / n / bag.name / file for n in ("serial", "parallel"))
            assert serial.read_bytes() == parallel.read_bytes()
        page = (tmp_path / "serial" / bag.name / "report.html").read_text()
        assert "How far were the actions from the recorded ones?" in page
    index = json.loads((tmp_path / "parallel/replays.json").read_text())
    assert index == json.loads((tmp_path / "serial/replays.json").read_text())
    assert [row["chunks"] for row in index[:3]] == [8, 8, 8]


def test_ray_cluster_equals_one_by_one(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
    bags = [make_bag(tmp_path / f"bag_{n}", frames=6, start=20 * n) for n in range(2)]
    settings = {"parameters": REPLAYED, "latency": "15", "namespace": None, "actions": ""}
    assert replay_bags(bags, tmp_path / "serial", **settings) == 0
    assert replay_bags(bags, tmp_path / "cluster", cluster="local", **settings) == 0
    for bag in bags:
        serial, cluster = (tmp_path / n / bag.name / "actions.csv" for n in ("serial", "cluster"))
        assert serial.read_bytes() == cluster.read_bytes()


def test_instruction_follows_the_bag(tmp_path):
    with BagWriter(tmp_path / "bag") as writer:
        text = writer.make("std_msgs/msg/String", data="fold the towel")
        first_ns = 1_700_000_000_000_000_000
        writer.write("/policy/instruction", "std_msgs/msg/String", first_ns, text)
        write_drive(writer, frames=6)
    result = run(tmp_path / "bag", tmp_path / "out", parameters={"instruction": ""})
    assert result["summary"]["instructions"] == ["fold the towel"]


def test_without_an_instruction_it_says_so(bag, tmp_path):
    with pytest.raises(ReplayError, match="give an instruction with --instruction"):
        run(bag, tmp_path / "out", parameters={"instruction": ""})


def test_results_are_not_overwritten(bag, replayed):
    with pytest.raises(ReplayError, match="exists already"):
        run(bag, replayed[0])


def test_silence_holds_and_resets(tmp_path):
    """Half a second without pictures, while joint states go on."""
    with BagWriter(tmp_path / "bag") as writer:
        write_drive(writer, frames=10)
        for k in range(10, 40):
            stamp_ns = 1_700_000_000_000_000_000 + k * PERIOD_NS
            writer.joint_state("/joint_states", stamp_ns, stamp_ns + MS, position_at(stamp_ns))
        write_drive(writer, frames=10, start=40)
    summary = run(tmp_path / "bag", tmp_path / "out")["summary"]
    assert summary["holds"]["silent: overhead, wrist"] == 1
    assert summary["resets"]["hold"] >= 1
    assert summary["chunks"] == 20
