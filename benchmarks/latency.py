"""How long does a whole call take through the fused kernels, and where does the time go?

A call goes from uint8 pictures in pinned host memory to actions in host memory: pictures are copied, resized and
normalised on the GPU, the prompt is read anew, and the host waits once. Weights are random. For each case:

- `call_ms`: wall time of whole calls; `host_ms`: what the host needs to launch one; `stages_ms`: GPU time of each
  stage's graph alone, `vision` with the resizing of pictures; `kernels`: of one call;
- `bound_ms`: operations at 763 TFLOP/s or bytes at 4.27 TB/s, whichever takes longer, of each stage;
- `error`: relative L2 error of the actions to the float32 network for several inputs, beside that of the plain network
  at this precision; `repeats`: whether all calls on one input gave the same bits.

The plain network, eager and under torch.compile, is timed by eager.py. By default every site uses the first of its
candidates; `--runtime reference` uses the plain reference of each (library products and attention), in the same graphs.

    PYTHONPATH=. python benchmarks/latency.py --output latency.json

In a bare checkout the package finds its kernels once it is built (`make build && source build/setup.bash`).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from common import (
    PROMPT_TOKENS,
    SIZES,
    TB_PER_S,
    TFLOPS,
    markdown,
    milliseconds,
    network,
    report,
    summary,
    write,
)
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from flashrt_ros.models import flow, gemma, siglip
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import FlowTimes, flow_times, uniform_times
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.upstream import PLUS_ONE
from flashrt_ros.models.weights import Weights, build_weights, named_tensors, tensor_specs
from flashrt_ros.runtime.contract import Buffers
from flashrt_ros.runtime.fused import FusedOperators
from flashrt_ros.runtime.operators import Limits, Shape, bucket_of, declare_buffers, prompt_views
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.selection import relative_l2

WARM_UP_CALLS = 5


@dataclass(frozen=True)
class Case:
    """The shape of a call."""

    family: str = "pi05"
    views: int = 2
    tokens: int = 200
    horizon: int = 50
    steps: int = 10
    start_time: float = 1.0


CASES = [
    Case(),
    Case(views=1),
    Case(views=3),
    Case(tokens=60),
    Case(horizon=10),
    Case(steps=1),
    Case(steps=1, horizon=10),
    Case("pi0", tokens=48),
    Case("pi0", views=1, tokens=48),
    Case("pi0", views=3, tokens=48),
    Case("pi0", tokens=48, horizon=10),
    Case("pi0", tokens=48, steps=1),
]


def random_weights(config: ModelConfig, device: torch.device, precision: str) -> Weights:
    """As `common.write_random_checkpoint`, made where they are used."""
    generator = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, spec in tensor_specs(config).items():
        scale = 0.02 if "modulation" in name else 1.0 / math.sqrt(spec.shape[-1])
        values = torch.randn(spec.shape, device=device, generator=generator) * scale
        tensors[name] = (values + (name in PLUS_ONE)).to(spec.dtype(precision))
    return build_weights(tensors)


class Call:
    """One call at fixed shape, its stages as graphs."""

    def __init__(self, weights: Weights, config: ModelConfig, case: Case, args: Any) -> None:
        width, height = map(int, args.picture.split("x"))
        self.config, self.case, self.weights = config, case, weights
        self.shape = Shape(case.views, bucket_of(case.tokens))
        self.image = PrepareImage(config.image_size, "openpi")
        limits = Limits(((height, width),) * case.views, self.shape.bucket)
        self.operators = FusedOperators(weights, config, limits, self.image)
        if args.runtime == "fused":
            for site in self.operators.sites():
                if not site.name.endswith("_launch") or weights.device.type == "cuda":
                    self.operators.choose(site.name, list(site.candidates)[1])
        self.buffers = Buffers()
        declare_buffers(self.buffers, config, limits, weights.dtype)
        self.operators.declare(self.buffers)
        self.buffers.allocate(weights.device)
        self.operators.bind(self.buffers)
        self.plan = Plan(self.buffers, weights.device, capture=True)
        self.times: FlowTimes = flow_times(
            weights, config, uniform_times(case.steps, case.start_time)
        )
        self.operators.prepare_times(self.times)
        self.staged = [f"pixels.{i}" for i in range(case.views)] + ["prompt", "x0"]
        self.staged += ["state"] if case.family == "pi0" else []
        self.fill(0)
        for name in self.staged:
            self.plan.upload(name)
        for name, body in self.bodies().items():
            self.plan.build(name, body)

    def bodies(self) -> dict[str, Callable[[], None]]:
        """The stages of a call, in order."""
        o, shape = self.operators, self.shape
        prompt = {"prompt": lambda: o.read_prompt(shape, "fixed")}
        state = {"state": lambda: o.append_state(shape)} if self.case.family == "pi0" else {}
        return {
            "vision": lambda: o.see(tuple(range(self.case.views)), 0),
            **prompt,
            "prefix": lambda: o.encode(shape),
            **state,
            "denoise": lambda: o.denoise(shape, self.times),
        }

    def fill(self, seed: int) -> None:
        """Other inputs."""
        generator = torch.Generator().manual_seed(seed)
        for name in self.staged:
            host = self.plan.host(name)
            if host.dtype == torch.uint8:
                host.random_(0, 256, generator=generator)
            elif host.dtype == torch.float32:
                host.normal_(generator=generator)
        prompt = self.plan.host("prompt")
        ids, length, fixed = prompt_views(prompt)
        ids.random_(0, self.config.vocab, generator=generator)
        length.fill_(self.case.tokens)
        fixed.fill_(self.case.tokens)

    def launch(self) -> None:
        """All of a call but the waiting; each input is copied before the first stage that reads it."""
        needs = {"vision": "pixels", "prompt": "prompt", "state": "state", "denoise": "x0"}
        for stage, body in self.bodies().items():
            for name in self.staged:
                if stage in needs and name.startswith(needs[stage]):
                    self.plan.upload(name)
            self.plan.launch(stage, body)

    def __call__(self) -> Tensor:
        self.launch()
        return self.plan.download("actions")

    def plain(self, weights: Weights) -> Tensor:
        """The same actions by the plain functions."""
        c, b, case = self.config, self.buffers, self.case
        pixels = [self.image(b.host(f"pixels.{i}").numpy()) for i in range(case.views)]
        views = siglip.embed_views(weights.vision, c, torch.stack(pixels).to(weights.device))
        tokens = prompt_views(b.host("prompt"))[0][: case.tokens].to(weights.device).long()
        rows = torch.cat((views.flatten(0, 1), gemma.embed_prompt(weights.language, tokens)))
        prefix = gemma.encode_prefix(weights.language, c, rows)
        if case.family == "pi0":
            state = b.host("state").to(weights.device)
            prefix = flow.append_state(weights, c, prefix, state)
        times = flow_times(weights, c, self.times.times)
        x0 = b.host("x0").to(weights.device)
        return flow.denoise(weights, c, prefix, x0, times).cpu()


def device_ms(call: Call, name: str, body: Callable[[], None], calls: int) -> float:
    """Median GPU time of one stage's graph; wall time on a CPU."""
    if call.weights.device.type != "cuda":
        return statistics.median(milliseconds(body) for _ in range(calls))
    times = []
    with call.plan.stream():
        for _ in range(calls + 2):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            events[0].record()
            call.plan.launch(name, body)
            events[1].record()
            events[1].synchronize()
            times.append(events[0].elapsed_time(events[1]))
    return statistics.median(times[2:])


def kernels(call: Call) -> int | None:
    """How many kernels a call launches, copies not counted; None on a CPU.

    A profiler that was once used slows every later launch of the process down: count when all is timed.
    """
    if call.weights.device.type != "cuda":
        return None
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        call()
        torch.cuda.synchronize()
    on_device = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_device)


def bounds(config: ModelConfig, case: Case) -> dict[str, float]:
    """Least milliseconds of each stage: operations (of products and attention), or bytes of weights."""
    c, n = config, case.views * config.view_tokens
    prefix, H, L = n + case.tokens, case.horizon, config.depth
    q = c.heads * c.head_dim
    vision = c.vision_depth * (4 * c.vision_width**2 + 2 * c.vision_width * c.vision_mlp)
    layer = c.width * (2 * q + 2 * c.head_dim) + 3 * c.width * c.mlp
    encoded = (L - 1) * layer + 2 * c.width * c.head_dim
    expert = L * (c.expert_width * (2 * q + 2 * c.head_dim) + 3 * c.expert_width * c.expert_mlp)
    looked = 4 * c.vision_depth * n * c.view_tokens * c.vision_width
    attended = 4 * (L - 1) * prefix * prefix * q
    work = {
        "vision": (2 * n * vision + looked, 2 * vision),
        "prefix": (2 * prefix * encoded + attended, 2 * encoded),
        "denoise": (
            case.steps * (2 * H * expert + 4 * L * H * (prefix + H) * q),
            case.steps * 2 * expert,
        ),
    }
    return {
        name: round(max(flops / TFLOPS / 1e9, size / TB_PER_S / 1e9), 3)
        for name, (flops, size) in work.items()
    }


@torch.no_grad()
def measure(weights: Weights, config: ModelConfig, case: Case, args: Any) -> dict[str, Any]:
    """One case."""
    cuda = weights.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    call = Call(weights, config, case, args)
    result: dict[str, Any] = {**vars(case)}
    for _ in range(WARM_UP_CALLS):
        first = call().clone()
    repeats, times, host = True, [], []
    for _ in range(args.calls):
        times.append(milliseconds(call))
        repeats &= torch.equal(call.buffers.host("actions"), first)
        start = time.perf_counter()
        call.launch()
        host.append((time.perf_counter() - start) * 1e3)
        call.plan.wait()
    result |= {"call_ms": summary(times), "host_ms": summary(host), "repeats": repeats}
    stages = {n: device_ms(call, n, body, args.calls) for n, body in call.bodies().items()}
    result["stages_ms"] = {name: round(value, 3) for name, value in stages.items()}
    result["bound_ms"] = bounds(config, case)
    if cuda:
        result["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return result


@torch.no_grad()
def errors(weights: Weights, config: ModelConfig, case: Case, args: Any) -> dict[str, Any]:
    """Relative L2 error of the actions to the float32 network, and that of the plain network at the same precision."""
    call = Call(weights, config, case, args)
    exact = build_weights({name: t.float() for name, t in named_tensors(weights).items()})
    found: dict[str, list[float]] = {"fused": [], "plain": []}
    for seed in range(args.inputs):
        call.fill(seed)
        wanted = call.plain(exact)
        found["fused"].append(relative_l2(call(), wanted))
        found["plain"].append(relative_l2(call.plain(weights), wanted))
    return {**vars(case), **{name: [round(x, 6) for x in xs] for name, xs in found.items()}}


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    rows = []
    for r in results:
        stages, bound = r["stages_ms"], sum(r["bound_ms"].values())
        rows.append((
            r["family"], r["views"], r["tokens"], r["horizon"], r["steps"],
            f"{r['call_ms']['median']:.2f}", f"{r['call_ms']['p90']:.2f}",
            *(f"{stages[s]:.2f}" for s in ("vision", "prefix", "denoise")),
            f"{r['host_ms']['median']:.2f}", r["kernels"], f"{bound:.1f}",
        ))  # fmt: skip
    head = ("model", "views", "tokens", "chunk", "steps", "call ms", "p90", "vision", "prefix",
            "denoise", "host", "kernels", "bound")  # fmt: skip
    return markdown(head, rows)


def first_case(family: str) -> Case:
    """The one that errors are measured on."""
    return next(case for case in CASES if case.family == family)


def groups(args: Any) -> Iterator[tuple[ModelConfig, Weights, list[Case]]]:
    """The cases that share a network, with its weights."""
    for family in args.families:
        cases = [case for case in CASES if case.family == family][: args.cases]
        for horizon in sorted({case.horizon for case in cases}, reverse=True):
            config = replace(network(args.size, family), horizon=horizon)
            weights = random_weights(config, torch.device(args.device), args.precision)
            yield config, weights, [case for case in cases if case.horizon == horizon]


def main() -> int:
    """Measure every case, and the errors of the first of each family."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--runtime", choices=["fused", "reference"], default="fused")
    parser.add_argument("--picture", default="640x480", metavar="WIDTHxHEIGHT")
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--inputs", type=int, default=3, help="for the errors; 0 for none")
    parser.add_argument(
        "--families", nargs="*", choices=list(PROMPT_TOKENS), default=["pi05", "pi0"]
    )
    parser.add_argument("--cases", type=int, help="only the first of each family")
    parser.add_argument("--output", type=Path, help="JSON file; a table is printed anyway")
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    proofs: list[dict[str, Any]] = []
    for config, weights, cases in groups(args):
        for case in cases:
            print(f"{case} …", file=sys.stderr, flush=True)
            results.append(measure(weights, config, case, args))
            write(args.output, report("latency", args, results=results, errors=proofs))
        if args.inputs and cases[0] == first_case(cases[0].family):
            print("errors …", file=sys.stderr, flush=True)
            proofs.append(errors(weights, config, cases[0], args))
    print("kernels …", file=sys.stderr, flush=True)
    counted = {c: kernels(Call(w, m, c, args)) for m, w, cases in groups(args) for c in cases}
    for result in results:
        case = Case(**{name: result[name] for name in vars(Case())})
        result["kernels"] = counted[case]
    write(args.output, report("latency", args, results=results, errors=proofs))
    print(table(results))
    for proof in proofs:
        print(f"{proof['family']}: error fused {proof['fused']}, plain {proof['plain']}")
    print("same bits at every call:", all(r["repeats"] for r in results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
