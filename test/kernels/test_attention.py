"""Attention of views, of the prefix, and of few queries against a long prefix."""

import pytest
import torch

from flashrt_ros.kernels.attention import (
    AttentionTile,
    prefix_attention,
    prefix_attention_reference,
    view_attention,
    view_attention_reference,
)
from flashrt_ros.kernels.split_attention import (
    SplitTile,
    SplitWorkspace,
    split_attention,
    split_attention_reference,
    split_workspace_size,
)

from .compare import DEVICE, POISON, Draw, error, poisoned


def int32(value):
    return torch.tensor([value], dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("d", [24, 32, 72])
@pytest.mark.parametrize("tile", [AttentionTile(16, 16), AttentionTile(64, 32)], ids=str)
def test_every_view_attends_to_itself_at_head_sizes_that_are_no_power_of_two(d, tile):
    heads, tokens = 2, 25
    qkv = Draw()(2 * tokens, 3 * heads * d)
    out, wanted = poisoned(2 * tokens, heads * d), poisoned(2 * tokens, heads * d)
    view_attention(qkv, out, tokens, heads, tile)
    view_attention_reference(qkv, wanted, tokens, heads)
    assert error(out, wanted) < 1e-5


@pytest.mark.parametrize("valid", [None, 1, 49])
def test_prefix_attends_to_its_valid_rows(valid):
    draw = Draw(1)
    q, k, v = draw(51, 4 * 32), draw(51, 32), draw(51, 32)
    number = None if valid is None else int32(valid)
    out, wanted = poisoned(51, 128), poisoned(51, 128)
    prefix_attention(q, k, v, out, AttentionTile(32, 16), valid=number, base=2 if valid else 0)
    prefix_attention_reference(q, k, v, wanted, valid=number, base=2 if valid else 0)
    count = 51 if valid is None else valid + 2
    assert error(out[:count], wanted[:count]) < 1e-5
    written = -(-count // 8) * 8  # whole tiles of 32 rows, that is 8 tokens with 4 heads
    assert (out[written:] == POISON).all()


@pytest.mark.parametrize(
    "tile",
    [
        SplitTile(16, 32, 4, bulk=False),
        SplitTile(16, 32, 4, meet=True),
        SplitTile(32, 16, 7),
        SplitTile(16, 64, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize(("tokens", "prefix", "rows"), [(51, 967, 1018), (1, 0, 40), (10, 17, 60)])
def test_few_queries_against_a_long_prefix(tokens, prefix, rows, tile):
    draw = Draw(2)
    q, k, v = draw(tokens, 4 * 32), draw(rows, 32), draw(rows, 32)
    count = int32(max(prefix - 3, 0))
    base = 3 if prefix else 0
    n = tokens * 4
    partial, softmax, tickets = split_workspace_size(n, 32, tile)
    work = SplitWorkspace(
        poisoned(*partial), poisoned(*softmax), torch.zeros(tickets, dtype=torch.int32).to(DEVICE)
    )
    wanted = poisoned(tokens, 128)
    split_attention_reference(q, k, v, wanted, valid=count, base=base)
    before = None
    for _ in range(2):
        out = poisoned(tokens, 128)
        split_attention(q, k, v, out, tile, work, longest=rows - tokens, valid=count, base=base)
        assert error(out, wanted) < 1e-5
        assert not work.tickets.any()  # ready for the next call
        assert before is None or torch.equal(out, before)
        before = out


def test_keys_of_the_prefix_that_are_not_valid_do_not_count():
    draw = Draw(3)
    q, k, v = draw(5, 32), draw(40, 32), draw(40, 32)
    results = []
    for stale in (1.0, 1e4):
        k[25:], v[25:] = stale, stale
        out = poisoned(5, 32)
        split_attention(q, k, v, out, SplitTile(16, 16, 1), longest=35, valid=int32(20))
        results.append(out)
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize(
    ("rows", "keys", "at_once", "wanted"),
    [
        (400, 530, 132, (32, 64, 9)),
        (400, 786, 132, (32, 128, 8)),
        (400, 1042, 132, (32, 128, 9)),
        (80, 746, 132, (16, 64, 12)),
        (80, 1258, 132, (32, 128, 10)),
        (400, 786, 20, (32, 128, 1)),
    ],
    ids=["one view", "two views", "three views", "short chunk", "and four views", "small GPU"],
)
def test_keys_are_split_for_as_many_programs_as_run_at_once(rows, keys, at_once, wanted):
    tile = SplitTile(32, 128, 16, 8, 2, meet=True).fitted(rows, keys, at_once)
    assert (tile.rows, tile.keys, tile.splits) == wanted


def test_splits_without_a_workspace_are_refused():
    q = Draw()(4, 32)
    with pytest.raises(ValueError, match="expected a workspace"):
        split_attention(q, q, q, q, SplitTile(splits=2))
