"""The small π0.5 of the belt world: its sizes, its tokenizer, its processing, its folder.

The same network code, prompt and checkpoint format as the big one; only the numbers are smaller.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from flashrt_ros.models.checkpoint import FLASHRT_FILE, FLASHRT_VERSION, WEIGHTS_FILE
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.processor import Processor
from flashrt_ros.models.prompt import StatePrompt
from flashrt_ros.models.tokenizer import JsonTokenizer
from flashrt_ros.models.transforms import AddState, Range
from flashrt_ros.models.weights import PRECISIONS, tensor_specs
from flashrt_ros.sim.camera import COLOURS
from flashrt_ros.sim.kinematics import JOINT_NAMES

VIEWS = {"overhead": "base_0_rgb", "wrist": "left_wrist_0_rgb"}
"""Camera of the belt world → view of the policy, as in config/robots/so101.yaml."""
TOKENIZER_FILE = "tokenizer.json"
_WORDS = (  # noqa: SIM905 - a line of words reads better than a list of strings
    "task state action touch reach press go to the block cube one flashing marked lit please now "
    "and then a move stop wait hand finger arm belt left right middle"
).split()
_SIGNS = (":", ",", ";", ".", "!", "?")
_PIECES = r"-?\d+|\w+|[^\w\s]"

CONFIG = ModelConfig(
    family="pi05",
    vision_width=128,
    vision_depth=4,
    vision_heads=4,
    vision_mlp=384,
    patch=12,
    image_size=96,
    width=256,
    mlp=640,
    expert_width=192,
    expert_mlp=512,
    depth=3,
    heads=4,
    head_dim=64,
    vocab=320,
    horizon=16,
    action_dim=len(JOINT_NAMES),
    max_prompt_tokens=48,
)


def vocabulary() -> dict[str, int]:
    """Token → id: marks, the 257 numbers of the state's bins, words and signs; below CONFIG.vocab."""
    numbers = [str(number) for number in range(-1, 256)]
    tokens = ["<pad>", "<unk>", "<bos>", *numbers, *_SIGNS, *sorted({*_WORDS, *COLOURS})]
    if len(tokens) > CONFIG.vocab:
        raise ValueError(f"{len(tokens)} tokens: expected at most {CONFIG.vocab}")
    return {token: index for index, token in enumerate(tokens)}


def write_tokenizer(file: Path) -> JsonTokenizer:
    """Write the tokenizer: whole words and whole numbers, lower case, anything else `<unk>`."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.WordLevel(vocabulary(), unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase()  # type: ignore[assignment, unused-ignore]
    backend.pre_tokenizer = pre_tokenizers.Split(  # type: ignore[assignment, unused-ignore]
        Regex(_PIECES), behavior="removed", invert=True
    )
    backend.save(str(file))
    return JsonTokenizer(file)


def token_ids(text: str) -> list[int]:
    """What the tokenizer makes of a text, without BOS."""
    known = vocabulary()
    return [known.get(piece, known["<unk>"]) for piece in re.findall(_PIECES, text.lower())]


def initial_tensors(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Float32 tensors to begin the training with, named as in `weights.tensor_specs`.

    Matrices are normal with variance 1/inputs, those that end a residual branch smaller; π0.5's
    modulations begin at zero, but for the gates' bias of one. The embeddings of numbers begin as
    smooth functions of the number, so that neighbouring bins are neighbours.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, spec in tensor_specs(config).items():
        kind = name.split(".")[1]
        if kind.endswith("bias") or kind == "modulation":
            tensor = torch.zeros(spec.shape)
        elif "norm" in kind:
            tensor = torch.ones(spec.shape)
        elif kind in ("embedding", "position"):
            tensor = 0.02 * torch.randn(spec.shape, generator=generator)
        else:
            scale = 1.0 / math.sqrt(spec.shape[-1])
            if kind in ("out", "down", "fc2"):
                scale /= math.sqrt(2.0 * config.depth)
            tensor = scale * torch.randn(spec.shape, generator=generator)
        tensors[name] = tensor
    sites = tensors["expert.modulation_bias"].view(config.norm_sites, 3, config.expert_width)
    sites[:, 2] = 1.0
    # Embeddings are multiplied by sqrt(width) when they are read.
    embedding = tensors["language.embedding"]
    embedding.mul_(50.0 / math.sqrt(config.width))
    first = vocabulary()["-1"]
    number = torch.linspace(-1.0, 1.0, 257)[:, None]
    frequency = torch.randn(1, config.width, generator=generator) * 3.0
    phase = torch.rand(1, config.width, generator=generator) * 2.0 * math.pi
    embedding[first : first + 257] = torch.sin(number * frequency + phase) * math.sqrt(
        2.0 / config.width
    )
    return tensors


def build_processor(
    states: NDArray[np.floating], relative: NDArray[np.floating], tokenizer: JsonTokenizer
) -> Processor:
    """The processing of a data set.

    Args:
        states: joint positions [N, 6], rad.
        relative: actions minus the state of their observation [N, horizon, 6], rad.
        tokenizer: from `write_tokenizer`.
    """
    joints = len(JOINT_NAMES)

    def scale(values: NDArray[np.floating], least_width: float) -> Range:
        low, high = np.quantile(values.reshape(-1, joints), (0.01, 0.99), axis=0)
        # A joint that hardly moves would have its noise blown up.
        spare = np.maximum(least_width - (high - low), 0.0) / 2.0
        low, high = low - spare, high + spare
        return Range(low.astype(np.float64), (high - low).astype(np.float64), "q01..q99")

    return Processor(
        origin="flashrt",
        family="pi05",
        cameras=tuple(VIEWS.values()),
        empty_views=0,
        image=PrepareImage(CONFIG.image_size, "openpi"),
        state=scale(states, 0.6),
        prompt_format=StatePrompt(),
        max_tokens=CONFIG.max_prompt_tokens,
        padded_state_dim=CONFIG.action_dim,
        actions=scale(relative, 0.3),
        absolute=AddState((True,) * joints),
        state_dim=joints,
        action_dim=joints,
        tokenizer=tokenizer,
        state_names=JOINT_NAMES,
        action_names=JOINT_NAMES,
    )


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: ModelConfig,
    processor: Processor,
    notes: Mapping[str, Any],
    precision: str = "bfloat16",
) -> None:
    """Write or replace the folder that `load_policy` takes; it is whole at any moment.

    `notes` go into flashrt.json. Other files that were in the folder stay.
    """
    described = {
        "version": FLASHRT_VERSION,
        "converted_from": "flashrt_ros.sim.train",
        "precision": precision,
        "model": config.to_json(),
        **notes,
    }
    rounded = {
        name: tensor.detach().to("cpu", spec.dtype(precision)).contiguous()
        for (name, spec), tensor in zip(
            tensor_specs(config).items(), _ordered(tensors, config), strict=True
        )
    }
    assert precision in PRECISIONS
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
        place = Path(unfinished)
        save_file(rounded, place / WEIGHTS_FILE)
        (place / FLASHRT_FILE).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")
        processor.save(place)
        for file in sorted(place.iterdir()):
            file.chmod(0o644)
            shutil.move(file, folder / file.name)


def _ordered(tensors: Mapping[str, Tensor], config: ModelConfig) -> list[Tensor]:
    return [tensors[name] for name in tensor_specs(config)]
