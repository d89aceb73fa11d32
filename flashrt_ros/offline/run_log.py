"""A run's log as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.observation.age_log import AgeLogError, chunk_from, read_records
from flashrt_ros.observation.ages import ChunkRecord

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


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run as it was logged."""

    path: Path
    settings: Mapping[str, Any]
    chunks: Sequence[ChunkRecord]
    chunk_notes: Sequence[Mapping[str, Any]]
    """Beside each chunk: instruction, steps, reset reason, skew_ns."""
    ages: np.ndarray
    """int64 [actions, len(AGE_COLUMNS)]"""
    fates: Mapping[str, Mapping[str, Any]]
    """Last counts of each source."""
    events: Sequence[Mapping[str, Any]]
    ended: bool
    """Shut down in order; False after a kill."""

    def column(self, name: str) -> np.ndarray:
        """One column of `ages`, int64 [actions]."""
        return np.asarray(self.ages[:, AGE_COLUMNS.index(name)])

    @property
    def age_ns(self) -> np.ndarray:
        """Apply minus capture, int64 [actions]."""
        return np.asarray(self.column("apply_ns") - self.column("capture_ns"))


def read_run(path: Path) -> Run:
    """Read one log.

    Raises:
        AgeLogError: it is empty or not such a log.
        FileNotFoundError: no such file.
    """
    settings: Mapping[str, Any] | None = None
    chunks, notes, ages, events = [], [], [], []
    fates: dict[str, Mapping[str, Any]] = {}
    ended = False
    known = ChunkRecord.__dataclass_fields__
    for record in read_records(path):
        kind = record["type"]
        if kind == "age":
            ages.append([record[name] for name in AGE_COLUMNS])
        elif kind == "chunk":
            chunks.append(chunk_from(record))
            notes.append({key: value for key, value in record.items() if key not in known})
        elif kind == "fates":
            fates[record["source"]] = record["counts"]
        elif kind == "event":
            events.append(record)
        elif kind == "run":
            settings = record["settings"]
        elif kind == "end":
            ended = True
    if settings is None:
        raise AgeLogError(f"{path}: the log is empty")
    table = np.array(ages, dtype=np.int64).reshape(-1, len(AGE_COLUMNS))
    return Run(path, settings, chunks, notes, table, fates, events, ended)
