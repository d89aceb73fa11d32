"""Processing of any checkpoint: `load_processor(path)`."""

from __future__ import annotations

from pathlib import Path

from flashrt_ros.models import processor as processors
from flashrt_ros.models.errors import MissingTokenizerError, ProcessingError
from flashrt_ros.models.options import ProcessingOptions, read_json
from flashrt_ros.models.processor import ModelInputs, Processor
from flashrt_ros.models.read_lerobot import PREPROCESSOR, read_lerobot, tokenizer_folder
from flashrt_ros.models.read_openpi import NetworkSizes, read_openpi
from flashrt_ros.models.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "MissingTokenizerError",
    "ModelInputs",
    "ProcessingError",
    "ProcessingOptions",
    "Processor",
    "load_processor",
]


def load_processor(
    path: str | Path,
    *,
    config: NetworkSizes | None = None,
    tokenizer: str | Path | None = None,
    options: ProcessingOptions | None = None,
    require_tokenizer: bool = True,
) -> Processor:
    """Read the processing of a checkpoint folder from the folder's own files.

    path: an openpi PyTorch folder, a LeRobot folder, or one that `Processor.save` wrote.
    config: sizes of the network, if known; else an openpi folder's weights are asked (header only).
    tokenizer: a `.model` or `tokenizer.json` file, or its folder; default is the checkpoint's own.
    options: what openpi folders do not record, see `ProcessingOptions`.
    require_tokenizer: False loads without one; making a prompt then raises.

    Raises ProcessingError naming file and key, MissingTokenizerError saying where to get one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ProcessingError(f"{folder}: expected a checkpoint folder, found none")
    saved = folder / processors.FILE_NAME
    lerobot = (folder / PREPROCESSOR).is_file() or _is_lerobot(folder)
    try:
        tokens = _tokenizer(folder, tokenizer, lerobot and not saved.is_file())
    except MissingTokenizerError:
        if require_tokenizer:
            raise
        tokens = None
    if saved.is_file():
        if options is not None and options.set_names():
            raise ProcessingError(f"options {options.set_names()}: {saved} records these itself")
        try:
            return Processor.from_json(read_json(saved), tokens)
        except ProcessingError as error:
            raise ProcessingError(f"{saved}: {error}") from None
    if lerobot:
        return read_lerobot(folder, tokens, options)
    return read_openpi(folder, config, tokens, options)


def _is_lerobot(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and "type" in read_json(config)


def _tokenizer(folder: Path, given: str | Path | None, lerobot: bool) -> Tokenizer:
    if given is not None:
        return load_tokenizer(given)
    own = tokenizer_folder(folder) if lerobot else None
    return load_tokenizer(own or folder)
