"""Frames lost before they reached this process, seen from the stamps of those that did."""

from __future__ import annotations

from collections import deque

_WINDOW = 32
_MIN_SAMPLES = 4


class GapCounter:
    """Counts the frames that a periodic camera took and that never arrived.

    The period is the lower quartile of the last intervals between capture stamps: robust against jitter, and against
    losses of up to three frames in four. Losses as regular as the camera itself (each second frame, always) look like
    a slower camera; give `period_ns` where the rate is known.

    Args:
        period_ns: the camera's period where it is known [ns]; learned otherwise.
    """

    def __init__(self, period_ns: int | None = None) -> None:
        self._given_period_ns = period_ns
        self._intervals_ns: deque[int] = deque(maxlen=_WINDOW)
        self._last_ns: int | None = None
        self.lost = 0
        """Frames missing so far."""

    @property
    def period_ns(self) -> int | None:
        """The camera's period [ns]; None until enough frames came."""
        if self._given_period_ns is not None:
            return self._given_period_ns
        if len(self._intervals_ns) < _MIN_SAMPLES:
            return None
        return sorted(self._intervals_ns)[len(self._intervals_ns) // 4]

    def add(self, capture_ns: int) -> int:
        """Take a frame's capture stamp; return how many were lost since the one before.

        A stamp that does not advance (a repeated frame, a clock that jumped back) starts afresh.
        """
        last_ns, self._last_ns = self._last_ns, capture_ns
        if last_ns is None or capture_ns <= last_ns:
            return 0
        interval_ns = capture_ns - last_ns
        period_ns = self.period_ns
        self._intervals_ns.append(interval_ns)
        if period_ns is None:
            return 0
        lost = max(0, (interval_ns + period_ns // 2) // period_ns - 1)
        self.lost += lost
        return lost
