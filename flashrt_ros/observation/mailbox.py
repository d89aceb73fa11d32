"""Where synchronised sets wait for the worker that infers."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from flashrt_ros.observation.frame import FrameSet


@dataclass(slots=True)
class SetFates:
    """What became of the sets given out by the synchroniser. `received` equals the sum of all the others."""

    received: int = 0
    taken: int = 0
    """Handed to the worker."""
    superseded: int = 0
    """Pushed out by a newer set, or cleared, before the worker came."""
    waiting: int = 0


class Mailbox:
    """Hands sets from the thread that synchronises to the one that infers.

    With `depth` 1 the newest set replaces the one that waits (policy `newest`); with a larger depth sets are taken in
    order and the oldest makes room (policy `fifo`, for short events that must not be missed).
    """

    def __init__(self, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"depth must be >= 1, found {depth}")
        self._sets: deque[FrameSet] = deque()
        self._depth = depth
        self._changed = threading.Condition()
        self._closed = False
        self._fates = SetFates()

    def put(self, frame_set: FrameSet) -> None:
        """Leave a set for the worker and wake it."""
        with self._changed:
            self._fates.received += 1
            if len(self._sets) == self._depth:
                self._sets.popleft()
                self._fates.superseded += 1
            self._sets.append(frame_set)
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> FrameSet | None:
        """Wait for a set; None when the mailbox was closed or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._sets or self._closed, timeout_s)
            if self._closed or not self._sets:
                return None
            self._fates.taken += 1
            return self._sets.popleft()

    def clear(self) -> None:
        """Drop what waits (a clock jump, say); it counts as superseded."""
        with self._changed:
            self._fates.superseded += len(self._sets)
            self._sets.clear()

    def close(self) -> None:
        """Wake the worker for the last time: `take` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fates(self) -> SetFates:
        """Counts up to now."""
        with self._changed:
            return SetFates(
                self._fates.received, self._fates.taken, self._fates.superseded, len(self._sets)
            )
