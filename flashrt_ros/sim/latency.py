"""How long an inference takes in simulated time: fixed, drawn from measured samples, or as on this machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_UNITS_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True)
class FixedLatency:
    """The same for every inference."""

    duration_ns: int

    def draw_ns(self, random: np.random.Generator, measured_ns: int, steps: int) -> int:
        """Simulated duration of an inference that took `measured_ns` here."""
        return self.duration_ns

    def __str__(self) -> str:
        return f"{self.duration_ns / 1e6:g}ms"


@dataclass(frozen=True)
class SampledLatency:
    """One of the durations that were measured elsewhere, drawn anew for each inference."""

    samples_ns: tuple[int, ...]
    source: str

    def draw_ns(self, random: np.random.Generator, measured_ns: int, steps: int) -> int:
        """Simulated duration of an inference that took `measured_ns` here."""
        return self.samples_ns[int(random.integers(len(self.samples_ns)))]

    def __str__(self) -> str:
        return f"{len(self.samples_ns)} samples of {self.source}"


@dataclass(frozen=True)
class RealLatency:
    """What the inference took on this machine: the one that makes two runs differ."""

    def draw_ns(self, random: np.random.Generator, measured_ns: int, steps: int) -> int:
        """Simulated duration of an inference that took `measured_ns` here."""
        return measured_ns

    def __str__(self) -> str:
        return "real"


@dataclass(frozen=True)
class StepLatency:
    """A part that does not depend on the denoising steps, and one for each of them."""

    fixed_ns: int
    step_ns: int

    def draw_ns(self, random: np.random.Generator, measured_ns: int, steps: int) -> int:
        """Simulated duration of an inference with so many denoising steps."""
        return self.fixed_ns + steps * self.step_ns

    def __str__(self) -> str:
        return f"{self.fixed_ns / 1e6:g}ms and {self.step_ns / 1e6:g}ms a step"


Latency = FixedLatency | SampledLatency | RealLatency | StepLatency


def parse_latency(text: str) -> Latency:
    """`40ms`, `0`, `0.1s`; `real`; or a JSON file with a list of milliseconds.

    Raises:
        ValueError: none of these, or a duration that is negative or not finite.
    """
    if text == "real":
        return RealLatency()
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)(us|ms|s)", text)
    if match:
        return FixedLatency(round(float(match[1]) * _UNITS_NS[match[2]]))
    if text == "0":
        return FixedLatency(0)
    path = Path(text)
    if not path.is_file():
        raise ValueError(
            f"latency {text!r}: expected a duration such as 40ms, `real`, or a JSON file with a "
            "list of milliseconds"
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    right = isinstance(values, list) and bool(values)
    right = right and all(type(v) in (int, float) and 0 <= v < float("inf") for v in values)
    if not right:
        raise ValueError(f"{path}: expected a list of milliseconds, at least one")
    return SampledLatency(tuple(round(value * 1e6) for value in values), path.name)
