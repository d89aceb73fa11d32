"""Policies by name: the scripted expert, or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.policy import Policy, PolicySpec
from flashrt_ros.control.robot import Robot
from flashrt_ros.observation.frame import Observation

EXPERT = "expert"
"""Name of the scripted expert, in place of a checkpoint's path."""


class PolicyError(ValueError):
    """No policy can be made of what was asked for. Says what was expected."""


def build_policy(
    checkpoint: str,
    robot: Robot,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Make the policy that a checkpoint names.

    Args:
        checkpoint: `expert`.
        robot: contract that the policy must fit.
        progress: told of each step that takes a while.

    Raises:
        PolicyError: nothing by that name.
        RobotError: it does not fit the robot.
    """
    if checkpoint != EXPERT:
        raise PolicyError(f"checkpoint: expected {EXPERT!r}, found {checkpoint!r}")
    progress("building the scripted expert")
    policy = ExpertPolicy(robot)
    robot.check_policy(policy.spec.features, policy.spec.state_size, policy.spec.action_size)
    return policy


class ExpertPolicy:
    """The scripted expert of `sim/` as a policy: colour segmentation of the overhead view and inverse kinematics."""

    def __init__(self, robot: Robot) -> None:
        # MuJoCo is needed by those who use the expert only.
        from flashrt_ros.sim.expert import ScriptedExpert

        self._expert = ScriptedExpert()
        if tuple(robot.joint_names) != tuple(self._expert.joint_names):
            raise PolicyError(
                f"the scripted expert moves {list(self._expert.joint_names)}: robot {robot.name!r} has "
                f"{robot.joint_names}"
            )
        if abs(robot.period_s - self._expert.period_s) > 1e-6:
            raise PolicyError(
                f"the scripted expert acts every {self._expert.period_s:.6f} s: robot {robot.name!r} "
                f"has period_s {robot.period_s}"
            )
        missing = [
            name for name in self._expert.cameras if name not in {c.name for c in robot.cameras}
        ]
        if missing:
            raise PolicyError(
                f"the scripted expert looks through cameras {missing}: none of that name"
            )
        self._spec = PolicySpec(
            plan_id=EXPERT,
            horizon=self._expert.horizon,
            action_size=len(self._expert.joint_names),
            features=[c.feature for c in robot.cameras if c.name in self._expert.cameras],
        )

    @property
    def spec(self) -> PolicySpec:
        """Constant."""
        return self._spec

    def infer(self, observation: Observation, instruction: str) -> NDArray[np.float32]:
        """Actions float32 [horizon, 6] from the pictures and joint positions alone."""
        images: Mapping[str, Any] = observation.images
        actions: NDArray[np.float32] = self._expert.infer(
            images, observation.joint_positions, instruction, observation.frame_set.stamp_ns
        )
        return actions

    def check_instruction(self, instruction: str) -> None:
        """Raise ValueError unless exactly one known colour is named."""
        self._expert.target_colour(instruction)

    def reset(self) -> None:
        """Forget where blocks were seen."""
        self._expert.reset()
