"""Forward and inverse kinematics of the arm, in closed form.

The arm is a pan joint that carries a planar three-link chain (upper arm, forearm, hand) and a roll
about the hand's axis. The fingertip lies on the roll axis, so roll and gripper do not move it. At
zero the upper arm stands upright and forearm and hand point forward, as on an SO-101.

Frame: x forward, y left, z up, origin under the pan axis on the table top; metres and radians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

JOINT_NAMES = (
    "shoulder_pan",
    "shoulder_lift",
    "elbow_flex",
    "wrist_flex",
    "wrist_roll",
    "gripper",
)
JOINT_LIMITS_RAD: NDArray[np.float64] = np.array(
    [(-1.9, 1.9), (-1.75, 1.75), (-1.75, 1.75), (-1.75, 1.75), (-2.8, 2.8), (-0.17, 1.75)]
)
JOINT_LIMITS_RAD.setflags(write=False)

SHOULDER_HEIGHT_M = 0.12
UPPER_ARM_M = 0.17
FOREARM_M = 0.17
HAND_M = 0.13  # wrist to fingertip centre

# The box over the belt that the fingertip reaches at every height from touching a block to passing
# over one.
WORKSPACE_X_M = (0.18, 0.30)
WORKSPACE_Y_M = (-0.27, 0.27)
WORKSPACE_Z_M = (0.04, 0.13)


class UnreachableError(ValueError):
    """A fingertip position for which no joint positions within the limits exist."""


def tip_position(joint_positions: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Fingertip centre [3] (m) for joint positions [6] or [>=4] (rad)."""
    pan, lift, elbow, wrist = (float(angle) for angle in joint_positions[:4])
    forearm_pitch = lift + elbow
    hand_pitch = forearm_pitch + wrist
    radius = (
        UPPER_ARM_M * math.sin(lift)
        + FOREARM_M * math.cos(forearm_pitch)
        + HAND_M * math.cos(hand_pitch)
    )
    height = (
        SHOULDER_HEIGHT_M
        + UPPER_ARM_M * math.cos(lift)
        - FOREARM_M * math.sin(forearm_pitch)
        - HAND_M * math.sin(hand_pitch)
    )
    return np.array([radius * math.cos(pan), radius * math.sin(pan), height])


def approach_pitch(radius_m: float) -> float:
    """Downward pitch of the hand (rad) used at a distance from the pan axis: steep near, flatter
    far.

    A function of the radius alone, so that neighbouring targets have neighbouring joint positions.
    """
    return min(1.45, max(0.75, 1.40 - 2.7 * (radius_m - 0.18)))


def inverse(
    position_m: Sequence[float] | NDArray[np.floating],
    pitch_rad: float | None = None,
    roll_rad: float = 0.0,
    gripper_rad: float = 0.0,
) -> NDArray[np.float64]:
    """Joint positions [6] (rad) that put the fingertip centre at `position_m` [3], elbow up.

    `pitch_rad` is the hand's pitch below the horizontal, by default `approach_pitch` of the radius.
    Raises UnreachableError where the chain is too short or a joint would leave its limits.
    """
    x, y, z = (float(value) for value in position_m)
    radius = math.hypot(x, y)
    pitch = approach_pitch(radius) if pitch_rad is None else pitch_rad
    wrist_radius = radius - HAND_M * math.cos(pitch)
    wrist_height = z + HAND_M * math.sin(pitch) - SHOULDER_HEIGHT_M
    cos_bend = (wrist_radius**2 + wrist_height**2 - UPPER_ARM_M**2 - FOREARM_M**2) / (
        2.0 * UPPER_ARM_M * FOREARM_M
    )
    if abs(cos_bend) > 1.0:
        raise UnreachableError(
            f"fingertip position ({x:.3f}, {y:.3f}, {z:.3f}) m: the wrist would be "
            f"{math.hypot(wrist_radius, wrist_height):.3f} m from the shoulder, expected at most "
            f"{UPPER_ARM_M + FOREARM_M:.3f} m; move the target into the workspace"
        )
    bend = math.acos(cos_bend)
    elevation = math.atan2(wrist_height, wrist_radius) + math.atan2(
        FOREARM_M * math.sin(bend), UPPER_ARM_M + FOREARM_M * math.cos(bend)
    )
    lift = 0.5 * math.pi - elevation
    elbow = bend - 0.5 * math.pi
    joints = (math.atan2(y, x), lift, elbow, pitch - lift - elbow, roll_rad, gripper_rad)
    for name, angle, (low, high) in zip(JOINT_NAMES, joints, _LIMITS, strict=True):
        if not low <= angle <= high:
            raise UnreachableError(
                f"fingertip position ({x:.3f}, {y:.3f}, {z:.3f}) m needs {name} = {angle:.3f} rad, "
                f"expected {low} to {high} rad; move the target into the workspace"
            )
    return np.array(joints)


_LIMITS = [(float(low), float(high)) for low, high in JOINT_LIMITS_RAD]
