"""Checkpoint folders of openpi (PyTorch), LeRobot and this project: recognise, check, load.

`open_checkpoint` reads JSON files and tensor headers only, and accounts for every tensor;
`load_weights` then copies from the memory-mapped file straight to the device. Nothing is
initialised at random and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flashrt_ros.models.config import FAMILIES, ModelConfig
from flashrt_ros.models.sizes import Shapes, config_from_shapes
from flashrt_ros.models.upstream import (
    PLUS_ONE,
    Source,
    canonical_keys,
    dropped_sources,
    output_embeddings,
    sources,
)
from flashrt_ros.models.weights import PRECISIONS, Weights, build_weights, tensor_specs

Layout = Literal["openpi", "lerobot", "flashrt"]

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
FLASHRT_FILE = "flashrt.json"
FLASHRT_VERSION = 1

_FLOATS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_PROMPT_TOKENS = {"pi0": 48, "pi05": 200}
_UNSUPPORTED_LEROBOT = ("use_visual_memory", "use_proprioceptive_memory", "use_peft")
# Size of ModelConfig → field of config.json. `vision_heads` is this project's addition: no
# upstream stores it, and only towers of an unusual width need it.
_LEROBOT_FIELDS = {
    "horizon": "chunk_size",
    "action_dim": "max_action_dim",
    "max_prompt_tokens": "tokenizer_max_length",
    "min_period": "min_period",
    "max_period": "max_period",
    "vision_heads": "vision_heads",
}
_OPENPI_FIELDS = {
    "horizon": "action_horizon",
    "action_dim": "action_dim",
    "vision_heads": "vision_heads",
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and the key or field."""


@dataclass(frozen=True)
class Checkpoint:
    """A recognised checkpoint whose tensors are all present, known and rightly shaped."""

    folder: Path
    layout: Layout
    config: ModelConfig
    settings: dict[str, Any]  # the folder's JSON: config.json, or flashrt.json
    weights_file: Path
    stored_keys: dict[str, str]  # openpi's key, or this project's name → key in the file
    stored_parameters: dict[str, int]  # 'float32', 'bfloat16', 'float16' → parameters stored so


def open_checkpoint(
    path: str | Path,
    *,
    horizon: int | None = None,
    vision_heads: int | None = None,
) -> Checkpoint:
    """Recognise the checkpoint folder at `path` and account for every tensor in it.

    Args:
        path: an openpi PyTorch folder, a LeRobot folder, or one written by `flashrt convert`.
        horizon: actions per chunk, where config.json has no `action_horizon`.
        vision_heads: attention heads of the vision tower, where neither its width (SigLIP's) nor
            a field `vision_heads` in config.json tells.

    Raises:
        CheckpointError: what was expected and what was found, in which file, under which key.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a checkpoint folder, found none")
    file = _weights_file(folder)
    asked = {"horizon": horizon, "vision_heads": vision_heads}
    given = {name: value for name, value in asked.items() if value is not None}
    if (folder / FLASHRT_FILE).exists():
        return _open_flashrt(folder, file, given)

    settings = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).exists() else {}
    layout: Layout = "lerobot" if "type" in settings else "openpi"
    if layout == "lerobot":
        _check_lerobot(folder / CONFIG_FILE, settings)
    stored, parameters = _read_header(file)
    keys = canonical_keys(stored)
    shapes = {key: stored[name] for key, name in keys.items()}
    family = _family(file, shapes)
    if layout == "lerobot" and settings["type"] != family:
        raise CheckpointError(
            f"{folder / CONFIG_FILE}: type: expected {family!r}, whose tensors are in {file.name}, "
            f"found {settings['type']!r}"
        )
    names = _LEROBOT_FIELDS if layout == "lerobot" else _OPENPI_FIELDS
    declared = {"max_prompt_tokens": _PROMPT_TOKENS[family]}
    declared |= {size: settings[name] for size, name in names.items() if name in settings}
    try:
        config = config_from_shapes(family, shapes, declared | given)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    required = [source for parts in sources(config).values() for source in parts]
    required += dropped_sources(config)
    _account(file, shapes, required, optional=output_embeddings(config))
    return Checkpoint(folder, layout, config, settings, file, keys, parameters)


def load_weights(
    checkpoint: Checkpoint, *, device: str | torch.device = "cpu", precision: str = "float32"
) -> Weights:
    """Load the network onto a device.

    On the CPU the tensors of a converted checkpoint are views of the mapped file where the
    precision is that of the file: do not overwrite it while they live.

    Args:
        checkpoint: from `open_checkpoint`.
        device: where the weights go.
        precision: 'float32' or 'bfloat16', of all but what `tensor_specs` keeps float32.

    Raises:
        CheckpointError: tensors hold NaN or infinity, or the file cannot be read.
        ValueError: unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {list(PRECISIONS)}, found {precision!r}")
    config, target = checkpoint.config, torch.device(device)
    upstream = None if checkpoint.layout == "flashrt" else sources(config)
    tensors: dict[str, Tensor] = {}
    finite: dict[str, Tensor] = {}
    with _mapped(checkpoint.weights_file) as file:

        def read(key: str) -> Tensor:
            tensor: Tensor = file.get_tensor(checkpoint.stored_keys[key]).to(target)
            if tensor.numel():
                finite[key] = torch.stack(torch.aminmax(tensor)).isfinite().all()
            return tensor

        for name, spec in tensor_specs(config).items():
            if upstream is None:
                tensors[name] = read(name).to(spec.dtype(precision))
                continue
            tensor = torch.empty(spec.shape, dtype=spec.dtype(precision), device=target)
            flat, start = tensor.view(-1), 0
            for source in upstream[name]:
                part = read(source.key).reshape(-1)
                flat[start : start + len(part)].copy_(part)
                start += len(part)
            tensors[name] = tensor.add_(1.0) if name in PLUS_ONE else tensor
    _check_finite(checkpoint.weights_file, finite)
    return build_weights(tensors)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object, or raise CheckpointError naming the file."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(values).__name__}")
    return values


def _check_finite(file: Path, finite: Mapping[str, Tensor]) -> None:
    """Stop at NaN or infinity, after one synchronisation for all tensors."""
    good = torch.stack(list(finite.values())).tolist()
    bad = [key for key, ok in zip(finite, good, strict=True) if not ok]
    if bad:
        raise CheckpointError(
            f"{file}: expected finite weights, found NaN or infinity in {_some(bad)}; "
            "the file is damaged or its training diverged"
        )


def _read_header(file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Shapes by key, and parameters by data type."""
    shapes: dict[str, tuple[int, ...]] = {}
    parameters: dict[str, int] = {}
    with _mapped(file) as opened:
        for key in opened.keys():  # noqa: SIM118 - not a mapping
            entry = opened.get_slice(key)
            shapes[key], dtype = tuple(entry.get_shape()), entry.get_dtype()
            if dtype not in _FLOATS:
                raise CheckpointError(
                    f"{file}: {key}: expected one of {sorted(_FLOATS)}, found {dtype}"
                )
            name = _FLOATS[dtype]
            parameters[name] = parameters.get(name, 0) + math.prod(shapes[key])
    return shapes, parameters


@contextmanager
def _mapped(file: Path) -> Iterator[Any]:
    """The opened safetensors file; its errors name it."""
    try:
        with safe_open(str(file), framework="pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file}: expected a whole safetensors file, found {file.stat().st_size} bytes that "
            f"are truncated or damaged ({error}); fetch the file again"
        ) from None


def _weights_file(folder: Path) -> Path:
    file = folder / WEIGHTS_FILE
    if file.exists():
        return file
    if pickled := sorted(found.name for kind in _PICKLED for found in folder.glob(kind)):
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, found {_some(pickled)}; pickled weights are never "
            "opened: convert them to safetensors where they are trusted"
        )
    if shards := sorted(found.name for found in folder.glob("model-*-of-*.safetensors")):
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, found {_some(shards)}; join the parts into one file"
        )
    if (folder / "params").is_dir():
        raise CheckpointError(
            f"{folder}: expected {WEIGHTS_FILE}, found JAX parameters; convert them with openpi's "
            "examples/convert_jax_model_to_pytorch.py"
        )
    raise CheckpointError(f"{folder}: expected {WEIGHTS_FILE}, found no such file")


def _open_flashrt(folder: Path, file: Path, given: Mapping[str, int]) -> Checkpoint:
    described = folder / FLASHRT_FILE
    settings = read_json(described)
    if settings.get("version") != FLASHRT_VERSION:
        raise CheckpointError(
            f"{described}: version: expected {FLASHRT_VERSION}, found {settings.get('version')!r}; "
            "convert the original checkpoint again"
        )
    try:
        config = ModelConfig.from_json(settings["model"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{described}: model: {error}") from None
    for name, value in given.items():
        if value != getattr(config, name):
            raise CheckpointError(
                f"{described}: model.{name}: asked for {value}, found {getattr(config, name)}"
            )
    shapes, parameters = _read_header(file)
    _account(file, shapes, [Source(n, s.shape) for n, s in tensor_specs(config).items()])
    return Checkpoint(
        folder, "flashrt", config, settings, file, {key: key for key in shapes}, parameters
    )


def _check_lerobot(file: Path, settings: Mapping[str, Any]) -> None:
    if settings["type"] not in FAMILIES:
        raise CheckpointError(
            f"{file}: type: expected one of {list(FAMILIES)}, found {settings['type']!r}: "
            "another kind of policy"
        )
    for name in _UNSUPPORTED_LEROBOT:
        if settings.get(name):
            raise CheckpointError(
                f"{file}: {name}: expected false, found {settings[name]!r}: not supported"
            )


def _family(file: Path, shapes: Shapes) -> str:
    if "time_mlp_in.weight" in shapes:
        return "pi05"
    if "action_time_mlp_in.weight" in shapes:
        return "pi0"
    raise CheckpointError(
        f"{file}: expected time_mlp_in.weight (π0.5) or action_time_mlp_in.weight (π0), found "
        f"neither but {_some(sorted(shapes))}: weights of another model"
    )


def _account(
    file: Path, shapes: Shapes, required: list[Source], optional: Iterable[Source] = ()
) -> None:
    """Stop unless the file holds exactly the required tensors, and perhaps the optional ones."""
    known = {source.key: source.shape for source in [*required, *optional]}
    missing = [f"{s.key} {list(s.shape)}" for s in required if s.key not in shapes]
    unknown = [f"{key} {list(shape)}" for key, shape in shapes.items() if key not in known]
    if missing or unknown:
        found = f"found unknown {_some(unknown)}" if unknown else "found no such tensor"
        expected = f"expected {_some(missing)}" if missing else "expected none but known tensors"
        raise CheckpointError(f"{file}: {expected}, {found}")
    wrong = [
        f"{key}: expected shape {list(known[key])}, found {list(shape)}"
        for key, shape in shapes.items()
        if shape != known[key]
    ]
    if wrong:
        raise CheckpointError(f"{file}: {_some(wrong)}")


def _some(names: list[str], most: int = 3) -> str:
    """The first of the names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
