"""What an openpi checkpoint does not record: cameras, delta mask, dimensions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flashrt_ros.models.errors import ProcessingError

FILE_NAME = "processing_options.json"

OPENPI_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


@dataclass(frozen=True)
class ProcessingOptions:
    """Choices that openpi keeps in its training configuration; None means openpi's default.

    A file `processing_options.json` beside the checkpoint sets them too; an argument wins over it.

    asset_id: which statistics of `assets/`; needed where there are several.
    norm_stats: path of a `norm_stats.json` outside the checkpoint, relative to it.
    cameras: image features in the model's order.
    delta_mask: openpi's short form, (6, -1): six joints relative to the state, one absolute.
    joint_velocity_step_rad: the masked joints are velocities in [-1, 1] of this many radians per
        period (DROID: 0.2, with delta_mask (7, -1)) instead of differences.
    state_dim, action_dim: the robot's numbers; default is the length of the statistics.
    use_quantile_norm: default is True for π0.5, False for π0.
    discrete_state_input: whether the prompt carries the state; default is True for π0.5.
    max_tokens: default is 200 for π0.5, 48 for π0.
    pad_state_to: see `StatePrompt`; the only option that a LeRobot checkpoint takes.
    """

    asset_id: str | None = None
    norm_stats: str | None = None
    cameras: tuple[str, ...] | None = None
    delta_mask: tuple[int, ...] | None = None
    joint_velocity_step_rad: float | None = None
    state_dim: int | None = None
    action_dim: int | None = None
    use_quantile_norm: bool | None = None
    discrete_state_input: bool | None = None
    max_tokens: int | None = None
    pad_state_to: int | None = None

    def __post_init__(self) -> None:
        for name in self.set_names():
            expected, right = _EXPECTED[name]
            value = getattr(self, name)
            if not right(value):
                raise ProcessingError(f"{name}: expected {expected}, found {value!r}")

    def set_names(self) -> list[str]:
        """Names of the options that are set."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_COUNT = ("a whole number above 0", _is_count)
_FLAG = ("true or false", _is_flag)
_TEXT = ("a name", _is_text)
_EXPECTED: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "asset_id": _TEXT,
    "norm_stats": _TEXT,
    "cameras": (
        "a list of names",
        lambda value: isinstance(value, tuple) and all(map(_is_text, value)),
    ),
    "delta_mask": (
        "whole numbers, such as 6, -1",
        lambda value: isinstance(value, tuple) and all(type(run) is int and run for run in value),
    ),
    "joint_velocity_step_rad": (
        "a number above 0",
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
    ),
    "state_dim": _COUNT,
    "action_dim": _COUNT,
    "use_quantile_norm": _FLAG,
    "discrete_state_input": _FLAG,
    "max_tokens": _COUNT,
    "pad_state_to": _COUNT,
}


def options_for(folder: Path, given: ProcessingOptions | None) -> ProcessingOptions:
    """Options of a checkpoint: those given, over those of its file, over the defaults."""
    path = folder / FILE_NAME
    options = read_options(path) if path.is_file() else ProcessingOptions()
    if given is None:
        return options
    return replace(options, **{name: getattr(given, name) for name in given.set_names()})


def read_options(path: Path) -> ProcessingOptions:
    """Read a file of options; ProcessingError names the file and the field."""
    values = read_json(path)
    unknown = sorted(set(values) - set(_EXPECTED))
    if unknown:
        raise ProcessingError(f"{path}: {unknown[0]}: expected one of {', '.join(_EXPECTED)}")
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return ProcessingOptions(**plain)
    except ProcessingError as error:
        raise ProcessingError(f"{path}: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file. Raises ProcessingError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ProcessingError(f"{path}: expected this file, found none") from None
    except (OSError, ValueError) as error:
        raise ProcessingError(f"{path}: expected JSON, found: {error}") from None
    if not isinstance(values, dict):
        raise ProcessingError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return values


def require(values: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """Return `values[key]` if it is of that kind. Raises ProcessingError with file, key, found."""
    value = values.get(key)
    if not isinstance(value, kind):
        found = "nothing" if value is None else repr(value)
        raise ProcessingError(f"{where}: {key}: expected {kind.__name__}, found {found}")
    return value
