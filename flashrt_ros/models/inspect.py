"""What a checkpoint is, and what it lacks, without loading its weights."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flashrt_ros.models.checkpoint import Checkpoint, open_checkpoint
from flashrt_ros.models.policy import matched_config
from flashrt_ros.models.processing import (
    MissingTokenizerError,
    ProcessingOptions,
    Processor,
    load_processor,
)
from flashrt_ros.models.tokenizer import load_tokenizer
from flashrt_ros.models.weights import tensor_specs

_LAYOUTS = {
    "openpi": "openpi, PyTorch",
    "lerobot": "LeRobot",
    "flashrt": "flashrt_ros, converted",
}
_FAMILIES = {"pi0": "π0", "pi05": "π0.5"}


class Row(NamedTuple):
    """One line of the table; `missing` marks what has to be supplied before the policy runs."""

    name: str
    value: str
    missing: bool = False


def inspect_checkpoint(
    path: str | Path,
    *,
    tokenizer: str | Path | None = None,
    options: ProcessingOptions | None = None,
    horizon: int | None = None,
    vision_heads: int | None = None,
) -> list[Row]:
    """Describe a checkpoint. Arguments as in `policy.load_policy`.

    What the processing lacks (statistics, tokenizer) is a row marked missing.

    Raises:
        CheckpointError: the network itself cannot be used; names the file and the key.
    """
    checkpoint = open_checkpoint(path, horizon=horizon, vision_heads=vision_heads)
    rows = _network_rows(checkpoint)
    try:
        processor = load_processor(
            path,
            config=checkpoint.config,
            tokenizer=tokenizer,
            options=options,
            require_tokenizer=False,
        )
        matched_config(checkpoint.folder, checkpoint.config, processor)
        rows += _processing_rows(processor)
    except ValueError as error:
        return [*rows, Row("processing", str(error), missing=True)]
    if processor.tokenizer is None:
        rows.append(Row("tokenizer", _why_no_tokenizer(Path(path)), missing=True))
    return rows


def format_table(rows: Iterable[Row], width: int = 80) -> str:
    """Two columns, wrapped at `width` characters; missing rows say so."""
    rows = list(rows)
    column = max(len(row.name) for row in rows) + 2
    lines = []
    for row in rows:
        value = f"MISSING: {row.value}" if row.missing else row.value
        wrapped = textwrap.wrap(value, max(width - column, 20), break_on_hyphens=False) or [""]
        names = [row.name, *[""] * (len(wrapped) - 1)]
        lines += [f"{name:{column}}{line}" for name, line in zip(names, wrapped, strict=True)]
    return "\n".join(lines)


def _network_rows(checkpoint: Checkpoint) -> list[Row]:
    c = checkpoint.config
    specs = tensor_specs(c).values()
    used = sum(spec.numel for spec in specs)
    gigabytes = {
        precision: sum(spec.numel * spec.dtype(precision).itemsize for spec in specs) / 1e9
        for precision in ("float32", "bfloat16")
    }
    stored = ", ".join(f"{_count(n)} {name}" for name, n in checkpoint.stored_parameters.items())
    return [
        Row("checkpoint", f"{_LAYOUTS[checkpoint.layout]}: {checkpoint.folder}"),
        Row("family", _FAMILIES[c.family]),
        Row("parameters", f"{_count(used)} used; stored: {stored}"),
        Row("memory", ", ".join(f"{size:.3g} GB in {name}" for name, size in gigabytes.items())),
        Row(
            "vision",
            f"{c.vision_depth} layers of {c.vision_width}, {c.vision_heads} heads, MLP "
            f"{c.vision_mlp}; {c.image_size}x{c.image_size} pixels, patch {c.patch}, "
            f"{c.view_tokens} tokens a view",
        ),
        Row("language", f"{c.depth} layers of {c.width}, MLP {c.mlp}, vocabulary {c.vocab}"),
        Row("expert", f"{c.depth} layers of {c.expert_width}, MLP {c.expert_mlp}"),
        Row("attention", f"{c.heads} heads of {c.head_dim}, one key/value head"),
        Row("chunk", f"{c.horizon} actions of {c.action_dim} (padded)"),
    ]


def _processing_rows(p: Processor) -> list[Row]:
    empty = f" and {p.empty_views} always empty" if p.empty_views else ""
    renamed = [Row("renamed", ", ".join(f"{old} → {new}" for old, new in p.rename.items()))]
    return [
        Row("cameras", ", ".join(p.cameras) + empty),
        *(renamed if p.rename else []),
        Row("images", str(p.image)),
        Row("state", f"{p.state_dim} numbers{_names(p.state_names)}; normalised: {p.state}"),
        Row("actions", f"{p.action_dim} numbers{_names(p.action_names)}; normalised: {p.actions}"),
        Row("relative", "no" if p.absolute is None else str(p.absolute)),
        Row("prompt", f"{p.prompt_format}; at most {p.max_tokens} tokens"),
        *([Row("tokenizer", str(p.tokenizer.path))] if p.tokenizer is not None else []),
    ]


def _names(names: tuple[str, ...] | None) -> str:
    return f" ({', '.join(names)})" if names else ""


def _count(parameters: int) -> str:
    """12345678 → '12.3 M'."""
    unit = min(int(math.log10(max(parameters, 1))) // 3, 3)
    return f"{parameters / 1000**unit:.3g} {('', 'k', 'M', 'G')[unit]}".strip()


def _why_no_tokenizer(folder: Path) -> str:
    try:
        load_tokenizer(folder)
    except MissingTokenizerError as error:
        return str(error)
    return "the checkpoint names one that is not there"
