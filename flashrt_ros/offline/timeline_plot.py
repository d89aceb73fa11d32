"""A few seconds of a run as a picture: where each observation was on its way, and how old it was when it acted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.offline.run_log import Run

_COLOURS = {
    "input": "#9ecae1",
    "queue": "#fdd0a2",
    "infer": "#31a354",
    "output": "#756bb1",
}


def plot_timeline(run: Run, path: Path, seconds: float = 1.5) -> None:
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
    zero_ns = int(captures[0])
    begin_s = max(0.0, (captures[-1] - zero_ns) / 2e9 - seconds / 2)
    figure, (ways, ages) = plt.subplots(
        2, 1, figsize=(11, 6.5), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    _draw_ways(ways, run, zero_ns, begin_s, seconds)
    _draw_ages(ages, run, zero_ns, begin_s, seconds)
    ages.set_xlim(begin_s, begin_s + seconds)
    ages.set_xlabel("time since the first capture [s]")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_ways(axes: Any, run: Run, zero_ns: int, begin_s: float, seconds: float) -> None:
    """A bar from capture to publication for each chunk, dots where its actions were applied."""
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
        for (name, colour), start, end in zip(_COLOURS.items(), edges, edges[1:], strict=False):
            axes.barh(
                row,
                (end - start) / 1e9,
                left=(start - zero_ns) / 1e9,
                height=0.8,
                color=colour,
                label=name if row == 0 else None,
            )
        mine = apply_s[run.column("chunk_id") == chunk.chunk_id]
        label = "action applied" if row == 0 else None
        axes.plot(mine, np.full(len(mine), row), ".", color="black", markersize=4, label=label)
    axes.legend(loc="upper left", ncols=5, fontsize=9)
    axes.set_ylabel("chunk")
    axes.set_title("From capture to action")


def _draw_ages(axes: Any, run: Run, zero_ns: int, begin_s: float, seconds: float) -> None:
    """The age of each applied action, with percentiles of the whole run."""
    apply_s = (run.column("apply_ns") - zero_ns) / 1e9
    age_ms = run.age_ns / 1e6
    near = (apply_s >= begin_s) & (apply_s <= begin_s + seconds)
    axes.plot(apply_s[near], age_ms[near], ".", color="#d94801")
    if len(age_ms):
        for q in (50, 99):
            value = np.percentile(age_ms, q, method="inverted_cdf")
            axes.axhline(value, color="grey", linewidth=0.8, linestyle="--")
            text = f"P{q} {value:.1f} ms"
            axes.annotate(text, (begin_s, value), va="bottom", fontsize=9, color="dimgrey")
    axes.set_ylim(0, 1.2 * max(age_ms.max(initial=1.0), 1.0))
    axes.set_ylabel("age when applied [ms]")
