"""What tests of kernels share: random tensors on the device at hand, and a measure of difference."""

from __future__ import annotations

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
POISON = 7777.0  # outputs start with it, so that what was not written shows


class Draw:
    """Random numbers of one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1) -> Tensor:
        values = torch.randn(shape, generator=self._generator) * scale
        return values.to(DEVICE, dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, POISON, device=DEVICE, dtype=dtype)


def error(found: Tensor, wanted: Tensor) -> float:
    """Relative L2 error."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
