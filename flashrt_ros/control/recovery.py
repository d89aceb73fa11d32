"""How long the inferences took that recovered from a reset, and how often the plan ran out meanwhile."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

_KEPT = 1000
PERCENTILES = (50, 95, 99)


class RecoveryStatistics:
    """Of the newest recoveries, start of inference to publication."""

    def __init__(self) -> None:
        self._durations_ns: deque[int] = deque(maxlen=_KEPT)
        self.deadlines_missed: Counter[str] = Counter()
        """Chunks during whose inference the plan ran out: `recovery` after a reset, else `steady`."""

    def add(self, recovery_ns: int, missed: bool) -> None:
        """Take a chunk; `recovery_ns` is 0 for one that did not recover from a reset."""
        if recovery_ns:
            self._durations_ns.append(recovery_ns)
        if missed:
            self.deadlines_missed["recovery" if recovery_ns else "steady"] += 1

    def percentiles_ms(self) -> dict[str, float]:
        """`p50_ms`, `p95_ms`, `p99_ms` and their `count`; empty while nothing was recovered from."""
        if not self._durations_ns:
            return {}
        values = np.array(list(self._durations_ns), np.int64)
        found = np.percentile(values, PERCENTILES, method="inverted_cdf") / 1e6
        named = {f"p{q}_ms": float(value) for q, value in zip(PERCENTILES, found, strict=True)}
        return {"count": len(values), **named}
