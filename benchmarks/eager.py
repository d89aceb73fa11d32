"""How long does the plain PyTorch path take, eager and compiled, and how much memory?

One whole call goes from uint8 views in pinned host memory to actions in host memory; weights are
random, processing is the identity (views already have the network's size). Each variant is timed
over whole calls and per stage:

- `eager`: the functions of flashrt_ros.models as they are.
- `eager_graph`: the same, each stage captured as a CUDA graph.
- `compiled`: the stages under torch.compile, one compilation per number of views.
- `compiled_graph`: the compiled stages captured as CUDA graphs (what reduce-overhead does).

The terms of the flow times depend on no input and are computed once, outside the call.

    PYTHONPATH=. python benchmarks/eager.py --output eager.json
    PYTHONPATH=. python benchmarks/eager.py --size tiny --device cpu --prompt-tokens 20

Needs torch, numpy and safetensors. The file is rewritten after every result, so a run that is cut
short leaves what it measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import SIZES, synchronize, write_random_checkpoint
from torch import Tensor
from torch._dynamo.utils import counters

from flashrt_ros.models.checkpoint import WEIGHTS_FILE, load_weights, open_checkpoint
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import flow_times, uniform_times, velocity
from flashrt_ros.models.gemma import PrefixCache, embed_prompt, encode_prefix
from flashrt_ros.models.siglip import embed_views
from flashrt_ros.models.weights import Weights, tensor_specs

STAGES = ("vision", "prefix", "denoise")


class Call:
    """One inference with fixed buffers; a stage is a function from buffers to tensors."""

    def __init__(self, weights: Weights, config: ModelConfig, args: argparse.Namespace, views: int):
        self.weights, self.config, self.device = weights, config, weights.device
        pin, S = self.device.type == "cuda", config.image_size
        generator = torch.Generator().manual_seed(views)
        pixels = torch.randint(0, 256, (views, S, S, 3), dtype=torch.uint8, generator=generator)
        tokens = torch.randint(0, config.vocab, (args.prompt_tokens,), generator=generator)
        shape = (config.horizon, config.action_dim)
        self.host = [pixels, tokens, torch.randn(shape, generator=generator)]
        self.result = torch.empty(shape)
        if pin:
            self.host = [tensor.pin_memory() for tensor in self.host]
            self.result = self.result.pin_memory()
        self.inputs = [tensor.to(self.device) for tensor in self.host]
        self.flow = flow_times(weights, config, uniform_times(args.steps))
        self.rows: Tensor = torch.empty(0)  # vision's output
        self.prefix_kv: tuple[Tensor, Tensor] = (self.rows, self.rows)
        self.actions: Tensor = self.rows

    def compiled(self) -> None:
        """Put the heavy functions under torch.compile."""
        for name in ("see", "read", "velocity"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False))

    def see(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1.0
        return embed_views(self.weights.vision, self.config, images).flatten(0, 1)

    def read(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        prompt = embed_prompt(self.weights.language, tokens)
        prefix = encode_prefix(self.weights.language, self.config, torch.cat((rows, prompt)))
        return prefix.keys, prefix.values

    def velocity(self, keys: Tensor, values: Tensor, x: Tensor, term: Tensor) -> Tensor:
        return velocity(self.weights, self.config, PrefixCache(keys, values), x, term)

    def vision(self) -> None:
        self.rows = self.see(self.inputs[0])

    def prefix(self) -> None:
        self.prefix_kv = self.read(self.rows, self.inputs[1])

    def denoise(self) -> None:
        x = self.inputs[2]
        for size, term in zip(self.flow.step_sizes, self.flow.terms, strict=True):
            x = torch.add(x, self.velocity(*self.prefix_kv, x, term), alpha=size)
        self.actions = x

    def captured(self) -> None:
        """Replace each stage by the replay of its CUDA graph; outputs keep their addresses."""
        for name in STAGES:
            stage = getattr(self, name)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                stage()
                stage()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                stage()
            setattr(self, name, graph.replay)

    def run(self) -> Tensor:
        for host, buffer in zip(self.host, self.inputs, strict=True):
            buffer.copy_(host, non_blocking=True)
        for name in STAGES:
            getattr(self, name)()
        self.result.copy_(self.actions, non_blocking=True)
        synchronize(self.device)
        return self.result


def milliseconds(function: Callable[[], Any], calls: int, device: torch.device) -> dict[str, float]:
    """Wall-clock times of a function that ends when the device is idle."""
    times = []
    for _ in range(calls):
        synchronize(device)
        start = time.perf_counter_ns()
        function()
        synchronize(device)
        times.append((time.perf_counter_ns() - start) / 1e6)
    times.sort()
    return {
        "median": round(statistics.median(times), 4),
        "p10": round(times[len(times) // 10], 4),
        "p90": round(times[-1 - len(times) // 10], 4),
        "calls": calls,
    }


def measure(call: Call, calls: int) -> dict[str, Any]:
    """Whole calls and each stage by itself, after one call to warm up."""
    first = milliseconds(call.run, 1, call.device)["median"]
    for _ in range(3):
        call.run()
    found: dict[str, Any] = {"first_call_ms": first}
    found["call_ms"] = milliseconds(call.run, calls, call.device)
    found["stages_ms"] = {
        name: milliseconds(getattr(call, name), calls, call.device)["median"] for name in STAGES
    }
    return found


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after `seconds`."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done within {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)


def relative_l2(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@dataclass
class Report:
    """Results so far, and the file they go to."""

    path: Path | None
    values: dict[str, Any]

    def add(self, variant: str, views: int, result: dict[str, Any]) -> None:
        self.values["results"].append({"variant": variant, "views": views, **result})
        summary = result.get("call_ms", {}).get("median", result.get("failed"))
        print(f"{variant:15} {views} views: {summary}", file=sys.stderr, flush=True)
        self.write()

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.values, indent=1) + "\n")


def load(folder: Path, args: argparse.Namespace, report: Report) -> tuple[Weights, ModelConfig]:
    """Load twice from a warm disk cache; the second one is what is used."""
    device, on_gpu = torch.device(args.device), args.device.startswith("cuda")
    seconds = []
    for _ in range(2):
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        checkpoint = open_checkpoint(folder)
        weights = load_weights(checkpoint, device=device, precision=args.precision)
        synchronize(device)
        seconds.append(round(time.perf_counter() - start, 3))
        if len(seconds) == 1:
            del weights
    stored = (folder / WEIGHTS_FILE).stat().st_size
    report.values["load"] = {"seconds": seconds, "file_bytes": stored}
    if on_gpu:
        report.values["load"] |= {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_bytes": torch.cuda.max_memory_allocated(),
        }
    report.write()
    return weights, checkpoint.config


def run_uncompiled(
    weights: Weights, config: ModelConfig, args: argparse.Namespace, report: Report
) -> dict[int, Tensor]:
    """Eager, and eager in CUDA graphs. Returns the eager actions by number of views."""
    expected: dict[int, Tensor] = {}
    for views in args.views:
        call = Call(weights, config, args, views)
        expected[views] = call.run().clone()
        if not bool(expected[views].isfinite().all()):
            raise RuntimeError(f"{views} views: expected finite actions, found NaN or infinity")
        if weights.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result = measure(call, args.calls)
        if weights.device.type == "cuda":
            result["peak_bytes"] = torch.cuda.max_memory_allocated()
        report.add("eager", views, result)
        if weights.device.type == "cuda":
            call.captured()
            result = measure(call, args.calls)
            result["relative_l2_to_eager"] = relative_l2(call.run(), expected[views])
            report.add("eager_graph", views, result)
    return expected


def run_compiled(
    weights: Weights,
    config: ModelConfig,
    args: argparse.Namespace,
    report: Report,
    expected: dict[int, Tensor],
    deadline: float,
) -> None:
    """torch.compile, and its stages in CUDA graphs, each number of views while time is left."""
    for views in args.views:
        torch.compiler.reset()
        counters.clear()
        call = Call(weights, config, args, views)
        call.compiled()
        start = time.monotonic()
        try:
            with time_limit(deadline - start):
                call.run()
                compile_s = round(time.monotonic() - start, 2)
                breaks = sum(counters["graph_break"].values())
                result = {"compile_s": compile_s, "graph_breaks": breaks}
                result |= measure(call, args.calls)
                result["relative_l2_to_eager"] = relative_l2(call.run(), expected[views])
                report.add("compiled", views, result)
                if weights.device.type == "cuda":
                    call.captured()
                    result = measure(call, args.calls)
                    result["relative_l2_to_eager"] = relative_l2(call.run(), expected[views])
                    report.add("compiled_graph", views, result)
        except Exception as error:  # reported, and the other sizes are still worth measuring
            report.add("compiled", views, {"failed": f"{type(error).__name__}: {error}"[:500]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--views", type=int, nargs="+", default=[2, 1, 3])
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--budget-s", type=float, default=400.0, help="no compilation beyond this")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written (8 GB)")
    parser.add_argument("--output", type=Path, help="JSON file; default: standard output")
    args = parser.parse_args()
    deadline = time.monotonic() + args.budget_s
    torch.set_grad_enabled(False)

    config, on_gpu = SIZES[args.size], args.device.startswith("cuda")
    machine = torch.cuda.get_device_name(args.device) if on_gpu else platform.processor()
    report = Report(
        args.output,
        {
            "benchmark": "eager",
            "machine": {
                "device": machine or platform.machine(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda if on_gpu else None,
                "python": platform.python_version(),
            },
            "work": {
                "size": args.size,
                "precision": args.precision,
                "prompt_tokens": args.prompt_tokens,
                "steps": args.steps,
                "horizon": config.horizon,
                "weights": "random",
                "parameters": sum(spec.numel for spec in tensor_specs(config).values()),
            },
            "results": [],
        },
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        start = time.perf_counter()
        write_random_checkpoint(Path(folder), config, args.device, args.precision)
        report.values["write_s"] = round(time.perf_counter() - start, 2)
        weights, config = load(Path(folder), args, report)
        expected = run_uncompiled(weights, config, args, report)
        if not args.no_compile:
            run_compiled(weights, config, args, report, expected, deadline)
    if args.output is None:
        print(json.dumps(report.values, indent=1))


if __name__ == "__main__":
    main()
