"""Joint positions by name, at the moment of a picture."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_KEPT = 256


class JointStateError(ValueError):
    """No joint positions that could go with a picture. Says which joint is missing, or how old what there is."""


@dataclass(frozen=True, slots=True, eq=False)
class JointSample:
    """Positions of all joints at one moment."""

    capture_ns: int
    receive_ns: int
    positions: NDArray[np.float64]
    """[joints], in the order of the buffer's names."""


class JointStateBuffer:
    """Collects joint states, whole or in parts (a gripper that publishes apart), and finds the one nearest a picture.

    May be called from any thread.

    Args:
        joint_names: joints that are needed, in the order wanted. Others are ignored.
        max_age_ns: largest distance in time from the picture, and between the parts of one sample.
    """

    def __init__(self, joint_names: Sequence[str], max_age_ns: int) -> None:
        self._names = list(joint_names)
        self._index = {name: at for at, name in enumerate(self._names)}
        self._max_age_ns = max_age_ns
        self._positions = np.full(len(self._names), np.nan)
        self._heard_ns = [0] * len(self._names)
        self._changing = threading.Lock()
        # By capture. Never changed, only replaced: a picture's sample is sought without a lock while others come.
        self._samples: list[JointSample] = []
        self._last_error = "none was received"

    def add(
        self, names: Sequence[str], positions: Sequence[float], capture_ns: int, receive_ns: int
    ) -> None:
        """Take one message.

        Raises:
            JointStateError: names and positions do not pair, or a needed position is not finite; nothing is taken.
        """
        if len(names) != len(positions):
            self._fail(f"{len(names)} names but {len(positions)} positions: expected one for each")
        wanted = [
            (self._index[n], p) for n, p in zip(names, positions, strict=True) if n in self._index
        ]
        for index, position in wanted:
            if not math.isfinite(position):
                self._fail(f"position of {self._names[index]} is {position}: expected a number")
        with self._changing:
            # Parts may come a little out of order; further back the clock has jumped.
            if self._samples and capture_ns < self._samples[-1].capture_ns - self._max_age_ns:
                self._forget()
            for index, position in wanted:
                self._positions[index] = position
                self._heard_ns[index] = capture_ns
            missing = self._missing(capture_ns)
            if missing:
                self._last_error = (
                    f"it lacks {', '.join(missing)}: needed are {self._names}, found {list(names)}"
                )
                return
            sample = JointSample(capture_ns, receive_ns, self._positions.copy())
            samples = [*self._samples[1 - _KEPT :], sample]
            if len(samples) > 1 and samples[-2].capture_ns > capture_ns:
                samples.sort(key=_capture_ns)
            self._samples = samples

    def clear(self) -> None:
        """Forget everything (the clock jumped back)."""
        with self._changing:
            self._forget()

    def nearest(self, stamp_ns: int) -> JointSample:
        """The sample whose capture is nearest to a picture's.

        Raises:
            JointStateError: there is none within `max_age_ns`; says which joint is missing.
        """
        samples = self._samples
        if not samples:
            raise JointStateError(f"no joint state to go with the picture: {self._last_error}")
        after = bisect_left(samples, stamp_ns, key=_capture_ns)
        best = min(
            samples[max(0, after - 1) : after + 1], key=lambda s: abs(s.capture_ns - stamp_ns)
        )
        distance_ns = abs(best.capture_ns - stamp_ns)
        if distance_ns > self._max_age_ns:
            missing = self._missing(stamp_ns)
            detail = f"{', '.join(missing)} fell silent" if missing else "expected a fresher one"
            raise JointStateError(
                f"nearest joint state is {distance_ns / 1e6:.0f} ms from the picture, at most "
                f"{self._max_age_ns / 1e6:.0f} ms is allowed: {detail}"
            )
        return best

    def _missing(self, now_ns: int) -> list[str]:
        return [
            name
            for name, heard_ns in zip(self._names, self._heard_ns, strict=True)
            if heard_ns == 0 or now_ns - heard_ns > self._max_age_ns
        ]

    def _forget(self) -> None:
        self._samples = []
        self._heard_ns = [0] * len(self._names)
        self._last_error = "none was received since the clock jumped back"

    def _fail(self, what: str) -> None:
        self._last_error = what
        raise JointStateError(f"joint state refused: {what}")


def _capture_ns(sample: JointSample) -> int:
    return sample.capture_ns
