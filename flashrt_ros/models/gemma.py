"""Gemma over the prefix, and the pieces that the action expert shares with it.

Batch 1 in inference: a sequence is [tokens, width], and every token in it is valid. Padded prompt
tokens and masked views take no position and are seen by nobody, so they are left out beforehand.
Training puts several sequences of one length in front: [..., tokens, width].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.weights import LanguageWeights

NORM_EPS = 1e-6
ROPE_BASE = 10000.0


@dataclass(frozen=True)
class PrefixCache:
    """Keys and values of every layer for the P tokens of a prefix; the keys are rotated."""

    keys: Tensor  # [L, ..., P, head_dim]
    values: Tensor  # [L, ..., P, head_dim]

    @property
    def length(self) -> int:
        """Number of prefix tokens, also the position of the first token after them."""
        return self.keys.shape[-2]


def embed_prompt(w: LanguageWeights, tokens: Tensor) -> Tensor:
    """Token ids int64 [n] → embeddings [n, D], times sqrt(D) as in Gemma."""
    return F.embedding(tokens, w.embedding) * math.sqrt(w.embedding.shape[1])


def project_first(w: LanguageWeights, config: ModelConfig, x: Tensor, positions: Tensor) -> Tensor:
    """Layer 0's queries, key and value of embeddings [n, D] at positions [n] → [n, heads + 2, d].

    A token's depend on itself and its position alone, so those of a constant text can be kept.
    """
    h = rms_norm(x, w.norm1[0])
    q, k, v = project_qkv(h, w.qkv[0], config, rotary_table(config.head_dim, positions))
    return torch.cat((q, k[:, None], v[:, None]), dim=1)


def encode_prefix(
    w: LanguageWeights, config: ModelConfig, x: Tensor, first: Tensor | None = None
) -> PrefixCache:
    """Prefix embeddings [..., P, D], views first and then the prompt, → keys and values.

    Attention is bidirectional. The last layer ends at its keys and values: nothing reads the
    rest of it. Norms and rotations are computed in float32, the rest in the weights' precision.
    `first`: layer 0's projections of all of x where they are known, see `project_first`.
    """
    rotation = rotary_table(config.head_dim, torch.arange(x.shape[-2], device=x.device))
    keys, values = [], []
    for i in range(config.depth):
        if i == 0 and first is not None:
            q, k, v = first[:, :-2], first[:, -2], first[:, -1]
        else:
            q, k, v = project_qkv(rms_norm(x, w.norm1[i]), w.qkv[i], config, rotation)
        keys.append(k)
        values.append(v)
        if i == config.depth - 1:
            break
        x = x + F.linear(attend(q, k, v), w.out[i])
        x = x + geglu(rms_norm(x, w.norm2[i]), w.gate_up[i], w.down[i])
    return PrefixCache(torch.stack(keys), torch.stack(values))


def rms_norm(x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """`x / rms(x) * scale (+ shift)` in float32; `scale` is 1 + w. Returns x's type."""
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + NORM_EPS) * scale
    return (h if shift is None else h + shift).to(x.dtype)


def project_qkv(
    x: Tensor, weight: Tensor, config: ModelConfig, rotation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[..., n, width] → queries [..., n, heads, d], key and value [..., n, d]; all but the value
    rotated."""
    qkv = F.linear(x, weight).unflatten(-1, (config.heads + 2, config.head_dim))
    rotated = rotate(qkv[..., :-1, :], rotation)
    return rotated[..., :-1, :], rotated[..., -1, :], qkv[..., -1, :]


def rotary_table(head_dim: int, positions: Tensor) -> Tensor:
    """Cosine and sine of each position's angles, float32 [2, n, 1, head_dim/2]."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angle = positions.float()[:, None] / ROPE_BASE**exponent
    return torch.stack((angle.cos(), angle.sin()))[:, :, None, :]


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary embedding of [..., n, heads, d], first half against second, in float32."""
    cos, sin = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries [..., n, heads, d] over the one key/value head [..., m, d] → [..., n, heads*d].

    All see all. With one key/value head this is one attention head with n*heads rows of queries:
    a view.
    """
    *batch, n, heads, d = q.shape
    rows = q.reshape(-1, 1, n * heads, d)
    k, v = (x.reshape(-1, 1, *x.shape[-2:]) for x in (k, v))
    return F.scaled_dot_product_attention(rows, k, v).reshape(*batch, n, heads * d)


def geglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`down(gelu(gate(x)) * up(x))` with the tanh form of gelu."""
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.gelu(gate, approximate="tanh") * up, down)
