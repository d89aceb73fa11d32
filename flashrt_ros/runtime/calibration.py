"""Calibration data on disk: representative observations, activation ranges, and exactly what they were taken of.

A folder of three files. calibration.json: identity, settings, where each observation comes from, and the range of the
input of each matrix product; observations.safetensors: the views and states themselves; channels.safetensors: the
largest magnitude of each input channel. Whoever reads it says what it will be used for: another checkpoint, robot or
setting is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from flashrt_ros.models.activations import ActivationRange

FORMAT = 1
JSON_NAME = "calibration.json"
OBSERVATIONS_NAME, CHANNELS_NAME = "observations.safetensors", "channels.safetensors"
_BLOCK = 1 << 22


class CalibrationError(ValueError):
    """Calibration data that do not fit. Names the field, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class CalibrationKey:
    """What calibration data hold for, and nothing else."""

    weights_sha256: str
    """SHA-256 of the checkpoint's weights file, as `sha256sum` prints it."""
    contract_sha256: str
    """Of the robot contract, `Robot.sha256`."""
    settings: Mapping[str, Any]
    """Precision, denoising steps and whatever else changes what the network computes."""


@dataclass(frozen=True, slots=True, eq=False)
class CalibrationSample:
    """One observation as the network got it, and where it comes from."""

    views: Mapping[str, NDArray[np.uint8]]
    """uint8 [height, width, 3] RGB by feature."""
    state: NDArray[np.float32]
    """[joints], policy units."""
    instruction: str
    bag: str
    stamp_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Calibration data as read."""

    key: CalibrationKey
    samples: Sequence[CalibrationSample]
    ranges: Mapping[str, Mapping[str, float]]
    """`lowest`, `highest`, `largest`, `quantile`, `rms` of the input of each product, by name."""
    channel_largest: Mapping[str, NDArray[np.float32]]
    """[channels] by product."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a whole file, as `sha256sum` prints it."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def write_calibration(
    folder: Path,
    key: CalibrationKey,
    samples: Sequence[CalibrationSample],
    ranges: Mapping[str, ActivationRange],
) -> None:
    """Write a folder; the JSON last, so that what is not complete is not read.

    Raises:
        FileExistsError: it holds calibration data already.
    """
    if (folder / JSON_NAME).exists():
        raise FileExistsError(f"{folder} holds calibration data already: nothing is overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {}
    for number, sample in enumerate(samples):
        arrays[f"{number:05}.state"] = np.ascontiguousarray(sample.state, np.float32)
        for feature, view in sample.views.items():
            arrays[f"{number:05}.view.{feature}"] = np.ascontiguousarray(view)
    save_file(arrays, folder / OBSERVATIONS_NAME)
    channels = {name: found.channel_largest.numpy() for name, found in ranges.items()}
    save_file(channels, folder / CHANNELS_NAME)
    content = {
        "format": FORMAT,
        **asdict(key),
        "files_sha256": {
            name: file_sha256(folder / name) for name in (OBSERVATIONS_NAME, CHANNELS_NAME)
        },
        "observations": [
            {"bag": s.bag, "stamp_ns": s.stamp_ns, "instruction": s.instruction} for s in samples
        ],
        "ranges": {
            name: {
                "lowest": found.lowest,
                "highest": found.highest,
                "largest": found.largest,
                "quantile": found.quantile,
                "rms": found.rms,
                "rows": found.rows,
                "calls": found.calls,
            }
            for name, found in ranges.items()
        },
    }
    (folder / JSON_NAME).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load_calibration(folder: Path, wanted: CalibrationKey) -> Calibration:
    """Read a folder for a certain use.

    Raises:
        CalibrationError: it is damaged, or was taken of something else; names each field that differs.
        FileNotFoundError: there is none.
    """
    content = _read_json(folder / JSON_NAME)
    found = CalibrationKey(
        content["weights_sha256"], content["contract_sha256"], content["settings"]
    )
    wrong = _differences(found, wanted)
    if wrong:
        raise CalibrationError(
            f"{folder}: {'; '.join(wrong)}: calibrate again with `flashrt calibrate`"
        )
    for name, digest in content["files_sha256"].items():
        if file_sha256(folder / name) != digest:
            raise CalibrationError(f"{folder / name}: damaged: its SHA-256 is not {digest}")
    try:
        arrays = load_file(folder / OBSERVATIONS_NAME)
        channels = load_file(folder / CHANNELS_NAME)
    except SafetensorError as error:
        raise CalibrationError(f"{folder}: {error}") from error
    samples = [
        CalibrationSample(
            views={
                name.split(".", 2)[2]: array
                for name, array in arrays.items()
                if name.startswith(f"{number:05}.view.")
            },
            state=arrays[f"{number:05}.state"],
            **origin,
        )
        for number, origin in enumerate(content["observations"])
    ]
    return Calibration(found, samples, content["ranges"], channels)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        complete = {
            "weights_sha256",
            "contract_sha256",
            "settings",
            "files_sha256",
            "observations",
            "ranges",
        } <= content.keys()
    except (json.JSONDecodeError, AttributeError) as error:
        raise CalibrationError(f"{path}: not calibration data: {error}") from error
    if not complete or content.get("format") != FORMAT:
        raise CalibrationError(
            f"{path}: expected calibration data of format {FORMAT}, found format {content.get('format')!r}"
        )
    return dict(content)


def _differences(found: CalibrationKey, wanted: CalibrationKey) -> list[str]:
    wrong = []
    for name in ("weights_sha256", "contract_sha256"):
        have, expected = getattr(found, name), getattr(wanted, name)
        if have != expected:
            wrong.append(f"{name}: expected {expected}, found {have}")
    for name in sorted({*found.settings, *wanted.settings}):
        have, expected = found.settings.get(name), wanted.settings.get(name)
        if have != expected:
            wrong.append(f"setting {name}: expected {expected!r}, found {have!r}")
    return wrong
