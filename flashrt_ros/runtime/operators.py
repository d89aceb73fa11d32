"""What an implementation of the network offers to the engine, and the reference implementation.

`Operators` is the seam between the engine, which decides what runs when, and the arithmetic. Every method launches work
on the current stream and neither waits for the device nor (where `capturable`) allocates; inputs and outputs are
`Buffers`, declared by `declare_buffers` for both implementations and by `declare` for one's own:

| buffer | shape, type | content |
|---|---|---|
| `pixels.{c}` | uint8 [h, w, 3], staged | picture of camera c |
| `prompt` | int32 [T+2], staged | token ids, then how many are valid, then how many of them no state moves |
| `state` | float32 [A], staged (π0) | normalised and padded state |
| `rows` | dtype [V*N + T, D] | embeddings: `views*N` rows of the views that are present, then the prompt |
| `keys`, `values` | dtype [L, V*N + T + 1 + H, d] | of the valid prefix, π0's state token, a step's actions |
| `x0`, `actions` | float32 [H, A], staged | where the flow starts, and where it ends |
| `velocity` | float32 [H, A] | of one step, where a velocity is guided |

`tokens`, `length` and `fixed` are views of `prompt` (`prompt_views`), so that one copy uploads them. V: most views, N:
tokens of a view, T: longest bucket, A: padded action size, H: horizon, D, d: widths of the model and of a head.

A view has a **slot**, its place in the prefix, and comes from a **camera**: where a camera is absent, those behind it
move up one slot, so that valid rows are always contiguous and the prompt starts at row `shape.views * N`. Grids are
sized by `Shape`; the valid number of prompt tokens is read from `length` in device memory, and the prefix ends at
`shape.views * N + length`.

Changed against the first sketch of this seam, and why: `see` names its cameras, since a camera's slot is not constant;
stage bodies take a `Shape`, so that one set of buffers serves all numbers of views and all buckets; `append_state` is
apart from `encode`, since π0's state moves at every call and the prefix need not; `prompt` joins three small buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from flashrt_ros.models import flow, gemma, siglip
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import FlowTimes
from flashrt_ros.models.gemma import PrefixCache
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.weights import Weights
from flashrt_ros.runtime.contract import Buffers, Rate

Part = Literal["fixed", "moving"]
"""Prompt tokens that no state moves (the first `fixed`), and those behind them: π0.5's state numbers."""

Guidance = Callable[[int, float, Tensor, Tensor], Tensor]
"""Step, flow time, x and velocity float32 [H, A] there → the velocity to follow."""

BUCKET_TOKENS = 32


def buckets(max_prompt_tokens: int) -> tuple[int, ...]:
    """Prompt lengths that are planned for: multiples of 32, the last one at least `max_prompt_tokens`."""
    top = -(-max_prompt_tokens // BUCKET_TOKENS)
    return tuple(BUCKET_TOKENS * (i + 1) for i in range(top))


def bucket_of(length: int) -> int:
    """The smallest bucket for `length` tokens, at least 1."""
    return max(1, -(-length // BUCKET_TOKENS)) * BUCKET_TOKENS


@dataclass(frozen=True)
class Limits:
    """What buffers are allocated for."""

    cameras: tuple[tuple[int, int], ...]
    """Height and width of each camera's pictures [pixels]; as many views at most."""
    prompt_tokens: int
    """T, the longest bucket."""


@dataclass(frozen=True)
class Shape:
    """What the grids of a call are sized by."""

    views: int
    """Views that are present."""
    bucket: int
    """Rows for the prompt; `length` of them are valid."""


@dataclass(frozen=True)
class Site:
    """A place in the network with several ways to compute it, see `selection`."""

    name: str
    candidates: Mapping[str, Callable[[], Sequence[Tensor]]]
    """By name, the reference first: each runs one candidate on the site's representative inputs, the same ones at each
    call, and returns what came of them; results may lie where the next candidate's will."""
    bound: float
    """Largest relative L2 error to the reference on any of these inputs."""


class Operators(Protocol):
    """An implementation of the network; see the module for its buffers."""

    capturable: bool
    """Whether stage bodies may be captured as CUDA graphs: nothing in them depends on values on the host."""

    def declare(self, buffers: Buffers) -> None:
        """Declare buffers of its own; those of `Rate.INSTRUCTION` are kept for each instruction."""
        ...

    def bind(self, buffers: Buffers) -> None:
        """Take the allocated buffers, and fill its own of `Rate.CHECKPOINT`."""
        ...

    def prepare_times(self, times: FlowTimes) -> None:
        """Prepare for denoising at these times; once for each, before `denoise` is called or captured with them."""
        ...

    def see(self, cameras: tuple[int, ...], first: int) -> None:
        """`pixels.{c}` of these cameras → `rows` of the slots `first`, `first + 1`, …

        Several views in one call give the same bits as one at a time.
        """
        ...

    def read_prompt(self, shape: Shape, part: Part) -> None:
        """`prompt` → this part of its `rows`, and whatever else the tokens alone decide."""
        ...

    def encode(self, shape: Shape) -> None:
        """`rows` → `keys`, `values` of the valid prefix. `rows` stay as they are."""
        ...

    def append_state(self, shape: Shape) -> None:
        """π0: `state` → `keys`, `values` of the token behind the prefix."""
        ...

    def denoise(self, shape: Shape, times: FlowTimes) -> None:
        """`x0`, `keys`, `values` → `actions`; may write keys and values behind the prefix and its state token."""
        ...

    def velocity(self, shape: Shape, times: FlowTimes, step: int) -> None:
        """`actions` as they are before a step, `keys`, `values` → `velocity`; writes to these as `denoise` does."""
        ...

    def sites(self) -> list[Site]:
        """Places with more than one candidate."""
        ...

    def choices(self) -> dict[str, str]:
        """The candidate in use, by site."""
        ...

    def choose(self, site: str, candidate: str) -> None:
        """Use a candidate from the next launch on; graphs captured before keep theirs."""
        ...


def declare_buffers(
    buffers: Buffers, config: ModelConfig, limits: Limits, dtype: torch.dtype
) -> None:
    """Declare what the module's table lists."""
    prefix = len(limits.cameras) * config.view_tokens + limits.prompt_tokens
    cache = (config.depth, prefix + 1 + config.horizon, config.head_dim)
    actions = (config.horizon, config.action_dim)
    for camera, (height, width) in enumerate(limits.cameras):
        shape = (height, width, 3)
        buffers.declare(f"pixels.{camera}", shape, torch.uint8, Rate.OBSERVATION, staged=True)
    prompt = (limits.prompt_tokens + 2,)
    buffers.declare("prompt", prompt, torch.int32, Rate.OBSERVATION, staged=True)
    if config.family == "pi0":
        state = (config.action_dim,)
        buffers.declare("state", state, torch.float32, Rate.OBSERVATION, staged=True)
    buffers.declare("rows", (prefix, config.width), dtype, Rate.OBSERVATION)
    buffers.declare("keys", cache, dtype, Rate.OBSERVATION)
    buffers.declare("values", cache, dtype, Rate.OBSERVATION)
    buffers.declare("x0", actions, torch.float32, Rate.STEP, staged=True)
    buffers.declare("actions", actions, torch.float32, Rate.STEP, staged=True)
    buffers.declare("velocity", actions, torch.float32, Rate.STEP)


def prompt_views(prompt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`prompt`, on the device or its twin → token ids int32 [T], `length` int32 [1], `fixed` int32 [1]."""
    return prompt[:-2], prompt[-2:-1], prompt[-1:]


class ReferenceOperators:
    """The plain functions of models/ on any device: what a CPU runs, and what every other result is judged by.

    Not capturable: lengths and pictures are read from the host twins, pictures being resized there exactly as a
    checkpoint's processing does. Layer 0's projections of the fixed prompt tokens are kept with the instruction.
    """

    capturable = False

    def __init__(
        self, weights: Weights, config: ModelConfig, limits: Limits, image: PrepareImage
    ) -> None:
        self._weights = weights
        self._config = config
        self._limits = limits
        self._image = image
        self._buffers = Buffers()

    def declare(self, buffers: Buffers) -> None:
        """Layer 0's queries, key and value of fixed prompt tokens, rotated: [T, heads + 2, d]."""
        c = self._config
        shape = (self._limits.prompt_tokens, c.heads + 2, c.head_dim)
        buffers.declare("prompt_qkv", shape, self._weights.dtype, Rate.INSTRUCTION)

    def bind(self, buffers: Buffers) -> None:
        """Keep the buffers."""
        self._buffers = buffers

    def prepare_times(self, times: FlowTimes) -> None:
        """Nothing: `times` has all."""

    def see(self, cameras: tuple[int, ...], first: int) -> None:
        """One view at a time: on a CPU, too, a batch of several rounds otherwise."""
        b, N = self._buffers, self._config.view_tokens
        for slot, camera in enumerate(cameras, start=first):
            image = self._image(b.host(f"pixels.{camera}").numpy())[None].to(self._weights.device)
            view = siglip.embed_views(self._weights.vision, self._config, image)[0]  # [N, D]
            b["rows"][slot * N : (slot + 1) * N] = view

    def read_prompt(self, shape: Shape, part: Part) -> None:
        """Embeddings; of the fixed part also the projections of layer 0."""
        w, c, b = self._weights.language, self._config, self._buffers
        length, fixed = self._lengths()
        start, end = (0, fixed) if part == "fixed" else (fixed, length)
        base = shape.views * c.view_tokens
        tokens = prompt_views(b["prompt"])[0][start:end].long()
        rows = gemma.embed_prompt(w, tokens)  # [n, D]
        b["rows"][base + start : base + end] = rows
        if part == "fixed" and fixed:
            positions = torch.arange(base, base + fixed, device=rows.device)
            b["prompt_qkv"][:fixed] = gemma.project_first(w, c, rows, positions)

    def encode(self, shape: Shape) -> None:
        """All layers over the valid prefix."""
        w, c, b = self._weights.language, self._config, self._buffers
        length, fixed = self._lengths()
        base = shape.views * c.view_tokens
        end = base + length
        rows = b["rows"][:end]
        # What is not fixed lies on both sides of what is: projected in one product.
        positions = torch.arange(end, device=rows.device)
        moving = torch.cat((positions[:base], positions[base + fixed :]))
        projected = gemma.project_first(w, c, rows[moving], moving)
        first = torch.cat((projected[:base], b["prompt_qkv"][:fixed], projected[base:]))
        prefix = gemma.encode_prefix(w, c, rows, first)
        b["keys"][:, :end] = prefix.keys
        b["values"][:, :end] = prefix.values

    def append_state(self, shape: Shape) -> None:
        """Keys and values of π0's state token."""
        b, end = self._buffers, shape.views * self._config.view_tokens + self._lengths()[0]
        prefix = PrefixCache(b["keys"][:, :end], b["values"][:, :end])
        longer = flow.append_state(self._weights, self._config, prefix, b["state"])
        b["keys"][:, end] = longer.keys[:, -1]
        b["values"][:, end] = longer.values[:, -1]

    def denoise(self, shape: Shape, times: FlowTimes) -> None:
        """All steps."""
        b = self._buffers
        b["actions"].copy_(
            flow.denoise(self._weights, self._config, self._prefix(shape), b["x0"], times)
        )

    def velocity(self, shape: Shape, times: FlowTimes, step: int) -> None:
        """One evaluation."""
        b, prefix = self._buffers, self._prefix(shape)
        v = flow.velocity(self._weights, self._config, prefix, b["actions"], times.terms[step])
        b["velocity"].copy_(v)

    def _prefix(self, shape: Shape) -> PrefixCache:
        """Keys and values that actions attend to."""
        c, b = self._config, self._buffers
        end = shape.views * c.view_tokens + self._lengths()[0] + (c.family == "pi0")
        return PrefixCache(b["keys"][:, :end], b["values"][:, :end])

    def sites(self) -> list[Site]:
        """None: there is one way."""
        return []

    def choices(self) -> dict[str, str]:
        """None."""
        return {}

    def choose(self, site: str, candidate: str) -> None:
        """Raises ValueError: there is nothing to choose."""
        raise ValueError(f"site {site!r}: the reference operators have none")

    def _lengths(self) -> tuple[int, int]:
        """Valid and fixed prompt tokens, from the host."""
        _, length, fixed = prompt_views(self._buffers.host("prompt"))
        return int(length), int(fixed)
