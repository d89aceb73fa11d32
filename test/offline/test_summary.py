"""The figures of a log against an independent computation, and what is said of logs that are not whole."""

import csv

import numpy as np
import pytest

from flashrt_ros.observation.age_log import AgeLogError, AgeLogWriter
from flashrt_ros.observation.ages import AgeJoiner, ChunkRecord
from flashrt_ros.observation.timeline import Timeline
from flashrt_ros.offline.run_log import read_run
from flashrt_ros.offline.summary import summarize, table, write_csv
from flashrt_ros.offline.timeline_plot import plot_timeline

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
POLICY_COUNTS = {
    "cameras": {
        "overhead_camera_with_a_long_name": {
            "received": 123456,
            "used": 123000,
            "superseded": 400,
            "late": 6,
            "rejected": {"zero_stamp": 40, "future_stamp": 9},
            "pending": 1,
            "unexplained": 0,
            "lost_before": 17,
        }
    },
    "sets": {
        "received": 123000,
        "taken": 122000,
        "superseded": 999,
        "waiting": 1,
        "rejected": {"stale": 5, "joint_states": 3},
    },
    "resets": {"episode": 1, "hold": 2},
    "holds": {"silent: overhead": 2},
    "chunks_refused": {"not_finite": 1},
    "recovery": {"count": 3, "p50_ms": 25.25, "p95_ms": 31.5, "p99_ms": 31.5},
    "deadlines_missed": {"recovery": 2, "steady": 1},
    "clipped": {"position": 7},
}


def write_log(path, chunks=200, seed=0):
    """A made-up run: 20 chunks a second, three actions of each applied."""
    random = np.random.default_rng(seed)
    joiner = AgeJoiner()
    with AgeLogWriter(path, "test") as log:
        for number in range(1, chunks + 1):
            capture = T0 + number * 50 * MS
            stamps = capture + np.cumsum(random.integers(1, 20 * MS, 5))
            record = ChunkRecord(
                number, Timeline(capture, *map(int, stamps)), capture, 10 * MS, 16, 4
            )
            log.chunk(record, skew_ns=2 * MS, instruction="go", plan_id="expert", reset_reason="")
            joiner.add_chunk(record)
            for index in range(4, 7):
                apply = int(stamps[-1] + random.integers(0, 30 * MS))
                log.age(joiner.add_applied(number, index, apply))
        log.fates("policy", T0, POLICY_COUNTS)
        log.fates("age_logger", T0, {"actions": joiner.fates(), "reports_refused": {}})
        log.fates(
            "player", T0, {"chunks_accepted": 200, "chunks_refused": {"older": 1}, "holds": {}}
        )
    return path


def test_figures_equal_numpy_on_the_csv(tmp_path):
    run = read_run(write_log(tmp_path / "ages.jsonl"))
    write_csv(run, tmp_path / "ages.csv")
    with (tmp_path / "ages.csv").open() as file:
        columns = {k: [] for k in next(csv.reader(file))}
    rows = np.loadtxt(tmp_path / "ages.csv", delimiter=",", skiprows=1, dtype=np.int64)
    data = dict(zip(columns, rows.T, strict=True))
    summary = summarize(run)
    assert summary["actions"] == len(rows) == 600
    assert np.array_equal(data["age_ns"], data["apply_ns"] - data["capture_ns"])
    terms = ("input", "queue", "infer", "output", "wait")
    assert np.array_equal(sum(data[f"{t}_ns"] for t in terms), data["age_ns"])
    assert summary["terms_off_by_ns"] == 0
    for key, values in [("age", data["age_ns"])] + [(t, data[f"{t}_ns"]) for t in terms]:
        found = summary["age"] if key == "age" else summary["terms"][key]
        ordered = np.sort(values) / 1e6
        assert found["p50_ms"] == ordered[299]
        assert found["p95_ms"] == ordered[569]
        assert found["p99_ms"] == ordered[593]
        assert found["max_ms"] == ordered[-1]
    assert summary["chunks"] == 200
    assert summary["sets_per_s"] == pytest.approx(20.0)
    assert sum(summary["action_fates"].values()) == 16 * 200


def test_table_fits_a_terminal_and_names_every_fate(tmp_path):
    text = table(summarize(read_run(write_log(tmp_path / "ages.jsonl"))))
    assert max(map(len, text.splitlines())) <= 80
    for part in ("123456", "17", "49", "5 × stale", "1 × not_finite", "1 × older", "2 × hold"):
        assert part in text
    assert "recovery 3 inferences after a reset: P50 25.2, P95 31.5, P99 31.5 ms" in text
    assert "ran out  2 × recovery; 1 × steady" in text
    assert "clipped  7 × position" in text


def test_plot(tmp_path):
    run = read_run(write_log(tmp_path / "ages.jsonl"))
    plot_timeline(run, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_killed_run_is_summarised_without_its_torn_line(tmp_path):
    whole = write_log(tmp_path / "ages.jsonl").read_text().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    torn.write_text("".join(whole[:300]) + whole[300][:20])
    run = read_run(torn)
    assert not run.ended
    assert len(run.chunks) + len(run.ages) == 299
    assert table(summarize(run))


def test_run_without_actions(tmp_path):
    with AgeLogWriter(tmp_path / "ages.jsonl", "test"):
        pass
    run = read_run(tmp_path / "ages.jsonl")
    summary = summarize(run)
    assert summary["actions"] == summary["chunks"] == 0
    assert "none" in table(summary)
    with pytest.raises(ValueError, match="no chunk"):
        plot_timeline(run, tmp_path / "timeline.png")


def test_empty_file(tmp_path):
    (tmp_path / "ages.jsonl").touch()
    with pytest.raises(AgeLogError, match="empty"):
        read_run(tmp_path / "ages.jsonl")
