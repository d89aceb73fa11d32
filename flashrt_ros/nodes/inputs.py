"""The inputs of a policy: subscriptions, synchronisation, joint states, and what became of all of it.

They live on a hidden node of their own, spun by one thread. rclpy builds its wait set anew for every callback: beside
the services and timers of the policy node a picture would wait for all of them, and cost them all.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image, JointState

from flashrt_ros.control.robot import Robot
from flashrt_ros.control.watchdog import Watchdog
from flashrt_ros.nodes.base import Parameters, sensor_qos, to_ns
from flashrt_ros.nodes.filters import CameraSynchronizer, Subscriber
from flashrt_ros.nodes.images import decode
from flashrt_ros.observation.frame import FrameSet, Observation, Role
from flashrt_ros.observation.gaps import GapCounter
from flashrt_ros.observation.joint_state import JointStateBuffer, JointStateError
from flashrt_ros.observation.mailbox import Mailbox
from flashrt_ros.observation.pixels import ImageError
from flashrt_ros.observation.synchronizer import Synchronizer

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

JOINT_STATES = "joint_states"
"""Name of the joint state input beside the cameras' names."""

_CLOSE_PERIOD_S = 0.1


class ObservationError(ValueError):
    """A set that cannot become an observation. `reason` is a short name to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ObservationInputs:
    """Everything between the topics and the worker that infers.

    Created when the node is activated and destroyed when it is deactivated; callbacks store and wake, no more.

    Args:
        node: its name, namespace, clock and logger are used.
        robot: names cameras, topics and joints.
        parameters: of the policy node.
    """

    def __init__(self, node: Node, robot: Robot, parameters: Parameters) -> None:
        self._logger = node.get_logger()
        self._robot = robot
        self._clock = node.get_clock()
        name = f"_{node.get_name()}_inputs"
        self._input_node = rclpy.create_node(
            name,
            namespace=node.get_namespace(),
            context=node.context,
            # A remapping of the process's node name is meant for the policy.
            cli_args=["--ros-args", "-r", f"__node:={name}"],
            enable_rosout=False,
            start_parameter_services=False,
        )
        self.incompatible: dict[str, str] = {}
        """Inputs with a publisher whose QoS does not fit, by name, and what to do about it."""
        self.rejected_sets: Counter[str] = Counter()
        """Sets that did not become an observation, by reason."""
        self.rejected_states: Counter[str] = Counter()
        fifo = parameters["sync_policy"] == "fifo"
        self.mailbox = Mailbox(parameters["fifo_depth"] if fifo else 1)
        self.joint_states = JointStateBuffer(robot.joint_names, parameters.ns("max_state_age_ms"))
        needed = [c.name for c in robot.cameras if c.role is not Role.OPTIONAL]
        self.watchdog = Watchdog([*needed, JOINT_STATES], parameters.ns("max_age_ms"))
        self._subscribers = self._subscribe(parameters["reliability"] == "reliable")
        self.synchronizer = CameraSynchronizer(
            node,
            {camera: self._subscribers[camera] for camera in self._camera_names()},
            self._make_synchronizer(parameters),
            {
                camera.name: GapCounter(camera.rate_hz and round(1e9 / camera.rate_hz))
                for camera in robot.cameras
            },
        )
        self.synchronizer.registerCallback(self.mailbox.put)
        for name in needed:
            self._subscribers[name].registerCallback(self._heard, name)
        self._subscribers[JOINT_STATES].registerCallback(self._on_joint_state)
        self.watchdog.start(self._now_ns())
        self._closing = threading.Event()
        self._spinner = threading.Thread(target=self._spin, name="inputs", daemon=True)
        self._spinner.start()

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

    def clock_jumped(self) -> None:
        """Forget what was received before the clock went back."""
        self.synchronizer.reset("clock_jump")
        self.mailbox.clear()
        self.joint_states.clear()
        self.watchdog.start(self._now_ns())

    def destroy(self) -> None:
        """Close the mailbox and the subscriptions; no callback runs any more when it returns."""
        self._closing.set()
        self._spinner.join()
        self._input_node.destroy_node()
        self.mailbox.close()

    def _spin(self) -> None:
        executor = SingleThreadedExecutor(context=self._input_node.context)
        executor.add_node(self._input_node)
        while not self._closing.is_set():
            executor.spin_once(timeout_sec=_CLOSE_PERIOD_S)
        executor.shutdown()

    def counts(self) -> dict[str, Any]:
        """What became of everything received, as plain values."""
        cameras = {}
        lost = self.synchronizer.lost()
        for name, fates in self.synchronizer.fates().items():
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

    def _camera_names(self) -> list[str]:
        return [camera.name for camera in self._robot.cameras]

    def _make_synchronizer(self, parameters: Parameters) -> Synchronizer:
        slop_ns = 0 if parameters["sync_policy"] == "exact" else parameters.ns("slop_ms")
        return Synchronizer(
            [camera.rule for camera in self._robot.cameras],
            slop_ns=slop_ns,
            depth=parameters["queue_depth"],
            max_future_ns=parameters.ns("max_future_ms"),
            jump_back_ns=parameters.ns("jump_back_ms"),
            absent_after_ns=max(slop_ns, parameters.ns("absent_after_ms")),
        )

    def _subscribe(self, reliable: bool) -> dict[str, Subscriber]:
        sources: list[tuple[str, Any, str, int]] = [
            (
                camera.name,
                CompressedImage if camera.transport == "compressed" else Image,
                camera.topic,
                4,
            )
            for camera in self._robot.cameras
        ]
        sources.append((JOINT_STATES, JointState, self._robot.joint_states_topic, 10))
        return {
            name: Subscriber(
                self._input_node,
                message_type,
                topic,
                qos_profile=sensor_qos(depth, reliable=reliable),
                event_callbacks=SubscriptionEventCallbacks(
                    incompatible_qos=lambda event, name=name, topic=topic: self._on_incompatible(
                        name, topic, event
                    )
                ),
            )
            for name, message_type, topic, depth in sources
        }

    def _on_incompatible(self, name: str, topic: str, event: Any) -> None:
        self.incompatible[name] = (
            f"a publisher on {topic} offers a QoS that this node does not hear (policy {event.last_policy_kind}): "
            "set parameter `reliability` to best_effort, or the publisher to reliable"
        )
        self._logger.error(self.incompatible[name])

    def _heard(self, message: Any, source: str) -> None:
        self.watchdog.hear(source, self._now_ns())

    def _on_joint_state(self, message: JointState) -> None:
        receive_ns = self._now_ns()
        self.watchdog.hear(JOINT_STATES, receive_ns)
        try:
            self.joint_states.add(
                message.name, message.position, to_ns(message.header.stamp), receive_ns
            )
        except JointStateError as error:
            self.rejected_states["refused"] += 1
            self._logger.warning(str(error), throttle_duration_sec=1.0)

    def _now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)
