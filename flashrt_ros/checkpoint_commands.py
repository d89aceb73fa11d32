"""The subcommands of `flashrt` that are about a checkpoint alone: inspect, convert, bench."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def _add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="folder of an openpi or LeRobot checkpoint"
    )
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a .model or tokenizer.json")
    parser.add_argument(
        "--options",
        type=Path,
        metavar="FILE",
        help="JSON of what openpi does not record: cameras, delta_mask, …",
    )
    parser.add_argument(
        "--horizon", type=int, metavar="H", help="actions in a chunk, where it is not recorded"
    )
    parser.add_argument(
        "--vision-heads", type=int, metavar="N", help="for vision towers of unusual width"
    )


def add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What a checkpoint is."""
    inspect = commands.add_parser("inspect", help="say what a checkpoint is and what it lacks")
    _add_checkpoint_arguments(inspect)
    inspect.set_defaults(run=_inspect)


def _inspect(given: argparse.Namespace) -> int:
    from flashrt_ros.models.inspect import format_table, inspect_checkpoint
    from flashrt_ros.models.options import read_options

    rows = inspect_checkpoint(
        given.path,
        tokenizer=given.tokenizer,
        options=read_options(given.options) if given.options else None,
        horizon=given.horizon,
        vision_heads=given.vision_heads,
    )
    print(format_table(rows))
    return 1 if any(row.missing for row in rows) else 0


def add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """A checkpoint in this project's format."""
    convert = commands.add_parser(
        "convert", help="write a checkpoint in this project's format: loads in seconds"
    )
    _add_checkpoint_arguments(convert)
    convert.add_argument(
        "target", type=Path, metavar="TARGET", help="folder to write; must not exist"
    )
    convert.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    convert.set_defaults(run=_convert)


def _convert(given: argparse.Namespace) -> int:
    from flashrt_ros.models.convert import convert_checkpoint
    from flashrt_ros.models.options import read_options

    written = convert_checkpoint(
        given.path,
        given.target,
        precision=given.precision,
        tokenizer=given.tokenizer,
        options=read_options(given.options) if given.options else None,
        horizon=given.horizon,
        vision_heads=given.vision_heads,
    )
    print(f"{written}: written")
    return 0


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Times of a checkpoint, or a selection of its kernels."""
    bench = commands.add_parser(
        "bench", help="time a checkpoint on this machine, or select the kernels that it runs with"
    )
    bench.add_argument("path", type=Path, metavar="PATH", help="folder of a checkpoint")
    bench.add_argument(
        "--select",
        action="store_true",
        help="judge every kernel against the reference, keep the verdicts and print them",
    )
    bench.add_argument("--robot", default="so101", metavar="ROBOT", help="contract: name or file")
    bench.add_argument("--device", default="auto")
    bench.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    bench.add_argument("--runtime", choices=("auto", "reference", "fused"), default="auto")
    bench.add_argument("--steps", type=int, default=10, metavar="N", help="denoising steps")
    bench.add_argument(
        "--pairs", type=int, default=30, metavar="N", help="timed calls, or pairs of them"
    )
    bench.add_argument("--tokenizer", default="", metavar="FILE", help="a .model or tokenizer.json")
    bench.add_argument(
        "--json", type=Path, metavar="FILE", help="with --select: the verdicts, once more"
    )
    bench.set_defaults(run=_bench)


def _bench(given: argparse.Namespace) -> int:
    from flashrt_ros.control.policies import CheckpointPolicy, PolicySettings
    from flashrt_ros.control.robot import find_robot, load_robot
    from flashrt_ros.runtime import bench

    def progress(text: str) -> None:
        print(text, file=sys.stderr)

    if given.pairs < 1:
        raise ValueError(f"--pairs: expected at least 1, found {given.pairs}")
    if given.json and not given.select:
        raise ValueError("--json: holds verdicts, which only --select makes")
    settings = PolicySettings(
        checkpoint=str(given.path),
        device=given.device,
        precision=given.precision,
        steps=given.steps,
        tokenizer=given.tokenizer,
        runtime=given.runtime,
        selection="off" if given.select else "verdicts",
    )
    policy = CheckpointPolicy(settings, load_robot(find_robot(given.robot)), progress)
    if given.select:
        print(bench.select_and_keep(policy.engine, given.pairs, given.json, progress))
    else:
        print(bench.time_calls(policy.engine, given.pairs))
    return 0
