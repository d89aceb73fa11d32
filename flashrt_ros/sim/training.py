"""Flow-matching training of the small π0.5, with the network code that inference runs.

`x_t = t * noise + (1 - t) * actions`, the network predicts `noise - actions`, t from Beta(1.5, 1)
as in openpi.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # optimisers import it late, which crashes once a process has drawn with Mesa
from safetensors.torch import load_file, save_file
from torch import Tensor

from flashrt_ros.models import flow, gemma, siglip
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.gemma import PrefixCache
from flashrt_ros.models.processor import Processor
from flashrt_ros.models.transforms import Range
from flashrt_ros.models.weights import Weights, build_weights
from flashrt_ros.sim.demonstrations import TARGETS, Demonstrations
from flashrt_ros.sim.small_policy import initial_tensors, token_ids, vocabulary

_VERBS = ("touch", "touch", "reach", "press")
_NOUNS = ("block", "block", "cube")
STATE_FILE = "training.safetensors"
LOG_FILE = "training.json"


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that decides the weights, besides the data."""

    steps: int = 12000
    batch: int = 768
    draws: int = 4
    """Noises and flow times for each observation: its prefix is computed once."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_steps: int = 300
    ema: float = 0.999
    seed: int = 0
    graph: bool = True
    """Capture loss and gradients as a CUDA graph, on a GPU."""
    time_limit_min: float = 0.0
    """The learning rate comes to its end by then, and the training with it; 0: by steps alone."""


@dataclass
class TrainingLog:
    """What came of the training so far."""

    step: int = 0
    seconds: float = 0.0
    """Of training, all resumptions together."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """(step, mean loss since the entry before)."""
    validation: list[tuple[int, float]] = field(default_factory=list)
    """(step, loss of the averaged weights on demonstrations that are not trained on)."""


class PromptTable:
    """Token ids of instructions with a state, made on the device in one go.

    Every instruction of the table has as many tokens, so a batch needs no padding.
    """

    def __init__(self, processor: Processor, device: torch.device):
        assert isinstance(processor.state, Range)
        known = vocabulary()
        self._unknown = known["<unk>"]
        self._first_number = known["-1"]
        self._low = torch.tensor(processor.state.low, device=device)
        self._width = torch.tensor(processor.state.width, device=device)
        self._edges = torch.linspace(-1, 1, 257, dtype=torch.float64, device=device)[:-1]
        texts = [
            [f"{verb} the {target} {noun}" for verb in _VERBS for noun in _NOUNS]
            for target in TARGETS
        ]
        rows = [[[known["<bos>"], *token_ids(f"Task: {t}, State:")] for t in row] for row in texts]
        self._begin = torch.tensor(rows, device=device)  # [targets, variants, n]
        self._end = torch.tensor(token_ids(";\nAction: "), device=device)
        self._insert_at = 1 + len(token_ids("Task:"))

    def __call__(
        self, targets: Tensor, states: Tensor, variants: Tensor | None = None, fillers: int = 0
    ) -> Tensor:
        """Targets int64 [B], states [B, 6] (rad) → token ids int64 [B, n + fillers].

        `variants` [B] chooses the wording, the first where None. `fillers`: unknown words put
        before the instruction, so that the policy does not count on places.
        """
        variants = torch.zeros_like(targets) if variants is None else variants
        begin = self._begin[targets, variants % self._begin.shape[1]]
        normalized = (states.double() - self._low) / self._width * 2 - 1
        bins = torch.bucketize(normalized, self._edges, right=True) - 1
        numbers = bins + 1 + self._first_number
        unknown = torch.full((len(targets), fillers), self._unknown, device=targets.device)
        head, rest = begin[:, : self._insert_at], begin[:, self._insert_at :]
        end = self._end.expand(len(targets), -1)
        return torch.cat((head, unknown, rest, numbers, end), dim=1)


def velocity_loss(
    weights: Weights,
    config: ModelConfig,
    images: Tensor,
    tokens: Tensor,
    actions: Tensor,
    noise: Tensor,
    times: Tensor,
) -> Tensor:
    """Mean squared error of the predicted velocity.

    Args:
        weights: float32.
        config: of the network.
        images: float32 [B, V, 3, S, S] in [-1, 1].
        tokens: int64 [B, n], all valid.
        actions: normalised [B, H, A].
        noise: [B, K, H, A].
        times: flow times [B, K].
    """
    views = siglip.embed_views(weights.vision, config, images.flatten(0, 1))
    views = views.view(len(images), -1, config.width)
    rows = torch.cat((views, gemma.embed_prompt(weights.language, tokens)), dim=1)

    prefix = gemma.encode_prefix(weights.language, config, rows)
    draws = times.shape[1]
    seen_by_each = PrefixCache(
        *(part[:, :, None].expand(-1, -1, draws, -1, -1) for part in (prefix.keys, prefix.values))
    )
    t = times[..., None, None]
    x_t = t * noise + (1 - t) * actions[:, None]
    terms = flow.time_terms(weights, config, times.flatten())
    terms = terms.view(*times.shape, *terms.shape[1:])  # [B, K, sites, 3, E]
    predicted = flow.velocity(weights, config, seen_by_each, x_t, terms)
    return (predicted - (noise - actions[:, None])).square().mean()


class Batches:
    """Demonstrations on the device, drawn and augmented there."""

    def __init__(
        self, demonstrations: Demonstrations, processor: Processor, device: torch.device, seed: int
    ):
        self._device = device
        self._images = torch.from_numpy(demonstrations.images).to(device)
        self._states = torch.from_numpy(demonstrations.states).to(device)
        self._targets = torch.from_numpy(demonstrations.targets).to(device)
        self._actions = torch.from_numpy(demonstrations.actions).to(device)
        self._prompts = PromptTable(processor, device)
        assert isinstance(processor.actions, Range)
        self._low = torch.tensor(processor.actions.low, device=device, dtype=torch.float32)
        self._width = torch.tensor(processor.actions.width, device=device, dtype=torch.float32)
        self.generator = torch.Generator(device)
        self._lengths = torch.Generator()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin the draws that belong to a seed."""
        self.generator.manual_seed(seed)
        self._lengths.manual_seed(seed)

    def __len__(self) -> int:
        return len(self._states)

    def draw(self, size: int, augment: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Images, tokens and normalised actions, as `velocity_loss` takes them."""
        g = self.generator
        index = torch.randint(len(self), (size,), generator=g, device=self._device)
        images = self._images[index].permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0
        states, targets, actions = self._states[index], self._targets[index], self._actions[index]
        variants, fillers = None, 0
        if augment:
            images = self._augmented(images)
            variants = torch.randint(1 << 20, (size,), generator=g, device=self._device)
            # Two lengths only: each has a captured graph of its own.
            fillers = 3 if float(torch.rand((), generator=self._lengths)) < 0.25 else 0
            # Encoders err, and pictures are a little older than the joint states.
            spread = 0.012 * torch.rand((size, 1), generator=g, device=self._device)
            states = states + spread * torch.randn(states.shape, generator=g, device=self._device)
        relative = actions - states[:, None]
        normalized = (relative - self._low) / self._width * 2 - 1
        return images, self._prompts(targets, states, variants, fillers), normalized

    def _augmented(self, images: Tensor) -> Tensor:
        """Other lights, lenses and sensors; the wrist camera fails at times."""
        g, count = self.generator, len(images)

        def uniform(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(shape, generator=g, device=self._device)

        unit = images * 0.5 + 0.5
        mean = unit.mean(dim=(2, 3, 4), keepdim=True)
        unit = (unit - mean) * uniform(0.75, 1.25, count, 2, 1, 1, 1) + mean
        unit = unit * uniform(0.75, 1.25, count, 2, 1, 1, 1)
        unit = unit * uniform(0.92, 1.08, count, 2, 3, 1, 1)
        spread = uniform(0.0, 0.03, count, 1, 1, 1, 1)
        unit = unit + spread * torch.randn(unit.shape, generator=g, device=self._device)
        unit[:, 1] = torch.where(uniform(0, 1, count, 1, 1, 1) < 0.04, 0.0, unit[:, 1])
        return unit.clamp(0.0, 1.0) * 2.0 - 1.0


_Graph = tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...], list[Tensor], Tensor]


class Training:
    """Parameters, their running average and the optimiser; saved and resumed as safetensors."""

    def __init__(self, config: ModelConfig, settings: TrainingSettings, device: torch.device):
        self.config, self.settings, self.device = config, settings, device
        start = initial_tensors(config, settings.seed)
        self.parameters = {n: t.to(device).requires_grad_() for n, t in start.items()}
        self.average = {n: t.detach().clone() for n, t in self.parameters.items()}
        self.log = TrainingLog()
        self._graphs: dict[int, _Graph] = {}
        flat = {n for n, t in self.parameters.items() if _is_flat(n, t)}
        groups = [
            {"params": [t for n, t in self.parameters.items() if (n in flat) == is_flat],
             "weight_decay": 0.0 if is_flat else settings.weight_decay}
            for is_flat in (False, True)
        ]  # fmt: skip
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=device.type == "cuda"
        )

    def start_from(self, tensors: Mapping[str, Tensor]) -> None:
        """Begin with the weights of an earlier training."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[name])
                self.average[name].copy_(tensors[name])

    def save(self, folder: Path) -> None:
        """Write all that `resume` needs, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"average.{n}": t for n, t in self.average.items()}
        for name, parameter in self.parameters.items():
            tensors[f"parameter.{name}"] = parameter.detach()
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{kind}.{name}"] = value
        unfinished = folder / f".{STATE_FILE}"
        save_file({n: t.contiguous().cpu() for n, t in tensors.items()}, unfinished)
        (folder / LOG_FILE).write_text(
            json.dumps({"settings": asdict(self.settings), **asdict(self.log)}) + "\n",
            encoding="utf-8",
        )
        unfinished.rename(folder / STATE_FILE)

    def resume(self, folder: Path) -> bool:
        """Go on from what `save` wrote; False where there is nothing."""
        if not (folder / STATE_FILE).exists():
            return False
        tensors = load_file(folder / STATE_FILE)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
                self.average[name].copy_(tensors[f"average.{name}"])
                self.optimizer.state[parameter] = {
                    kind: tensors[f"optimizer.{kind}.{name}"].to(
                        self.device if kind != "step" or self.device.type == "cuda" else "cpu"
                    )
                    for kind in ("step", "exp_avg", "exp_avg_sq")
                }
        values = json.loads((folder / LOG_FILE).read_text(encoding="utf-8"))
        values.pop("settings")
        self.log = TrainingLog(**values)
        self.log.losses = [(int(s), float(v)) for s, v in self.log.losses]
        self.log.validation = [(int(s), float(v)) for s, v in self.log.validation]
        return True

    def run(
        self,
        batches: Batches,
        held_out: Batches,
        progress: Callable[[TrainingLog, float], None],
        save: Callable[[Training], None],
        save_every_s: float = 60.0,
    ) -> None:
        """Train to the end. `progress` gets the log and the share that is done, 0 to 1."""
        settings, log = self.settings, self.log
        # The same draws, however often the training was interrupted at this step.
        batches.seed(settings.seed * 1_000_003 + log.step)
        last_s = saved_s = time.monotonic()
        recent: list[Tensor] = []
        while (done := self._done()) < 1.0:
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(done, log.step, settings)
            recent.append(self._step(batches))
            log.step += 1
            if log.step % 50 == 0 or self._done() >= 1.0:
                now_s = time.monotonic()
                log.seconds += now_s - last_s
                last_s = now_s
                log.losses.append((log.step, float(torch.stack(recent).mean())))
                recent.clear()
                if not math.isfinite(log.losses[-1][1]):
                    raise RuntimeError(f"the training diverged at step {log.step}")
                progress(log, done)
                if now_s - saved_s > save_every_s:
                    log.validation.append((log.step, self.validate(held_out)))
                    save(self)
                    saved_s = time.monotonic()
        log.validation.append((log.step, self.validate(held_out)))
        log.seconds += time.monotonic() - last_s
        save(self)

    def _done(self) -> float:
        settings = self.settings
        share = self.log.step / settings.steps
        if settings.time_limit_min:
            share = max(share, self.log.seconds / (60.0 * settings.time_limit_min))
        return share

    def _step(self, batches: Batches) -> Tensor:
        settings = self.settings
        loss = self._gradients(self._inputs(batches, settings.batch, augment=True))
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        self.optimizer.step()
        decay = min(settings.ema, (1 + self.log.step) / (10 + self.log.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.values()), list(self.parameters.values()), 1 - decay
            )
        return loss

    def _inputs(self, batches: Batches, size: int, augment: bool) -> tuple[Tensor, ...]:
        """Images, tokens, actions, noise and times, as `velocity_loss` takes them."""
        config, draws, g = self.config, self.settings.draws, batches.generator
        images, tokens, actions = batches.draw(size, augment)
        shape = (size, draws, config.horizon, config.action_dim)
        noise = torch.randn(shape, generator=g, device=self.device)
        # Beta(1.5, 1): its distribution function is t^1.5.
        times = torch.rand(shape[:2], generator=g, device=self.device) ** (1 / 1.5) * 0.999 + 0.001
        return images, tokens, actions, noise, times

    def _loss(self, tensors: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
        with self._precision():
            return velocity_loss(build_weights(tensors), self.config, *inputs)

    def _gradients(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Put the gradients into the parameters; the loss."""
        if self.device.type != "cuda" or not self.settings.graph:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self._loss(self.parameters, inputs)
            loss.backward()
            return loss.detach()
        length = inputs[1].shape[1]
        if length not in self._graphs:
            self._graphs[length] = self._capture(inputs)
        graph, fixed, gradients, loss = self._graphs[length]
        for target, source in zip(fixed, inputs, strict=True):
            target.copy_(source)
        graph.replay()
        for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        return loss.clone()

    def _capture(self, inputs: tuple[Tensor, ...]) -> _Graph:
        """Loss and gradients as a CUDA graph: the many small launches would take the time."""
        fixed = tuple(tensor.clone() for tensor in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.optimizer.zero_grad(set_to_none=True)
                self._loss(self.parameters, fixed).backward()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._loss(self.parameters, fixed)
            loss.backward()
        gradients = []
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None, name
            gradients.append(parameter.grad)
        return graph, fixed, gradients, loss.detach()

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        # A cache of cast weights would outlive the capture of a graph.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    @torch.no_grad()
    def validate(self, held_out: Batches, batches: int = 4) -> float:
        """Loss of the averaged weights, on the same draws each time."""
        held_out.seed(0)
        size = min(512, self.settings.batch)
        losses = [
            self._loss(self.average, self._inputs(held_out, size, augment=False))
            for _ in range(batches)
        ]
        return float(torch.stack(losses).mean())


def _is_flat(name: str, tensor: Tensor) -> bool:
    """Biases, norms and embeddings, which are not pulled to zero."""
    kind = name.split(".")[1]
    return kind.endswith("bias") or "norm" in kind or kind in ("embedding", "position")


def _schedule(done: float, step: int, settings: TrainingSettings) -> float:
    """Share of the learning rate: a linear start, then half a cosine down to 2 %."""
    start = min(1.0, (step + 1) / settings.warmup_steps)
    return start * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0))))


def relative_actions(demonstrations: Demonstrations) -> np.ndarray:
    """Actions minus the state of their observation, [N, H, 6], rad."""
    return demonstrations.actions - demonstrations.states[:, None]
