"""The action expert and its flow from noise (time 1) to actions (time 0).

`x_t = t * noise + (1 - t) * actions`, the network predicts `v = noise - actions`, and each step
is `x += (t_next - t) * v`. Actions, time and state enter and leave in float32; the expert computes
in the precision of its weights, its norms and rotations in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.gemma import (
    PrefixCache,
    attend,
    geglu,
    project_qkv,
    rms_norm,
    rotary_table,
)
from flashrt_ros.models.weights import ExpertWeights, FlowWeights, Weights

Trace = Callable[[int, float, Tensor, Tensor], None]


@dataclass(frozen=True)
class TimeConditioning:
    """What the expert needs of a flow time. It depends on the weights and on the time alone."""

    modulation: Tensor | None = None  # π0.5: float32 [2*L+1, 3, E]: 1 + scale, shift, gate
    bias: Tensor | None = None  # π0: float32 [E], the time half of `time_in`


def flow_times(steps: int, start: float = 1.0) -> tuple[float, ...]:
    """Times of `steps` evaluations from `start` down to zero, equally spaced, zero left out."""
    if steps < 1:
        raise ValueError(f"steps is {steps}: expected at least 1")
    if not 0.0 < start <= 1.0:
        raise ValueError(f"start flow time is {start}: expected above 0 and at most 1")
    return tuple(start * (1.0 - i / steps) for i in range(steps))


def time_embedding(times: Sequence[float], config: ModelConfig) -> Tensor:
    """Sine and cosine features of flow times, float32 [n, E], on the CPU.

    Periods run geometrically from `min_period` to `max_period`; angles are float64, as in openpi
    and LeRobot, of a time rounded to float32.
    """
    fraction = torch.linspace(0.0, 1.0, config.expert_width // 2, dtype=torch.float64)
    period = config.min_period * (config.max_period / config.min_period) ** fraction
    time = torch.tensor(times, dtype=torch.float32).double()
    angle = (2.0 * math.pi / period) * time[:, None]
    return torch.cat((angle.sin(), angle.cos()), dim=-1).float()


def condition(w: Weights, config: ModelConfig, times: Sequence[float]) -> list[TimeConditioning]:
    """Conditioning of each flow time. The same times give the same: compute once, keep."""
    flow, expert = w.flow, w.expert
    emb = time_embedding(times, config).to(w.device)  # [n, E]
    if config.family == "pi0":
        bias = F.linear(emb, flow.time_in[:, config.expert_width :], flow.time_in_bias)
        return [TimeConditioning(bias=b) for b in bias]
    assert expert.modulation is not None and expert.modulation_bias is not None
    emb = F.silu(F.linear(emb, flow.time_in, flow.time_in_bias))
    emb = F.silu(F.linear(emb, flow.time_out, flow.time_out_bias))
    table = F.linear(emb, expert.modulation.flatten(0, 1), expert.modulation_bias.flatten())
    table = table.view(len(times), config.norm_sites, 3, config.expert_width)
    table[:, :, 0] += 1.0
    return [TimeConditioning(modulation=m) for m in table]


def denoise(
    w: Weights,
    config: ModelConfig,
    prefix: PrefixCache,
    x: Tensor,
    times: Sequence[float],
    conditioning: Sequence[TimeConditioning],
    state: Tensor | None = None,
    trace: Trace | None = None,
) -> Tensor:
    """Flow `x`, float32 [H, A] at time `times[0]`, to actions at time 0, float32 [H, A].

    `times` decrease and are those of `conditioning`; the last step goes to 0. `state`: float32 [A],
    normalised and padded, π0 only. `trace(i, t, x_t, v_t)` sees every step before it is taken.
    """
    token = embed_state(w.flow, state) if config.family == "pi0" else None
    ends = (*times[1:], 0.0)
    for i, (t, end, given) in enumerate(zip(times, ends, conditioning, strict=True)):
        v = velocity(w, config, prefix, x, given, token)
        if trace is not None:
            trace(i, t, x, v)
        x = x + (end - t) * v
    return x


def embed_state(w: FlowWeights, state: Tensor | None) -> Tensor:
    """π0's state token: normalised and padded state float32 [A] → float32 [1, E]."""
    if state is None or w.state is None:
        raise ValueError("π0 reads the state as a token: `state` is missing")
    return F.linear(state, w.state, w.state_bias)[None]


def velocity(
    w: Weights,
    config: ModelConfig,
    prefix: PrefixCache,
    x: Tensor,
    given: TimeConditioning,
    state_token: Tensor | None = None,
) -> Tensor:
    """One evaluation of the network: noisy actions [H, A] → velocity [H, A], both float32."""
    flow = w.flow
    suffix = F.linear(x, flow.action_in, flow.action_in_bias)  # [H, E]
    mask = None
    if given.bias is not None and state_token is not None:  # π0
        suffix = F.linear(suffix, flow.time_in[:, : config.expert_width]) + given.bias
        suffix = F.linear(F.silu(suffix), flow.time_out, flow.time_out_bias)
        suffix = torch.cat((state_token, suffix))  # [1+H, E]
        # The state does not see the actions.
        n = len(suffix)
        mask = torch.ones(n, prefix.length + n, dtype=torch.bool, device=x.device)
        mask[0, prefix.length + 1 :] = False
    out = expert_forward(w.expert, config, prefix, suffix.to(w.dtype), given.modulation, mask)
    return F.linear(out[-config.horizon :].float(), flow.action_out, flow.action_out_bias)


def expert_forward(
    w: ExpertWeights,
    config: ModelConfig,
    prefix: PrefixCache,
    x: Tensor,
    modulation: Tensor | None,
    mask: Tensor | None,
) -> Tensor:
    """Suffix tokens [S, E] through all layers and the final norm, over the prefix → [S, E].

    `modulation`: see `TimeConditioning`; `mask`: bool [S, P+S] or None, see `attend`.
    """

    def norm(x: Tensor, site: int) -> Tensor:
        if modulation is None:
            assert w.norm is not None
            return rms_norm(x, w.norm[site])
        return rms_norm(x, modulation[site, 0], modulation[site, 1])

    def residual(x: Tensor, y: Tensor, site: int) -> Tensor:
        return x + y if modulation is None else x + y * modulation[site, 2].to(y.dtype)

    positions = torch.arange(prefix.length, prefix.length + len(x), device=x.device)
    rotation = rotary_table(config.head_dim, positions)
    for i in range(config.depth):
        q, k, v = project_qkv(norm(x, 2 * i), w.qkv[i], config, rotation)
        keys = torch.cat((prefix.keys[i], k))  # [P+S, d]
        values = torch.cat((prefix.values[i], v))
        x = residual(x, F.linear(attend(q, keys, values, mask), w.out[i]), 2 * i)
        y = geglu(norm(x, 2 * i + 1), w.gate_up[i], w.down[i])
        x = residual(x, y, 2 * i + 1)
    return norm(x, config.norm_sites - 1)
