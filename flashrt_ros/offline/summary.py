"""What a run was like: percentiles of ages, what became of everything, as a dictionary, a table and a CSV."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.observation.timeline import TERMS
from flashrt_ros.offline.run_log import AGE_COLUMNS, Run

_WIDTH = 80
_ROWS_AT_ONCE = 50_000
_PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99, "max_ms": 100}


def summarize(run: Run) -> dict[str, Any]:
    """All figures of a run, ready for JSON. Durations in milliseconds.

    `terms_off_by_ns` is the largest difference between an age and the sum of its terms: 0.
    """
    terms = {name: run.ages[f"{name}_ns"] for name in TERMS}
    age_ns = run.age_ns
    total_ns = sum(terms.values(), np.zeros_like(age_ns))
    duration_s = _duration_s(run)
    node, player = _policy_counts(run.fates), _player_counts(run.fates)
    return {
        "log": str(run.path),
        "ended_in_order": run.ended,
        "duration_s": duration_s,
        "chunks": len(run.chunks),
        "chunks_per_s": len(run.chunks) / duration_s if duration_s else 0.0,
        "sets_per_s": _sets_per_s(run),
        "actions": len(age_ns),
        "actions_measured": int(run.ages["measured"].sum()),
        "terms_off_by_ns": int(np.abs(total_ns - age_ns).max(initial=0)),
        "age": _figures(age_ns),
        "terms": {name: _figures(values) for name, values in terms.items()},
        "older_than": _older_than(run),
        "by_index": _by_index(run),
        "skew": _figures(run.chunks["skew_ns"]),
        "cameras": node.get("cameras", {}),
        "frames_unexplained": sum(c["unexplained"] for c in node.get("cameras", {}).values()),
        "frames_lost_before": sum(c["lost_before"] for c in node.get("cameras", {}).values()),
        "sets": node.get("sets", {}),
        "chunks_refused_by_policy": node.get("chunks_refused", {}),
        "resets": node.get("resets", {}),
        "holds": node.get("holds", {}),
        "recovery": node.get("recovery", {}),
        "deadlines_missed": node.get("deadlines_missed", {}),
        "clipped": node.get("clipped", {}),
        "player": player,
        "action_fates": run.fates.get("age_logger", {}).get("actions", {}),
        "reports_refused": run.fates.get("age_logger", {}).get("reports_refused", {}),
        "plans": sorted(set(run.labels["plan_id"])),
        "instructions": list(dict.fromkeys(run.labels["instruction"])),
    }


def _duration_s(run: Run) -> float:
    publish_ns = run.chunks["publish_ns"]
    return float(publish_ns[-1] - publish_ns[0]) / 1e9 if len(publish_ns) > 1 else 0.0


def _sets_per_s(run: Run) -> float:
    """Sets that were inferred, for each second from the first capture to the last."""
    capture_ns = run.chunks["capture_ns"]
    if len(capture_ns) < 2:
        return 0.0
    return float((len(capture_ns) - 1) / ((capture_ns[-1] - capture_ns[0]) / 1e9))


def _figures(values_ns: np.ndarray) -> dict[str, float]:
    """Percentiles and mean; zeros without values."""
    if not len(values_ns):
        return dict.fromkeys((*_PERCENTILES, "mean_ms"), 0.0)
    found = np.percentile(values_ns, list(_PERCENTILES.values()), method="inverted_cdf") / 1e6
    figures = dict(zip(_PERCENTILES, found.tolist(), strict=True))
    return figures | {"mean_ms": float(values_ns.mean()) / 1e6}


def _older_than(run: Run) -> dict[str, dict[str, float]]:
    """How many actions were older than each threshold that the logger had; empty where the log has none."""
    age_ns = run.age_ns
    return {
        name: {"limit_ms": limit_ms, "actions": int((age_ns > limit_ms * 1e6).sum())}
        for name in ("warn_age_ms", "error_age_ms")
        if (limit_ms := run.settings.get(name)) is not None
    }


def _by_index(run: Run) -> list[dict[str, float]]:
    """The age of the actions of each index in their chunk; indices that were never applied are left out."""
    index, age_ns = run.ages["action_index"], run.age_ns
    order = np.argsort(index, kind="stable")
    found, starts = np.unique(index[order], return_index=True)
    parts = np.split(age_ns[order], starts[1:])
    return [
        {"index": int(at), "actions": len(part), **_figures(part)}
        for at, part in zip(found, parts, strict=False)
    ]


def _policy_counts(fates: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((counts for counts in fates.values() if "cameras" in counts), {})


def _player_counts(fates: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((counts for counts in fates.values() if "chunks_accepted" in counts), {})


def table(summary: Mapping[str, Any]) -> str:
    """The summary for an 80-column terminal."""
    return "\n".join(_wrapped(line) for line in _lines(summary))


def _wrapped(line: str) -> str:
    if len(line) <= _WIDTH:
        return line
    return textwrap.fill(line, _WIDTH, subsequent_indent=" " * 9, drop_whitespace=True)


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    yield from _age_lines(summary)
    yield ""
    yield from _frame_lines(summary)
    yield from _fate_lines(summary)


def _age_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    actions, measured = summary["actions"], summary["actions_measured"]
    yield (
        f"{summary['chunks']} chunks in {summary['duration_s']:.1f} s ({summary['chunks_per_s']:.1f}/s), "
        f"{actions} actions applied, {measured} measured"
    )
    yield ""
    yield f"{'age of the observation [ms]':<30}{'P50':>9}{'P95':>9}{'P99':>9}{'max':>9}"
    rows = [("A = apply - capture", summary["age"])]
    meanings = {
        "input": "input   capture → receipt",
        "queue": "queue   receipt → inference",
        "infer": "infer   inference",
        "output": "output  inference → publication",
        "wait": "wait    publication → apply",
    }
    rows += [(f"  {meanings[name]}", summary["terms"][name]) for name in TERMS]
    for label, row in rows:
        cells = "".join(f"{row[key]:>9.2f}" for key in _PERCENTILES)
        yield f"{label:<30.30}{cells}" if len(label) <= 30 else f"{label:<34}{cells[4:]}"
    yield f"largest |sum of terms - age|: {summary['terms_off_by_ns']} ns"


def _frame_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    titles = {
        "received": 9,
        "used": 7,
        "supers.": 9,
        "late": 6,
        "reject.": 9,
        "wait": 6,
        "lost*": 7,
        "?": 4,
    }
    yield f"{'frames':<12}" + "".join(f"{title:>{width}}" for title, width in titles.items())
    for name, fates in summary["cameras"].items():
        yield (
            f"{name:<12.12}{fates['received']:>9}{fates['used']:>7}{fates['superseded']:>9}"
            f"{fates['late']:>6}{sum(fates['rejected'].values()):>9}{fates['pending']:>6}"
            f"{fates['lost_before']:>7}{fates['unexplained']:>4}"
        )
    yield "* before this node, by the camera's own period; ?: unexplained"


def _fate_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    sets = summary["sets"]
    if sets:
        rejected = _counts(sets["rejected"])
        yield (
            f"sets     {sets['received']} synchronised, {sets['taken']} taken, {sets['superseded']} superseded"
            + (f", rejected: {rejected}" if rejected else "")
        )
    refused = _counts(summary["chunks_refused_by_policy"])
    yield f"chunks   {summary['chunks']} published" + (f", refused: {refused}" if refused else "")
    if summary["player"]:
        player = summary["player"]
        refused = _counts(player["chunks_refused"])
        yield f"player   {player['chunks_accepted']} chunks accepted" + (
            f", refused: {refused}" if refused else ""
        )
    yield f"actions  {_counts(summary['action_fates']) or 'none'}"
    for label, key in (
        ("resets", "resets"),
        ("holds", "holds"),
        ("clipped", "clipped"),
        ("ran out", "deadlines_missed"),
    ):
        if summary[key]:
            yield f"{label:<9}{_counts(summary[key])}"
    if summary["recovery"]:
        recovery = summary["recovery"]
        figures = ", ".join(f"P{q} {recovery[f'p{q}_ms']:.1f}" for q in (50, 95, 99))
        yield f"recovery {recovery['count']} inferences after a reset: {figures} ms"
    if not summary["ended_in_order"]:
        yield "the log ends without its end mark: the logger was killed, or still runs"


def _counts(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count} × {name}" for name, count in counts.items() if count)


def write_csv(run: Run, path: Path) -> None:
    """Write one row for each applied action: `AGE_COLUMNS`, then age_ns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*AGE_COLUMNS, "age_ns"))
        rows = np.column_stack([run.ages.rows, run.age_ns])
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            writer.writerows(rows[begin : begin + _ROWS_AT_ONCE].tolist())
