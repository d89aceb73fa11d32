"""What a session asks of a policy, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.observation.frame import Observation


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy is and needs."""

    plan_id: str
    """Identity of what is executed: policy, weights, precision, device."""
    horizon: int
    """Actions in a chunk."""
    action_size: int
    features: Sequence[str]
    """Camera features that it cannot do without."""
    state_size: int | None = None
    """Numbers in its state; None when it takes any."""
    steps: int = 0
    """Denoising steps of an inference; 0 for a policy that does not denoise."""


class Policy(Protocol):
    """Turns an observation into actions. Called from one thread at a time."""

    @property
    def spec(self) -> PolicySpec:
        """Constant while the policy lives."""
        ...

    def infer(self, observation: Observation, instruction: str) -> NDArray[np.float32]:
        """Actions from the observation's moment on.

        Returns:
            float32 [horizon, joints]: absolute positions in robot units, one control period apart, the first one at
            the observation's capture.

        Raises:
            ValueError: the instruction means nothing to this policy; the message says what it takes.
        """
        ...

    def check_instruction(self, instruction: str) -> None:
        """Raise ValueError, saying what is expected, for an instruction that `infer` would refuse."""
        ...

    def reset(self) -> None:
        """Forget whatever was remembered from earlier observations."""
        ...
