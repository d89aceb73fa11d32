"""Linear layer with everything around it: `y = epilogue(a @ w.T)`, for a few rows and for many.

One body serves every GEMM of the networks. What differs is the tile shape (few rows stream weights,
many rows feed the tensor cores) and what happens to the accumulator before it leaves the chip:

1. a norm of the input, folded: with weights that already hold the norm's own scale, RMSNorm is a
   factor a row, `y = rstd * (x @ w.T)`, and LayerNorm `y = rstd * (x @ w.T - mean * w.sum(1))`. The row
   sums come from whoever wrote x, so no kernel reads x only to normalise it;
2. bias, then one of: GELU, GeGLU (gate and up in adjacent columns), rotary embedding with the
   keys and values written where attention reads them (pairs in adjacent columns);
3. gate and residual; a copy scaled for the next norm; the row sums of the result.

With `splits` > 1 the columns of a row are summed by several programs. Each leaves a partial sum in
float32, and the last to arrive adds all of them in order: the result does not depend on who is last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from triton.tools.tensor_descriptor import TensorDescriptor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options

NONE, GELU, GEGLU, ROPE, SILU = range(5)
LEAST_ROWS = 64  # that a tensor core of Hopper is fed with
EARLY_NUMBERS = 32  # accumulators a thread up to which the epilogue's own operands fit beside them
ACTIVATIONS = {"none": NONE, "gelu": GELU, "geglu": GEGLU, "rope": ROPE, "silu": SILU}


@dataclass(frozen=True)
class Tile:
    """Shape of one program's work.

    bulk: tiles are loaded through tensor descriptors (Hopper's bulk copies), else by pointers.
    """

    rows: int = 128
    columns: int = 128
    depth: int = 64
    splits: int = 1
    warps: int = 4
    stages: int = 3
    bulk: bool = True

    def fitted(self, m: int, n: int, k: int, head_dim: int | None = None) -> Tile:
        """The same, no larger than powers of two that hold the problem; within a head for rotary.

        The shared memory that very few rows leave goes into depth: twice as deep, in two thirds of the stages.
        """
        rows = min(self.rows, max(16, triton.next_power_of_2(m)))
        columns = min(self.columns, max(16, triton.next_power_of_2(n)))
        if head_dim is not None:
            columns = min(columns, head_dim)
        deeper = self.bulk and 4 * rows <= self.rows
        depth = min(self.depth * (1 + deeper), max(16, triton.next_power_of_2(k)))
        return replace(
            self, rows=rows, columns=columns, depth=depth,
            splits=min(self.splits, triton.cdiv(k, depth)),
            stages=triton.cdiv(2 * self.stages, 3) if deeper else self.stages,
        )  # fmt: skip

    def spread(self, m: int, n: int, at_once: int) -> Tile:
        """With half the rows, where all programs then still run at once; the bits stay what they are."""
        rows = self.rows // 2
        programs = triton.cdiv(m, rows) * self.parts(n) * self.splits
        return replace(self, rows=rows) if rows >= LEAST_ROWS and programs <= at_once else self

    def parts(self, n: int) -> int:
        """How many partial sums it leaves of a row of n columns."""
        return triton.cdiv(n, self.columns)


@dataclass(frozen=True)
class RowSums:
    """Sums of squares (plane 0) and, for a LayerNorm, sums (plane 1) of rows, by column tile.

    values: float32 [planes, tiles, capacity]; the sum over tiles is the row's.
    """

    values: Tensor

    @property
    def tiles(self) -> int:
        """Number of partial sums a row."""
        return self.values.shape[1]


@dataclass(frozen=True)
class Rope:
    """Where rotated queries and keys and plain values go; `w` holds them in this order.

    rotation: float32 [2, positions, head_dim/2]: cosine, sine.
    queries: [M, heads*head_dim] or None (keys and values only); keys, values: [positions, head_dim].
    offset: int32 [1] on the device, position of row 0; None for 0. `start` is added to it.
    Rows of `keys` and `values` are positions. The two numbers of a rotated pair lie side by side.
    """

    rotation: Tensor
    keys: Tensor
    values: Tensor
    queries: Tensor | None = None
    offset: Tensor | None = None
    start: int = 0


@dataclass(frozen=True)
class Workspace:
    """Scratch of split sums: float32 [numel], int32 [tickets], the latter zero between calls."""

    partial: Tensor
    tickets: Tensor


@triton.jit
def _gelu(x):
    # tanh form, by the logistic function: 0.5 * (1 + tanh(u)) = sigmoid(2 u).
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _row_sums(stats, plane, rows, M, capacity, TILES: tl.constexpr, TILES_2: tl.constexpr):
    """Partial sums of one plane for a tile's rows, [TILES_2, BM]."""
    t = tl.arange(0, TILES_2)
    where = (plane * TILES + t)[:, None] * capacity + rows[None, :]
    return tl.load(stats + where, mask=(t[:, None] < TILES) & (rows[None, :] < M), other=0.0)


@triton.jit
def _rotation(table, plane, position, inside, n0, D: tl.constexpr, BN: tl.constexpr):
    """Cosine and sine for a tile within one head, [BM, BN/2]."""
    pair = (n0 % D) // 2 + tl.arange(0, BN // 2)
    where = position[:, None] * (D // 2) + pair[None, :]
    cos = tl.load(table + where, mask=inside[:, None], other=0.0)
    return cos, tl.load(table + plane + where, mask=inside[:, None], other=0.0)


@triton.jit
def _linear_kernel(
    a_desc, w_desc, a, w, out, stats_in, colsum, bias, gate, residual, total, scale, stats_out,
    rotation, queries, keys, values, offset, valid, skip, partial, tickets,
    M, N, K, grid_m, capacity_in, capacity_out, residual_rows, table, start, base,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    LAYER: tl.constexpr, TILES: tl.constexpr, TILES_2: tl.constexpr, EPS: tl.constexpr,
    ACTIVATION: tl.constexpr, SUMS: tl.constexpr, QUERY_COLUMNS: tl.constexpr, D: tl.constexpr,
    EARLY: tl.constexpr, DEFER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tile = pid // SPLITS
    split = pid % SPLITS
    pid_m = tile % grid_m
    pid_n = tile // grid_m
    m0 = pid_m * BM
    n0 = pid_n * BN
    depth = tl.cdiv(tl.cdiv(K, BK), SPLITS) * BK
    k0 = split * depth
    k1 = tl.minimum(k0 + depth, K)

    # What no kernel of a chain writes is asked for before the producer is done.
    rows = m0 + tl.arange(0, BM)
    cols = n0 + tl.arange(0, BN)
    if bias is not None:
        b = tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)
    if gate is not None:
        g = tl.load(gate + cols, mask=cols < N, other=0.0).to(tl.float32)
    if scale is not None:
        s = tl.load(scale + cols, mask=cols < N, other=0.0).to(tl.float32)
    if colsum is not None:
        c = tl.load(colsum + cols, mask=cols < N, other=0.0).to(tl.float32)
    position = rows + start
    if offset is not None:
        position += tl.load(offset)
    if EARLY and ACTIVATION == 3:
        cos, sin = _rotation(rotation, table, position, rows < M, n0, D, BN)

    begin(PDL)
    if valid is not None:
        M = tl.minimum(M, tl.load(valid) + base)
        if m0 >= M:
            return
    if skip is not None:  # noqa: SIM102  (a pointer that is missing must not be compiled)
        if m0 + BM <= tl.load(skip):
            return

    # What else the epilogue reads is asked for now, while the products keep the program busy.
    m_inside = rows < M
    inside = m_inside[:, None] & (cols < N)[None, :]
    there = (rows % residual_rows)[:, None] * N + cols[None, :]
    if stats_in is not None:
        squares = _row_sums(stats_in, 0, rows, M, capacity_in, TILES, TILES_2)
        if LAYER:
            values_sum = _row_sums(stats_in, 1, rows, M, capacity_in, TILES, TILES_2)
        if not DEFER:
            variance = tl.sum(squares, axis=0) / K
            if LAYER:
                mean = tl.sum(values_sum, axis=0) / K
    if EARLY and residual is not None:
        before = tl.load(residual + there, mask=inside, other=0.0).to(tl.float32)

    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if a_desc is not None:
        for k in range(k0, k1, BK):
            acc = tl.dot(a_desc.load([m0, k]), w_desc.load([n0, k]).T, acc, input_precision="ieee")
    else:
        step = tl.arange(0, BK)
        a_rows = a + rows[:, None] * K + step[None, :]
        w_rows = w + cols[:, None] * K + step[None, :]
        for k in range(k0, k1, BK):
            a_mask = m_inside[:, None] & (k + step < K)[None, :]
            w_mask = (cols < N)[:, None] & (k + step < K)[None, :]
            a_tile = tl.load(a_rows + k, mask=a_mask, other=0.0)
            w_tile = tl.load(w_rows + k, mask=w_mask, other=0.0)
            acc = tl.dot(a_tile, w_tile.T, acc, input_precision="ieee")
    finish(PDL)

    if SPLITS > 1:
        inner = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        mine = partial + (tile * SPLITS + split) * (BM * BN)
        tl.store(mine + inner, acc)
        tl.debug_barrier()  # all of the program's sums are written before its ticket is drawn
        if tl.atomic_add(tickets + tile, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.debug_barrier()
        tl.store(tickets + tile, 0)
        first = partial + tile * SPLITS * (BM * BN)
        acc = tl.load(first + inner, cache_modifier=".cg")
        for i in tl.static_range(1, SPLITS):
            acc += tl.load(first + i * (BM * BN) + inner, cache_modifier=".cg")

    if stats_in is not None:
        if DEFER:
            variance = tl.sum(squares, axis=0) / K
            if LAYER:
                mean = tl.sum(values_sum, axis=0) / K
        if LAYER:
            variance = tl.maximum(variance - mean * mean, 0.0)
            acc -= mean[:, None] * c[None, :]
        acc *= tl.rsqrt(variance + EPS)[:, None]
    if bias is not None:
        acc += b[None, :]

    if ACTIVATION == 3:
        # A tile lies within one head: queries, then the key, then the value.
        if n0 < QUERY_COLUMNS + D:
            if not EARLY:
                cos, sin = _rotation(rotation, table, position, m_inside, n0, D, BN)
            x, y = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
            acc = tl.reshape(tl.join(x * cos - y * sin, y * cos + x * sin), (BM, BN))
            if n0 < QUERY_COLUMNS:
                place = queries + rows[:, None] * QUERY_COLUMNS + cols[None, :]
            else:
                place = keys + position[:, None] * D + (cols - QUERY_COLUMNS)[None, :]
        else:
            place = values + position[:, None] * D + (cols - QUERY_COLUMNS - D)[None, :]
        tl.store(place, acc.to(keys.dtype.element_ty), mask=m_inside[:, None])
    elif ACTIVATION == 2:
        x, y = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
        half = pid_n * (BN // 2) + tl.arange(0, BN // 2)
        place = out + rows[:, None] * (N // 2) + half[None, :]
        mask = m_inside[:, None] & (half < N // 2)[None, :]
        tl.store(place, (_gelu(x) * y).to(out.dtype.element_ty), mask=mask)
    else:
        if ACTIVATION == 1:
            acc = _gelu(acc)
        if ACTIVATION == 4:
            acc = acc * tl.sigmoid(acc)
        if gate is not None:
            acc *= g[None, :]
        if residual is not None:
            if not EARLY:
                before = tl.load(residual + there, mask=inside, other=0.0).to(tl.float32)
            acc += before
        where = rows[:, None] * N + cols[None, :]
        if total is not None:
            tl.store(total + where, acc, mask=inside)
        else:
            acc = acc.to(out.dtype.element_ty).to(tl.float32)
        if SUMS:
            kept = tl.where(inside, acc, 0.0)
            place = stats_out + pid_n * capacity_out + rows
            tl.store(place, tl.sum(kept * kept, axis=1), mask=m_inside)
            if SUMS == 2:
                place += tl.cdiv(N, BN) * capacity_out  # the next plane
                tl.store(place, tl.sum(kept, axis=1), mask=m_inside)
        if scale is not None:
            acc *= s[None, :]
        tl.store(out + where, acc.to(out.dtype.element_ty), mask=inside)


def workspace_size(m: int, n: int, tile: Tile) -> tuple[int, int]:
    """Numbers of partial sums and of tickets that a split layer needs."""
    if tile.splits == 1:
        return 0, 0
    tiles = triton.cdiv(m, tile.rows) * triton.cdiv(n, tile.columns)
    return tiles * tile.splits * tile.rows * tile.columns, tiles


def linear(
    a: Tensor,
    w: Tensor,
    out: Tensor | None,
    tile: Tile,
    *,
    norm: RowSums | None = None,
    colsum: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "none",
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    scale: Tensor | None = None,
    sums: RowSums | None = None,
    rope: Rope | None = None,
    valid: Tensor | None = None,
    base: int = 0,
    skip: Tensor | None = None,
    workspace: Workspace | None = None,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
    eps: float = 1e-6,
) -> None:
    """`out = epilogue(a @ w.T)`; allocates nothing.

    Args:
        a: [M, K] and w: [N, K], contiguous rows, one type. K*itemsize is a multiple of 16 bytes.
        out: [M, N], or [M, N/2] for 'geglu', or None for 'rope'.
        tile: see `Tile`; 'rope' needs columns that divide the head.
        norm: row sums of `a`; with them the product is normalised. colsum: `w.sum(1)`, float32 [N],
            makes it a LayerNorm instead of an RMSNorm.
        bias: [N]. gate: float32 [N], times the result before the residual is added.
        residual: [M, N], or [R, N] that repeats every R rows. May be `out` or `total`.
        total: float32 [M, N], receives the result; `out` then receives it times `scale`, float32 [N].
        sums: receives row sums of the result, one partial sum a column tile.
        rope: see `Rope`.
        valid, skip: int32 [1] on the device; rows from `valid + base` on are not computed, and rows before
            `skip` need not be.
        workspace: see `workspace_size`; needed where `tile.splits` > 1.
        launch: how it follows its producer, see `Launch`.
    """
    M, K = a.shape
    N = w.shape[0]
    grid_m = triton.cdiv(M, tile.rows)
    programs = grid_m * triton.cdiv(N, tile.columns) * tile.splits
    head_dim = rope.keys.shape[-1] if rope is not None else 0
    if rope is not None and head_dim % tile.columns:
        raise ValueError(f"tile of {tile.columns} columns: expected a divisor of head {head_dim}")
    if tile.splits > 1 and workspace is None:
        raise ValueError(f"{tile.splits} splits: expected a workspace, found none")
    _linear_kernel[(programs,)](
        TensorDescriptor.from_tensor(a, [tile.rows, tile.depth]) if tile.bulk else None,
        TensorDescriptor.from_tensor(w, [tile.columns, tile.depth]) if tile.bulk else None,
        a, w, out, norm.values if norm else None, colsum, bias, gate, residual, total, scale,
        sums.values if sums else None,
        *_rope_pointers(rope),
        valid, skip, *((workspace.partial, workspace.tickets) if workspace else (None, None)),
        M, N, K, grid_m, norm.values.stride(1) if norm else 0, sums.values.stride(1) if sums else 0,
        residual.shape[0] if residual is not None else 1,
        rope.rotation.stride(0) if rope else 0, rope.start if rope else 0, base,
        BM=tile.rows, BN=tile.columns, BK=tile.depth, SPLITS=tile.splits,
        LAYER=colsum is not None, TILES=norm.tiles if norm else 1,
        TILES_2=triton.next_power_of_2(norm.tiles) if norm else 1, EPS=eps,
        ACTIVATION=ACTIVATIONS[activation], SUMS=sums.values.shape[0] if sums else 0,
        QUERY_COLUMNS=rope.queries.shape[1] if rope and rope.queries is not None else 0, D=head_dim,
        DEFER=norm is not None and tile.rows * tile.columns <= EARLY_NUMBERS * 32 * tile.warps,
        EARLY=tile.rows * tile.columns <= EARLY_NUMBERS * 32 * tile.warps,
        **launch_options(launch, tile.warps, tile.stages),
    )  # fmt: skip


def _rope_pointers(rope: Rope | None) -> tuple[Tensor | None, ...]:
    if rope is None:
        return (None,) * 5
    # Without query columns no tile reaches the first branch, but it must compile.
    queries = rope.keys if rope.queries is None else rope.queries
    return rope.rotation, queries, rope.keys, rope.values, rope.offset


def linear_reference(
    a: Tensor,
    w: Tensor,
    out: Tensor | None,
    *,
    norm: RowSums | None = None,
    colsum: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str = "none",
    gate: Tensor | None = None,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    scale: Tensor | None = None,
    sums: RowSums | None = None,
    rope: Rope | None = None,
    valid: Tensor | None = None,
    base: int = 0,
    skip: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """The same in plain PyTorch, with a library's product; takes what `linear` takes.

    Rows that need not be computed are; nothing waits for the device.
    """
    M, K = a.shape
    y = F.linear(a, w).float()
    if norm is not None:
        mean_square = norm.values[0, :, :M].sum(0)[:, None] / K
        if colsum is not None:
            mean = norm.values[1, :, :M].sum(0)[:, None] / K
            y, mean_square = y - mean * colsum, (mean_square - mean * mean).clamp(min=0)
        y = y * torch.rsqrt(mean_square + eps)
    if bias is not None:
        y = y + bias.float()
    if activation == "rope":
        assert rope is not None
        _rope_reference(y, rope)
        return
    assert out is not None
    if activation == "geglu":
        out.copy_(F.gelu(y[:, 0::2], approximate="tanh") * y[:, 1::2])
        return
    if activation == "gelu":
        y = F.gelu(y, approximate="tanh")
    if activation == "silu":
        y = F.silu(y)
    if gate is not None:
        y = y * gate
    if residual is not None:
        y = (y.view(-1, *residual.shape) + residual.float()).view(y.shape)
    if total is not None:
        total.copy_(y)
    else:
        y = y.to(out.dtype).float()
    if sums is not None:
        planes = (y.square().sum(1), y.sum(1))[: len(sums.values)]
        sums.values[:, :, :M] = 0
        sums.values[:, 0, :M] = torch.stack(planes)
    out.copy_(y if scale is None else y * scale)


def _rope_reference(y: Tensor, rope: Rope) -> None:
    M, d = len(y), rope.keys.shape[-1]
    rows = torch.arange(M, device=y.device) + rope.start
    if rope.offset is not None:
        rows = rows + rope.offset
    cos, sin = rope.rotation[:, rows][:, :, None]
    q = 0 if rope.queries is None else rope.queries.shape[1]
    pairs = y[:, : q + d].reshape(M, -1, d // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    rotated = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).reshape(M, -1)
    if rope.queries is not None:
        rope.queries[:M] = rotated[:, :q].to(rope.queries.dtype)
    rope.keys.index_copy_(0, rows, rotated[:, q:].to(rope.keys.dtype))
    rope.values.index_copy_(0, rows, y[:, q + d :].to(rope.values.dtype))
