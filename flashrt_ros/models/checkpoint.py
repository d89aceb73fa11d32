"""Checkpoints: which project wrote a folder, what network is in it, and its tensors on a device.

Three kinds are read: openpi's PyTorch folders, LeRobot's `pi0` and `pi05` folders, and this
project's own (`flashrt.json` and one safetensors file, see `convert`). Weights are safetensors,
memory-mapped; nothing is unpickled, and every tensor of a file is accounted for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flashrt_ros.models.config import FAMILIES, ModelConfig
from flashrt_ros.models.upstream import (
    EMBEDDING,
    PLUS_ONE,
    RELEASED,
    SIGLIP_HEAD_DIM,
    TIED_EMBEDDING,
    Part,
    family_of,
    plain_key,
    sizes_of,
    unused_parts,
    upstream_parts,
)
from flashrt_ros.models.weights import PRECISIONS, TensorSpec, Weights, build_weights, tensor_specs

WEIGHTS_FILE = "model.safetensors"
PROJECT_FILE = "flashrt.json"
PROJECT_VERSION = 1
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DTYPES = ("F32", "BF16", "F16")
# openpi's TokenizePrompt lengths; LeRobot's configuration has its own.
_PROMPT_TOKENS = {"pi0": 48, "pi05": 200}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and the key."""


@dataclass(frozen=True)
class Header:
    """A tensor in a file, before it is read."""

    key: str  # as in the file
    shape: tuple[int, ...]
    dtype: str  # as safetensors names it: F32, BF16, …


@dataclass(frozen=True)
class Checkpoint:
    """A recognised folder. Its tensors are named and shaped right but not read yet."""

    path: Path
    kind: str  # "openpi", "lerobot" or "flashrt"
    config: ModelConfig
    settings: Mapping[str, Any]  # the folder's config.json or flashrt.json
    headers: Mapping[str, Header]  # by key; upstream ones as `plain_key` gives them

    @property
    def weights_file(self) -> Path:
        """The safetensors file."""
        return self.path / WEIGHTS_FILE


def open_checkpoint(path: str | Path, *, vision_heads: int | None = None) -> Checkpoint:
    """Recognise a folder and check all names and shapes in it. Reads JSON and the header only.

    `vision_heads`: attention heads of SigLIP, which no shape tells. Left out, it is the entry
    `vision_heads` of config.json, else the vision width over 72, SigLIP's head size.
    Raises `CheckpointError`.
    """
    path = Path(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a folder; expected a checkpoint folder")
    if (path / PROJECT_FILE).exists():
        return _open_project(path)
    settings = _settings(path)
    headers = read_headers(path / WEIGHTS_FILE)
    plain: dict[str, Header] = {}
    for key, header in headers.items():
        if plain_key(key) in plain:
            raise CheckpointError(f"{path / WEIGHTS_FILE}: '{key}' is there under two names")
        plain[plain_key(key)] = header
    kind = "lerobot" if "type" in settings else "openpi"
    config = _infer_config(path, kind, settings, plain, vision_heads)
    _check_released(path / WEIGHTS_FILE, config)
    required = [part for parts in upstream_parts(config).values() for part in parts]
    _check_shapes(path / WEIGHTS_FILE, plain, _with_stored_embedding(required, plain),
                  unused_parts(config))  # fmt: skip
    return Checkpoint(path, kind, config, settings, plain)


def load_weights(
    checkpoint: Checkpoint, device: str | torch.device = "cpu", precision: str = "float32"
) -> Weights:
    """Tensors of a checkpoint on a device, in a precision of `PRECISIONS`.

    Each file tensor is mapped, moved and converted on the device into its place; a tensor of the
    project's format that is already right on the CPU stays a map of the file. At bfloat16 these
    stay float32, as in openpi: patch and position embedding, RMS norms and modulations, and
    everything in `FlowWeights`. Raises `CheckpointError` on NaN or Inf.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    specs = tensor_specs(checkpoint.config)
    if checkpoint.kind == "flashrt":
        sources = {name: [Part(name, spec.shape)] for name, spec in specs.items()}
        plus_one: tuple[str, ...] = ()
    else:
        sources = upstream_parts(checkpoint.config)
        plus_one = PLUS_ONE
    tensors, finite = {}, {}
    with _open_file(checkpoint.weights_file) as file:
        for name, spec in specs.items():
            keys = [
                checkpoint.headers[part.key].key
                for part in _with_stored_embedding(sources[name], checkpoint.headers)
            ]
            tensor = _assemble(file, keys, spec, torch.device(device), precision, finite)
            tensors[name] = tensor + 1.0 if name in plus_one else tensor
    _check_finite(checkpoint.weights_file, finite)
    return build_weights(tensors)


def read_headers(file: Path) -> dict[str, Header]:
    """Names, shapes and types in a safetensors file, by key."""
    with _open_file(file) as opened:
        headers = {}
        for key in opened.keys():  # noqa: SIM118  (a safe_open is no mapping)
            view = opened.get_slice(key)
            headers[key] = Header(key, tuple(view.get_shape()), str(view.get_dtype()))
            if headers[key].dtype not in _DTYPES:
                raise CheckpointError(
                    f"{file}: '{key}' is {headers[key].dtype}: expected one of {', '.join(_DTYPES)}"
                )
    return headers


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: not readable as JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: expected a JSON object, found {type(found).__name__}")
    return found


def _open_file(file: Path) -> Any:
    if not file.exists():
        raise CheckpointError(_no_weights(file))
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file}: not a whole safetensors file ({error}); copy or download it again"
        ) from error


def _no_weights(file: Path) -> str:
    folder = file.parent
    pickles = sorted(p.name for pattern in _PICKLES for p in folder.glob(pattern))
    if pickles:
        return (
            f"{file}: missing; {pickles[0]} is a pickle, which can run code when read and is never "
            "opened here. Convert it to safetensors where you trust its origin"
        )
    if (folder / "params").is_dir():
        return (
            f"{file}: missing; {folder / 'params'} is a JAX checkpoint. Convert it with openpi's "
            "examples/convert_jax_model_to_pytorch.py"
        )
    return f"{file}: missing"


def _settings(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.exists() and not (path / WEIGHTS_FILE).exists():
        raise CheckpointError(
            f"{_no_weights(path / WEIGHTS_FILE)}; nor is there a config.json or {PROJECT_FILE}"
        )
    settings = read_json(file)
    if "type" in settings:
        if settings["type"] not in FAMILIES:
            raise CheckpointError(
                f"{file}: \"type\" is {settings['type']!r}: expected 'pi0' or 'pi05'"
            )
    elif "action_horizon" not in settings:
        raise CheckpointError(
            f'{file}: has neither LeRobot\'s "type" nor openpi\'s "action_horizon"; '
            "not a π0 or π0.5 checkpoint"
        )
    return settings


def _infer_config(
    path: Path,
    kind: str,
    settings: Mapping[str, Any],
    headers: Mapping[str, Header],
    vision_heads: int | None,
) -> ModelConfig:
    file = path / WEIGHTS_FILE
    shapes = {key: header.shape for key, header in headers.items()}
    family = settings["type"] if kind == "lerobot" else family_of(shapes)
    if family is None:
        raise CheckpointError(
            f"{file}: neither 'time_mlp_in.weight' (π0.5) nor 'action_time_mlp_in.weight' (π0) "
            "is in it; not a π0 or π0.5 checkpoint"
        )
    try:
        sizes: dict[str, Any] = sizes_of(shapes)
    except KeyError as error:
        raise CheckpointError(f"{file}: missing key '{error.args[0]}'") from None
    heads = vision_heads or settings.get("vision_heads")
    if heads is None:
        if sizes["vision_width"] % SIGLIP_HEAD_DIM:
            raise CheckpointError(
                f"{path / 'config.json'}: vision width {sizes['vision_width']} is not a multiple "
                f'of {SIGLIP_HEAD_DIM}: add "vision_heads" to it, no tensor tells that number'
            )
        heads = sizes["vision_width"] // SIGLIP_HEAD_DIM
    names = {
        "openpi": {"action_horizon": "horizon", "action_dim": "action_dim"},
        "lerobot": {"chunk_size": "horizon", "max_action_dim": "action_dim",
                    "min_period": "min_period", "max_period": "max_period",
                    "tokenizer_max_length": "max_prompt_tokens"},
    }[kind]  # fmt: skip
    sizes |= {"vision_heads": heads, "max_prompt_tokens": _PROMPT_TOKENS[family]}
    sizes |= {names[key]: value for key, value in settings.items() if key in names}
    try:
        return ModelConfig(family=family, **sizes)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path / 'config.json'}: {error}") from error


def _check_released(file: Path, c: ModelConfig) -> None:
    """Stop on a transformer of a released width with another depth: it has lost layers."""
    for part, width, found in (
        ("vision", c.vision_width, (c.vision_depth, c.vision_mlp)),
        ("language", c.width, (c.depth, c.mlp)),
        ("expert", c.expert_width, (c.depth, c.expert_mlp)),
    ):
        expected = RELEASED[part].get(width, found)
        if found != expected:
            raise CheckpointError(
                f"{file}: {part} transformer of width {width} has layers and MLP width {found}: "
                f"expected {expected}"
            )


def _open_project(path: Path) -> Checkpoint:
    file = path / PROJECT_FILE
    settings = read_json(file)
    if settings.get("version") != PROJECT_VERSION:
        raise CheckpointError(
            f"{file}: version {settings.get('version')!r}: this release reads {PROJECT_VERSION}; "
            "convert the original checkpoint again"
        )
    model = settings.get("model", {})
    names = {field.name for field in fields(ModelConfig)}
    if set(model) != names:
        wrong = sorted(set(model) ^ names)
        raise CheckpointError(f'{file}: "model" lacks or does not know: {", ".join(wrong)}')
    try:
        config = ModelConfig(**model)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    headers = read_headers(path / WEIGHTS_FILE)
    required = [Part(name, spec.shape) for name, spec in tensor_specs(config).items()]
    _check_shapes(path / WEIGHTS_FILE, headers, required, [])
    return Checkpoint(path, "flashrt", config, settings, headers)


def _with_stored_embedding(parts: list[Part], headers: Mapping[str, Header]) -> list[Part]:
    """`parts` with the token embedding under the name that the file has: it may be the head's."""
    if EMBEDDING in headers:
        return parts
    return [p._replace(key=TIED_EMBEDDING) if p.key == EMBEDDING else p for p in parts]


def _check_shapes(
    file: Path, headers: Mapping[str, Header], required: list[Part], optional: list[Part]
) -> None:
    """Every key known, none missing, every shape right; else `CheckpointError`."""
    problems = []
    for key, shape in required:
        if key not in headers:
            problems.append(f"missing key '{key}', expected shape {list(shape)}")
    for key, shape in required + optional:
        if key in headers and headers[key].shape != shape:
            found = list(headers[key].shape)
            problems.append(f"'{headers[key].key}' has shape {found}: expected {list(shape)}")
    known = {part.key for part in required + optional}
    problems += [f"unknown key '{headers[key].key}', shape {list(headers[key].shape)}"
                 for key in headers if key not in known]  # fmt: skip
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(f"{file}: {problems[0]}{more}")


def _assemble(
    file: Any,
    keys: list[str],
    spec: TensorSpec,
    device: torch.device,
    precision: str,
    finite: dict[str, Tensor],
) -> Tensor:
    """File tensors one after the other in memory as one tensor; notes in `finite` whether each is.

    Moves first and converts on the device, where both are fast.
    """
    dtype = spec.dtype(precision)
    if len(keys) == 1:
        tensor: Tensor = file.get_tensor(keys[0]).to(device).to(dtype).reshape(spec.shape)
        finite[keys[0]] = _is_finite(tensor)
        return tensor
    tensor = torch.empty(spec.shape, dtype=dtype, device=device)
    flat, offset = tensor.view(-1), 0
    for key in keys:
        source = file.get_tensor(key).to(device)
        place = flat[offset : offset + source.numel()]
        place.copy_(source.view(-1))
        finite[key] = _is_finite(place)
        offset += source.numel()
    return tensor


def _is_finite(tensor: Tensor) -> Tensor:
    """Bool scalar on the tensor's device. One pass and no temporary: NaN and Inf reach the ends."""
    if tensor.numel() == 0:
        return torch.tensor(True, device=tensor.device)
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def _check_finite(file: Path, finite: Mapping[str, Tensor]) -> None:
    # One transfer for all: a wait per tensor would cost more than the checks.
    flags = torch.stack(list(finite.values())).tolist()
    bad = [key for key, ok in zip(finite, flags, strict=True) if not ok]
    if bad:
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        raise CheckpointError(f"{file}: NaN or Inf in '{bad[0]}'{more}")
