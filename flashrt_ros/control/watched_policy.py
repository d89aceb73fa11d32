"""A policy with something done as its inference begins and as it is over: where time is simulated, it passes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.policy import Denoising, FlowPolicy, Policy, PolicySpec, is_flow_policy
from flashrt_ros.observation.frame import Observation


class WatchedPolicy:
    """Passes everything on; an inference is one `infer`, or from `encode` to `decode`.

    Args:
        policy: of either kind; only the stages of one that denoises may be called.
        begin: before an inference.
        end: after it, with the denoising steps that it took; 0 for a policy without.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[int], None],
    ) -> None:
        self._policy = policy
        self._begin = begin
        self._end = end
        self._steps = 0

    @property
    def spec(self) -> PolicySpec:
        """As `Policy`."""
        return self._policy.spec

    def infer(self, observation: Observation, instruction: str) -> NDArray[np.float32]:
        """As `Policy`."""
        self._begin()
        actions = self._policy.infer(observation, instruction)
        self._end(0)
        return actions

    def encode(self, observation: Observation, instruction: str) -> Any:
        """As `FlowPolicy`."""
        self._steps = 0
        self._begin()
        return self._flow.encode(observation, instruction)

    def denoise(self, context: Any, request: Denoising) -> NDArray[np.float32]:
        """As `FlowPolicy`."""
        self._steps += request.steps
        return self._flow.denoise(context, request)

    def decode(
        self, normalized: NDArray[np.float32], observation: Observation
    ) -> NDArray[np.float32]:
        """As `FlowPolicy`."""
        actions = self._flow.decode(normalized, observation)
        self._end(self._steps)
        return actions

    def rebase(
        self,
        normalized: NDArray[np.float32],
        old_positions: NDArray[np.float64],
        new_positions: NDArray[np.float64],
    ) -> NDArray[np.float32]:
        """As `FlowPolicy`."""
        return self._flow.rebase(normalized, old_positions, new_positions)

    def check_instruction(self, instruction: str) -> None:
        """As `Policy`."""
        self._policy.check_instruction(instruction)

    def reset(self) -> None:
        """As `Policy`."""
        self._policy.reset()

    def reseed(self, seed: int) -> None:
        """As `Policy`."""
        self._policy.reseed(seed)

    @property
    def _flow(self) -> FlowPolicy:
        assert is_flow_policy(self._policy)
        return self._policy
