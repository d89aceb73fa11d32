"""One image with its stamps, and the synchronised set that several of them make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Role(str, Enum):
    """What a camera's absence means."""

    REQUIRED = "required"
    """No observation without a picture from it."""
    OPTIONAL = "optional"
    """Absent: the policy gets a masked view."""
    HOLD = "hold"
    """Its last picture serves until it is older than the camera's `max_age_ns`; then as required."""


@dataclass(frozen=True, slots=True)
class CameraRule:
    """How one camera takes part in synchronisation."""

    name: str
    role: Role = Role.REQUIRED
    max_age_ns: int = 0
    """Oldest picture that a `hold` camera may contribute, against the set's stamp [ns]."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image with its stamps, before it is decoded."""

    camera: str
    capture_ns: int
    """`header.stamp` of the image, ROS time."""
    receive_ns: int
    """When the callback got it, ROS time."""
    payload: Any = None
    """Whatever the owner decodes later: the synchroniser never looks."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameSet:
    """Frames that belong together, one for each camera that takes part."""

    frames: Mapping[str, Frame]
    """By camera name, in the order of the rules; an absent optional camera has no entry."""
    held: frozenset[str]
    """Cameras whose frame is an earlier one (role `hold`)."""
    oldest: Frame
    """The synchronised frame with the oldest capture: ages count from it. Held frames do not count."""
    newest: Frame
    sync_ns: int
    """Receipt of the frame that completed the set, ROS time."""
    epoch: int
    """Number of clock jumps before it. Stamps strictly increase within one epoch."""

    @property
    def stamp_ns(self) -> int:
        """Oldest synchronised capture, ROS time."""
        return self.oldest.capture_ns

    @property
    def skew_ns(self) -> int:
        """Newest minus oldest synchronised capture."""
        return self.newest.capture_ns - self.oldest.capture_ns


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What a policy sees: decoded views, joint positions, and the stamps of both."""

    frame_set: FrameSet
    images: Mapping[str, NDArray[np.uint8]]
    """uint8 [height, width, 3] RGB by camera; an absent optional camera has no entry."""
    joint_positions: NDArray[np.float64]
    """[joints] in the robot contract's order and units."""
    state_capture_ns: int
    state_receive_ns: int
