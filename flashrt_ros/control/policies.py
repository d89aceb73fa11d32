"""Policies by name: a checkpoint, the one that comes along, or the scripted expert."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.observer import Settings
from flashrt_ros.control.policy import Denoising, Policy, PolicySpec
from flashrt_ros.control.robot import Robot, RobotError
from flashrt_ros.control.seams import SeamKind
from flashrt_ros.control.warm_start import WarmStart
from flashrt_ros.observation.frame import Observation, Role
from flashrt_ros.paths import checkpoint_path

if TYPE_CHECKING:  # torch is imported by those who run a checkpoint only
    from flashrt_ros.models.policy import FlowPolicy
    from flashrt_ros.runtime.build import Runtime, Selection
    from flashrt_ros.runtime.engine import FlowEngine
    from flashrt_ros.runtime.launcher import Unbuilt
    from flashrt_ros.runtime.settings import EngineSettings

EXPERT = "expert"
"""Name of the scripted expert, in place of a checkpoint's path."""
SMALL = "pi05_belt"
"""Name of the small π0.5 that comes along, trained for the belt world of `sim/`."""


class PolicyError(ValueError):
    """No policy can be made of what was asked for. Says what was expected."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a policy is made of."""

    checkpoint: str = SMALL
    """The folder of a checkpoint; `pi05_belt`, the small π0.5 that comes along; or `expert`."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`; `auto` takes a GPU where there is one."""
    precision: str = "auto"
    """`float32` or `bfloat16`; `auto` takes bfloat16 on a GPU."""
    steps: int = 10
    """Denoising steps."""
    seed: int = 0
    """Of the noise that actions are drawn from."""
    tokenizer: str = ""
    """A tokenizer file, where the checkpoint has none."""
    runtime: Runtime = "auto"
    """What computes: `reference`, `fused` kernels, or `auto`, these where there is a GPU."""
    selection: Selection = "verdicts"
    """Kernels by the `verdicts` that are kept, by a selection `now` where there are none, or `off`."""
    unbuilt_shape: Unbuilt = "build"
    """A call of a shape that was not built: `build` it then, or `refuse`."""
    warm_start: bool = False
    """Build for warm starts, too, of `warm_steps` from flow time 1 - `warm_alpha`."""
    warm_steps: int = 1
    warm_alpha: float = 0.5
    seam: str = SeamKind.REPLACE.value
    """Of chunks; `rtc` guides their denoising."""

    @property
    def flows(self) -> tuple[tuple[int, float], ...]:
        """Denoising steps and start time of each kind of call: cold, and warm where there are warm starts."""
        cold = (self.steps, 1.0)
        warm = WarmStart(self.warm_start, self.warm_steps, self.warm_alpha)
        return (cold, (warm.steps, warm.start_time)) if warm.enabled else (cold,)


def policy_settings(values: Settings) -> PolicySettings:
    """Settings of the policy from the parameters of the policy node, whoever holds them."""
    return PolicySettings(**{field.name: values[field.name] for field in fields(PolicySettings)})


def build_policy(
    settings: PolicySettings,
    robot: Robot,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Policy:
    """Make the policy that the settings name.

    Args:
        settings: which one.
        robot: contract that the policy must fit.
        progress: told of each step that takes a while.

    Raises:
        PolicyError: there is no such checkpoint or device.
        RobotError: it does not fit the robot.
        ValueError: the checkpoint cannot be used (`models.errors`); names the file and the key.
    """
    if settings.checkpoint == EXPERT:
        progress("building the scripted expert")
        policy: Policy = ExpertPolicy(robot)
    else:
        policy = CheckpointPolicy(settings, robot, progress)
    spec = policy.spec
    robot.check_policy(spec.features, spec.state_size, spec.action_size)
    return policy


def release_memory() -> None:
    """Give back what policies that are gone held, on a GPU too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def checkpoint_folder(checkpoint: str) -> Path:
    """Folder of a checkpoint that is given by its path, or by the name `SMALL`.

    Raises:
        PolicyError: there is none.
    """
    if checkpoint == SMALL:
        return checkpoint_path(SMALL)
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        raise PolicyError(
            f"checkpoint: expected a checkpoint's folder, {SMALL!r} or {EXPERT!r}, found {str(folder)!r}"
        )
    return folder


class CheckpointPolicy:
    """A π0 or π0.5 checkpoint as a policy: views by the contract's features, positions in the policy's units."""

    def __init__(
        self, settings: PolicySettings, robot: Robot, progress: Callable[[str], None]
    ) -> None:
        folder = checkpoint_folder(settings.checkpoint)
        progress("importing torch")
        # Only those who run a checkpoint need torch.
        import torch

        from flashrt_ros.models.policy import load_policy
        from flashrt_ros.runtime.build import build_engine, operators_for

        device, precision = _device(settings, torch.cuda.is_available())
        runtime, make_operators = operators_for(settings.runtime, torch.device(device))
        progress(f"loading {folder} on {device} in {precision}")
        policy = load_policy(
            folder, device=device, precision=precision, tokenizer=settings.tokenizer or None
        )
        self._robot = robot
        self._steps = settings.steps
        self._seed = settings.seed
        self._generator = torch.Generator()
        processor = policy.processor
        fed = [camera.feature for camera in robot.cameras]
        unknown = [feature for feature in fed if feature not in processor.cameras]
        if unknown:
            raise RobotError(
                f"robot {robot.name!r} feeds {unknown}: the policy has views {list(processor.cameras)}; "
                "set `feature` of each camera in the contract to one of them"
            )
        masked = [view for view in processor.cameras if view not in fed]
        if masked:
            progress(f"views without a camera, masked: {', '.join(masked)}")
        progress(f"building plans for the {runtime} runtime")
        self._engine = build_engine(
            policy,
            _engine_settings(settings, robot, policy.config.image_size),
            make_operators=make_operators,
            selection=settings.selection,
            progress=progress,
        )
        name = folder.resolve().name
        self._spec = PolicySpec(
            plan_id=f"{policy.config.family}/{name}/{precision}/{device}/{runtime}",
            horizon=policy.config.horizon,
            action_size=processor.action_dim,
            features=fed,
            state_size=processor.state_dim,
            steps=settings.steps,
        )

    @property
    def network(self) -> FlowPolicy:
        """What computes."""
        return self._engine.policy

    @property
    def spec(self) -> PolicySpec:
        """Constant."""
        return self._spec

    @property
    def engine(self) -> FlowEngine:
        """What runs the network: warm starts, early vision, counters and capsules are its own."""
        return self._engine

    def infer(self, observation: Observation, instruction: str) -> NDArray[np.float32]:
        """Denoise one chunk from noise; float32 [horizon, joints], robot units. A view that is absent is masked."""
        self.encode(observation, instruction)
        return self.decode(self.denoise(None, Denoising(self._steps)), observation)

    def encode(self, observation: Observation, instruction: str) -> None:
        """Bring the prefix up to date: views by the contract's features, state and prompt. The engine keeps it.

        The noise that follows depends on the seed and the observation's stamp alone, not on how many were inferred
        before: a replay that drops other observations than the run did still draws the same for the same observation.
        """
        self._generator.manual_seed(noise_seed(self._seed, observation.frame_set.stamp_ns))
        images = {
            camera.feature: observation.images[camera.name]
            for camera in self._robot.cameras
            if camera.name in observation.images
        }
        self._engine.observe(images, self._state(observation.joint_positions), instruction)

    def denoise(self, context: None, request: Denoising) -> NDArray[np.float32]:
        """Normalised actions, float32 [horizon, action_dim of the network]."""
        asked = request.guidance
        guidance = None
        if asked is not None:
            guidance = self.network.guidance(asked.target, asked.weights, asked.strengths)
        actions = self._engine.denoise(
            steps=request.steps,
            start_time=request.start_time,
            initial=request.initial,
            generator=self._generator,
            guidance=guidance,
        )
        numbers: NDArray[np.float32] = actions.numpy()
        return numbers

    def decode(
        self, normalized: NDArray[np.float32], observation: Observation
    ) -> NDArray[np.float32]:
        """Absolute positions in robot units, float32 [horizon, joints]."""
        state = self._state(observation.joint_positions)
        actions = self.network.processor.finish(normalized, state)
        return self._robot.from_policy(actions).astype(np.float32)

    def rebase(
        self,
        normalized: NDArray[np.float32],
        old_positions: NDArray[np.float64],
        new_positions: NDArray[np.float64],
    ) -> NDArray[np.float32]:
        """Relative actions of a checkpoint as seen from another joint position; others as they are."""
        old, new = self._state(old_positions), self._state(new_positions)
        return self.network.processor.rebase(normalized, old, new).astype(np.float32, copy=False)

    def _state(self, positions: NDArray[np.float64]) -> NDArray[np.float32]:
        return self._robot.to_policy(positions).astype(np.float32)

    def check_instruction(self, instruction: str) -> None:
        """Any text will do."""

    def reset(self) -> None:
        """Nothing is carried over between chunks."""

    def reseed(self, seed: int) -> None:
        """Draw noise from here on as if made with this seed."""
        self._seed = seed


def noise_seed(seed: int, stamp_ns: int) -> int:
    """Seed of the noise for the observation of a stamp [ns]."""
    return int(np.random.SeedSequence((seed, stamp_ns)).generate_state(1)[0])


def _engine_settings(settings: PolicySettings, robot: Robot, image_size: int) -> EngineSettings:
    """What the robot's cameras and the settings need; a camera of unknown size is taken for the network's."""
    from flashrt_ros.runtime.settings import EngineSettings

    return EngineSettings(
        cameras={
            camera.feature: (camera.height or image_size, camera.width or image_size)
            for camera in robot.cameras
        },
        optional=frozenset(c.feature for c in robot.cameras if c.role is Role.OPTIONAL),
        flows=settings.flows,
        guided=settings.seam == SeamKind.RTC.value,
        unbuilt=settings.unbuilt_shape,
    )


def _device(settings: PolicySettings, cuda: bool) -> tuple[str, str]:
    device, precision = settings.device, settings.precision
    if device == "auto":
        device = "cuda" if cuda else "cpu"
    if device.startswith("cuda") and not cuda:
        raise PolicyError(
            f"device: found {device!r}, but torch sees no CUDA device: install a CUDA build of torch and "
            "check nvidia-smi, or set device to cpu"
        )
    if precision == "auto":
        precision = "bfloat16" if device.startswith("cuda") else "float32"
    return device, precision


class ExpertPolicy:
    """The scripted expert of `sim/` as a policy: colour segmentation of the overhead view and inverse kinematics."""

    def __init__(self, robot: Robot) -> None:
        # MuJoCo is needed by those who use the expert only.
        from flashrt_ros.sim.camera import instruction_colour
        from flashrt_ros.sim.expert import ScriptedExpert

        self._expert = ScriptedExpert()
        self._instruction_colour = instruction_colour
        if tuple(robot.joint_names) != tuple(self._expert.joint_names):
            raise PolicyError(
                f"the scripted expert moves {list(self._expert.joint_names)}: robot {robot.name!r} has "
                f"{robot.joint_names}"
            )
        if abs(robot.period_s - self._expert.period_s) > 1e-6:
            raise PolicyError(
                f"the scripted expert acts every {self._expert.period_s:.6f} s: robot {robot.name!r} "
                f"has period_s {robot.period_s}"
            )
        missing = [
            name for name in self._expert.cameras if name not in {c.name for c in robot.cameras}
        ]
        if missing:
            raise PolicyError(
                f"the scripted expert looks through cameras {missing}: none of that name"
            )
        self._spec = PolicySpec(
            plan_id=EXPERT,
            horizon=self._expert.horizon,
            action_size=len(self._expert.joint_names),
            features=[c.feature for c in robot.cameras if c.name in self._expert.cameras],
        )

    @property
    def spec(self) -> PolicySpec:
        """Constant."""
        return self._spec

    def infer(self, observation: Observation, instruction: str) -> NDArray[np.float32]:
        """Actions float32 [horizon, 6] from the pictures and joint positions alone."""
        images: Mapping[str, Any] = observation.images
        actions: NDArray[np.float32] = self._expert.infer(
            images, observation.joint_positions, instruction, observation.frame_set.stamp_ns
        )
        return actions

    def check_instruction(self, instruction: str) -> None:
        """Raise ValueError unless exactly one known colour is named."""
        self._instruction_colour(instruction)

    def reset(self) -> None:
        """Forget where blocks were seen."""
        self._expert.reset()

    def reseed(self, seed: int) -> None:
        """Nothing is drawn."""
