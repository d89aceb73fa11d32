"""What a shortcut costs and what a seam is worth, in the closed loop: success, time, jerk, resets, recovery.

Two tables over the tasks of the belt world, in simulated time:

- `steps`: denoising from noise in 10, 5, 2 and 1 steps, and warm in 1, each at the same latency.
- `seams`: replace, blend, ensemble and rtc at 100 ms, with the jerk of the commands where one chunk follows another and
  elsewhere.

    python benchmarks/closed_loop.py --workers 2 --output closed_loop.json --markdown closed_loop.md
    python benchmarks/closed_loop.py --table seams --episodes 20

The file is rewritten after every cell; a cell that is in it already, of the same settings, is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.policies import PolicySettings
from flashrt_ros.control.seams import SeamKind, Seams
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.control.warm_start import WarmStart
from flashrt_ros.sim.latency import FixedLatency, Latency, parse_latency
from flashrt_ros.sim.rollout import EpisodeResult, RolloutSettings, rollout, rollout_pool
from flashrt_ros.sim.rollout_report import wilson_interval

TASKS = ("reach", "intercept", "switch", "nudge")
SEAM_TASKS = ("reach", "intercept")
STEPS = (10, 5, 2, 1)
SEAM_LATENCY = FixedLatency(100_000_000)
_CONTROL_HZ = 30.0


@dataclass(frozen=True)
class Cell:
    """One row of a table on one task."""

    table: str
    row: str
    task: str
    settings: RolloutSettings

    @property
    def key(self) -> str:
        """What the row is called, and everything that its figures depend on."""
        return f"{self.table} / {self.row} / {self.task} / {self.settings}"


def cells(
    table: str, checkpoint: str, device: str, latency: Latency, replan: int
) -> Iterator[Cell]:
    """The cells of a table, `steps` or `seams`."""

    def settings(steps: int, session: SessionSettings, delay: Latency) -> RolloutSettings:
        policy = PolicySettings(checkpoint=checkpoint, device=device, steps=steps)
        return RolloutSettings(policy=policy, latency=delay, replan=replan, session=session)

    if table == "steps":
        warm = SessionSettings(warm_start=WarmStart(enabled=True, steps=1))
        rows = [(f"{steps} cold", steps, SessionSettings()) for steps in STEPS]
        for row, steps, session in [*rows, ("1 warm", STEPS[0], warm)]:
            for task in TASKS:
                yield Cell(table, row, task, settings(steps, session, latency))
    else:
        for kind in SeamKind:
            session = SessionSettings(seams=Seams(kind))
            for task in SEAM_TASKS:
                yield Cell(table, kind.value, task, settings(STEPS[0], session, SEAM_LATENCY))


def figures(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """All figures of one cell. Jerk in rad²/s⁵ of the arm over an episode, and in rad/s³ of the commands."""
    successes = sum(result.success for result in results)
    times = [result.time_s for result in results if result.time_s is not None]
    resets: Counter[str] = Counter()
    for result in results:
        resets.update(result.resets)
    recoveries_ms = np.concatenate([result.recoveries_ns for result in results]) / 1e6
    divergences = np.concatenate([result.divergences for result in results])
    joins, within = _command_jerk(results)
    return {
        "episodes": len(results),
        "success": successes / len(results),
        "success_interval_95": wilson_interval(successes, len(results)),
        "time_p50_s": _percentile(times, 50),
        "jerk_p50_rad2_s5": _percentile([result.jerk_rad2_s5 for result in results], 50),
        "resets": dict(resets),
        "recovery_p50_ms": _percentile(recoveries_ms, 50),
        "recovery_p95_ms": _percentile(recoveries_ms, 95),
        "recovery_p99_ms": _percentile(recoveries_ms, 99),
        "age_p50_ms": _percentile(np.concatenate([r.ages_ns for r in results]) / 1e6, 50),
        "infer_p50_ms": _percentile(np.concatenate([r.infer_ns for r in results]) / 1e6, 50),
        "divergence_p50": _percentile(divergences, 50),
        "divergence_p99": _percentile(divergences, 99),
        "divergence_max": _percentile(divergences, 100),
        "join_jerk_rms_rad_s3": joins,
        "within_jerk_rms_rad_s3": within,
    }


def _command_jerk(results: Sequence[EpisodeResult]) -> tuple[float, float]:
    """Root mean square of the third difference of the commands over period³, [rad/s³]: across joins, and elsewhere."""
    across, elsewhere = [], []
    for result in results:
        if len(result.commands) < 4:
            continue
        third = np.diff(result.commands, n=3, axis=0) * _CONTROL_HZ**3
        squared = np.square(third).sum(axis=1)
        # The difference that begins at command k spans the steps to k + 1, k + 2 and k + 3.
        joined = np.logical_or.reduce([result.joins[i : len(third) + i] for i in (1, 2, 3)])
        across.append(squared[joined])
        elsewhere.append(squared[~joined])
    return _root_mean(across), _root_mean(elsewhere)


def _root_mean(parts: Sequence[np.ndarray]) -> float:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(np.sqrt(values.mean())) if len(values) else 0.0


def _percentile(values: Sequence[float] | np.ndarray, q: float) -> float | None:
    return float(np.percentile(values, q, method="inverted_cdf")) if len(values) else None


def markdown(record: dict[str, Any]) -> str:
    """Both tables, as far as they are filled."""
    parts = []
    for table in ("steps", "seams"):
        rows = [cell for cell in record["cells"].values() if cell["table"] == table]
        if not rows:
            continue
        latency = rows[0]["latency"]
        parts += [
            f"`{table}`, {rows[0]['episodes']} episodes a cell, latency {latency}:",
            "",
            "| task | "
            + table
            + " | success, 95 % | time s | jerk rad²/s⁵ | resets an episode | recovery P95 ms | "
            "jerk at joins / elsewhere rad/s³ |",
            "|---|---|---|---|---|---|---|---|",
        ]
        parts += [_row(cell) for cell in sorted(rows, key=lambda c: TASKS.index(c["task"]))]
        parts.append("")
    return "\n".join(parts)


def _row(cell: dict[str, Any]) -> str:
    low, high = cell["success_interval_95"]
    resets = sum(cell["resets"].values()) / cell["episodes"]
    cells = [
        cell["task"],
        cell["row"],
        f"{100 * cell['success']:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        _text(cell["time_p50_s"], 2),
        _text(cell["jerk_p50_rad2_s5"], 0),
        f"{resets:.2f}",
        _text(cell["recovery_p95_ms"], 0),
        f"{cell['join_jerk_rms_rad_s3']:.0f} / {cell['within_jerk_rms_rad_s3']:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> int:
    """Run what is missing."""
    arguments = _parser().parse_args()
    record: dict[str, Any] = {"cells": {}}
    if arguments.output and arguments.output.exists():
        record = json.loads(arguments.output.read_text(encoding="utf-8"))
    record["machine"] = {"cpu": platform.processor(), "cores": os.cpu_count()}
    record["command"] = f"python benchmarks/closed_loop.py --episodes {arguments.episodes}"
    chosen = [
        cell
        for table in arguments.table
        for cell in cells(
            table, arguments.checkpoint, arguments.device, arguments.latency, arguments.replan
        )
    ]
    with rollout_pool(arguments.workers) as pool:
        for number, cell in enumerate(chosen, start=1):
            name = f"[{number}/{len(chosen)}] {cell.table} {cell.row}, {cell.task}"
            if record["cells"].get(cell.key, {}).get("episodes") == arguments.episodes:
                print(f"{name}: done before")
                continue
            record["cells"][cell.key] = found = _run(cell, arguments, name, pool)
            print(f", success {100 * found['success']:.1f} %")
            if arguments.output:
                text = json.dumps(record, indent=1)
                arguments.output.write_text(text + "\n", encoding="utf-8")
    text = markdown(record)
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    return 0


def _run(cell: Cell, arguments: argparse.Namespace, name: str, pool: Pool) -> dict[str, Any]:
    def progress(done: int, total: int) -> None:
        print(f"\r{name}: {done}/{total}", end="", flush=True)

    seeds = range(arguments.first_seed, arguments.first_seed + arguments.episodes)
    results = list(rollout(cell.task, seeds, cell.settings, pool=pool, progress=progress))
    return {
        "table": cell.table,
        "row": cell.row,
        "task": cell.task,
        "latency": str(cell.settings.latency),
        **figures(results),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkpoint", default=PolicySettings().checkpoint)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--table", nargs="+", choices=("steps", "seams"), default=["steps", "seams"]
    )
    parser.add_argument("--episodes", type=int, default=200, help="of each cell")
    parser.add_argument("--first-seed", type=int, default=1_000_000)
    parser.add_argument("--latency", type=parse_latency, default="40ms", help="of `steps`")
    parser.add_argument("--replan", type=int, default=4, help="actions between two inferences")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON; continued where it is there already")
    parser.add_argument("--markdown", type=Path, help="the tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
