"""How long inference takes in the virtual time of a replay: as measured here, fixed, or as in another run."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

from flashrt_ros.offline.run_log import read_run

REAL = "real"


class LatencyError(ValueError):
    """A latency that is none. Says what was expected and what was found."""


class VirtualClock:
    """Time of a replay [ns]. It stands still unless it is set, or runs while something real is measured."""

    def __init__(self) -> None:
        self._base_ns = 0
        self._since_ns: int | None = None

    def now_ns(self) -> int:
        """Virtual time."""
        if self._since_ns is None:
            return self._base_ns
        return self._base_ns + time.perf_counter_ns() - self._since_ns

    def set(self, now_ns: int) -> None:
        """Jump to a time, and stand still."""
        self._base_ns, self._since_ns = now_ns, None

    def advance(self, duration_ns: int) -> None:
        """Let time pass."""
        self._base_ns += duration_ns

    def run(self) -> None:
        """Pass with real time, from now on until `set`."""
        self._base_ns, self._since_ns = self.now_ns(), time.perf_counter_ns()


class Latency:
    """Where the two durations of each inference come from.

    Args:
        infer_ns: inference durations to draw from; none: real ones.
        output_ns: end of inference to publication, drawn together with them.
        seed: of the draws.
    """

    def __init__(
        self, infer_ns: Sequence[int] = (), output_ns: Sequence[int] = (), seed: int = 0
    ) -> None:
        self._pairs = list(zip(infer_ns, output_ns, strict=True))
        self._random = random.Random(seed)

    @property
    def real(self) -> bool:
        """Measured on this machine: not the same twice."""
        return not self._pairs

    def draw(self) -> tuple[int, int]:
        """Inference and output duration [ns] of the next inference."""
        return self._random.choice(self._pairs)


def make_latency(text: str, seed: int = 0) -> Latency:
    """Latency by its description.

    Args:
        text: `real`; a number of milliseconds; or the path of a run's log, whose chunks are drawn from.
        seed: of the draws.

    Raises:
        LatencyError: none of these.
    """
    if text == REAL:
        return Latency()
    try:
        fixed_ms = float(text)
    except ValueError:
        path = Path(text).expanduser()
        if not path.is_file():
            raise LatencyError(
                f"latency: expected `{REAL}`, milliseconds, or the log of a run (ages.jsonl), found {text!r}"
            ) from None
        chunks = read_run(path).chunks
        if not len(chunks):
            raise LatencyError(f"latency: {path} holds no chunk to draw from") from None
        return Latency(
            (chunks["infer_end_ns"] - chunks["infer_start_ns"]).tolist(),
            (chunks["publish_ns"] - chunks["infer_end_ns"]).tolist(),
            seed,
        )
    if not 0 <= fixed_ms < 1e6:
        raise LatencyError(f"latency: expected milliseconds of at least 0, found {text!r}")
    return Latency([round(fixed_ms * 1e6)], [0])
