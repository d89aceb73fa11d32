"""Numbers in and out of the networks: normalisation, and actions relative to the state.

Arithmetic follows the project that trained the checkpoint, its dtype included: openpi keeps its
statistics in float64, LeRobot in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flashrt_ros.models.errors import ProcessingError

Floats: TypeAlias = "NDArray[np.floating[Any]]"  # numpy 1.21 cannot evaluate it


def _as_upstream(values: ArrayLike, statistics: Floats) -> Floats:
    """Values in the dtype in which they meet the statistics, as upstream has it.

    LeRobot computes in float32 throughout; in openpi numpy's promotion decides, step by step.
    """
    array = np.asarray(values)
    return array.astype(np.float32) if statistics.dtype == np.float32 else array


def _check(what: str, values: Floats, dim: int, *, positive: bool = False) -> None:
    right = np.isfinite(values) & ((values > 0) | (not positive))
    if dim == 0 or values.shape != (dim,) or not right.all():
        kind = "positive" if positive else "finite"
        raise ProcessingError(
            f"{what}: expected {dim or 'some'} {kind} numbers, found {values.tolist()}"
        )


@dataclass(frozen=True, eq=False)
class Identity:
    """No normalisation."""

    kind: ClassVar[str] = "identity"

    @property
    def dim(self) -> int | None:
        """Any number of features."""
        return None

    def normalize(self, values: ArrayLike) -> Floats:
        """Return the values as they are, float32."""
        return np.asarray(values, dtype=np.float32)

    def unnormalize(self, values: ArrayLike) -> Floats:
        """Return the values as they are, float32."""
        return np.asarray(values, dtype=np.float32)

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, eq=False)
class MeanStd:
    """`(x - mean) / divide` and back with `x · multiply + mean`; arrays [dim] of one dtype.

    openpi has `divide = multiply = std + 1e-6`; LeRobot has `std + eps` and `std`.
    """

    mean: Floats
    divide: Floats
    multiply: Floats
    kind: ClassVar[str] = "mean_std"

    def __post_init__(self) -> None:
        _check("mean", self.mean, self.dim)
        _check("standard deviation", self.divide, self.dim, positive=True)
        _check("standard deviation", self.multiply, self.dim)

    @property
    def dim(self) -> int:
        """Number of features."""
        return len(self.mean)

    def normalize(self, values: ArrayLike) -> Floats:
        """[..., dim] in the robot's unit → standard deviations."""
        return (_as_upstream(values, self.mean) - self.mean) / self.divide

    def unnormalize(self, values: ArrayLike) -> Floats:
        """[..., dim] in standard deviations → the robot's unit."""
        return _as_upstream(values, self.mean) * self.multiply + self.mean

    def __str__(self) -> str:
        return f"mean and standard deviation, {self.dim} × {self.mean.dtype}"


@dataclass(frozen=True, eq=False)
class Range:
    """`(x - low) / width · 2 - 1` and back; arrays [dim] of one dtype.

    low and width come from quantiles or from minimum and maximum (`label`); openpi adds 1e-6 to the
    width, LeRobot replaces a width of zero by eps.
    """

    low: Floats
    width: Floats
    label: str
    kind: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        _check(self.label, self.low, self.dim)
        _check(f"width of {self.label}", self.width, self.dim, positive=True)

    @property
    def dim(self) -> int:
        """Number of features."""
        return len(self.low)

    def normalize(self, values: ArrayLike) -> Floats:
        """[..., dim] in the robot's unit → [-1, 1] within the range."""
        return (_as_upstream(values, self.low) - self.low) / self.width * 2 - 1

    def unnormalize(self, values: ArrayLike) -> Floats:
        """[..., dim] in [-1, 1] → the robot's unit."""
        return (_as_upstream(values, self.low) + 1) / 2 * self.width + self.low

    def __str__(self) -> str:
        return f"{self.label} ↔ [-1, 1], {self.dim} × {self.low.dtype}"


Scale = Identity | MeanStd | Range


def mean_std_openpi(mean: ArrayLike, std: ArrayLike) -> MeanStd:
    """Mean and standard deviation in float64 with openpi's 1e-6 both ways."""
    widened = np.asarray(std, np.float64) + 1e-6
    return MeanStd(np.asarray(mean, np.float64), widened, widened)


def quantiles_openpi(q01: ArrayLike, q99: ArrayLike) -> Range:
    """Quantiles in float64 with openpi's 1e-6 added to the width."""
    low = np.asarray(q01, np.float64)
    return Range(low, np.asarray(q99, np.float64) - low + 1e-6, "q01..q99")


def mean_std_lerobot(mean: ArrayLike, std: ArrayLike, eps: float) -> MeanStd:
    """Mean and standard deviation in float32 with LeRobot's eps on the way in only."""
    multiply = np.asarray(std, np.float32)
    return MeanStd(np.asarray(mean, np.float32), multiply + np.float32(eps), multiply)


def range_lerobot(low: ArrayLike, high: ArrayLike, eps: float, label: str) -> Range:
    """Quantiles or minimum and maximum in float32; a width of zero becomes LeRobot's eps."""
    lower = np.asarray(low, np.float32)
    width = np.asarray(high, np.float32) - lower
    return Range(lower, np.where(width == 0, np.float32(eps), width), label)


@dataclass(frozen=True)
class AddState:
    """Relative actions → absolute ones: `action + base` where the mask is true.

    The base is the raw state of the chunk's own observation. (openpi normalises and unnormalises it
    first: in float64 the same number to 1e-15.)
    """

    mask: tuple[bool, ...]
    kind: ClassVar[str] = "add_state"

    def __call__(self, actions: Floats, base: Floats) -> Floats:
        """Actions [H, A] relative to base [A] → absolute [H, A]."""
        return actions + np.where(self.mask, base, 0).astype(actions.dtype)

    def rebase(self, actions: Floats, old_base: Floats, new_base: Floats) -> Floats:
        """Actions [H, A] relative to one base [A] → the same positions relative to another."""
        return actions + np.where(self.mask, old_base - new_base, 0).astype(actions.dtype)

    def __str__(self) -> str:
        return f"relative → absolute: + state {describe_mask(self.mask)}"


@dataclass(frozen=True)
class IntegrateVelocity:
    """Velocities → absolute positions: `base + Σ clip(v, -1, 1) · step` where the mask is true.

    DROID's controller moves a joint by `step` = 0.2 rad per period at full speed, from where the
    joint then is; within a chunk this adds up the commanded steps instead of the measured ones.
    """

    mask: tuple[bool, ...]
    step: float
    kind: ClassVar[str] = "integrate_velocity"

    def __call__(self, actions: Floats, base: Floats) -> Floats:
        """Actions [H, A], velocities where the mask is true, and the base [A] → absolute [H, A]."""
        positions = base + np.cumsum(np.clip(actions, -1, 1) * self.step, axis=0)
        return np.where(self.mask, positions, actions).astype(actions.dtype)

    def __str__(self) -> str:
        return f"velocity → absolute: state + Σ v·{self.step:g} {describe_mask(self.mask)}"


Absolute = AddState | IntegrateVelocity


def mask_from_runs(runs: Sequence[int], dim: int) -> tuple[bool, ...]:
    """openpi's short form of a mask: (6, -1) is six times true, once false; shorter is false."""
    mask = [run > 0 for run in runs for _ in range(abs(run))]
    if len(mask) > dim:
        raise ProcessingError(f"delta_mask {tuple(runs)}: expected at most {dim} joints in all")
    return tuple(mask + [False] * (dim - len(mask)))


def describe_mask(mask: Sequence[bool]) -> str:
    """Say in words where a mask holds."""
    if all(mask):
        return "(all)"
    return f"(all but {', '.join(str(i) for i, on in enumerate(mask) if not on)})"


def to_json(part: Scale | Absolute) -> dict[str, Any]:
    """Plain values of a transform, arrays with their dtype; floats survive exactly."""
    values: dict[str, Any] = {"kind": part.kind}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, np.ndarray):
            values["dtype"] = str(value.dtype)
            value = value.tolist()
        values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def scale_from_json(values: dict[str, Any]) -> Scale:
    """Inverse of `to_json` for a normalisation."""
    if values["kind"] == Identity.kind:
        return Identity()
    dtype = np.dtype(values["dtype"])
    if values["kind"] == MeanStd.kind:
        return MeanStd(*(np.array(values[k], dtype) for k in ("mean", "divide", "multiply")))
    if values["kind"] == Range.kind:
        low, width = (np.array(values[key], dtype) for key in ("low", "width"))
        return Range(low, width, values["label"])
    raise ProcessingError(f"normalisation: unknown kind {values['kind']!r}")


def absolute_from_json(values: dict[str, Any]) -> Absolute:
    """Inverse of `to_json` for the step that makes actions absolute."""
    mask = tuple(values["mask"])
    if values["kind"] == AddState.kind:
        return AddState(mask)
    if values["kind"] == IntegrateVelocity.kind:
        return IntegrateVelocity(mask, values["step"])
    raise ProcessingError(f"relative actions: unknown kind {values['kind']!r}")
