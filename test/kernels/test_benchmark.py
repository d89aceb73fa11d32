"""benchmarks/kernels.py: it runs, its launches are the network's, and no site is without one; benchmarks/tiles.py."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashrt_ros.kernels.linear import Rope, RowSums
from flashrt_ros.runtime.candidates import CANDIDATES, by_name, label
from flashrt_ros.runtime.fused import FusedOperators

from ..runtime.test_fused import CAMERAS, Run, random_weights, tiny
from .compare import DEVICE

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = ["--tiny", "--device", DEVICE.type]


@pytest.fixture(scope="module")
def benchmark():
    """A function that imports a module of benchmarks/, whose folder is in sys.path when its programs run."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == BENCHMARKS:
            del sys.modules[name]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # rows that do not count
def test_every_candidate_of_every_site_is_compared(benchmark, tmp_path, capsys):
    path = tmp_path / "kernels.json"
    assert benchmark("kernels").main([*TINY, "--output", str(path)]) == 0
    values = json.loads(path.read_text())
    assert values["machine"]["torch"] == torch.__version__
    assert [r["site"] for r in values["results"]] == list(CANDIDATES)
    for r in values["results"]:
        names = [c["candidate"] for c in r["candidates"]]
        assert names == list(by_name(r["site"]))[1:]
        assert r["launches"] % r["sets"] == 0
        assert r["bound_us"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + sum(map(len, CANDIDATES.values()))
    assert max(map(len, lines)) <= 80


def test_a_wrong_result_is_named_and_ends_with_an_error(benchmark, capsys, monkeypatch):
    kernels = benchmark("kernels")
    monkeypatch.setattr(kernels, "ERROR_BOUNDS", dict.fromkeys(kernels.ERROR_BOUNDS, -1.0))
    assert kernels.main([*TINY, "--quick", "--sites", "expert_step"]) == 1
    assert "expert_step, fused: expected an error of at most -1" in capsys.readouterr().err


def test_a_site_without_a_launch_is_refused(benchmark, monkeypatch):
    monkeypatch.setitem(CANDIDATES, "expert_new", (True,))
    with pytest.raises(ValueError, match=r"found none of \['expert_new'\].*kernel_sites.py"):
        benchmark("kernels").main([*TINY, "--sites", "expert_step"])


def test_a_device_that_cannot_be_timed_is_refused(benchmark, capsys, monkeypatch):
    kernels = benchmark("kernels")
    assert kernels.main(["--device", "cpu"]) == 2
    assert "device 'cpu': expected 'cuda', or --tiny" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.main([]) == 2
    assert "expected a GPU, found none" in capsys.readouterr().err


def described(x):
    """What a launch's cost depends on: shapes and types, and numbers as they are."""
    if isinstance(x, Tensor):
        return tuple(x.shape), x.dtype
    if isinstance(x, RowSums):
        return tuple(x.values.shape[:2])
    if isinstance(x, Rope):
        return described(x.queries), x.offset is None, x.start
    return x


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_products_are_those_of_the_network(benchmark, monkeypatch, family):
    module, config, tokens = benchmark("kernel_products"), tiny(family, depth=3), 40
    seen = {site: [] for site in CANDIDATES}

    def record(self, site, a, w, out, **options):
        arguments = {"a": a, "w": w, "out": out, **options}
        seen[site].append({name: described(x) for name, x in arguments.items()})

    monkeypatch.setattr(FusedOperators, "_linear", record)
    run = Run(FusedOperators, random_weights(config), config, tokens, tokens)
    for site in CANDIDATES:
        if not site.endswith("_launch"):  # an option of the GPU's
            run.operators.choose(site, list(by_name(site))[1])
    run(2)
    sizes = module.Sizes(config, 2, tokens, CAMERAS[0], DEVICE, torch.float32, cold_bytes=0)
    # Without gates and with plain norms, π0's expert differs; what it adds is its time MLP.
    products = module.products(sizes)
    for site in ["expert_time"] if family == "pi0" else products.keys() - {"expert_time"}:
        p = products[site]
        t = module.ProductTensors(p, sizes)
        tile = module.fitted(site, CANDIDATES[site][0], p, sizes)
        arguments = {"a": t.a, "w": t.w[0], "out": t.out, **t.options(tile, 0)}
        assert {name: described(x) for name, x in arguments.items()} in seen[site], site


def test_a_tile_is_read_as_it_is_written(benchmark):
    tiles = benchmark("tiles")
    for site in tiles.TILED:
        for choice in CANDIDATES[site]:
            assert tiles.tile_of(site, label(choice)) == choice
    for site, text in (
        ("expert_out", "64x16 w4 s4"),
        ("vision_attention", "64x64x64 w4 s3"),
        ("expert_out", "fast"),
    ):
        with pytest.raises(ValueError, match=f"tile '{text}' of {site}: expected one like"):
            tiles.tile_of(site, text)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # rows that do not count
def test_tiles_are_compared_in_their_stage(benchmark, monkeypatch, capsys):
    size = ["--size", "tiny", "--device", DEVICE.type, "--views", "1", "--tokens", "9"]
    short = ["--horizon", "4", "--steps", "1", "--rounds", "1"]
    tiles = ["16x16x32 w4 s2", "32x16x32/2 w4 s2 p"]
    monkeypatch.setattr(sys, "argv", ["tiles.py", "expert_down", *tiles, *size, *short])
    before = CANDIDATES["expert_down"]
    assert benchmark("tiles").main() == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0].strip("| ") for row in rows] == [label(before[0]), *tiles]
    assert all(float(row[3].strip(" |")) < 1e-2 for row in rows)
    assert CANDIDATES["expert_down"] == before
