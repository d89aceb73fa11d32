"""The synchroniser as a member of the ROS filter chain.

Where message_filters is not installed (the wheels do not have it), its two base classes are supplied here with the
same methods, so that the rest of the package does not care.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rclpy.node import Node

from flashrt_ros.observation.frame import FrameSet
from flashrt_ros.observation.intake import FrameIntake

try:
    from message_filters import SimpleFilter, Subscriber
except ImportError:

    class SimpleFilter:  # type: ignore[no-redef]
        """Source of messages for those that registered."""

        def __init__(self) -> None:
            self.callbacks: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}

        def registerCallback(self, cb: Callable[..., None], *args: Any) -> int:  # noqa: N802 - the chain's name
            """Have `cb(*messages, *args)` called for each output; returns a handle."""
            self.callbacks[len(self.callbacks)] = (cb, args)
            return len(self.callbacks) - 1

        def signalMessage(self, *messages: Any) -> None:  # noqa: N802 - the chain's name
            """Call everyone that registered."""
            for listener, extra in list(self.callbacks.values()):
                listener(*messages, *extra)

    class Subscriber(SimpleFilter):  # type: ignore[no-redef]
        """A subscription at the start of a chain; options as for `Node.create_subscription`."""

        def __init__(self, node: Node, msg_type: Any, topic: str, **options: Any) -> None:
            super().__init__()
            options.setdefault("qos_profile", 10)
            self.sub = node.create_subscription(
                msg_type, topic, callback=self.signalMessage, **options
            )


class CameraSynchronizer(SimpleFilter):
    """Synchronises image messages by capture stamp and signals each `FrameSet`.

    No lock is held while anybody's callback runs; a callback that raises is logged and hurts nobody else.

    Args:
        node: for its clock and logger.
        inputs: filter of each camera's image messages, by camera name.
        intake: what checks, counts and matches; its cameras are the keys of `inputs`.
    """

    def __init__(self, node: Node, inputs: Mapping[str, SimpleFilter], intake: FrameIntake) -> None:
        super().__init__()
        self._clock = node.get_clock()
        self._logger = node.get_logger()
        self._intake = intake
        for camera, source in inputs.items():
            source.registerCallback(self.add, camera)

    def add(self, message: Any, camera: str) -> None:
        """Take one image message of a camera."""
        receive_ns = int(self._clock.now().nanoseconds)
        frame_set, complaint = self._intake.add(camera, message, receive_ns)
        if complaint:
            self._logger.warning(complaint, throttle_duration_sec=1.0)
        if frame_set is not None:
            self._signal(frame_set)

    def _signal(self, frame_set: FrameSet) -> None:
        for callback, args in list(self.callbacks.values()):
            try:
                callback(frame_set, *args)
            except Exception as error:
                # Whatever a user's callback does, the next set must arrive.
                self._logger.error(
                    f"a callback of the synchroniser raised {type(error).__name__}: {error}",
                    throttle_duration_sec=1.0,
                )
