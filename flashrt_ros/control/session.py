"""One policy on one robot: instruction, resets, and the gate that every chunk passes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np

from flashrt_ros.control.chunk import Chunk, Inference, Start
from flashrt_ros.control.policy import Policy
from flashrt_ros.control.robot import Robot
from flashrt_ros.control.safety import UnsafeActionError, check_actions
from flashrt_ros.observation.frame import Observation
from flashrt_ros.observation.timeline import Timeline

RESET_EPISODE = "episode"
RESET_INSTRUCTION = "instruction"
RESET_CLOCK_JUMP = "clock_jump"
RESET_HOLD = "hold"


class PolicySession:
    """Turns observations into chunks. Called from one thread, but for `reset`.

    Args:
        policy: what infers.
        robot: contract whose limits every chunk must keep.
        start: when action 0 of a chunk is meant.
        clock_ns: ROS time, or the virtual time of a replay [ns].

    Raises:
        RobotError: the policy does not fit the robot.
    """

    def __init__(
        self,
        policy: Policy,
        robot: Robot,
        *,
        start: Start = Start.ALIGNED,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        spec = policy.spec
        robot.check_policy(spec.features, spec.state_size, spec.action_size)
        self._policy = policy
        self._robot = robot
        self._clock_ns = clock_ns
        self._instruction = ""
        self._pending_reset = RESET_EPISODE
        self._reset_lock = threading.Lock()
        self._epoch: int | None = None
        self._chunks = 0
        self.start = start
        self.resets: Counter[str] = Counter()
        """Resets that took effect, by name."""
        self.refused: Counter[str] = Counter()
        """Chunks that were not let out, by reason."""

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
        with self._reset_lock:
            self._pending_reset = self._pending_reset or reason

    def step(self, observation: Observation, instruction: str) -> Inference:
        """Infer once.

        Args:
            observation: images and joint positions as the contract orders them.
            instruction: what to do; a change resets.

        Raises:
            UnsafeActionError: the actions must not reach the robot; counted, and the next inference starts afresh.
            ValueError: the policy cannot work with the instruction; counted.
        """
        if instruction != self._instruction:
            self.reset(RESET_INSTRUCTION)
        if self._epoch is not None and observation.frame_set.epoch != self._epoch:
            self.reset(RESET_CLOCK_JUMP)
        self._instruction, self._epoch = instruction, observation.frame_set.epoch
        with self._reset_lock:
            reset_reason, self._pending_reset = self._pending_reset, ""
        if reset_reason:
            self._policy.reset()
            self.resets[reset_reason] += 1
        spec = self._policy.spec
        infer_start_ns = self._clock_ns()
        steady_ns = time.perf_counter_ns()
        try:
            actions = np.ascontiguousarray(self._policy.infer(observation, instruction), np.float32)
            steady_ns = time.perf_counter_ns() - steady_ns
            infer_end_ns = self._clock_ns()
            check_actions(actions, self._robot, spec.horizon)
        except UnsafeActionError as error:
            self.refused[error.reason] += 1
            self.reset(RESET_HOLD)
            raise
        except ValueError:
            self.refused["policy_error"] += 1
            self.reset(RESET_HOLD)
            raise
        return Inference(
            actions=actions,
            period_ns=self._robot.period_ns,
            infer_start_ns=infer_start_ns,
            infer_end_ns=infer_end_ns,
            infer_steady_ns=steady_ns,
            instruction=instruction,
            steps=spec.steps,
            warm_start=False,
            reset_reason=reset_reason,
            plan_id=spec.plan_id,
        )

    def publish(self, observation: Observation, inference: Inference) -> Chunk | None:
        """Stamp an inference for publication now; None when all of its actions are past already (counted)."""
        frame_set = observation.frame_set
        publish_ns = self._clock_ns()
        chunk = Chunk(
            chunk_id=self._chunks + 1,
            inference=inference,
            timeline=Timeline(
                capture_ns=frame_set.stamp_ns,
                receive_ns=frame_set.oldest.receive_ns,
                sync_ns=frame_set.sync_ns,
                infer_start_ns=inference.infer_start_ns,
                infer_end_ns=inference.infer_end_ns,
                publish_ns=publish_ns,
            ),
            planned_start_ns=(frame_set.stamp_ns if self.start is Start.ALIGNED else publish_ns),
        )
        if chunk.first_valid_index == chunk.horizon:
            self.refused["all_past"] += 1
            return None
        self._chunks += 1
        return chunk
