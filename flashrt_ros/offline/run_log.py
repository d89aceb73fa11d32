"""A run's log as tables of integers: a million actions take 100 MB and a few seconds."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.observation.age_log import AgeLogError, read_records

LOG_NAME = "ages.jsonl"
"""Name of the log in a run's folder."""

AGE_COLUMNS = (
    "chunk_id",
    "action_index",
    "capture_ns",
    "apply_ns",
    "input_ns",
    "queue_ns",
    "infer_ns",
    "output_ns",
    "wait_ns",
    "measured",
)
"""Columns of `Run.ages`, and of ages.csv before `age_ns`."""

CHUNK_COLUMNS = (
    "chunk_id",
    "capture_ns",
    "receive_ns",
    "sync_ns",
    "infer_start_ns",
    "infer_end_ns",
    "publish_ns",
    "planned_start_ns",
    "period_ns",
    "horizon",
    "first_valid_index",
    "skew_ns",
)
"""Columns of `Run.chunks`."""

LABELS = ("instruction", "plan_id", "reset_reason")
"""Texts beside each chunk, in `Run.labels`."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Named columns of integers."""

    names: tuple[str, ...]
    rows: np.ndarray
    """int64 [rows, len(names)]"""

    def __getitem__(self, name: str) -> np.ndarray:
        """One column, int64 [rows]."""
        return np.asarray(self.rows[:, self.names.index(name)])

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run as it was logged."""

    path: Path
    settings: Mapping[str, Any]
    chunks: Table
    """`CHUNK_COLUMNS`, in the order of publication."""
    labels: Mapping[str, Sequence[str]]
    """By the names of `LABELS`, a text for each chunk."""
    frames: Mapping[str, np.ndarray]
    """By camera: capture and receipt of each frame that was used, int64 [frames, 2] ns. Empty for logs without them."""
    ages: Table
    """`AGE_COLUMNS`, a row for each applied action."""
    fates: Mapping[str, Mapping[str, Any]]
    """Last counts of each source."""
    events: Sequence[Mapping[str, Any]]
    ended: bool
    """Shut down in order; False after a kill."""

    @property
    def age_ns(self) -> np.ndarray:
        """Apply minus capture, int64 [actions]."""
        return np.asarray(self.ages["apply_ns"] - self.ages["capture_ns"])


def find_log(path: Path) -> Path:
    """The log that a file or a run's folder stands for.

    Raises:
        FileNotFoundError: neither is there.
    """
    log = path / LOG_NAME if path.is_dir() else path
    if not log.is_file():
        raise FileNotFoundError(f"{path}: expected a log or a folder with {LOG_NAME}, found none")
    return log


def read_run(path: Path) -> Run:
    """Read one log, or the log in a run's folder.

    Raises:
        AgeLogError: it is empty or not such a log.
        FileNotFoundError: no such file.
    """
    path = find_log(path)
    reader = _Reader()
    add_age, of_age = reader.ages.extend, itemgetter(*AGE_COLUMNS)
    record: Mapping[str, Any] = {}
    collecting = gc.isenabled()
    # Records hold no cycles; looking for some in millions of them takes a fifth of the time.
    gc.disable()
    try:
        for record in read_records(path):
            # Nearly all records are ages: they do not go through a function of their own.
            if record["type"] == "age":
                add_age(of_age(record))
            else:
                reader.take(record)
    except (KeyError, TypeError, OverflowError) as error:
        raise AgeLogError(
            f"{path}: a record of type {record['type']!r} does not hold what it should: {error}"
        ) from error
    finally:
        if collecting:
            gc.enable()
    if reader.settings is None:
        raise AgeLogError(f"{path}: the log is empty")
    return reader.run(path)


class _Reader:
    """Collects records in flat arrays: an object for each action would need ten times the memory."""

    def __init__(self) -> None:
        self.settings: Mapping[str, Any] | None = None
        self.ages, self._chunks = array("q"), array("q")
        self._labels: dict[str, list[str]] = {name: [] for name in LABELS}
        self._frames: dict[str, array[int]] = {}
        self._fates: dict[str, Mapping[str, Any]] = {}
        self._events: list[Mapping[str, Any]] = []
        self._ended = False
        self._of_chunk = itemgetter(*(name for name in CHUNK_COLUMNS if name != "skew_ns"))

    def take(self, record: Mapping[str, Any]) -> None:
        kind = record["type"]
        if kind == "chunk":
            self._chunks.extend(self._of_chunk(record))
            self._chunks.append(record.get("skew_ns", 0))
            for name, texts in self._labels.items():
                texts.append(sys.intern(str(record.get(name, ""))))
            for camera, stamps in record.get("cameras", {}).items():
                self._frames.setdefault(camera, array("q")).extend(stamps)
        elif kind == "fates":
            self._fates[record["source"]] = record["counts"]
        elif kind == "event":
            self._events.append(record)
        elif kind == "run":
            self.settings = record["settings"]
        elif kind == "end":
            self._ended = True

    def run(self, path: Path) -> Run:
        return Run(
            path=path,
            settings=self.settings or {},
            chunks=Table(CHUNK_COLUMNS, _rows(self._chunks, len(CHUNK_COLUMNS))),
            labels=self._labels,
            frames={camera: _rows(stamps, 2) for camera, stamps in self._frames.items()},
            ages=Table(AGE_COLUMNS, _rows(self.ages, len(AGE_COLUMNS))),
            fates=self._fates,
            events=self._events,
            ended=self._ended,
        )


def _rows(values: array[int], columns: int) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int64).reshape(-1, columns)
