"""The scripted expert: a policy that touches the block named in the instruction, from pictures and
joint state.

It knows no more than a policy on a real robot: the overhead picture, the joint positions, the text,
and when the picture was taken. It stays as the baseline for trained policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.sim import kinematics
from flashrt_ros.sim.camera import BlockSight, find_block, instruction_colour
from flashrt_ros.sim.motion import BlockMotion, plan_touch


class BlockTracker:
    """Position and velocity of one block from its sights in successive pictures: a line fitted over
    a short time."""

    window_s = 0.5  # sights older than this say nothing about the present velocity
    memory_s = 1.0  # how long a block hidden by the arm is believed to move on
    jump_m = 0.06  # a block this far from where it was expected was moved: begin again
    min_share = 0.45  # less of a block in view than this gives its position too badly

    def __init__(self) -> None:
        self._sights: deque[tuple[float, float, float]] = deque()
        self._velocity = (0.0, 0.0)

    def reset(self) -> None:
        """Forget the sights and the velocity."""
        self._sights.clear()
        self._velocity = (0.0, 0.0)

    def restart(self) -> None:
        """Forget where the block was; the velocity, which is the belt's, stays the first guess."""
        self._sights.clear()

    def update(self, time_s: float, sight: BlockSight | None) -> BlockMotion | None:
        """Take in one picture at `time_s`; the block's motion at that time, None where it is not
        known."""
        if self._sights and time_s <= self._sights[-1][0]:
            self.restart()  # a repeated picture or a clock that went back
        if sight is not None and sight.visible_share >= self.min_share:
            expected = self._estimate(time_s)
            if expected is not None and _distance(expected.position_m, sight) > self.jump_m:
                self.restart()
            self._sights.append((time_s, sight.x_m, sight.y_m))
        while len(self._sights) > 1 and self._sights[-1][0] - self._sights[0][0] > self.window_s:
            self._sights.popleft()
        return self._estimate(time_s)

    def _estimate(self, time_s: float) -> BlockMotion | None:
        if not self._sights or time_s - self._sights[-1][0] > self.memory_s:
            return None
        sights = np.array(self._sights)
        mean_time, mean_x, mean_y = sights.mean(axis=0)
        since = sights[:, 0] - mean_time
        if sights[-1, 0] - sights[0, 0] > 0.09:  # shorter, and noise would be taken for motion
            vx, vy = since @ sights[:, 1:] / (since @ since)
            self._velocity = (float(vx), float(vy))
        vx, vy = self._velocity
        ahead = time_s - mean_time
        return BlockMotion((float(mean_x + vx * ahead), float(mean_y + vy * ahead)), (vx, vy))


def _distance(position_m: tuple[float, float], sight: BlockSight) -> float:
    return float(np.hypot(position_m[0] - sight.x_m, position_m[1] - sight.y_m))


class ScriptedExpert:
    """Touches the block whose colour the instruction names, at rest or on the moving belt.

    It remembers successive sights of that block with their capture stamps, to tell its speed and
    meet it ahead of where the picture shows it; `reset` forgets them. A late picture gives a late
    start, a prediction over a longer time, and a block lost when it was moved meanwhile.
    """

    horizon = 16
    period_s = 1.0 / 30.0
    cameras = ("overhead",)
    joint_names = kinematics.JOINT_NAMES

    def __init__(self) -> None:
        self._tracker = BlockTracker()
        self._colour = ""

    def reset(self) -> None:
        """Forget everything seen so far: for a new episode, or after a gap."""
        self._tracker.reset()
        self._colour = ""

    def infer(
        self,
        images: Mapping[str, NDArray[np.uint8]],
        joint_positions: NDArray[np.floating],
        instruction: str,
        capture_ns: int,
    ) -> NDArray[np.float32]:
        """One chunk [16, 6], float32: absolute joint positions (rad) in the order of `joint_names`.

        Action k belongs to `capture_ns` + k·`period_s`: what to do from the observation's moment
        on. `images` maps camera names to [H, W, 3] uint8 RGB, of which "overhead" is needed.
        `joint_positions` [6] are those at `capture_ns`. Where the block is not in view, and was not
        a second ago, the chunk holds the present position. Raises ValueError for an instruction
        that does not name exactly one known colour, a missing overhead image, or joint positions of
        another shape or not finite.
        """
        colour = instruction_colour(instruction)
        if "overhead" not in images:
            raise ValueError(f"images of {sorted(images)}: expected one of camera 'overhead'")
        joints = np.asarray(joint_positions, dtype=np.float64)
        if joints.shape != (len(self.joint_names),) or not np.isfinite(joints).all():
            raise ValueError(
                f"joint_positions {joints.tolist()}: expected {len(self.joint_names)} finite "
                f"values in rad, for {', '.join(self.joint_names)}"
            )
        if colour != self._colour:
            self._tracker.restart()
            self._colour = colour
        block = self._tracker.update(capture_ns * 1e-9, find_block(images["overhead"], colour))
        if block is None:
            return np.tile(joints.astype(np.float32), (self.horizon, 1))
        return plan_touch(joints, block, self.horizon, self.period_s)
