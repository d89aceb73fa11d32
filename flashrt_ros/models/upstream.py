"""How openpi and LeRobot name the tensors that this project's are made of.

Keys are openpi's. LeRobot puts `model.` before each; `canonical_keys` takes it off. A tensor of
this project is its sources laid end to end: layers stacked, projections of one input fused, and 1
added to the RMSNorm weights, which both upstreams do in float32 at each call. All exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flashrt_ros.models.config import ModelConfig

_GROUP = "paligemma_with_expert."
VISION = _GROUP + "paligemma.model.vision_tower.vision_model."
LANGUAGE = _GROUP + "paligemma.model.language_model."
EXPERT = _GROUP + "gemma_expert.model."
EMBEDDING = LANGUAGE + "embed_tokens.weight"
LM_HEAD = _GROUP + "paligemma.lm_head.weight"
_PROJECTOR = _GROUP + "paligemma.model.multi_modal_projector.linear"
_EXPERT_LM_HEAD = _GROUP + "gemma_expert.lm_head.weight"

PLUS_ONE = frozenset({"language.norm1", "language.norm2", "expert.norm"})


class Source(NamedTuple):
    """A tensor as an upstream stores it."""

    key: str
    shape: tuple[int, ...]


def sources(config: ModelConfig) -> dict[str, list[Source]]:
    """Name of each of this project's tensors → what it is made of, in order."""
    return {**_vision(config), **_language(config), **_expert(config), **_flow(config)}


def dropped_sources(config: ModelConfig) -> list[Source]:
    """Tensors that inference never reads: their shapes are checked, then they are left behind."""
    c, last = config, f"{LANGUAGE}layers.{config.depth - 1}."
    return [
        Source(last + "self_attn.o_proj.weight", (c.width, c.heads * c.head_dim)),
        Source(last + "mlp.gate_proj.weight", (c.mlp, c.width)),
        Source(last + "mlp.up_proj.weight", (c.mlp, c.width)),
        Source(last + "mlp.down_proj.weight", (c.width, c.mlp)),
        Source(last + "post_attention_layernorm.weight", (c.width,)),
        Source(LANGUAGE + "norm.weight", (c.width,)),
    ]


def output_embeddings(config: ModelConfig) -> list[Source]:
    """The lm_heads, also never read; a checkpoint may leave them out."""
    return [
        Source(LM_HEAD, (config.vocab, config.width)),
        Source(_EXPERT_LM_HEAD, (config.vocab, config.expert_width)),
    ]


def canonical_keys(stored: Iterable[str]) -> dict[str, str]:
    """Map openpi's keys to those of a file.

    In the file `model.` may come before each, `.vision_model` may be missing, and the tied
    embedding may be stored under its output name alone.
    """
    short_vision = VISION.removesuffix("vision_model.")
    keys: dict[str, str] = {}
    for name in stored:
        key = name.removeprefix("model.")
        if key.startswith(short_vision) and not key.startswith(VISION):
            key = VISION + key.removeprefix(short_vision)
        keys[key] = name
    if EMBEDDING not in keys and LM_HEAD in keys:
        keys[EMBEDDING] = keys.pop(LM_HEAD)
    return keys


def _vision(c: ModelConfig) -> dict[str, list[Source]]:
    W, M = c.vision_width, c.vision_mlp
    layers = [f"{VISION}encoder.layers.{i}." for i in range(c.vision_depth)]

    def each(parts: Iterable[str], *shape: int) -> list[Source]:
        return [Source(layer + part, shape) for layer in layers for part in parts]

    patch = VISION + "embeddings.patch_embedding."
    position = VISION + "embeddings.position_embedding.weight"
    qkv = [f"self_attn.{p}_proj." for p in "qkv"]
    return {
        "vision.patch": [Source(patch + "weight", (W, 3, c.patch, c.patch))],
        "vision.patch_bias": [Source(patch + "bias", (W,))],
        "vision.position": [Source(position, (c.view_tokens, W))],
        "vision.norm1": each(["layer_norm1.weight"], W),
        "vision.norm1_bias": each(["layer_norm1.bias"], W),
        "vision.qkv": each([p + "weight" for p in qkv], W, W),
        "vision.qkv_bias": each([p + "bias" for p in qkv], W),
        "vision.out": each(["self_attn.out_proj.weight"], W, W),
        "vision.out_bias": each(["self_attn.out_proj.bias"], W),
        "vision.norm2": each(["layer_norm2.weight"], W),
        "vision.norm2_bias": each(["layer_norm2.bias"], W),
        "vision.fc1": each(["mlp.fc1.weight"], M, W),
        "vision.fc1_bias": each(["mlp.fc1.bias"], M),
        "vision.fc2": each(["mlp.fc2.weight"], W, M),
        "vision.fc2_bias": each(["mlp.fc2.bias"], W),
        "vision.final_norm": [Source(VISION + "post_layernorm.weight", (W,))],
        "vision.final_norm_bias": [Source(VISION + "post_layernorm.bias", (W,))],
        "vision.projector": [Source(_PROJECTOR + ".weight", (c.width, W))],
        "vision.projector_bias": [Source(_PROJECTOR + ".bias", (c.width,))],
    }


def _decoder(c: ModelConfig, part: str, layers: list[str], last: int, W: int, M: int) -> dict[
    str, list[Source]
]:  # fmt: skip
    """Matrices of Gemma layers of width W and MLP M; all but qkv end before layer `last`."""
    q, d = c.heads * c.head_dim, c.head_dim
    rows = {"q": q, "k": d, "v": d}
    return {
        f"{part}.qkv": [
            Source(f"{layer}self_attn.{p}_proj.weight", (n, W))
            for layer in layers
            for p, n in rows.items()
        ],
        f"{part}.out": [
            Source(f"{layer}self_attn.o_proj.weight", (W, q)) for layer in layers[:last]
        ],
        f"{part}.gate_up": [
            Source(f"{layer}mlp.{p}_proj.weight", (M, W))
            for layer in layers[:last]
            for p in ("gate", "up")
        ],
        f"{part}.down": [Source(f"{layer}mlp.down_proj.weight", (W, M)) for layer in layers[:last]],
    }


def _language(c: ModelConfig) -> dict[str, list[Source]]:
    layers = [f"{LANGUAGE}layers.{i}." for i in range(c.depth)]
    norm2 = "post_attention_layernorm.weight"
    return {
        "language.embedding": [Source(EMBEDDING, (c.vocab, c.width))],
        "language.norm1": [
            Source(layer + "input_layernorm.weight", (c.width,)) for layer in layers
        ],
        "language.norm2": [Source(layer + norm2, (c.width,)) for layer in layers[:-1]],
        **_decoder(c, "language", layers, c.depth - 1, c.width, c.mlp),
    }


def _expert(c: ModelConfig) -> dict[str, list[Source]]:
    E, layers = c.expert_width, [f"{EXPERT}layers.{i}." for i in range(c.depth)]
    norms = [
        layer + norm for layer in layers for norm in ("input_layernorm", "post_attention_layernorm")
    ] + [EXPERT + "norm"]
    matrices = _decoder(c, "expert", layers, c.depth, E, c.expert_mlp)
    if c.family == "pi0":
        return {**matrices, "expert.norm": [Source(f"{n}.weight", (E,)) for n in norms]}
    return {
        **matrices,
        "expert.modulation": [Source(f"{n}.dense.weight", (3 * E, E)) for n in norms],
        "expert.modulation_bias": [Source(f"{n}.dense.bias", (3 * E,)) for n in norms],
    }


def _flow(c: ModelConfig) -> dict[str, list[Source]]:
    E, A = c.expert_width, c.action_dim
    linears = {"action_in": ("action_in_proj", E, A), "action_out": ("action_out_proj", A, E)}
    if c.family == "pi0":
        linears |= {
            "time_in": ("action_time_mlp_in", E, 2 * E),
            "time_out": ("action_time_mlp_out", E, E),
            "state": ("state_proj", E, A),
        }
    else:
        linears |= {"time_in": ("time_mlp_in", E, E), "time_out": ("time_mlp_out", E, E)}
    found: dict[str, list[Source]] = {}
    for name, (key, rows, columns) in linears.items():
        found[f"flow.{name}"] = [Source(f"{key}.weight", (rows, columns))]
        found[f"flow.{name}_bias"] = [Source(f"{key}.bias", (rows,))]
    return found
