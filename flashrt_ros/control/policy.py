"""What a session asks of a policy, whoever computes it.

Two kinds: `Policy` answers with actions; `FlowPolicy` also lets the session denoise, stage by stage. A runtime that
replays captured graphs needs no more than these stages, and three forms of `denoise`: cold (all steps, from noise),
warm (few steps, from given actions at a given flow time), and either of them with guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

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
    """Denoising steps of a cold inference; 0 for a policy that does not denoise."""


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

    def reseed(self, seed: int) -> None:
        """Draw noise from here on as a policy made with this seed; nothing where none is drawn."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """What a denoising is drawn to; the formula is in `models.flow.Guidance`."""

    target: NDArray[np.float32]
    """[horizon, width], normalised."""
    weights: NDArray[np.float32]
    """[horizon]; 0 leaves an action free."""
    strengths: tuple[float, ...]
    """One for each step."""


@dataclass(frozen=True, slots=True, eq=False)
class Denoising:
    """One denoising: from noise (`start_time` 1) or from `start_time * noise + (1 - start_time) * initial`."""

    steps: int
    """Of equal size, from `start_time` down to flow time 0."""
    start_time: float = 1.0
    initial: NDArray[np.float32] | None = None
    """[horizon, width], normalised; needed where `start_time` is below 1."""
    guidance: Guidance | None = None


class FlowPolicy(Policy, Protocol):
    """A flow-matching policy in its stages. `width` is the network's action width: the joints, padded.

    A session runs `encode` once for each observation, then `denoise` (twice where a warm start was of no use), then
    `decode`; it never mixes contexts of several observations.
    """

    def encode(self, observation: Observation, instruction: str) -> Any:
        """Everything that the actions see; `denoise` takes it, and it is valid until the next `encode`.

        Raises:
            ValueError: as `infer`.
        """
        ...

    def denoise(self, context: Any, request: Denoising) -> NDArray[np.float32]:
        """Actions, normalised, float32 [horizon, width], the caller's to keep. The policy draws the noise."""
        ...

    def decode(
        self, normalized: NDArray[np.float32], observation: Observation
    ) -> NDArray[np.float32]:
        """Normalised actions [horizon, width] of an observation → robot units, float32 [horizon, joints]."""
        ...

    def rebase(
        self,
        normalized: NDArray[np.float32],
        old_positions: NDArray[np.float64],
        new_positions: NDArray[np.float64],
    ) -> NDArray[np.float32]:
        """Normalised actions [horizon, width] of an observation as seen from another.

        Actions relative to the state keep their absolute positions. Joint positions [joints], robot units.
        """
        ...


def is_flow_policy(policy: Policy) -> TypeGuard[FlowPolicy]:
    """Whether a policy denoises: its specification says so."""
    return policy.spec.steps > 0
