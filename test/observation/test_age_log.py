import subprocess
import sys
from dataclasses import asdict

import pytest

from flashrt_ros.observation.age_log import AgeLogError, AgeLogWriter, read_records
from flashrt_ros.observation.ages import AgeJoiner

from .test_ages import MS, chunk


def flat(record, nested):
    """Fields of a record, those of `nested` among them."""
    fields = asdict(record)
    return {**fields.pop(nested), **fields}


def test_round_trip(tmp_path):
    path = tmp_path / "runs" / "ages.jsonl"
    joiner = AgeJoiner()
    joiner.add_chunk(chunk(1, 100))
    age = joiner.add_applied(1, 3, 140 * MS)
    with AgeLogWriter(path, "test", {"robot": "so101"}) as log:
        log.chunk(chunk(1, 100), instruction="touch the red block")
        log.age(age)
        log.fates("policy", 5, {"frames": 3})
        log.event("reached", 6, block="red")
    run, logged_chunk, logged_age, fates, event, end = read_records(path)
    assert run["settings"] == {"robot": "so101"}
    assert logged_chunk.items() >= flat(chunk(1, 100), "timeline").items()
    assert logged_chunk["instruction"] == "touch the red block"
    assert logged_age == {"type": "age", **flat(age, "terms")}
    assert fates["counts"] == {"frames": 3}
    assert event["block"] == "red"
    assert end == {"type": "end"}


def test_existing_log_is_not_overwritten(tmp_path):
    AgeLogWriter(tmp_path / "ages.jsonl", "test").close()
    with pytest.raises(FileExistsError):
        AgeLogWriter(tmp_path / "ages.jsonl", "test")


def test_kill_loses_at_most_the_line_being_written(tmp_path):
    """The writer is killed in the middle of its work; all that it said it had written is there."""
    script = """
import itertools, sys
from pathlib import Path
from flashrt_ros.observation.age_log import AgeLogWriter
log = AgeLogWriter(Path(sys.argv[1]), "victim")
for number in itertools.count():
    log.event("count", number)
    print(number, flush=True)
"""
    path = tmp_path / "ages.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    ) as victim:
        while (told := int(victim.stdout.readline())) < 200:
            pass
        victim.kill()
        rest = [
            line for line in victim.stdout.read().splitlines(keepends=True) if line.endswith("\n")
        ]
        told = int(rest[-1]) if rest else told
    records = list(read_records(path))
    assert records[-1]["stamp_ns"] >= told
    assert records[-1]["type"] == "event", "no end mark after a kill"


def test_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "ages.jsonl"
    with AgeLogWriter(path, "test") as log:
        log.event("count", 1)
    path.write_text(path.read_text() + '{"type":"ev')
    assert [r["type"] for r in read_records(path)] == ["run", "event", "end"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello\n", "line 1"),
        ('{"type":"run","format":99}\n', "format 1"),
        ('{"type":"run","format":1}\n{broken\n{"type":"end"}\n', "line 2"),
        ('{"type":"run","format":1}\n[1]\n', "line 2"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "ages.jsonl"
    path.write_text(content)
    with pytest.raises(AgeLogError, match=message) as error:
        list(read_records(path))
    assert str(path) in str(error.value)
