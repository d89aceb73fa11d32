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
        _library(a, w, out, **options)
    elif isinstance(choice, StayingTile):
        assert out is not None
        del options["activation"]  # its only one
        gate_up(a, w, out, choice, **options)
    else:
        linear(a, w, out, choice, workspace=workspace, launch=launch, **options)


def _library(
    a: Tensor,
    w: Tensor,
    out: Tensor,
    *,
    residual: Tensor,
    sums: RowSums,
    valid: Tensor | None = None,
    base: int = 0,
) -> None:
    """`out = residual + a @ w.T` and its row sums; `residual` may be `out`.

    All rows are computed, those from `valid + base` on from whatever numbers lie there, and are not to be read.
    """
    torch.addmm(residual, a, w.T, out=out)
    row_sums(out, sums)
