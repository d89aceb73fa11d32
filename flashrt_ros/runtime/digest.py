"""A hash of all of a network's weights, computed where they are: tens of milliseconds for gigabytes on a GPU.

It tells two checkpoints apart that differ anywhere, fine-tunes of one model included; it is no defence against someone
who looks for collisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

_CHUNK_WORDS = 1 << 24
_ODD = -7046029254386353131  # 2^64 / golden ratio, as a signed 64-bit number
_MIX = -4658895280553007687


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256, as hex, over names, types, shapes and two 64-bit sums of each tensor's content.

    Each 32-bit word is multiplied by odd numbers made of its place, so that exchanged words change the sum; a change of
    one word always does.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        sums = _content_sums(tensor)
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} {sums}\n".encode())
    return digest.hexdigest()


@torch.no_grad()
def _content_sums(tensor: Tensor) -> tuple[int, int]:
    """Two sums over the content, modulo 2^64."""
    octets = tensor.detach().contiguous().view(-1).view(torch.uint8)
    padding = -octets.numel() % 4
    if padding:
        octets = torch.cat((octets, octets.new_zeros(padding)))
    words = octets.view(torch.int32)
    sums = torch.zeros(2, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS].to(torch.int64)
        place = torch.arange(start, start + chunk.numel(), device=words.device)
        # Products wrap around; the low bit makes every factor odd, hence invertible.
        mixed = place * _ODD
        first = (mixed ^ (mixed >> 29)) | 1
        second = (first * _MIX) | 1
        sums[0] += (chunk * first).sum()
        sums[1] += (chunk * second).sum()
    first_sum, second_sum = sums.tolist()
    return first_sum, second_sum
