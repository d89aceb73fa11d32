"""The last gate before a robot: actions leave finite and inside limits, or not at all.

A chunk that is not finite or far outside is refused as a whole. What is a little outside is clipped and counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.robot import Robot

POSITION = "position"
VELOCITY = "velocity"
EASE_IN = "ease_in"
"""Kinds of clipping, by the limit that was met."""

# Actions are float32: a limit written with more digits must not be broken by rounding.
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of the gate; the limits themselves are the robot contract's."""

    tolerance: float = 0.05
    """How far outside a limit an action may be to be clipped, share of the joint's range; beyond it the chunk is
    refused. 0 refuses everything that is outside."""
    ease_in_ns: int = 500_000_000
    """Time over which a motion that begins may become as fast as the limits allow."""


class UnsafeActionError(ValueError):
    """A chunk that must not reach the robot. `reason` is a short name to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_actions(
    actions: NDArray[np.floating], robot: Robot, horizon: int, tolerance: float = 0.0
) -> None:
    """Refuse a chunk as a whole if any of its actions is not safe.

    Args:
        actions: [horizon, joints], robot units.
        robot: whose limits hold.
        horizon: expected rows.
        tolerance: excess over a position limit, or of one step over the velocity limit, that is left to be clipped;
            share of the joint's range.

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
    slack = tolerance * (upper - lower) + _ROUNDING
    outside = (actions < lower - slack) | (actions > upper + slack)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        joint = robot.joints[column]
        raise UnsafeActionError(
            "position_limit",
            f"action {row} of joint {joint.name} is {actions[row, column]:.4f} {joint.unit}: expected "
            f"{joint.lower} to {joint.upper}; the whole chunk is refused",
        )
    steps = np.abs(np.diff(actions.astype(np.float64), axis=0))
    too_fast = steps > robot.max_step() * (1 + 1e-3) + tolerance * (upper - lower)
    if too_fast.any():
        row, column = np.argwhere(too_fast)[0]
        joint = robot.joints[column]
        raise UnsafeActionError(
            "velocity_limit",
            f"joint {joint.name} would move at {steps[row, column] / robot.period_s:.2f} {joint.unit}/s after action "
            f"{row}: expected at most {joint.max_velocity}; the whole chunk is refused",
        )


def limit_motion(
    actions: NDArray[np.float32],
    robot: Robot,
    before: NDArray[np.float64],
    first: int,
    ease: NDArray[np.float64],
) -> tuple[NDArray[np.float32], Counter[str]]:
    """Bring the actions that will be executed inside the position and step limits.

    Args:
        actions: finite, float32 [horizon, joints], robot units.
        robot: whose limits hold.
        before: command, or position, one period before action `first`, float64 [joints].
        first: the actions before it are not executed and stay as they are.
        ease: share of the step limit that each action may use, float64 [horizon], 1 for all of it.

    Returns:
        The actions, float32 [horizon, joints], and how many numbers were changed, by kind.
    """
    lower, upper = robot.limits()
    executed = actions[first:]
    inside: NDArray[np.floating] = np.clip(executed, lower, upper)
    # Within rounding of the limits a number stays as the policy gave it.
    outside = np.abs(inside - executed) > _ROUNDING
    inside = np.where(outside, inside, executed)
    allowed = robot.max_step() * ease[first:, None]
    counts = Counter({POSITION: int(outside.sum())})
    steps = np.diff(np.vstack((before, inside)), axis=0)
    if (np.abs(steps) > allowed * (1 + 1e-3)).any():
        inside, fast = _limit_steps(inside, before, allowed)
        eased = ease[first:] < 1.0
        counts += Counter({EASE_IN: int(fast[eased].sum()), VELOCITY: int(fast[~eased].sum())})
    limited = actions.copy()
    limited[first:] = inside
    return limited, +counts


def _limit_steps(
    actions: NDArray[np.floating], before: NDArray[np.float64], allowed: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Follow the actions from `before` on in steps of at most `allowed` [rows, joints]; also which were shortened."""
    limited = actions.astype(np.float64)
    fast = np.zeros(actions.shape, np.bool_)
    for row, largest in enumerate(allowed):
        step = limited[row] - before
        fast[row] = np.abs(step) > largest * (1 + 1e-3)
        limited[row] = np.where(fast[row], before + np.clip(step, -largest, largest), limited[row])
        before = limited[row]
    return limited, fast
