"""Between two evaluations of the action expert: velocity out, Euler step, next actions in.

    x += dt * (action_out(norm(h)) + bias)        the step that ends an evaluation
    h = action_in(x) + bias                       the rows that the next one starts with

One program a row, in float32. The final norm is folded as in `linear`, with its scale applied here
and its shift in `out_bias`: `norm(h) = h * rstd * scale + shift`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from flashrt_ros.kernels.launch import Launch, begin, finish, launch_options
from flashrt_ros.kernels.linear import RowSums


@triton.jit
def _action_step_kernel(
    x_in, x_out, hidden, norm_scale, w_out, out_bias, w_in, in_bias, total, out, scale, sums, dt,
    A: tl.constexpr, A_2: tl.constexpr, E: tl.constexpr, E_2: tl.constexpr,
    EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    a = tl.arange(0, A_2)
    a_inside = a < A
    e = tl.arange(0, E_2)
    e_inside = e < E
    if hidden is not None:
        # No kernel of a chain writes weights: they come while the producer still runs.
        w = tl.load(w_out + a[:, None] * E + e[None, :],
                    mask=a_inside[:, None] & e_inside[None, :], other=0.0)  # fmt: skip
    begin(PDL)
    finish(PDL)
    x = tl.load(x_in + row * A + a, mask=a_inside, other=0.0)
    if hidden is not None:
        h = tl.load(hidden + row * E + e, mask=e_inside, other=0.0)
        rstd = tl.rsqrt(tl.sum(h * h, axis=0) / E + EPS)
        h *= tl.load(norm_scale + e, mask=e_inside, other=0.0)
        v = tl.sum(w * h[None, :], axis=1) * rstd
        x += dt * (v + tl.load(out_bias + a, mask=a_inside, other=0.0))
        tl.store(x_out + row * A + a, x, mask=a_inside)
    if w_in is not None:
        w = tl.load(w_in + e[:, None] * A + a[None, :],
                    mask=e_inside[:, None] & a_inside[None, :], other=0.0)  # fmt: skip
        h = tl.sum(w * x[None, :], axis=1) + tl.load(in_bias + e, mask=e_inside, other=0.0)
        if total is not None:
            tl.store(total + row * E + e, h, mask=e_inside)
        if sums is not None:
            tl.store(sums + row, tl.sum(h * h, axis=0))
        if scale is not None:
            h *= tl.load(scale + e, mask=e_inside, other=0.0)
        tl.store(out + row * E + e, h.to(out.dtype.element_ty), mask=e_inside)


def action_step(
    x_in: Tensor,
    x_out: Tensor | None,
    *,
    dt: float = 0.0,
    hidden: Tensor | None = None,
    norm_scale: Tensor | None = None,
    w_out: Tensor | None = None,
    out_bias: Tensor | None = None,
    w_in: Tensor | None = None,
    in_bias: Tensor | None = None,
    total: Tensor | None = None,
    out: Tensor | None = None,
    scale: Tensor | None = None,
    sums: RowSums | None = None,
    warps: int = 16,
    launch: Launch = Launch(),  # noqa: B008  (frozen)
    eps: float = 1e-6,
) -> None:
    """The end of one evaluation, the start of the next, or both.

    Args:
        x_in, x_out: float32 [H, A], the state before and after the step; may be the same.
        dt: change of flow time.
        hidden: float32 [H, E], the expert's last rows; None: no step, x stays x_in.
        norm_scale: float32 [E]; w_out: float32 [A, E]; out_bias: float32 [A], the norm's shift in it.
        w_in: float32 [E, A]; in_bias: float32 [E]; None: no next evaluation.
        total: float32 [H, E], receives the next rows; out [H, E] receives them times scale [E].
        sums: receives the row sums of squares of the next rows, one partial sum.
    """
    H, A = x_in.shape
    if hidden is not None:
        E = hidden.shape[1]
    else:
        assert w_in is not None
        E = w_in.shape[0]
    _action_step_kernel[(H,)](
        x_in, x_out, hidden, norm_scale, w_out, out_bias, w_in, in_bias, total, out, scale,
        sums.values if sums else None, dt, A=A, A_2=triton.next_power_of_2(A), E=E,
        E_2=triton.next_power_of_2(E), EPS=eps, **launch_options(launch, warps, 2),
    )  # fmt: skip


def action_step_reference(
    x_in: Tensor,
    x_out: Tensor | None,
    *,
    dt: float = 0.0,
    hidden: Tensor | None = None,
    norm_scale: Tensor | None = None,
    w_out: Tensor | None = None,
    out_bias: Tensor | None = None,
    w_in: Tensor | None = None,
    in_bias: Tensor | None = None,
    total: Tensor | None = None,
    out: Tensor | None = None,
    scale: Tensor | None = None,
    sums: RowSums | None = None,
    eps: float = 1e-6,
) -> None:
    """The same in plain PyTorch; takes what `action_step` takes."""
    x = x_in
    if hidden is not None:
        assert norm_scale is not None
        assert w_out is not None
        assert x_out is not None
        rstd = torch.rsqrt(hidden.square().mean(1, keepdim=True) + eps)
        x = x_in + dt * F.linear(hidden * rstd * norm_scale, w_out, out_bias)
        x_out.copy_(x)
    if w_in is None:
        return
    assert out is not None
    h = F.linear(x, w_in, in_bias)
    if total is not None:
        total.copy_(h)
    if sums is not None:
        sums.values[0, :, : len(h)] = 0
        sums.values[0, 0, : len(h)] = h.square().sum(1)
    out.copy_(h if scale is None else h * scale)
