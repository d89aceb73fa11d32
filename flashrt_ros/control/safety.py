"""The last gate before a robot: actions leave finite and inside limits, or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.robot import Robot


class UnsafeActionError(ValueError):
    """A chunk that must not reach the robot. `reason` is a short name to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_actions(actions: NDArray[np.floating], robot: Robot, horizon: int) -> None:
    """Refuse a chunk as a whole if any of its actions is not safe.

    Args:
        actions: [horizon, joints], robot units.
        robot: whose limits hold.
        horizon: expected rows.

    Raises:
        UnsafeActionError: `shape`, `not_finite`, `position_limit` or `velocity_limit`; names the joint, the action and
            the limit.
    """
    expected = (horizon, len(robot.joints))
    if actions.shape != expected:
        raise UnsafeActionError("shape", f"actions have shape {actions.shape}, expected {expected}")
    if not np.isfinite(actions).all():
        row, column = np.argwhere(~np.isfinite(actions))[0]
        raise UnsafeActionError(
            "not_finite",
            f"action {row} of joint {robot.joint_names[column]} is {actions[row, column]}: "
            "expected a finite number; the whole chunk is refused",
        )
    lower, upper = robot.limits()
    # Actions are float32: a limit written with more digits must not be broken by rounding.
    tolerance = 1e-5
    outside = (actions < lower - tolerance) | (actions > upper + tolerance)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        joint = robot.joints[column]
        raise UnsafeActionError(
            "position_limit",
            f"action {row} of joint {joint.name} is {actions[row, column]:.4f} {joint.unit}: expected "
            f"{joint.lower} to {joint.upper}; the whole chunk is refused",
        )
    speed = np.abs(np.diff(actions.astype(np.float64), axis=0)) / robot.period_s
    too_fast = speed > robot.max_velocity() * (1 + 1e-3)
    if too_fast.any():
        row, column = np.argwhere(too_fast)[0]
        joint = robot.joints[column]
        raise UnsafeActionError(
            "velocity_limit",
            f"joint {joint.name} would move at {speed[row, column]:.2f} {joint.unit}/s after action "
            f"{row}: expected at most {joint.max_velocity}; the whole chunk is refused",
        )
