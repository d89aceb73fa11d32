"""The pictures of a report, each drawn once for PNG and for the page (SVG whose colours the page sets)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.observation.timeline import TERMS
from flashrt_ros.offline.run_log import Run

COLOURS = {
    "ink": "#1c2733",
    "muted": "#5b6874",
    "line": "#d9dfe5",
    "input": "#2f7fc1",
    "queue": "#e09f1f",
    "infer": "#0d8a66",
    "output": "#b53d84",
    "wait": "#8b98b0",
    "run0": "#2463a8",
    "run1": "#c8561b",
    "run2": "#6a4fb0",
    "run3": "#1f8a83",
    "warn": "#b7791e",
    "error": "#c22f2f",
}
"""Colours of the light theme by the names of the page's CSS variables; all differ, so that each can be found again."""

_MEANINGS = {
    "input": "frame on its way",
    "queue": "in the queue",
    "infer": "inference",
    "output": "publication",
    "wait": "wait for its time",
}
_STAMPS = ("capture_ns", "receive_ns", "infer_start_ns", "infer_end_ns", "publish_ns")
_POINTS_PER_INCH = 72
_WIDE, _NARROW = 900, 350
"""Width of a picture on a screen and on a phone, in points."""
_PNG_DPI = 160
_MIN_SUBLANES, _MAX_SUBLANES = 3, 8
_STRIP_NS = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """A picture as files."""

    name: str
    title: str
    caption: str
    svgs: str
    """Two `svg` elements, of classes wide and narrow, whose colours are CSS variables; hidden from screen readers,
    which read the caption."""
    png: bytes
    """On a white ground."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a report."""

    name: str
    """Name of the PNG, without its ending."""
    title: str
    caption: str
    draw: Callable[[Any, bool], None]
    """Draws on a matplotlib Figure; with True for the width of a phone."""
    height: int
    """In points, at both widths."""

    def render(self) -> Rendered:
        """Draw it at both widths."""
        from matplotlib import rc_context

        wide, png, narrow = io.StringIO(), io.BytesIO(), io.StringIO()
        svg = {"format": "svg", "transparent": True, "metadata": {"Date": None}}
        # Ticks are made while a figure is saved, so the style must hold until then.
        with rc_context(_style(13.0, f"{self.name}-wide")):
            figure = self._figure(_WIDE, narrow=False)
            figure.savefig(wide, **svg)
            # Laid out once is enough.
            figure.set_layout_engine("none")
            figure.savefig(png, format="png", dpi=_PNG_DPI, facecolor="white")
        with rc_context(_style(12.0, f"{self.name}-narrow")):
            self._figure(_NARROW, narrow=True).savefig(narrow, **svg)
        svgs = _for_page(wide.getvalue(), "wide") + _for_page(narrow.getvalue(), "narrow")
        return Rendered(self.name, self.title, self.caption, svgs, png.getvalue())

    def _figure(self, width: int, *, narrow: bool) -> Any:
        from matplotlib.figure import Figure

        size = (width / _POINTS_PER_INCH, self.height / _POINTS_PER_INCH)
        figure = Figure(figsize=size, layout="constrained")
        self.draw(figure, narrow)
        return figure


def _style(size: float, salt: str) -> Any:
    return {
        # Text stays text, and the ids within one page differ.
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "font.size": size,
        "font.family": ["DejaVu Sans"],
        "axes.titlesize": size,
        "axes.labelsize": size,
        "xtick.labelsize": size - 1,
        "ytick.labelsize": size - 1,
        "legend.fontsize": size - 1,
        "legend.frameon": False,
        "text.color": COLOURS["ink"],
        "axes.labelcolor": COLOURS["muted"],
        "axes.edgecolor": COLOURS["line"],
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": COLOURS["line"],
        "grid.linewidth": 0.7,
        "xtick.color": COLOURS["line"],
        "ytick.color": COLOURS["line"],
        "xtick.labelcolor": COLOURS["muted"],
        "ytick.labelcolor": COLOURS["muted"],
    }


def _for_page(svg: str, kind: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = re.sub(
        r"<svg[^>]*>",
        f'<svg class="{kind}" {box.group()} aria-hidden="true" focusable="false">',
        svg,
        count=1,
    )
    svg = re.sub(r"font: ([\d.]+px) [^;\"]+", r"font: \1 var(--font)", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


# ---------------------------------------------------------------- what is drawn


def run_colour(number: int) -> str:
    """Colour of a run by its place in the report."""
    return COLOURS[f"run{number % 4}"]


def draw_terms(
    figure: Any, narrow: bool, names: Sequence[str], summaries: Sequence[Mapping[str, Any]]
) -> None:
    """A bar for each run: mean of each term, one after the other. Means add up; percentiles would not."""
    axes = figure.subplots()
    for row, summary in enumerate(summaries):
        left = 0.0
        for term in TERMS:
            mean_ms = summary["terms"][term]["mean_ms"]
            axes.barh(
                row,
                mean_ms,
                left=left,
                height=0.62,
                color=COLOURS[term],
                label=term if row == 0 else None,
            )
            left += mean_ms
        axes.annotate(
            f"{left:.1f} ms", (left, row), xytext=(6, 0), textcoords="offset points", va="center"
        )
    widest = max((summary["age"]["mean_ms"] for summary in summaries), default=0.0)
    axes.set_xlim(0, max(widest, 1e-3) * (1.22 if narrow else 1.1))
    axes.set_ylim(len(summaries) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("mean age when applied [ms]")
    figure.legend(loc="outside upper left", ncols=3 if narrow else 5, handlelength=1.0)


def draw_histogram(figure: Any, narrow: bool, names: Sequence[str], runs: Sequence[Run]) -> None:
    """Share of the actions by age; percentiles of a single run, thresholds where the log has them."""
    axes = figure.subplots()
    ages_ms = [run.age_ns / 1e6 for run in runs]
    every = np.concatenate(ages_ms)
    low, high = float(every.min()), float(every.max())
    # A rare age far out would squeeze all others into one bar: what is beyond counts in the last one.
    cut = float(np.percentile(every, 99.9))
    top = min(high, low + 1.5 * (cut - low)) if cut > low else high
    edges = np.linspace(low, max(top, low + 0.1), 41 if narrow else 81)
    for number, (name, values) in enumerate(zip(names, ages_ms, strict=True)):
        counts, _ = np.histogram(np.minimum(values, edges[-1]), edges)
        share = 100 * counts / max(len(values), 1)
        alone = len(runs) == 1
        axes.stairs(share, edges, fill=True, color=run_colour(number), alpha=0.85 if alone else 0.3)
        axes.stairs(share, edges, color=run_colour(number), linewidth=1.4, label=name)
    if len(runs) == 1:
        _mark_percentiles(axes, ages_ms[0], narrow)
    else:
        figure.legend(loc="outside upper left", ncols=1 if narrow else len(runs))
    for row, name in enumerate(("warn", "error")):
        limit_ms = runs[0].settings.get(f"{name}_age_ms")
        if limit_ms is not None and edges[0] <= limit_ms <= edges[-1]:
            _mark(axes, limit_ms, f"{name} {limit_ms:g}", 3 + row, COLOURS[name], narrow, "-")
    beyond = int(sum((values > edges[-1]).sum() for values in ages_ms))
    note = f" (last bar: {beyond} older ones, up to {high:.0f} ms)" if beyond else ""
    axes.set_xlabel(f"age when applied [ms]{note}")
    axes.set_ylabel("actions [%]")
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.16)


def _mark_percentiles(axes: Any, values_ms: np.ndarray, narrow: bool) -> None:
    for row, q in enumerate((50, 95, 99)):
        value = float(np.percentile(values_ms, q, method="inverted_cdf"))
        left = narrow and q > 50
        _mark(axes, value, f"P{q} {value:.1f}", row, COLOURS["ink"], left, (0, (4, 3)))


def _mark(
    axes: Any, value: float, text: str, row: int, colour: str, left: bool, style: Any
) -> None:
    """A line with its name, in a row of its own so that names of close lines do not meet."""
    axes.axvline(value, color=colour, linewidth=0.9, linestyle=style)
    axes.annotate(
        text,
        (value, 1.0 - 0.075 * row),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if left else 4, -2),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        color=colour,
    )


def draw_by_index(
    figure: Any, narrow: bool, names: Sequence[str], summaries: Sequence[Mapping[str, Any]]
) -> None:
    """P50 and P95 of the age by index in the chunk, and how many actions each index stands for."""
    ages, counts = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    width = 0.8 / len(summaries)
    for number, (name, summary) in enumerate(zip(names, summaries, strict=True)):
        rows, colour = summary["by_index"], run_colour(number)
        index = np.array([row["index"] for row in rows])
        p50 = [row["p50_ms"] for row in rows]
        p95 = [row["p95_ms"] for row in rows]
        prefix = f"{name}: " if len(names) > 1 else ""
        ages.plot(index, p50, "o-", color=colour, markersize=4, label=f"{prefix}P50")
        ages.plot(index, p95, "^:", color=colour, markersize=4, label=f"{prefix}P95")
        shift = (number - (len(summaries) - 1) / 2) * width
        counts.bar(index + shift, [row["actions"] for row in rows], width, color=colour)
    ages.margins(y=0.1)
    ages.set_ylim(bottom=0)
    ages.set_ylabel("age [ms]")
    _legend(figure, narrow, len(names))
    counts.set_ylabel("actions")
    counts.set_xlabel("index of the action in its chunk")
    counts.xaxis.get_major_locator().set_params(integer=True)
    counts.yaxis.get_major_locator().set_params(nbins=2, integer=True)
    counts.grid(axis="x", visible=False)


_JOINT_COLOURS = ("run0", "run1", "infer", "output", "queue", "run2", "wait", "run3")


def draw_action_error(figure: Any, narrow: bool, error: Mapping[str, Any]) -> None:
    """Mean absolute error of each joint by index in the chunk; axes of their own for each unit."""
    joints = error["per_joint"]
    units = list(dict.fromkeys(row["unit"] for row in joints.values()))
    every = figure.subplots(len(units), 1, sharex=True, squeeze=False)[:, 0]
    for at, (joint, row) in enumerate(joints.items()):
        axes = every[units.index(row["unit"])]
        mae = np.array(error["by_horizon_index"][joint]["mae"], dtype=np.float64)
        style = "-" if at < len(_JOINT_COLOURS) else "--"
        colour = COLOURS[_JOINT_COLOURS[at % len(_JOINT_COLOURS)]]
        axes.plot(np.arange(len(mae)), mae, style, color=colour, linewidth=1.5, label=joint)
    for axes, unit in zip(every, units, strict=True):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"MAE [{unit}]")
    every[-1].set_xlabel("index of the action in its chunk")
    every[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside upper left", ncols=2 if narrow else 4)


def draw_over_time(figure: Any, narrow: bool, names: Sequence[str], runs: Sequence[Run]) -> None:
    """Median and largest age in each of up to 120 pieces of the run."""
    axes = figure.subplots()
    for number, (name, run) in enumerate(zip(names, runs, strict=True)):
        times, median, largest = _over_time(run, 60 if narrow else 120)
        prefix = f"{name}: " if len(names) > 1 else ""
        colour = run_colour(number)
        axes.plot(times, median, color=colour, linewidth=1.6, label=f"{prefix}P50")
        axes.plot(times, largest, color=colour, linewidth=1.0, linestyle=":", label=f"{prefix}max")
    axes.margins(x=0, y=0.1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time since the first capture [s]")
    axes.set_ylabel("age [ms]")
    _legend(figure, narrow, len(names))


def _legend(figure: Any, narrow: bool, runs: int) -> None:
    """Above the axes, where no line is; two entries for each run."""
    figure.legend(loc="outside upper left", ncols=2 if narrow else 2 * runs)


def _over_time(run: Run, pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Middle of each piece [s], its median age and largest age [ms]; pieces without an action are gaps (NaN)."""
    since_ns = run.ages["apply_ns"] - zero_ns(run)
    first, last = int(since_ns.min()), int(since_ns.max())
    pieces = max(1, min(pieces, len(since_ns) // 5))
    piece = np.minimum((since_ns - first) * pieces // max(last - first, 1), pieces - 1)
    order = np.argsort(piece, kind="stable")
    parts = np.split(run.age_ns[order] / 1e6, np.searchsorted(piece[order], range(1, pieces)))
    middles = (first + (np.arange(pieces) + 0.5) * (last - first) / pieces) / 1e9
    median = np.array([np.median(part) if len(part) else np.nan for part in parts])
    largest = np.array([part.max() if len(part) else np.nan for part in parts])
    return middles, median, largest


def zero_ns(run: Run) -> int:
    """Where a run's time begins: its first capture."""
    return int(run.chunks["capture_ns"][0])


def draw_timeline(figure: Any, narrow: bool, run: Run) -> None:
    """A few seconds from the middle of a run: the age of what the robot acts on, and a part of it enlarged."""
    strip, zoom = figure.subplots(2, 1, height_ratios=(2, 3))
    capture_ns = run.chunks["capture_ns"]
    middle_ns = int(run.ages["apply_ns"][len(run.ages) // 2])
    period_ns = float(np.median(np.diff(capture_ns))) if len(capture_ns) > 1 else 1e9
    shown_ns = max(int((4 if narrow else 8) * period_ns), int(1.6 * np.median(run.age_ns)))
    begin_ns = middle_ns - shown_ns // 2
    strip_ns = max(_STRIP_NS // (2 if narrow else 1), 3 * shown_ns)
    _draw_ages(strip, run, begin_ns + shown_ns // 2, strip_ns, narrow)
    zero = zero_ns(run)
    edges = ((begin_ns - zero) / 1e9, (begin_ns + shown_ns - zero) / 1e9)
    strip.axvspan(*edges, color=COLOURS["run0"], alpha=0.16, linewidth=0)
    _draw_lanes(zoom, run, begin_ns, begin_ns + shown_ns, narrow)
    zoom.set_xlim(0, shown_ns / 1e6)
    zoom.set_xlabel("enlarged: time in the shaded part [ms]")


def _draw_ages(axes: Any, run: Run, middle_ns: int, length_ns: int, narrow: bool) -> None:
    """What the robot acts on grows old until the next action is applied."""
    zero, begin_ns, end_ns = zero_ns(run), middle_ns - length_ns // 2, middle_ns + length_ns // 2
    near = _between(run.ages["apply_ns"], begin_ns, end_ns)
    near = near[np.argsort(run.ages["apply_ns"][near], kind="stable")]
    apply_ns, capture_ns = run.ages["apply_ns"][near], run.ages["capture_ns"][near]
    age_ms = (apply_ns - capture_ns) / 1e6
    times = np.repeat((apply_ns - zero) / 1e9, 2)[1:]
    teeth = np.empty(max(2 * len(age_ms) - 1, 0))
    teeth[0::2] = age_ms
    teeth[1::2] = (apply_ns[1:] - capture_ns[:-1]) / 1e6
    axes.plot(times, teeth, color=COLOURS["muted"], linewidth=0.8)
    axes.plot((apply_ns - zero) / 1e9, age_ms, "o", color=COLOURS["ink"], markersize=2.2)
    highest = max(float(teeth.max(initial=1.0)), 1.0) * 1.15
    p50, p99 = np.percentile(run.age_ns, (50, 99), method="inverted_cdf") / 1e6
    # Lines that lie close share a label.
    marks = [(p50, "P50"), (p99, "P99")] if p99 - p50 > 0.12 * highest else [(p99, "P50, P99")]
    for value in (p50, p99):
        axes.axhline(value, color=COLOURS["run0"], linewidth=0.9, linestyle=(0, (4, 3)))
    for value, text in marks:
        axes.annotate(
            text,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=COLOURS["muted"],
            annotation_clip=False,
        )
    axes.set_ylim(0, highest)
    axes.set_xlim((begin_ns - zero) / 1e9, (end_ns - zero) / 1e9)
    axes.set_ylabel("age [ms]")
    axes.set_xlabel("time since the first capture [s]")
    axes.xaxis.get_major_locator().set_params(nbins=5 if narrow else 9)


def _draw_lanes(axes: Any, run: Run, begin_ns: int, end_ns: int, narrow: bool) -> None:
    """A lane for each term; an observation is a staircase through them, and its width is the age."""
    # Also what began before and reaches in.
    chunks = _between(run.chunks["capture_ns"], 2 * begin_ns - end_ns, end_ns)
    stamps = np.stack([run.chunks[name][chunks] for name in _STAMPS], axis=1)
    owner, apply_ns = _applied_of(run, stamps[:, 0])
    last_use_ns = np.full(len(chunks), -1)
    np.maximum.at(last_use_ns, owner, apply_ns)
    # Observations that are in the same step at a time lie beside each other.
    period_ns = float(np.median(np.diff(stamps[:, 0]))) if len(chunks) > 1 else 1e9
    longest_ns = float(np.median(np.diff(stamps, axis=1), axis=0).max(initial=0.0))
    sublanes = int(np.clip(longest_ns / max(period_ns, 1.0) + 1, _MIN_SUBLANES, _MAX_SUBLANES))
    sublane, height = chunks % sublanes, 0.84 / sublanes
    for lane, term in enumerate(TERMS):
        start = stamps[:, lane]
        stop = stamps[:, lane + 1] if term != "wait" else last_use_ns
        for at in range(sublanes):
            mine = (sublane == at) & (stop >= start)
            bars = np.stack([start[mine] - begin_ns, stop[mine] - start[mine]], axis=1) / 1e6
            place = (lane - 0.42 + at * height, height * 0.84)
            axes.broken_barh(bars, place, facecolor=COLOURS[term], linewidth=0)
    dots = 4 - 0.42 + (sublane[owner] + 0.42) * height
    axes.plot(
        (apply_ns - begin_ns) / 1e6, dots, "o", color=COLOURS["ink"], markersize=3, clip_on=True
    )
    used = np.flatnonzero((last_use_ns >= 0) & (stamps[:, 0] >= begin_ns))
    if len(used):
        one = used[min(1, len(used) - 1)]
        times = (np.array([*stamps[one], last_use_ns[one]]) - begin_ns) / 1e6
        place = -0.42 + (sublane[one] + 0.42) * height
        _follow(axes, times, place, (end_ns - begin_ns) / 1e6, narrow)
    names = [term if narrow else f"{_MEANINGS[term]} · {term}" for term in TERMS]
    names += _draw_captures(axes, run, begin_ns, end_ns)
    axes.set_yticks(
        [*range(len(TERMS)), *(-2 - at for at in range(len(names) - len(TERMS)))], names
    )
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    axes.set_ylim(len(TERMS) - 0.4, -1.6 - (len(names) - len(TERMS)))
    axes.grid(axis="y", visible=False)


def _between(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Where values lie between two others, both included."""
    return np.flatnonzero((values >= low) & (values <= high))


def _applied_of(run: Run, capture_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the actions applied from some chunks: which chunk (a place in `capture_ns`), and when.

    Captures find their chunk, as they are distinct; the ids of chunks start again with a restarted policy.
    """
    order = np.argsort(capture_ns)
    near = _between(run.ages["capture_ns"], int(capture_ns.min()), int(capture_ns.max()))
    wanted = run.ages["capture_ns"][near]
    owner = order[np.searchsorted(capture_ns[order], wanted)]
    known = capture_ns[owner] == wanted
    return owner[known], run.ages["apply_ns"][near][known]


def _draw_captures(axes: Any, run: Run, begin_ns: int, end_ns: int) -> list[str]:
    """A row of ticks for each camera: when its used frames were taken. Returns the names of the rows."""
    for row, frames in enumerate(run.frames.values()):
        ticks = (frames[_between(frames[:, 0], begin_ns, end_ns), 0] - begin_ns) / 1e6
        axes.vlines(ticks, -2.3 - row, -1.7 - row, color=COLOURS["input"], linewidth=1.6)
    return [f"{camera} taken" for camera in run.frames]


def _follow(axes: Any, times: np.ndarray, place: float, shown_ms: float, narrow: bool) -> None:
    """A line along one observation, from its capture to its last action, and its age above."""
    lanes = np.repeat(np.arange(len(TERMS)), 2) + place
    axes.plot(np.repeat(times, 2)[1:-1], lanes, color=COLOURS["ink"], linewidth=1.4)
    ends = {"color": COLOURS["ink"], "shrinkA": 0, "shrinkB": 0}
    arrow = {"arrowstyle": "|-|,widthA=0.3,widthB=0.3"} | ends
    axes.annotate("", (times[0], -0.95), (times[-1], -0.95), arrowprops=arrow)
    age = f"{times[-1] - times[0]:.0f} ms"
    text = age if narrow else f"{age} old at its last action"
    axes.annotate(text, (times[-1], -0.95), xytext=(7, 0), textcoords="offset points", va="center")
