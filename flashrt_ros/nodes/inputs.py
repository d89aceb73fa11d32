"""The inputs of a policy: subscriptions that feed its observer.

They live on a hidden node of their own, and one thread does nothing but take their messages: beside the services and
timers of the policy node a picture would wait for all of them.
"""

from __future__ import annotations

import threading
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from sensor_msgs.msg import CompressedImage, Image, JointState

from flashrt_ros.control.observer import JOINT_STATES, Observer
from flashrt_ros.control.robot import Robot
from flashrt_ros.nodes.base import Parameters, sensor_qos
from flashrt_ros.nodes.filters import CameraSynchronizer, Subscriber
from flashrt_ros.nodes.subscription_loop import SubscriptionLoop

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

_CLOSE_PERIOD_NS = 100_000_000


class ObservationInputs:
    """Everything between the topics and the observer.

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
            # Nobody would answer.
            parameter_overrides=[RosParameter("start_type_description_service", value=False)],
        )
        self.incompatible: dict[str, str] = {}
        """Inputs with a publisher whose QoS does not fit, by name, and what to do about it."""
        self.observer = Observer(robot, parameters, self._now_ns())
        self._subscribers = self._subscribe(parameters["reliability"] == "reliable")
        for camera in self.observer.needed:
            self._subscribers[camera].registerCallback(self._heard, camera)
        # Registered last: nothing comes between a complete set and the worker that waits for it.
        self.synchronizer = CameraSynchronizer(
            node,
            {camera.name: self._subscribers[camera.name] for camera in robot.cameras},
            self.observer.frames,
        )
        self.synchronizer.registerCallback(self.observer.mailbox.put)
        self._subscribers[JOINT_STATES].registerCallback(self._on_joint_state)
        self._closing = threading.Event()
        self._spinner = threading.Thread(target=self._spin, name="inputs", daemon=True)
        self._spinner.start()

    def destroy(self) -> None:
        """Close the mailbox and the subscriptions; no callback runs any more when it returns."""
        self._closing.set()
        self._spinner.join()
        self._input_node.destroy_node()
        self.observer.mailbox.close()

    def _spin(self) -> None:
        subscriptions = [subscriber.sub for subscriber in self._subscribers.values()]
        loop = SubscriptionLoop(subscriptions, self._input_node.context)
        while not self._closing.is_set():
            loop.spin_once(_CLOSE_PERIOD_NS)

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
        self.observer.watchdog.hear(source, self._now_ns())

    def _on_joint_state(self, message: JointState) -> None:
        complaint = self.observer.add_joint_state(message, self._now_ns())
        if complaint:
            self._logger.warning(complaint, throttle_duration_sec=1.0)

    def _now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)
