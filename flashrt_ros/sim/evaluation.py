"""The evaluation of a checkpoint on the belt world: every task, the latencies, and the controls that must fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashrt_ros.sim.latency import FixedLatency
from flashrt_ros.sim.rollout import RolloutSettings, rollout, rollout_pool
from flashrt_ros.sim.rollout_report import summarize
from flashrt_ros.sim.tasks import TASKS

LATENCIES_MS = (0, 50, 100, 200, 400)


def cells(settings: RolloutSettings) -> dict[str, tuple[str, RolloutSettings]]:
    """Name → task and settings of everything that is evaluated."""
    found: dict[str, tuple[str, RolloutSettings]] = {task: (task, settings) for task in TASKS}
    for latency_ms in LATENCIES_MS[1:]:
        latency = FixedLatency(latency_ms * 1_000_000)
        found[f"intercept {latency_ms} ms"] = ("intercept", replace(settings, latency=latency))
    for task in ("reach", "intercept"):
        found[f"{task} blind"] = (task, replace(settings, blind=True))
    for task in ("reach", "switch"):
        found[f"{task} wrong instruction"] = (task, replace(settings, wrong_instruction=True))
    return found


def evaluate(
    settings: RolloutSettings,
    episodes: int,
    workers: int,
    file: Path,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Any]:
    """Run all cells; results so far are in `file` after each, and those there are not run again.

    Returns:
        Cell → summary as `rollout_report.summarize` makes it.
    """
    done: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    missing = {
        name: cell
        for name, cell in cells(settings).items()
        if name not in done or done[name]["episodes"] != episodes
    }
    if not missing:
        return done
    with rollout_pool(workers) as pool:
        for name, (task, chosen) in missing.items():

            def tell(count: int, total: int, name: str = name) -> None:
                progress(name, count, total)

            results = list(rollout(task, range(episodes), chosen, pool=pool, progress=tell))
            done[name] = summarize(task, results, chosen)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    return done
