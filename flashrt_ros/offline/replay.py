"""What a policy would have done with a recording: the live pipeline in virtual time, evaluated.

The bag's messages come in at their record times through the same observer, session and player as live. Written are a
run's log (ages.jsonl, as the age logger's), ages and actions as CSV and Parquet, and replay.json with every figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.chunk import Chunk
from flashrt_ros.control.parameter_values import ParameterValues
from flashrt_ros.control.parameters import ACTION_PLAYER
from flashrt_ros.control.policies import PolicySettings, build_policy, policy_settings
from flashrt_ros.control.policy import Policy
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.observation.age_log import AgeLogWriter
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.offline.bag import Bag, BagError
from flashrt_ros.offline.bag_topics import BagTopics, find_topics
from flashrt_ros.offline.evaluation import (
    ActionTable,
    action_error,
    action_table,
    consistency,
    write_actions_csv,
    write_actions_parquet,
    write_parquet,
)
from flashrt_ros.offline.latency import REAL, make_latency
from flashrt_ros.offline.recorded_actions import RecordedActions
from flashrt_ros.offline.run_log import AGE_COLUMNS, Run, read_run
from flashrt_ros.offline.summary import summarize, write_csv
from flashrt_ros.offline.virtual_robot import ObservationKey, VirtualRobot, observation_key

LOG_NAME, RESULT_NAME = "ages.jsonl", "replay.json"
_MAX_GAP_PERIODS = 4
_PLAYER = {parameter.name: parameter for parameter in ACTION_PLAYER}


class ReplayError(ValueError):
    """A bag that could be read but not replayed. One line that says why and what was usable."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay and how. Plain values: they travel to worker processes."""

    bag: Path
    folder: Path
    """Results; must not hold any yet."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the policy node; those not named have their defaults."""
    latency: str = REAL
    """See `make_latency`."""
    namespace: str | None = None
    """Of the robot in the bag; None finds it."""
    actions: str = ""
    """Topic of the recorded actions; empty finds it."""


@dataclass(slots=True)
class _Recorded:
    """What a bag says of the run that was recorded."""

    actions: RecordedActions
    chunks: dict[ObservationKey, np.ndarray] = field(default_factory=dict)
    """Actions float32 [horizon, joints] of the chunks that were published, by what they had seen."""
    names: list[str] = field(default_factory=list)


def replay(
    settings: ReplaySettings, progress: Callable[[float], None] = lambda share: None
) -> dict[str, Any]:
    """Replay one bag and write its results.

    Args:
        settings: what and how.
        progress: told of the share done, 0 to 1.

    Returns:
        The content of replay.json.

    Raises:
        BagError: the bag, or what a contract needs of it, cannot be read.
        ReplayError: nothing could be inferred.
        ValueError: settings that do not fit.
    """
    values = ParameterValues("policy", settings.parameters)
    log_path = settings.folder / LOG_NAME
    if log_path.exists():
        raise ReplayError(f"{log_path} exists already: choose another folder with --out")
    robot = load_robot(find_robot(values["robot"]))
    latency = make_latency(settings.latency, values["seed"])
    with Bag(settings.bag) as bag:
        topics = find_topics(bag, robot, settings.namespace, settings.actions)
        begin_s = time.monotonic()
        policy = _policy(policy_settings(values), values["robot"])
        loaded_s = time.monotonic()
        recorded = _Recorded(RecordedActions(robot.joint_names, _MAX_GAP_PERIODS * robot.period_ns))
        note = {"time": "virtual", "bag": str(settings.bag), "latency": settings.latency}
        with AgeLogWriter(
            log_path, "replay", note | {"parameters": dict(settings.parameters)}
        ) as log:
            machine = VirtualRobot(
                policy,
                robot,
                values,
                latency,
                log,
                bag.start_ns,
                player_rate_hz=_PLAYER["rate"].default,
                max_age_ms=values["max_age_ms"],
            )
            _feed(bag, topics, machine, values, recorded, progress)
            machine.finish()
        table = action_table(machine.chunks, robot, recorded.actions)
        result = _result(settings, bag, topics, machine, recorded, table)
    run = read_run(log_path)
    result["summary"] = summarize(run)
    result["load_s"] = loaded_s - begin_s
    result["replay_s"] = time.monotonic() - loaded_s
    result["times_real_time"] = result["bag"]["duration_s"] / result["replay_s"]
    _write(settings.folder, run, table, result)
    if not machine.chunks:
        raise ReplayError(_why_nothing(settings, machine, values, result["bag"]["notes"]))
    return result


@lru_cache(maxsize=1)
def _policy(settings: PolicySettings, robot: str) -> Policy:
    """The policy of the last replay in this process serves the next: the session resets it."""
    return build_policy(settings, load_robot(find_robot(robot)))


def _feed(
    bag: Bag,
    topics: BagTopics,
    machine: VirtualRobot,
    values: ParameterValues,
    recorded: _Recorded,
    progress: Callable[[float], None],
) -> None:
    """Give each message to whoever takes it."""
    camera_of = {topic: camera for camera, topic in topics.cameras.items()}
    follows = not values["instruction"]
    action_type = bag.type_of(topics.actions)
    wanted = {*camera_of, topics.joint_states, topics.actions, topics.instruction, topics.chunks}
    start_ns, span_ns = bag.start_ns, max(1, bag.end_ns - bag.start_ns)
    for topic, record_ns, message in bag.messages(wanted - {""}):
        if topic in camera_of:
            machine.add_image(camera_of[topic], message, record_ns)
        elif topic == topics.joint_states:
            machine.add_joint_state(message, record_ns)
        if topic == topics.actions:
            recorded.actions.add(action_type, message, record_ns)
        elif topic == topics.instruction and follows:
            values.set("instruction", message.data)
        elif topic == topics.chunks:
            _note_chunk(recorded, message)
            if follows:
                values.set("instruction", message.instruction)
        progress((record_ns - start_ns) / span_ns)


def _note_chunk(recorded: _Recorded, message: Any) -> None:
    captures = {c.camera: to_ns(c.capture) for c in message.cameras if c.status != _ABSENT}
    key = observation_key(captures, to_ns(message.state_capture))
    actions = np.asarray(message.actions, dtype=np.float32)
    recorded.names = list(message.joint_names)
    recorded.chunks[key] = actions.reshape(message.horizon, -1)


_ABSENT = 2
"""CameraStamp.ABSENT, which without ROS is not to be had as a constant."""


def _result(
    settings: ReplaySettings,
    bag: Bag,
    topics: BagTopics,
    machine: VirtualRobot,
    recorded: _Recorded,
    table: ActionTable,
) -> dict[str, Any]:
    notes = list(bag.notes)
    if recorded.actions.refused:
        notes.append(
            f"{topics.actions}: {recorded.actions.refused} messages lack a position for one of the joints"
        )
    return {
        "bag": {
            "path": str(settings.bag),
            "duration_s": (bag.end_ns - bag.start_ns) / 1e9,
            "messages": bag.message_count,
            "topics": asdict(topics),
            "undecodable": dict(bag.skipped),
            "notes": notes,
        },
        "latency": settings.latency,
        "parameters": dict(settings.parameters),
        "actions_compared_with": f"{topics.actions} [{bag.type_of(topics.actions)}]",
        "action_error": action_error(table),
        "chunk_consistency": consistency(table),
        "recorded_chunks": _same_chunks(machine.chunks, machine.seen, recorded),
        "complaints": dict(machine.complaints),
    }


def _same_chunks(
    chunks: list[Chunk], seen: list[ObservationKey], recorded: _Recorded
) -> dict[str, Any]:
    """The replayed chunks against those of the recorded run that had seen the same pictures and joint state."""
    differences = [
        float(np.abs(chunk.actions - recorded.chunks[key]).max())
        for chunk, key in zip(chunks, seen, strict=True)
        if key in recorded.chunks and recorded.chunks[key].shape == chunk.actions.shape
    ]
    return {
        "recorded": len(recorded.chunks),
        "same_observation": len(differences),
        "identical": sum(difference == 0.0 for difference in differences),
        "largest_difference": max(differences, default=None),
    }


def _write(folder: Path, run: Run, table: ActionTable, result: dict[str, Any]) -> None:
    write_csv(run, folder / "ages.csv")
    write_actions_csv(table, folder / "actions.csv")
    try:
        write_actions_parquet(table, folder / "actions.parquet")
        ages = {name: run.ages[name] for name in AGE_COLUMNS} | {"age_ns": run.age_ns}
        write_parquet(ages, folder / "ages.parquet")
    except ImportError:
        result["bag"]["notes"].append(
            "no Parquet files: pip install pyarrow; the CSV files hold the same"
        )
    (folder / RESULT_NAME).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _why_nothing(
    settings: ReplaySettings, machine: VirtualRobot, values: ParameterValues, notes: list[str]
) -> str:
    counts = machine.observer.counts()
    frames = {name: camera["received"] for name, camera in counts["cameras"].items()}
    reasons = dict(counts["sets"]["rejected"]) | dict(machine.complaints)
    advice = ""
    if not values["instruction"]:
        advice = ": give an instruction with --instruction"
    elif "stale" in reasons:
        advice = (
            ": the pictures' stamps are far from the record times; recorded under simulated time?"
        )
    return (
        f"{settings.bag}: no chunk came of it{advice}; frames: {frames}, complete sets: "
        f"{counts['sets']['received']}, not inferred: {reasons or 'none'}"
        + "".join(f"; {note}" for note in notes)
    )


__all__ = ["BagError", "ReplayError", "ReplaySettings", "replay"]
