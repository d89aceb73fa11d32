"""Stage bodies with their arguments as launches of a plan: what each is keyed by, and what is built beforehand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from flashrt_ros.models.flow import FlowTimes, uniform_times
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.runtime.contract import Buffers
from flashrt_ros.runtime.operators import (
    Guidance,
    Operators,
    Part,
    Shape,
    buckets,
)
from flashrt_ros.runtime.plan import Plan

Unbuilt = Literal["build", "refuse"]
"""What happens to a call of a shape that was not built: it waits until that is done, or it is refused."""

_Key = tuple[Hashable, ...]
_Launch = tuple[_Key, Callable[[], None]]


class ShapeError(ValueError):
    """A call of a shape that was not built; names it and says what was."""


class Launcher:
    """Launches the operators' stage bodies through a plan. One method for each stage.

    Args:
        policy: whose flow times are prepared.
        operators: with their buffers bound.
        buffers: these.
        plan: what executes.
        unbuilt: see `Unbuilt`.
        progress: told of each graph before it is captured, and of "" when one that a call waited for is done.
        guided: velocities of single steps are built, too.
    """

    def __init__(
        self,
        policy: FlowPolicy,
        operators: Operators,
        buffers: Buffers,
        plan: Plan,
        unbuilt: Unbuilt,
        progress: Callable[[str], None],
        guided: bool = False,
    ) -> None:
        self._policy = policy
        self._operators = operators
        self._buffers = buffers
        self._plan = plan
        self._unbuilt = unbuilt
        self._guided = guided
        self._quiet = False
        self._progress = progress
        self._times: dict[tuple[float, ...], FlowTimes] = {}
        self._choices = tuple(operators.choices().items())

    def build(self, present: Sequence[tuple[int, ...]], flows: Sequence[FlowTimes]) -> None:
        """Build whatever calls with these sets of cameras and flow times may launch."""
        launches = dict(self._launches(present, flows))
        for number, (key, body) in enumerate(launches.items(), start=1):
            if not self._plan.built((self._choices, key)):
                self._progress(f"capturing graph {number} of {len(launches)}: {key[0]}")
                self._plan.build((self._choices, key), body)
        self._plan.wait()

    def warm_up(self, cameras: tuple[int, ...], shape: Shape, times: FlowTimes) -> None:
        """Launch every stage once on whatever the buffers hold: libraries load and pick their algorithms now."""
        self.see(cameras, 0)
        self.read_prompt(shape, "fixed")
        self.read_prompt(shape, "moving")
        self.encode(shape)
        if self._policy.config.family == "pi0":
            self.append_state(shape)
        self.denoise(shape, times)
        self._plan.wait()

    def choose(self, site: str, candidate: str) -> None:
        """Use a candidate from the next launch on."""
        self._operators.choose(site, candidate)
        self._choices = tuple(self._operators.choices().items())

    def drop_other_choices(self) -> None:
        """Give back the graphs of candidates that are not in use."""
        self._plan.drop(lambda key: isinstance(key, tuple) and key[0] != self._choices)

    @contextmanager
    def building(self) -> Iterator[None]:
        """Whatever is launched inside is built, without a word, whatever `unbuilt` says: candidates on trial."""
        before = self._unbuilt
        self._unbuilt, self._quiet = "build", True
        try:
            yield
        finally:
            self._unbuilt, self._quiet = before, False

    def flow_times(self, steps: int, start_time: float) -> FlowTimes:
        """Terms of equally spaced times, prepared once. Raises ValueError as `uniform_times`."""
        key = uniform_times(steps, start_time)
        if key not in self._times:
            with self._plan.stream():
                times = self._policy.flow_times(key)
                self._operators.prepare_times(times)
            self._times[key] = times
        return self._times[key]

    def see(self, cameras: tuple[int, ...], first: int) -> None:
        """Launch `Operators.see`."""
        self._launch(self._see(cameras, first))

    def read_prompt(self, shape: Shape, part: Part) -> None:
        """Launch `Operators.read_prompt`."""
        self._launch(self._read_prompt(shape, part))

    def encode(self, shape: Shape) -> None:
        """Launch `Operators.encode`."""
        self._launch(self._encode(shape))

    def append_state(self, shape: Shape) -> None:
        """Launch `Operators.append_state`."""
        self._launch(self._append_state(shape))

    def denoise(self, shape: Shape, times: FlowTimes, guidance: Guidance | None = None) -> None:
        """Launch `Operators.denoise`; with guidance, each step's velocity, which may then be changed."""
        if guidance is None:
            self._launch(self._denoise(shape, times))
            return
        x, v = self._buffers["actions"], self._buffers["velocity"]
        with self._plan.stream():
            x.copy_(self._buffers["x0"])
        for step, (time, size) in enumerate(zip(times.times, times.step_sizes, strict=True)):
            self._launch(self._velocity(shape, times, step))
            with self._plan.stream():
                x.add_(guidance(step, time, x.clone(), v.clone()), alpha=size)

    def _see(self, cameras: tuple[int, ...], first: int) -> _Launch:
        return ("see", cameras, first), lambda: self._operators.see(cameras, first)

    def _read_prompt(self, shape: Shape, part: Part) -> _Launch:
        return ("read_prompt", shape, part), lambda: self._operators.read_prompt(shape, part)

    def _encode(self, shape: Shape) -> _Launch:
        return ("encode", shape), lambda: self._operators.encode(shape)

    def _append_state(self, shape: Shape) -> _Launch:
        return ("append_state", shape), lambda: self._operators.append_state(shape)

    def _denoise(self, shape: Shape, times: FlowTimes) -> _Launch:
        return ("denoise", shape, times.times), lambda: self._operators.denoise(shape, times)

    def _velocity(self, shape: Shape, times: FlowTimes, step: int) -> _Launch:
        key = ("velocity", shape, times.times, step)
        return key, lambda: self._operators.velocity(shape, times, step)

    def _launches(
        self, present: Sequence[tuple[int, ...]], flows: Sequence[FlowTimes]
    ) -> Iterator[_Launch]:
        """Every neighbouring group of views may be due alone; every bucket may be met with every number of views."""
        for cameras in present:
            for first in range(len(cameras)):
                for end in range(first + 1, len(cameras) + 1):
                    yield self._see(cameras[first:end], first)
        config = self._policy.config
        for views in sorted({len(cameras) for cameras in present}):
            for bucket in buckets(config.max_prompt_tokens):
                shape = Shape(views, bucket)
                yield self._read_prompt(shape, "fixed")
                yield self._read_prompt(shape, "moving")
                yield self._encode(shape)
                if config.family == "pi0":
                    yield self._append_state(shape)
                for times in flows:
                    yield self._denoise(shape, times)
                    if self._guided:
                        for step in range(len(times.times)):
                            yield self._velocity(shape, times, step)

    def _launch(self, launch: _Launch) -> None:
        key, body = launch
        full = (self._choices, key)
        if not self._plan.built(full):
            if self._unbuilt == "refuse":
                raise ShapeError(f"{key}: this shape was not built, and `unbuilt` is refuse")
            if not self._quiet:
                self._progress(f"capturing a graph for a new shape: {key}")
            self._plan.build(full, body)
            if not self._quiet:
                self._progress("")
        self._plan.launch(full, body)
