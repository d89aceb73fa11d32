"""Sums of squares of rows, for the norm that follows a product of a library."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options
from flashrt_ros.kernels.linear import RowSums

LARGEST_BLOCK = 4096


@triton.jit
def _row_sums_kernel(
    x, sums, capacity,
    D: tl.constexpr, BD: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    begin(PDL)
    total = tl.zeros((BD,), dtype=tl.float32)
    for d0 in range(0, D, BD):
        d = d0 + tl.arange(0, BD)
        values = tl.load(x + row * D + d, mask=d < D, other=0.0).to(tl.float32)
        total += values * values
    tl.store(sums + row, tl.sum(total, axis=0))
    for t in range(1, TILES):
        tl.store(sums + t * capacity + row, 0.0)
    finish(PDL)


def row_sums(x: Tensor, sums: RowSums, launch: Launch = Launch()) -> None:  # noqa: B008  (frozen)
    """Sums of squares of the rows of x [n, D], contiguous, in float32; allocates nothing.

    sums: receives them, all in the first partial sum.
    """
    n, D = x.shape
    _row_sums_kernel[(n,)](
        x, sums.values, sums.values.stride(1), D=D, TILES=sums.tiles,
        BD=min(LARGEST_BLOCK, triton.next_power_of_2(D)), **launch_options(launch, 4, 1),
    )  # fmt: skip


def row_sums_reference(x: Tensor, sums: RowSums) -> None:
    """The same in plain PyTorch."""
    sums.values[0, :, : len(x)] = 0
    sums.values[0, 0, : len(x)] = x.float().square().sum(1)
