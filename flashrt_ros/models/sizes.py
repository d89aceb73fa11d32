"""A network's sizes, read from the shapes of its tensors.

openpi's config.json always names the released variants and LeRobot's has no sizes, so the shapes
decide. Only the number of attention heads of the vision tower is in no shape: SigLIP's own widths
have known numbers, any other needs a field `vision_heads` in config.json or the argument so named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.upstream import EMBEDDING, EXPERT, LANGUAGE, VISION

Shapes = Mapping[str, tuple[int, ...]]

_SIGLIP_HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16}


def config_from_shapes(family: str, shapes: Shapes, declared: Mapping[str, Any]) -> ModelConfig:
    """Derive a configuration.

    Gemma's head size is the rows of k_proj, for both Gemmas have one key/value head.

    Args:
        family: 'pi0' or 'pi05'.
        shapes: by openpi's keys.
        declared: sizes that config.json or the caller states: `horizon` and `max_prompt_tokens`,
            which no shape tells; `action_dim`, which must agree; `vision_heads`, periods.

    Raises:
        ValueError: names the tensor or the field that is missing or does not fit.
    """

    def size(key: str, axis: int, rank: int = 2) -> int:
        return _size(shapes, key, axis, rank)

    patch_key = VISION + "embeddings.patch_embedding.weight"
    positions = size(VISION + "embeddings.position_embedding.weight", 0)
    patch, vision_width = size(patch_key, 3, rank=4), size(patch_key, 0, rank=4)
    if math.isqrt(positions) ** 2 != positions:
        raise ValueError(f"position_embedding.weight: expected n² positions, found {positions}")
    head_dim = size(LANGUAGE + "layers.0.self_attn.k_proj.weight", 0)
    query_rows = size(LANGUAGE + "layers.0.self_attn.q_proj.weight", 0)
    if query_rows % head_dim:
        raise ValueError(
            f"{LANGUAGE}layers.0.self_attn.q_proj.weight: expected a multiple of k_proj's "
            f"{head_dim} rows, found {query_rows}"
        )
    action_dim = size("action_in_proj.weight", 1)
    _check_declared(declared, action_dim)
    return ModelConfig(
        family=family,
        action_dim=action_dim,
        depth=_layers(shapes, LANGUAGE),
        heads=query_rows // head_dim,
        head_dim=head_dim,
        width=size(EMBEDDING, 1),
        mlp=size(LANGUAGE + "layers.0.mlp.gate_proj.weight", 0),
        expert_width=size("action_in_proj.weight", 0),
        expert_mlp=size(EXPERT + "layers.0.mlp.gate_proj.weight", 0),
        vocab=size(EMBEDDING, 0),
        vision_width=vision_width,
        vision_depth=_layers(shapes, VISION + "encoder."),
        vision_heads=_vision_heads(vision_width, declared),
        vision_mlp=size(VISION + "encoder.layers.0.mlp.fc1.weight", 0),
        patch=patch,
        image_size=math.isqrt(positions) * patch,
        **{
            name: declared[name]
            for name in ("horizon", "max_prompt_tokens", "min_period", "max_period")
            if name in declared
        },
    )


def _size(shapes: Shapes, key: str, axis: int, rank: int) -> int:
    shape = shapes.get(key)
    if shape is None or len(shape) != rank:
        raise ValueError(f"{key}: expected {rank} dimensions, found {shape or 'no such tensor'}")
    return shape[axis]


def _check_declared(declared: Mapping[str, Any], action_dim: int) -> None:
    if declared.get("action_dim", action_dim) != action_dim:
        raise ValueError(
            f"action_in_proj.weight: expected action dimension {declared['action_dim']} as in "
            f"config.json, found {action_dim}"
        )
    if "horizon" not in declared:
        raise ValueError(
            "config.json: action_horizon: expected the chunk length, found no such field; add it "
            "or give `horizon`"
        )


def _layers(shapes: Shapes, prefix: str) -> int:
    numbers = [
        int(match[1])
        for key in shapes
        if (match := re.match(rf"{re.escape(prefix)}layers\.(\d+)\.", key))
    ]
    if not numbers:
        raise ValueError(f"{prefix}layers: expected layers, found none")
    return max(numbers) + 1


def _vision_heads(width: int, declared: Mapping[str, Any]) -> int:
    if "vision_heads" in declared:
        return int(declared["vision_heads"])
    if width in _SIGLIP_HEADS:
        return _SIGLIP_HEADS[width]
    raise ValueError(
        f"config.json: vision_heads: expected the vision tower's attention heads, found none; no "
        f"known SigLIP is {width} wide; add the field or give `vision_heads`"
    )
