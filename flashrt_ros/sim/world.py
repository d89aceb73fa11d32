"""The belt world: physics of an arm over a moving belt, and pictures of it.

Physics and rendering are separable. `advance` and `step_until` never touch OpenGL; `render` creates
its context on the first call, in the calling thread. `state()` of one process given to
`set_state()` of another that holds the same blocks renders the same picture there.

The belt runs along y. A block that leaves at one end enters at the other, hidden by a housing, so a
run can last for ever. Same seed and same commands at the same times give the same state, bit for
bit.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.sim import kinematics, scene
from flashrt_ros.sim.camera import BELT_CENTRE_X_M, BLOCK_CENTRE_M, BLOCK_HALF_SIZE_M, COLOURS

CAMERAS = ("overhead", "wrist")
# Upright and drawn back: out of the way between the base and the belt.
HOME_RAD: NDArray[np.float64] = np.array([0.0, -0.95, 0.95, 1.15, 0.0, 0.0])
HOME_RAD.setflags(write=False)


class RenderingUnavailableError(RuntimeError):
    """No OpenGL context could be made; the message says what to install."""


_EGL_HINT = (
    "no OpenGL for rendering: EGL could not be opened; "
    "install it with `apt install libegl1 libegl-mesa0 libgl1-mesa-dri`"
)

try:
    import mujoco  # type: ignore[import-untyped, unused-ignore]
except (ImportError, AttributeError, OSError) as error:
    # With MUJOCO_GL=egl some MuJoCo releases open EGL on import and fail on a missing library.
    if isinstance(error, ModuleNotFoundError) or os.environ.get("MUJOCO_GL", "") != "egl":
        raise
    raise RenderingUnavailableError(_EGL_HINT) from error

_ARM = len(kinematics.JOINT_NAMES)
_SPEED, _PHASE, _LIGHT, _LAMP = range(4)  # in scene.USERDATA
_TARGETS = slice(4, 4 + _ARM)
# Everything that decides the future and the picture, and nothing derived from it.
_STATE = (
    mujoco.mjtState.mjSTATE_TIME
    | mujoco.mjtState.mjSTATE_QPOS
    | mujoco.mjtState.mjSTATE_QVEL
    | mujoco.mjtState.mjSTATE_WARMSTART
    | mujoco.mjtState.mjSTATE_CTRL
    | mujoco.mjtState.mjSTATE_USERDATA
)


class BeltWorld:
    """An SO-101-like arm over a belt with coloured blocks, under an overhead and a wrist camera.

    Not thread safe: give each thread or process a world of its own and exchange `state()`.
    """

    joint_names = kinematics.JOINT_NAMES
    cameras = CAMERAS
    timestep_s = scene.TIMESTEP_S

    def __init__(
        self,
        seed: int,
        belt_speed_m_s: float = 0.0,
        image_size: tuple[int, int] = (224, 224),
        colours: Sequence[str] = ("red", "green", "blue"),
        light: float = 1.0,
    ):
        """Build the world and lay the blocks out in an order and at positions drawn from `seed`.

        `image_size` is (height, width) in pixels for both cameras. `light` scales the lamps (0.2 to
        2). Raises ValueError for an unknown or repeated colour, or a speed or light out of range.
        """
        unknown = [colour for colour in colours if colour not in COLOURS]
        if unknown or not colours or len(set(colours)) != len(colours):
            raise ValueError(
                f"colours {list(colours)}: expected one or more different names of "
                f"{', '.join(COLOURS)}"
            )
        height, width = image_size
        if min(height, width) < 16:
            raise ValueError(f"image_size {image_size}: expected (height, width) of at least 16")
        self.colours = tuple(colours)
        self.image_size = (int(height), int(width))
        self._model = mujoco.MjModel.from_xml_string(scene.mjcf(self.colours, height, width))
        self._data = mujoco.MjData(self._model)
        self._marks, self._needle = (
            int(self._model.body(name).mocapid[0]) for name in ("belt_marks", "gauge_needle")
        )
        self._renderer: _Renderer | None = None
        self._lamps = self._model.light_diffuse.copy()
        self._headlight = (
            self._model.vis.headlight.ambient.copy(),
            self._model.vis.headlight.diffuse.copy(),
        )
        self._lamp = int(self._model.geom("lamp").id)
        self.reset(seed, belt_speed_m_s, light)

    def reset(
        self,
        seed: int,
        belt_speed_m_s: float = 0.0,
        light: float = 1.0,
        joint_positions_rad: NDArray[np.floating] = HOME_RAD,
    ) -> None:
        """Begin again, as a new world of the same colours would; its OpenGL context is kept.

        `joint_positions_rad` [6]: where the arm is, at rest. Raises ValueError as the constructor
        does.
        """
        if not 0.2 <= light <= 2.0:
            raise ValueError(f"light {light}: expected 0.2 to 2.0 (1 is normal)")
        mujoco.mj_resetData(self._model, self._data)
        self.set_joint_targets(joint_positions_rad)
        joints = self._data.userdata[_TARGETS]
        self._data.qpos[:_ARM] = joints
        self._data.ctrl[:_ARM] = joints
        self._data.userdata[_LIGHT] = light
        self.set_belt_speed(belt_speed_m_s)
        self._place_blocks(np.random.default_rng(seed))

    def _place_blocks(self, random: np.random.Generator) -> None:
        count = len(self.colours)
        slots = np.linspace(-0.17, 0.17, count) if count > 1 else np.zeros(1)
        slack = 0.5 * max(0.0, 0.34 / max(count - 1, 1) - 4.0 * BLOCK_HALF_SIZE_M)
        y = random.permutation(slots) + random.uniform(-slack, slack, count)
        # A moving belt starts further back, so that every block is met before it is gone.
        y = np.clip(y, -0.21, 0.21) - np.clip(self.belt_speed_m_s * 1.0, -0.08, 0.08)
        x = BELT_CENTRE_X_M + random.uniform(-0.045, 0.045, count)
        yaw = random.uniform(-0.4, 0.4, count)
        self._data.qpos[_ARM:] = np.stack([x, y, yaw], axis=1).ravel()

    # -- time and commands

    @property
    def time_s(self) -> float:
        """Simulated seconds since construction."""
        return float(self._data.time)

    def advance(self, duration_s: float) -> None:
        """Run the physics for `duration_s`, rounded down to whole steps since construction."""
        self.step_until(self.time_s + duration_s)

    def step_until(self, time_s: float) -> None:
        """Run the physics to the last step at or before `time_s`.

        Raises ValueError if that lies in the past.
        """
        if not math.isfinite(time_s) or time_s < self.time_s - self.timestep_s:
            raise ValueError(
                f"step_until({time_s}): expected a time from now ({self.time_s:.6f} s) on"
            )
        done = round(self.time_s / self.timestep_s)
        for _ in range(math.floor(time_s / self.timestep_s + 1e-6) - done):
            self._step()

    def _step(self) -> None:
        data = self._data
        pace = scene.SERVO_SPEED_RAD_S * self.timestep_s
        way = data.userdata[_TARGETS] - data.ctrl[:_ARM]
        data.ctrl[:_ARM] += np.minimum(np.maximum(way, -pace), pace)
        mujoco.mj_step(self._model, data)
        data.userdata[_PHASE] += data.userdata[_SPEED] * self.timestep_s
        y = data.qpos[_ARM + 1 :: 3]
        if max(y.max(), -y.min()) > scene.BELT_HALF_LENGTH_M:
            length = 2.0 * scene.BELT_HALF_LENGTH_M
            y[y > scene.BELT_HALF_LENGTH_M] -= length
            y[y < -scene.BELT_HALF_LENGTH_M] += length

    def set_joint_targets(self, positions_rad: Sequence[float] | NDArray[np.floating]) -> None:
        """Command joint positions [6] (rad), in the order of `joint_names`, until the next command.

        Clipped to the joint limits, and approached at SERVO_SPEED_RAD_S at most, as a servo does.
        ValueError for another shape, NaN or infinity.
        """
        targets = np.asarray(positions_rad, dtype=np.float64)
        if targets.shape != (_ARM,) or not np.isfinite(targets).all():
            raise ValueError(
                f"joint targets {np.asarray(positions_rad).tolist()}: expected {_ARM} finite "
                f"positions in rad, for {', '.join(self.joint_names)}"
            )
        low, high = kinematics.JOINT_LIMITS_RAD.T
        self._data.userdata[_TARGETS] = np.clip(targets, low, high)

    def set_belt_speed(self, speed_m_s: float) -> None:
        """Set the belt's speed along +y (negative: the other way), at once."""
        if not abs(speed_m_s) <= scene.MAX_BELT_SPEED_M_S:
            limit = scene.MAX_BELT_SPEED_M_S
            raise ValueError(f"belt speed {speed_m_s} m/s: expected {-limit} to {limit} m/s")
        self._data.userdata[_SPEED] = speed_m_s
        self._data.ctrl[_ARM + 1 :: 3] = speed_m_s

    def set_lamp(self, colour: str | None) -> None:
        """Light the lamp in the colour of one of the blocks; None: dark."""
        self._data.userdata[_LAMP] = 0 if colour is None else 1 + self._block_index(colour)

    # -- what is measured

    @property
    def joint_positions(self) -> NDArray[np.float64]:
        """Joint positions [6], rad, a copy."""
        return np.array(self._data.qpos[:_ARM])

    @property
    def joint_velocities(self) -> NDArray[np.float64]:
        """Joint velocities [6], rad/s, a copy."""
        return np.array(self._data.qvel[:_ARM])

    # -- what only the simulator knows

    @property
    def belt_speed_m_s(self) -> float:
        """Speed of the belt along +y."""
        return float(self._data.userdata[_SPEED])

    @property
    def tip_position(self) -> NDArray[np.float64]:
        """Centre of the fingertip [3], m, world frame."""
        return kinematics.tip_position(self._data.qpos[:_ARM])

    def block_position(self, colour: str) -> NDArray[np.float64]:
        """Centre of a block [3], m, world frame."""
        start = self._block_start(colour)
        return np.array([*self._data.qpos[start : start + 2], BLOCK_CENTRE_M])

    def block_velocity(self, colour: str) -> NDArray[np.float64]:
        """Velocity (x, y) of a block [2], m/s."""
        start = self._block_start(colour)
        return np.array(self._data.qvel[start : start + 2])

    def touching(self, colour: str) -> bool:
        """Whether the fingertip is on the block's surface (within 1 mm)."""
        yaw = float(self._data.qpos[self._block_start(colour) + 2])
        dx, dy, dz = self.tip_position - self.block_position(colour)
        local = (
            math.cos(yaw) * dx + math.sin(yaw) * dy,
            math.cos(yaw) * dy - math.sin(yaw) * dx,
            dz,
        )
        outside = [max(abs(value) - BLOCK_HALF_SIZE_M, 0.0) for value in local]
        return math.hypot(*outside) <= scene.FINGERTIP_RADIUS_M + 0.001

    def push_block(self, colour: str, velocity_m_s: tuple[float, float]) -> None:
        """Give a block a velocity (x, y); the belt's grip brakes it to the belt's own."""
        start = self._block_start(colour)
        self._data.qvel[start : start + 2] += velocity_m_s

    def _block_start(self, colour: str) -> int:
        return _ARM + 3 * self._block_index(colour)

    def _block_index(self, colour: str) -> int:
        if colour not in self.colours:
            raise ValueError(f"block {colour!r}: expected one of {', '.join(self.colours)}")
        return self.colours.index(colour)

    # -- state and pictures

    def state(self) -> NDArray[np.float64]:
        """All that decides the future and the picture, float64 [N]; N follows from the blocks."""
        state = np.empty(mujoco.mj_stateSize(self._model, _STATE))
        mujoco.mj_getState(self._model, self._data, state, _STATE)
        return state

    def set_state(self, state: NDArray[np.float64]) -> None:
        """Take over a `state()` of this world or of another with the same blocks.

        Raises ValueError if it cannot fit.
        """
        expected = mujoco.mj_stateSize(self._model, _STATE)
        state = np.asarray(state, dtype=np.float64)
        if state.shape != (expected,) or not np.isfinite(state).all():
            raise ValueError(
                f"state of shape {list(state.shape)}: expected [{expected}] finite values for "
                f"{len(self.colours)} blocks; use worlds made with the same colours"
            )
        mujoco.mj_setState(self._model, self._data, state, _STATE)

    def render(self, camera: str = "overhead") -> NDArray[np.uint8]:
        """Picture of the present state: a new array [H, W, 3], uint8 RGB, first row on top.

        Call it from one thread only. Raises RenderingUnavailableError where OpenGL is missing.
        """
        if camera not in CAMERAS:
            raise ValueError(f"camera {camera!r}: expected one of {', '.join(CAMERAS)}")
        if self._renderer is None:
            self._renderer = _Renderer(self._model, *self.image_size)
        data, model = self._data, self._model
        phase = float(data.userdata[_PHASE]) % scene.MARK_PITCH_M
        gauge = scene.GAUGE_HALF_LENGTH_M * self.belt_speed_m_s / scene.MAX_BELT_SPEED_M_S
        data.mocap_pos[self._marks, 1] = phase
        data.mocap_pos[self._needle, 1] = gauge
        lamp = int(data.userdata[_LAMP])
        model.geom_rgba[self._lamp] = (
            (*COLOURS[self.colours[lamp - 1]], 1.0) if lamp else scene.LAMP_DARK_RGBA
        )
        light = float(data.userdata[_LIGHT])
        model.light_diffuse[:] = light * self._lamps
        model.vis.headlight.ambient[:] = light * self._headlight[0]
        model.vis.headlight.diffuse[:] = light * self._headlight[1]
        # mj_step leaves poses one step behind the state, and set_state leaves none at all.
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        return self._renderer.draw(data, camera)

    def close(self) -> None:
        """Free the OpenGL context, if there is one; a later `render` makes a new one."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


class _Renderer:
    """An offscreen OpenGL context and the scene drawn in it.

    mujoco.Renderer chooses its backend when MuJoCo is imported, in processes that never draw as
    well; this one chooses at the first picture: MUJOCO_GL where set, else EGL on Linux.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int):
        self._model = model
        self._shape = (height, width, 3)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=512)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._gl = _open_gl(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)

    def draw(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        mujoco.mjr_render(self._rect, self._scene, self._context)
        pixels = np.empty(self._shape, dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._rect, self._context)
        return np.ascontiguousarray(pixels[::-1])  # OpenGL's first row is the lowest

    def close(self) -> None:
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _open_gl(width: int, height: int) -> Any:
    backend = os.environ.get("MUJOCO_GL", "egl" if sys.platform == "linux" else "glfw").lower()
    try:
        context = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    except Exception as error:  # a missing library shows as one of five types, by release
        if backend == "egl":
            raise RenderingUnavailableError(_EGL_HINT) from error
        raise RenderingUnavailableError(
            f"no OpenGL for rendering: backend MUJOCO_GL={backend} failed ({error}); "
            "unset MUJOCO_GL or set it to egl"
        ) from error
    return context
