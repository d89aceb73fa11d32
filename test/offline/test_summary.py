"""The figures of a log against an independent computation, and what is said of logs that are not whole."""

import csv
import json

import numpy as np
import pytest

from flashrt_ros.observation.age_log import AgeLogError, AgeLogWriter
from flashrt_ros.offline.run_log import read_run
from flashrt_ros.offline.summary import summarize, table, write_csv

from .logs import write_log


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


def test_empty_file(tmp_path):
    (tmp_path / "ages.jsonl").touch()
    with pytest.raises(AgeLogError, match="empty"):
        read_run(tmp_path / "ages.jsonl")


def test_folder_of_a_run_stands_for_its_log(tmp_path):
    write_log(tmp_path / "ages.jsonl", chunks=3)
    assert read_run(tmp_path).path == tmp_path / "ages.jsonl"
    with pytest.raises(FileNotFoundError, match=r"expected a log or a folder with ages\.jsonl"):
        read_run(tmp_path / "other")


def test_record_that_lacks_a_field_is_named(tmp_path):
    lines = write_log(tmp_path / "ages.jsonl", chunks=3).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"age"' in line)
    record = json.loads(lines[at])
    del record["apply_ns"]
    lines[at] = json.dumps(record)
    (tmp_path / "ages.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(AgeLogError, match="of type 'age' does not hold what it should: 'apply_ns'"):
        read_run(tmp_path / "ages.jsonl")


def test_ages_by_index_and_thresholds_equal_numpy(tmp_path):
    settings = {"warn_age_ms": 60.0, "error_age_ms": 90.0}
    run = read_run(write_log(tmp_path / "ages.jsonl", settings=settings))
    summary = summarize(run)
    age_ms = (run.ages["apply_ns"] - run.ages["capture_ns"]) / 1e6
    assert [row["index"] for row in summary["by_index"]] == [4, 5, 6]
    for row in summary["by_index"]:
        mine = np.sort(age_ms[run.ages["action_index"] == row["index"]])
        assert row["actions"] == len(mine) == 200
        assert (row["p50_ms"], row["p95_ms"], row["max_ms"]) == (mine[99], mine[189], mine[-1])
        assert row["mean_ms"] == pytest.approx(mine.mean())
    for name, limit_ms in settings.items():
        told = summary["older_than"][name]
        assert told == {"limit_ms": limit_ms, "actions": (age_ms > limit_ms).sum()}
        assert 0 < told["actions"] < len(age_ms)
    means = sum(term["mean_ms"] for term in summary["terms"].values())
    assert means == pytest.approx(summary["age"]["mean_ms"])
