"""Attention of few queries against a long prefix, its keys split over programs.

A chunk of 50 actions with 8 heads is 400 rows of queries, too few for a GPU, so each program takes
some rows and some keys and leaves a partial result with its softmax's maximum and sum. These are
combined in order, so the result does not depend on who is last: by the last program of a row tile to
arrive, or, where all programs run at once, by all of them, each some of the rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from triton.tools.tensor_descriptor import TensorDescriptor

from flashrt_ros.kernels.attention import LOG2_E
from flashrt_ros.kernels.launch import (
    Launch,
    begin,
    finish,
    launch_options,
    multiprocessors,
    wait_for,
)

EVEN_SPLITS = 8
LEAST_ROWS, LEAST_KEYS = 16, 64


@dataclass(frozen=True)
class SplitTile:
    """Shape of one program's work.

    splits: the most that the keys are split by, see `fitted`.
    bulk: queries, keys and values are loaded through tensor descriptors, else by pointers.
    meet: programs of a row tile wait for each other and share the combining, each some of the rows, where
        there are no more programs than the GPU has multiprocessors (else the last one does it).
    """

    rows: int = 16
    keys: int = 64
    splits: int = 4
    warps: int = 4
    stages: int = 2
    bulk: bool = True
    meet: bool = False

    def fitted(self, rows: int, keys: int, at_once: int | None) -> SplitTile:
        """The same, with as many splits as there are tiles of keys for, and as run at once (None: any number).

        It is narrower where so many more programs, each with one tile of keys, still run at once.
        """
        if at_once is None:
            tile, splits = self, self.splits
        else:
            tile = self._narrower(rows, keys, at_once)
            splits = max(1, min(self.splits, at_once // triton.cdiv(rows, tile.rows)))
        # Eight, even where seven have work: the rows of a tile then divide evenly among them.
        return replace(tile, splits=min(splits, max(EVEN_SPLITS, triton.cdiv(keys, tile.keys))))

    def _narrower(self, rows: int, keys: int, at_once: int) -> SplitTile:
        """Half the rows and keys, or half the keys, or itself."""
        fewer_keys = replace(self, keys=self.keys // 2)
        for tile in (replace(fewer_keys, rows=self.rows // 2, warps=self.warps // 2), fewer_keys):
            parts = triton.cdiv(keys, tile.keys)
            fits = parts <= self.splits and parts * triton.cdiv(rows, tile.rows) <= at_once
            if fits and tile.rows >= LEAST_ROWS and tile.keys >= LEAST_KEYS:
                return tile
        return self


@dataclass(frozen=True)
class SplitWorkspace:
    """Scratch: partial outputs float32 [splits, rows, d], maxima and sums float32 [2, splits, rows],
    and two tickets int32 a row tile, zero between calls."""

    partial: Tensor
    softmax: Tensor
    tickets: Tensor


@triton.jit
def _combine(partial, softmax, out, rows, cols, inside, capacity, D: tl.constexpr,
             SPLITS: tl.constexpr):  # fmt: skip
    """All partial results of some rows → out. Everything is asked for before anything is used.

    Triton cannot unpack a tuple into another one, hence the sums of tuples.
    """
    where = rows[:, None] * D + cols[None, :]
    mask = inside[:, None] & (cols < D)[None, :]
    tops = ()
    sums = ()
    parts = ()
    for i in tl.static_range(SPLITS):
        own = softmax + i * capacity + rows
        tops = tops + (tl.load(own, mask=inside, other=0.0, cache_modifier=".cg"),)  # noqa: RUF005
        own += SPLITS * capacity
        sums = sums + (tl.load(own, mask=inside, other=1.0, cache_modifier=".cg"),)  # noqa: RUF005
        part = partial + i * (capacity * D) + where
        parts = parts + (tl.load(part, mask=mask, other=0.0, cache_modifier=".cg"),)  # noqa: RUF005
    top = tops[0]
    for i in tl.static_range(1, SPLITS):
        top = tl.maximum(top, tops[i])
    weight = tl.exp2(tops[0] - top)
    total = sums[0] * weight
    acc = parts[0] * weight[:, None]
    for i in tl.static_range(1, SPLITS):
        weight = tl.exp2(tops[i] - top)
        total += sums[i] * weight
        acc += parts[i] * weight[:, None]
    result = acc * (1.0 / total)[:, None]
    tl.store(out + where, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _look(q, k, v, there, scale, acc, top, total):
    """One tile of keys into the running softmax."""
    s = tl.dot(q, k.T, input_precision="ieee")
    s = tl.where(there[None, :], s * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, axis=1))
    # A share without a valid key keeps a maximum of minus infinity, and sums of zero.
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(top - safe)
    total = total * shrink + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def _split_attention_kernel(
    q_desc, k_desc, v_desc, queries, keys, values, out, valid, partial, softmax, tickets,
    M, tokens, base, longest, capacity, scale,
    D: tl.constexpr, HEAD: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, SPLITS: tl.constexpr,
    SHARE: tl.constexpr, MEET: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    split = tl.program_id(1)
    # Shares are cut from the longest possible prefix, so that no load waits for the valid length.
    share = tl.cdiv(tl.cdiv(longest + tokens, BK), SPLITS) * BK
    n0 = split * share
    n1 = tl.minimum(n0 + share, longest + tokens)
    rows = tile * BR + tl.arange(0, BR)
    inside = rows < M
    cols = tl.arange(0, HEAD)
    begin(PDL)
    N = tokens + base
    if valid is not None:
        N += tl.load(valid)
    col_inside = cols < D
    if q_desc is None:
        q = tl.load(queries + rows[:, None] * D + cols[None, :],
                    mask=inside[:, None] & col_inside[None, :], other=0.0)  # fmt: skip
    acc = tl.zeros((BR, HEAD), dtype=tl.float32)
    top = tl.full((BR,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BR,), dtype=tl.float32)
    for n in range(n0, n1, BK):
        key_rows = n + tl.arange(0, BK)
        there = key_rows < N
        if k_desc is not None:
            # The queries come beside the keys: asked for before the loop, they would hold up the keys.
            q = q_desc.load([tile * BR + tl.minimum(n, 0), 0])
            k = k_desc.load([n, 0])
            v = v_desc.load([n, 0])
        else:
            where = key_rows[:, None] * D + cols[None, :]
            mask = (key_rows < longest + tokens)[:, None] & col_inside[None, :]
            k = tl.load(keys + where, mask=mask, other=0.0)
            v = tl.load(values + where, mask=mask, other=0.0)
        acc, top, total = _look(q, k, v, there, scale, acc, top, total)

    finish(PDL)
    o_mask = inside[:, None] & col_inside[None, :]
    where = rows[:, None] * D + cols[None, :]
    if SPLITS == 1:
        total = tl.where(inside, total, 1.0)
        result = acc * (1.0 / total)[:, None]
        tl.store(out + where, result.to(out.dtype.element_ty), mask=o_mask)
    else:
        tl.store(partial + split * (capacity * D) + where, acc, mask=o_mask)
        tl.store(softmax + split * capacity + rows, top, mask=inside)
        tl.store(softmax + (SPLITS + split) * capacity + rows, total, mask=inside)
        tl.debug_barrier()  # all of the program's results are written before its ticket is drawn
        arrived = tl.atomic_add(tickets + tile, 1, sem="acq_rel") + 1
        if MEET:
            if arrived < SPLITS:
                wait_for(tickets + tile, SPLITS)
            rows = tile * BR + split + SPLITS * tl.arange(0, SHARE)
            inside = (rows < M) & (rows < (tile + 1) * BR)
        elif arrived < SPLITS:
            return
        tl.debug_barrier()
        _combine(partial, softmax, out, rows, cols, inside, capacity, D, SPLITS)
        left = tickets + tl.num_programs(0) + tile
        if MEET:
            # A ticket may be reset when nobody waits for it any more.
            if tl.atomic_add(left, 1, sem="acq_rel") == SPLITS - 1:
                tl.store(tickets + tile, 0)
                tl.store(left, 0)
        else:
            tl.store(tickets + tile, 0)


def split_workspace_size(rows: int, d: int, tile: SplitTile) -> tuple[tuple[int, ...], ...]:
    """Shapes of `SplitWorkspace`'s three tensors for so many rows, that is tokens times heads."""
    s = tile.splits if tile.splits > 1 else 0
    return (s, rows, d), (2, s, rows), (2 * triton.cdiv(rows, min(LEAST_ROWS, tile.rows)),)


def split_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    tile: SplitTile,
    workspace: SplitWorkspace | None = None,
    *,
    longest: int = 0,
    valid: Tensor | None = None,
    base: int = 0,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
) -> None:
    """Queries [n, heads*d] over the prefix and themselves → out [n, heads*d].

    keys, values: [m, d]; the first `valid + base` rows are the prefix, the next n the queries' own tokens.
    valid: int32 [1] on the device; None for 0. longest: the most that `valid + base` can be; up to
        there rows of keys and values must be finite.
    workspace: see `split_workspace_size`; needed where `tile.splits` > 1.
    """
    n, d = queries.shape[0], keys.shape[1]
    rows = n * (queries.shape[1] // d)
    # In Triton's interpreter one program runs after the other: none may wait for another one.
    meet = tile.meet and queries.is_cuda
    tile = tile.fitted(rows, longest + n, multiprocessors(queries.device) if meet else None)
    meet = meet and tile.splits > 1
    if tile.splits > 1 and workspace is None:
        raise ValueError(f"{tile.splits} splits: expected a workspace, found none")
    parts = (workspace.partial, workspace.softmax, workspace.tickets) if workspace else (None,) * 3
    grid = (triton.cdiv(rows, tile.rows), tile.splits)
    head = max(16, triton.next_power_of_2(d))
    # Rows that do not count are masked by `there`; a descriptor zeroes what lies beyond the tensor.
    _split_attention_kernel[grid](
        TensorDescriptor.from_tensor(queries.view(-1, d), [tile.rows, head]) if tile.bulk else None,
        TensorDescriptor.from_tensor(keys, [tile.keys, head]) if tile.bulk else None,
        TensorDescriptor.from_tensor(values, [tile.keys, head]) if tile.bulk else None,
        queries, keys, values, out, valid, *parts, rows, n, base, longest, rows,
        LOG2_E / math.sqrt(d), D=d,
        HEAD=head, BR=tile.rows, BK=tile.keys, SPLITS=tile.splits,
        SHARE=triton.next_power_of_2(triton.cdiv(tile.rows, tile.splits)), MEET=meet,
        **launch_options(launch, tile.warps, tile.stages),
    )  # fmt: skip


def split_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    *,
    valid: Tensor | None = None,
    base: int = 0,
) -> None:
    """The same through PyTorch's scaled_dot_product_attention."""
    n, d = queries.shape[0], keys.shape[1]
    rows = queries.reshape(1, 1, -1, d)
    inside = None
    if valid is None:
        keys, values = keys[: n + base], values[: n + base]
    else:
        inside = torch.arange(len(keys), device=keys.device)[None] < valid + n + base
    y = F.scaled_dot_product_attention(rows, keys[None, None], values[None, None], inside)
    out.copy_(y.view(n, -1))
