"""Messages in, observations out: synchronisation, joint states, silence, and what became of all of it.

One door: the policy node feeds it from topics, a replay from a bag. It knows messages by their fields alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from flashrt_ros.control.robot import Robot
from flashrt_ros.control.watchdog import Watchdog
from flashrt_ros.observation.frame import FrameSet, Observation, Role
from flashrt_ros.observation.gaps import GapCounter
from flashrt_ros.observation.images import decode
from flashrt_ros.observation.intake import FrameIntake
from flashrt_ros.observation.joint_state import JointStateBuffer, JointStateError
from flashrt_ros.observation.mailbox import Mailbox
from flashrt_ros.observation.pixels import ImageError
from flashrt_ros.observation.synchronizer import REJECT_CLOCK_JUMP, Synchronizer
from flashrt_ros.observation.timeline import to_ns

JOINT_STATES = "joint_states"
"""Name of the joint state input beside the cameras' names."""


Made = TypeVar("Made")


class Settings(Protocol):
    """Parameters of the policy node, whoever holds them."""

    def __getitem__(self, name: str) -> Any:
        """The checked value of a parameter."""
        ...

    def ns(self, name: str) -> int:
        """A duration in nanoseconds."""
        ...

    def made(self, make: Callable[[Settings], Made]) -> Made:
        """What `make` makes of the parameters as they are now; it may be what it made before, where none changed."""
        ...


class ObservationError(ValueError):
    """A set that cannot become an observation. `reason` is a short name to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Observer:
    """Everything between the messages and the worker that infers; the methods may be called from any thread.

    A set of frames goes the way of its caller: `frames.add` returns it, `mailbox.put` leaves it for the worker.

    Args:
        robot: names cameras and joints.
        settings: of the policy node.
        now_ns: ROS time at which the inputs open; silence counts from here.
    """

    def __init__(self, robot: Robot, settings: Settings, now_ns: int) -> None:
        self.robot = robot
        self.rejected_sets: Counter[str] = Counter()
        """Sets that did not become an observation, by reason."""
        self.rejected_states: Counter[str] = Counter()
        self.frames = FrameIntake(
            _make_synchronizer(robot, settings),
            {
                camera.name: GapCounter(round(1e9 / camera.rate_hz) if camera.rate_hz else None)
                for camera in robot.cameras
            },
        )
        fifo = settings["sync_policy"] == "fifo"
        self.mailbox = Mailbox(settings["fifo_depth"] if fifo else 1)
        self.joint_states = JointStateBuffer(robot.joint_names, settings.ns("max_state_age_ms"))
        self.needed = [c.name for c in robot.cameras if c.role is not Role.OPTIONAL]
        """Cameras that the policy cannot do without."""
        self.watchdog = Watchdog([*self.needed, JOINT_STATES], settings.ns("max_age_ms"))
        self.watchdog.start(now_ns)

    def add_joint_state(self, message: Any, receive_ns: int) -> str:
        """Take one sensor_msgs/JointState; returns why it was refused, for the log, empty if it was not."""
        self.watchdog.hear(JOINT_STATES, receive_ns)
        try:
            self.joint_states.add(
                message.name, message.position, to_ns(message.header.stamp), receive_ns
            )
        except JointStateError as error:
            self.rejected_states["refused"] += 1
            return str(error)
        return ""

    def observe(self, frame_set: FrameSet) -> Observation:
        """Decode a set's images and find the joint state that goes with them.

        Raises:
            ObservationError: an image is corrupt, or no joint state fits; counted.
        """
        try:
            sample = self.joint_states.nearest(frame_set.stamp_ns)
        except JointStateError as error:
            self.reject(JOINT_STATES)
            raise ObservationError(JOINT_STATES, str(error)) from error
        images = {}
        for camera, frame in frame_set.frames.items():
            try:
                images[camera] = decode(frame.payload)
            except ImageError as error:
                self.reject(error.reason)
                raise ObservationError(error.reason, f"camera {camera}: {error}") from error
        return Observation(
            frame_set=frame_set,
            images=images,
            joint_positions=sample.positions,
            state_capture_ns=sample.capture_ns,
            state_receive_ns=sample.receive_ns,
        )

    def reject(self, reason: str) -> None:
        """Count a set that was taken and not inferred."""
        self.rejected_sets[reason] += 1

    def clock_jumped(self, now_ns: int) -> None:
        """Forget what was received before the clock went back to `now_ns`."""
        self.frames.reset(REJECT_CLOCK_JUMP)
        self.mailbox.clear()
        self.joint_states.clear()
        self.watchdog.start(now_ns)

    def counts(self) -> dict[str, Any]:
        """What became of everything received, as plain values."""
        cameras = {}
        lost = self.frames.lost()
        for name, fates in self.frames.fates().items():
            cameras[name] = {
                "received": fates.received,
                "used": fates.used,
                "superseded": fates.superseded,
                "late": fates.late,
                "rejected": dict(fates.rejected),
                "pending": fates.pending,
                "unexplained": fates.unexplained,
                "lost_before": lost[name],
            }
        sets = self.mailbox.fates()
        return {
            "cameras": cameras,
            "sets": {
                "received": sets.received,
                "taken": sets.taken,
                "superseded": sets.superseded,
                "waiting": sets.waiting,
                "rejected": dict(self.rejected_sets),
            },
            "joint_states_rejected": dict(self.rejected_states),
        }


def _make_synchronizer(robot: Robot, settings: Settings) -> Synchronizer:
    slop_ns = 0 if settings["sync_policy"] == "exact" else settings.ns("slop_ms")
    return Synchronizer(
        [camera.rule for camera in robot.cameras],
        slop_ns=slop_ns,
        depth=settings["queue_depth"],
        max_future_ns=settings.ns("max_future_ms"),
        jump_back_ns=settings.ns("jump_back_ms"),
        absent_after_ns=max(slop_ns, settings.ns("absent_after_ms")),
    )
