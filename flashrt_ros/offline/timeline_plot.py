"""A few seconds of a run as a picture: where each observation was on its way, and how old it was when it acted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashrt_ros.offline.run_log import Run

_COLOURS = {
    "input": "#9ecae1",
    "queue": "#fdd0a2",
    "infer": "#31a354",
    "output": "#756bb1",
    "wait": "#d9d9d9",
}


def plot_timeline(run: Run, path: Path, seconds: float = 2.0) -> None:
    """Write a PNG of the middle `seconds` of a run.

    Above: a bar for each chunk from capture to publication, in the colours of the terms, with dots where its actions
    were applied. Below: the age of each applied action.

    Raises:
        ValueError: the run has no chunk.
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    if not run.chunks:
        raise ValueError(f"{run.path}: there is no chunk to draw")
    captures = np.array([chunk.timeline.capture_ns for chunk in run.chunks])
    zero_ns = captures[0]
    middle_s = (captures[-1] - zero_ns) / 2e9
    begin_s = max(0.0, middle_s - seconds / 2)
    figure, (ways, ages) = plt.subplots(
        2, 1, figsize=(11, 6.5), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    apply_s = (run.column("apply_ns") - zero_ns) / 1e9
    shown = [
        chunk
        for chunk in run.chunks
        if begin_s <= (chunk.timeline.capture_ns - zero_ns) / 1e9 <= begin_s + seconds
    ]
    for row, chunk in enumerate(shown):
        stamps = chunk.timeline
        edges = (
            stamps.capture_ns,
            stamps.receive_ns,
            stamps.infer_start_ns,
            stamps.infer_end_ns,
            stamps.publish_ns,
        )
        for name, start, end in zip(_COLOURS, edges, edges[1:], strict=False):
            ways.barh(
                row,
                (end - start) / 1e9,
                left=(start - zero_ns) / 1e9,
                height=0.8,
                color=_COLOURS[name],
            )
        mine = apply_s[run.column("chunk_id") == chunk.chunk_id]
        ways.plot(mine, np.full(len(mine), row), ".", color="black", markersize=4)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=_COLOURS[n])
        for n in ("input", "queue", "infer", "output")
    ]
    dots = plt.Line2D([], [], color="black", marker=".", linestyle="")
    ways.legend(
        [*handles, dots],
        ["input", "queue", "infer", "output", "action applied"],
        loc="upper left",
        ncols=5,
        fontsize=9,
    )
    ways.set_ylabel("chunk")
    ways.set_title("From capture to action")
    age_ms = run.age_ns / 1e6
    near = (apply_s >= begin_s) & (apply_s <= begin_s + seconds)
    ages.plot(apply_s[near], age_ms[near], ".", color="#d94801")
    if len(age_ms):
        p50, p99 = np.percentile(age_ms, [50, 99])
        for value, name in ((p50, "P50"), (p99, "P99")):
            ages.axhline(value, color="grey", linewidth=0.8, linestyle="--")
            ages.annotate(
                f"{name} {value:.1f} ms", (begin_s, value), va="bottom", fontsize=9, color="dimgrey"
            )
    ages.set_ylim(bottom=0)
    ages.set_xlim(begin_s, begin_s + seconds)
    ages.set_ylabel("age when applied [ms]")
    ages.set_xlabel("time since the first capture [s]")
    figure.savefig(path, dpi=110)
    plt.close(figure)
