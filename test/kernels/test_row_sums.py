"""Sums of squares of rows, of widths that are powers of two and that are not."""

import pytest
import torch

from flashrt_ros.kernels.linear import RowSums
from flashrt_ros.kernels.row_sums import LARGEST_BLOCK, row_sums, row_sums_reference

from .compare import POISON, Draw, error, poisoned


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 16), (51, 72), (2, 2048), (2, LARGEST_BLOCK + 9)])
@pytest.mark.parametrize("parts", [1, 3])
def test_all_is_in_the_first_partial_sum_and_no_other_row_is_written(shape, dtype, parts):
    n, _ = shape
    x = Draw()(*shape, dtype=dtype)
    kept, results = x.clone(), []
    for function in (row_sums, row_sums_reference):
        sums = RowSums(poisoned(1, parts, n + 2))
        function(x, sums)
        assert (sums.values[..., n:] == POISON).all()
        assert not sums.values[0, 1:, :n].any()
        results.append(sums.values[0, 0, :n])
    assert error(results[0], x.double().square().sum(1)) < 1e-6
    assert error(*results) < 1e-6
    assert torch.equal(x, kept)


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    x = Draw()(3, 40)
    sums = RowSums(poisoned(1, 1, 3))
    row_sums(x, sums)
    before = sums.values.clone()
    x[1, 7] = float("nan")
    row_sums(x, sums)
    assert torch.equal(sums.values[0, 0, ::2], before[0, 0, ::2])
