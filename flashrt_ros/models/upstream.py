"""The tensor names of openpi's and LeRobot's checkpoints, and the sizes that their shapes tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flashrt_ros.models.config import ModelConfig

_ROOT = "paligemma_with_expert."
_VISION = _ROOT + "paligemma.model.vision_tower.vision_model."
_PROJECTOR = _ROOT + "paligemma.model.multi_modal_projector.linear."
_LANGUAGE = _ROOT + "paligemma.model.language_model."
_EXPERT = _ROOT + "gemma_expert.model."
EMBEDDING = _LANGUAGE + "embed_tokens.weight"
TIED_EMBEDDING = _ROOT + "paligemma.lm_head.weight"
EXPERT_HEAD = _ROOT + "gemma_expert.lm_head.weight"

# Sizes of the released transformers: width → (depth, MLP). A file with this width and another
# depth has lost layers.
RELEASED = {
    "vision": {1152: (27, 4304)},
    "language": {2048: (18, 16384)},
    "expert": {1024: (18, 4096)},
}
SIGLIP_HEAD_DIM = 72

# Stored as w, used as 1 + w.
PLUS_ONE = ("language.norm1", "language.norm2", "expert.norm")


class Part(NamedTuple):
    """One tensor of an upstream file."""

    key: str
    shape: tuple[int, ...]


def plain_key(key: str) -> str:
    """A key without LeRobot's `model.` and with the `vision_model.` that some files leave out."""
    key = key.removeprefix("model.")
    if ".vision_tower." in key and ".vision_tower.vision_model." not in key:
        key = key.replace(".vision_tower.", ".vision_tower.vision_model.")
    return key


def upstream_parts(config: ModelConfig) -> dict[str, list[Part]]:
    """Name as in `tensor_specs` → the upstream tensors that make it up, in memory order."""
    return {
        **_vision_parts(config),
        **_language_parts(config),
        **_expert_parts(config),
        **_flow_parts(config),
    }


def unused_parts(config: ModelConfig) -> list[Part]:
    """Upstream tensors that no action depends on; a file may have or lack them."""
    c, last = config, f"{_LANGUAGE}layers.{config.depth - 1}."
    rows = c.heads * c.head_dim
    return [
        Part(TIED_EMBEDDING, (c.vocab, c.width)),
        Part(EXPERT_HEAD, (c.vocab, c.expert_width)),
        Part(last + "self_attn.o_proj.weight", (c.width, rows)),
        Part(last + "post_attention_layernorm.weight", (c.width,)),
        Part(last + "mlp.gate_proj.weight", (c.mlp, c.width)),
        Part(last + "mlp.up_proj.weight", (c.mlp, c.width)),
        Part(last + "mlp.down_proj.weight", (c.width, c.mlp)),
        Part(_LANGUAGE + "norm.weight", (c.width,)),
    ]


def _vision_parts(c: ModelConfig) -> dict[str, list[Part]]:
    W, M = c.vision_width, c.vision_mlp
    patch = (W, 3, c.patch, c.patch)
    parts = {
        "patch": [Part(_VISION + "embeddings.patch_embedding.weight", patch)],
        "patch_bias": [Part(_VISION + "embeddings.patch_embedding.bias", (W,))],
        "position": [Part(_VISION + "embeddings.position_embedding.weight", (c.view_tokens, W))],
        "final_norm": [Part(_VISION + "post_layernorm.weight", (W,))],
        "final_norm_bias": [Part(_VISION + "post_layernorm.bias", (W,))],
        "projector": [Part(_PROJECTOR + "weight", (c.width, W))],
        "projector_bias": [Part(_PROJECTOR + "bias", (c.width,))],
    }
    linears = {
        "qkv": ([f"self_attn.{p}_proj" for p in "qkv"], (W, W)),
        "out": (["self_attn.out_proj"], (W, W)),
        "fc1": (["mlp.fc1"], (M, W)),
        "fc2": (["mlp.fc2"], (W, M)),
        "norm1": (["layer_norm1"], (W,)),
        "norm2": (["layer_norm2"], (W,)),
    }
    for name, (keys, shape) in linears.items():
        full = [f"{_VISION}encoder.layers.{i}.{k}" for i in range(c.vision_depth) for k in keys]
        parts[name] = [Part(key + ".weight", shape) for key in full]
        parts[name + "_bias"] = [Part(key + ".bias", shape[:1]) for key in full]
    return {f"vision.{name}": part for name, part in parts.items()}


def _gemma_layer(c: ModelConfig, width: int, mlp: int) -> dict[str, list[Part]]:
    rows = c.heads * c.head_dim
    return {
        "qkv": [
            Part("self_attn.q_proj.weight", (rows, width)),
            Part("self_attn.k_proj.weight", (c.head_dim, width)),
            Part("self_attn.v_proj.weight", (c.head_dim, width)),
        ],
        "out": [Part("self_attn.o_proj.weight", (width, rows))],
        "gate_up": [
            Part("mlp.gate_proj.weight", (mlp, width)),
            Part("mlp.up_proj.weight", (mlp, width)),
        ],
        "down": [Part("mlp.down_proj.weight", (width, mlp))],
    }


def _over_layers(root: str, parts: list[Part], depth: int) -> list[Part]:
    return [Part(f"{root}layers.{i}.{key}", shape) for i in range(depth) for key, shape in parts]


def _language_parts(c: ModelConfig) -> dict[str, list[Part]]:
    layer = _gemma_layer(c, c.width, c.mlp)
    layer["norm1"] = [Part("input_layernorm.weight", (c.width,))]
    layer["norm2"] = [Part("post_attention_layernorm.weight", (c.width,))]
    parts = {"language.embedding": [Part(EMBEDDING, (c.vocab, c.width))]}
    for name, tensors in layer.items():
        depth = c.depth if name in ("norm1", "qkv") else c.depth - 1
        parts[f"language.{name}"] = _over_layers(_LANGUAGE, tensors, depth)
    return parts


def _expert_parts(c: ModelConfig) -> dict[str, list[Part]]:
    E = c.expert_width
    parts = {
        f"expert.{name}": _over_layers(_EXPERT, tensors, c.depth)
        for name, tensors in _gemma_layer(c, E, c.expert_mlp).items()
    }

    def norms(leaf: str, shape: tuple[int, ...]) -> list[Part]:
        sites = [Part(f"input_layernorm.{leaf}", shape)]
        sites.append(Part(f"post_attention_layernorm.{leaf}", shape))
        return [*_over_layers(_EXPERT, sites, c.depth), Part(f"{_EXPERT}norm.{leaf}", shape)]

    if c.family == "pi0":
        parts["expert.norm"] = norms("weight", (E,))
    else:
        parts["expert.modulation"] = norms("dense.weight", (3 * E, E))
        parts["expert.modulation_bias"] = norms("dense.bias", (3 * E,))
    return parts


def _flow_parts(c: ModelConfig) -> dict[str, list[Part]]:
    E, A = c.expert_width, c.action_dim
    linears = {
        "action_in": ("action_in_proj", (E, A)),
        "action_out": ("action_out_proj", (A, E)),
    }
    if c.family == "pi0":
        linears["time_in"] = ("action_time_mlp_in", (E, 2 * E))
        linears["time_out"] = ("action_time_mlp_out", (E, E))
        linears["state"] = ("state_proj", (E, A))
    else:
        linears["time_in"] = ("time_mlp_in", (E, E))
        linears["time_out"] = ("time_mlp_out", (E, E))
    parts = {}
    for name, (key, shape) in linears.items():
        parts[f"flow.{name}"] = [Part(f"{key}.weight", shape)]
        parts[f"flow.{name}_bias"] = [Part(f"{key}.bias", shape[:1])]
    return parts


def family_of(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """The family whose time layers a file has, or None where it has neither's."""
    if "time_mlp_in.weight" in shapes:
        return "pi05"
    return "pi0" if "action_time_mlp_in.weight" in shapes else None


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Sizes of a `ModelConfig` told by shapes, keys as `plain_key` gives them.

    Assumes one key/value head. The number of vision heads, the horizon and the prompt length
    leave no trace. KeyError(key) where a tensor that tells a size is missing or has too few
    dimensions.
    """

    def size(key: str, axis: int) -> int:
        if axis >= len(shapes.get(key, ())):
            raise KeyError(key)
        return shapes[key][axis]

    def depth(root: str) -> int:
        layers = (key[len(root) :].split(".")[0] for key in shapes if key.startswith(root))
        return 1 + max((int(layer) for layer in layers if layer.isdecimal()), default=-1)

    patch_key = _VISION + "embeddings.patch_embedding.weight"
    q, k = (f"{_LANGUAGE}layers.0.self_attn.{p}_proj.weight" for p in "qk")
    patch = size(patch_key, 3)
    positions = size(_VISION + "embeddings.position_embedding.weight", 0)
    head_dim = size(k, 0)
    embedding = EMBEDDING if EMBEDDING in shapes else TIED_EMBEDDING
    return {
        "vision_width": size(patch_key, 0),
        "vision_depth": depth(_VISION + "encoder.layers."),
        "vision_mlp": size(_VISION + "encoder.layers.0.mlp.fc1.weight", 0),
        "patch": patch,
        "image_size": patch * round(positions**0.5),
        "width": size(embedding, 1),
        "mlp": size(_LANGUAGE + "layers.0.mlp.gate_proj.weight", 0),
        "expert_width": size("action_in_proj.weight", 0),
        "expert_mlp": size(_EXPERT + "layers.0.mlp.gate_proj.weight", 0),
        "depth": depth(_LANGUAGE + "layers."),
        "heads": size(q, 0) // max(head_dim, 1),
        "head_dim": head_dim,
        "vocab": size(embedding, 0),
        "action_dim": size("action_in_proj.weight", 1),
    }
