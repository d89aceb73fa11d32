"""How long does it take to put a moment of a session back, against computing it anew?

`snapshot` copies what the engine retains, `restore` puts it back after other calls have written over everything, and
`rebuild` computes the same from pictures, state and instruction. After each restore the next actions are compared
with those that followed the snapshot: all must be equal, bit for bit.

    PYTHONPATH=. python benchmarks/capsule.py --output capsule.json
    PYTHONPATH=. python benchmarks/capsule.py --size tiny --device cpu --precision float32 --calls 10
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

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
from flashrt_ros.runtime.capsule import restore, snapshot
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.settings import EngineSettings
from flashrt_ros.runtime.trial import make_samples


def measure(engine: FlowEngine, steps: int, calls: int) -> dict[str, Any]:
    """Times of all three, and whether actions were identical."""
    moment, other = make_samples(engine.policy, engine.settings.cameras, count=2)
    arguments = (moment.images, moment.state, moment.instruction)

    def disturb() -> None:
        engine.infer(other.images, other.state, other.instruction, steps=steps)

    def rebuild() -> None:
        engine.observe(*arguments)
        engine.plan.wait()

    times: dict[str, list[float]] = {"snapshot": [], "restore": [], "rebuild": []}
    engine.infer(*arguments, steps=steps)
    capsule = snapshot(engine)
    expected = engine.denoise(steps=steps)
    identical = True
    for _ in range(calls):
        disturb()
        times["rebuild"].append(milliseconds(rebuild))
        times["snapshot"].append(milliseconds(lambda: snapshot(engine)))
        disturb()
        times["restore"].append(milliseconds(lambda: restore(engine, capsule)))
        identical &= torch.equal(engine.denoise(steps=steps), expected)
    return {
        "bytes": capsule.nbytes,
        "host_bytes": 0 if capsule.host_memory is None else capsule.host_memory.numel(),
        "identical": identical,
        **{f"{name}_ms": summary(values) for name, values in times.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_policy_arguments(parser)
    args = parser.parse_args()
    width, height = map(int, args.picture.split("x"))
    with random_policy(args) as policy:
        runtime, make_operators = operators_for(args.runtime, torch.device(args.device))
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
        result = measure(engine, args.steps, args.calls)
    write(args.output, report("capsule", args, runtime=runtime, results=[result]))
    rows = [
        (name, *(result[f"{name}_ms"][q] for q in ("median", "p10", "p90")))
        for name in ("snapshot", "restore", "rebuild")
    ]
    print(markdown(("", "median ms", "p10", "p90"), rows))
    print(
        f"{result['bytes'] / 1e6:.1f} MB on the device, {result['host_bytes'] / 1e6:.1f} MB on the host;"
    )
    print(f"actions after a restore identical: {result['identical']}")
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
