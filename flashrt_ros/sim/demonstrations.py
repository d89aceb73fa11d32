"""Demonstrations for the small π0.5: the scripted law with the simulator's knowledge, in a world full of mishaps.

The recorded actions are always what the law would do from the state that is there; what the arm
does is disturbed (noise and jolts, as in DART), the blocks are pushed, the belt changes its speed
and the instruction its mind. So the data hold the ways back from where a learned policy may stray.
Nothing goes into an action that one picture cannot tell: the law gets the block's place and the
belt's speed, which the gauge shows, never the speed of a pushed block.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.models.images import resize_with_pad_openpi
from flashrt_ros.sim import kinematics
from flashrt_ros.sim.camera import BELT_VISIBLE_HALF_LENGTH_M, COLOURS
from flashrt_ros.sim.motion import BlockMotion, plan_posture, plan_touch
from flashrt_ros.sim.small_policy import CONFIG, VIEWS
from flashrt_ros.sim.tasks import FLASH_S, push_velocity, speed_changes
from flashrt_ros.sim.world import HOME_RAD, BeltWorld

PERIOD_S = 1.0 / 30.0
MIXED_S = 5.0
FLASH_EPISODE_S = 3.0
FLASH_SHARE = 0.3
TARGETS = (*COLOURS, "flashing")
"""What an instruction can name; a demonstration keeps the index."""
_CAMERA_SIZES = (CONFIG.image_size, 224)  # drawn at the policy's size, or larger and shrunk


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """Observations with what to do from their moment on."""

    images: NDArray[np.uint8]
    """[N, 2, S, S, 3], RGB, views in the policy's order."""
    states: NDArray[np.float32]
    """[N, 6], joint positions, rad."""
    targets: NDArray[np.int64]
    """[N], what the instruction names: index into TARGETS."""
    actions: NDArray[np.float32]
    """[N, horizon, 6], absolute joint positions, rad."""

    def __len__(self) -> int:
        return len(self.states)


class _Recorder:
    """One demonstration under way."""

    def __init__(self, random: np.random.Generator):
        self.random = random
        colours = tuple(str(c) for c in random.permutation(list(COLOURS))[:3])
        self.size = int(random.choice(_CAMERA_SIZES))
        self.world = _world(colours, self.size)
        self.colours = colours
        self.images: list[NDArray[np.uint8]] = []
        self.states: list[NDArray[np.float32]] = []
        self.targets: list[int] = []
        self.actions: list[NDArray[np.float32]] = []
        self._drift = np.zeros(len(HOME_RAD))

    def record(self, named: str, goal: str | None, noise_rad: float, jolt: NDArray) -> None:
        """One picture, what to do about it, and a disturbed control period; `goal` None is home."""
        world = self.world
        views = []
        for camera in VIEWS:
            picture = world.render(camera)
            views.append(resize_with_pad_openpi(picture, CONFIG.image_size))
        joints = world.joint_positions
        if goal is None:
            chunk = plan_posture(joints, HOME_RAD, CONFIG.horizon, PERIOD_S)
        else:
            x, y, _ = world.block_position(goal)
            block = BlockMotion((float(x), float(y)), (0.0, world.belt_speed_m_s))
            chunk = plan_touch(joints, block, CONFIG.horizon, PERIOD_S)
        self.images.append(np.stack(views))
        self.states.append(joints.astype(np.float32))
        self.targets.append(TARGETS.index(named))
        self.actions.append(chunk)
        self._drift = 0.8 * self._drift + 0.6 * noise_rad * self.random.standard_normal(6)
        world.set_joint_targets(chunk[0] + self._drift + jolt)

    def result(self) -> Demonstrations:
        return Demonstrations(
            np.stack(self.images),
            np.stack(self.states),
            np.array(self.targets, dtype=np.int64),
            np.stack(self.actions),
        )


@lru_cache(maxsize=64)
def _world(colours: tuple[str, ...], size: int) -> BeltWorld:
    return BeltWorld(0, image_size=(size, size), colours=tuple(sorted(colours)))


def demonstrate(seed: int) -> Demonstrations:
    """The demonstration that belongs to a seed: 150 observations of mixed tasks, or 90 of `flash`."""
    random = np.random.default_rng([7, seed])
    recorder = _Recorder(random)
    if random.random() < FLASH_SHARE:
        _demonstrate_flash(recorder)
    else:
        _demonstrate_mixed(recorder)
    return recorder.result()


def _demonstrate_mixed(recorder: _Recorder) -> None:
    """Reach, intercept, switch and nudge in one."""
    random, world = recorder.random, recorder.world
    mean = 0.0
    if random.random() < 0.6:
        mean = float(random.uniform(0.01, 0.1) * random.choice([-1.0, 1.0]))
    changes = speed_changes(random, mean, MIXED_S) if mean and random.random() < 0.8 else []
    world.reset(int(random.integers(2**31)), mean, float(random.uniform(0.6, 1.4)), _start(random))
    noise_rad = float(random.choice([0.0, 0.01, 0.03, 0.06]))
    named, next_switch_s = "", 0.0
    jolt, jolt_until_s = np.zeros(6), 0.0
    for tick in range(round(MIXED_S / PERIOD_S)):
        now_s = tick * PERIOD_S
        world.step_until(now_s)
        while changes and changes[0][0] <= now_s:
            changes.pop(0)[1].apply(world)
        if random.random() < 0.4 * PERIOD_S:
            world.push_block(str(random.choice(recorder.colours)), push_velocity(random))
        hidden = named in recorder.colours and not _visible(world, named)
        if now_s >= next_switch_s or hidden:
            named = _name(random, recorder)
            next_switch_s = now_s + float(random.uniform(0.5, 2.2))
        if now_s >= jolt_until_s:
            jolt = np.zeros(6)
            if random.random() < 0.5 * PERIOD_S:
                jolt = random.uniform(-0.5, 0.5, 6) * np.array([1.0, 1.0, 1.0, 1.0, 0.4, 0.4])
                jolt_until_s = now_s + float(random.uniform(0.1, 0.4))
        recorder.record(named, named if named in recorder.colours else None, noise_rad, jolt)


def _demonstrate_flash(recorder: _Recorder) -> None:
    """Wait at home for the lamp, then touch the block that it told.

    Little noise: on the way the arm's own place is the only memory of what the lamp said.
    """
    random, world = recorder.random, recorder.world
    start = HOME_RAD + random.normal(0.0, 0.01, 6)
    world.reset(int(random.integers(2**31)), 0.0, float(random.uniform(0.6, 1.4)), start)
    target = str(random.choice(recorder.colours))
    flash_s = float(random.uniform(0.2, 1.5))
    noise_rad = float(random.choice([0.0, 0.01, 0.02]))
    for tick in range(round(FLASH_EPISODE_S / PERIOD_S)):
        now_s = tick * PERIOD_S
        world.step_until(now_s)
        world.set_lamp(target if flash_s <= now_s < flash_s + FLASH_S else None)
        goal = target if now_s >= flash_s else None
        recorder.record("flashing", goal, noise_rad, np.zeros(6))
    world.set_lamp(None)


def _start(random: np.random.Generator) -> NDArray[np.float64]:
    """Home, or anywhere over the belt and before it."""
    if random.random() < 0.5:
        return HOME_RAD + random.normal(0.0, 0.02, 6)
    while True:
        x, y, z = random.uniform((0.12, -0.28, 0.06), (0.31, 0.28, 0.2))
        try:
            joints = kinematics.inverse((x, y, z))
        except kinematics.UnreachableError:
            continue
        return joints + random.normal(0.0, 0.05, 6)


def _visible(world: BeltWorld, colour: str) -> bool:
    return abs(float(world.block_position(colour)[1])) < BELT_VISIBLE_HALF_LENGTH_M - 0.01


def _name(random: np.random.Generator, recorder: _Recorder) -> str:
    """A block in view; now and then one that is not there, for which the arm goes home."""
    visible = [colour for colour in recorder.colours if _visible(recorder.world, colour)]
    absent = [colour for colour in COLOURS if colour not in recorder.colours]
    if not visible or random.random() < 0.04:
        return str(random.choice(absent))
    return str(random.choice(visible))


def _shard(seeds: range) -> Demonstrations:
    return join([demonstrate(seed) for seed in seeds])


def join(parts: list[Demonstrations]) -> Demonstrations:
    """Several as one."""
    return Demonstrations(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("images", "states", "targets", "actions")
        )
    )


def save(file: Path, demonstrations: Demonstrations) -> None:
    """Write an .npz, whole or not at all."""
    unfinished = file.with_suffix(".part")
    with unfinished.open("wb") as opened:
        np.savez(opened, **vars(demonstrations))
    unfinished.rename(file)


def load(file: Path) -> Demonstrations:
    """Read what `save` wrote."""
    with np.load(file) as values:
        return Demonstrations(**{name: values[name] for name in values.files})


def prepare(
    folder: Path,
    episodes: int,
    workers: int,
    first_seed: int = 0,
    episodes_a_shard: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Files with the demonstrations of `episodes` seeds; those that are there are not made again.

    Args:
        folder: made where it is not there.
        episodes: number of demonstrations.
        workers: processes.
        first_seed: of the first; the others follow.
        episodes_a_shard: demonstrations in a file.
        progress: told how many episodes of how many are done.

    Returns:
        One file for each shard, in the order of seeds, see `load`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = first_seed + episodes
    shards = [
        range(begin, min(begin + episodes_a_shard, end))
        for begin in range(first_seed, end, episodes_a_shard)
    ]
    jobs = [(folder / f"seeds_{seeds[0]:06d}_{len(seeds):03d}.npz", seeds) for seeds in shards]
    missing = [(file, seeds) for file, seeds in jobs if not file.exists()]
    done = episodes - sum(len(seeds) for _, seeds in missing)
    progress(done, episodes)
    if missing:
        context = multiprocessing.get_context("spawn")
        with context.Pool(min(workers, len(missing))) as pool:
            for count in pool.imap_unordered(_write_shard, missing):
                done += count
                progress(done, episodes)
    return [file for file, _ in jobs]


def _write_shard(job: tuple[Path, range]) -> int:
    file, seeds = job
    save(file, _shard(seeds))
    return len(seeds)
