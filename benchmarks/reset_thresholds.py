"""How much do pictures and joints differ from one observation to the next, in normal motion and when something happens?

The defaults of `reset_view_change` and `reset_state_jump` lie between the two. The scripted expert moves the arm over
the belt, at several speeds and seeds; pictures are compared over several intervals, as inferences may lie apart.

    python benchmarks/reset_thresholds.py --output reset_thresholds.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from flashrt_ros.control.resets import ResetRules, thumbnail, view_change
from flashrt_ros.control.robot import load_robot
from flashrt_ros.paths import config_path
from flashrt_ros.sim.expert import ScriptedExpert
from flashrt_ros.sim.world import CAMERAS, BeltWorld

INTERVALS = (1, 4, 8, 16)  # pictures
SECONDS = 5.0
COMMANDS = 4  # a picture


def motion(seed: int, speed_m_s: float) -> tuple[dict[str, list[np.ndarray]], np.ndarray]:
    """One run: thumbnails of each camera, joint positions [T, 6]."""
    world, expert = BeltWorld(seed, speed_m_s), ScriptedExpert()
    thumbnails: dict[str, list[np.ndarray]] = {camera: [] for camera in CAMERAS}
    joints = []
    for tick in range(round(SECONDS / expert.period_s)):
        now_s = tick * expert.period_s
        world.step_until(now_s)
        images = {camera: world.render(camera) for camera in CAMERAS}
        colour = world.colours[tick // 50 % len(world.colours)]
        actions = expert.infer(
            images, world.joint_positions, f"touch the {colour} block", round(now_s * 1e9)
        )
        for camera, image in images.items():
            thumbnails[camera].append(thumbnail(image))
        joints.append(world.joint_positions)
        for part in range(COMMANDS):
            world.step_until(now_s + part * expert.period_s / COMMANDS)
            world.set_joint_targets(actions[0])
    return thumbnails, np.stack(joints)


def happenings() -> dict[str, dict[str, float]]:
    """Differences of pictures when something happens to camera or scene."""
    images = {camera: BeltWorld(1).render(camera) for camera in CAMERAS}
    other = BeltWorld(2, light=0.5)
    changed = {
        "covered lens": {camera: np.zeros_like(image) for camera, image in images.items()},
        "another scene in half the light": {camera: other.render(camera) for camera in CAMERAS},
        "camera turned over": {camera: image[::-1] for camera, image in images.items()},
        "camera turned by a fifth of its view": {
            camera: np.roll(image, image.shape[1] // 5, axis=1) for camera, image in images.items()
        },
    }
    return {
        name: {
            camera: view_change(thumbnail(images[camera]), thumbnail(picture))
            for camera, picture in pictures.items()
        }
        for name, pictures in changed.items()
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    robot = load_robot(config_path("robots/so101.yaml"))
    lower, upper = robot.limits()
    differences: dict[str, dict[str, list[float]]] = {
        camera: {str(interval): [] for interval in INTERVALS} for camera in CAMERAS
    }
    beyond = []
    for seed in range(arguments.seeds):
        thumbnails, joints = motion(seed, 0.08 * (seed % 3) / 2)
        moved = np.abs(np.diff(joints, axis=0))
        beyond.append(((moved - robot.max_step()) / (upper - lower)).max())
        for camera, series in thumbnails.items():
            for interval in INTERVALS:
                pairs = zip(series, series[interval:], strict=False)
                differences[camera][str(interval)] += [view_change(a, b) for a, b in pairs]
    record = {
        "defaults": {
            "view_change": ResetRules().view_change,
            "state_jump": ResetRules().state_jump,
        },
        "view_change_in_motion": {
            camera: {
                interval: {
                    "p50": float(np.median(values)),
                    "p99": float(np.percentile(values, 99)),
                    "max": max(values),
                }
                for interval, values in by_interval.items()
            }
            for camera, by_interval in differences.items()
        },
        "view_change_when_something_happens": happenings(),
        "largest_state_jump_in_motion": float(max(beyond)),
    }
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
