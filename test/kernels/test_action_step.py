"""Velocity out, Euler step and next actions in; token embeddings."""

import pytest
import torch

from flashrt_ros.kernels.action_step import action_step, action_step_reference
from flashrt_ros.kernels.embed import embed, embed_reference
from flashrt_ros.kernels.linear import RowSums

from .compare import DEVICE, Draw, error, poisoned


@pytest.mark.parametrize(("rows", "actions", "width"), [(50, 32, 96), (51, 7, 300), (1, 1, 16)])
def test_end_of_an_evaluation_and_start_of_the_next(rows, actions, width):
    results = []
    for function in (action_step, action_step_reference):
        draw = Draw()
        x, hidden = draw(rows, actions), draw(rows, width)
        total, out = poisoned(rows, width), poisoned(rows, width, dtype=torch.float16)
        sums = RowSums(poisoned(1, 1, rows + 2))
        function(
            x, x, dt=-0.1, hidden=hidden, norm_scale=draw(width), w_out=draw(actions, width),
            out_bias=draw(actions), w_in=draw(width, actions), in_bias=draw(width), total=total,
            out=out, scale=draw(width), sums=sums,
        )  # fmt: skip
        results.append((x, total, out, sums.values[..., :rows]))
    for found, wanted in zip(*results, strict=True):
        assert error(found, wanted) < (1e-3 if found.dtype == torch.float16 else 1e-5)


def test_first_start_and_last_end():
    draw = Draw(1)
    x, w, bias = draw(10, 6), draw(64, 6), draw(64)
    out = poisoned(10, 64)
    action_step(x, None, w_in=w, in_bias=bias, out=out)
    assert error(out, x @ w.T + bias) < 1e-6
    hidden, scale, w_out, bias = draw(10, 64), draw(64), draw(6, 64), draw(6)
    end = poisoned(10, 6)
    action_step(x, end, dt=-0.5, hidden=hidden, norm_scale=scale, w_out=w_out, out_bias=bias)
    normed = torch.nn.functional.rms_norm(hidden, (64,), eps=1e-6) * scale
    assert error(end, x - 0.5 * (normed @ w_out.T + bias)) < 1e-6


def test_embeddings_are_scaled_and_an_unknown_token_is_zero():
    draw = Draw(2)
    table = draw(100, 48, dtype=torch.float16)
    tokens = torch.tensor([0, 99, 5, 5, -1, 100], dtype=torch.int32, device=DEVICE)
    results = []
    for function in (embed, embed_reference):
        out, sums = poisoned(6, 48, dtype=torch.float16), RowSums(poisoned(1, 3, 8))
        function(tokens, table, out, sums)
        results.append((out, sums.values[:, :, :6].sum(1)))
    (out, sums), (wanted, wanted_sums) = results
    assert error(out, wanted) < 1e-3
    assert error(sums, wanted_sums) < 1e-3
    assert not out[4:].any()
