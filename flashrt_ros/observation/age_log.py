"""The log of a run: one JSON object a line, written as it goes.

Each line reaches the operating system before the next is begun, so a process that is killed loses at most the line it
was writing; a reader drops a last line without its end. Records have a `type`:

* `run`: first line; format version, what wrote it, its settings.
* `chunk`: the stamps of one published chunk.
* `age`: one applied action with its terms.
* `fates`: counts of frames, sets, chunks and actions up to now, by source; the last one of a source stands.
* `event`: something that happened (a block reached, a hold), with its stamp.
* `end`: the run was shut down in order; absent after a kill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from flashrt_ros.observation.ages import ActionAge, ChunkRecord

FORMAT = 1
_LINES_AT_ONCE = 4096


class AgeLogError(ValueError):
    """A log that cannot be read. The message names the file, the line and what is wrong."""


class AgeLogWriter:
    """Appends records to one log file.

    Args:
        path: the file; an existing one is refused, so that nothing is lost.
        source: name of the node that writes.
        settings: anything JSON can hold.

    Raises:
        FileExistsError: the file is there already.
    """

    def __init__(self, path: Path, source: str, settings: Mapping[str, Any] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Line buffering hands every line to the operating system at once.
        self._file = path.open("x", encoding="utf-8", buffering=1)
        self._write(
            {"type": "run", "format": FORMAT, "source": source, "settings": dict(settings or {})}
        )

    def chunk(self, record: ChunkRecord, **extra: Any) -> None:
        """Log one published chunk.

        Args:
            record: its stamps and plan.
            extra: `instruction`, `plan_id`, `reset_reason` (text), `skew_ns`, `cameras` (capture_ns and receive_ns of
                each synchronised frame, by camera) are read by reports; anything else is kept.
        """
        self._write({"type": "chunk", **_flat(asdict(record)), **extra})

    def age(self, age: ActionAge) -> None:
        """Log one applied action."""
        self._write({"type": "age", **_flat(asdict(age))})

    def fates(self, source: str, stamp_ns: int, counts: Mapping[str, Any]) -> None:
        """Log counts up to now."""
        self._write({"type": "fates", "source": source, "stamp_ns": stamp_ns, "counts": counts})

    def event(self, name: str, stamp_ns: int, **detail: Any) -> None:
        """Log something that happened."""
        self._write({"type": "event", "name": name, "stamp_ns": stamp_ns, **detail})

    def close(self) -> None:
        """Mark the end of an orderly run."""
        if not self._file.closed:
            self._write({"type": "end"})
            self._file.close()

    def __enter__(self) -> AgeLogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Read the records of one log, in order. A last line without its end (the writer was killed) is dropped.

    Raises:
        AgeLogError: not such a log, another format, or a broken line in the middle.
        FileNotFoundError: no such file.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        number = 1
        while lines := list(islice(file, _LINES_AT_ONCE)):
            if not lines[-1].endswith("\n"):
                lines.pop()
            yield from _parse(path, number, lines)
            number += len(lines)


def _parse(path: Path, number: int, lines: list[str]) -> Iterator[dict[str, Any]]:
    """Records of consecutive lines, the first of which is line `number`."""
    try:
        # One call for many lines takes a third of the time of a call for each.
        records = json.loads(f"[{','.join(lines)}]")
    except json.JSONDecodeError:
        records = []
    if len(records) != len(lines):
        records = (_record(path, at, line) for at, line in enumerate(lines, start=number))
    for at, record in enumerate(records, start=number):
        if not isinstance(record, dict) or "type" not in record:
            raise _no_record(path, at, lines[at - number])
        if at == 1 and (record["type"] != "run" or record.get("format") != FORMAT):
            found = lines[0][:60].strip()
            raise AgeLogError(f"{path}: expected a run log of format {FORMAT}, found {found!r}")
        yield record


def _record(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise _no_record(path, number, line) from error


def _no_record(path: Path, number: int, line: str) -> AgeLogError:
    return AgeLogError(
        f"{path}, line {number}: expected a JSON object with a `type`, found {line[:60]!r}"
    )


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    return flat
