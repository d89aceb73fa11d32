"""Joins chunks with the actions that were applied: the age of each, and a fate for every action published.

Percentiles over applied actions alone flatter: a chunk that came too late to be used would not count. So each action
of each chunk ends in exactly one fate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flashrt_ros.observation.timeline import TERMS, AgeTerms, Timeline

APPLIED = "applied"
SUPERSEDED = "superseded"
"""Never applied: a newer chunk had begun by the time it was due."""
EXPIRED = "expired"
"""Never applied, and no newer chunk was the reason."""
SKIPPED = "skipped"
"""Already in the past when its chunk was published."""
PENDING = "pending"
FATES = (APPLIED, SUPERSEDED, EXPIRED, SKIPPED, PENDING)

STATISTICS_ROWS = ("age", *TERMS)
"""Rows of `AgeWindow.percentiles`."""


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What the ages need to know of a published chunk."""

    chunk_id: int
    timeline: Timeline
    planned_start_ns: int
    period_ns: int
    horizon: int
    first_valid_index: int
    end_index: int | None = None
    """Actions from here on are too old to be applied; None where all may be."""

    def planned_ns(self, action_index: int) -> int:
        """When an action is due, ROS time."""
        return self.planned_start_ns + action_index * self.period_ns


@dataclass(frozen=True, slots=True)
class ActionAge:
    """The age of the observation behind one applied action."""

    chunk_id: int
    action_index: int
    capture_ns: int
    apply_ns: int
    terms: AgeTerms
    measured: bool
    """From an `ActionApplied` message; else the planned time."""


@dataclass(slots=True)
class _OpenChunk:
    record: ChunkRecord
    applied: set[int] = field(default_factory=set)


class AgeJoiner:
    """Joins in the order of arrival; memory is bounded by the chunks whose time is not over.

    Args:
        grace_ns: how long after its last planned action a chunk waits for reports of application.
        orphan_limit: reports that may wait for a chunk message which arrives after them.
    """

    def __init__(self, grace_ns: int = 1_000_000_000, orphan_limit: int = 1000) -> None:
        self._grace_ns = grace_ns
        self._open: dict[int, _OpenChunk] = {}
        self._orphans: deque[tuple[int, int, int]] = deque()
        self._orphan_limit = orphan_limit
        self._first_use_ns: dict[int, int] = {}
        self._settled: Counter[str] = Counter()
        self._measured_seen = False
        self.chunks = 0
        self.refused: Counter[str] = Counter()
        """Reports that could not be joined, by reason: `unknown_chunk`, `repeated`, `index_out_of_range`."""

    def add_chunk(self, record: ChunkRecord) -> list[ActionAge]:
        """Take a published chunk; return the ages that this settles: of reports that had waited for it, say."""
        self.chunks += 1
        ages = []
        if record.chunk_id in self._open:
            # A policy that was restarted counts from 1 again.
            ages += list(self._close(self._open[record.chunk_id]))
        self._open[record.chunk_id] = _OpenChunk(record)
        waited = [report for report in self._orphans if report[0] == record.chunk_id]
        if waited:
            self._orphans = deque(r for r in self._orphans if r[0] != record.chunk_id)
        joined = (self.add_applied(*report) for report in waited)
        return ages + [age for age in joined if age is not None]

    def add_applied(self, chunk_id: int, action_index: int, apply_ns: int) -> ActionAge | None:
        """Take a report that an action was applied; return its age, if its chunk is known."""
        self._measured_seen = True
        chunk = self._open.get(chunk_id)
        if chunk is None:
            self._orphans.append((chunk_id, action_index, apply_ns))
            if len(self._orphans) > self._orphan_limit:
                self._orphans.popleft()
                self.refused["unknown_chunk"] += 1
            return None
        if not 0 <= action_index < chunk.record.horizon:
            self.refused["index_out_of_range"] += 1
            return None
        if action_index in chunk.applied:
            self.refused["repeated"] += 1
            return None
        chunk.applied.add(action_index)
        self._first_use_ns.setdefault(chunk_id, apply_ns)
        return _age(chunk.record, action_index, apply_ns, measured=True)

    def settle(self, now_ns: int) -> list[ActionAge]:
        """Close the chunks whose time is over; return planned ages where nobody reports applications."""
        over = [
            chunk
            for chunk in self._open.values()
            if chunk.record.planned_ns(chunk.record.horizon) + self._grace_ns <= now_ns
        ]
        return [age for chunk in over for age in self._close(chunk)]

    def finish(self) -> list[ActionAge]:
        """Close everything, at the end of a run."""
        self.refused["unknown_chunk"] += len(self._orphans)
        self._orphans.clear()
        return [age for chunk in list(self._open.values()) for age in self._close(chunk)]

    def fates(self) -> dict[str, int]:
        """What became of every action published so far, by the names of `FATES`."""
        counts = Counter(self._settled)
        for chunk in self._open.values():
            counts[APPLIED] += len(chunk.applied)
            counts[PENDING] += chunk.record.horizon - len(chunk.applied)
        return {fate: counts[fate] for fate in FATES}

    def _close(self, chunk: _OpenChunk) -> Iterator[ActionAge]:
        record = chunk.record
        newer_ns = self._newer_start_ns(record)
        for index in range(record.horizon):
            planned_ns = record.planned_ns(index)
            if index in chunk.applied:
                self._settled[APPLIED] += 1
            elif index < record.first_valid_index:
                self._settled[SKIPPED] += 1
            elif newer_ns is not None and planned_ns >= newer_ns - record.period_ns:
                self._settled[SUPERSEDED] += 1
            elif self._measured_seen or (
                record.end_index is not None and index >= record.end_index
            ):
                self._settled[EXPIRED] += 1
            else:
                self._settled[APPLIED] += 1
                yield _age(record, index, planned_ns, measured=False)
        del self._open[record.chunk_id]
        self._first_use_ns.pop(record.chunk_id, None)

    def _newer_start_ns(self, than: ChunkRecord) -> int | None:
        """When the next chunk began to be used: measured where reports exist, else planned."""
        starts = []
        for other in self._open.values():
            record = other.record
            if record.timeline.capture_ns <= than.timeline.capture_ns:
                continue
            if not self._measured_seen:
                starts.append(record.planned_ns(record.first_valid_index) + record.period_ns)
            elif record.chunk_id in self._first_use_ns:
                starts.append(self._first_use_ns[record.chunk_id])
        return min(starts, default=None)


def _age(record: ChunkRecord, index: int, apply_ns: int, *, measured: bool) -> ActionAge:
    return ActionAge(
        chunk_id=record.chunk_id,
        action_index=index,
        capture_ns=record.timeline.capture_ns,
        apply_ns=apply_ns,
        terms=record.timeline.terms(apply_ns),
        measured=measured,
    )


class AgeWindow:
    """The ages of the last while, for running statistics."""

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._ages: deque[ActionAge] = deque()

    def add(self, age: ActionAge) -> None:
        """Take one age; those older than the window against it go."""
        self._ages.append(age)
        self.trim(age.apply_ns)

    def trim(self, now_ns: int) -> None:
        """Drop what is older than the window."""
        while self._ages and self._ages[0].apply_ns < now_ns - self._window_ns:
            self._ages.popleft()

    def __len__(self) -> int:
        return len(self._ages)

    @property
    def measured(self) -> int:
        """How many of them have a measured t_apply."""
        return sum(age.measured for age in self._ages)

    def percentiles(self, q: Sequence[float]) -> np.ndarray:
        """Percentiles of age and terms.

        Returns:
            int64 [len(q), len(STATISTICS_ROWS)] in nanoseconds; zeros without ages.
        """
        return percentiles([age.terms for age in self._ages], q)


def percentiles(terms: Sequence[AgeTerms], q: Sequence[float]) -> np.ndarray:
    """Percentiles (an observed value, no interpolation) of age and terms, int64 [len(q), len(STATISTICS_ROWS)] ns."""
    if not terms:
        return np.zeros((len(q), len(STATISTICS_ROWS)), dtype=np.int64)
    table = np.array(
        [(t.age_ns, t.input_ns, t.queue_ns, t.infer_ns, t.output_ns, t.wait_ns) for t in terms],
        dtype=np.int64,
    )
    return np.percentile(table, q, axis=0, method="inverted_cdf")
