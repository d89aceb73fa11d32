"""One chunk from one observation: cold, warm from the chunk before, drawn to it, or several of these in one call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.plan import Plan
from flashrt_ros.control.policy import Denoising, FlowPolicy, Policy, is_flow_policy
from flashrt_ros.control.rtc import Rtc, Schedule
from flashrt_ros.control.warm_start import WarmStart, divergence, shift
from flashrt_ros.observation.frame import Observation


@dataclass(frozen=True, slots=True, eq=False)
class Remainder:
    """What is left of the chunk before, as the new one may use it."""

    plan: Plan
    executed: int
    """Actions of the plan that lie behind at the start of the new chunk."""
    frozen: int
    """Actions of the new chunk that will be past when it is published (seam `rtc`)."""
    warm_start: WarmStart | None
    """None: the new chunk starts from noise."""
    rtc: Rtc | None
    """None: the new chunk is not drawn to the remainder."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """What was sampled."""

    actions: NDArray[np.float32]
    """[horizon, joints], robot units, unchecked."""
    normalized: NDArray[np.float32] | None = None
    """[horizon, width]"""
    steps: int = 0
    warm: bool = False
    frozen: int = 0
    divergence: float = 0.0
    diverged: bool = False
    """A warm chunk was thrown away, and this one is cold."""


def sample(
    policy: Policy, observation: Observation, instruction: str, remainder: Remainder | None
) -> Sample:
    """Infer once. A policy that does not denoise has nothing to carry over.

    Raises:
        ValueError: the policy cannot work with the instruction.
    """
    if not is_flow_policy(policy):
        return Sample(policy.infer(observation, instruction))
    context = policy.encode(observation, instruction)
    cold = Denoising(policy.spec.steps)
    if remainder is None or remainder.plan.normalized is None:
        normalized = policy.denoise(context, cold)
        return Sample(policy.decode(normalized, observation), normalized, cold.steps)
    return _Continuation(policy, context, observation, remainder).sample(cold)


class _Continuation:
    """A chunk that goes on from the one before."""

    def __init__(
        self, policy: FlowPolicy, context: Any, observation: Observation, remainder: Remainder
    ) -> None:
        plan = remainder.plan
        assert plan.normalized is not None
        self._policy = policy
        self._context = context
        self._observation = observation
        self._warm_start = remainder.warm_start
        self._rtc = remainder.rtc
        self._left = max(0, len(plan.normalized) - remainder.executed)
        self._frozen = min(remainder.frozen, self._left) if remainder.rtc else 0
        self._start = policy.rebase(
            shift(plan.normalized, remainder.executed),
            plan.joint_positions,
            observation.joint_positions,
        )

    def sample(self, cold: Denoising) -> Sample:
        distance = 0.0
        warm_start = self._warm_start
        if warm_start is not None:
            warm = warm_start.request(self._start)
            normalized = self._denoise(warm)
            # The last action, repeated beyond the plan's end, is no plan to be true to.
            rows = slice(self._frozen, max(1, self._left))
            distance = divergence(normalized, self._start, rows, self._policy.spec.action_size)
            if distance <= warm_start.max_divergence:
                return self._sampled(normalized, warm, distance)
            # The plan is outdated. The robot executes it all the same until this chunk arrives.
            self._rtc = self._rtc and replace(self._rtc, schedule=Schedule.ZEROS)
        sampled = self._sampled(self._denoise(cold), cold, distance)
        return replace(sampled, warm=False, diverged=warm_start is not None)

    def _denoise(self, request: Denoising) -> NDArray[np.float32]:
        if self._rtc is not None:
            guidance = self._rtc.guidance(request, self._start, self._left, self._frozen)
            request = replace(request, guidance=guidance)
        normalized = self._policy.denoise(self._context, request)
        normalized[: self._frozen] = self._start[: self._frozen]
        return normalized

    def _sampled(
        self, normalized: NDArray[np.float32], request: Denoising, distance: float
    ) -> Sample:
        return Sample(
            self._policy.decode(normalized, self._observation),
            normalized,
            request.steps,
            warm=True,
            frozen=self._frozen,
            divergence=distance,
        )
