"""The report as one HTML file: no script, nothing from the network, readable on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from flashrt_ros.observation.timeline import TERMS
from flashrt_ros.offline.compare import QUANTILES
from flashrt_ros.offline.figures import Rendered

_TERM_MEANINGS = {
    "input": "capture → receipt: sensor, driver, transport",
    "queue": "receipt → inference: synchronisation, busy worker",
    "infer": "inference",
    "output": "inference → publication",
    "wait": "publication → its time to act",
}
_FRAME_MEANINGS = {
    "received": "arrived at the policy node",
    "used": "went into a synchronised set",
    "superseded": "a newer frame took their place",
    "late": "older than a set already given out",
    "rejected": "unusable: stamp, encoding, size",
    "pending": "still waiting for partners at the end",
    "lost_before": "missing before the node, by the camera's own period",
    "unexplained": "must be 0",
}
_FATE_MEANINGS = {
    "applied": "sent to the robot",
    "superseded": "a newer chunk had begun by then: usual where chunks overlap",
    "expired": "its time passed, and no newer chunk was the reason",
    "skipped": "already past when its chunk was published",
    "pending": "its time had not come at the end",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What a page shows."""

    names: Sequence[str]
    """Of the runs."""
    summaries: Sequence[Mapping[str, Any]]
    differences: Sequence[Mapping[str, Any]]
    """Of each later run to the first, from `compare`."""
    replays: Sequence[Mapping[str, Any] | None]
    """replay.json of each run that is a replay."""
    pictures: Mapping[str, Sequence[Rendered]]
    """By section: terms, spread, timeline, index, time, error."""


def render(page: Page) -> str:
    """The page's text."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    title = " vs ".join(page.names)
    body = "\n".join(_sections(page))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} · age report</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _sections(page: Page) -> Iterator[str]:
    yield _header(page)
    yield from _warnings(page)
    if any(summary["actions"] for summary in page.summaries):
        yield _cards(page)
        yield _section("How old was the observation when it acted?", *_ages(page))
        yield from _pictured(page)
    if any(page.replays):
        yield _section("How far were the actions from the recorded ones?", *_errors(page))
    yield _section("What was dropped, and why?", *_drops(page))
    yield _section("How to read this", _reading(page))


def _section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def _header(page: Page) -> str:
    title = " vs ".join(page.names)
    lines = []
    for name, summary in zip(page.names, page.summaries, strict=True):
        prefix = f"<b>{escape(name)}:</b> " if len(page.names) > 1 else ""
        lines.append(f'<p class="sub">{prefix}{escape(_what(summary))}</p>')
    return (
        '<header>\n<p class="kicker">flashrt age report</p>\n'
        f"<h1>{escape(title)}</h1>\n" + "\n".join(lines) + "\n</header>"
    )


def _what(summary: Mapping[str, Any]) -> str:
    measured, actions = summary["actions_measured"], summary["actions"]
    how = {0: "none measured", actions: "all measured"}.get(measured, f"{measured:,} measured")
    parts = [
        f"{summary['chunks']:,} chunks in {_seconds(summary['duration_s'])} ({summary['chunks_per_s']:.1f} per second)",
        f"{actions:,} actions applied, {how}" if actions else "no action applied",
    ]
    if summary["instructions"]:
        parts.append("told: " + ", ".join(f"“{text}”" for text in summary["instructions"][:3]))
    if summary["plans"]:
        parts.append("policy: " + ", ".join(summary["plans"][:3]))
    return " · ".join(parts)


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _warnings(page: Page) -> Iterator[str]:
    for name, summary in zip(page.names, page.summaries, strict=True):
        prefix = f"{name}: " if len(page.names) > 1 else ""
        told = []
        if not summary["ended_in_order"]:
            told.append("the log ends without its end mark: the logger was killed or still runs.")
        if not summary["actions"]:
            told.append("no action was applied, so there are no ages.")
        elif summary["actions_measured"] < summary["actions"]:
            planned = summary["actions"] - summary["actions_measured"]
            told.append(
                f"{planned:,} of {summary['actions']:,} ages end at the planned time, as nobody reported when the "
                "action was applied."
            )
        if summary["terms_off_by_ns"]:
            told.append(f"terms and age differ by up to {summary['terms_off_by_ns']} ns.")
        if summary["frames_unexplained"]:
            told.append(f"{summary['frames_unexplained']} frames have no explanation.")
        for text in told:
            yield f'<p class="warning">{escape(prefix + text)}</p>'


# ---------------------------------------------------------------- figures up front


def _cards(page: Page) -> str:
    cards = []
    for label, key in (("Median age", "p50_ms"), ("P95", "p95_ms"), ("P99", "p99_ms")):
        values = [summary["age"][key] for summary in page.summaries]
        cards.append(_card(label, values, page, key))
    largest = []
    for summary in page.summaries:
        term = max(TERMS, key=lambda name: summary["terms"][name]["mean_ms"])
        share = summary["terms"][term]["mean_ms"] / (summary["age"]["mean_ms"] or 1.0)
        largest.append(f"{term} <small>{100 * share:.0f} %</small>")
    cards.append(
        f'<li><span class="label">Largest part</span><span class="value">{" → ".join(largest)}</span>'
        '<span class="more">of the mean age</span></li>'
    )
    kind = "cards" if len(page.names) == 1 else "cards many"
    return f'<ul class="{kind}">{"".join(cards)}</ul>'


def _card(label: str, values: Sequence[float], page: Page, key: str) -> str:
    if len(values) == 1:
        what = {
            "p50_ms": "half of the actions were younger",
            "p95_ms": "one in 20 was older",
            "p99_ms": "one in 100 was older",
        }[key]
        shown = f"{values[0]:.1f} <small>ms</small>"
    else:
        shown = " → ".join(f"{value:.1f}" for value in values) + " <small>ms</small>"
        what = ""
        if len(values) == 2:
            what = _interval(page.differences[0]["rows"]["age"][key])
    return (
        f'<li><span class="label">{label}</span><span class="value">{shown}</span>'
        f'<span class="more">{escape(what)}</span></li>'
    )


def _interval(row: Mapping[str, float | None]) -> str:
    if row["difference"] is None:
        return ""
    if row["low"] is None:
        return f"{_signed(row['difference'])} ms"
    return f"{_signed(row['difference'])} ms [{_signed(row['low'])},\u00a0{_signed(row['high'])}]"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "−")


# ---------------------------------------------------------------- ages


def _ages(page: Page) -> Iterator[str]:
    yield (
        '<p class="note">Age of the observation behind each action, at the moment the action was applied.</p>'
        '<p class="formula">A = apply − capture = input + queue + infer + output + wait</p>'
    )
    if len(page.names) == 1:
        yield _ages_of_one(page.summaries[0])
        yield from _older(page.summaries[0])
    else:
        yield _ages_of_many(page)
        yield _about_intervals(page)


def _ages_of_one(summary: Mapping[str, Any]) -> str:
    mean_ms = summary["age"]["mean_ms"] or 1.0
    keys = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    rows = []
    for name in ("age", *TERMS):
        figures = summary["age"] if name == "age" else summary["terms"][name]
        cells = "".join(f"<td>{_ms(figures[key])}</td>" for key in keys)
        share = f'<td class="wide-only">{_percent(figures["mean_ms"] / mean_ms)}</td>'
        kind = ' class="total"' if name == "age" else ""
        rows.append(f'<tr{kind}><th scope="row">{_name(name)}</th>{cells}{share}</tr>')
    head = "".join(f'<th scope="col">{key}</th>' for key in ("P50", "P95", "P99", "max"))
    return _table(
        f'<th scope="col">ms</th>{head}<th scope="col" class="wide-only">share of mean</th>', rows
    )


def _ms(value_ms: float) -> str:
    """Five digits at most: on a phone four columns must fit."""
    return f"{value_ms:.2f}" if value_ms < 100 else f"{value_ms:.1f}"


def _percent(share: float) -> str:
    return "&lt; 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _name(name: str) -> str:
    if name == "age":
        return "age A<small>capture → applied</small>"
    return (
        f'<span class="dot" style="background:var(--{name})"></span>{name}'
        f"<small>{escape(_TERM_MEANINGS[name])}</small>"
    )


def _table(head: str, rows: Iterable[str]) -> str:
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _older(summary: Mapping[str, Any]) -> Iterator[str]:
    """How many actions were beyond the thresholds of the logger."""
    told = []
    for name, row in summary["older_than"].items():
        share = 100 * row["actions"] / summary["actions"]
        told.append(
            f"{row['actions']:,} ({share:.2f} %) were older than {name} = {row['limit_ms']:g} ms"
        )
    if told:
        yield f'<p class="note">Of {summary["actions"]:,} actions {", ".join(told)}.</p>'


def _ages_of_many(page: Page) -> str:
    rows = []
    for key, q in QUANTILES.items():
        columns = 1 + len(page.names)
        rows.append(f'<tr class="group"><th colspan="{columns}">P{q} [ms]</th></tr>')
        for name in ("age", *TERMS):
            cells = []
            for number, summary in enumerate(page.summaries):
                figures = summary["age"] if name == "age" else summary["terms"][name]
                below = _below(page, number, name, key)
                cells.append(f"<td>{_ms(figures[key])}{below}</td>")
            kind = ' class="total"' if name == "age" else ""
            label = (
                "age A"
                if name == "age"
                else f'<span class="dot" style="background:var(--{name})"></span>{name}'
            )
            rows.append(f'<tr{kind}><th scope="row">{label}</th>{"".join(cells)}</tr>')
    heads = "".join(
        f'<th scope="col"><span class="dot" style="background:var(--run{number % 4})"></span>{escape(name)}</th>'
        for number, name in enumerate(page.names)
    )
    return f'<div class="compared">{_table(f"<th></th>{heads}", rows)}</div>'


def _below(page: Page, number: int, name: str, key: str) -> str:
    """The difference to the first run, coloured only where its interval lies on one side of zero."""
    if number == 0:
        return ""
    row = page.differences[number - 1]["rows"][name][key]
    kind = ""
    if row["low"] is not None and (row["low"] > 0 or row["high"] < 0):
        kind = ' class="more"' if row["low"] > 0 else ' class="less"'
    return f"<small{kind}>{escape(_interval(row))}</small>"


def _about_intervals(page: Page) -> str:
    blocks = [d["block_s"] for d in page.differences if d["block_s"] is not None]
    if not blocks:
        return (
            '<p class="note">Below each figure its difference to the first run. The runs are too short for intervals: '
            "that takes actions in at least 8 seconds of each.</p>"
        )
    return (
        f'<p class="note">Below each figure its difference to {escape(page.names[0])} and the 95 % interval of that '
        f"difference: bootstrap over blocks of {max(blocks):.3g} s or less, 1000 draws. Red is older and green is "
        "younger where the interval leaves out zero. An interval covers what varied within these runs, not from one "
        "day to another.</p>"
    )


# ---------------------------------------------------------------- pictures


_SECTIONS = {
    "terms": "Where did the time go?",
    "spread": "How are the ages spread?",
    "timeline": "A few seconds of it",
    "index": "Are later actions of a chunk older?",
    "time": "Did it change during the run?",
}


def _pictured(page: Page) -> Iterator[str]:
    for key, title in _SECTIONS.items():
        if page.pictures.get(key):
            yield _section(title, *_figures(page, key))
        elif key in page.pictures:
            # The only picture that may have nothing to show.
            yield _section(title, _one_index(page))


def _figures(page: Page, key: str) -> Iterator[str]:
    """The pictures of a section; those of several runs share the caption of the last."""
    pictures = page.pictures[key]
    for at, picture in enumerate(pictures):
        heading = f"<h3>{escape(picture.title)}</h3>" if len(pictures) > 1 else ""
        last = at + 1 == len(pictures)
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if last else ""
        yield f"{heading}<figure>{picture.svgs}{caption}</figure>"


def _one_index(page: Page) -> str:
    told = []
    for name, summary in zip(page.names, page.summaries, strict=True):
        for row in summary["by_index"]:
            prefix = f"{escape(name)}: e" if len(page.names) > 1 else "E"
            told.append(f"{prefix}very applied action had index {row['index']} in its chunk.")
    return (
        f'<p class="note">{" ".join(told)} A fresher chunk was there before a later one was due, so there is no '
        "curve to show.</p>"
    )


# ---------------------------------------------------------------- errors of a replay

_ERROR_COLUMNS = ("MAE", "RMSE", "first", "last", "change")


def _errors(page: Page) -> Iterator[str]:
    for name, replay in zip(page.names, page.replays, strict=True):
        if replay is None:
            continue
        error, change = replay["action_error"], replay["chunk_consistency"]
        if len(page.names) > 1:
            yield f"<h3>{escape(name)}</h3>"
        told = (
            f"{error['compared']:,} actions compared with {replay['actions_compared_with']}, "
            f"{error['not_compared']:,} without a recorded one. Latency of inference: {replay['latency']}."
        )
        yield f'<p class="note">{escape(told)}</p>'
        heads = "".join(f'<th scope="col">{column}</th>' for column in _ERROR_COLUMNS)
        rows = []
        for joint, row in error["per_joint"].items():
            by_index = error["by_horizon_index"][joint]["mae"] or [None]
            values = (
                row["mae"],
                row["rmse"],
                by_index[0],
                by_index[-1],
                change["per_joint"][joint]["rmse"],
            )
            cells = "".join("<td>–</td>" if v is None else f"<td>{v:.4f}</td>" for v in values)
            unit = f"<small>{escape(row['unit'])}</small>"
            rows.append(f'<tr><th scope="row">{escape(joint)}{unit}</th>{cells}</tr>')
        yield _table(f'<th scope="col">joint</th>{heads}', rows)
    yield (
        '<p class="note">First and last: MAE of the first and last action of a chunk. Change: root mean square of what '
        "a chunk changes of what the one before said about the same moments.</p>"
    )
    yield from _figures(page, "error")


# ---------------------------------------------------------------- drops


def _drops(page: Page) -> Iterator[str]:
    for name, summary in zip(page.names, page.summaries, strict=True):
        if len(page.names) > 1:
            yield f"<h3>{escape(name)}</h3>"
        yield from _drops_of(summary)


def _drops_of(summary: Mapping[str, Any]) -> Iterator[str]:
    total = sum(summary["action_fates"].values())
    if total:
        rows = []
        for fate, count in summary["action_fates"].items():
            share = 100 * count / total
            rows.append(
                f'<tr><th scope="row">{escape(fate)}<small>{_FATE_MEANINGS.get(fate, "")}</small></th>'
                f"<td>{count:,}</td><td>{share:.1f} %"
                f'<span class="bar"><i style="width:{share:.1f}%"></i></span></td></tr>'
            )
        yield _table(
            '<th scope="col">actions published</th><th scope="col">count</th><th scope="col">share</th>',
            rows,
        )
    if summary["cameras"]:
        yield _frames(summary["cameras"])
    rows = [
        f'<tr><th scope="row">{escape(what)}</th><td class="what">{escape(text)}</td></tr>'
        for what, text in _other_counts(summary)
    ]
    if rows:
        yield _table(
            '<th scope="col">other</th><th scope="col" class="what">count × what</th>', rows
        )
    if not (total or summary["cameras"] or rows):
        yield '<p class="note">The log holds no counts.</p>'


def _frames(cameras: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for fate, meaning in _FRAME_MEANINGS.items():
        counts = [fates.get(fate, 0) for fates in cameras.values()]
        numbers = [sum(c.values()) if isinstance(c, Mapping) else c for c in counts]
        reasons = "; ".join(
            _counts(c) for c in counts if isinstance(c, Mapping) and any(c.values())
        )
        cells = "".join(f"<td>{number:,}</td>" for number in numbers)
        told = f"{meaning} ({reasons})" if reasons else meaning
        label = fate.replace("_", " ")
        rows.append(f'<tr><th scope="row">{label}<small>{escape(told)}</small></th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{escape(camera)}</th>' for camera in cameras)
    return _table(f'<th scope="col">frames</th>{heads}', rows)


def _counts(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} × {name}" for name, count in counts.items() if count)


def _other_counts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sets, player = summary["sets"], summary["player"]
    if sets:
        yield (
            "sets",
            f"{sets['received']:,} synchronised, {sets['taken']:,} inferred, {sets['superseded']:,} superseded",
        )
        if any(sets["rejected"].values()):
            yield "sets rejected", _counts(sets["rejected"])
    for label, counts in (
        ("chunks refused by the policy node", summary["chunks_refused_by_policy"]),
        ("chunks refused by the player", player.get("chunks_refused", {})),
        ("reports of application refused", summary["reports_refused"]),
        ("resets", summary["resets"]),
        ("holds", summary["holds"]),
        ("brought inside the limits", summary["clipped"]),
        ("plan ran out during an inference", summary["deadlines_missed"]),
    ):
        if text := _counts(counts):
            yield label, text
    if recovery := summary["recovery"]:
        figures = ", ".join(f"P{q} {recovery[f'p{q}_ms']:.1f}" for q in (50, 95, 99))
        yield (
            "recoveries",
            f"{recovery['count']:,} inferences after a reset: {figures} ms to publication",
        )


# ---------------------------------------------------------------- notes


def _reading(page: Page) -> str:
    logs = "".join(f"<dd>{escape(summary['log'])}</dd>" for summary in page.summaries)
    return f"""<dl>
<dt>Age</dt><dd>Counted from the oldest camera frame of the observation to the moment its action was applied. Measured
where the robot side reports each applied action, else up to the planned time; the head of this page says which.</dd>
<dt>Percentiles</dt><dd>Are values that occurred, without interpolation. Those of the terms do not add up to that of the
age, as the slow moments of one term are not those of another. Means do add up.</dd>
<dt>Actions without an age</dt><dd>Actions that were never applied have none: their counts stand above, as leaving them
out flatters.</dd>
<dt>Logs</dt>{logs}</dl>"""
