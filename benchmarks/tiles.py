"""How much faster does a stage of the network get with another tile at one site?

A kernel is tuned where it runs: alone it finds other data in the cache, and another kernel before it, than in the
network. The stage that the site is in is captured once with the first candidate of every site, and once with each tile
at that site; replays alternate, so that a GPU that slows down slows all of them. For each tile: median time of the
stage, median of the pairwise differences to the first candidate, and the relative L2 error of the stage's results to
the first candidate's. A tile that is faster here belongs into runtime/candidates.py, where selection judges it.

Tiles are written as verdicts name them, `ROWSxCOLUMNSxDEPTH/SPLITS wWARPS sSTAGES`, attention without DEPTH, and with
` p` for loads by pointers, ` m` for programs that meet, ` +` for programs that stay; or `library`.

    PYTHONPATH=. python benchmarks/tiles.py expert_out "64x16x256/2 w4 s4" "64x32x256/4 w4 s4" --views 2
    TRITON_INTERPRET=1 PYTHONPATH=. python benchmarks/tiles.py prefix_qkv "16x16x32 w4 s2" --size tiny --device cpu

In a bare checkout the package finds its kernels once it is built (`make build && source build/setup.bash`).
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from dataclasses import replace

import torch
from common import PROMPT_TOKENS, SIZES, markdown, milliseconds, network
from latency import Call, Case, random_weights
from torch import Tensor

from flashrt_ros.kernels.attention import AttentionTile
from flashrt_ros.kernels.gate_up import StayingTile
from flashrt_ros.kernels.linear import Tile
from flashrt_ros.kernels.split_attention import SplitTile
from flashrt_ros.runtime.candidates import CANDIDATES, Choice, Library, label
from flashrt_ros.runtime.selection import relative_l2

STAGES = {
    "vision": ("vision", "rows"),
    "prefix": ("prefix", "keys"),
    "expert": ("denoise", "actions"),
}
"""By the first part of a site's name: its stage, and what that leaves."""
TILED = sorted(s for s, choices in CANDIDATES.items() if hasattr(choices[-1], "warps"))
_TILE = re.compile(r"(\d+)x(\d+)(?:x(\d+))?(?:/(\d+))? w(\d+) s(\d+)((?: [pm+])*)")


def tile_of(site: str, text: str) -> Choice:
    """The candidate that `label` calls `text`.

    Raises:
        ValueError: it is none for this site.
    """
    if text == "library":
        return Library()
    kind = type(CANDIDATES[site][-1])
    found = _TILE.fullmatch(text)
    if found is None or (found[3] is None) is (kind is Tile):
        shape = "64x32x128/2 w4 s5" if kind is Tile else "64x64 w4 s3"
        raise ValueError(f"tile {text!r} of {site}: expected one like {shape!r}, or 'library'")
    rows, columns, depth, splits, warps, stages = (int(x or 1) for x in found.groups()[:6])
    bulk, meet, staying = (mark in found[7] for mark in "pm+")
    bulk = not bulk
    if kind is AttentionTile:
        return AttentionTile(rows, columns, warps, stages, bulk)
    if kind is SplitTile:
        return SplitTile(rows, columns, splits, warps, stages, bulk, meet)
    made = StayingTile if staying else Tile
    return made(rows, columns, depth, splits, warps, stages, bulk)


def run(call: Call, stage: str, key: str) -> float:
    """Milliseconds of one replay of a captured stage; on a CPU, of a run with the choices as they are."""
    if call.weights.device.type != "cuda":
        return milliseconds(call.bodies()[stage])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with call.plan.stream():
        begin.record()
        call.plan.launch(key, call.bodies()[stage])
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


@torch.no_grad()
def compare(call: Call, site: str, tiles: list[Choice], rounds: int) -> list[tuple[str, ...]]:
    """A row for the first candidate and for each tile that fits this device."""
    known = CANDIDATES[site]
    CANDIDATES[site] = (*known, *(tile for tile in tiles if tile not in known))
    try:
        return _compare(call, site, [label(choice) for choice in (known[0], *tiles)], rounds)
    finally:
        CANDIDATES[site] = known


def _compare(call: Call, site: str, names: list[str], rounds: int) -> list[tuple[str, ...]]:
    stage, written = STAGES[site.partition("_")[0]]
    for name, body in call.bodies().items():
        call.plan.launch(name, body)
    results: dict[str, Tensor] = {}
    for name in names:
        print(f"{site}: {name} …", file=sys.stderr, flush=True)
        call.operators.choose(site, name)
        try:
            call.plan.build(name, call.bodies()[stage])
            run(call, stage, name)
        except Exception as error:  # of Triton's own types, for a tile that needs too much memory
            if name == names[0]:
                raise
            print(f"{site}: {name}: {error}", file=sys.stderr)
            continue
        call.plan.wait()
        results[name] = call.buffers[written].float().clone()
    times: dict[str, list[float]] = {name: [] for name in results}
    for _ in range(rounds):
        for name, taken in times.items():
            call.operators.choose(site, name)
            taken.append(run(call, stage, name))
    return [_row(name, times, results, names[0]) for name in results]


def _row(
    name: str, times: dict[str, list[float]], results: dict[str, Tensor], first: str
) -> tuple[str, ...]:
    slower = statistics.median(a - b for a, b in zip(times[name], times[first], strict=True))
    error = relative_l2(results[name], results[first])
    return name, f"{statistics.median(times[name]):.3f}", f"{slower * 1e3:+.1f}", f"{error:.1e}"


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", choices=TILED)
    parser.add_argument("tiles", nargs="+", metavar="TILE")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--family", choices=list(PROMPT_TOKENS), default="pi05")
    parser.add_argument("--views", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="valid prompt tokens; default: all")
    parser.add_argument("--horizon", type=int, default=50)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    try:
        tiles = [tile_of(args.site, text) for text in args.tiles]
    except ValueError as error:
        parser.error(str(error))
    precision = "bfloat16" if args.device == "cuda" else "float32"
    args.picture, args.runtime = "640x480", "fused"
    tokens = args.tokens or PROMPT_TOKENS[args.family]
    case = Case(args.family, args.views, tokens, args.horizon, args.steps)
    config = replace(network(args.size, args.family), horizon=args.horizon)
    call = Call(random_weights(config, torch.device(args.device), precision), config, case, args)
    rows = compare(call, args.site, tiles, args.rounds)
    stage = STAGES[args.site.partition("_")[0]][0]
    print(markdown((args.site, f"{stage} ms", "difference us", "error"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
