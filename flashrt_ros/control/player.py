"""Plays chunks at their time: one action when it is due, a hold when there is none that may be applied."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.chunk import Chunk

HOLD_EXHAUSTED = "exhausted"
"""The last action was applied and no newer chunk came."""
HOLD_STALE = "stale"
"""The observation behind the chunk is too old."""
HOLD_CLOCK = "clock_jump"
"""The clock went back behind the chunk's capture."""


@dataclass(frozen=True, slots=True, eq=False)
class PlayableChunk:
    """What a player needs of a chunk."""

    chunk_id: int
    capture_ns: int
    planned_start_ns: int
    period_ns: int
    first_valid_index: int
    joint_names: Sequence[str]
    actions: NDArray[np.float32]
    """[horizon, joints]"""
    end_index: int
    """Actions from here on are too old to be applied."""

    @classmethod
    def of(cls, chunk: Chunk, joint_names: Sequence[str]) -> PlayableChunk:
        """A session's chunk, where no message lies between."""
        return cls(
            chunk_id=chunk.chunk_id,
            capture_ns=chunk.timeline.capture_ns,
            planned_start_ns=chunk.planned_start_ns,
            period_ns=chunk.inference.period_ns,
            first_valid_index=chunk.first_valid_index,
            joint_names=joint_names,
            actions=chunk.actions,
            end_index=chunk.end_index,
        )


@dataclass(frozen=True, slots=True, eq=False)
class DueAction:
    """An action whose time has come."""

    chunk_id: int
    action_index: int
    planned_ns: int
    positions: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class _Stop:
    """A motion that comes to rest."""

    start_ns: int
    position: NDArray[np.float64]
    velocity: NDArray[np.float64]
    """Per nanosecond."""

    def at(self, passed_ns: int, stop_ns: int) -> NDArray[np.float64]:
        """Position [joints]; the velocity falls linearly."""
        return self.position + self.velocity * (passed_ns - passed_ns**2 / (2.0 * stop_ns))


class ChunkPlayer:
    """Keeps the newest chunk and gives out each of its actions at most once.

    Args:
        joint_names: joints that this player commands, in order; every chunk must name the same ones.
        max_age_ns: an action is not applied when its observation is older than this.
        stop_ns: how long a motion takes to come to rest when actions run out; 0 holds at the last one.
    """

    def __init__(self, joint_names: Sequence[str], max_age_ns: int, stop_ns: int = 0) -> None:
        self._joint_names = list(joint_names)
        self.max_age_ns = max_age_ns
        self.stop_ns = stop_ns
        self._chunk: PlayableChunk | None = None
        self._next_index = 0
        self._applied: deque[tuple[int, NDArray[np.float64]]] = deque(maxlen=2)
        self._stop: _Stop | None = None
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        """Chunks that were not taken, by reason."""
        self.holds: Counter[str] = Counter()
        """Times that a hold began, by reason."""
        self.hold_reason = ""
        """Why nothing is being applied; empty while actions flow or none was ever received."""

    def accept(self, chunk: PlayableChunk, now_ns: int) -> str:
        """Take a chunk in place of the one before.

        Returns:
            Empty when it was taken, else the reason, which is counted: `joint_names`, `shape`, `not_finite`, `older`,
            `all_past`, `stale`.
        """
        reason = self._why_not(chunk, now_ns)
        if reason:
            self.refused[reason] += 1
            return reason
        self._chunk = chunk
        self._next_index = chunk.first_valid_index
        self.accepted += 1
        return ""

    def due(self, now_ns: int) -> DueAction | None:
        """The action to apply now, if a new one is due; the newest when several are."""
        chunk = self._chunk
        if chunk is None:
            return None
        if now_ns < chunk.capture_ns:
            self._chunk = None
            return self._hold(HOLD_CLOCK, now_ns)
        if now_ns - chunk.capture_ns > self.max_age_ns:
            return self._hold(HOLD_STALE, now_ns)
        index = (now_ns - chunk.planned_start_ns) // chunk.period_ns
        if index >= chunk.end_index and self._next_index >= chunk.end_index:
            return self._hold(HOLD_EXHAUSTED, now_ns)
        index = min(index, chunk.end_index - 1)
        if index < self._next_index:
            return None
        self._next_index = index + 1
        self.hold_reason = ""
        self._stop = None
        planned_ns = chunk.planned_start_ns + index * chunk.period_ns
        self._applied.append((planned_ns, chunk.actions[index].astype(np.float64)))
        return DueAction(chunk.chunk_id, index, planned_ns, chunk.actions[index])

    def stopping(self, now_ns: int) -> NDArray[np.float64] | None:
        """Where a motion that ran out of actions is to be now, [joints]; None when nothing is to be commanded.

        Not an action of any chunk: nothing is reported for it.
        """
        if self._stop is None:
            return None
        stop, passed_ns = self._stop, now_ns - self._stop.start_ns
        if passed_ns >= self.stop_ns:
            self._stop = None
        return stop.at(min(max(0, passed_ns), self.stop_ns), self.stop_ns)

    def _hold(self, reason: str, now_ns: int) -> DueAction | None:
        if self.hold_reason != reason:
            self.holds[reason] += 1
            if not self.hold_reason:
                self._begin_stop(now_ns)
        self.hold_reason = reason
        return None

    def _begin_stop(self, now_ns: int) -> None:
        if not self.stop_ns or len(self._applied) < 2:
            return
        (before_ns, before), (last_ns, last) = self._applied
        if before_ns < last_ns <= now_ns < last_ns + self.stop_ns:
            self._stop = _Stop(last_ns, last, (last - before) / (last_ns - before_ns))

    def _why_not(self, chunk: PlayableChunk, now_ns: int) -> str:
        if list(chunk.joint_names) != self._joint_names:
            return "joint_names"
        if chunk.actions.ndim != 2 or chunk.actions.shape[1] != len(self._joint_names):
            return "shape"
        if not np.isfinite(chunk.actions).all():
            return "not_finite"
        current = self._chunk
        # A chunk id that starts again at 1 is a policy that was restarted: its captures are newer.
        if current is not None and chunk.capture_ns <= current.capture_ns <= now_ns:
            return "older"
        if not 0 < chunk.end_index <= len(chunk.actions):
            return "shape"
        end_ns = chunk.planned_start_ns + chunk.end_index * chunk.period_ns
        if chunk.first_valid_index >= chunk.end_index or end_ns <= now_ns:
            return "all_past"
        if now_ns - chunk.capture_ns > self.max_age_ns:
            return "stale"
        return ""
