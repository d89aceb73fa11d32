"""The policy node, the player and the age logger in virtual time: the same parts, without ROS and without waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from flashrt_ros.control.chunk import Chunk, Inference
from flashrt_ros.control.observer import ObservationError, Observer, Settings
from flashrt_ros.control.player import ChunkPlayer, PlayableChunk
from flashrt_ros.control.policy import (
    Policy,
)
from flashrt_ros.control.robot import Robot
from flashrt_ros.control.runner import PolicyRunner
from flashrt_ros.control.safety import UnsafeActionError
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.watched_policy import WatchedPolicy
from flashrt_ros.observation.age_log import AgeLogWriter
from flashrt_ros.observation.ages import AgeJoiner
from flashrt_ros.observation.frame import FrameSet, Observation
from flashrt_ros.offline.latency import Latency, VirtualClock

_WATCH_PERIOD_NS = 50_000_000
_SETTLE_PERIOD_NS = 1_000_000_000


ObservationKey = tuple[tuple[tuple[str, int], ...], int]


def observation_key(captures_ns: Mapping[str, int], state_capture_ns: int) -> ObservationKey:
    """What makes two observations of one recording the same: the stamps of their pictures and of their joint state."""
    return tuple(sorted(captures_ns.items())), state_capture_ns


class VirtualRobot:
    """Takes messages in the order of their receipt and does in between what would have been done.

    One inference at a time; the newest set waits for it. Every duration but that of decoding and inference is 0.

    Args:
        policy: what infers.
        robot: the contract.
        settings: parameters of the policy node.
        latency: how long inference takes.
        log: where the run is logged.
        start_ns: record time of the first message.
        player_rate_hz: how often it is checked whether an action is due.
        max_age_ms: oldest observation whose actions are applied.
    """

    def __init__(
        self,
        policy: Policy,
        robot: Robot,
        settings: Settings,
        latency: Latency,
        log: AgeLogWriter,
        start_ns: int,
        *,
        player_rate_hz: float,
        max_age_ms: float,
    ) -> None:
        self.clock = VirtualClock()
        self.clock.set(start_ns)
        self._latency = latency
        self._infer_ns = 0  # virtual duration of the next inference
        self._policy = WatchedPolicy(policy, end=lambda steps: self.clock.advance(self._infer_ns))
        self.session = PolicySession(self._policy, robot, clock_ns=self.clock.now_ns)
        self.observer = Observer(robot, settings, start_ns)
        self.runner = PolicyRunner(self.session, self.observer, settings, start_ns)
        self.player = ChunkPlayer(robot.joint_names, round(max_age_ms * 1e6))
        self.joiner = AgeJoiner()
        self.chunks: list[Chunk] = []
        self.seen: list[ObservationKey] = []
        """What was seen by each chunk."""
        self.complaints: Counter[str] = Counter()
        """What the node would have logged as a warning; numbers left out."""
        self._log = log
        self._in_flight: tuple[int, Observation, Inference] | None = None
        self._busy_until_ns = start_ns
        self._tick_ns = round(1e9 / player_rate_hz)
        # Silence counts from the first picture on: before it the robot that was recorded had not begun.
        self._next: dict[str, int] = dict.fromkeys(("play", "settle"), start_ns)
        self._jobs: dict[str, Callable[[int], None]] = {
            "play": self._play,
            "watch": self._watch,
            "settle": self._settle,
        }

    # ------------------------------------------------------------ in

    def add_image(self, camera: str, message: Any, receive_ns: int) -> None:
        """A picture arrives."""
        self.run_until(receive_ns)
        if "watch" not in self._next:
            self.observer.watchdog.start(receive_ns)
            self.runner.last_publish_ns = receive_ns
            self._next["watch"] = receive_ns
        if camera in self.observer.needed:
            self.observer.watchdog.hear(camera, receive_ns)
        frame_set, complaint = self.observer.frames.add(camera, message, receive_ns)
        if complaint:
            self.complaints[f"camera {camera}: frame rejected"] += 1
        if frame_set is not None:
            self.observer.mailbox.put(frame_set)
            self._work(receive_ns)

    def add_joint_state(self, message: Any, receive_ns: int) -> None:
        """A joint state arrives."""
        self.run_until(receive_ns)
        if self.observer.add_joint_state(message, receive_ns):
            self.complaints["joint state refused"] += 1

    def run_until(self, now_ns: int) -> None:
        """Do everything that is due before a time, in order."""
        while True:
            name, due_ns = min(self._next.items(), key=lambda item: item[1])
            publish_ns = self._in_flight[0] if self._in_flight is not None else None
            if publish_ns is not None and publish_ns <= min(due_ns, now_ns):
                self._publish()
            elif due_ns <= now_ns:
                self.clock.set(due_ns)
                self._jobs[name](due_ns)
            elif self._busy_until_ns <= now_ns and self._in_flight is None and self._waiting():
                self._work(self._busy_until_ns)
            else:
                break
        self.clock.set(now_ns)

    def finish(self) -> None:
        """Nothing more will come: end the inference in flight, settle every action and log what became of everything.

        What was left to be played is not: the recording does not say what would have come in its place.
        """
        now_ns = self.clock.now_ns()
        if self._in_flight is not None:
            now_ns = self._in_flight[0]
            self.run_until(now_ns)
        for age in self.joiner.finish():
            self._log.age(age)
        self._log_fates(now_ns)

    # ------------------------------------------------------------ what a node does

    def _waiting(self) -> bool:
        return self.observer.mailbox.fates().waiting > 0

    def _work(self, now_ns: int) -> None:
        """Infer the set that waits, unless an inference is in flight."""
        while self._in_flight is None and self._busy_until_ns <= now_ns and self._waiting():
            frame_set = self.observer.mailbox.take()
            assert frame_set is not None
            self.clock.set(now_ns)
            try:
                self._infer(frame_set, now_ns)
            except (ObservationError, UnsafeActionError, ValueError) as error:
                reason = getattr(error, "reason", "policy_error")
                self.complaints[f"set not inferred: {reason}"] += 1
                # What failed took its time too.
                self._busy_until_ns = self.clock.now_ns()
            now_ns = max(now_ns, self._busy_until_ns)

    def _infer(self, frame_set: FrameSet, now_ns: int) -> None:
        output_ns = 0
        if self._latency.real:
            self.clock.run()
        else:
            self._infer_ns, output_ns = self._latency.draw()
        result = self.runner.infer(frame_set, now_ns)
        if result is not None:
            observation, inference = result
            publish_ns = inference.infer_end_ns + output_ns
            self._in_flight = (publish_ns, observation, inference)
            self._busy_until_ns = publish_ns

    def _publish(self) -> None:
        assert self._in_flight is not None
        publish_ns, observation, inference = self._in_flight
        self._in_flight = None
        self.clock.set(publish_ns)
        chunk = self.session.publish(observation, inference)
        if chunk is None:
            self.complaints["chunk past before it was published"] += 1
        else:
            self._take_chunk(chunk, observation)
            self.runner.published(publish_ns)
        self._work(publish_ns)

    def _take_chunk(self, chunk: Chunk, observation: Observation) -> None:
        inference = chunk.inference
        self.chunks.append(chunk)
        frame_set = observation.frame_set
        frames = frame_set.frames
        captures = {name: frame.capture_ns for name, frame in frames.items()}
        self.seen.append(observation_key(captures, observation.state_capture_ns))
        self._log.chunk(
            chunk.record,
            cameras={
                name: (frame.capture_ns, frame.receive_ns)
                for name, frame in frames.items()
                if name not in frame_set.held
            },
            skew_ns=frame_set.skew_ns,
            instruction=inference.instruction,
            steps=inference.steps,
            warm_start=inference.warm_start,
            divergence=inference.divergence,
            reset_reason=inference.reset_reason,
            recovery_ns=chunk.recovery_ns,
            deadline_missed=chunk.deadline_missed,
            seam=chunk.seam,
            executed=inference.executed,
            frozen=inference.frozen,
            clipped=chunk.clipped,
            plan_id=inference.plan_id,
            infer_steady_ns=inference.infer_steady_ns,
        )
        for age in self.joiner.add_chunk(chunk.record):
            self._log.age(age)
        self.player.accept(
            PlayableChunk(
                chunk_id=chunk.chunk_id,
                capture_ns=chunk.timeline.capture_ns,
                planned_start_ns=chunk.planned_start_ns,
                period_ns=inference.period_ns,
                first_valid_index=chunk.first_valid_index,
                joint_names=self.session.robot.joint_names,
                actions=chunk.actions,
                end_index=chunk.end_index,
            ),
            chunk.timeline.publish_ns,
        )

    def _play(self, now_ns: int) -> None:
        self._next["play"] = now_ns + self._tick_ns
        action = self.player.due(now_ns)
        if action is not None:
            self.session.report_applied(action.chunk_id, action.action_index, now_ns)
            age = self.joiner.add_applied(action.chunk_id, action.action_index, now_ns)
            if age is not None:
                self._log.age(age)

    def _watch(self, now_ns: int) -> None:
        self._next["watch"] = now_ns + _WATCH_PERIOD_NS
        self.runner.watch(now_ns)

    def _settle(self, now_ns: int) -> None:
        self._next["settle"] = now_ns + _SETTLE_PERIOD_NS
        for age in self.joiner.settle(now_ns):
            self._log.age(age)
        self._log_fates(now_ns)

    def _log_fates(self, now_ns: int) -> None:
        player = self.player
        self._log.fates("policy", now_ns, self.runner.counts())
        self._log.fates(
            "action_player",
            now_ns,
            {
                "chunks_accepted": player.accepted,
                "chunks_refused": dict(player.refused),
                "holds": dict(player.holds),
            },
        )
        self._log.fates(
            "age_logger",
            now_ns,
            {
                "chunks": self.joiner.chunks,
                "actions": self.joiner.fates(),
                "reports_refused": dict(self.joiner.refused),
            },
        )
