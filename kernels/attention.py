"""Attention in which every query sees every valid key: SigLIP's, and that of the prefix.

Gemma's one key/value head serves all query heads: with queries [n, heads, d] in memory that is one
head with n*heads rows, so a tile of rows reads each key once for several heads. A head of 72, not
a power of two, is multiplied as 64 and a masked 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from triton.tools.tensor_descriptor import TensorDescriptor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class AttentionTile:
    """Shape of one program's work.

    bulk: the prefix's keys and values are loaded through tensor descriptors; where a head is a power of two.
    """

    rows: int = 64
    keys: int = 64
    warps: int = 4
    stages: int = 2
    bulk: bool = False


@triton.jit
def _load(base, rows, inside, stride, first: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Columns first … first+WIDTH-1 of rows; beyond D and outside, zero."""
    cols = first + tl.arange(0, WIDTH)
    mask = inside[:, None]
    if first + WIDTH > D:
        mask = mask & (cols < D)[None, :]
    return tl.load(base + rows[:, None] * stride + cols[None, :], mask=mask, other=0.0)


@triton.jit
def _attention_kernel(
    k_desc, v_desc, queries, keys, values, out, valid,
    M, N, base, heads, stride_q, stride_k, stride_o, step_q, step_k, step_o, scale,
    D: tl.constexpr, HEAD: tl.constexpr, REST: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    if valid is not None:
        N = tl.minimum(N, tl.load(valid) + base)
        M = tl.minimum(M, N * ROWS_PER_TOKEN)
    m0 = tl.program_id(0) * BR
    if m0 >= M:
        return
    group = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    q_base = queries + group * step_q + head * D
    k_base = keys + group * step_k + head * D
    v_base = values + group * step_k + head * D
    o_base = out + group * step_o + head * D

    rows = m0 + tl.arange(0, BR)
    row_inside = rows < M
    q = _load(q_base, rows, row_inside, stride_q, 0, D, HEAD)
    acc = tl.zeros((BR, HEAD), dtype=tl.float32)
    if REST:
        q_rest = _load(q_base, rows, row_inside, stride_q, HEAD, D, REST)
        acc_rest = tl.zeros((BR, REST), dtype=tl.float32)
    top = tl.full((BR,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BR,), dtype=tl.float32)
    for n0 in range(0, N, BK):
        key_rows = n0 + tl.arange(0, BK)
        inside = key_rows < N
        if k_desc is not None:
            k = k_desc.load([n0, 0])
            v = v_desc.load([n0, 0])
        else:
            k = _load(k_base, key_rows, inside, stride_k, 0, D, HEAD)
            v = _load(v_base, key_rows, inside, stride_k, 0, D, HEAD)
        s = tl.dot(q, k.T, input_precision="ieee")
        if REST:
            s = tl.dot(
                q_rest,
                _load(k_base, key_rows, inside, stride_k, HEAD, D, REST).T,
                s,
                input_precision="ieee",
            )
        s = tl.where(inside[None, :], s * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, axis=1)
        top = new_top
        p = p.to(q.dtype)
        acc = tl.dot(p, v, acc * shrink[:, None], input_precision="ieee")
        if REST:
            v_rest = _load(v_base, key_rows, inside, stride_k, HEAD, D, REST)
            acc_rest = tl.dot(p, v_rest, acc_rest * shrink[:, None], input_precision="ieee")
    finish(PDL)
    inverse = (1.0 / total)[:, None]
    o_rows = o_base + rows[:, None] * stride_o
    cols = tl.arange(0, HEAD)
    mask = row_inside[:, None] & (cols < D)[None, :]
    tl.store(o_rows + cols[None, :], (acc * inverse).to(out.dtype.element_ty), mask=mask)
    if REST:
        cols = HEAD + tl.arange(0, REST)
        mask = row_inside[:, None] & (cols < D)[None, :]
        tl.store(o_rows + cols[None, :], (acc_rest * inverse).to(out.dtype.element_ty), mask=mask)


def _head_parts(d: int) -> tuple[int, int]:
    """A head as a power of two and a remainder of at least 16, or 0."""
    part = max(16, triton.next_power_of_2(d))
    if part == max(16, d):
        return part, 0
    part //= 2
    rest = max(16, triton.next_power_of_2(d - part))
    return (part, rest) if rest < part else (2 * part, 0)


def prefix_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    tile: AttentionTile,
    *,
    valid: Tensor | None = None,
    base: int = 0,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
) -> None:
    """Queries [n, heads*d] over keys, values [m, d], one for all heads → out [n, heads*d].

    valid: int32 [1] on the device: `valid + base` keys, and queries, count; None for all.
    """
    n, d = queries.shape[0], keys.shape[1]
    heads = queries.shape[1] // d
    head, rest = _head_parts(d)
    rows = n * heads
    programs = triton.cdiv(rows, tile.rows)
    bulk = tile.bulk and head == d
    _attention_kernel[(programs, 1)](
        TensorDescriptor.from_tensor(keys, [tile.keys, d]) if bulk else None,
        TensorDescriptor.from_tensor(values, [tile.keys, d]) if bulk else None,
        queries, keys, values, out, valid, rows, keys.shape[0], base, 1, d, d, d, 0, 0, 0,
        LOG2_E / math.sqrt(d), D=d, HEAD=head, REST=rest, BR=tile.rows, BK=tile.keys,
        ROWS_PER_TOKEN=heads, **launch_options(launch, tile.warps, tile.stages),
    )  # fmt: skip


def prefix_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    *,
    valid: Tensor | None = None,
    base: int = 0,
) -> None:
    """The same through PyTorch's scaled_dot_product_attention; all rows are written, and nothing waits."""
    rows = queries.reshape(1, 1, -1, keys.shape[1])
    inside = None
    if valid is not None:
        inside = torch.arange(len(keys), device=keys.device)[None] < valid + base
    y = F.scaled_dot_product_attention(rows, keys[None, None], values[None, None], inside)
    out.copy_(y.view(len(queries), -1))


def view_attention(
    qkv: Tensor,
    out: Tensor,
    tokens: int,
    heads: int,
    tile: AttentionTile,
    *,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
) -> None:
    """SigLIP: qkv [views*tokens, 3*width], heads side by side → out [views*tokens, width]."""
    rows, width = out.shape
    d = width // heads
    head, rest = _head_parts(d)
    grid = (triton.cdiv(tokens, tile.rows), rows // tokens * heads)
    _attention_kernel[grid](
        None, None, qkv, qkv[:, width:], qkv[:, 2 * width :], out, None, tokens, tokens, 0, heads,
        3 * width, 3 * width, width, tokens * 3 * width, tokens * 3 * width, tokens * width,
        LOG2_E / math.sqrt(d), D=d, HEAD=head, REST=rest, BR=tile.rows, BK=tile.keys,
        ROWS_PER_TOKEN=1, **launch_options(launch, tile.warps, tile.stages),
    )  # fmt: skip


def view_attention_reference(qkv: Tensor, out: Tensor, tokens: int, heads: int) -> None:
    """The same through PyTorch's scaled_dot_product_attention."""
    rows, width = out.shape
    q, k, v = qkv.view(rows // tokens, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    out.copy_(y.reshape(rows, width))
