"""Rows of the token embedding, scaled, with their sums of squares for the first norm."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options
from flashrt_ros.kernels.linear import RowSums


@triton.jit
def _embed_kernel(tokens, table, out, sums, vocab, factor, capacity, D: tl.constexpr,
                  BD: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    begin(PDL)
    finish(PDL)
    asked = tl.load(tokens + row)
    token = tl.minimum(tl.maximum(asked, 0), vocab - 1)
    factor = tl.where(token == asked, factor, 0.0)
    line = table + token.to(tl.int64) * D
    total = tl.zeros((BD,), dtype=tl.float32)
    for d0 in range(0, D, BD):
        d = d0 + tl.arange(0, BD)
        x = tl.load(line + d, mask=d < D, other=0.0).to(tl.float32) * factor
        x = x.to(out.dtype.element_ty)
        tl.store(out + row * D + d, x, mask=d < D)
        total += x.to(tl.float32) * x.to(tl.float32)
    tl.store(sums + row, tl.sum(total, axis=0))
    for t in range(1, TILES):
        tl.store(sums + t * capacity + row, 0.0)


def embed(
    tokens: Tensor,
    table: Tensor,
    out: Tensor,
    sums: RowSums,
    *,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
) -> None:
    """Token ids int32 [n] → out [n, D], `table` rows times sqrt(D); an unknown id gives zeros.

    sums: receives the row sums of squares, all in the first partial sum.
    """
    n, D = out.shape
    _embed_kernel[(n,)](
        tokens, table, out, sums.values, table.shape[0], D**0.5, sums.values.stride(1), D=D,
        BD=min(1024, triton.next_power_of_2(D)), TILES=sums.tiles, **launch_options(launch, 4, 1),
    )  # fmt: skip


def embed_reference(tokens: Tensor, table: Tensor, out: Tensor, sums: RowSums) -> None:
    """The same in plain PyTorch."""
    n, D = out.shape
    known = (tokens >= 0) & (tokens < len(table))
    rows = table[tokens.long().clamp(0, len(table) - 1)] * known[:, None]
    out.copy_(rows.float() * D**0.5)
    sums.values[0, :, :n] = 0
    sums.values[0, 0, :n] = out.float().square().sum(1)
