"""Differences between runs, and their intervals, against a computation that draws the values themselves."""

import numpy as np
import pytest

from flashrt_ros.offline.compare import compare, difference_table, drawn_percentiles
from flashrt_ros.offline.run_log import read_run

from .logs import write_log


def test_drawn_percentiles_equal_those_of_the_drawn_values():
    random = np.random.default_rng(3)
    values = random.integers(0, 10**9, 3000)
    block = np.sort(random.integers(0, 20, 3000))
    weights = random.multinomial(20, np.full(20, 1 / 20), size=50)
    found = drawn_percentiles(values, block, weights, [50, 95, 99])
    for row, drawn in zip(found, weights, strict=True):
        pool = np.concatenate([np.repeat(values[block == b], n) for b, n in enumerate(drawn)])
        assert np.array_equal(row, np.percentile(pool, [50, 95, 99], method="inverted_cdf"))


def test_drawn_percentiles_of_many_values_are_off_by_less_than_a_grid_step_of_ranks():
    random = np.random.default_rng(4)
    values = random.integers(0, 10**9, 50_000)
    block = np.arange(50_000) // 5000
    weights = random.multinomial(10, np.full(10, 1 / 10), size=20)
    found = drawn_percentiles(values, block, weights, [50, 99])
    for row, drawn in zip(found, weights, strict=True):
        pool = np.concatenate([np.repeat(values[block == b], n) for b, n in enumerate(drawn)])
        rank = (pool[:, None] <= row).mean(axis=0)
        assert np.abs(rank - [0.5, 0.99]).max() < 0.002


def test_run_that_is_10_ms_older_differs_by_10_ms_and_the_interval_holds_it(tmp_path):
    base = read_run(write_log(tmp_path / "base.jsonl", chunks=400, seed=1))
    other = read_run(write_log(tmp_path / "other.jsonl", chunks=400, seed=1, delay_ms=10))
    rows = compare(base, other)["rows"]
    for key in ("p50_ms", "p95_ms", "p99_ms"):
        # The made-up applications are drawn anew for each run, but from the same seed.
        assert rows["age"][key]["difference"] == pytest.approx(10.0, abs=1e-9)
        assert rows["age"][key]["low"] <= 10.0 <= rows["age"][key]["high"]
        assert rows["infer"][key]["difference"] == 0.0
        assert rows["infer"][key]["low"] <= 0.0 <= rows["infer"][key]["high"]
    assert rows["age"]["p50_ms"]["low"] > 0.0, "10 ms are seen through the noise of 20 s"


def test_comparison_is_the_same_twice(tmp_path):
    runs = [read_run(write_log(tmp_path / f"{seed}.jsonl", seed=seed)) for seed in (1, 2)]
    assert compare(*runs) == compare(*runs)


def test_short_run_has_a_difference_and_no_interval(tmp_path):
    base = read_run(write_log(tmp_path / "base.jsonl", chunks=40))
    other = read_run(write_log(tmp_path / "other.jsonl", chunks=400))
    difference = compare(base, other)
    assert difference["block_s"] is None
    row = difference["rows"]["age"]["p50_ms"]
    assert row["difference"] is not None
    assert row["low"] is row["high"] is None
    text = difference_table("base", "other", difference)
    assert "no intervals" in text


def test_run_without_actions_has_no_difference(tmp_path):
    base = read_run(write_log(tmp_path / "base.jsonl", applied=0))
    other = read_run(write_log(tmp_path / "other.jsonl"))
    row = compare(base, other)["rows"]["age"]["p99_ms"]
    assert row == {"difference": None, "low": None, "high": None}
