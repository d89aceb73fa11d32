"""Where image messages come in, live or from a bag: checked, counted and synchronised, under one lock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from flashrt_ros.observation.frame import Frame, FrameSet
from flashrt_ros.observation.gaps import GapCounter
from flashrt_ros.observation.images import check_image
from flashrt_ros.observation.pixels import ImageError
from flashrt_ros.observation.synchronizer import FrameFates, Synchronizer
from flashrt_ros.observation.timeline import to_ns


class FrameIntake:
    """Takes image messages from any thread.

    Args:
        synchronizer: what matches.
        gaps: counter of the frames lost on their way here, by camera; its keys are the synchroniser's cameras.
    """

    def __init__(self, synchronizer: Synchronizer, gaps: Mapping[str, GapCounter]) -> None:
        self._synchronizer = synchronizer
        self._gaps = gaps
        self._lock = threading.Lock()

    def add(self, camera: str, message: Any, receive_ns: int) -> tuple[FrameSet | None, str]:
        """Take one image message.

        Args:
            camera: whose it is.
            message: sensor_msgs/Image or CompressedImage, of ROS or read from a bag.
            receive_ns: when it came, ROS time.

        Returns:
            The set that it completes, if it does; and why it was rejected, for the log, empty if it was not.
        """
        capture_ns = to_ns(message.header.stamp)
        try:
            check_image(message)
        except ImageError as error:
            with self._lock:
                self._synchronizer.reject(camera, error.reason)
            return None, f"camera {camera}: {error}"
        with self._lock:
            self._gaps[camera].add(capture_ns)
            rejected_before = self._synchronizer.rejected(camera)
            frame_set = self._synchronizer.add(Frame(camera, capture_ns, receive_ns, message))
            rejected = self._synchronizer.rejected(camera) > rejected_before
        if not rejected:
            return frame_set, ""
        return frame_set, (
            f"camera {camera}: frame stamped {capture_ns / 1e9:.3f} s, received {receive_ns / 1e9:.3f} s, was "
            "rejected (zero, repeated, ahead of the clock, or the clock jumped back): check the driver's stamps"
        )

    def reset(self, reason: str) -> None:
        """Empty the queues."""
        with self._lock:
            self._synchronizer.reset(reason)

    def fates(self) -> dict[str, FrameFates]:
        """What became of every frame, by camera."""
        with self._lock:
            return self._synchronizer.fates()

    def lost(self) -> dict[str, int]:
        """Frames lost on their way here, by camera."""
        with self._lock:
            return {camera: gap.lost for camera, gap in self._gaps.items()}
