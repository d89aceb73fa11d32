"""Weights as the fused kernels read them: what does not depend on the input is multiplied out once.

- A norm's own scale goes into the columns of the weights that read it, and a LayerNorm's shift into their bias.
- The two numbers of a rotated pair, i and i + d/2 of a head, and the gate and up of a hidden unit lie side by side, so
  that a kernel finds both in one thread. Queries and keys are permuted alike: their products do not change.
- π0.5's modulations are known for each flow time: scales and gates as they are, a shift times the weights as a bias.

Products are made in float32 and rounded once to the weights' precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.kernels.resize import split_weights
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.flow import FlowTimes
from flashrt_ros.models.weights import Weights


@dataclass(frozen=True)
class Folded:
    """A weight with the LayerNorm before it folded in.

    weight: [N, K] or stacked [L, N, K]; bias, colsum (sums over K): float32 [N] or [L, N].
    """

    weight: Tensor
    bias: Tensor
    colsum: Tensor


@dataclass(frozen=True)
class FoldedWeights:
    """The projections that follow a norm; everything else is read from `Weights`."""

    patch: Tensor  # [W, 3*part_width]
    vision_qkv: Folded
    vision_fc1: Folded
    projector: Folded
    prefix_qkv: Tensor  # [L, q+2*d, D]
    prefix_gate_up: Tensor  # [L-1, 2*M, D]
    expert_qkv: Tensor  # [L, q+2*d, E]
    expert_gate_up: Tensor  # [L, 2*M, E]
    time_in: Tensor | None  # π0: [E, E], the half that reads actions
    time_out: Tensor | None  # π0: [E, E]


@dataclass(frozen=True)
class FoldedTimes:
    """What one denoising run adds, float32; N evaluations, L layers. None where π0 has no such term."""

    scale: Tensor | None  # [N, 2*L+1, E], 1 added
    gate: Tensor | None  # [N, 2*L+1, E]
    qkv_bias: Tensor | None  # [N, L, q+2*d]
    gate_up_bias: Tensor | None  # [N, L, 2*M]
    out_scale: Tensor  # [N, E]
    out_bias: Tensor  # [N, A]
    time_bias: Tensor | None  # π0: [N, E]


def fold_weights(w: Weights, config: ModelConfig) -> FoldedWeights:
    """Fold a policy's weights; some are copied, none is changed."""
    v, language, expert, c = w.vision, w.language, w.expert, config
    norm = expert.norm
    return FoldedWeights(
        patch=split_weights(v.patch, c.patch, w.dtype),
        vision_qkv=_layer_norm(v.qkv, v.qkv_bias, v.norm1, v.norm1_bias),
        vision_fc1=_layer_norm(v.fc1, v.fc1_bias, v.norm2, v.norm2_bias),
        projector=_layer_norm(v.projector, v.projector_bias, v.final_norm, v.final_norm_bias),
        prefix_qkv=_columns(_pairs(language.qkv, c), language.norm1),
        prefix_gate_up=_columns(_gates(language.gate_up), language.norm2),
        expert_qkv=_columns(_pairs(expert.qkv, c), None if norm is None else norm[:-1:2]),
        expert_gate_up=_columns(_gates(expert.gate_up), None if norm is None else norm[1::2]),
        time_in=None
        if norm is None
        else w.flow.time_in[:, : c.expert_width].to(w.dtype).contiguous(),
        time_out=None if norm is None else w.flow.time_out.to(w.dtype),
    )


def fold_times(
    w: Weights, folded: FoldedWeights, config: ModelConfig, times: FlowTimes
) -> FoldedTimes:
    """Multiply the terms of a denoising run out."""
    flow = w.flow
    if w.expert.norm is not None:  # π0: plain norms, time enters beside the actions
        steps = len(times.times)
        last = w.expert.norm[-1].expand(steps, -1).contiguous()
        bias = flow.action_out_bias.expand(steps, -1).contiguous()
        return FoldedTimes(None, None, None, None, last, bias, times.terms)
    scale, shift, gate = times.terms.unbind(2)  # each [N, 2*L+1, E]
    return FoldedTimes(
        scale=scale.contiguous(),
        gate=gate.contiguous(),
        qkv_bias=_shifted(shift[:, :-1:2], folded.expert_qkv),
        gate_up_bias=_shifted(shift[:, 1::2], folded.expert_gate_up),
        out_scale=scale[:, -1].contiguous(),
        out_bias=F.linear(shift[:, -1], flow.action_out, flow.action_out_bias),
        time_bias=None,
    )


def _shifted(shift: Tensor, weight: Tensor) -> Tensor:
    """Shifts [N, L, K] through weights [L, M, K] → float32 [N, L, M], a layer at a time."""
    return torch.stack([F.linear(shift[:, i], weight[i].float()) for i in range(len(weight))], 1)


def _layer_norm(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Folded:
    folded = _columns(weight, scale)
    moved = (weight.float() @ shift.float()[..., None])[..., 0]
    return Folded(folded, bias.float() + moved, folded.float().sum(-1))


def _columns(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply columns, a layer at a time: a float32 copy of everything would not fit."""
    if scale is None or not len(weight):  # no layer of it
        return weight.contiguous()
    if weight.ndim == 2:
        return (weight.float() * scale.float()).to(weight.dtype)
    return torch.stack([_columns(w, s) for w, s in zip(weight, scale, strict=True)])


def _pairs(qkv: Tensor, config: ModelConfig) -> Tensor:
    """Rows of the query heads and the key, reordered so that a rotated pair is adjacent; values stay."""
    L, _, K = qkv.shape
    rotated = (config.heads + 1) * config.head_dim
    heads = qkv[:, :rotated].view(L, config.heads + 1, 2, config.head_dim // 2, K)
    return torch.cat((heads.transpose(2, 3).reshape(L, rotated, K), qkv[:, rotated:]), dim=1)


def _gates(gate_up: Tensor) -> Tensor:
    """Rows [gate; up] → gate 0, up 0, gate 1, up 1, …"""
    L, rows, K = gate_up.shape
    return gate_up.view(L, 2, rows // 2, K).transpose(1, 2).reshape(L, rows, K)
