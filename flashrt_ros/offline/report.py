"""`flashrt report`: one or more runs as figures, pictures and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.offline.compare import compare, difference_table
from flashrt_ros.offline.figures import (
    Picture,
    draw_action_error,
    draw_by_index,
    draw_histogram,
    draw_over_time,
    draw_terms,
    draw_timeline,
)
from flashrt_ros.offline.report_page import Page, render
from flashrt_ros.offline.run_log import LOG_NAME, Run, find_log, read_run
from flashrt_ros.offline.summary import summarize, table, write_csv

PAGE_NAME = "report.html"
REPLAY_NAME = "replay.json"
"""What a replay leaves beside its log: how far its actions were from recorded ones, among others."""


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of one or more runs."""

    runs: Sequence[Run]
    names: Sequence[str]
    summaries: Sequence[dict[str, Any]]
    """Of each run, from `summarize`."""
    differences: Sequence[dict[str, Any]]
    """Of each later run to the first, from `compare`."""
    replays: Sequence[dict[str, Any] | None]
    """replay.json of each run; None for a run that is no replay."""

    def table(self) -> str:
        """For an 80-column terminal: each run, then the differences."""
        if len(self.runs) == 1:
            return table(self.summaries[0])
        parts = []
        for name, summary in zip(self.names, self.summaries, strict=True):
            parts.append(f"=== {name}\n{table(summary)}")
        for at, difference in enumerate(self.differences, start=1):
            parts.append(difference_table(self.names[0], self.names[at], difference))
        return "\n\n".join(parts)


Progress = Callable[[str], None]
"""Is told what is being done, as it begins."""


def _silent(_: str) -> None:
    pass


def read_report(logs: Sequence[Path], progress: Progress = _silent) -> Report:
    """The figures of some runs.

    Args:
        logs: logs or folders of runs; later ones are compared with the first.
        progress: called at each step.

    Raises:
        AgeLogError: a log cannot be read.
        FileNotFoundError: a log is not there.
    """
    runs = []
    for path in logs:
        progress(f"reading {path}")
        runs.append(read_run(path))
    progress("computing figures")
    return Report(
        runs=runs,
        names=run_names([run.path for run in runs]),
        summaries=[summarize(run) for run in runs],
        differences=[compare(runs[0], run) for run in runs[1:]],
        replays=[_replay(run.path) for run in runs],
    )


def _replay(log: Path) -> dict[str, Any] | None:
    """What lies beside the log of a replay.

    Raises:
        ValueError: it is there and is not what a replay writes.
    """
    path = log.with_name(REPLAY_NAME)
    if log.name != LOG_NAME or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("action_error", "chunk_consistency", "latency")} | {
            "actions_compared_with": found["actions_compared_with"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the result of a replay, found: {error!r}") from error


def write_report(
    logs: Sequence[Path], out: Path, *, with_csv: bool = False, progress: Progress = _silent
) -> Report:
    """Write report.html, report.json and a PNG for each picture; what is there already is written over.

    Args:
        logs: as for `read_report`.
        out: folder to write to.
        with_csv: also write every action as ages.csv (with the run's name where there are several).
        progress: called at each step.

    Raises:
        AgeLogError: a log cannot be read.
        FileNotFoundError: a log is not there.
        ImportError: matplotlib is not installed.
    """
    report = read_report(logs, progress)
    progress("drawing")
    names, summaries, differences = report.names, report.summaries, report.differences
    pictures = {
        section: [picture.render() for picture in group]
        for section, group in _pictures(names, report.runs, summaries).items()
    } | {"error": [picture.render() for picture in _error_pictures(report)]}
    page = render(Page(names, summaries, differences, report.replays, pictures))
    out.mkdir(parents=True, exist_ok=True)
    for picture in (picture for group in pictures.values() for picture in group):
        (out / f"{picture.name}.png").write_bytes(picture.png)
    named = [{"name": name} | summary for name, summary in zip(names, summaries, strict=True)]
    (out / "report.json").write_text(
        json.dumps({"runs": named, "differences": differences}, indent=2) + "\n", encoding="utf-8"
    )
    (out / PAGE_NAME).write_text(page, encoding="utf-8")
    if with_csv:
        progress("writing CSV")
        for name, run in zip(names, report.runs, strict=True):
            write_csv(run, out / ("ages.csv" if len(names) == 1 else f"ages_{name}.csv"))
    return report


def run_names(logs: Sequence[Path]) -> list[str]:
    """A short, distinct name for each log: its folder where the log has the usual name, else its own."""
    paths = [path.resolve() for path in logs]
    short = [path.parent.name if path.name == LOG_NAME else path.stem for path in paths]
    if len(set(short)) == len(short):
        return short
    return [f"{number}-{name}" for number, name in enumerate(short, start=1)]


def default_folder(logs: Sequence[Path]) -> Path:
    """Where a report goes unless told: beside the log of a single run, else `comparison` in the current folder."""
    return find_log(logs[0]).parent if len(logs) == 1 else Path("comparison")


def _error_pictures(report: Report) -> list[Picture]:
    """Of each replay whose actions could be compared."""

    def draw(error: Mapping[str, Any]) -> Any:
        return lambda figure, narrow: draw_action_error(figure, narrow, error)

    return [
        Picture(
            "action_error" if len(report.names) == 1 else f"action_error_{name}",
            name,
            "Mean absolute error of each joint by the index of the action in its chunk: how far ahead the policy can "
            "be trusted.",
            draw(replay["action_error"]),
            340,
        )
        for name, replay in zip(report.names, report.replays, strict=True)
        if replay is not None and replay["action_error"]["compared"]
    ]


def _pictures(
    names: Sequence[str], runs: Sequence[Run], summaries: Sequence[dict[str, Any]]
) -> dict[str, list[Picture]]:
    """By section of the page. Runs without an applied action are left out, as there is nothing to draw."""
    shown = [at for at, run in enumerate(runs) if len(run.ages) and len(run.chunks)]
    if not shown:
        return {}
    names, runs = [names[at] for at in shown], [runs[at] for at in shown]
    summaries = [summaries[at] for at in shown]

    index = Picture(
        "age_by_index",
        "Index",
        "Action 0 is the first of its chunk. Each later one waits a period longer for its time; a fresher chunk that "
        "comes soon keeps the index, and the age, low.",
        lambda figure, narrow: draw_by_index(figure, narrow, names, summaries),
        360,
    )
    # A single index has no curve; the page says so.
    several = any(len(summary["by_index"]) > 1 for summary in summaries)
    return {
        "terms": [
            Picture(
                "terms",
                "Terms",
                "Means, which add up to the mean age. What each term covers stands in the table above.",
                lambda figure, narrow: draw_terms(figure, narrow, names, summaries),
                90 + 46 * len(names),
            )
        ],
        "spread": [
            Picture(
                "histogram",
                "Ages",
                "Share of the applied actions by age. The dashed lines are percentiles."
                if len(names) == 1
                else "Share of the applied actions by age, of each run's own.",
                lambda figure, narrow: draw_histogram(figure, narrow, names, runs),
                300,
            )
        ],
        "timeline": [
            _timeline(name, run, len(names) == 1) for name, run in zip(names, runs, strict=True)
        ],
        "index": [index] if several else [],
        "time": [
            Picture(
                "age_over_time",
                "Over the run",
                "Median and largest age in consecutive pieces of the run. Gaps are pieces in which no action was "
                "applied.",
                lambda figure, narrow: draw_over_time(figure, narrow, names, runs),
                260,
            )
        ],
    }


def _timeline(name: str, run: Run, alone: bool) -> Picture:
    return Picture(
        "timeline" if alone else f"timeline_{name}",
        name,
        "From the middle of the run. Above, the age of what the robot acts on: it grows until the next action "
        "is applied (dots). Below, the shaded part: every observation goes through the lanes from top to "
        "bottom, bars show how long each step took, dots are actions applied, and one observation is followed "
        "by a line.",
        lambda figure, narrow: draw_timeline(figure, narrow, run),
        520,
    )
