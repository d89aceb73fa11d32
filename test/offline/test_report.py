"""The report as a reader meets it: its figures, its page on its own, the command."""

import html.parser
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from flashrt_ros.observation.timeline import TERMS
from flashrt_ros.offline.report import write_report

from .logs import write_log

PICTURES = ("terms", "histogram", "age_by_index", "age_over_time")


class Reader(html.parser.HTMLParser):
    """Collects the cells of tables and whatever would fetch something."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.fetches, self.open, self.ids = [], [], [], []
        self._cell = None
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in ("meta", "br", "!doctype"):
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.fetches += [v for k, v in attrs.items() if k in ("src", "href", "data", "action")]
        self.fetches += [tag] if tag in ("script", "link", "iframe", "img", "object") else []
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None
        if tag not in ("meta", "br"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """Folder of a report of a single run, with its CSV."""
    folder = tmp_path_factory.mktemp("one")
    write_report([write_log(folder / "run" / "ages.jsonl")], folder, with_csv=True)
    return folder


def numbers_of_csv(path):
    with path.open() as file:
        names = file.readline().strip().split(",")
    columns = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.int64).T
    return dict(zip(names, columns, strict=True))


def test_page_and_json_show_what_numpy_finds_in_the_csv(one):
    data = numbers_of_csv(one / "ages.csv")
    told = json.loads((one / "report.json").read_text())["runs"][0]
    rows = Reader((one / "report.html").read_text()).rows
    for name in ("age", *TERMS):
        found = told["age"] if name == "age" else told["terms"][name]
        values = np.percentile(data[f"{name}_ns"], [50, 95, 99, 100], method="inverted_cdf") / 1e6
        assert [found[key] for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms")] == values.tolist()
        assert found["mean_ms"] == pytest.approx(data[f"{name}_ns"].mean() / 1e6)
        shown = next(row for row in rows if row[0].startswith("age A" if name == "age" else name))
        assert shown[1:5] == [f"{v:.2f}" if v < 100 else f"{v:.1f}" for v in values]
    assert told["name"] == "run"
    assert told["actions"] == len(data["age_ns"])


def test_page_shows_resets_recoveries_and_clipped_numbers(one):
    rows = Reader((one / "report.html").read_text()).rows
    assert ["resets", "1 × episode; 2 × hold"] in rows
    assert ["brought inside the limits", "7 × position"] in rows
    assert ["plan ran out during an inference", "2 × recovery; 1 × steady"] in rows
    told = "3 inferences after a reset: P50 25.2, P95 31.5, P99 31.5 ms to publication"
    assert ["recoveries", told] in rows


def test_page_of_two_runs_shows_the_differences(tmp_path):
    logs = [
        write_log(tmp_path / name / "ages.jsonl", chunks=400, seed=seed, delay_ms=delay_ms)
        for name, seed, delay_ms in (("before", 1, 0), ("after", 2, 30))
    ]
    report = write_report(logs, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    page = Reader(text)
    row = report.differences[0]["rows"]["age"]["p50_ms"]
    assert row["low"] < row["difference"] < row["high"]
    assert 25 < row["difference"] < 35
    shown = next(cells for cells in page.rows if cells[0] == "age A")
    assert shown[1] == f"{report.summaries[0]['age']['p50_ms']:.2f}"
    assert shown[2].startswith(f"{report.summaries[1]['age']['p50_ms']:.2f}")
    assert f"+{row['difference']:.2f} ms [+{row['low']:.2f},\u00a0+{row['high']:.2f}]" in shown[2]
    assert "<title>before vs after · age report</title>" in text
    for name in (*PICTURES, "timeline_before", "timeline_after"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_page_needs_nothing_else(one):
    """No script, no fetch: what it shows is in it. References within the page (#…) are all that is left."""
    text = (one / "report.html").read_text()
    page = Reader(text)
    assert [target for target in page.fetches if not target.startswith("#")] == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    # References go to one place each: ids are distinct, except for equal markers.
    for target in set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", text)):
        assert ("".join(target)) in page.ids
    for name in (*PICTURES, "timeline"):
        assert (one / f"{name}.png").is_file()


def test_every_colour_of_a_picture_follows_the_theme(one):
    text = (one / "report.html").read_text()
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", pictures) == []
    style = text[text.index("<style>") : text.index("</style>")]
    for name in set(re.findall(r"var\(--([\w-]+)\)", text)):
        assert f"--{name}:" in style


REPLAY = {
    "actions_compared_with": "/action_player/action_applied",
    "latency": "real",
    "action_error": {
        "compared": 480,
        "not_compared": 20,
        "per_joint": {
            "shoulder_pan": {"unit": "rad", "mae": 0.0123, "rmse": 0.0234},
            "gripper": {"unit": "m", "mae": 0.0003, "rmse": 0.0004},
        },
        "by_horizon_index": {
            "shoulder_pan": {"mae": [0.001, 0.012, None], "rmse": [0.002, 0.02, None]},
            "gripper": {"mae": [0.0001, 0.0002, None], "rmse": [0.0001, 0.0003, None]},
        },
    },
    "chunk_consistency": {
        "compared": 470,
        "per_joint": {
            "shoulder_pan": {"unit": "rad", "mae": 0.001, "rmse": 0.0045, "max": 0.02},
            "gripper": {"unit": "m", "mae": 0.0001, "rmse": 0.0002, "max": 0.001},
        },
    },
}


def test_errors_of_a_replay_are_shown(tmp_path):
    log = write_log(tmp_path / "run" / "ages.jsonl")
    (log.parent / "replay.json").write_text(json.dumps(REPLAY))
    write_report([log], tmp_path)
    text = (tmp_path / "report.html").read_text()
    rows = Reader(text).rows
    row = next(row for row in rows if row[0].startswith("shoulder_pan"))
    assert row[1:] == ["0.0123", "0.0234", "0.0010", "–", "0.0045"]
    assert "480 actions compared with /action_player/action_applied, 20 without" in text
    assert (tmp_path / "action_error.png").is_file()
    (log.parent / "replay.json").write_text("{}")
    with pytest.raises(ValueError, match=r"replay\.json: expected the result of a replay"):
        write_report([log], tmp_path)


def test_names_in_a_log_do_not_become_markup(tmp_path):
    log = write_log(tmp_path / "ages.jsonl")
    log.write_text(log.read_text().replace('"go"', '"<script>x</script>"'))
    write_report([log], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;x" in text


@pytest.mark.parametrize("applied", [0, 1])
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_runs_of_almost_nothing_have_a_page(tmp_path, chunks, applied):
    log = write_log(tmp_path / "ages.jsonl", chunks=chunks, applied=applied)
    write_report([log, log], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    Reader(text)
    assert ("so there are no ages" in text) == (chunks * applied == 0)


def flashrt(*arguments, cwd):
    command = [sys.executable, "-m", "flashrt_ros.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_command_writes_beside_the_log_and_prints_a_table_of_80_columns(tmp_path):
    log = write_log(tmp_path / "run" / "ages.jsonl")
    other = write_log(tmp_path / "other" / "ages.jsonl", seed=1)
    ended = flashrt("report", log.parent, "--csv", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert {"report.html", "report.json", "ages.csv", "timeline.png"} <= {
        path.name for path in log.parent.iterdir()
    }
    both = flashrt("report", "run", other, cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert "=== other minus run [ms], 95 % intervals" in both.stdout
    assert (tmp_path / "comparison" / "report.html").is_file()
    for line in (ended.stdout + both.stdout).splitlines():
        assert len(line) <= 80 or str(tmp_path) in line
    before = sorted(tmp_path.rglob("*"))
    table = flashrt("report", "--table", log, cwd=tmp_path)
    assert table.stdout == ended.stdout[: len(table.stdout)]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none", None, "expected a log or a folder with ages.jsonl, found none"),
        ("empty", "", "the log is empty"),
        ("other", '{"some": "json"}\n', "line 1: expected a JSON object with a `type`"),
        ("format", '{"type":"run","format":99}\n', "expected a run log of format 1, found"),
    ],
)
def test_log_that_is_none_is_one_line(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    ended = flashrt("report", tmp_path / name, cwd=tmp_path)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert message in ended.stderr


MEMORY = """
import resource, sys
from pathlib import Path
import matplotlib.figure
from flashrt_ros.offline.report import write_report
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
small, large, out = map(Path, sys.argv[1:])
write_report([small], out)  # all that is imported and cached
before = peak()
report = write_report([large], out)
print(report.summaries[0]["actions"], peak() - before)
"""


def test_memory_grows_by_less_than_700_bytes_for_an_action(tmp_path):
    """So that a million actions stay within 1 GB, with 300 MB for the libraries."""
    small = write_log(tmp_path / "small.jsonl", chunks=100)
    large = write_log(tmp_path / "large.jsonl", chunks=12_500, applied=4)
    ended = subprocess.run(
        [sys.executable, "-c", MEMORY, small, large, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    actions, grown = map(int, ended.stdout.split())
    assert actions == 50_000
    assert grown < 700 * actions
