"""Two runs side by side: differences of percentiles, with bootstrap intervals.

Actions that follow each other share observations and load, so they are no independent samples: whole blocks of time
are drawn with replacement (block bootstrap; Künsch, Annals of Statistics 17, 1989), for each run by itself, and the
interval is taken from the drawn differences (percentile method; Efron and Tibshirani, An Introduction to the Bootstrap,
1993).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.observation.timeline import TERMS
from flashrt_ros.offline.run_log import Run

QUANTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}
"""Percentiles that are compared."""

_DRAWS = 1000
_COVERAGE = 95
_MIN_BLOCK_NS = 1_000_000_000
_MAX_BLOCKS = 200
_MIN_BLOCKS = 8
_GRID = 4096


@dataclass(frozen=True, slots=True)
class _Drawn:
    """How a run is drawn again and again."""

    block: np.ndarray
    """Block of each action, int64 [actions]."""
    weights: np.ndarray
    """How often each block was drawn, int64 [draws, blocks]."""
    block_s: float


def compare(base: Run, other: Run, seed: int = 0) -> dict[str, Any]:
    """Percentiles of `other` minus those of `base`, for the age and each term.

    Returns:
        `base` and `other` (paths of the logs), `block_s` (longest block drawn), and for `age` and each term, for each
        of `QUANTILES`: `difference`, `low` and `high` in ms. `low` and `high` are the 95 % interval; None where a run
        is too short for it (fewer than 8 blocks of 1 s).
    """
    random = np.random.default_rng(seed)
    drawn = [_draw(run, random) for run in (base, other)]
    enough = all(d is not None for d in drawn)
    columns = {"age": [base.age_ns, other.age_ns]}
    columns |= {name: [base.ages[f"{name}_ns"], other.ages[f"{name}_ns"]] for name in TERMS}
    return {
        "base": str(base.path),
        "other": str(other.path),
        "block_s": max(d.block_s for d in drawn if d is not None) if enough else None,
        "rows": {name: _difference(values, drawn) for name, values in columns.items()},
    }


def _draw(run: Run, random: np.random.Generator) -> _Drawn | None:
    """Blocks of a run, and which of them each draw holds; None for a run with too few."""
    apply_ns = run.ages["apply_ns"]
    if not len(apply_ns):
        return None
    since_ns = apply_ns - apply_ns.min()
    length_ns = max(_MIN_BLOCK_NS, int(since_ns.max()) // _MAX_BLOCKS + 1)
    # Blocks without an action (the robot was held) are none: there is nothing to draw from them.
    _, block = np.unique(since_ns // length_ns, return_inverse=True)
    blocks = int(block.max()) + 1
    if blocks < _MIN_BLOCKS:
        return None
    weights = random.multinomial(blocks, np.full(blocks, 1.0 / blocks), size=_DRAWS)
    return _Drawn(block.reshape(-1), weights, length_ns / 1e9)


def _difference(
    values: list[np.ndarray], drawn: list[_Drawn | None]
) -> dict[str, dict[str, float | None]]:
    """Of one column of two runs, `values` int64 [actions] in ns each."""
    if not all(len(v) for v in values):
        return {name: {"difference": None, "low": None, "high": None} for name in QUANTILES}
    levels = list(QUANTILES.values())
    base, other = (np.percentile(v, levels, method="inverted_cdf") for v in values)
    low = high = np.full(len(levels), np.nan)
    base_drawn, other_drawn = drawn
    if base_drawn is not None and other_drawn is not None:
        differences = drawn_percentiles(
            values[1], other_drawn.block, other_drawn.weights, levels
        ) - drawn_percentiles(values[0], base_drawn.block, base_drawn.weights, levels)
        low, high = np.percentile(
            differences, [(100 - _COVERAGE) / 2, (100 + _COVERAGE) / 2], axis=0
        )
    return {
        name: {
            "difference": float(other[at] - base[at]) / 1e6,
            "low": None if np.isnan(low[at]) else float(low[at]) / 1e6,
            "high": None if np.isnan(high[at]) else float(high[at]) / 1e6,
        }
        for at, name in enumerate(QUANTILES)
    }


def drawn_percentiles(
    values: np.ndarray, block: np.ndarray, weights: np.ndarray, levels: list[int]
) -> np.ndarray:
    """Percentiles (inverted_cdf) of the values of the blocks of each draw.

    Values are counted on a grid of at most 4096 of them, evenly spaced in rank: with fewer distinct values the result
    is exact, else at most 1/4096 of the ranks away.

    Args:
        values: int64 [n].
        block: of each value, int64 [n].
        weights: how often each draw holds each block, int64 [draws, blocks].
        levels: percentiles, 0 to 100.

    Returns:
        int64 [draws, len(levels)].
    """
    grid = np.unique(values)
    if len(grid) > _GRID:
        ordered = np.sort(values)
        ranks = np.linspace(0, len(ordered) - 1, _GRID).astype(np.int64)
        grid = np.unique(ordered[ranks])
    blocks = weights.shape[1]
    cell = block * len(grid) + np.searchsorted(grid, values)
    counts = np.bincount(cell, minlength=blocks * len(grid)).reshape(blocks, len(grid))
    cumulative = np.cumsum(weights.astype(np.float64) @ counts, axis=1)
    found = [(cumulative >= cumulative[:, -1:] * (level / 100)).argmax(axis=1) for level in levels]
    return np.asarray(grid[np.stack(found, axis=1)])


def difference_table(base: str, other: str, difference: Mapping[str, Any]) -> str:
    """For an 80-column terminal: what `compare` found, with the names of the two runs."""
    lines = [f"=== {other:.30} minus {base:.30} [ms], 95 % intervals"]
    lines.append(f"{'':<8}" + "".join(f"{f'P{q}':<24}" for q in QUANTILES.values()).rstrip())
    for name, row in difference["rows"].items():
        cells = [_cell(row[key]) for key in QUANTILES]
        lines.append((f"{name:<8}" + "".join(f"{cell:<24}" for cell in cells)).rstrip())
    if difference["block_s"] is None:
        lines.append("no intervals: they take actions in at least 8 seconds of each run")
    return "\n".join(lines)


def _cell(row: Mapping[str, float | None]) -> str:
    if row["difference"] is None:
        return "-"
    if row["low"] is None or row["high"] is None:
        return _signed(row["difference"])
    return f"{_signed(row['difference'])} [{_signed(row['low'])},{_signed(row['high'])}]"


def _signed(value_ms: float) -> str:
    """At most six characters, so that three columns fit."""
    digits = 2 if abs(value_ms) < 10 else 1 if abs(value_ms) < 100 else 0
    return f"{value_ms:+.{digits}f}"
