"""An episode in simulated time: pictures at 30 Hz, chunks that arrive after a latency, actions by
their time.

Between two actions the command is interpolated, as a joint trajectory controller does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from flashrt_ros.sim.expert import ScriptedExpert
from flashrt_ros.sim.tasks import Reach
from flashrt_ros.sim.world import BeltWorld

PERIOD_S = ScriptedExpert.period_s
CONTROL_TICKS = 4  # commands a picture, 120 Hz


@dataclass
class Episode:
    reached_at_s: dict[str, float] = field(default_factory=dict)  # every block that was touched
    joint_positions: list[np.ndarray] = field(default_factory=list)


def run_episode(
    world: BeltWorld,
    instruction: str,
    duration_s: float,
    latency_s: float = 0.0,
    blind: bool = False,
    stop_at: str | None = None,
) -> Episode:
    """Replan from every picture; at time t apply the action of the newest chunk that t belongs
    to."""
    expert = ScriptedExpert()
    tasks = [Reach(colour) for colour in world.colours]
    under_way: deque[tuple[float, float, np.ndarray]] = deque()  # (ready, capture, chunk)
    chunk, capture = None, 0.0
    episode = Episode()
    for tick in range(round(duration_s / PERIOD_S)):
        now = tick * PERIOD_S
        world.step_until(now)
        image = world.render("overhead")
        if blind:
            image = np.zeros_like(image)
        actions = expert.infer(
            {"overhead": image}, world.joint_positions, instruction, round(now * 1e9)
        )
        under_way.append((now + latency_s, now, actions))
        while under_way and under_way[0][0] <= now + 1e-9:
            _, capture, chunk = under_way.popleft()
        for control_tick in range(CONTROL_TICKS if chunk is not None else 0):
            command_time = now + control_tick * PERIOD_S / CONTROL_TICKS
            world.step_until(command_time)
            world.set_joint_targets(action_at(chunk, command_time - capture))
        episode.joint_positions.append(world.joint_positions)
        for task in tasks:
            if task.update(now, world.tip_position, world.block_position(task.colour)):
                episode.reached_at_s.setdefault(task.colour, now)
        if stop_at in episode.reached_at_s:
            break
    return episode


def action_at(chunk: np.ndarray, since_capture_s: float) -> np.ndarray:
    """The command `since_capture_s` after the observation; the last one holds after the chunk's
    end."""
    place = min(since_capture_s / PERIOD_S, len(chunk) - 1.0)
    first = min(int(place), len(chunk) - 2)
    share = place - first
    return (1.0 - share) * chunk[first] + share * chunk[first + 1]
