"""SigLIP So400m/14 and the projector: camera views to prefix embeddings."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.weights import VisionWeights

NORM_EPS = 1e-6


def embed_views(w: VisionWeights, config: ModelConfig, images: Tensor) -> Tensor:
    """Views to prefix embeddings.

    `images`: float32 [V, 3, S, S] in [-1, 1]. Returns [V, N, D] in the precision of the weights.
    Views do not see each other: one view or several in a call give the same up to rounding.

    Patches and positions are embedded in float32, as openpi does at bfloat16 (LeRobot keeps the
    whole tower in float32); from there on everything is in the precision of the weights.
    """
    V, W, eps = images.shape[0], config.vision_width, NORM_EPS
    side, p = config.image_size // config.patch, config.patch
    # The convolution has its stride equal to its kernel: a matrix product over patches.
    patches = images.reshape(V, 3, side, p, side, p).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(V, side * side, 3 * p * p)  # [V, N, 3*P*P]
    x = F.linear(patches, w.patch, w.patch_bias) + w.position
    x = x.to(w.qkv.dtype)  # [V, N, W]

    for i in range(config.vision_depth):
        h = F.layer_norm(x, (W,), w.norm1[i], w.norm1_bias[i], eps)
        qkv = F.linear(h, w.qkv[i], w.qkv_bias[i]).view(V, side * side, 3, config.vision_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [V, heads, N, W/heads]
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(V, side * side, W)
        x = x + F.linear(h, w.out[i], w.out_bias[i])
        h = F.layer_norm(x, (W,), w.norm2[i], w.norm2_bias[i], eps)
        h = F.gelu(F.linear(h, w.fc1[i], w.fc1_bias[i]), approximate="tanh")  # [V, N, M]
        x = x + F.linear(h, w.fc2[i], w.fc2_bias[i])

    x = F.layer_norm(x, (W,), w.final_norm, w.final_norm_bias, eps)
    return F.linear(x, w.projector, w.projector_bias)  # [V, N, D]
