"""The stamps of one observation's way to the robot, and the age that they add up to.

    A_k = t_apply,k - t_capture = input + queue + infer + output + wait_k

All stamps are integer nanoseconds of ROS time, so the sum is exact.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

TERMS = ("input", "queue", "infer", "output", "wait")
"""Names of the terms, in the order of time."""


def to_ns(stamp: Any) -> int:
    """Nanoseconds of a Time or Duration message, of ROS or read from a bag."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


@dataclass(frozen=True, slots=True)
class AgeTerms:
    """Where the age of one action went [ns]."""

    input_ns: int
    """Capture to receipt: sensor, driver, transport."""
    queue_ns: int
    """Receipt to the start of inference: synchronisation, waiting for the worker."""
    infer_ns: int
    output_ns: int
    """End of inference to publication."""
    wait_ns: int
    """Publication to application."""

    @property
    def age_ns(self) -> int:
        """Their sum."""
        return sum(astuple(self))


@dataclass(frozen=True, slots=True)
class Timeline:
    """Stamps of one inference [ns, ROS time], of the oldest synchronised frame where they differ by camera."""

    capture_ns: int
    receive_ns: int
    sync_ns: int
    infer_start_ns: int
    infer_end_ns: int
    publish_ns: int

    def terms(self, apply_ns: int) -> AgeTerms:
        """Split the age of an action applied at `apply_ns`."""
        return AgeTerms(
            input_ns=self.receive_ns - self.capture_ns,
            queue_ns=self.infer_start_ns - self.receive_ns,
            infer_ns=self.infer_end_ns - self.infer_start_ns,
            output_ns=self.publish_ns - self.infer_end_ns,
            wait_ns=apply_ns - self.publish_ns,
        )
