"""Joint positions by name, at the moment of a picture."""

from __future__ import annotations

from collections import deque
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

    Args:
        joint_names: joints that are needed, in the order wanted. Others are ignored.
        max_age_ns: largest distance in time from the picture, and between the parts of one sample.
    """

    def __init__(self, joint_names: Sequence[str], max_age_ns: int) -> None:
        self._names = list(joint_names)
        self._index = {name: at for at, name in enumerate(self._names)}
        self._max_age_ns = max_age_ns
        self._positions = np.full(len(self._names), np.nan)
        self._heard_ns = np.zeros(len(self._names), dtype=np.int64)
        self._samples: deque[JointSample] = deque(maxlen=_KEPT)
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
            if not np.isfinite(position):
                self._fail(f"position of {self._names[index]} is {position}: expected a number")
        # Parts may come a little out of order; further back the clock has jumped.
        if self._samples and capture_ns < self._samples[-1].capture_ns - self._max_age_ns:
            self.clear()
        for index, position in wanted:
            self._positions[index] = position
            self._heard_ns[index] = capture_ns
        missing = self._missing(capture_ns)
        if missing:
            self._last_error = (
                f"it lacks {', '.join(missing)}: needed are {self._names}, found {list(names)}"
            )
            return
        self._samples.append(JointSample(capture_ns, receive_ns, self._positions.copy()))

    def clear(self) -> None:
        """Forget everything (the clock jumped back)."""
        self._samples.clear()
        self._heard_ns[:] = 0
        self._last_error = "none was received since the clock jumped back"

    def nearest(self, stamp_ns: int) -> JointSample:
        """The sample whose capture is nearest to a picture's.

        Raises:
            JointStateError: there is none within `max_age_ns`; says which joint is missing.
        """
        # A copy, which is made in one step: `add` may run in another thread.
        samples = self._samples.copy()
        best = min(samples, key=lambda s: abs(s.capture_ns - stamp_ns), default=None)
        if best is None:
            raise JointStateError(f"no joint state to go with the picture: {self._last_error}")
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
        stale = (now_ns - self._heard_ns > self._max_age_ns) | (self._heard_ns == 0)
        return [name for name, old in zip(self._names, stale, strict=True) if old]

    def _fail(self, what: str) -> None:
        self._last_error = what
        raise JointStateError(f"joint state refused: {what}")
