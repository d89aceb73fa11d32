"""A checkpoint as a policy: images, state and instruction in, absolute actions out.

    policy = load_policy("checkpoints/pi05_droid", device="cuda", precision="bfloat16")
    actions = policy.infer({"base_0_rgb": image}, state, "pick up the cup")  # [horizon, joints]

`infer` runs the stages that `FlowPolicy` also offers one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flashrt_ros.models import flow, gemma, siglip
from flashrt_ros.models.checkpoint import CheckpointError, load_weights, open_checkpoint
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import FlowTimes, Guidance, Step
from flashrt_ros.models.gemma import PrefixCache
from flashrt_ros.models.processing import (
    ModelInputs,
    ProcessingOptions,
    Processor,
    load_processor,
)
from flashrt_ros.models.weights import Weights

_KEPT_FLOW_TIMES = 8


def load_policy(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    tokenizer: str | Path | None = None,
    options: ProcessingOptions | None = None,
    horizon: int | None = None,
    vision_heads: int | None = None,
) -> FlowPolicy:
    """Load a π0 or π0.5 checkpoint with its processing.

    Args:
        path: an openpi PyTorch folder, a LeRobot folder, or one written by `flashrt convert`.
        device: where the network runs.
        precision: 'float32' or 'bfloat16'; see `weights` for what stays float32.
        tokenizer: a `.model` or `tokenizer.json` file; default is the checkpoint's own.
        options: what openpi folders do not record, see `ProcessingOptions`.
        horizon, vision_heads: see `open_checkpoint`.

    Raises:
        CheckpointError: the network; the message names the file and the key.
        ProcessingError: the processing; MissingTokenizerError says where to get the tokenizer.
    """
    checkpoint = open_checkpoint(path, horizon=horizon, vision_heads=vision_heads)
    processor = load_processor(path, config=checkpoint.config, tokenizer=tokenizer, options=options)
    config = matched_config(checkpoint.folder, checkpoint.config, processor)
    weights = load_weights(checkpoint, device=device, precision=precision)
    return FlowPolicy(weights, config, processor)


def matched_config(folder: Path, config: ModelConfig, processor: Processor) -> ModelConfig:
    """Check a checkpoint's processing against its network, and take its longest prompt.

    Raises:
        CheckpointError: they do not fit; names the size, what the network has and what was found.
    """
    sizes = [
        ("family", config.family, processor.family),
        ("image size", config.image_size, processor.image.size),
    ]
    if config.family == "pi0":
        sizes.append(("padded state dimension", config.action_dim, processor.padded_state_dim))
    for name, expected, found in sizes:
        if expected != found:
            raise CheckpointError(
                f"{folder}: {name}: expected the network's {expected}, found {found} in processing"
            )
    if processor.action_dim > config.action_dim:
        raise CheckpointError(
            f"{folder}: action dimension: expected at most the network's {config.action_dim}, "
            f"found {processor.action_dim} in processing"
        )
    return replace(config, max_prompt_tokens=processor.max_tokens)


class FlowPolicy:
    """A network with its processing. Not for several threads at once."""

    def __init__(self, weights: Weights, config: ModelConfig, processor: Processor):
        self.weights = weights
        self.config = config
        self.processor = processor
        self._flow_times: OrderedDict[tuple[float, ...], FlowTimes] = OrderedDict()

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.weights.device

    @property
    def precision(self) -> str:
        """'float32' or 'bfloat16'."""
        return str(self.weights.dtype).removeprefix("torch.")

    @torch.no_grad()
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
        """One observation → a chunk of actions.

        Args:
            images: uint8 RGB [height, width, 3] by camera name; a camera left out is masked.
            state: [state_dim] in the policy's units.
            instruction: the task.
            noise: float32 [horizon, action_dim] of the network, standard normal; drawn if None.
            steps: denoising steps N.
            start_time: flow time of the first step, 1 for pure noise.
            initial: normalised actions [horizon, action_dim] of the network to start from; needed
                where `start_time` is below 1.
            generator: what noise is drawn from, on its own device; default is torch's on the CPU.

        Returns:
            float32 [horizon, action_dim of the robot], absolute, in the policy's units.

        Raises:
            ValueError: an argument does not fit; names it, what was expected and what was found.
        """
        inputs = self.processor.prepare(images, state, instruction)
        times = self.flow_times(flow.uniform_times(steps, start_time))
        x = self.initial_state(start_time, noise, initial, generator)
        actions = flow.denoise(self.weights, self.config, self.encode(inputs), x, times)
        return self.processor.finish(actions, state).astype(np.float32, copy=False)

    @torch.no_grad()
    def embed_views(self, images: Tensor) -> Tensor:
        """Views float32 [V, 3, S, S] → [V, view_tokens, width]; each depends on its own alone."""
        return siglip.embed_views(self.weights.vision, self.config, images.to(self.device))

    @torch.no_grad()
    def embed_prompt(self, tokens: Tensor) -> Tensor:
        """Valid token ids int64 [n], on the CPU → [n, width].

        Raises:
            ValueError: an id beyond the vocabulary.
        """
        self.check_tokens(tokens)
        return gemma.embed_prompt(self.weights.language, tokens.to(self.device))

    def check_tokens(self, tokens: Tensor) -> None:
        """Raise ValueError for a token id, int64 [n] on the CPU, beyond the vocabulary."""
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.config.vocab:
            raise ValueError(
                f"tokens: expected ids below the network's vocabulary of {self.config.vocab}, found "
                f"{int(tokens.max())}: the tokenizer is another model's"
            )

    @torch.no_grad()
    def encode_prefix(
        self, views: Tensor, prompt: Tensor, state: Tensor | None = None
    ) -> PrefixCache:
        """Views [V, view_tokens, width], prompt [n, width], π0's state [action_dim] → prefix."""
        rows = torch.cat((views.flatten(0, 1), prompt))
        prefix = gemma.encode_prefix(self.weights.language, self.config, rows)
        if self.config.family == "pi05":
            return prefix
        if state is None:
            raise ValueError("state: π0 reads it as a token, found None")
        return flow.append_state(self.weights, self.config, prefix, state.to(self.device))

    def encode(self, inputs: ModelInputs) -> PrefixCache:
        """Everything the actions see; masked views and padded tokens are left out."""
        views = self.embed_views(inputs.images[inputs.view_mask])
        prompt = self.embed_prompt(inputs.tokens[inputs.token_mask])
        return self.encode_prefix(views, prompt, inputs.state)

    @torch.no_grad()
    def flow_times(self, times: Sequence[float]) -> FlowTimes:
        """Terms of evaluation times; those of the last few runs are kept."""
        key = tuple(times)
        if key not in self._flow_times:
            self._flow_times[key] = flow.flow_times(self.weights, self.config, key)
            if len(self._flow_times) > _KEPT_FLOW_TIMES:
                self._flow_times.popitem(last=False)
        self._flow_times.move_to_end(key)
        return self._flow_times[key]

    def initial_state(
        self,
        start_time: float = 1.0,
        noise: ArrayLike | Tensor | None = None,
        initial: ArrayLike | Tensor | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """x at `start_time`: `t * noise + (1 - t) * initial`, float32 [horizon, action_dim].

        On `device`, by default the network's.
        """
        device = self.device if device is None else device
        if noise is None:
            where = generator.device if generator is not None else torch.device("cpu")
            shape = (self.config.horizon, self.config.action_dim)
            noise = torch.randn(shape, generator=generator, device=where)
        x = self._actions("noise", noise, device)
        if start_time == 1.0:
            return x
        if initial is None:
            raise ValueError(f"initial: expected actions to start from at {start_time}, found None")
        return start_time * x + (1.0 - start_time) * self._actions("initial", initial, device)

    @torch.no_grad()
    def denoise(
        self,
        prefix: PrefixCache,
        x: Tensor,
        times: FlowTimes,
        trace: list[Step] | None = None,
        guidance: Guidance | None = None,
    ) -> Tensor:
        """Flow x, the state at `times.times[0]`, to normalised actions; see `flow.denoise`."""
        return flow.denoise(self.weights, self.config, prefix, x, times, trace, guidance)

    def guidance(
        self, target: ArrayLike | Tensor, weights: ArrayLike, strengths: Sequence[float]
    ) -> Guidance:
        """Guidance on the network's device: target [horizon, action_dim], weights [horizon]."""
        rows = torch.as_tensor(weights, dtype=torch.float32, device=self.device)
        if tuple(rows.shape) != (self.config.horizon,):
            raise ValueError(f"weights: expected [{self.config.horizon}], found {list(rows.shape)}")
        return Guidance(self._actions("target", target, self.device), rows, tuple(strengths))

    def _actions(self, name: str, values: ArrayLike | Tensor, device: torch.device) -> Tensor:
        tensor = torch.as_tensor(values, dtype=torch.float32, device=device)
        expected = (self.config.horizon, self.config.action_dim)
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: expected {list(expected)}, found {list(tensor.shape)}")
        return tensor
