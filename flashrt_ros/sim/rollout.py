"""Episodes in simulated time: pictures at 30 Hz, chunks that arrive after a latency, actions by their time.

The clock runs free of wall time: an inference takes as long as the latency model says while the
world goes on, and never are there two at once. What turns pictures into applied actions is what a
robot runs: the `PolicySession` with its gate, chunks with their stamps, and the `ChunkPlayer`.
Same episode, same settings, same machine: the same result, bit for bit (but for `real` latency).
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.chunk import Chunk
from flashrt_ros.control.player import ChunkPlayer, PlayableChunk
from flashrt_ros.control.policies import PolicySettings, build_policy
from flashrt_ros.control.policy import (
    Policy,
)
from flashrt_ros.control.resets import EPISODE
from flashrt_ros.control.robot import Robot, load_robot
from flashrt_ros.control.safety import UnsafeActionError
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.control.watched_policy import WatchedPolicy
from flashrt_ros.observation.frame import Frame, FrameSet, Observation
from flashrt_ros.paths import config_path
from flashrt_ros.sim.camera import COLOURS
from flashrt_ros.sim.latency import FixedLatency, Latency
from flashrt_ros.sim.tasks import NOMINAL_BELT_SPEED_M_S, Episode, Judge, draw_episode, jerk
from flashrt_ros.sim.world import CAMERAS, BeltWorld

SUBSTEPS = 4  # looks at the world between two control periods: contact, joint positions
IMAGE_SIZE = 96
MAX_AGE_NS = 2_000_000_000  # of an applied action: late ones must show in the result, not vanish


@dataclass(frozen=True)
class RolloutSettings:
    """What is the same for all episodes of a rollout."""

    policy: PolicySettings = field(default_factory=PolicySettings)
    robot: str = "so101"
    latency: Latency = field(default_factory=lambda: FixedLatency(0))
    """From capture to publication of a chunk."""
    replan: int = 4
    """Actions between two inferences, more where an inference takes longer."""
    session: SessionSettings = field(default_factory=SessionSettings)
    """How chunks are made and go on from each other."""
    image_size: int = IMAGE_SIZE
    belt_speed_m_s: float = NOMINAL_BELT_SPEED_M_S
    blind: bool = False
    """Black pictures."""
    wrong_instruction: bool = False
    """Another block than the target is named."""
    record: bool = False
    """Keep the pictures."""

    def __post_init__(self) -> None:
        if self.replan < 1:
            raise ValueError(f"replan {self.replan}: expected at least 1 action")
        if not 16 <= self.image_size <= 1024:
            raise ValueError(f"image_size {self.image_size}: expected 16 to 1024 pixels")


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """What came of one episode; times in seconds of simulated time."""

    episode: Episode
    verdict: str
    """`success`, `wrong_block` or `time`."""
    time_s: float | None
    """From when it was judged to the touch that counted; None without success."""
    jerk_rad2_s5: float
    inferences: int
    missed_events: int
    """Brief events that no inference saw."""
    refused: Mapping[str, int]
    """Chunks that were not let out or not played, by reason."""
    resets: Mapping[str, int]
    """Why nothing was carried over from the chunk before, by name."""
    recoveries_ns: NDArray[np.int64]
    """Of every inference that recovered from a reset: start to publication."""
    divergences: NDArray[np.float64]
    """Of every warm start, taken or not: how far its chunk went, normalised units."""
    commands: NDArray[np.float64]
    """[P, 6], rad, the command in force at each control period from the first on."""
    joins: NDArray[np.bool_]
    """[P], whether the command is the first of another chunk than the one before."""
    ages_ns: NDArray[np.int64]
    """Of every applied action [N]: application minus capture."""
    infer_ns: NDArray[np.int64]
    """What each inference took on this machine [M]."""
    joint_positions: NDArray[np.float64]
    """[T, 6], rad, SUBSTEPS in a control period."""
    pictures: tuple[NDArray[np.uint8], ...] = ()
    """Where recorded: both cameras side by side, one a control period."""

    @property
    def success(self) -> bool:
        """Whether the target was touched in time and no other block before."""
        return self.verdict == "success"

    def to_json(self) -> dict[str, Any]:
        """What is worth keeping of it."""
        return {
            "seed": self.episode.seed,
            "target": self.episode.target,
            "verdict": self.verdict,
            "time_s": self.time_s,
            "jerk_rad2_s5": self.jerk_rad2_s5,
            "inferences": self.inferences,
            "missed_events": self.missed_events,
            "refused": dict(self.refused),
        }


class _Clock:
    """Simulated time, in which an inference takes what the latency model says."""

    def __init__(self, latency: Latency, seed: int) -> None:
        self._latency = latency
        self._random = np.random.default_rng([seed, 1])
        self._begun_ns = 0
        self.now_ns = 0
        self.measured_ns: list[int] = []
        """What each inference took on this machine."""

    def begin(self) -> None:
        self._begun_ns = time.perf_counter_ns()

    def end(self, steps: int) -> None:
        self.measured_ns.append(time.perf_counter_ns() - self._begun_ns)
        self.now_ns += self._latency.draw_ns(self._random, self.measured_ns[-1], steps)


class _Run:
    """One episode under way."""

    def __init__(
        self, episode: Episode, policy: Policy, robot: Robot, settings: RolloutSettings
    ) -> None:
        self._episode = episode
        self._settings = settings
        self._robot = robot
        self._clock = _Clock(settings.latency, episode.seed)
        self._policy = WatchedPolicy(policy, begin=self._clock.begin, end=self._clock.end)
        self._session = PolicySession(
            self._policy, robot, settings.session, clock_ns=lambda: self._clock.now_ns
        )
        self._player = ChunkPlayer(robot.joint_names, MAX_AGE_NS)
        self._world = _world(episode.colours, settings.image_size)
        self._arriving: Chunk | None = None
        self._next_capture_tick = 0
        self._captures_ns: list[int] = []
        self._capture_of: dict[int, int] = {}
        self._ages_ns: list[int] = []
        self._recoveries_ns: list[int] = []
        self._divergences: list[float] = []
        self._commands: list[NDArray[np.float32]] = []
        self._joins: list[bool] = []
        self._played = 0
        self._joints: list[NDArray[np.float64]] = []
        self._pictures: list[NDArray[np.uint8]] = []
        self._changes = list(episode.changes)

    def result(self) -> EpisodeResult:
        episode, world, robot = self._episode, self._world, self._robot
        episode.lay_out(world)
        # Of the episode, so that it does not matter which ones were run before.
        self._policy.reseed(self._settings.policy.seed * 1_000_003 + episode.seed)
        self._session.reset(EPISODE)
        judge = Judge(episode)
        tick = 0
        while not judge.verdict:
            now_ns = tick * robot.period_ns
            self._control(tick, now_ns)
            for part in range(SUBSTEPS):
                time_s = (now_ns + part * robot.period_ns // SUBSTEPS) * 1e-9
                self._advance(time_s)
                self._joints.append(world.joint_positions)
                if judge.update(time_s, world):
                    break
            tick += 1
        seen = [
            any(begin <= capture_ns * 1e-9 < end for capture_ns in self._captures_ns)
            for begin, end in episode.brief
        ]
        joints = np.stack(self._joints)
        touched_s = judge.touched_at_s if judge.verdict == "success" else None
        return EpisodeResult(
            episode=episode,
            verdict=judge.verdict,
            time_s=None if touched_s is None else touched_s - episode.judged_from_s,
            jerk_rad2_s5=jerk(joints, robot.period_s / SUBSTEPS),
            inferences=len(self._captures_ns),
            missed_events=seen.count(False),
            refused=dict(self._session.refused + self._player.refused),
            resets=dict(self._session.resets),
            recoveries_ns=np.array(self._recoveries_ns, dtype=np.int64),
            divergences=np.array(self._divergences, dtype=np.float64),
            commands=np.array(self._commands, dtype=np.float64).reshape(-1, len(robot.joints)),
            joins=np.array(self._joins, dtype=np.bool_),
            ages_ns=np.array(self._ages_ns, dtype=np.int64),
            infer_ns=np.array(self._clock.measured_ns, dtype=np.int64),
            joint_positions=joints,
            pictures=tuple(self._pictures),
        )

    def _advance(self, time_s: float) -> None:
        """Physics up to a time, with the changes that fall into it."""
        while self._changes and self._changes[0][0] <= time_s:
            when_s, change = self._changes.pop(0)
            self._world.step_until(max(when_s, self._world.time_s))
            change.apply(self._world)
        self._world.step_until(time_s)

    def _control(self, tick: int, now_ns: int) -> None:
        """At one control period: a chunk that arrives, a picture, the action that is due."""
        self._advance(now_ns * 1e-9)
        self._deliver(now_ns)
        infers = self._arriving is None and tick >= self._next_capture_tick
        if infers or self._settings.record:
            images = {camera: self._world.render(camera) for camera in CAMERAS}
            if self._settings.record:
                self._pictures.append(np.concatenate([images[name] for name in CAMERAS], axis=1))
        if infers:
            self._next_capture_tick = tick + self._settings.replan
            self._infer(images, now_ns)
            self._deliver(now_ns)
        action = self._player.due(now_ns)
        if action is not None:
            self._world.set_joint_targets(action.positions)
            self._session.report_applied(action.chunk_id, action.action_index, now_ns)
            self._ages_ns.append(now_ns - self._capture_of[action.chunk_id])
            self._joins.append(self._played not in (0, action.chunk_id))
            self._commands.append(action.positions)
            self._played = action.chunk_id
        elif self._commands:
            self._joins.append(False)
            self._commands.append(self._commands[-1])

    def _infer(self, images: dict[str, NDArray[np.uint8]], now_ns: int) -> None:
        if self._settings.blind:
            images = {camera: np.zeros_like(image) for camera, image in images.items()}
        frames = {name: Frame(name, now_ns, now_ns) for name in images}
        first = next(iter(frames.values()))
        frame_set = FrameSet(frames, frozenset(), first, first, now_ns, epoch=0)
        observation = Observation(frame_set, images, self._world.joint_positions, now_ns, now_ns)
        instruction = self._episode.instruction_at(now_ns * 1e-9)
        if self._settings.wrong_instruction:
            instruction = name_another(instruction, self._episode)
        self._clock.now_ns = now_ns
        self._captures_ns.append(now_ns)
        try:
            inference = self._session.step(observation, instruction)
        except UnsafeActionError:
            return  # counted by the session; what was planned before goes on, or the arm holds
        if inference.divergence:
            self._divergences.append(inference.divergence)
        self._arriving = chunk = self._session.publish(observation, inference)
        if chunk is not None and chunk.recovery_ns:
            self._recoveries_ns.append(chunk.recovery_ns)

    def _deliver(self, now_ns: int) -> None:
        chunk = self._arriving
        if chunk is None or chunk.timeline.publish_ns > now_ns:
            return
        self._arriving = None
        self._capture_of[chunk.chunk_id] = chunk.timeline.capture_ns
        self._player.accept(PlayableChunk.of(chunk, self._robot.joint_names), now_ns)


def name_another(instruction: str, episode: Episode) -> str:
    """The instruction with the name of the next block in place of the one that it names."""
    for at, colour in enumerate(episode.colours):
        if colour in instruction.split():
            return instruction.replace(colour, episode.colours[(at + 1) % len(episode.colours)])
    return f"touch the {episode.colours[episode.colours.index(episode.target) - 1]} block"


@lru_cache(maxsize=len(COLOURS) * 6)
def _world(colours: tuple[str, ...], image_size: int) -> BeltWorld:
    """A world of this process: building one costs more than an episode."""
    return BeltWorld(0, image_size=(image_size, image_size), colours=colours)


def run_episode(
    episode: Episode, policy: Policy, robot: Robot, settings: RolloutSettings
) -> EpisodeResult:
    """Run one episode with a policy that is loaded already.

    Raises:
        RobotError: the policy does not fit the robot.
        ValueError: the policy cannot work with the task's instruction.
    """
    return _Run(episode, policy, robot, settings).result()


def load_rollout_policy(settings: RolloutSettings) -> tuple[Policy, Robot]:
    """The policy and the robot contract that the settings name; raises as `build_policy` does."""
    robot = load_robot(config_path(f"robots/{settings.robot}.yaml"))
    return build_policy(settings.policy, robot), robot


_Job = tuple[Episode, RolloutSettings]
_LOADED: dict[tuple[PolicySettings, str], tuple[Policy, Robot]] = {}


def _run_job(job: _Job) -> EpisodeResult:
    """Run an episode with the policy that this process has loaded for such settings."""
    episode, settings = job
    key = settings.policy, settings.robot
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = load_rollout_policy(settings)
    return run_episode(episode, *_LOADED[key], settings)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@contextmanager
def rollout_pool(workers: int) -> Iterator[Pool]:
    """Processes for `rollout`, one thread each; they keep what they loaded."""
    with multiprocessing.get_context("spawn").Pool(workers, _one_thread) as pool:
        yield pool


def rollout(
    task: str,
    seeds: Sequence[int],
    settings: RolloutSettings,
    *,
    pool: Pool | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[EpisodeResult]:
    """Episodes of a task, in the order of their seeds.

    Args:
        task: one of `tasks.TASKS`.
        seeds: one for each episode.
        settings: the same for all.
        pool: processes of `rollout_pool`; None runs the episodes here.
        progress: told how many of how many are done.

    Raises:
        ValueError: unknown task or a setting that does not fit; what `load_rollout_policy` raises.
    """
    jobs = [(draw_episode(task, seed, settings.belt_speed_m_s), settings) for seed in seeds]
    results = map(_run_job, jobs) if pool is None else pool.imap(_run_job, jobs)
    for done, result in enumerate(results, start=1):
        yield result
        progress(done, len(jobs))
