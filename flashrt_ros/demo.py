"""Runs the whole pipeline on the simulated robot, each node in a process of its own, and reports the ages.

The same executables, parameter files and transport profile as `demo.launch.py`, for machines without launch_ros.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.control.policies import SMALL
from flashrt_ros.observation.age_log import read_records
from flashrt_ros.offline.report import PAGE_NAME, write_report
from flashrt_ros.offline.run_log import LOG_NAME, Run, read_run
from flashrt_ros.offline.summary import table
from flashrt_ros.paths import config_path, executable_path

_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 10.0
_LINES_SHOWN = 8
_STOP_ORDER = (
    ("action_player", "policy"),
    ("age_logger",),
    ("bag_recorder",),
    ("sim_camera", "sim_robot"),
)


class DemoError(RuntimeError):
    """The demo could not run; says which process failed and what it last said."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What `flashrt demo` was asked for."""

    duration_s: float
    folder: Path
    """Logs, summary.json, ages.csv and the report go here."""
    instruction: str = "touch the red block"
    checkpoint: str = SMALL
    seed: int = 0
    belt_speed_m_s: float = 0.04
    camera_delay_ms: float = 0.0
    bag: Path | None = None
    """Folder of a recording of all topics; None: none is made."""
    storage: str = "mcap"
    """Its format: `mcap` or `sqlite3`."""
    follow: str = "player"
    """`player`: the arm follows action_player; `trajectory`: the policy's joint trajectories."""


def profile_variable() -> str:
    """Variable that names Fast DDS's profiles: Fast DDS 3 renamed it, and warns at the old one."""
    fast_dds_2 = os.environ.get("ROS_DISTRO", "") in ("humble", "iron", "jazzy")
    return "FASTRTPS_DEFAULT_PROFILES_FILE" if fast_dds_2 else "FASTDDS_DEFAULT_PROFILES_FILE"


def node_environment() -> dict[str, str]:
    """Environment of the demo's processes: the transport profile, and a ROS domain of its own on this machine only.

    What the caller has set stays: ROS_DOMAIN_ID and Fast DDS profiles are respected.
    """
    environment = dict(os.environ)
    environment.setdefault(profile_variable(), str(config_path("fastdds.xml")))
    # A demo must not talk to a robot that happens to be on the network.
    environment.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    environment.setdefault("MUJOCO_GL", "egl")
    # Five processes share the machine: no thread pool wider than the work.
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


class Processes:
    """Node processes of one run, each with its output in a file.

    Args:
        folder: where the output goes.
        environment: of every process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, arguments: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one node of `flashrt_ros.nodes`."""
        command = [sys.executable, str(executable_path(node)), "--ros-args", *arguments]
        with self._output(node).open("wb") as output:
            self._running[node] = subprocess.Popen(
                command, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )
        return self._running[node]

    def check(self) -> None:
        """Raise DemoError when a process has ended."""
        for node, process in self._running.items():
            if process.poll() is not None:
                lines = self._output(node).read_text(errors="replace").splitlines()[-_LINES_SHOWN:]
                raise DemoError(
                    f"{node} ended with exit code {process.returncode}; its last words:\n  "
                    + "\n  ".join(lines)
                )

    def stop(self) -> None:
        """Interrupt policy and player together, then the logger that listens to them, then the robot."""
        for nodes in _STOP_ORDER:
            group = [self._running[node] for node in nodes if node in self._running]
            for process in group:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            for process in group:
                try:
                    process.wait(_STOP_LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._running.clear()

    def _output(self, node: str) -> Path:
        return self._folder / f"{node}.log"


def run_demo(settings: DemoSettings, summary_name: str = "summary.json") -> dict[str, Any]:
    """Run the demo and write its results.

    Returns:
        The summary, as in summary.json.

    Raises:
        DemoError: a process failed or no chunk ever came.
    """
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    age_log, task_log = folder / LOG_NAME, folder / "task.jsonl"
    for old in (age_log, task_log):
        old.unlink(missing_ok=True)
    processes = Processes(folder, node_environment())
    try:
        _start(processes, settings, age_log, task_log)
        _wait(processes, settings, age_log)
    finally:
        processes.stop()
    return _report(settings, age_log, task_log, summary_name)


def _start(processes: Processes, settings: DemoSettings, age_log: Path, task_log: Path) -> None:
    shared = ["--params-file", str(config_path("demo.yaml")), "--log-level", "warn"]
    world = ["-p", f"seed:={settings.seed}"]
    follow = (
        ["-r", "~/command:=action_player/command"]
        if settings.follow == "player"
        else ["-r", "~/joint_trajectory:=policy/joint_trajectory"]
    )
    # The logger first: it must have heard the first chunk.
    processes.start("age_logger", [*shared, "-p", f"log_file:={age_log}"])
    _wait_until(processes, settings, age_log.is_file)
    if settings.bag is not None:
        recording = ["-p", f"bag:={settings.bag}", "-p", f"storage:={settings.storage}"]
        processes.start("bag_recorder", [*shared, *recording])
        _wait_until(processes, settings, settings.bag.is_dir)
    if settings.follow == "player":
        processes.start("action_player", shared)
    processes.start("sim_camera", [*shared, *world, "-p", f"delay_ms:={settings.camera_delay_ms}"])
    processes.start(
        "sim_robot",
        [
            *shared,
            *world,
            *follow,
            "-p",
            f"belt_speed:={settings.belt_speed_m_s}",
            "-p",
            f"task_log:={task_log}",
        ],
    )
    processes.start(
        "policy",
        [
            *shared,
            "-p",
            f"instruction:={json.dumps(settings.instruction)}",
            "-p",
            f"checkpoint:={json.dumps(settings.checkpoint)}",
        ],
    )


def _wait_until(
    processes: Processes, settings: DemoSettings, condition: Callable[[], bool]
) -> None:
    begin_s = time.monotonic()
    while not condition():
        processes.check()
        waited_s = time.monotonic() - begin_s
        if waited_s > _START_LIMIT_S:
            raise DemoError(
                f"no chunk within {_START_LIMIT_S:.0f} s; see the logs in {settings.folder}"
            )
        _progress("starting the robot, its cameras and the policy", waited_s, None)
        time.sleep(0.1)


def _wait(processes: Processes, settings: DemoSettings, age_log: Path) -> None:
    """Wait for the first chunk, then for the duration, with progress."""
    _wait_until(processes, settings, lambda: _has_chunk(age_log))
    begin_s = time.monotonic()
    while (elapsed_s := time.monotonic() - begin_s) < settings.duration_s:
        processes.check()
        _progress(f"running: {settings.instruction!r}", elapsed_s, settings.duration_s)
        time.sleep(min(0.25, settings.duration_s - elapsed_s))
    _progress("stopping", settings.duration_s, settings.duration_s)
    print(file=sys.stderr)


def _has_chunk(age_log: Path) -> bool:
    """Whether the pipeline runs. Raises DemoError when the policy says that it never will."""
    if not age_log.is_file():
        return False
    for record in read_records(age_log):
        if record["type"] == "chunk":
            return True
        if record["type"] == "fates" and record["counts"].get("incidents", {}).get(
            "configure_failed"
        ):
            raise DemoError(
                f"the policy could not be configured; see {age_log.parent / 'policy.log'}"
            )
    return False


def _progress(what: str, elapsed_s: float, total_s: float | None) -> None:
    if sys.stderr.isatty():
        total = f" / {total_s:.0f}" if total_s is not None else ""
        print(f"\r\033[K{what}  {elapsed_s:.0f}{total} s", end="", file=sys.stderr, flush=True)


def _report(settings: DemoSettings, age_log: Path, task_log: Path, name: str) -> dict[str, Any]:
    folder = settings.folder
    summary = write_report([age_log], folder, with_csv=True).summaries[0]
    summary["task"] = _task_result(read_run(age_log), settings.instruction, task_log)
    (folder / name).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(table(summary))
    print(f"task     {_task_text(summary['task'])}")
    print(f"\n{PAGE_NAME} with pictures, {name}, ages.csv and logs: {folder}")
    return summary


def _task_result(run: Run, instruction: str, task_log: Path) -> dict[str, Any]:
    """Whether a block that the instruction names was reached, and when, since the first observation."""
    lines = task_log.read_text(encoding="utf-8").splitlines() if task_log.is_file() else []
    touches = [json.loads(line) for line in lines]
    first_ns = int(run.chunks["capture_ns"][0]) if len(run.chunks) else 0
    named = [touch for touch in touches if touch["block"] in instruction.lower().split()]
    return {
        "instruction": instruction,
        "reached": bool(named),
        "time_to_reach_s": (named[0]["stamp_ns"] - first_ns) / 1e9 if named else None,
        "touches": {
            b: sum(t["block"] == b for t in touches) for b in {t["block"] for t in touches}
        },
    }


def _task_text(task: Mapping[str, Any]) -> str:
    if task["reached"]:
        return f"{task['instruction']!r}: reached after {task['time_to_reach_s']:.1f} s"
    return f"{task['instruction']!r}: NOT reached"
