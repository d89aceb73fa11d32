"""How long a chunk will take from capture to publication, foreseen from those before it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum


class Estimate(str, Enum):
    """What is taken for the next delay."""

    LAST = "last"
    MEDIAN = "median"
    QUANTILE = "quantile"


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """How a delay is foreseen."""

    estimate: Estimate = Estimate.QUANTILE
    quantile: float = 0.9
    """Of `Estimate.QUANTILE`, 0 to 1. A delay foreseen too short lets the arm run into actions that were not frozen."""
    window: int = 32
    """Delays that count, the newest."""
    forget_ns: int = 10_000_000_000
    """Delays measured longer ago do not count any more."""


class DelayModel:
    """Delays of the last chunks [ns]. Each was measured: publication minus capture. May be read from any thread."""

    def __init__(self) -> None:
        self._measured: deque[tuple[int, int]] = deque()

    def add(self, delay_ns: int, now_ns: int, settings: DelaySettings) -> None:
        """Take the delay of a chunk that is published at `now_ns`."""
        if self._measured and now_ns < self._measured[-1][0]:
            self._measured.clear()  # the clock went back
        self._measured.append((now_ns, delay_ns))
        while len(self._measured) > settings.window:
            self._measured.popleft()

    def foresee_ns(self, now_ns: int, settings: DelaySettings) -> int:
        """The next chunk's delay [ns]; 0 where nothing is remembered. Quantiles are observed values."""
        delays = [
            delay_ns
            for at_ns, delay_ns in list(self._measured)[-settings.window :]
            if now_ns - at_ns <= settings.forget_ns
        ]
        if not delays:
            return 0
        if settings.estimate is Estimate.LAST:
            return delays[-1]
        quantile = 0.5 if settings.estimate is Estimate.MEDIAN else settings.quantile
        # What numpy calls `inverted_cdf`; its own takes a hundred times as long for so few numbers.
        return sorted(delays)[max(0, math.ceil(len(delays) * quantile - 1))]

    def forget(self) -> None:
        """Start afresh."""
        self._measured.clear()
