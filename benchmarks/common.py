"""What several benchmarks share: sizes, random checkpoints, times, and how results are written."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from flashrt_ros.models.checkpoint import FLASHRT_FILE, FLASHRT_VERSION, WEIGHTS_FILE
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.policy import FlowPolicy, load_policy
from flashrt_ros.models.upstream import PLUS_ONE
from flashrt_ros.models.weights import tensor_specs
from flashrt_ros.runtime.machine import machine

TINY_CHECKPOINT = Path(__file__).resolve().parents[1] / "test/data/tiny_so101"
SIZES = {
    "full": ModelConfig(family="pi05"),
    "tiny": ModelConfig(
        family="pi05", vision_width=48, vision_depth=2, vision_heads=4, vision_mlp=80,
        image_size=56, width=64, mlp=128, expert_width=32, expert_mlp=96, depth=3, head_dim=16,
        vocab=512, horizon=10,
    ),
}  # fmt: skip
PROMPT_TOKENS = {"pi0": 48, "pi05": 200}
TFLOPS, TB_PER_S = 763.0, 4.27
"""What bounds are computed with: a GPU's operations on 16-bit numbers, and bytes from its memory."""


def synchronize(device: torch.device) -> None:
    """Wait for a GPU; a CPU is done anyway."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write_random_checkpoint(folder: Path, config: ModelConfig, device: str, precision: str) -> None:
    """Random weights of the size of their inputs' square root, in the project's own format."""
    torch.manual_seed(0)
    tensors = {}
    for name, spec in tensor_specs(config).items():
        scale = 0.02 if "modulation" in name else 1.0 / math.sqrt(spec.shape[-1])
        tensor = torch.randn(spec.shape, device=device) * scale + (name in PLUS_ONE)
        tensors[name] = tensor.to(spec.dtype(precision)).cpu()
    save_file(tensors, folder / WEIGHTS_FILE)
    described = {"version": FLASHRT_VERSION, "precision": precision, "model": config.to_json()}
    (folder / FLASHRT_FILE).write_text(json.dumps(described, indent=1))


def write_processing(folder: Path, config: ModelConfig) -> None:
    """The processing and the tokenizer of the tests' tiny SO-101 checkpoint, for a network of these sizes."""
    values = json.loads((TINY_CHECKPOINT / "processing.json").read_text())
    values |= {
        "family": config.family,
        "image": {"size": config.image_size, "filter": "openpi"},
        "max_tokens": config.max_prompt_tokens,
        "padded_state_dim": config.action_dim,
    }
    if config.family == "pi0":
        values["prompt"] = {"kind": "text", "openpi": True}
    (folder / "processing.json").write_text(json.dumps(values))
    shutil.copyfile(TINY_CHECKPOINT / "tokenizer.json", folder / "tokenizer.json")


def network(size: str, family: str) -> ModelConfig:
    """Sizes by name, for π0 or π0.5."""
    return replace(SIZES[size], family=family, max_prompt_tokens=PROMPT_TOKENS[family])


@contextmanager
def random_checkpoint(args: argparse.Namespace) -> Iterator[Path]:
    """A folder with random weights for `--size` and `--family`, gone afterwards."""
    config = network(args.size, args.family)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        write_random_checkpoint(Path(folder), config, args.device, args.precision)
        write_processing(Path(folder), config)
        yield Path(folder)


@contextmanager
def random_policy(args: argparse.Namespace) -> Iterator[FlowPolicy]:
    """That checkpoint, or the one of `--checkpoint`, loaded."""
    if args.checkpoint is not None:
        yield load_policy(args.checkpoint, device=args.device, precision=args.precision)
        return
    with random_checkpoint(args) as folder:
        policy = load_policy(folder, device=args.device, precision=args.precision)
    yield policy


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """What `random_policy` reads, and the shape of a call."""
    parser.add_argument("--checkpoint", type=Path, help="default: random weights")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--family", choices=list(PROMPT_TOKENS), default="pi05")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--runtime", choices=["auto", "reference", "fused"], default="auto")
    parser.add_argument("--selection", choices=["verdicts", "now", "off"], default="verdicts")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--picture", default="640x480", metavar="WIDTHxHEIGHT")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where random weights are written (8 GB)")
    parser.add_argument("--output", type=Path, help="JSON file; a table is printed anyway")


def milliseconds(function: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - start) / 1e6


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median, tenth and ninetieth percentile, and how many."""
    low, high = np.quantile(times, (0.1, 0.9))
    return {
        "median": round(statistics.median(times), 4),
        "p10": round(float(low), 4),
        "p90": round(float(high), 4),
        "calls": len(times),
    }


def report(benchmark: str, args: argparse.Namespace, **values: Any) -> dict[str, Any]:
    """Results with the machine and the work that they hold for."""
    work = {k: v for k, v in vars(args).items() if k not in ("output", "folder", "device")}
    return {
        "benchmark": benchmark,
        "machine": machine(torch.device(args.device)),
        "work": {k: str(v) if isinstance(v, Path) else v for k, v in work.items()},
        **values,
    }


def write(path: Path | None, values: dict[str, Any]) -> None:
    """JSON into a file, where one is named."""
    if path is not None:
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
