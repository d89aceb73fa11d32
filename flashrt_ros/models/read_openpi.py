"""Processing of an openpi checkpoint (PyTorch), from its statistics and openpi's defaults."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from flashrt_ros.models import transforms
from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.options import (
    OPENPI_CAMERAS,
    ProcessingOptions,
    options_for,
    read_json,
    require,
)
from flashrt_ros.models.processor import Processor
from flashrt_ros.models.prompt import StatePrompt, TextPrompt
from flashrt_ros.models.tokenizer import Tokenizer


class NetworkSizes(Protocol):
    """What processing needs to know of a network; `ModelConfig` has it."""

    @property
    def family(self) -> str:
        """`pi0` or `pi05`."""

    @property
    def image_size(self) -> int:
        """Side of the square image [pixels]."""

    @property
    def action_dim(self) -> int:
        """Padded length of action and state."""


def read_openpi(
    folder: Path,
    config: NetworkSizes | None,
    tokenizer: Tokenizer | None,
    given: ProcessingOptions | None,
) -> Processor:
    """Build the processor of an openpi folder; sizes come from `config` or from the weights."""
    options = options_for(folder, given)
    if config is None:
        family, image_size = sizes_from_weights(folder / "model.safetensors")
        where = folder / "config.json"
        action_dim = require(read_json(where), "action_dim", int, str(where))
    else:
        family, image_size, action_dim = config.family, config.image_size, config.action_dim
    stats_file = _stats_file(folder, options)
    quantile = _default(options.use_quantile_norm, family == "pi05")
    state = _scale(stats_file, "state", quantile, options.state_dim)
    actions = _scale(stats_file, "actions", quantile, options.action_dim)
    in_prompt = _default(options.discrete_state_input, family == "pi05")
    return Processor(
        origin="openpi",
        family=family,
        cameras=_default(options.cameras, OPENPI_CAMERAS),
        empty_views=0,
        image=PrepareImage(image_size, "openpi"),
        state=state,
        prompt_format=StatePrompt(options.pad_state_to) if in_prompt else TextPrompt(openpi=True),
        max_tokens=_default(options.max_tokens, 200 if family == "pi05" else 48),
        padded_state_dim=action_dim,
        actions=actions,
        absolute=_absolute(options, actions.dim),
        state_dim=state.dim,
        action_dim=actions.dim,
        tokenizer=tokenizer,
    )


def sizes_from_weights(path: Path) -> tuple[str, int]:
    """Family and image size of an openpi `model.safetensors`, from its header alone."""
    vision = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings."
    try:
        with safe_open(path, framework="np") as weights:
            keys = set(weights.keys())
            patch = weights.get_slice(f"{vision}patch_embedding.weight").get_shape()[-1]
            patches = weights.get_slice(f"{vision}position_embedding.weight").get_shape()[0]
    except (OSError, SafetensorError) as error:
        raise ProcessingError(
            f"{path}: expected openpi's weights, to tell π0 from π0.5 and the image size: {error}"
        ) from None
    return "pi05" if "time_mlp_in.weight" in keys else "pi0", math.isqrt(patches) * patch


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _stats_file(folder: Path, options: ProcessingOptions) -> Path:
    if options.norm_stats is not None:
        path = folder / options.norm_stats
        return path / "norm_stats.json" if path.is_dir() else path
    assets = folder / "assets"
    if options.asset_id is not None:
        path = assets / options.asset_id / "norm_stats.json"
        if not path.is_file():
            raise ProcessingError(
                f"asset_id {options.asset_id!r}: expected {path}, found {sorted(_assets(assets))}"
            )
        return path
    found = _assets(assets)
    if not found:
        raise ProcessingError(
            f"{assets}: expected <asset_id>/norm_stats.json, found none. Conversion to PyTorch "
            "leaves it behind: copy the assets folder of the original checkpoint here, or give its "
            "path as option norm_stats"
        )
    if len(found) > 1:
        raise ProcessingError(
            f"{assets}: expected statistics of one robot, found {sorted(found)}: "
            "choose one with option asset_id"
        )
    return next(iter(found.values()))


def _assets(assets: Path) -> dict[str, Path]:
    files = assets.glob("**/norm_stats.json")
    return {file.parent.relative_to(assets).as_posix(): file for file in files}


def _scale(
    path: Path, key: str, quantile: bool, dim: int | None
) -> transforms.MeanStd | transforms.Range:
    stats = require(read_json(path), "norm_stats", dict, str(path))
    names = ("q01", "q99") if quantile else ("mean", "std")
    entry = require(stats, key, dict, f"{path}: norm_stats")
    first, second = (_numbers(entry, name, f"{path}: norm_stats.{key}", quantile) for name in names)
    if len(first) != len(second):
        raise ProcessingError(
            f"{path}: norm_stats.{key}: expected {' and '.join(names)} of one length, "
            f"found {len(first)} and {len(second)}"
        )
    if dim is not None and dim > len(first):
        raise ProcessingError(
            f"{path}: norm_stats.{key}: expected at least {dim} numbers (option "
            f"{'state_dim' if key == 'state' else 'action_dim'}), found {len(first)}"
        )
    build = transforms.quantiles_openpi if quantile else transforms.mean_std_openpi
    try:
        return build(first[:dim], second[:dim])
    except ProcessingError as error:
        raise ProcessingError(f"{path}: norm_stats.{key}: {error}") from None


def _numbers(entry: dict[str, Any], name: str, where: str, quantile: bool) -> NDArray[np.float64]:
    value = entry.get(name)
    numbers = isinstance(value, list) and all(type(number) in (int, float) for number in value)
    if not numbers or not all(map(math.isfinite, value or [])):
        kind = "quantile" if quantile else "mean/std"
        found = "nothing" if value is None else repr(value)
        raise ProcessingError(
            f"{where}: {name}: expected a list of finite numbers for {kind} normalisation, "
            f"found {found} (option use_quantile_norm chooses the kind)"
        )
    return np.array(value, np.float64)


def _absolute(options: ProcessingOptions, dim: int) -> transforms.Absolute | None:
    if options.delta_mask is None:
        if options.joint_velocity_step_rad is not None:
            raise ProcessingError("joint_velocity_step_rad: expected delta_mask too, found none")
        return None
    mask = transforms.mask_from_runs(options.delta_mask, dim)
    if options.joint_velocity_step_rad is not None:
        return transforms.IntegrateVelocity(mask, options.joint_velocity_step_rad)
    return transforms.AddState(mask)
