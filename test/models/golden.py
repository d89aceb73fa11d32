"""Where the golden data is, and the runs of whole checkpoints recorded in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from flashrt_ros.models.processing import ProcessingOptions

GOLDEN = Path(__file__).parents[1] / "data" / "golden"

RUNS = ("openpi_pi05", "openpi_pi05_nostate", "openpi_pi0", "lerobot_pi05")


@dataclass(frozen=True)
class Run:
    """A recorded chain from raw images, state and instruction to absolute actions."""

    folder: Path
    options: ProcessingOptions | None
    images: dict[str, np.ndarray]
    state: np.ndarray
    instruction: str
    noise: Tensor
    actions: dict[int, np.ndarray]  # by steps
    values: dict[str, Tensor]
    tolerance: float


@lru_cache
def recorded(name: str) -> Run:
    """One of RUNS."""
    return _lerobot() if name == "lerobot_pi05" else _openpi(name)


def _openpi(name: str) -> Run:
    folder = GOLDEN / f"{name.removesuffix('_nostate')}_e2e"
    which = "golden_nostate" if name.endswith("_nostate") else "golden"
    spec = json.loads((folder / f"{which}.json").read_text())
    inputs = load_file(folder / "golden.safetensors")
    values = {**inputs, **load_file(folder / f"{which}.safetensors")}
    options = ProcessingOptions(
        delta_mask=(6, -1),
        max_tokens=spec["max_token_len"],
        discrete_state_input=spec["discrete_state_input"],
    )
    images = {"base_0_rgb": "base", "left_wrist_0_rgb": "wrist"}
    return Run(
        folder,
        options,
        {camera: inputs[f"in.image.{key}"].numpy() for camera, key in images.items()},
        inputs["in.state"].numpy(),
        spec["prompt_in"],
        inputs["in.noise"][0],
        {n: values[f"out.n{n}.actions"].numpy() for n in spec["num_steps"]},
        values,
        tolerance=1e-4,  # openpi accumulates the flow time in float32
    )


def _lerobot() -> Run:
    folder = GOLDEN / "rtc"  # its plain runs; `lerobot_pi05_e2e` has no uint8 images
    spec = json.loads((folder / "golden.json").read_text())
    values = load_file(folder / "golden.safetensors")
    return Run(
        folder,
        None,
        {camera: values[f"in.{camera}"].numpy() for camera in spec["image_order"][:2]},
        values["in.observation.state"].numpy(),
        spec["task_in"],
        values["in.noise"][0],
        {n: values[f"out.n{n}.actions"][0].numpy() for n in spec["num_steps"]},
        values,
        tolerance=1e-5,
    )
