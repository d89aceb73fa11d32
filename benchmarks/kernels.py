"""How long does each kernel take by itself, beside its plain reference and its bound?

At the sizes of a call of π0.5, 2 views, 200 valid prompt tokens and 50 actions: for each site of `CANDIDATES` one of
its launches, through every candidate and through the plain reference (library products and attention). A CUDA graph
holds many launches, which rotate over more weights than the L2 cache holds (kernel_products.py says what else is as
in the network); those of prefix and expert start while their producer still runs, as there.

- `us`: time of a replay over its launches, so with the gap to the next one; `reference_us`: of the reference;
- `bound_us`: operations at 763 TFLOP/s or bytes from memory at 4.27 TB/s, whichever takes longer;
- `error`: relative L2 error to the reference, the largest of a launch's results, after the last replay.

Ends with 1 where an error is beyond the bound that selection has for a site. The rows of expert_launch and
prefix_launch are a product of theirs, the reference the same kernel in plain stream order; expert_time is π0's.

    PYTHONPATH=. python benchmarks/kernels.py --output kernels.json
    TRITON_INTERPRET=1 PYTHONPATH=. python benchmarks/kernels.py --tiny --device cpu    # errors only

In a bare checkout the package finds its kernels once it is built (`make build && source build/setup.bash`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from common import PROMPT_TOKENS, TB_PER_S, TFLOPS, markdown, network, report, summary, write
from kernel_products import NOT_WRITTEN, Sizes, Work
from kernel_sites import check_sites, site_work
from torch import Tensor
from triton.runtime.errors import OutOfResources

from flashrt_ros.kernels.launch import Launch
from flashrt_ros.runtime.candidates import CANDIDATES, Choice, by_name
from flashrt_ros.runtime.selection import relative_l2

FAMILY, VIEWS = "pi05", 2
COLD_BYTES = 120_000_000  # or twice the GPU's L2 cache, if that is more
LAUNCHES = 180  # of a graph, at least: 18 layers, 10 steps
WARM_UP_REPLAYS = 3
ERROR_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # as in FusedOperators.sites


@dataclass(frozen=True)
class Effort:
    """How much is launched: `launches` in a graph, at least, and `replays` of it that are timed."""

    launches: int
    replays: int


def check_device(device: torch.device, tiny: bool) -> None:
    """Raise ValueError for a device that cannot do what is asked, and say what can."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(
                "device 'cuda': expected a GPU, found none: run where there is one, or, for errors without times, "
                "TRITON_INTERPRET=1 python benchmarks/kernels.py --tiny --device cpu"
            )
        if interpreted:
            raise ValueError(
                "device 'cuda': expected compiled kernels, found TRITON_INTERPRET=1 in the environment: unset it"
            )
    elif not (tiny and interpreted):
        raise ValueError(
            f"device {str(device)!r}: expected 'cuda', or --tiny with TRITON_INTERPRET=1 in the environment: elsewhere "
            "kernels run in Triton's interpreter only, where times mean nothing"
        )


def sizes_of(device: torch.device, tiny: bool) -> Sizes:
    """The call of a full π0.5, or one of the same kind that the interpreter runs in seconds."""
    cuda = device.type == "cuda"
    cold = 0 if tiny else COLD_BYTES
    if cuda and not tiny:
        cold = max(cold, 2 * torch.cuda.get_device_properties(device).L2_cache_size)
    return Sizes(
        config=network("tiny" if tiny else "full", FAMILY),
        views=VIEWS,
        tokens=40 if tiny else PROMPT_TOKENS[FAMILY],
        picture=(48, 64) if tiny else (480, 640),
        device=device,
        dtype=torch.bfloat16 if cuda else torch.float32,
        cold_bytes=cold,
    )


def launches_of(work: Work, effort: Effort) -> int:
    """Launches of a graph: each set as often as the others."""
    return work.sets * -(-effort.launches // work.sets)


def launch_all(site: str, work: Work, choice: Choice | None, s: Sizes, effort: Effort) -> None:
    """What a graph holds; the first launch follows nothing that it may overlap."""
    chained = site.startswith(("expert", "prefix")) and s.device.type == "cuda"
    follow = Launch("late") if chained else Launch()
    for i in range(launches_of(work, effort)):
        work.launch(choice, i % work.sets, follow if i else Launch())


def replay_times(graph: torch.cuda.CUDAGraph, replays: int) -> list[float]:
    """GPU time of each replay [µs]."""
    for _ in range(WARM_UP_REPLAYS):
        graph.replay()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def measure(
    site: str, work: Work, choice: Choice | None, s: Sizes, effort: Effort
) -> tuple[dict[str, float] | None, list[Tensor]]:
    """Time of a launch [µs], None on a CPU, and copies of what the last one left."""
    if s.device.type == "cuda":
        launch_all(site, work, choice, s, effort)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch_all(site, work, choice, s, effort)
    for output in work.outputs:
        output.fill_(NOT_WRITTEN)
    if s.device.type == "cuda":
        launches = launches_of(work, effort)
        times = summary([t / launches for t in replay_times(graph, effort.replays)])
    else:
        launch_all(site, work, choice, s, effort)
        times = None
    return times, [x.clone() for x in work.results(choice)]


def measure_site(site: str, s: Sizes, effort: Effort, first_only: bool) -> dict[str, Any]:
    """A site's reference and candidates."""
    work = site_work(site, s)
    bounds = {"operations": work.operations / TFLOPS / 1e6, "bytes": work.nbytes / TB_PER_S / 1e6}
    progress(f"{site}: reference")
    reference, wanted = measure(site, work, None, s, effort)
    candidates: list[dict[str, Any]] = []
    names = {name: choice for name, choice in by_name(site).items() if choice is not None}
    for name in list(names)[: 1 if first_only else None]:
        progress(f"{site}: {name}")
        row: dict[str, Any] = {"candidate": name, "us": None, "error": None}
        candidates.append(row)
        try:
            row["us"], found = measure(site, work, names[name], s, effort)
        except OutOfResources as error:  # a tile of another GPU
            row["does_not_fit"] = str(error)
            continue
        row["error"] = max(map(relative_l2, found, wanted))
    return {
        "site": site,
        "sets": work.sets,
        "launches": launches_of(work, effort),
        "operations": work.operations,
        "bytes": work.nbytes,
        "bound_us": round(max(bounds.values()), 4),
        "bound_by": max(bounds, key=lambda name: bounds[name]),
        "error_bound": ERROR_BOUNDS[s.dtype],
        "reference_us": reference,
        "candidates": candidates,
    }


def progress(text: str) -> None:
    """Say on stderr what is under way."""
    print(f"{text} …", file=sys.stderr, flush=True)


def table(results: Sequence[dict[str, Any]]) -> str:
    """Markdown, at most 80 columns wide; times in µs, medians."""

    def us(times: dict[str, float] | None) -> str:
        return "-" if times is None else f"{times['median']:.2f}"

    rows = []
    for r in results:
        for c in r["candidates"]:
            error = "no fit" if c["error"] is None else f"{c['error']:.1e}"
            limits = (us(r["reference_us"]), f"{r['bound_us']:.2f}")
            rows.append((r["site"], c["candidate"], us(c["us"]), *limits, error))
    return markdown(("site", "candidate", "us", "reference us", "bound us", "error"), rows)


def too_wrong(results: Sequence[dict[str, Any]]) -> list[str]:
    """Candidates beyond their site's bound."""
    return [
        f"{r['site']}, {c['candidate']}: expected an error of at most {r['error_bound']:.0e}, found {c['error']:.1e}"
        for r in results
        for c in r["candidates"]
        if c["error"] is not None and not c["error"] <= r["error_bound"]
    ]


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", nargs="+", choices=list(CANDIDATES), metavar="SITE",
                        help=f"default: all of {', '.join(CANDIDATES)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="first candidates only, 5 replays")
    parser.add_argument("--tiny", action="store_true", help="a tiny network, to test this program")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path, help="JSON file; a table is printed anyway")
    return parser.parse_args(given)


@torch.no_grad()
def main(given: Sequence[str] | None = None) -> int:
    """Measure every site, written as it goes."""
    args = arguments(given)
    device = torch.device(args.device)
    try:
        check_device(device, args.tiny)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    s = sizes_of(device, args.tiny)
    check_sites(s)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    effort = Effort(1 if args.tiny else LAUNCHES, 5 if args.quick else 30)
    call = {"model": s.config.to_json(), "views": s.views, "tokens": s.tokens,
            "dtype": str(s.dtype).removeprefix("torch."), "cold_bytes": s.cold_bytes, **asdict(effort)}  # fmt: skip
    results: list[dict[str, Any]] = []
    for site in args.sites or CANDIDATES:
        results.append(measure_site(site, s, effort, args.quick))
        write(args.output, report("kernels", args, call=call, results=results))
    print(table(results))
    wrong = too_wrong(results)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
