"""Results of replays for an 80-column terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.offline.summary import table

_NAME = 22


def result_lines(result: Mapping[str, Any], folder: Path) -> list[str]:
    """Everything about one bag."""
    bag = result["bag"]
    lines = [f"note: {note}" for note in bag["notes"]]
    lines += [
        f"{bag['duration_s']:.1f} s of recording in {result['replay_s']:.1f} s "
        f"({result['times_real_time']:.1f} times real time), latency {result['latency']}",
        "",
        table(result["summary"]),
        "",
    ]
    lines += _error_lines(result)
    same = result["recorded_chunks"]
    if same["recorded"]:
        lines += ["", _same_line(same)]
    lines += [f"{count} × {what}" for what, count in result["complaints"].items()]
    return [*lines, f"\nreport.html, replay.json, actions.csv, ages.csv and ages.jsonl: {folder}"]


def _error_lines(result: Mapping[str, Any]) -> list[str]:
    error, change = result["action_error"], result["chunk_consistency"]
    lines = [
        f"actions against {result['actions_compared_with']}",
        f"({error['compared']} compared, {error['not_compared']} without a recorded one), and against",
        f"the chunk before ({change['compared']} compared)",
        f"{'joint':<18}{'unit':>6}{'MAE':>9}{'RMSE':>9}{'first':>9}{'last':>9}{'change':>9}{'max':>9}",
    ]
    for joint, row in error["per_joint"].items():
        by_index = error["by_horizon_index"][joint]["mae"]
        ends = (by_index[0], by_index[-1]) if by_index else (None, None)
        other = change["per_joint"][joint]
        values = (row["mae"], row["rmse"], *ends, other["rmse"], other["max"])
        cells = "".join(f"{value:>9.4f}" if value is not None else f"{'-':>9}" for value in values)
        lines.append(f"{joint:<18.18}{row['unit']:>6.6}{cells}")
    return [*lines, "first, last: MAE of the first and last action of a chunk; change: RMS"]


def _same_line(same: Mapping[str, Any]) -> str:
    if not same["same_observation"]:
        return f"recorded chunks: {same['recorded']}, none of the same observation"
    return (
        f"recorded chunks: {same['recorded']}, {same['same_observation']} of the same observation, "
        f"{same['identical']} identical, largest difference {same['largest_difference']:.2g}"
    )


def bag_row(bag: Path, result: Mapping[str, Any] | None, error: str) -> dict[str, Any]:
    """What counts of one of many bags; `error` is empty where it was replayed."""
    row: dict[str, Any] = {"bag": str(bag), "error": error}
    if result is None:
        return row
    summary = result["summary"]
    errors = [joint["mae"] for joint in result["action_error"]["per_joint"].values()]
    known = [value for value in errors if value is not None]
    return row | {
        "duration_s": result["bag"]["duration_s"],
        "chunks": summary["chunks"],
        "actions": summary["actions"],
        "age_p50_ms": summary["age"]["p50_ms"],
        "age_p95_ms": summary["age"]["p95_ms"],
        "mean_mae": float(np.mean(known)) if known else None,
        "notes": result["bag"]["notes"],
    }


def many_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each bag, then what went wrong."""
    lines = [
        f"{'bag':<{_NAME}}{'seconds':>9}{'chunks':>8}{'actions':>9}{'A P50 ms':>10}{'A P95 ms':>10}{'MAE':>9}"
    ]
    for row in rows:
        name = f"{Path(row['bag']).name:<{_NAME}.{_NAME}}"
        if row["error"]:
            lines.append(f"{name}  not replayed")
            continue
        mae = f"{row['mean_mae']:>9.4f}" if row["mean_mae"] is not None else f"{'-':>9}"
        lines.append(
            f"{name}{row['duration_s']:>9.1f}{row['chunks']:>8}{row['actions']:>9}"
            f"{row['age_p50_ms']:>10.2f}{row['age_p95_ms']:>10.2f}{mae}"
        )
    for row in rows:
        if row["error"]:
            lines.append(f"error: {row['error']}")
        lines += [f"note: {Path(row['bag']).name}: {note}" for note in row.get("notes", [])]
    return "\n".join(lines)
