"""From a joint position and a block's motion to a chunk of joint positions: the expert's hand.

Perception stays outside: the caller says where the block is and how it moves, from pictures or from
the simulator. The motion is a time-invariant law (joint velocity as a function of joint position
and target), so that two chunks planned from successive observations agree on their common part and
replanning causes no jumps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.sim import kinematics, scene
from flashrt_ros.sim.camera import BLOCK_CENTRE_M, BLOCK_HALF_SIZE_M

MAX_JOINT_SPEED_RAD_S = 2.2
_GAIN_PER_S = 7.0  # share of the remaining way covered in a second, when nothing else limits
# The fingertip presses 2 mm into the block's top: contact without weight.
TOUCH_HEIGHT_M = BLOCK_CENTRE_M + BLOCK_HALF_SIZE_M + scene.FINGERTIP_RADIUS_M - 0.002
_CLEARANCE_M = 0.055  # height above that at which other blocks are passed
_FUNNEL_RADIUS_M = 0.010  # within this horizontal distance the fingertip goes all the way down
_FUNNEL_SLOPE = 1.6
_SUBSTEPS = 2


@dataclass(frozen=True)
class BlockMotion:
    """Where a block's centre is at the observation, and how it moves: (x, y) in m and m/s, world
    frame."""

    position_m: tuple[float, float]
    velocity_m_s: tuple[float, float] = (0.0, 0.0)

    def at(self, time_s: float) -> tuple[float, float]:
        """Position (x, y) (m) `time_s` seconds after the observation, at constant velocity."""
        (x, y), (vx, vy) = self.position_m, self.velocity_m_s
        return x + vx * time_s, y + vy * time_s


def plan_touch(
    joint_positions: NDArray[np.floating], block: BlockMotion, horizon: int, period_s: float
) -> NDArray[np.float32]:
    """Commands [horizon, 6], float32, absolute joint positions (rad) that bring the fingertip onto
    the block.

    Action k is to be applied k·`period_s` after the observation that `joint_positions` [6] belongs
    to. Commands run ahead of the wanted positions by the servos' lag, and the goal runs ahead by
    the law's own, so that a moving block is met and not followed. No joint is asked for more than
    MAX_JOINT_SPEED_RAD_S. A block outside the workspace is awaited above the nearest point of it.
    """

    def goal(joints: NDArray[np.float64], time_s: float) -> NDArray[np.float64]:
        return _goal(joints, block, time_s)

    return _plan(joint_positions, goal, horizon, period_s)


def plan_posture(
    joint_positions: NDArray[np.floating],
    goal_rad: NDArray[np.floating],
    horizon: int,
    period_s: float,
) -> NDArray[np.float32]:
    """Commands as `plan_touch` gives, towards the joint positions `goal_rad` [6]."""
    fixed = np.asarray(goal_rad, dtype=np.float64)
    return _plan(joint_positions, lambda joints, time_s: fixed, horizon, period_s)


def _plan(
    joint_positions: NDArray[np.floating],
    goal: Callable[[NDArray[np.float64], float], NDArray[np.float64]],
    horizon: int,
    period_s: float,
) -> NDArray[np.float32]:
    """Follow the law towards `goal(joints, time_s)`; commands [horizon, 6]."""
    dt = period_s / _SUBSTEPS
    lead = round(scene.SERVO_LAG_S / dt)
    joints = np.clip(np.asarray(joint_positions, dtype=np.float64), *kinematics.JOINT_LIMITS_RAD.T)
    steps = [joints]
    for step in range((horizon - 1) * _SUBSTEPS + lead):
        joints = joints + _joint_step(joints, goal(joints, step * dt), dt)
        steps.append(joints)
    return np.stack(steps[lead::_SUBSTEPS]).astype(np.float32)


def _joint_step(
    joints: NDArray[np.float64], goal: NDArray[np.float64], dt: float
) -> NDArray[np.float64]:
    """The change of the joints [6] in `dt`: towards the goal, all joints in the same proportion."""
    way = goal - joints
    share = _GAIN_PER_S * dt
    fastest = share * float(np.abs(way).max()) / (MAX_JOINT_SPEED_RAD_S * dt)
    return way * (share / max(1.0, fastest))


def _goal(joints: NDArray[np.float64], block: BlockMotion, time_s: float) -> NDArray[np.float64]:
    """Joint positions [6] over the block: high while the fingertip is beside it, down when it is
    above it."""
    tip_x, tip_y, _ = kinematics.tip_position(joints)
    now_x, now_y = block.at(time_s)
    beside = math.hypot(tip_x - now_x, tip_y - now_y) - _FUNNEL_RADIUS_M
    x, y = block.at(time_s + 1.0 / _GAIN_PER_S)
    goal_x = min(max(x, kinematics.WORKSPACE_X_M[0]), kinematics.WORKSPACE_X_M[1])
    goal_y = min(max(y, kinematics.WORKSPACE_Y_M[0]), kinematics.WORKSPACE_Y_M[1])
    if math.hypot(goal_x - x, goal_y - y) > BLOCK_HALF_SIZE_M:
        beside = math.inf
    height = TOUCH_HEIGHT_M + min(max(beside, 0.0) * _FUNNEL_SLOPE, _CLEARANCE_M)
    return kinematics.inverse((goal_x, goal_y, height))
