"""The package's own messages, made and read. Array fields are set whole, never element by element."""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from flashrt_ros.control.chunk import Chunk, trajectory_points
from flashrt_ros.control.player import PlayableChunk
from flashrt_ros.control.robot import Robot
from flashrt_ros.msg import ActionAge as ActionAgeMessage
from flashrt_ros.msg import ActionApplied, ActionChunk, CameraStamp
from flashrt_ros.nodes.base import to_duration, to_time
from flashrt_ros.observation.ages import ActionAge, ChunkRecord
from flashrt_ros.observation.frame import Observation
from flashrt_ros.observation.timeline import Timeline, to_ns


def chunk_message(chunk: Chunk, observation: Observation, robot: Robot) -> ActionChunk:
    """ActionChunk of a chunk and the observation behind it."""
    timeline, inference = chunk.timeline, chunk.inference
    message = ActionChunk()
    message.header.stamp = to_time(timeline.capture_ns)
    message.chunk_id = chunk.chunk_id
    message.cameras = [_camera_stamp(camera.name, observation) for camera in robot.cameras]
    message.state_capture = to_time(observation.state_capture_ns)
    message.state_receive = to_time(observation.state_receive_ns)
    message.receive = to_time(timeline.receive_ns)
    message.sync = to_time(timeline.sync_ns)
    message.infer_start = to_time(timeline.infer_start_ns)
    message.infer_end = to_time(timeline.infer_end_ns)
    message.publish = to_time(timeline.publish_ns)
    message.infer_steady_ns = inference.infer_steady_ns
    message.planned_start = to_time(chunk.planned_start_ns)
    message.period = to_duration(inference.period_ns)
    message.joint_names = robot.joint_names
    message.horizon = chunk.horizon
    message.actions = array.array("f", chunk.actions.tobytes())
    message.first_valid_index = chunk.first_valid_index
    message.end_index = chunk.end_index
    message.instruction = inference.instruction
    message.steps = inference.steps
    message.warm_start = inference.warm_start
    message.divergence = inference.divergence
    message.reset_reason = inference.reset_reason
    message.recovery_ns = chunk.recovery_ns
    message.deadline_missed = chunk.deadline_missed
    message.seam = chunk.seam
    message.executed = inference.executed
    message.frozen = inference.frozen
    message.foreseen_delay = to_duration(inference.foreseen_delay_ns)
    message.clipped = chunk.clipped
    message.plan_id = inference.plan_id
    return message


def _camera_stamp(name: str, observation: Observation) -> CameraStamp:
    stamp = CameraStamp(camera=name)
    frame = observation.frame_set.frames.get(name)
    if frame is None:
        stamp.status = CameraStamp.ABSENT
        return stamp
    held = name in observation.frame_set.held
    stamp.status = CameraStamp.HELD if held else CameraStamp.SYNCHRONIZED
    stamp.capture = to_time(frame.capture_ns)
    stamp.receive = to_time(frame.receive_ns)
    return stamp


def chunk_record(message: ActionChunk) -> ChunkRecord:
    """What the ages need to know of an ActionChunk."""
    return ChunkRecord(
        chunk_id=message.chunk_id,
        timeline=Timeline(
            capture_ns=to_ns(message.header.stamp),
            receive_ns=to_ns(message.receive),
            sync_ns=to_ns(message.sync),
            infer_start_ns=to_ns(message.infer_start),
            infer_end_ns=to_ns(message.infer_end),
            publish_ns=to_ns(message.publish),
        ),
        planned_start_ns=to_ns(message.planned_start),
        period_ns=to_ns(message.period),
        horizon=message.horizon,
        first_valid_index=message.first_valid_index,
        end_index=message.end_index,
    )


def playable_chunk(message: ActionChunk) -> PlayableChunk:
    """What a player needs of an ActionChunk.

    Raises:
        ValueError: actions do not fill [horizon, joints], or the period is not positive.
    """
    joints = len(message.joint_names)
    if len(message.actions) != message.horizon * joints or to_ns(message.period) <= 0:
        raise ValueError(
            f"chunk {message.chunk_id}: {len(message.actions)} numbers with a period of "
            f"{to_ns(message.period)} ns, expected {message.horizon} actions × {joints} joints and a period above 0"
        )
    return PlayableChunk(
        chunk_id=message.chunk_id,
        capture_ns=to_ns(message.header.stamp),
        planned_start_ns=to_ns(message.planned_start),
        period_ns=to_ns(message.period),
        first_valid_index=message.first_valid_index,
        joint_names=message.joint_names,
        actions=np.frombuffer(message.actions, dtype=np.float32).reshape(-1, joints),
        end_index=message.end_index,
    )


def trajectory_message(
    chunk: Chunk, robot: Robot, now_ns: int, stop_ns: int
) -> JointTrajectory | None:
    """The part of a chunk ahead of `now_ns` for a joint_trajectory_controller; None when all of it is past.

    After the last action the motion comes to rest within `stop_ns`, inside the robot's position limits.
    """
    positions, velocities, times_ns = trajectory_points(chunk, now_ns, stop_ns)
    positions = np.clip(positions, *robot.limits())
    if not times_ns:
        return None
    message = JointTrajectory(joint_names=robot.joint_names)
    message.header.stamp = to_time(now_ns)
    message.points = [
        JointTrajectoryPoint(
            positions=array.array("d", position.tobytes()),
            velocities=array.array("d", velocity.tobytes()),
            time_from_start=to_duration(time_ns),
        )
        for position, velocity, time_ns in zip(positions, velocities, times_ns, strict=True)
    ]
    return message


def hold_message(positions: np.ndarray, robot: Robot, now_ns: int) -> JointTrajectory:
    """A trajectory that stays where the robot is: one point, one period ahead."""
    message = JointTrajectory(joint_names=robot.joint_names)
    message.header.stamp = to_time(now_ns)
    message.points = [
        JointTrajectoryPoint(
            positions=array.array("d", np.asarray(positions, dtype=np.float64).tobytes()),
            velocities=array.array("d", bytes(8 * len(robot.joints))),
            time_from_start=to_duration(robot.period_ns),
        )
    ]
    return message


def applied_message(
    chunk_id: int,
    action_index: int,
    planned_ns: int,
    apply_ns: int,
    names: list[str],
    positions: Any,
) -> ActionApplied:
    """ActionApplied of one action, float32 [joints]."""
    return ActionApplied(
        header=_header(apply_ns),
        chunk_id=chunk_id,
        action_index=action_index,
        planned=to_time(planned_ns),
        joint_names=names,
        positions=array.array("f", np.asarray(positions, dtype=np.float32).tobytes()),
    )


def command_message(interface: str, names: list[str], positions: Any, stamp: Time) -> Any:
    """Position command: JointState by name (`joint_state`), or Float64MultiArray (`multi_array`)."""
    values = array.array("d", np.asarray(positions, dtype=np.float64).tobytes())
    if interface == "multi_array":
        return Float64MultiArray(data=values)
    message = JointState(name=names, position=values)
    message.header.stamp = stamp
    return message


def age_message(age: ActionAge) -> ActionAgeMessage:
    """ActionAge of one applied action."""
    terms = age.terms
    return ActionAgeMessage(
        header=_header(age.apply_ns),
        chunk_id=age.chunk_id,
        action_index=age.action_index,
        capture=to_time(age.capture_ns),
        input_ns=terms.input_ns,
        queue_ns=terms.queue_ns,
        infer_ns=terms.infer_ns,
        output_ns=terms.output_ns,
        wait_ns=terms.wait_ns,
        age_ns=age.apply_ns - age.capture_ns,
        apply_source=ActionAgeMessage.MEASURED if age.measured else ActionAgeMessage.PLANNED,
    )


def diagnostic_status(
    level: Any, name: str, text: str, values: Mapping[str, Any]
) -> DiagnosticStatus:
    """DiagnosticStatus with its values as text."""
    return DiagnosticStatus(
        level=level,
        name=name,
        message=text,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )


def _header(stamp_ns: int) -> Header:
    return Header(stamp=to_time(stamp_ns))
