"""A policy that recomputes only what changed: buffers, contract, plan and operators put together.

    engine = FlowEngine(policy, EngineSettings(cameras={"base_0_rgb": (480, 640)}))
    engine.see("base_0_rgb", image)  # as early as the picture is there; optional
    actions = engine.infer({"base_0_rgb": image}, state, "pick up the cup")

`pictures` says when a picture counts as unchanged, `instructions` how one switches back, `operators` what computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.models.weights import Weights, named_tensors
from flashrt_ros.runtime.contract import Buffers, Contract
from flashrt_ros.runtime.digest import weights_digest
from flashrt_ros.runtime.host_state import HostState
from flashrt_ros.runtime.instructions import KeptInstructions
from flashrt_ros.runtime.launcher import Launcher, ShapeError
from flashrt_ros.runtime.operators import (
    Guidance,
    Limits,
    Operators,
    ReferenceOperators,
    Shape,
    bucket_of,
    buckets,
    declare_buffers,
    prompt_views,
)
from flashrt_ros.runtime.pictures import checked_image, same_pixels
from flashrt_ros.runtime.plan import Plan
from flashrt_ros.runtime.settings import EngineSettings, checked_settings
from flashrt_ros.runtime.stages import marks, stages

MakeOperators = Callable[[Weights, ModelConfig, Limits, PrepareImage], Operators]


class FlowEngine:
    """Runs a policy's stages when they are due. Not for several threads at once.

    Args:
        policy: network and processing.
        settings: what to build for.
        make_operators: the arithmetic, `ReferenceOperators` or one of the same signature.
        progress: told of each step of `build`.

    Raises:
        ValueError: a camera that the policy does not have, or settings that contradict themselves.
    """

    def __init__(
        self,
        policy: FlowPolicy,
        settings: EngineSettings,
        *,
        make_operators: MakeOperators = ReferenceOperators,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._policy = policy
        self._config = policy.config
        self._make_operators = make_operators
        self._progress = progress
        self._settings = checked_settings(settings, policy.processor)
        self.generator = torch.Generator().manual_seed(settings.seed)
        """What noise is drawn from where a call brings none."""
        self._allocate()

    # ------------------------------------------------------------ what it is

    @property
    def policy(self) -> FlowPolicy:
        """Network and processing."""
        return self._policy

    @property
    def settings(self) -> EngineSettings:
        """What is built for; cameras in the policy's order."""
        return self._settings

    @property
    def operators(self) -> Operators:
        """The arithmetic. Candidates are chosen through `choose`."""
        return self._operators

    @property
    def buffers(self) -> Buffers:
        """All buffers."""
        return self._buffers

    @property
    def contract(self) -> Contract:
        """Stages, and the counts of those that ran and those that were reused."""
        return self._contract

    @property
    def plan(self) -> Plan:
        """What launches."""
        return self._plan

    @property
    def host(self) -> HostState:
        """What is remembered on the host."""
        return self._host

    def restore_host(self, host: HostState) -> None:
        """Remember what belongs to buffers that were put back, see `capsule`."""
        self._host = host

    @cached_property
    def identity(self) -> tuple[str, str, str]:
        """Hash of all weights, sizes and processing as JSON; computed when it is first asked for."""
        policy = self._policy
        return (
            weights_digest(named_tensors(policy.weights)),
            json.dumps(policy.config.to_json(), sort_keys=True),
            json.dumps(policy.processor.to_json(), sort_keys=True),
        )

    @property
    def chunk(self) -> Tensor | None:
        """Normalised actions of the last call, float32 [H, A] of the network, on the CPU; None before the first."""
        return self._host.chunk

    # ------------------------------------------------------------ building

    def _allocate(self) -> None:
        policy, config, cameras = self._policy, self._config, self._settings.cameras
        limits = Limits(tuple(cameras.values()), buckets(config.max_prompt_tokens)[-1])
        self._camera_names = list(cameras)
        self._host = HostState()
        self._operators = self._make_operators(
            policy.weights, config, limits, policy.processor.image
        )
        self._buffers = Buffers()
        declare_buffers(self._buffers, config, limits, policy.weights.dtype)
        self._operators.declare(self._buffers)
        views = len(cameras)
        for mark in marks(views):
            self._buffers.mark(mark)
        self._buffers.allocate(policy.device)
        self._operators.bind(self._buffers)
        self._contract = Contract(self._buffers, stages(config, views))
        self._plan = Plan(self._buffers, policy.device, capture=self._operators.capturable)
        self._launcher = Launcher(
            policy,
            self._operators,
            self._buffers,
            self._plan,
            self._settings.unbuilt,
            self._progress,
            self._settings.guided,
        )
        self._kept = KeptInstructions(
            self._buffers, self._settings.kept_instructions, limits.prompt_tokens
        )

    @torch.no_grad()
    def build(self) -> None:
        """Build the plans of every shape in the settings; nothing is remembered afterwards.

        On a CPU there is nothing to build; operators on a GPU that are not captured are warmed up.
        """
        times = [self._launcher.flow_times(*flow) for flow in self._settings.flows]
        if self._policy.device.type == "cuda":
            self._fill_for_capture()
            present = self._present()
            if self._plan.captures:
                self._launcher.build(present, times)
            else:
                self._launcher.warm_up(present[-1], Shape(len(present[-1]), bucket_of(1)), times[0])
        self.forget()

    def choose(self, site: str, candidate: str) -> None:
        """Use a candidate from now on; its graphs are built by the next `build`, or when they are first needed."""
        self._launcher.choose(site, candidate)
        self.forget()

    def building(self) -> AbstractContextManager[None]:
        """Calls inside may be of any shape and candidate, see `Launcher.building`."""
        return self._launcher.building()

    def drop_other_choices(self) -> None:
        """Give back the graphs of candidates that are not in use."""
        self._launcher.drop_other_choices()

    def forget(self) -> None:
        """Recompute everything in the next call. Counters and generator stay."""
        self._contract.forget()
        self._host = HostState()
        self._kept.clear()

    def _present(self) -> list[tuple[int, ...]]:
        """Every set of cameras that a call within the settings may bring."""
        optional = self._settings.optional
        required = [i for i, name in enumerate(self._camera_names) if name not in optional]
        spare = [i for i, name in enumerate(self._camera_names) if name in optional]
        subsets = chain.from_iterable(combinations(spare, n) for n in range(len(spare) + 1))
        return [tuple(sorted([*required, *subset])) for subset in subsets if [*required, *subset]]

    def _fill_for_capture(self) -> None:
        """One valid token, so that what warm-up launches read is in order."""
        ids, length, fixed = prompt_views(self._plan.host("prompt"))
        ids.zero_()
        length.fill_(1)
        fixed.fill_(1)
        self._plan.upload("prompt")

    # ------------------------------------------------------------ inputs

    @torch.no_grad()
    def see(self, camera: str, image: NDArray[np.uint8]) -> bool:
        """Run the vision of one camera now, ahead of the call that will use its picture.

        Args:
            camera: name.
            image: uint8 RGB [height, width, 3]. If the call then brings other pixels, it runs again.

        Returns:
            Whether anything ran: False for the pixels of the last time.

        Raises:
            ValueError: no such camera, no such picture, or a size that was not built.
        """
        name = self._name(camera)
        image = checked_image(name, image)
        self._fit({name: image})
        index = self._camera_names.index(name)
        if index not in self._host.slots:
            self._place(tuple(range(len(self._camera_names))))
        self._stage_pixels(index, image)
        slot = self._host.slots.index(index)
        if not self._contract.due(f"see.{slot}"):
            return False
        self._see(slot, slot + 1)
        return True

    @torch.no_grad()
    def observe(
        self, images: Mapping[str, NDArray[np.uint8]], state: ArrayLike, instruction: str
    ) -> None:
        """Bring the prefix up to date. Arguments and errors as in `infer`.

        Vision is launched first: a GPU sees while the host makes the prompt.
        """
        if not images:
            raise ProcessingError(f"no camera image: expected one of {self._camera_names}")
        pictures: dict[str, NDArray[np.uint8]] = {}
        for camera, image in images.items():
            name = self._name(camera)
            if name in pictures:
                raise ProcessingError(f"camera {name!r}: expected one image of it")
            pictures[name] = checked_image(name, image)
        self._fit(pictures)
        indices = {name: i for i, name in enumerate(self._camera_names)}
        self._place(tuple(sorted(indices[name] for name in pictures)))
        for name, image in pictures.items():
            self._stage_pixels(indices[name], image)
        for first, end in self._due_views():
            self._see(first, end)
        processor = self._policy.processor
        normalized = processor.normalize_state(state)
        tokens, mask = processor.prompt(instruction, state)
        tokens = tokens[mask]
        self._policy.check_tokens(tokens)
        fixed = processor.fixed_tokens(instruction, tokens)
        self._stage_state(processor.state_token(normalized))
        self._stage_prompt(tokens.tolist(), fixed)
        self._encode()

    def _name(self, camera: str) -> str:
        processor = self._policy.processor
        return processor.cameras[processor.view_index(camera)]

    def _fit(self, images: Mapping[str, NDArray[np.uint8]]) -> None:
        """Make sure that there are buffers for these pictures."""
        cameras = self._settings.cameras
        found = {name: image.shape[:2] for name, image in images.items()}
        other = {name: size for name, size in found.items() if cameras.get(name) != size}
        if not other:
            return
        if self._settings.unbuilt == "refuse":
            name, (height, width) = next(iter(other.items()))
            raise ShapeError(
                f"camera {name!r}: picture of {height}×{width} was not built for, only {dict(cameras)} "
                "(height, width), and `unbuilt` is refuse"
            )
        self._progress(f"building for pictures of {other} (height, width)")
        grown = replace(self._settings, cameras={**cameras, **other})
        self._settings = checked_settings(grown, self._policy.processor)
        self._allocate()
        self.build()
        self._progress("")

    def _place(self, cameras: tuple[int, ...]) -> None:
        """Give each of the cameras that are present its slot."""
        before = self._host.slots
        if cameras == before:
            return
        for slot, camera in enumerate(cameras):
            if slot >= len(before) or before[slot] != camera:
                self._buffers.touch(f"slot.{slot}")
        if len(cameras) != len(before):
            self._buffers.touch("views")
        self._host = replace(self._host, slots=cameras)

    def _stage_pixels(self, camera: int, image: NDArray[np.uint8]) -> None:
        name = f"pixels.{camera}"
        if camera in self._host.staged and same_pixels(self._buffers.host(name), image):
            return
        self._plan.host(name).numpy()[...] = image
        self._plan.upload(name)
        self._buffers.touch(f"slot.{self._host.slots.index(camera)}")
        self._host = replace(self._host, staged=self._host.staged | {camera})

    def _stage_state(self, state: Tensor | None) -> None:
        if state is None:
            return
        if self._host.has_state and torch.equal(self._buffers.host("state"), state):
            return
        self._plan.host("state").copy_(state)
        self._plan.upload("state")
        self._buffers.touch("state")
        self._host = replace(self._host, has_state=True)

    def _stage_prompt(self, ids: list[int], fixed: int) -> None:
        host = self._host
        texts = tuple(ids[:fixed]), tuple(ids[fixed:])
        new = not host.has_prompt or host.fixed != texts[0]
        if not new and host.moving == texts[1]:
            return
        tokens, length, fixed_length = prompt_views(self._plan.host("prompt"))
        tokens.zero_()
        tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        length.fill_(len(ids))
        fixed_length.fill_(fixed)
        self._plan.upload("prompt")
        self._buffers.touch("tokens.moving")
        if new:
            self._buffers.touch("tokens.fixed")
        self._host = replace(host, fixed=texts[0], moving=texts[1], has_prompt=True)

    # ------------------------------------------------------------ stages

    def _encode(self) -> None:
        host, contract, launcher = self._host, self._contract, self._launcher
        shape = Shape(len(host.slots), bucket_of(host.length))
        self._read_fixed(shape)
        if host.moving:
            contract.update("read_moving", lambda: launcher.read_prompt(shape, "moving"))
        elif contract.due("read_moving"):
            contract.adopt("read_moving")
        contract.update("encode", lambda: launcher.encode(shape))
        if self._config.family == "pi0":
            contract.update("append_state", lambda: launcher.append_state(shape))

    def _due_views(self) -> list[tuple[int, int]]:
        """Runs of neighbouring slots whose vision is due, as first and end; counts the others as reused."""
        runs: list[tuple[int, int]] = []
        for slot in range(len(self._host.slots)):
            if not self._contract.due(f"see.{slot}"):
                self._contract.reuse(f"see.{slot}")
            elif runs and runs[-1][1] == slot:
                runs[-1] = (runs[-1][0], slot + 1)
            else:
                runs.append((slot, slot + 1))
        return runs

    def _see(self, first: int, end: int) -> None:
        cameras = self._host.slots[first:end]
        self._contract.run(
            [f"see.{slot}" for slot in range(first, end)],
            lambda: self._launcher.see(cameras, first),
        )

    def _read_fixed(self, shape: Shape) -> None:
        """Read the instruction, or take it from those that were kept."""
        key = (shape.views, self._host.fixed)
        start = shape.views * self._config.view_tokens
        if not self._contract.due("read_fixed"):
            self._contract.reuse("read_fixed")
        elif not self._host.fixed:
            self._contract.adopt("read_fixed")
        elif key in self._kept:
            with self._plan.stream():
                self._kept.restore(key, start)
            self._contract.adopt("read_fixed")
        else:
            self._contract.update("read_fixed", lambda: self._launcher.read_prompt(shape, "fixed"))
            with self._plan.stream():
                self._kept.keep(key, start)

    @torch.no_grad()
    def denoise(
        self,
        *,
        noise: ArrayLike | Tensor | None = None,
        steps: int = 10,
        start_time: float = 1.0,
        initial: ArrayLike | Tensor | None = None,
        generator: torch.Generator | None = None,
        guidance: Guidance | None = None,
    ) -> Tensor:
        """Denoise a chunk for what was observed last; arguments as in `infer`.

        Args:
            guidance: changes the velocity at each step; what that needs is built beforehand where the settings
                say `guided`.

        Returns:
            Normalised actions float32 [H, A] of the network, on the CPU.

        Raises:
            ValueError: nothing was observed, or an argument does not fit.
        """
        host = self._host
        if not host.slots or not host.has_prompt or self._contract.due("encode"):
            raise ValueError("denoise: nothing was observed since the engine was built or forgot")
        times = self._launcher.flow_times(steps, start_time)
        if noise is None and generator is None:
            generator = self.generator
        x = self._policy.initial_state(
            start_time, noise, initial, generator, device=torch.device("cpu")
        )
        self._plan.host("x0").copy_(x)
        self._plan.upload("x0")
        self._buffers.touch("x0")
        shape = Shape(len(host.slots), bucket_of(host.length))
        self._contract.update("denoise", lambda: self._launcher.denoise(shape, times, guidance))
        chunk = self._plan.download("actions").clone()
        self._host = replace(host, chunk=chunk)
        return chunk

    def infer(
        self,
        images: Mapping[str, NDArray[np.uint8]],
        state: ArrayLike,
        instruction: str,
        *,
        noise: ArrayLike | Tensor | None = None,
        steps: int = 10,
        start_time: float = 1.0,
        initial: ArrayLike | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> NDArray[np.float32]:
        """One observation → a chunk of actions, as `FlowPolicy.infer`.

        Args:
            images: uint8 RGB [height, width, 3] by camera name; a camera left out is masked.
            state: [state_dim] in the policy's units.
            instruction: the task.
            noise: float32 [horizon, action_dim] of the network, standard normal; drawn if None.
            steps: denoising steps N.
            start_time: flow time of the first step, 1 for pure noise.
            initial: normalised actions [horizon, action_dim] of the network to start from; needed where
                `start_time` is below 1.
            generator: what noise is drawn from; default is the engine's own.

        Returns:
            float32 [horizon, action_dim of the robot], absolute, in the policy's units.

        Raises:
            ShapeError: a shape that was not built, where `unbuilt` is refuse.
            ValueError: an argument does not fit; names it, what was expected and what was found.
        """
        uniform_times(steps, start_time)  # before anything runs
        self.observe(images, state, instruction)
        chunk = self.denoise(
            noise=noise, steps=steps, start_time=start_time, initial=initial, generator=generator
        )
        return self._policy.processor.finish(chunk, state).astype(np.float32, copy=False)
