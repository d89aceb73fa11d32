"""What an openpi checkpoint does not record: cameras, delta mask, dimensions."""

from __future__ import annotations

import json
from collections.abc import Mapping
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

    def set_names(self) -> list[str]:
        """Names of the options that are set."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


_TYPES: Mapping[str, tuple[type, ...]] = {
    "asset_id": (str,),
    "norm_stats": (str,),
    "cameras": (list,),
    "delta_mask": (list,),
    "joint_velocity_step_rad": (int, float),
    "state_dim": (int,),
    "action_dim": (int,),
    "use_quantile_norm": (bool,),
    "discrete_state_input": (bool,),
    "max_tokens": (int,),
    "pad_state_to": (int,),
}


def options_for(folder: Path, given: ProcessingOptions | None) -> ProcessingOptions:
    """Options of a checkpoint: those given, over those of its file, over the defaults."""
    path = folder / FILE_NAME
    options = _read(path) if path.is_file() else ProcessingOptions()
    if given is None:
        return options
    return replace(options, **{name: getattr(given, name) for name in given.set_names()})


def _read(path: Path) -> ProcessingOptions:
    values = read_json(path)
    for name, value in values.items():
        if name not in _TYPES:
            raise ProcessingError(f"{path}: {name}: expected one of {', '.join(_TYPES)}")
        kinds = _TYPES[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ProcessingError(f"{path}: {name}: expected {expected}, found {value!r}")
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return ProcessingOptions(**plain)


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
