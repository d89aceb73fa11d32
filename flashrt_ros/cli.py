"""The `flashrt` command."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashrt_ros import checkpoint_commands


def build_parser() -> argparse.ArgumentParser:
    """All subcommands; docs/cli.md is made from it."""
    parser = argparse.ArgumentParser(prog="flashrt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_record(commands)
    _add_play(commands)
    _add_replay(commands)
    _add_calibrate(commands)
    _add_report(commands)
    _add_rollout(commands)
    checkpoint_commands.add_inspect(commands)
    checkpoint_commands.add_convert(commands)
    checkpoint_commands.add_bench(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Returns:
        Exit code: 0, 1 after an error that is told in one line, 2 for a wrong usage.
    """
    given = build_parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        print(f"flashrt {given.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo", help="run the pipeline on the simulated robot and report the ages"
    )
    _add_demo_arguments(demo)
    demo.set_defaults(run=_demo, bag=None, storage="mcap")


def _add_record(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    record = commands.add_parser("record", help="run the demo and record all of its topics")
    record.add_argument(
        "bag", type=Path, metavar="BAG", help="folder of the recording; must not exist"
    )
    record.add_argument(
        "--storage",
        choices=("mcap", "sqlite3"),
        default="mcap",
        help="format; of an mcap that is cut off the whole part can be read",
    )
    _add_demo_arguments(record)
    record.set_defaults(run=_demo)


def _add_demo_arguments(demo: argparse.ArgumentParser) -> None:
    demo.add_argument(
        "--duration", type=float, default=20.0, metavar="S", help="seconds of running"
    )
    demo.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="summary; report.html, ages.csv and logs go beside it",
    )
    demo.add_argument("--instruction", default="touch the red block", metavar="TEXT")
    demo.add_argument(
        "--checkpoint",
        default="pi05_belt",
        metavar="PATH",
        help="folder; default: the small π0.5 that comes along; `expert`: the scripted expert",
    )
    demo.add_argument("--seed", type=int, default=0, help="of the world")
    demo.add_argument(
        "--belt-speed", type=float, default=0.04, metavar="M_S", help="belt speed [m/s]"
    )
    demo.add_argument(
        "--camera-delay-ms", type=float, default=0.0, metavar="MS", help="added to every picture"
    )
    demo.add_argument(
        "--follow",
        choices=("player", "trajectory"),
        default="player",
        help="what moves the arm: action_player, or the policy's joint trajectories",
    )


def _demo(given: argparse.Namespace) -> int:
    from flashrt_ros.demo import DemoSettings, run_demo

    if given.duration <= 0:
        raise ValueError(f"--duration: expected seconds above 0, found {given.duration:g}")
    if given.bag is not None and given.bag.exists():
        raise ValueError(f"{given.bag} exists already: nothing is overwritten")
    folder = given.json.parent if given.json else Path("runs") / time.strftime("%Y%m%d_%H%M%S")
    summary = run_demo(
        DemoSettings(
            duration_s=given.duration,
            folder=folder.absolute(),
            instruction=given.instruction,
            checkpoint=given.checkpoint,
            seed=given.seed,
            belt_speed_m_s=given.belt_speed,
            camera_delay_ms=given.camera_delay_ms,
            bag=given.bag and given.bag.absolute(),
            storage=given.storage,
            follow=given.follow,
        ),
        summary_name=given.json.name if given.json else "summary.json",
    )
    if given.bag is not None:
        print(f"recorded: {given.bag}")
    return 0 if summary["actions"] else 1


def _add_play(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    play = commands.add_parser("play", help="play a recording into live nodes, with /clock")
    play.add_argument("bag", type=Path, metavar="BAG")
    play.add_argument("--robot", default="so101", metavar="ROBOT", help="contract: name or file")
    play.add_argument("--rate", type=float, default=1.0, help="how fast time passes")
    play.add_argument(
        "--topics", nargs="+", default=[], metavar="TOPIC", help="default: the robot's inputs"
    )
    play.add_argument("--namespace", default="", metavar="NS", help="of the robot in the bag")
    play.add_argument(
        "--wait", type=float, default=60.0, metavar="S", help="longest wait for subscribers"
    )
    play.set_defaults(run=_play)


def _play(given: argparse.Namespace) -> int:
    from flashrt_ros.demo import profile_variable
    from flashrt_ros.paths import config_path, executable_path

    values = {
        "bag": str(given.bag),
        "robot": given.robot,
        "rate": given.rate,
        "topics": given.topics,
        "robot_namespace": given.namespace,
        "wait_s": given.wait,
    }
    command = [sys.executable, str(executable_path("bag_player")), "--ros-args"]
    for name, value in values.items():
        if value not in ("", []):
            command += ["-p", f"{name}:={json.dumps(value)}"]
    os.environ.setdefault(profile_variable(), str(config_path("fastdds.xml")))
    # The node takes this process's place: signals and exit code are its own.
    os.execv(command[0], command)


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay", help="what a policy would have done with recordings, and how old its observations"
    )
    replay.add_argument("bags", type=Path, nargs="+", metavar="BAG")
    replay.add_argument(
        "--out", type=Path, metavar="DIR", help="results; default: runs/replay_<bag>"
    )
    _add_policy_arguments(replay)
    replay.add_argument(
        "--latency",
        default="real",
        metavar="L",
        help="of inference: `real` (as this machine measures it), milliseconds, or a run's ages.jsonl to draw from",
    )
    replay.add_argument("--namespace", metavar="NS", help="of the robot in the bag")
    replay.add_argument(
        "--actions", default="", metavar="TOPIC", help="recorded actions; default: applied actions"
    )
    replay.add_argument("--workers", type=int, default=1, metavar="N", help="bags at a time")
    replay.add_argument(
        "--cluster", metavar="ADDRESS", help="spread the bags over a Ray cluster (`auto`, `local`)"
    )
    replay.set_defaults(run=_replay)


def _add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="PATH",
        help="folder, or `expert`, the scripted expert; default: the small π0.5 that comes along",
    )
    parser.add_argument("--robot", metavar="ROBOT", help="contract: name or file; default: so101")
    parser.add_argument("--instruction", metavar="TEXT", help="default: as the bag has it")
    parser.add_argument(
        "--params-file", type=Path, metavar="FILE", help="parameters of the policy node, as for ROS"
    )
    parser.add_argument(
        "-p",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME:=VALUE",
        help="any other parameter of the policy node (docs/parameters.md)",
    )


def _policy_parameters(given: argparse.Namespace) -> dict[str, Any]:
    """Parameters of the policy node: the file's, then those of -p, then those with an option of their own."""
    import yaml

    from flashrt_ros.control.parameter_values import ParameterValues, read_parameter_file

    values = read_parameter_file(given.params_file, "policy") if given.params_file else {}
    for text in given.parameters:
        name, separator, value = text.partition(":=")
        if not separator:
            raise ValueError(f"-p: expected NAME:=VALUE, found {text!r}")
        values[name] = yaml.safe_load(value)
    for name in ("checkpoint", "robot", "instruction"):
        if getattr(given, name) is not None:
            values[name] = getattr(given, name)
    ParameterValues("policy", values)
    return values


def _replay(given: argparse.Namespace) -> int:
    from flashrt_ros.offline.replay_many import replay_bags

    # Threads of a small network on a busy machine wait for each other: a large one on a CPU sets what it needs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return replay_bags(
        given.bags,
        given.out,
        parameters=_policy_parameters(given),
        latency=given.latency,
        namespace=given.namespace,
        actions=given.actions,
        workers=given.workers,
        cluster=given.cluster,
    )


def _add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    calibrate = commands.add_parser(
        "calibrate", help="representative observations of recordings, and a checkpoint's ranges"
    )
    calibrate.add_argument("bags", type=Path, nargs="+", metavar="BAG")
    calibrate.add_argument("--out", type=Path, required=True, metavar="DIR")
    calibrate.add_argument(
        "--observations", type=int, default=64, metavar="N", help="over time and instructions"
    )
    _add_policy_arguments(calibrate)
    calibrate.add_argument("--namespace", metavar="NS", help="of the robot in the bags")
    calibrate.set_defaults(run=_calibrate)


def _calibrate(given: argparse.Namespace) -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from flashrt_ros.offline.calibrate import calibrate
    from flashrt_ros.offline.replay_many import share_bar

    with share_bar("calibrating") as progress:
        result = calibrate(
            given.bags,
            given.out,
            _policy_parameters(given),
            given.observations,
            namespace=given.namespace,
            progress=progress,
        )
    print(f"{result['observations']} observations of {result['candidates']}:")
    for instruction, count in result["by_instruction"].items():
        print(f"{count:>6} × {instruction!r}")
    largest, name = result["largest"]
    print(f"{result['products']} products; the largest input, {largest:.4g}, is that of {name}")
    print(f"written: {given.out}")
    return 0


def _add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = commands.add_parser(
        "report", help="report the ages of one or more runs, even of one that was killed"
    )
    report.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a log, or the folder of one; later ones are compared with the first",
    )
    report.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where report.html, report.json and PNGs go; default: beside the log of one run, "
        "comparison/ for several",
    )
    report.add_argument("--csv", action="store_true", help="also write every action as CSV")
    report.add_argument("--table", action="store_true", help="print the table only, write nothing")
    report.set_defaults(run=_report)


def _report(given: argparse.Namespace) -> int:
    from flashrt_ros.offline.report import PAGE_NAME, default_folder, read_report, write_report

    def progress(step: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{step[:79]}", end="", file=sys.stderr, flush=True)

    if given.table:
        report = read_report(given.runs, progress)
        progress("")
        print(report.table())
        return 0
    out = given.out or default_folder(given.runs)
    report = write_report(given.runs, out, with_csv=given.csv, progress=progress)
    progress("")
    print(report.table())
    print(f"\n{PAGE_NAME} and pictures: {out}")
    return 0


def _add_rollout(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "rollout", help="count how often a policy succeeds at a task of the simulated belt"
    )
    add = parser.add_argument
    add(
        "--task",
        choices=("reach", "intercept", "switch", "nudge", "flash"),
        default="reach",
        help="see docs/policy.md",
    )
    add("--episodes", type=int, default=100, metavar="N")
    add("--first-seed", type=int, default=0, metavar="N", help="of the episodes, counted up")
    add(
        "--checkpoint",
        default="pi05_belt",
        metavar="PATH",
        help="folder; default: the small π0.5 that comes along; `expert`: the scripted expert",
    )
    add("--device", default="cpu", help="cpu, cuda, cuda:1, auto")
    add("--steps", type=int, default=10, metavar="N", help="denoising steps")
    add("--seed", type=int, default=0, help="of the noise that actions are drawn from")
    add(
        "--latency",
        default="0",
        metavar="TIME",
        help="of an inference in simulated time: 40ms; `real`: as here; a JSON list of milliseconds",
    )
    add("--replan", type=int, default=4, metavar="N", help="actions between two inferences")
    add("--seam", choices=("replace", "blend", "ensemble", "rtc"), default="replace")
    add("--warm-start", type=int, default=0, metavar="N", help="steps of warm inferences; 0: none")
    add("--belt-speed", type=float, default=0.08, metavar="M_S", help="`intercept`: mean [m/s]")
    add("--image-size", type=int, default=96, metavar="PIXELS", help="of the cameras")
    add("--blind", action="store_true", help="black pictures: how much is luck")
    add("--wrong-instruction", action="store_true", help="another block is named")
    add("--workers", type=int, default=0, metavar="N", help="processes; 0: one for each core")
    add("--json", type=Path, metavar="FILE", help="all figures, and each episode")
    add("--video", type=Path, metavar="FILE", help="the first 12 episodes, .gif or .mp4")
    add("--sheet", type=Path, metavar="FILE", help="pictures of the first 12 episodes, .png")
    parser.set_defaults(run=_rollout)


def _rollout(given: argparse.Namespace) -> int:
    from flashrt_ros.sim.rollout_command import run_rollout

    return run_rollout(given)


if __name__ == "__main__":
    sys.exit(main())
