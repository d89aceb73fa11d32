"""What the policy node says of itself on /diagnostics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus

from flashrt_ros.control.observer import JOINT_STATES
from flashrt_ros.control.session import PolicySession
from flashrt_ros.nodes.inputs import ObservationInputs
from flashrt_ros.nodes.messages import diagnostic_status

COUNTS_KEY = "counts"
"""Key whose value is a JSON object of all counts; the age logger keeps it."""


def policy_status(
    *,
    name: str,
    state: str,
    active: bool,
    progress: str,
    holding: str,
    session: PolicySession | None,
    inputs: ObservationInputs | None,
    counts: dict[str, Any],
    now_ns: int,
) -> list[DiagnosticStatus]:
    """One status for the node and, while it is active, one for each input.

    Args:
        name: of the node; statuses are `name` and `name: input`.
        state: lifecycle state.
        active: whether it infers.
        progress: what a transition is busy with.
        holding: why the robot is held; empty while it is not.
        session: once configured.
        inputs: while active.
        counts: of the node; those of session and inputs are added.
        now_ns: ROS time.
    """
    counts = dict(counts)
    values = {"state": state}
    if session is not None:
        values["plan"] = session.policy.spec.plan_id
        counts |= session.counts()
    inputs_status = []
    if inputs is not None:
        counts |= inputs.observer.counts()
        inputs_status = _input_statuses(name, inputs, counts, now_ns)
    values[COUNTS_KEY] = json.dumps(counts, separators=(",", ":"))
    level, text = DiagnosticStatus.OK, progress or state
    if holding:
        level, text = DiagnosticStatus.ERROR, f"holding the robot: {holding}"
    elif not active:
        level = DiagnosticStatus.WARN
    return [diagnostic_status(level, name, text, values), *inputs_status]


def _input_statuses(
    name: str, inputs: ObservationInputs, counts: Mapping[str, Any], now_ns: int
) -> list[DiagnosticStatus]:
    watchdog = inputs.observer.watchdog
    silent = watchdog.silent(now_ns)
    statuses = []
    for camera, fates in counts["cameras"].items():
        level, text = DiagnosticStatus.OK, "frames arrive"
        rejected = sum(fates["rejected"].values())
        if camera in inputs.incompatible:
            level, text = DiagnosticStatus.ERROR, inputs.incompatible[camera]
        elif camera in silent:
            silence_ms = (watchdog.silence_ns(camera, now_ns) or 0) / 1e6
            level, text = (
                DiagnosticStatus.ERROR,
                f"camera {camera} is silent for {silence_ms:.0f} ms",
            )
        elif fates["received"] and fates["lost_before"] > 0.02 * fates["received"]:
            level = DiagnosticStatus.WARN
            text = (
                f"{fates['lost_before']} frames of camera {camera} were lost before this node: check the "
                "transport (config/fastdds.xml) and the driver"
            )
        elif rejected:
            level, text = DiagnosticStatus.WARN, f"{rejected} frames rejected"
        statuses.append(diagnostic_status(level, f"{name}: camera {camera}", text, fates))
    level, text = DiagnosticStatus.OK, "joint states arrive"
    if JOINT_STATES in silent:
        level, text = DiagnosticStatus.ERROR, "joint states are silent"
    elif counts["sets"]["rejected"].get(JOINT_STATES):
        level, text = DiagnosticStatus.WARN, "pictures without a joint state that fits"
    rejected_states = counts["joint_states_rejected"]
    statuses.append(
        diagnostic_status(level, f"{name}: joint states", text, {"rejected": rejected_states})
    )
    return statuses
