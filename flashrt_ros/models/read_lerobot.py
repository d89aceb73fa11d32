"""Processing of a LeRobot checkpoint (`pi0`, `pi05`), from its own processor files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from flashrt_ros.models import transforms
from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.options import ProcessingOptions, options_for, read_json, require
from flashrt_ros.models.processor import Processor
from flashrt_ros.models.prompt import PromptFormat, StatePrompt, TextPrompt
from flashrt_ros.models.tokenizer import Tokenizer

FAMILIES = ("pi0", "pi05")
PREPROCESSOR = "policy_preprocessor.json"
POSTPROCESSOR = "policy_postprocessor.json"
STATE = "observation.state"
ACTION = "action"

_PROMPT_STEPS = {
    "pi0": ("pi0_new_line_processor", "smolvla_new_line_processor"),
    "pi05": ("pi05_prepare_state_tokenizer_processor_step",),
}
_INPUT_STEPS = (
    "rename_observations_processor",
    "to_batch_processor",
    "relative_actions_processor",
    "normalizer_processor",
    *_PROMPT_STEPS["pi0"],
    *_PROMPT_STEPS["pi05"],
    "tokenizer_processor",
    "device_processor",
)
_OUTPUT_STEPS = ("unnormalizer_processor", "absolute_actions_processor", "device_processor")
# Where it stands, and how often, changes nothing.
_ANYWHERE = ("to_batch_processor", "device_processor")
_NEEDED_STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}


def read_lerobot(
    folder: Path, tokenizer: Tokenizer | None, given: ProcessingOptions | None
) -> Processor:
    """Build the processor of a LeRobot folder.

    Raises ProcessingError for a step that is not known, since leaving it out would change the
    arithmetic without a word.
    """
    options = options_for(folder, given)
    refused = [name for name in options.set_names() if name != "pad_state_to"]
    if refused:
        raise ProcessingError(f"options {refused}: a LeRobot checkpoint records these itself")
    where = str(folder / "config.json")
    config = read_json(folder / "config.json")
    family = _family(config, where)
    inputs, outputs = (require(config, f"{x}_features", dict, where) for x in ("input", "output"))
    before = _Steps.read(folder / PREPROCESSOR, _INPUT_STEPS)
    after = _Steps.read(folder / POSTPROCESSOR, _OUTPUT_STEPS)
    before.check_order("relative_actions_processor", "normalizer_processor")
    before.check_order("normalizer_processor", *_PROMPT_STEPS["pi05"])
    for name in _PROMPT_STEPS[family]:
        before.check_order(name, "tokenizer_processor")
    after.check_order("unnormalizer_processor", "absolute_actions_processor")
    features = {key: require(inputs, key, dict, f"{where}: input_features") for key in inputs}
    cameras = [key for key, feature in features.items() if feature.get("type") == "VISUAL"]
    if not cameras:
        raise ProcessingError(f"{where}: input_features: expected a camera, found {list(inputs)}")
    _check_images(before, cameras)
    empty = [key for key in cameras if ".empty_camera_" in key]
    relative = before.config("relative_actions_processor")
    names = relative.get("action_names") or config.get("action_feature_names")
    state_dim, action_dim = _dim(inputs, STATE, where), _dim(outputs, ACTION, where)
    state = before.scale("normalizer_processor", STATE, "STATE")
    actions = after.scale("unnormalizer_processor", ACTION, "ACTION")
    before.check_dim(STATE, state, state_dim, where)
    after.check_dim(ACTION, actions, action_dim, where)
    return Processor(
        origin="LeRobot",
        family=family,
        cameras=tuple(key for key in cameras if key not in empty),
        empty_views=len(empty),
        image=PrepareImage(_image_size(config, where), "lerobot"),
        state=state,
        prompt_format=_prompt(before, family, options.pad_state_to),
        max_tokens=require(
            before.config("tokenizer_processor"), "max_length", int, str(folder / PREPROCESSOR)
        ),
        padded_state_dim=require(config, "max_state_dim", int, where),
        actions=actions,
        absolute=_absolute(before, after, names, action_dim),
        state_dim=state_dim,
        action_dim=action_dim,
        tokenizer=tokenizer,
        rename=before.config("rename_observations_processor").get("rename_map") or {},
        action_names=tuple(names) if names else None,
    )


def tokenizer_folder(folder: Path) -> Path | None:
    """Return the folder that the tokenizer step names inside the checkpoint, if it is there."""
    steps = _Steps.read(folder / PREPROCESSOR, _INPUT_STEPS)
    step = steps.steps.get("tokenizer_processor", {})
    name = (step.get("artifacts") or {}).get("tokenizer_name")
    return folder / name if isinstance(name, str) and (folder / name).is_dir() else None


@dataclass(frozen=True)
class _Steps:
    """The steps of one processor file, in order, by registry name."""

    path: Path
    steps: Mapping[str, dict[str, Any]]

    @classmethod
    def read(cls, path: Path, known: tuple[str, ...]) -> _Steps:
        if not path.is_file():
            raise ProcessingError(
                f"{path}: expected LeRobot's processor file, found none. Checkpoints of LeRobot "
                "before 0.4 keep statistics in the weights; LeRobot's "
                "migrate_policy_normalization.py writes the files"
            )
        steps: dict[str, dict[str, Any]] = {}
        for index, step in enumerate(require(read_json(path), "steps", list, str(path))):
            name = step.get("registry_name") if isinstance(step, dict) else None
            if name not in known:
                raise ProcessingError(
                    f"{path}: steps[{index}].registry_name: expected one of {', '.join(known)}, "
                    f"found {name!r}"
                )
            if name in steps and name not in _ANYWHERE:
                raise ProcessingError(f"{path}: steps[{index}]: expected {name} once, found two")
            steps[name] = step
        return cls(path, steps)

    def config(self, name: str) -> dict[str, Any]:
        return self.steps.get(name, {}).get("config") or {}

    def check_order(self, first: str, second: str) -> None:
        order = list(self.steps)
        if {first, second} <= set(order) and order.index(first) > order.index(second):
            raise ProcessingError(f"{self.path}: expected {first} before {second}, found {order}")

    def check_dim(self, key: str, scale: transforms.Scale, dim: int, where: str) -> None:
        if scale.dim not in (None, dim):
            raise ProcessingError(
                f"{where}: {key}.shape: {dim}, but {self.path.name} has statistics for {scale.dim}"
            )

    def mode(self, name: str, feature: str) -> str:
        """Return the normalisation mode that the file sets for a kind of feature."""
        norm_map = require(self.config(name), "norm_map", dict, f"{self.path}: {name}")
        return str(norm_map.get(feature, "IDENTITY"))

    def scale(self, name: str, key: str, feature: str) -> transforms.Scale:
        """Return the normalisation of one feature, as the step of that name records it."""
        mode = self.mode(name, feature)
        config = self.config(name)
        only = config.get("normalize_observation_keys")
        if mode == "IDENTITY" or key not in require(
            config, "features", dict, f"{self.path}: {name}"
        ):
            return transforms.Identity()
        if feature == "STATE" and only is not None and key not in only:
            return transforms.Identity()
        if mode not in _NEEDED_STATISTICS:
            expected = ", ".join(["IDENTITY", *_NEEDED_STATISTICS])
            raise ProcessingError(
                f"{self.path}: {name}.norm_map.{feature}: expected one of {expected}, found {mode}"
            )
        path, (first, second) = self._statistics(name, key, mode)
        eps = config.get("eps", 1e-8)
        if not isinstance(eps, (int, float)):
            raise ProcessingError(f"{self.path}: {name}.eps: expected a number, found {eps!r}")
        label = "..".join(_NEEDED_STATISTICS[mode])
        try:
            if mode == "MEAN_STD":
                return transforms.mean_std_lerobot(first, second, eps)
            return transforms.range_lerobot(first, second, eps, label)
        except ProcessingError as error:
            raise ProcessingError(f"{path}: {key}: {error}") from None

    def _statistics(self, name: str, key: str, mode: str) -> tuple[Path, list[NDArray[np.float32]]]:
        file = self.steps[name].get("state_file")
        if not isinstance(file, str):
            raise ProcessingError(
                f"{self.path}: {name}: state_file: expected a file with the statistics of {key}, "
                "found none. A base checkpoint has none before it is fine-tuned"
            )
        path = self.path.parent / file
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ProcessingError(
                f"{path}: expected the statistics of {name}, found: {error}"
            ) from None
        values = []
        for statistic in _NEEDED_STATISTICS[mode]:
            value = tensors.get(f"{key}.{statistic}")
            if value is None or value.ndim != 1 or not np.isfinite(value).all():
                found = "nothing" if value is None else f"{value.tolist()}"
                raise ProcessingError(
                    f"{path}: {key}.{statistic}: expected finite numbers for {mode}, found {found}"
                )
            values.append(value)
        if len(values[0]) != len(values[1]):
            raise ProcessingError(
                f"{path}: {key}: expected {' and '.join(_NEEDED_STATISTICS[mode])} of one length, "
                f"found {len(values[0])} and {len(values[1])}"
            )
        return path, values


def _family(config: dict[str, Any], where: str) -> str:
    family: str = require(config, "type", str, where)
    if family not in FAMILIES:
        raise ProcessingError(f"{where}: type: expected {' or '.join(FAMILIES)}, found {family!r}")
    for memory in ("use_visual_memory", "use_proprioceptive_memory"):
        if config.get(memory):
            raise ProcessingError(f"{where}: {memory}: expected false (not supported), found true")
    return family


def _dim(features: dict[str, Any], key: str, where: str) -> int:
    feature = require(features, key, dict, where)
    shape = feature.get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or not isinstance(shape[0], int):
        raise ProcessingError(f"{where}: {key}.shape: expected one number, found {shape!r}")
    return shape[0]


def _image_size(config: dict[str, Any], where: str) -> int:
    size = config.get("image_resolution")
    if not isinstance(size, list) or len(size) != 2 or size[0] != size[1]:
        raise ProcessingError(f"{where}: image_resolution: expected a square, found {size!r}")
    return int(size[0])


def _check_images(before: _Steps, cameras: list[str]) -> None:
    mode = before.mode("normalizer_processor", "VISUAL")
    features = before.config("normalizer_processor").get("features") or {}
    if mode != "IDENTITY" and any(camera in features for camera in cameras):
        raise ProcessingError(
            f"{before.path}: normalizer_processor.norm_map.VISUAL: expected IDENTITY, found {mode}"
        )


def _prompt(before: _Steps, family: str, pad_state_to: int | None) -> PromptFormat:
    known = [name for names in _PROMPT_STEPS.values() for name in names]
    found = [name for name in before.steps if name in known]
    if len(found) != 1 or found[0] not in _PROMPT_STEPS[family]:
        raise ProcessingError(
            f"{before.path}: expected the step {' or '.join(_PROMPT_STEPS[family])} of a {family} "
            f"checkpoint, found {list(before.steps)}"
        )
    return StatePrompt(pad_state_to) if family == "pi05" else TextPrompt(openpi=False)


def _absolute(
    before: _Steps, after: _Steps, names: list[str] | None, dim: int
) -> transforms.AddState | None:
    relative = before.config("relative_actions_processor")
    enabled = bool(relative.get("enabled"))
    if enabled != bool(after.config("absolute_actions_processor").get("enabled")):
        raise ProcessingError(
            f"{after.path}: absolute_actions_processor.enabled: expected {enabled} as in "
            f"relative_actions_processor of {before.path.name}, found {not enabled}"
        )
    if not enabled:
        return None
    tokens = [str(token).lower() for token in relative.get("exclude_joints") or [] if token]
    mask = [not any(token in str(name).lower() for token in tokens) for name in (names or [])[:dim]]
    # Without names LeRobot excludes nothing; so does this, and the printed chain shows it.
    return transforms.AddState(tuple(mask + [True] * (dim - len(mask))))
