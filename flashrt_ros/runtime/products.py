"""A linear layer of the fused network, by whatever was chosen to compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashrt_ros.kernels.gate_up import StayingTile, gate_up
from flashrt_ros.kernels.launch import Launch
from flashrt_ros.kernels.linear import RowSums, Workspace, linear, linear_reference
from flashrt_ros.kernels.row_sums import row_sums
from flashrt_ros.runtime.candidates import Library, Product


def product(
    choice: Product | None,
    a: Tensor,
    w: Tensor,
    out: Tensor | None,
    *,
    workspace: Workspace,
    launch: Launch,
    **options: Any,
) -> None:
    """`linear` as chosen, the reference for None; `options` are those of `linear_reference`."""
    if choice is None:
        linear_reference(a, w, out, **options)
    elif isinstance(choice, Library):
        assert out is not None
        _library(a, w, out, launch=launch, **options)
    elif isinstance(choice, StayingTile):
        assert out is not None
        del options["activation"]  # its only one
        gate_up(a, w, out, choice, launch=launch, **options)
    else:
        linear(a, w, out, choice, workspace=workspace, launch=launch, **options)


def views_of(rows: int, tokens: int) -> list[slice]:
    """Where the rows of each view lie."""
    return [slice(at, at + tokens) for at in range(0, rows, tokens)]


def reference_by_view(
    a: Tensor,
    w: Tensor,
    out: Tensor,
    tokens: int,
    *,
    norm: RowSums | None = None,
    residual: Tensor | None = None,
    sums: RowSums | None = None,
    **options: Any,
) -> None:
    """`linear_reference` on one view of `tokens` rows after the other: the bits do not depend on how many there are.

    A residual of one view repeats.
    """
    for view in views_of(len(a), tokens):
        linear_reference(
            a[view], w, out[view], norm=_of_rows(norm, view), sums=_of_rows(sums, view),
            residual=residual if residual is None or len(residual) == tokens else residual[view],
            **options,
        )  # fmt: skip


def _of_rows(sums: RowSums | None, rows: slice) -> RowSums | None:
    return None if sums is None else RowSums(sums.values[:, :, rows])


def _library(
    a: Tensor,
    w: Tensor,
    out: Tensor,
    *,
    residual: Tensor,
    sums: RowSums,
    valid: Tensor | None = None,
    base: int = 0,
    launch: Launch,
) -> None:
    """`out = residual + a @ w.T` and its row sums; `residual` may be `out`.

    All rows are computed, those from `valid + base` on from whatever numbers lie there, and are not to be read.
    """
    torch.addmm(residual, a, w.T, out=out)
    row_sums(out, sums, launch)
