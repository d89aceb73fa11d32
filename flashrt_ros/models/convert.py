"""Write a checkpoint in this project's own format.

A folder with `model.safetensors` (tensors as `weights.tensor_specs` names them: stacked, fused,
without what inference never reads), `flashrt.json` (the network), `processing.json` and the
tokenizer's file. It needs nothing of the folder it came from.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from flashrt_ros.models.checkpoint import (
    FLASHRT_FILE,
    FLASHRT_VERSION,
    WEIGHTS_FILE,
    CheckpointError,
    load_weights,
    open_checkpoint,
)
from flashrt_ros.models.policy import matched_config
from flashrt_ros.models.processing import ProcessingOptions, load_processor
from flashrt_ros.models.weights import named_tensors


def convert_checkpoint(
    path: str | Path,
    target: str | Path,
    *,
    precision: str = "bfloat16",
    tokenizer: str | Path | None = None,
    options: ProcessingOptions | None = None,
    horizon: int | None = None,
    vision_heads: int | None = None,
) -> Path:
    """Convert an openpi or LeRobot folder; the target appears whole or not at all.

    Args:
        path: the folder to read.
        target: the folder to write; it must not exist.
        precision: of the weights, except those that always stay float32.
        tokenizer, options, horizon, vision_heads: as in `load_policy`; recorded in the target.

    Returns:
        The target.

    Raises:
        CheckpointError: the source cannot be used, is converted already, or the target exists.
        ProcessingError: the processing cannot be read, or there is no tokenizer.
    """
    target = Path(target)
    if target.exists():
        raise CheckpointError(f"{target}: expected no such folder yet, found one")
    checkpoint = open_checkpoint(path, horizon=horizon, vision_heads=vision_heads)
    if checkpoint.layout == "flashrt":
        raise CheckpointError(
            f"{path}: expected an openpi or LeRobot folder, found a converted one"
        )
    processor = load_processor(path, config=checkpoint.config, tokenizer=tokenizer, options=options)
    config = matched_config(checkpoint.folder, checkpoint.config, processor)
    weights = load_weights(checkpoint, precision=precision)
    described = {
        "version": FLASHRT_VERSION,
        "converted_from": checkpoint.layout,
        "precision": precision,
        "model": config.to_json(),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save_file(named_tensors(weights), unfinished / WEIGHTS_FILE)
        text = json.dumps(described, indent=1) + "\n"
        (unfinished / FLASHRT_FILE).write_text(text, encoding="utf-8")
        processor.save(unfinished)
        # mkdtemp and safetensors keep others out.
        unfinished.chmod(0o755)
        (unfinished / WEIGHTS_FILE).chmod(0o644)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return target
