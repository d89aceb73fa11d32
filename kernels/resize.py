"""Camera pixels to the patches of a vision tower: resize, pad, normalise, cut.

Both filters that checkpoints were trained with (see `models/images.py`): `openpi`'s is Pillow's antialiased
bilinear on uint8, integer for integer; `lerobot`'s samples floats bilinearly. Either is a short
weighted sum of columns and then of rows, so one kernel serves both with the weights in a table.

A patch leaves in `dtype` as [high | low | high] parts, p = high + low, for a product with weights
[high | high | low]: float32 accuracy from 16-bit tensor cores. Parts are padded to 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options

FIXED_POINT_BITS = 22  # Pillow's PRECISION_BITS for 8-bit pictures


def part_width(patch: int) -> int:
    """Columns of one part of a patch: 3*patch*patch, up to a multiple of 8."""
    return triton.cdiv(3 * patch * patch, 8) * 8


def split_weights(w: Tensor, patch: int, dtype: torch.dtype) -> Tensor:
    """Patch embedding float32 [W, 3*P*P] → [W, 3*part_width] for the patches of this module."""
    padded = torch.nn.functional.pad(w.float(), (0, part_width(patch) - w.shape[1]))
    high = padded.to(dtype)
    low = (padded - high.float()).to(dtype)
    return torch.cat((high, high, low), dim=1)


@dataclass(frozen=True)
class Axis:
    """Weighted sums along one axis: output i is the sum over j < taps of weight[i, j] * in[first[i] + j].

    first: int32 [out]; weights: [out, taps], int32 in fixed point for `openpi`, else float32.
    """

    first: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Resize:
    """Tables for pictures of one shape; see `resize_tables`."""

    height: int
    width: int
    size: int
    inner: tuple[int, int]
    filter: str
    rows: Axis
    columns: Axis


def resize_tables(
    height: int, width: int, size: int, inner: tuple[int, int], filter: str, device: torch.device
) -> Resize:
    """Tables that bring [height, width] to `inner` = (height, width), centred in a square of `size`.

    Where the picture has the square's shape already it is copied, as upstream does.
    """
    make = {"openpi": _pillow_axis, "lerobot": _sampled_axis}[filter]
    if (height, width) == (size, size):
        inner = (size, size)
    axes = [make(n, m, device) for n, m in ((height, inner[0]), (width, inner[1]))]
    return Resize(height, width, size, inner, filter, axes[0], axes[1])


def _pillow_axis(n: int, m: int, device: torch.device) -> Axis:
    """Pillow's `precompute_coeffs` and `normalize_coeffs_8bpc` for a triangle filter."""
    scale = n / m
    stretch = max(scale, 1.0)
    first, rows = [], []
    for i in range(m):
        center = (i + 0.5) * scale
        low, high = max(int(center - stretch + 0.5), 0), min(int(center + stretch + 0.5), n)
        w = [max(1.0 - abs((j - center + 0.5) / stretch), 0.0) for j in range(low, high)]
        total = sum(w)
        first.append(low)
        rows.append([int(x / total * (1 << FIXED_POINT_BITS) + 0.5) for x in w])
    taps = max(map(len, rows))
    weights = [row + [0] * (taps - len(row)) for row in rows]
    return Axis(
        torch.tensor(first, dtype=torch.int32, device=device),
        torch.tensor(weights, dtype=torch.int32, device=device),
    )


def _sampled_axis(n: int, m: int, device: torch.device) -> Axis:
    """`interpolate(mode='bilinear', align_corners=False)`: two taps, clamped at the edges."""
    scale = torch.tensor(n / m, dtype=torch.float32)
    at = ((torch.arange(m, dtype=torch.float32) + 0.5) * scale - 0.5).clamp(min=0)
    low = at.int().clamp(max=n - 1)
    part = torch.where(low < n - 1, at - low, 0.0)
    first = low.clamp(max=max(n - 2, 0))
    last = low > first  # the last sample, where there is no next one to blend with
    weights = torch.stack((torch.where(last, 0.0, 1 - part), torch.where(last, 1.0, part)), dim=1)
    if n == 1:
        weights = torch.ones(m, 1)
    return Axis(first.to(device), weights.to(device))


@triton.jit
def _resize_kernel(
    pixels, out, row_first, row_weight, col_first, col_weight, height, width, size, inner_h,
    inner_w, top, left, side, ROW_TAPS: tl.constexpr, COL_TAPS: tl.constexpr, FIXED: tl.constexpr,
    BITS: tl.constexpr, PATCH: tl.constexpr, PART: tl.constexpr, BP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    patch = tl.program_id(0)
    begin(PDL)
    finish(PDL)
    i = tl.arange(0, BP)
    channel = i // (PATCH * PATCH)
    y = patch // side * PATCH + i % (PATCH * PATCH) // PATCH - top
    x = patch % side * PATCH + i % PATCH - left
    real = channel < 3
    inside = real & (y >= 0) & (y < inner_h) & (x >= 0) & (x < inner_w)
    y0 = tl.load(row_first + y, mask=inside, other=0)
    x0 = tl.load(col_first + x, mask=inside, other=0)
    half = 1 << (BITS - 1) if FIXED else 0.0  # rounds, where sums are cut to integers
    acc = tl.zeros((BP,), dtype=tl.int32 if FIXED else tl.float32) + half
    # Beyond the picture weights are zero; that no pixel waits for its weight makes many loads one wait.
    for j in tl.range(ROW_TAPS, loop_unroll_factor=4):
        wy = tl.load(row_weight + y * ROW_TAPS + j, mask=inside, other=0)
        line = pixels + ((y0 + j) * width + x0) * 3 + channel
        there = inside & (y0 + j < height)
        across = tl.zeros((BP,), dtype=tl.int32 if FIXED else tl.float32) + half
        for k in tl.static_range(COL_TAPS):
            wx = tl.load(col_weight + x * COL_TAPS + k, mask=inside, other=0)
            p = tl.load(line + k * 3, mask=there & (x0 + k < width), other=0)
            if FIXED:
                across += p.to(tl.int32) * wx
            else:
                across += p.to(tl.float32) / 255.0 * wx
        if FIXED:
            acc += tl.minimum(tl.maximum(across >> BITS, 0), 255) * wy
        else:
            acc += across * wy
    if FIXED:
        value = tl.minimum(tl.maximum(acc >> BITS, 0), 255).to(tl.float32) / 255.0 * 2.0 - 1.0
    else:
        value = tl.minimum(tl.maximum(acc, 0.0), 1.0) * 2.0 - 1.0
    value = tl.where(inside, value, tl.where(real, -1.0, 0.0))
    high = value.to(out.dtype.element_ty)
    low = (value - high.to(tl.float32)).to(out.dtype.element_ty)
    place = out + patch * (3 * PART) + i
    fits = i < PART
    tl.store(place, high, mask=fits)
    tl.store(place + PART, low, mask=fits)
    tl.store(place + 2 * PART, high, mask=fits)


def resize_to_patches(
    pixels: Tensor,
    out: Tensor,
    tables: Resize,
    patch: int,
    *,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
) -> None:
    """uint8 RGB [height, width, 3] → patches [(size/patch)^2, 3*part_width], in [-1, 1]; padding -1."""
    side = tables.size // patch
    _resize_kernel[(side * side,)](
        pixels, out, tables.rows.first, tables.rows.weights, tables.columns.first,
        tables.columns.weights, tables.height, tables.width, tables.size, *tables.inner,
        (tables.size - tables.inner[0]) // 2, (tables.size - tables.inner[1]) // 2, side,
        ROW_TAPS=tables.rows.weights.shape[1], COL_TAPS=tables.columns.weights.shape[1],
        FIXED=tables.filter == "openpi", BITS=FIXED_POINT_BITS, PATCH=patch, PART=part_width(patch),
        BP=triton.next_power_of_2(part_width(patch)), **launch_options(launch, 8, 1),
    )  # fmt: skip


def resize_to_patches_reference(pixels: Tensor, out: Tensor, tables: Resize, patch: int) -> None:
    """The same in plain PyTorch: gather the taps, sum the columns, then the rows."""
    device = pixels.device
    h, w = tables.inner
    planes = pixels.permute(2, 0, 1)

    def along(x: Tensor, axis: Axis, dim: int) -> Tensor:
        taps = torch.arange(axis.weights.shape[1], device=device)
        where = (axis.first[:, None] + taps).clamp(max=x.shape[dim] - 1)
        x = x.index_select(dim, where.flatten().long()).unflatten(dim, where.shape)
        shape = [1] * x.ndim
        shape[dim], shape[dim + 1] = where.shape
        summed = (x * axis.weights.view(shape)).sum(dim + 1)
        if tables.filter == "openpi":
            return ((summed + (1 << (FIXED_POINT_BITS - 1))) >> FIXED_POINT_BITS).clamp(0, 255)
        return summed

    x = planes.long() if tables.filter == "openpi" else planes.float() / 255.0
    x = along(along(x, tables.columns, 2), tables.rows, 1)
    x = x.float() / 255.0 if tables.filter == "openpi" else x.clamp(0.0, 1.0)
    canvas = torch.full((3, tables.size, tables.size), -1.0, device=device)
    top, left = (tables.size - h) // 2, (tables.size - w) // 2
    canvas[:, top : top + h, left : left + w] = x * 2.0 - 1.0
    side, part = tables.size // patch, part_width(patch)
    cut = canvas.view(3, side, patch, side, patch).permute(1, 3, 0, 2, 4).reshape(side * side, -1)
    high = cut.to(out.dtype)
    low = (cut - high.float()).to(out.dtype)
    out.zero_()
    for i, values in enumerate((high, low, high)):
        out[:, i * part : i * part + values.shape[1]] = values
