"""The tasks on the belt world: what happens in an episode, when it is done, and how smoothly.

    reach      touch the named block at rest
    intercept  touch the named block on a belt whose speed changes; the gauge shows it at once
    switch     the instruction names another block mid-way
    nudge      the named block is pushed away at a moment that nobody knows
    flash      a lamp lights for 100 ms and tells which block

An episode follows from task, seed and options alone. The arithmetic of success is the same for
every policy: the fingertip stays on the block for a while, and on no other block before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.sim.camera import COLOURS

if TYPE_CHECKING:  # the tasks themselves need no simulator
    from flashrt_ros.sim.world import BeltWorld

TASKS = ("reach", "intercept", "switch", "nudge", "flash")
NOMINAL_BELT_SPEED_M_S = 0.08
"""Mean speed of the belt in `intercept`, where no other is asked for."""
HOLD_S = 0.2
"""How long the fingertip must stay on a block: brushing past one is neither success nor failure."""
INTERCEPT_HOLD_S = 0.4
"""In `intercept`: long enough that the belt may change its speed meanwhile, which must be seen."""
FLASH_S = 0.1
FLASH_INSTRUCTION = "touch the flashing block"

# Fingertip centre to block centre. Resting on the middle of a block's top it is 0.027 m, so this
# allows 0.019 m to the side: the fingertip is on the block, wherever on it.
REACH_RADIUS_M = 0.033


class Reach:
    """The task `reach`: the fingertip comes within a radius of the named block, at rest or on the
    belt.

    `reached_at_s` is the time of the first moment at which it did, None until then; it does not
    move afterwards.
    """

    def __init__(self, colour: str, radius_m: float = REACH_RADIUS_M):
        self.colour = colour
        self.radius_m = radius_m
        self.reached_at_s: float | None = None

    def update(
        self,
        time_s: float,
        tip_position_m: NDArray[np.floating],
        block_position_m: NDArray[np.floating],
    ) -> bool:
        """Take in fingertip and block centre [3] (m) at `time_s`; whether the block has been
        reached by now."""
        if self.reached_at_s is None:
            distance = float(np.linalg.norm(np.subtract(tip_position_m, block_position_m)))
            if distance <= self.radius_m:
                self.reached_at_s = time_s
        return self.reached_at_s is not None


@dataclass(frozen=True)
class SetBeltSpeed:
    """The belt's speed changes at once."""

    speed_m_s: float

    def apply(self, world: BeltWorld) -> None:
        """Do it."""
        world.set_belt_speed(self.speed_m_s)


@dataclass(frozen=True)
class PushBlock:
    """A block gets a velocity (x, y), which the belt's grip brakes again."""

    colour: str
    velocity_m_s: tuple[float, float]

    def apply(self, world: BeltWorld) -> None:
        """Do it."""
        world.push_block(self.colour, self.velocity_m_s)


@dataclass(frozen=True)
class SetLamp:
    """The lamp is lit in a colour, or goes dark (None)."""

    colour: str | None

    def apply(self, world: BeltWorld) -> None:
        """Do it."""
        world.set_lamp(self.colour)


Change = SetBeltSpeed | PushBlock | SetLamp


@dataclass(frozen=True)
class Episode:
    """All that is drawn for one episode before it begins. Times are seconds of simulated time."""

    task: str
    seed: int
    colours: tuple[str, ...]
    target: str
    """The block that must be touched, from `judged_from_s` on."""
    instructions: tuple[tuple[float, str], ...]
    """(from when, text), the first from 0."""
    light: float
    belt_speed_m_s: float
    changes: tuple[tuple[float, Change], ...]
    """(when, what), in order of time."""
    judged_from_s: float
    limit_s: float
    """When the episode has failed."""
    hold_s: float = HOLD_S
    """How long the fingertip must stay on the target."""
    brief: tuple[tuple[float, float], ...] = ()
    """(from, to): what can only be seen meanwhile."""

    def instruction_at(self, time_s: float) -> str:
        """The instruction in force."""
        return [text for since, text in self.instructions if since <= time_s + 1e-9][-1]

    def lay_out(self, world: BeltWorld) -> None:
        """Put a world of the same colours into the episode's first state."""
        world.reset(self.seed, self.belt_speed_m_s, self.light)


def draw_episode(task: str, seed: int, belt_speed_m_s: float = NOMINAL_BELT_SPEED_M_S) -> Episode:
    """The episode of a task that belongs to a seed.

    `belt_speed_m_s`: mean speed in `intercept`, 0 to 0.1; the direction is drawn. Raises
    ValueError for an unknown task or another speed.
    """
    if task not in TASKS:
        raise ValueError(f"task {task!r}: expected one of {', '.join(TASKS)}")
    if not 0.0 <= belt_speed_m_s <= 0.1:
        raise ValueError(f"belt speed {belt_speed_m_s} m/s: expected 0 to 0.1")
    random = np.random.default_rng([TASKS.index(task), seed])
    colours = tuple(str(name) for name in random.permutation(list(COLOURS))[:3])
    target, other = colours[0], colours[1]
    colours = tuple(str(name) for name in random.permutation(list(colours)))
    text = f"touch the {target} block"
    instructions: tuple[tuple[float, str], ...] = ((0.0, text),)
    speed, begin_s, limit_s = 0.0, 0.0, 3.0
    changes: tuple[tuple[float, Change], ...] = ()
    brief: tuple[tuple[float, float], ...] = ()
    if task == "intercept":
        mean = belt_speed_m_s * float(random.choice([-1.0, 1.0]))
        changes = tuple(speed_changes(random, mean, limit_s))
        speed = mean
    elif task == "switch":
        begin_s = float(random.uniform(0.3, 1.5))
        instructions = ((0.0, f"touch the {other} block"), (begin_s, text))
    elif task == "nudge":
        begin_s = float(random.uniform(0.3, 1.3))
        changes = ((begin_s, PushBlock(target, push_velocity(random))),)
    elif task == "flash":
        begin_s = float(random.uniform(0.5, 1.5))
        instructions = ((0.0, FLASH_INSTRUCTION),)
        changes = ((begin_s, SetLamp(target)), (begin_s + FLASH_S, SetLamp(None)))
        brief = ((begin_s, begin_s + FLASH_S),)
    return Episode(
        task=task,
        seed=seed,
        colours=colours,
        target=target,
        instructions=instructions,
        light=float(random.uniform(0.7, 1.3)),
        belt_speed_m_s=speed,
        changes=changes,
        judged_from_s=begin_s,
        limit_s=begin_s + limit_s,
        hold_s=INTERCEPT_HOLD_S if task == "intercept" else HOLD_S,
        brief=brief,
    )


def speed_changes(
    random: np.random.Generator, mean_m_s: float, until_s: float
) -> list[tuple[float, Change]]:
    """Speeds from near rest to nearly twice the mean, a new one every 0.3 to 0.7 s."""
    changes: list[tuple[float, Change]] = []
    time_s = float(random.uniform(0.3, 0.7))
    while time_s < until_s:
        changes.append((time_s, SetBeltSpeed(mean_m_s * float(random.uniform(0.1, 1.9)))))
        time_s += float(random.uniform(0.3, 0.7))
    return changes


def push_velocity(random: np.random.Generator) -> tuple[float, float]:
    """A push along the belt that moves a block by 3 to 8 cm, one way or the other."""
    along = float(random.uniform(0.7, 1.1)) * float(random.choice([-1.0, 1.0]))
    return float(random.uniform(-0.1, 0.1)), along


class Judge:
    """Watches the fingertip: `verdict` is empty while the episode is open.

    Then it is `success`, `wrong_block` (another one was touched for as long, by a touch that began
    when the episode was judged already) or `time`.
    """

    def __init__(self, episode: Episode):
        self._episode = episode
        self._since_s: dict[str, float] = {}
        self.verdict = ""
        self.touched_at_s: float | None = None
        """When the touch that counted began."""

    def update(self, time_s: float, world: BeltWorld) -> str:
        """Take in the state at `time_s` (rising); the verdict."""
        episode = self._episode
        if self.verdict:
            return self.verdict
        tip = world.tip_position
        for colour in episode.colours:
            if np.linalg.norm(tip - world.block_position(colour)) > REACH_RADIUS_M:
                self._since_s.pop(colour, None)
                continue
            # A touch that began before, of the block that was right then, is not held against it.
            since_s = self._since_s.setdefault(colour, time_s)
            if colour == episode.target:
                since_s = max(since_s, episode.judged_from_s)
            elif since_s < episode.judged_from_s:
                continue
            hold_s = episode.hold_s if colour == episode.target else HOLD_S
            if time_s - since_s >= hold_s - 1e-9:
                self.verdict = "success" if colour == episode.target else "wrong_block"
                self.touched_at_s = since_s
                return self.verdict
        if time_s >= episode.limit_s:
            self.verdict = "time"
        return self.verdict


def jerk(
    joint_positions: Sequence[NDArray[np.floating]] | NDArray[np.floating], period_s: float
) -> float:
    """Integral over time of the squared jerk, summed over the joints, rad²/s⁵.

    `joint_positions` [T, J] (rad) sampled every `period_s`; the jerk is their third difference over
    period³. Raises ValueError for fewer than four samples, which have no third difference.
    """
    positions = np.asarray(joint_positions, dtype=np.float64)
    if positions.ndim != 2 or len(positions) < 4:
        raise ValueError(f"joint positions of shape {list(positions.shape)}: expected [T >= 4, J]")
    third = np.diff(positions, n=3, axis=0) / period_s**3
    return float(np.square(third).sum() * period_s)
