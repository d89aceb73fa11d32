"""Train the small π0.5 of the belt world: demonstrations, training, evaluation, checkpoint and model card.

    python -m flashrt_ros.sim.train --out runs/pi05_belt

Run again with the same folder to go on where it was stopped: finished demonstrations, training
steps and evaluated cells are kept.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.control.policies import PolicySettings
from flashrt_ros.models.checkpoint import WEIGHTS_FILE
from flashrt_ros.models.policy import load_policy
from flashrt_ros.models.processor import Processor
from flashrt_ros.models.weights import named_tensors
from flashrt_ros.sim import demonstrations as demos
from flashrt_ros.sim.demonstrations import Demonstrations
from flashrt_ros.sim.evaluation import evaluate
from flashrt_ros.sim.model_card import EVALUATION_FILE, write_card
from flashrt_ros.sim.rollout import RolloutSettings
from flashrt_ros.sim.small_policy import (
    CONFIG,
    TOKENIZER_FILE,
    build_processor,
    write_checkpoint,
    write_tokenizer,
)
from flashrt_ros.sim.training import (
    Batches,
    Training,
    TrainingLog,
    TrainingSettings,
    relative_actions,
)

HELD_OUT_EPISODES = 48
_HELD_OUT_SEED = 900_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for. Returns the exit code."""
    given = _parser().parse_args(arguments)
    settings = TrainingSettings(
        steps=given.steps,
        batch=given.batch,
        learning_rate=given.learning_rate,
        seed=given.seed,
        graph=not given.no_graph,
        time_limit_min=given.time_limit_min,
    )
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    out: Path = given.out
    work: Path = given.work or out / "work"
    out.mkdir(parents=True, exist_ok=True)
    times: dict[str, float] = {}
    if not given.evaluate_only:
        begin_s = time.monotonic()
        data, held_out = _demonstrations(given, work)
        times["demonstrations_s"] = time.monotonic() - begin_s
        _train(given, settings, data, held_out, out, work, device)
    if given.evaluation_episodes:
        begin_s = time.monotonic()
        policy = PolicySettings(checkpoint=str(out), device="cpu", precision="float32")
        bar = Bar("evaluation")
        evaluate(
            RolloutSettings(policy=policy),
            given.evaluation_episodes,
            given.workers,
            out / EVALUATION_FILE,
            lambda name, done, total: bar(done, total, name),
        )
        bar.close()
        times["evaluation_s"] = time.monotonic() - begin_s
        write_card(out)
    print({name: round(value, 1) for name, value in times.items()})
    return 0


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        prog="python -m flashrt_ros.sim.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FOLDER", help="checkpoint and model card")
    add("--work", type=Path, metavar="FOLDER", help="demonstrations, state (default: OUT/work)")
    add("--episodes", type=int, default=1600, metavar="N", help="demonstrations")
    add("--steps", type=int, default=TrainingSettings.steps, metavar="N")
    add("--batch", type=int, default=TrainingSettings.batch, metavar="N")
    add("--learning-rate", type=float, default=TrainingSettings.learning_rate, metavar="X")
    add("--time-limit-min", type=float, default=0.0, metavar="MIN", help="of the training alone")
    add("--no-graph", action="store_true", help="launch every kernel by itself on a GPU")
    add("--seed", type=int, default=0)
    add("--device", default="", help="default: a GPU where there is one")
    add("--workers", type=int, default=cores, metavar="N", help="processes that simulate")
    add("--evaluation-episodes", type=int, default=200, metavar="N", help="a cell; 0: none")
    add("--evaluate-only", action="store_true", help="of the checkpoint that is in OUT")
    add("--start-from", type=Path, metavar="FOLDER", help="weights of an earlier checkpoint")
    return parser


def _demonstrations(given: argparse.Namespace, work: Path) -> tuple[Demonstrations, Demonstrations]:
    bar = Bar("demonstrations")
    folder, first = work / "demonstrations", given.seed * 10_000_000
    files = demos.prepare(folder, given.episodes, given.workers, first, progress=bar)
    held = min(HELD_OUT_EPISODES, given.episodes)
    others = demos.prepare(folder, held, given.workers, first + _HELD_OUT_SEED, 8)
    bar.close()
    data, held_out = (demos.join([demos.load(file) for file in part]) for part in (files, others))
    return data, held_out


def _train(
    given: argparse.Namespace,
    settings: TrainingSettings,
    data: Demonstrations,
    held_out: Demonstrations,
    out: Path,
    work: Path,
    device: torch.device,
) -> None:
    tokenizer = write_tokenizer(work / TOKENIZER_FILE)
    processor = build_processor(data.states, relative_actions(data), tokenizer)
    training = Training(CONFIG, settings, device)
    if training.resume(work):
        print(f"going on at step {training.log.step}", file=sys.stderr)
    elif given.start_from:
        training.start_from(_start_tensors(given.start_from))
    bar = Bar("training")

    def progress(log: TrainingLog, share: float) -> None:
        bar(round(1000 * share), 1000, f"step {log.step}, loss {log.losses[-1][1]:.4f}")

    def save(training: Training) -> None:
        training.save(work)
        _save_checkpoint(training, out, processor, given, len(data))

    training.run(
        Batches(data, processor, device, settings.seed),
        Batches(held_out, processor, device, settings.seed),
        progress,
        save,
    )
    bar.close()


def _start_tensors(folder: Path) -> dict[str, Any]:
    if not (folder / WEIGHTS_FILE).exists():
        raise ValueError(f"--start-from {folder}: expected a checkpoint's folder, found none")
    return named_tensors(load_policy(folder).weights)


def _save_checkpoint(
    training: Training,
    out: Path,
    processor: Processor,
    given: argparse.Namespace,
    observations: int,
) -> None:
    notes = {
        "training": {
            "settings": asdict(training.settings),
            "log": asdict(training.log),
            "episodes": given.episodes,
            "observations": observations,
            "hardware": hardware(training.device),
        }
    }
    write_checkpoint(out, training.average, training.config, processor, notes)


def hardware(device: torch.device) -> str:
    """What the training ran on."""
    cores = len(os.sched_getaffinity(0))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return f"{name}, {cores} CPU cores ({platform.machine()}), torch {torch.__version__}"


class Bar:
    """A progress bar on stderr; lines now and then where that is no terminal."""

    def __init__(self, what: str):
        from tqdm import tqdm

        interval_s = 0.2 if sys.stderr.isatty() else 20.0
        self._make: Callable[..., Any] = lambda total: tqdm(
            total=total, desc=what, mininterval=interval_s, maxinterval=interval_s, ncols=80
        )
        self._bar: Any = None

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """`done` of `total`."""
        if self._bar is None:
            self._bar = self._make(total)
        if total != self._bar.total:
            self._bar.reset(total)
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()


if __name__ == "__main__":
    sys.exit(main())
