"""What `flashrt bench` prints: the verdicts of a selection, or the times of whole calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from flashrt_ros.runtime.build import select_candidates
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.machine import machine
from flashrt_ros.runtime.selection import Timer, table, verdicts_path, wall_clock
from flashrt_ros.runtime.trial import EngineTrial, make_samples

_WARM_UP_CALLS = 3


def select_and_keep(
    engine: FlowEngine,
    pairs: int,
    copy: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    *,
    timer: Timer = wall_clock,
) -> str:
    """Select an engine's candidates, and keep the verdicts, site by site, where the policy node finds them.

    A selection that was interrupted goes on behind the sites that it judged.

    Args:
        engine: with the shapes of the robot that it is for.
        pairs: timed pairs of calls for each candidate.
        copy: where the verdicts are written, too.
        progress: told of each candidate, and of each site that was judged.
        timer: what a call costs.

    Returns:
        The table of verdicts.
    """
    if not engine.operators.sites():
        return "nothing to select: this runtime computes every site in one way, the reference"
    verdicts = select_candidates(engine, timer=timer, pairs=pairs, progress=progress, keep=True)
    if copy is not None:
        copy.write_text(json.dumps(asdict(verdicts), indent=1) + "\n", encoding="utf-8")
    return f"{table(verdicts)}\nkept in {verdicts_path(verdicts.fingerprint)}"


def time_calls(engine: FlowEngine, calls: int, *, timer: Timer = wall_clock) -> str:
    """Times of whole calls: all but the instruction is new in each.

    Returns:
        Median, tenth and ninetieth percentile in ms, and the machine.
    """
    policy, (steps, _) = engine.policy, engine.settings.flows[0]
    trial = EngineTrial(engine, make_samples(policy, engine.settings.cameras, count=1), steps)
    times = []
    for _ in range(calls + _WARM_UP_CALLS):
        trial.prepare()
        times.append(timer(trial.call) * 1e3)
    low, median, high = np.quantile(times[_WARM_UP_CALLS:], (0.1, 0.5, 0.9))
    named = machine(policy.device)
    cameras = ", ".join(f"{name} {w}×{h}" for name, (h, w) in engine.settings.cameras.items())
    return (
        f"call: median {median:.2f} ms, 10 % below {low:.2f}, 10 % above {high:.2f}; {calls} calls\n"
        f"{steps} steps, {policy.precision}, cameras {cameras}\n"
        f"{named['device']}, torch {named['torch']}"
    )
