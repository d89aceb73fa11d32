"""What does a call cost when only some of its inputs are new, and which stages run then?

Each case repeats one kind of change, counts the stages that ran in a call, and times whole calls from numpy pictures to
actions. Pictures are of random colours: no two calls share one unless the case says so.

    PYTHONPATH=. python benchmarks/reuse.py --output reuse.json
    PYTHONPATH=. python benchmarks/reuse.py --size tiny --device cpu --precision float32 --calls 10
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import (
    add_policy_arguments,
    markdown,
    milliseconds,
    random_policy,
    report,
    summary,
    write,
)

from flashrt_ros.runtime.build import build_engine, operators_for
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.settings import EngineSettings

WARM_UP_CALLS = 3


class Inputs:
    """Endless new pictures and states."""

    def __init__(self, engine: FlowEngine) -> None:
        random = np.random.default_rng(0)
        cameras = engine.settings.cameras
        self.pool = [
            {name: random.integers(0, 256, (*size, 3), np.uint8) for name, size in cameras.items()}
            for _ in range(8)
        ]
        self.states = random.uniform(-1, 1, (64, engine.policy.processor.state_dim))
        self.number = itertools.count()

    def images(self) -> dict[str, Any]:
        """A set that differs from the one before in every camera."""
        return dict(self.pool[next(self.number) % len(self.pool)])

    def state(self) -> np.ndarray:
        """A state that differs from the one before."""
        return self.states[next(self.number) % len(self.states)]


def cases(engine: FlowEngine, steps: int) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name: prepares the inputs of one call, and returns the call that is timed."""
    inputs, first = Inputs(engine), "put the cup on the shelf"
    cameras, still, number = list(engine.settings.cameras), inputs.images(), itertools.count()
    state = inputs.state()
    kept = [first, "close the door and open the drawer"]

    def call(images: dict[str, Any], state: Any, text: str) -> Callable[[], Any]:
        return lambda: engine.infer(images, state, text, steps=steps)

    def early() -> Callable[[], Any]:
        images = inputs.images()
        for name in cameras[:-1]:
            engine.see(name, images[name])
        engine.plan.wait()
        return call(images, inputs.state(), first)

    return {
        "everything new": lambda: call(inputs.images(), inputs.state(), f"{first}, {next(number)}"),
        "same instruction": lambda: call(inputs.images(), inputs.state(), first),
        "switch back": lambda: call(inputs.images(), inputs.state(), kept[next(number) % 2]),
        "one camera unchanged": lambda: call(
            {**inputs.images(), cameras[0]: still[cameras[0]]}, inputs.state(), first
        ),
        "all but one seen early": early,
        "cameras unchanged": lambda: call(still, inputs.state(), first),
        "all unchanged": lambda: call(still, state, first),
        "denoise again": lambda: lambda: engine.denoise(steps=steps),
    }


def measure(engine: FlowEngine, prepare: Callable[[], Callable[[], Any]], calls: int) -> Any:
    """Times of one case, and how often each stage ran in a call."""
    for _ in range(WARM_UP_CALLS):
        prepare()()
    times, before, during = [], engine.contract.ran.copy(), Counter[str]()
    for _ in range(calls):
        timed = prepare()
        ready = engine.contract.ran.copy()
        times.append(milliseconds(timed))
        during.update(engine.contract.ran - ready)
    total = engine.contract.ran - before
    return {
        "call_ms": summary(times),
        "ran": {stage: round(during[stage] / calls, 3) for stage in sorted(during)},
        "ran_ahead": {s: (total - during)[s] / calls for s in sorted(total - during)},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_policy_arguments(parser)
    args = parser.parse_args()
    width, height = map(int, args.picture.split("x"))
    with random_policy(args) as policy:
        device = torch.device(args.device)
        runtime, make_operators = operators_for(args.runtime, device)
        names = policy.processor.cameras[: args.views]
        settings = EngineSettings(
            cameras=dict.fromkeys(names, (height, width)), flows=((args.steps, 1.0),)
        )
        engine = build_engine(
            policy,
            settings,
            make_operators=make_operators,
            selection=args.selection,
            progress=lambda text: print(text, file=sys.stderr),
        )
        results = []
        for name, prepare in cases(engine, args.steps).items():
            results.append({"case": name, **measure(engine, prepare, args.calls)})
            write(args.output, report("reuse", args, runtime=runtime, results=results))
    rows = [
        (r["case"], *(r["call_ms"][q] for q in ("median", "p10", "p90")), _stages(r["ran"]))
        for r in results
    ]
    print(markdown(("case", "median ms", "p10", "p90", "stages in a call"), rows))
    return 0


def _stages(ran: dict[str, float]) -> str:
    return ", ".join(f"{name}" + (f" ×{n:g}" if n != 1 else "") for name, n in ran.items())


if __name__ == "__main__":
    sys.exit(main())
