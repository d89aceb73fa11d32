"""Linear layers against a plain one: tiles that fit and tiles that do not, every epilogue."""

from dataclasses import replace

import pytest
import torch

from flashrt_ros.kernels.gate_up import StayingTile, gate_up
from flashrt_ros.kernels.linear import (
    Rope,
    RowSums,
    Tile,
    Workspace,
    linear,
    linear_reference,
    workspace_size,
)

from .compare import DEVICE, POISON, Draw, error, poisoned

SMALL = Tile(32, 32, 32, 1, 4, 2)
TILES = [
    SMALL,
    Tile(16, 64, 32, 1, 4, 2, bulk=False),
    Tile(64, 16, 32, 3, 4, 2),
    Tile(32, 32, 64, 2, 4, 2, bulk=False),
]


def workspace(m, n, tile):
    partial, tickets = workspace_size(m, n, tile)
    if not partial:
        return None
    return Workspace(poisoned(partial), torch.zeros(tickets, dtype=torch.int32, device=DEVICE))


def row_sums(x, planes, capacity):
    """Sums as a producer of three column tiles leaves them."""
    values = torch.zeros(planes, 3, capacity, device=DEVICE)
    for t, part in enumerate(x.float().tensor_split(3, dim=1)):
        values[0, t, : len(x)] = part.square().sum(1)
        if planes == 2:
            values[1, t, : len(x)] = part.sum(1)
    return RowSums(values)


def both(a, w, tile, out, options, results):
    """Run the kernel and the reference on copies; pairs of results, and the row sums added up."""
    found = []
    for plain in (False, True):
        kept = {name: options[name].clone() for name in results if options.get(name) is not None}
        given = options | kept
        if "sums" in options:
            columns = -(-len(w) // tile.columns)
            given["sums"] = RowSums(poisoned(options["sums"], columns, len(a) + 3))
        y = out.clone() if out is not None else None
        if plain:
            linear_reference(a, w, y, **given)
        else:
            work = workspace(len(a), len(w), tile)
            linear(a, w, y, tile, workspace=work, **given)
            assert work is None or not work.tickets.any()  # ready for the next call
        found.append([y, *kept.values()])
        if "sums" in options:
            found[-1].append(given["sums"].values[:, :, : len(a)].sum(1))
    return zip(*found, strict=True)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", [(51, 72, 96), (1, 40, 64), (64, 64, 32)], ids=str)
def test_rows_columns_and_depths_that_no_tile_divides(shape, tile):
    m, n, k = shape
    draw = Draw()
    a, w = draw(m, k), draw(n, k, scale=k**-0.5)
    fitted = tile.fitted(m, n, k)
    for found, wanted in both(a, w, fitted, poisoned(m, n), {}, ()):
        assert error(found, wanted) < 1e-6


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("layer", [False, True], ids=["rms", "layer"])
def test_folded_norm_bias_and_activation(layer, tile):
    draw = Draw(1)
    a, w = draw(51, 96) + 0.3, draw(64, 96, scale=0.1)
    norm = row_sums(a, 2 if layer else 1, 53)
    options = {"norm": norm, "bias": draw(64), "colsum": w.sum(1) if layer else None}
    for activation, width in (("gelu", 64), ("geglu", 32), ("silu", 64)):
        given = options | {"activation": activation}
        for found, wanted in both(a, w, tile, poisoned(51, width), given, ()):
            assert error(found, wanted) < 1e-5


def test_folded_norm_is_the_norm():
    draw = Draw(2)
    x, w = draw(20, 48) + 0.5, draw(32, 48, scale=0.1)
    out = poisoned(20, 32)
    linear(x, w, out, SMALL, norm=row_sums(x, 2, 20), colsum=w.sum(1))
    wanted = torch.nn.functional.layer_norm(x, (48,), eps=1e-6) @ w.T
    assert error(out, wanted) < 1e-5
    linear(x, w, out, SMALL, norm=row_sums(x, 1, 20))
    wanted = torch.nn.functional.rms_norm(x, (48,), eps=1e-6) @ w.T
    assert error(out, wanted) < 1e-5


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_gate_residual_scaled_copy_and_sums_of_the_next_norm(tile):
    draw = Draw(3)
    a, w = draw(51, 96), draw(80, 96, scale=0.1)
    options = {"gate": draw(80), "total": draw(51, 80), "scale": draw(80), "sums": 1}

    class Both(dict):  # residual is total: the stream is updated in place
        def __or__(self, other):
            merged = dict.__or__(self, other)
            return Both(merged | {"residual": merged["total"]})

    for found, wanted in both(a, w, tile, poisoned(51, 80), Both(options), ("total",)):
        assert error(found, wanted) < 1e-5


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_residual_that_repeats_and_both_sums(tile):
    draw = Draw(4)
    a, w = draw(34, 64), draw(48, 64, scale=0.1)
    options = {"residual": draw(17, 48), "sums": 2, "bias": draw(48)}
    for found, wanted in both(a, w, tile, poisoned(34, 48), options, ()):
        assert error(found, wanted) < 1e-5


@pytest.mark.parametrize("with_queries", [True, False])
def test_rotary_embedding_writes_queries_keys_and_values_where_attention_reads(with_queries):
    d, m, heads = 32, 51, 2 if with_queries else 0
    draw = Draw(5)
    a, w = draw(m, 48), draw((heads + 2) * d, 48, scale=0.1)
    angle = draw(80, d // 2)
    written = []
    for plain in (False, True):
        keys, values = poisoned(80, d), poisoned(80, d)
        queries = poisoned(m, heads * d) if with_queries else None
        offset = torch.tensor([9], dtype=torch.int32, device=DEVICE)
        rope = Rope(torch.stack((angle.cos(), angle.sin())), keys, values, queries, offset, 3)
        options = {"activation": "rope", "rope": rope}
        if plain:
            linear_reference(a, w, None, **options)
        else:
            linear(a, w, None, Tile(32, 16, 32, 1, 4, 2), **options)
        written.append([t for t in (keys, values, queries) if t is not None])
    for found, wanted in zip(*written, strict=True):
        assert error(found, wanted) < 1e-6
        assert torch.equal(found == POISON, wanted == POISON)  # nothing else was touched


def test_rows_behind_the_valid_ones_stay_untouched():
    draw = Draw(6)
    a, w, out = draw(64, 32), draw(32, 32), poisoned(64, 32)
    valid = torch.tensor([20], dtype=torch.int32, device=DEVICE)
    skip = torch.tensor([16], dtype=torch.int32, device=DEVICE)
    linear(a, w, out, Tile(16, 32, 32, 1, 4, 2), valid=valid, base=5, skip=skip)
    assert (out[:16] == POISON).all()  # whole tiles before `skip`
    assert error(out[16:25], a[16:25] @ w.T) < 1e-6
    assert (out[25:] == POISON).all()


@pytest.mark.parametrize("tile", [StayingTile(32, 32, 32), StayingTile(64, 64, 32)], ids=str)
@pytest.mark.parametrize(("rows", "valid"), [(51, None), (51, 40), (1, 1), (96, 95)])
def test_programs_that_stay_for_several_tiles_give_what_others_give(rows, valid, tile):
    draw = Draw(9)
    a, w = draw(rows, 96), draw(144, 96, scale=0.1)
    norm, out, wanted = row_sums(a, 1, rows + 2), poisoned(rows, 72), poisoned(rows, 72)
    number = None
    if valid is not None:
        number = torch.tensor([valid - 1], dtype=torch.int32, device=DEVICE)
    gate_up(a, w, out, tile, norm=norm, valid=number, base=1)
    linear_reference(a, w, wanted, norm=norm, activation="geglu")
    count = rows if valid is None else valid
    assert error(out[:count], wanted[:count]) < 1e-5
    assert (out[count:] == POISON).all()


def test_split_sums_are_the_same_at_every_call():
    draw = Draw(7)
    a, w = draw(40, 256, dtype=torch.float16), draw(64, 256, dtype=torch.float16)
    tile = Tile(64, 16, 32, 4, 4, 2)
    work = workspace(40, 64, tile)
    results = []
    for _ in range(3):
        out = poisoned(40, 64, dtype=torch.float16)
        linear(a, w, out, tile, workspace=work)
        results.append(out)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_tile_that_cannot_work_is_refused():
    draw = Draw(8)
    a, w, cache = draw(8, 32), draw(64, 32), draw(16, 32)
    rope = Rope(draw(2, 16, 16), cache, cache)
    with pytest.raises(ValueError, match="divisor of head 32"):
        linear(a, w, None, Tile(16, 64, 32), activation="rope", rope=rope)
    with pytest.raises(ValueError, match="expected a workspace"):
        linear(a, w, poisoned(8, 64), Tile(16, 64, 16, 2))


def test_a_tile_of_very_few_rows_is_deeper():
    tile = Tile(64, 16, 128, 2, 4, 6)
    assert tile.fitted(50, 1024, 2048) == tile
    assert tile.fitted(10, 1024, 2048) == Tile(16, 16, 256, 2, 4, 4)
    assert replace(tile, bulk=False).fitted(10, 1024, 2048) == replace(tile, rows=16, bulk=False)


def test_few_programs_take_half_the_rows_each():
    tile = Tile(128, 64, 64, 1, 4, 6)
    assert tile.spread(256, 1152, 132) == replace(tile, rows=64)
    assert tile.spread(512, 1152, 132) == tile  # 144 would not run at once
    assert replace(tile, rows=64).spread(256, 1152, 1000) == replace(tile, rows=64)


@pytest.mark.skipif(
    DEVICE.type == "cpu", reason="a CPU's product may round by a row's place in a tile"
)
def test_half_the_rows_give_the_same_bits():
    draw = Draw(10)
    a, w = draw(256, 512, dtype=torch.bfloat16), draw(192, 512, scale=0.1, dtype=torch.bfloat16)
    whole = Tile(128, 64, 64, 1, 4, 4)
    results = []
    for tile in (whole, whole.spread(256, 192, 132)):
        out, sums = poisoned(256, 192, dtype=torch.bfloat16), RowSums(poisoned(2, 3, 256))
        linear(a, w, out, tile, sums=sums)
        results.append((out, sums.values))
    assert tile.rows == 64
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
