"""The action expert and its flow from noise (time 1) to actions (time 0).

`x_t = t * noise + (1 - t) * actions`, the network predicts `v = noise - actions`, and each step
is `x += (t_next - t) * v`. Actions, time and state enter and leave in float32; the expert computes
in the precision of its weights, its norms and rotations in float32.

Each stage is a function of the weights and of the stage before, so that any result whose inputs did
not change can be kept. π0's state token sees the prefix and itself but no action, so its keys and
values are computed once (`append_state`) and not at every step, and no stage needs a mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.gemma import (
    PrefixCache,
    attend,
    geglu,
    project_qkv,
    rms_norm,
    rotary_table,
)
from flashrt_ros.models.weights import Weights


@dataclass(frozen=True)
class FlowTimes:
    """Evaluation times of a denoising run, and all that depends on the weights and them alone."""

    times: tuple[float, ...]
    terms: Tensor  # float32; π0.5: [N, 2*L+1, 3, E] 1 + scale, shift, gate; π0: [N, E]

    @property
    def step_sizes(self) -> tuple[float, ...]:
        """Change of flow time in each step, negative; the last one ends at time 0."""
        return tuple(b - a for a, b in zip(self.times, (*self.times[1:], 0.0), strict=True))


@dataclass(frozen=True)
class Step:
    """One recorded step: the state before it and the velocity found there."""

    time: float
    x_t: Tensor  # float32 [H, A]
    v_t: Tensor  # float32 [H, A]


@dataclass(frozen=True)
class Guidance:
    """What the flow is drawn to on its way: real-time chunking with the identity for the Jacobian.

    At each step the end of the flow is foreseen as `x - t * v`, and its weighted error is taken
    off the velocity: `v -= strength * weight * (target - (x - t * v))`. As in LeRobot; the paper
    (Black et al. 2025, arXiv 2506.07339) multiplies the error by the network's Jacobian instead.
    """

    target: Tensor  # float32 [H, A], normalised actions
    weights: Tensor  # float32 [H], 0 leaves an action free
    strengths: Sequence[float]  # one for each step

    def __call__(self, step: int, time: float, x: Tensor, v: Tensor) -> Tensor:
        """The guided velocity at step `step`, flow time `time`; x and v float32 [H, A]."""
        error = self.target - (x - time * v)
        return v - self.strengths[step] * self.weights[:, None] * error


def uniform_times(steps: int, start_time: float = 1.0) -> tuple[float, ...]:
    """Times of `steps` evaluations from `start_time` down to zero, equally spaced, zero left out.

    As in LeRobot. openpi adds -1/N to a float32 time instead, which moves actions by up to 4e-5.

    Raises:
        ValueError: `steps` is below 1 or `start_time` outside (0, 1].
    """
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, found {steps}")
    if not 0.0 < start_time <= 1.0:
        raise ValueError(f"start_time: expected a flow time in (0, 1], found {start_time}")
    return tuple(start_time * (1.0 - i / steps) for i in range(steps))


def time_embedding(times: Sequence[float] | Tensor, config: ModelConfig) -> Tensor:
    """Sine and cosine features of flow times [N], float32 [N, E], where the times are.

    Periods run geometrically from `min_period` to `max_period`; angles are float64, as in openpi
    and LeRobot, of a time rounded to float32.
    """
    time = torch.as_tensor(times, dtype=torch.float32).double()
    fraction = torch.linspace(
        0.0, 1.0, config.expert_width // 2, dtype=torch.float64, device=time.device
    )
    period = config.min_period * (config.max_period / config.min_period) ** fraction
    angle = (2.0 * math.pi / period) * time[:, None]
    return torch.cat((angle.sin(), angle.cos()), dim=-1).float()


def flow_times(w: Weights, config: ModelConfig, times: Sequence[float]) -> FlowTimes:
    """Compute the terms of given evaluation times. The same times give the same: keep them.

    π0.5: scale (its 1 added), shift and gate of every adaptive norm. π0: the time half of
    action_time_mlp_in, bias included.

    Raises:
        ValueError: times are not decreasing, or not in (0, 1].
    """
    if not times or not 0.0 < times[-1] <= times[0] <= 1.0:
        raise ValueError(f"times: expected flow times in (0, 1], found {list(times)}")
    if list(times) != sorted(set(times), reverse=True):
        raise ValueError(f"times: expected decreasing flow times, found {list(times)}")
    return FlowTimes(tuple(times), time_terms(w, config, torch.tensor(times)))


def time_terms(w: Weights, config: ModelConfig, times: Tensor) -> Tensor:
    """`FlowTimes.terms` of times [N], in any order."""
    flow, expert = w.flow, w.expert
    x = time_embedding(times, config).to(w.device)  # [N, E]
    if expert.modulation is None or expert.modulation_bias is None:  # π0
        time_half = flow.time_in[:, config.expert_width :]
        return F.linear(x, time_half, flow.time_in_bias)
    x = F.silu(F.linear(x, flow.time_in, flow.time_in_bias))
    x = F.silu(F.linear(x, flow.time_out, flow.time_out_bias))
    x = F.linear(x, expert.modulation.flatten(0, 1), expert.modulation_bias.flatten())
    terms = x.view(len(times), config.norm_sites, 3, config.expert_width)
    terms[:, :, 0] += 1.0
    return terms


def append_state(
    w: Weights, config: ModelConfig, prefix: PrefixCache, state: Tensor
) -> PrefixCache:
    """π0: extend the prefix by the token of the state, float32 [A], normalised and padded.

    Raises:
        ValueError: the network is a π0.5, whose state is part of its prompt.
    """
    if w.flow.state is None:
        raise ValueError("a π0.5 network has no state token: its state is part of the prompt")
    token = F.linear(state[None], w.flow.state, w.flow.state_bias).to(w.dtype)  # [1, E]
    _, keys, values = _run_expert(w, config, prefix, token, None)
    return PrefixCache(
        torch.cat((prefix.keys, torch.stack(keys)), dim=1),
        torch.cat((prefix.values, torch.stack(values)), dim=1),
    )


def velocity(
    w: Weights, config: ModelConfig, prefix: PrefixCache, x_t: Tensor, term: Tensor
) -> Tensor:
    """One evaluation of the network: noisy actions [..., H, A] → velocity, both float32.

    `prefix` ends with the state token for π0; `term` is the row of `FlowTimes.terms` for the time
    of `x_t`, [..., 2*L+1, 3, E] in π0.5. All actions see the prefix and each other.
    """
    flow = w.flow
    x = F.linear(x_t, flow.action_in, flow.action_in_bias)  # [H, E]
    modulation: Tensor | None = term
    if w.expert.modulation is None:  # π0: time enters beside each action
        x = F.silu(F.linear(x, flow.time_in[:, : config.expert_width]) + term)
        x = F.linear(x, flow.time_out, flow.time_out_bias)
        modulation = None
    x, _, _ = _run_expert(w, config, prefix, x.to(w.dtype), modulation)
    x = _norm(w, modulation, x, config.norm_sites - 1)
    return F.linear(x.float(), flow.action_out, flow.action_out_bias)


def denoise(
    w: Weights,
    config: ModelConfig,
    prefix: PrefixCache,
    x: Tensor,
    flow: FlowTimes,
    trace: list[Step] | None = None,
    guidance: Guidance | None = None,
) -> Tensor:
    """Flow `x`, float32 [H, A] at time `flow.times[0]`, to normalised actions, float32 [H, A].

    Where the first time is 1, `x` is noise alone. `trace` receives every step, with its guided
    velocity where there is guidance.
    """
    steps = zip(flow.times, flow.step_sizes, flow.terms, strict=True)
    for index, (time, size, term) in enumerate(steps):
        v = velocity(w, config, prefix, x, term)
        if guidance is not None:
            v = guidance(index, time, x, v)
        if trace is not None:
            trace.append(Step(time, x, v))
        x = x + size * v
    return x


def _norm(w: Weights, modulation: Tensor | None, x: Tensor, site: int) -> Tensor:
    """Plain norm in π0 (`modulation` is None), adaptive norm in π0.5."""
    if modulation is not None:
        return rms_norm(x, *(modulation[..., site, part, None, :] for part in (0, 1)))
    assert w.expert.norm is not None
    return rms_norm(x, w.expert.norm[site])


def _residual(modulation: Tensor | None, x: Tensor, y: Tensor, site: int) -> Tensor:
    """Add a branch's output `y` to its input `x`, gated in π0.5."""
    return x + y if modulation is None else x + y * modulation[..., site, 2, None, :].to(y.dtype)


def _run_expert(
    w: Weights, config: ModelConfig, prefix: PrefixCache, x: Tensor, modulation: Tensor | None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Rows [..., n, E] behind the prefix through all layers; also their keys, values [..., n, d].

    `modulation`: [..., 2*L+1, 3, E] of one flow time in π0.5, None in π0.
    """
    e = w.expert
    positions = torch.arange(prefix.length, prefix.length + x.shape[-2], device=x.device)
    rotation = rotary_table(config.head_dim, positions)
    new_keys, new_values = [], []
    for i in range(config.depth):
        q, k, v = project_qkv(_norm(w, modulation, x, 2 * i), e.qkv[i], config, rotation)
        keys = torch.cat((prefix.keys[i], k), dim=-2)  # [..., P+n, d]
        values = torch.cat((prefix.values[i], v), dim=-2)
        x = _residual(modulation, x, F.linear(attend(q, keys, values), e.out[i]), 2 * i)
        y = geglu(_norm(w, modulation, x, 2 * i + 1), e.gate_up[i], e.down[i])
        x = _residual(modulation, x, y, 2 * i + 1)
        new_keys.append(k)
        new_values.append(v)
    return x, new_keys, new_values
