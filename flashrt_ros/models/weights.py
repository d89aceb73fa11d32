"""The tensors of a policy: one per kind of weight, stacked over layers, projections fused.

Linear weights are [out, in]. The last language layer serves only for its keys and values, so
`out`, `norm2`, `gate_up` and `down` of the language model hold `depth - 1` layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from flashrt_ros.models.config import ModelConfig

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class VisionWeights:
    """SigLIP and the projector; L layers, width W, N patches a view, language width D."""

    patch: Tensor  # [W, 3*P*P] float32
    patch_bias: Tensor  # [W] float32
    position: Tensor  # [N, W] float32
    norm1: Tensor  # [L, W]
    norm1_bias: Tensor
    qkv: Tensor  # [L, 3*W, W]
    qkv_bias: Tensor  # [L, 3*W]
    out: Tensor  # [L, W, W]
    out_bias: Tensor  # [L, W]
    norm2: Tensor  # [L, W]
    norm2_bias: Tensor
    fc1: Tensor  # [L, M, W]
    fc1_bias: Tensor  # [L, M]
    fc2: Tensor  # [L, W, M]
    fc2_bias: Tensor  # [L, W]
    final_norm: Tensor  # [W]
    final_norm_bias: Tensor
    projector: Tensor  # [D, W]
    projector_bias: Tensor  # [D]


@dataclass(frozen=True)
class LanguageWeights:
    """Gemma over the prefix; L layers, width D, q = heads * head_dim, d = head_dim."""

    embedding: Tensor  # [vocab, D]
    norm1: Tensor  # [L, D] float32, holds 1 + w
    qkv: Tensor  # [L, q+2*d, D]
    out: Tensor  # [L-1, D, q]
    norm2: Tensor  # [L-1, D] float32, holds 1 + w
    gate_up: Tensor  # [L-1, 2*M, D]
    down: Tensor  # [L-1, D, M]


@dataclass(frozen=True)
class ExpertWeights:
    """Gemma over the actions, width E. Norm 2*i enters layer i's attention, 2*i+1 its MLP."""

    qkv: Tensor  # [L, q+2*d, E]
    out: Tensor  # [L, E, q]
    gate_up: Tensor  # [L, 2*M, E]
    down: Tensor  # [L, E, M]
    norm: Tensor | None = None  # π0: [2*L+1, E] float32, holds 1 + w
    modulation: Tensor | None = None  # π0.5: [2*L+1, 3*E, E] float32
    modulation_bias: Tensor | None = None  # π0.5: [2*L+1, 3*E] float32


@dataclass(frozen=True)
class FlowWeights:
    """What ties actions, flow time and π0's state to the expert; all float32, action size A."""

    action_in: Tensor  # [E, A]
    action_in_bias: Tensor  # [E]
    action_out: Tensor  # [A, E]
    action_out_bias: Tensor  # [A]
    time_in: Tensor  # π0.5: [E, E]; π0: [E, 2*E], action half first
    time_in_bias: Tensor  # [E]
    time_out: Tensor  # [E, E]
    time_out_bias: Tensor  # [E]
    state: Tensor | None = None  # π0: [E, A]
    state_bias: Tensor | None = None  # π0: [E]


@dataclass(frozen=True)
class Weights:
    """All tensors of a policy, on one device."""

    vision: VisionWeights
    language: LanguageWeights
    expert: ExpertWeights
    flow: FlowWeights

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.language.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What the transformers compute in."""
        return self.language.embedding.dtype


@dataclass(frozen=True)
class TensorSpec:
    """Shape of a tensor, and whether it stays float32 when the rest is bfloat16."""

    shape: tuple[int, ...]
    float32: bool = False

    def dtype(self, precision: str) -> torch.dtype:
        """Data type at a precision of `PRECISIONS`."""
        return torch.float32 if self.float32 else PRECISIONS[precision]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def tensor_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Name → shape of every tensor; the names are those of the fields, `vision.qkv` and so on."""
    specs: dict[str, TensorSpec] = {}
    for part, tensors in (
        ("vision", _vision_specs(config)),
        ("language", _language_specs(config)),
        ("expert", _expert_specs(config)),
        ("flow", _flow_specs(config)),
    ):
        specs.update({f"{part}.{name}": spec for name, spec in tensors.items()})
    return specs


def _vision_specs(c: ModelConfig) -> dict[str, TensorSpec]:
    L, W, M = c.vision_depth, c.vision_width, c.vision_mlp
    return {
        "patch": TensorSpec((W, 3 * c.patch**2), float32=True),
        "patch_bias": TensorSpec((W,), float32=True),
        "position": TensorSpec((c.view_tokens, W), float32=True),
        "norm1": TensorSpec((L, W)),
        "norm1_bias": TensorSpec((L, W)),
        "qkv": TensorSpec((L, 3 * W, W)),
        "qkv_bias": TensorSpec((L, 3 * W)),
        "out": TensorSpec((L, W, W)),
        "out_bias": TensorSpec((L, W)),
        "norm2": TensorSpec((L, W)),
        "norm2_bias": TensorSpec((L, W)),
        "fc1": TensorSpec((L, M, W)),
        "fc1_bias": TensorSpec((L, M)),
        "fc2": TensorSpec((L, W, M)),
        "fc2_bias": TensorSpec((L, W)),
        "final_norm": TensorSpec((W,)),
        "final_norm_bias": TensorSpec((W,)),
        "projector": TensorSpec((c.width, W)),
        "projector_bias": TensorSpec((c.width,)),
    }


def _language_specs(c: ModelConfig) -> dict[str, TensorSpec]:
    L, D = c.depth, c.width
    return {
        "embedding": TensorSpec((c.vocab, D)),
        "norm1": TensorSpec((L, D), float32=True),
        "qkv": TensorSpec((L, c.qkv_rows, D)),
        "out": TensorSpec((L - 1, D, c.heads * c.head_dim)),
        "norm2": TensorSpec((L - 1, D), float32=True),
        "gate_up": TensorSpec((L - 1, 2 * c.mlp, D)),
        "down": TensorSpec((L - 1, D, c.mlp)),
    }


def _expert_specs(c: ModelConfig) -> dict[str, TensorSpec]:
    L, E, sites = c.depth, c.expert_width, c.norm_sites
    specs = {
        "qkv": TensorSpec((L, c.qkv_rows, E)),
        "out": TensorSpec((L, E, c.heads * c.head_dim)),
        "gate_up": TensorSpec((L, 2 * c.expert_mlp, E)),
        "down": TensorSpec((L, E, c.expert_mlp)),
    }
    if c.family == "pi0":
        specs["norm"] = TensorSpec((sites, E), float32=True)
    else:
        specs["modulation"] = TensorSpec((sites, 3 * E, E), float32=True)
        specs["modulation_bias"] = TensorSpec((sites, 3 * E), float32=True)
    return specs


def _flow_specs(c: ModelConfig) -> dict[str, TensorSpec]:
    E, A = c.expert_width, c.action_dim
    shapes = {
        "action_in": (E, A),
        "action_in_bias": (E,),
        "action_out": (A, E),
        "action_out_bias": (A,),
        "time_in": (E, 2 * E if c.family == "pi0" else E),
        "time_in_bias": (E,),
        "time_out": (E, E),
        "time_out_bias": (E,),
    }
    if c.family == "pi0":
        shapes |= {"state": (E, A), "state_bias": (E,)}
    return {name: TensorSpec(shape, float32=True) for name, shape in shapes.items()}


_Part = TypeVar("_Part", VisionWeights, LanguageWeights, ExpertWeights, FlowWeights)


def build_weights(tensors: Mapping[str, Tensor]) -> Weights:
    """Tensors named as in `tensor_specs` → `Weights`. No copy."""

    def part(cls: type[_Part], prefix: str) -> _Part:
        names = (field.name for field in fields(cls))
        return cls(**{n: tensors[f"{prefix}.{n}"] for n in names if f"{prefix}.{n}" in tensors})

    return Weights(
        vision=part(VisionWeights, "vision"),
        language=part(LanguageWeights, "language"),
        expert=part(ExpertWeights, "expert"),
        flow=part(FlowWeights, "flow"),
    )


def named_tensors(weights: Weights) -> dict[str, Tensor]:
    """`Weights` → tensors by name, the inverse of `build_weights`."""
    named = {}
    for part in fields(weights):
        group = getattr(weights, part.name)
        for field in fields(group):
            tensor = getattr(group, field.name)
            if tensor is not None:
                named[f"{part.name}.{field.name}"] = tensor
    return named
