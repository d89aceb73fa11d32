"""Gate and up projections of many rows with GeGLU, by programs that stay: `linear`'s 'geglu' for the prefix.

Each multiprocessor works through tiles of its own; the loads of the next tile are under way while
the last one passes through GeGLU, which a program for every tile cannot have.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options, multiprocessors
from flashrt_ros.kernels.linear import RowSums, Tile, _gelu, _row_sums


@dataclass(frozen=True)
class StayingTile(Tile):
    """A tile of a program that goes on to others; without splits, with bulk copies."""


@triton.jit
def _gate_up_kernel(
    a_desc, w_desc, out, stats, valid, M, N, K, base, capacity,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TILES: tl.constexpr,
    TILES_2: tl.constexpr, EPS: tl.constexpr, FLATTEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    if valid is not None:
        M = tl.minimum(M, tl.load(valid) + base)
    grid_m = tl.cdiv(M, BM)
    tiles = grid_m * tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        m0 = tile % grid_m * BM
        n0 = tile // grid_m * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a_desc.load([m0, k]), w_desc.load([n0, k]).T, acc, input_precision="ieee")
        rows = m0 + tl.arange(0, BM)
        squares = tl.sum(_row_sums(stats, 0, rows, M, capacity, TILES, TILES_2), axis=0)
        acc *= tl.rsqrt(squares / K + EPS)[:, None]
        x, y = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
        cols = n0 // 2 + tl.arange(0, BN // 2)
        place = out + rows[:, None] * (N // 2) + cols[None, :]
        mask = (rows < M)[:, None] & (cols < N // 2)[None, :]
        tl.store(place, (_gelu(x) * y).to(out.dtype.element_ty), mask=mask)
    finish(PDL)


def gate_up(
    a: Tensor,
    w: Tensor,
    out: Tensor,
    tile: StayingTile,
    *,
    norm: RowSums,
    valid: Tensor | None = None,
    base: int = 0,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
    eps: float = 1e-6,
) -> None:
    """`out = geglu(rms_norm(a) @ w.T)`, as `linear` with 'geglu'; allocates nothing.

    Args:
        a: [M, K]; w: [2*F, K], gate and up in adjacent rows, the norm's scale in its columns; out: [M, F].
        tile: see `StayingTile`.
        norm: row sums of squares of `a`.
        valid: int32 [1] on the device; rows from `valid + base` on are not computed.
    """
    M, K = a.shape
    N = w.shape[0]
    tiles = triton.cdiv(M, tile.rows) * triton.cdiv(N, tile.columns)
    _gate_up_kernel[(min(tiles, multiprocessors(a.device)),)](
        TensorDescriptor.from_tensor(a, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(w, [tile.columns, tile.depth]),
        out, norm.values, valid, M, N, K, base, norm.values.stride(1),
        BM=tile.rows, BN=tile.columns, BK=tile.depth, TILES=norm.tiles,
        TILES_2=triton.next_power_of_2(norm.tiles), EPS=eps, FLATTEN=a.is_cuda,
        **launch_options(launch, tile.warps, tile.stages),
    )  # fmt: skip
