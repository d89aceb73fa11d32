"""One policy on one robot: from observations to chunks that go on from each other.

    observe → due? → step: reset? → sample (warm, guided, cold) → check
                   → publish: skip what is past → join to the chunk before → limits → chunk

The parts are in modules of their own: `resets`, `replanning`, `sampling` (with `warm_start` and `rtc`), `seams`,
`safety`, `delay`. The session keeps what they share: the plan that the robot executes, and what came of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control import resets
from flashrt_ros.control.chunk import Chunk, Inference, Start, end_index
from flashrt_ros.control.delay import DelayModel
from flashrt_ros.control.plan import Execution, Plan
from flashrt_ros.control.policy import Policy
from flashrt_ros.control.recovery import RecoveryStatistics
from flashrt_ros.control.resets import MOTION_GOES_ON, ResetMonitor
from flashrt_ros.control.robot import Robot
from flashrt_ros.control.rtc import Schedule
from flashrt_ros.control.safety import UnsafeActionError, check_actions, limit_motion
from flashrt_ros.control.sampling import Remainder, sample
from flashrt_ros.control.seams import SeamKind, Splicer, action_times_ns
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.observation.frame import Observation
from flashrt_ros.observation.timeline import Timeline


class PolicySession:
    """Turns observations into chunks. Called from one thread, but for `reset` and `report_applied`.

    Args:
        policy: what infers.
        robot: contract whose limits every chunk must keep.
        settings: may be replaced between two inferences.
        clock_ns: ROS time, or the virtual time of a replay [ns].

    Raises:
        RobotError: the policy does not fit the robot.
    """

    def __init__(
        self,
        policy: Policy,
        robot: Robot,
        settings: SessionSettings | None = None,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        spec = policy.spec
        robot.check_policy(spec.features, spec.state_size, spec.action_size)
        self._policy = policy
        self._robot = robot
        self._clock_ns = clock_ns
        self._monitor = ResetMonitor(robot)
        self._execution = Execution()
        self._delay = DelayModel()
        self._splicer = Splicer()
        self._plan: Plan | None = None
        self._plan_end_ns = 0
        self._motion_start_ns: int | None = None
        self._unrecovered = ""
        self._chunks = 0
        self.settings = settings or SessionSettings()
        self.resets: Counter[str] = Counter()
        """Resets that took effect, by name."""
        self.refused: Counter[str] = Counter()
        """Chunks that were not let out, by reason."""
        self.clipped: Counter[str] = Counter()
        """Numbers brought inside the limits, by kind, among actions that may be applied."""
        self.skipped_actions = 0
        """Actions that were in the past when their chunk was published."""
        self.recovery = RecoveryStatistics()

    @property
    def policy(self) -> Policy:
        """What infers."""
        return self._policy

    @property
    def robot(self) -> Robot:
        """The contract."""
        return self._robot

    def reset(self, reason: str) -> None:
        """Carry nothing over into the next inference; from any thread. The first of several reasons is kept."""
        self._monitor.request(reason)

    def report_applied(self, chunk_id: int, action_index: int, apply_ns: int) -> None:
        """An action of a chunk reached the robot; from any thread."""
        self._execution.report(chunk_id, action_index, apply_ns)

    def counts(self) -> dict[str, Any]:
        """What became of inferences and chunks so far, as plain values."""
        return {
            "resets": dict(self.resets),
            "chunks_refused": dict(self.refused),
            "actions_skipped": self.skipped_actions,
            "clipped": dict(self.clipped),
            "deadlines_missed": dict(self.recovery.deadlines_missed),
            "recovery": self.recovery.percentiles_ms(),
            "foreseen_delay_ms": self.foreseen_delay_ns() / 1e6,
        }

    def foreseen_delay_ns(self) -> int:
        """Capture to publication of the next chunk, as the delay model has it [ns]."""
        return self._delay.foresee_ns(self._clock_ns(), self.settings.delay)

    def due(self, capture_ns: int, instruction: str) -> bool:
        """Whether an observation of `capture_ns` is to be inferred now. A reset does not wait."""
        reset = self._unrecovered or self._monitor.pending
        if reset or instruction != self._monitor.instruction:
            return True
        return self.settings.replanning.due(
            self._plan, self._execution, capture_ns, self._clock_ns()
        )

    def step(self, observation: Observation, instruction: str) -> Inference:
        """Infer once.

        Args:
            observation: images and joint positions as the contract orders them.
            instruction: what to do; a change resets.

        Raises:
            UnsafeActionError: the actions must not reach the robot; counted, and the next inference starts afresh.
            ValueError: the policy cannot work with the instruction; counted.
        """
        spec, settings = self._policy.spec, self.settings
        reset_reason = self._reset_reason(observation, instruction)
        infer_start_ns = self._clock_ns()
        delay_ns = self._delay.foresee_ns(infer_start_ns, settings.delay)
        remainder = self._remainder(observation, reset_reason, delay_ns)
        steady_ns = time.perf_counter_ns()
        try:
            sampled = sample(self._policy, observation, instruction, remainder)
            steady_ns = time.perf_counter_ns() - steady_ns
            infer_end_ns = self._clock_ns()
            actions = np.ascontiguousarray(sampled.actions, np.float32)
            check_actions(actions, self._robot, spec.horizon, settings.limits.tolerance)
        except UnsafeActionError as error:
            self._refuse(error.reason)
            raise
        except ValueError:
            self._refuse("policy_error")
            raise
        if sampled.diverged:
            self._count_reset(resets.DIVERGENCE)
            reset_reason = self._unrecovered = resets.DIVERGENCE
        return Inference(
            actions=actions,
            period_ns=self._robot.period_ns,
            infer_start_ns=infer_start_ns,
            infer_end_ns=infer_end_ns,
            infer_steady_ns=steady_ns,
            instruction=instruction,
            steps=sampled.steps,
            warm_start=sampled.warm,
            reset_reason=reset_reason,
            plan_id=spec.plan_id,
            normalized=sampled.normalized,
            executed=remainder.executed if remainder else 0,
            frozen=sampled.frozen,
            divergence=sampled.divergence,
            foreseen_delay_ns=delay_ns,
        )

    def publish(self, observation: Observation, inference: Inference) -> Chunk | None:
        """Stamp an inference for publication now, joined to the chunk before.

        Returns:
            None when none of its actions can be applied any more; counted as `all_past`.
        """
        settings, frame_set = self.settings, observation.frame_set
        capture_ns, publish_ns = frame_set.stamp_ns, self._clock_ns()
        self._delay.add(publish_ns - capture_ns, publish_ns, settings.delay)
        raw = Chunk(
            chunk_id=self._chunks + 1,
            inference=inference,
            actions=inference.actions,
            timeline=Timeline(
                capture_ns=capture_ns,
                receive_ns=frame_set.oldest.receive_ns,
                sync_ns=frame_set.sync_ns,
                infer_start_ns=inference.infer_start_ns,
                infer_end_ns=inference.infer_end_ns,
                publish_ns=publish_ns,
            ),
            planned_start_ns=capture_ns if settings.start is Start.ALIGNED else publish_ns,
            end_index=len(inference.actions),
        )
        if settings.max_action_age_ns is not None:
            end = end_index(capture_ns, raw.planned_start_ns, inference.period_ns, raw.horizon,
                            settings.max_action_age_ns)  # fmt: skip
            raw = replace(raw, end_index=end)
        missed = inference.infer_start_ns < self._plan_end_ns < publish_ns
        recovery_ns = publish_ns - inference.infer_start_ns if inference.reset_reason else 0
        if raw.first_valid_index >= raw.end_index:
            self.refused["all_past"] += 1
            self.recovery.add(recovery_ns, missed)
            return None
        chunk = replace(
            self._joined(raw, observation), recovery_ns=recovery_ns, deadline_missed=missed
        )
        self._unrecovered = ""
        self._chunks += 1
        self._plan = Plan.of(chunk, observation.joint_positions)
        self._plan_end_ns = self._plan.end_ns
        self.skipped_actions += chunk.first_valid_index
        self.recovery.add(recovery_ns, missed)
        return chunk

    # ------------------------------------------------------------ before the inference

    def _reset_reason(self, observation: Observation, instruction: str) -> str:
        chunk_ns = self._policy.spec.horizon * self._robot.period_ns
        reason = self._monitor.check(observation, instruction, self.settings.resets, chunk_ns)
        # A reset ends with a chunk that goes out. Where none did, the plan is still the one from before the reset.
        reason = self._unrecovered = reason or self._unrecovered
        if reason:
            self._count_reset(reason)
            self._policy.reset()
        if reason not in MOTION_GOES_ON:
            self._plan = None
            self._motion_start_ns = None
        if reason == resets.CLOCK_JUMP:
            self._delay.forget()
            self._execution.forget()
            self._plan_end_ns = 0
        return reason

    def _count_reset(self, reason: str) -> None:
        self.resets[reason] += 1
        # What chunks before the reset said of the time after it does not count any more.
        self._splicer.forget()

    def _remainder(
        self, observation: Observation, reset_reason: str, delay_ns: int
    ) -> Remainder | None:
        """What the new chunk may use of the plan, by the time at which it will probably begin."""
        plan, settings = self._plan, self.settings
        if plan is None or plan.normalized is None:
            return None
        capture_ns = observation.frame_set.stamp_ns
        executed = self._execution.executed(plan, capture_ns)
        frozen = -(-delay_ns // plan.period_ns)
        if settings.start is Start.NOW:
            # It begins when it is published: what is executed until then lies behind, and nothing is frozen.
            executed, frozen = min(executed + frozen, len(plan.actions)), 0
        warm_start = settings.warm_start if settings.warm_start.enabled else None
        rtc = settings.rtc if settings.seams.kind is SeamKind.RTC else None
        if reset_reason:
            # The robot executes the plan until the new chunk arrives, but the new one must not believe in it.
            warm_start = None
            rtc = rtc and replace(rtc, schedule=Schedule.ZEROS)
        return Remainder(plan, executed, frozen, warm_start, rtc)

    def _refuse(self, reason: str) -> None:
        self.refused[reason] += 1
        self.reset(resets.HOLD)

    # ------------------------------------------------------------ after the inference

    def _joined(self, raw: Chunk, observation: Observation) -> Chunk:
        """The chunk joined to the plan and inside the limits."""
        settings, plan, first = self.settings, self._plan, raw.first_valid_index
        new = Plan.of(raw, observation.joint_positions)
        actions = self._splicer.join(new, plan, first, settings.seams)
        times_ns = action_times_ns(new)
        frozen = raw.inference.frozen
        if plan is not None and frozen:
            actions = actions.copy()
            actions[:frozen] = plan.positions_at(times_ns[:frozen])
        if plan is None:
            before = observation.joint_positions
        else:
            before = plan.positions_at(times_ns[first : first + 1] - new.period_ns)[0]
        actions, clipped = limit_motion(
            actions, self._robot, before, first, self._ease(times_ns, first)
        )
        self.clipped += clipped
        seam = settings.seams.kind.value if plan is not None else ""
        return replace(raw, actions=actions, seam=seam, clipped=sum(clipped.values()))

    def _ease(self, times_ns: NDArray[np.int64], first: int) -> NDArray[np.float64]:
        """Share of the velocity limit that each action may use: less while a motion begins."""
        if self._motion_start_ns is None:
            self._motion_start_ns = int(times_ns[first])
        ease_in_ns = self.settings.limits.ease_in_ns
        if not ease_in_ns:
            return np.ones(len(times_ns))
        passed_ns = times_ns - self._motion_start_ns + self._robot.period_ns
        return np.clip(passed_ns / ease_in_ns, 0.0, 1.0)
