"""A selection's trial on an engine: whole calls on made-up observations, and what their chunks must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.models.weights import build_weights, named_tensors
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.machine import code, machine
from flashrt_ros.runtime.operators import Site
from flashrt_ros.runtime.selection import relative_l2
from flashrt_ros.runtime.settings import EngineSettings

_FACTOR = (
    1.5  # a chunk may be this much further from float32 than the plain network at its precision is
)
_FLOAT32_BOUND = (
    1e-4  # the plain network is float32 itself there, and sums in another order are no error
)


@dataclass(frozen=True)
class Sample:
    """One observation."""

    images: Mapping[str, NDArray[np.uint8]]
    state: NDArray[np.float32]
    instruction: str
    noise: Tensor


def make_samples(
    policy: FlowPolicy, cameras: Mapping[str, tuple[int, int]], *, count: int = 3, seed: int = 0
) -> list[Sample]:
    """Observations with smooth pictures, states within the statistics and prompts of several lengths.

    Args:
        policy: whose observations.
        cameras: height and width [pixels] by name.
        count: how many; no two are alike in anything.
        seed: of everything.
    """
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    processor, config = policy.processor, policy.config
    samples = []
    for number in range(count):
        state = random.uniform(-0.9, 0.9, processor.state_dim)
        words = " ".join(["put the cup on the shelf"] * (1 + number % 3))
        samples.append(
            Sample(
                {name: _picture(random, *size) for name, size in cameras.items()},
                np.asarray(processor.state.unnormalize(state), np.float32),
                f"{words}, {number}",
                torch.randn(config.horizon, config.action_dim, generator=generator),
            )
        )
    return samples


def _picture(random: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Coarse colours with fine noise on them: neither flat nor noise alone."""
    coarse = random.integers(0, 200, (-(-height // 16), -(-width // 16), 3))
    picture = coarse.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]
    return (picture + random.integers(0, 56, picture.shape)).astype(np.uint8)


class EngineTrial:
    """Whole calls of an engine. The timed call is new in all but the instruction, as a robot's is.

    Args:
        engine: whose operators are tried.
        samples: at least one.
        steps: denoising steps of a call.
    """

    def __init__(self, engine: FlowEngine, samples: Sequence[Sample], steps: int) -> None:
        self._engine = engine
        self._samples = samples
        self._steps = steps
        pictures = {name: 255 - image for name, image in samples[0].images.items()}
        self._timed = replace(samples[0], images=pictures, state=samples[0].state * 0.5)

    def sites(self) -> list[Site]:
        """Of the operators."""
        return self._engine.operators.sites()

    def choose(self, site: str, candidate: str) -> None:
        """On the engine; forgets what was computed."""
        self._engine.choose(site, candidate)

    def chunks(self) -> list[Tensor]:
        """Normalised chunk of each sample."""
        self._engine.forget()
        return [self._run(sample) for sample in self._samples]

    def prepare(self) -> None:
        """Capture what is new, and read the instruction."""
        self._run(self._timed)
        self._run(self._samples[0])

    def call(self) -> Tensor:
        """One whole call."""
        return self._run(self._timed)

    def _run(self, sample: Sample) -> Tensor:
        self._engine.observe(sample.images, sample.state, sample.instruction)
        return self._engine.denoise(noise=sample.noise, steps=self._steps)


def expected_chunks(
    policy: FlowPolicy, samples: Sequence[Sample], steps: int
) -> tuple[list[Tensor], float]:
    """Chunks of the plain network in float32, and the relative L2 error that a chunk may have against them.

    The bound is 1.5 × the error of the plain network at the policy's precision (at float32: 1e-4). The float32
    network has the same weights, so that the error is that of the arithmetic alone; it is freed afterwards.
    """
    plain = [_chunk(policy, sample, steps) for sample in samples]
    if policy.precision == "float32":
        return plain, _FLOAT32_BOUND
    tensors = {name: tensor.float() for name, tensor in named_tensors(policy.weights).items()}
    exact = FlowPolicy(build_weights(tensors), policy.config, policy.processor)
    expected = [_chunk(exact, sample, steps) for sample in samples]
    worst = max(relative_l2(a, b) for a, b in zip(plain, expected, strict=True))
    return expected, _FACTOR * worst


@torch.no_grad()
def _chunk(policy: FlowPolicy, sample: Sample, steps: int) -> Tensor:
    inputs = policy.processor.prepare(sample.images, sample.state, sample.instruction)
    times = policy.flow_times(uniform_times(steps))
    x = policy.initial_state(noise=sample.noise)
    return policy.denoise(policy.encode(inputs), x, times).cpu()


def selection_fingerprint(policy: FlowPolicy, settings: EngineSettings) -> dict[str, Any]:
    """What verdicts hold for: machine, code, network and shape. The weights' values do not matter to speed."""
    return {
        **machine(policy.device),
        "code": code(),
        "network": policy.config.to_json(),
        "precision": policy.precision,
        "resize": policy.processor.image.filter,
        "cameras": [list(size) for size in settings.cameras.values()],
        "steps": settings.flows[0][0],
    }
