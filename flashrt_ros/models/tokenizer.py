"""PaliGemma's vocabulary from a file: SentencePiece `.model` or `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from flashrt_ros.models.errors import MissingTokenizerError, ProcessingError

WHERE_TO_GET_IT = (
    "π0 and π0.5 use PaliGemma's vocabulary: either paligemma_tokenizer.model "
    "(gs://big_vision/paligemma_tokenizer.model, public, as openpi loads it) or tokenizer.json of "
    "google/paligemma-3b-pt-224 on the Hugging Face Hub. Put the file beside the checkpoint or "
    "pass its path as `tokenizer`"
)

_NAMES = ("tokenizer.json", "tokenizer.model", "paligemma_tokenizer.model")


class Tokenizer(Protocol):
    """Text to token ids, nothing else: no padding, no truncation."""

    @property
    def path(self) -> Path:
        """The file it was read from."""

    def encode(self, text: str, *, bos: bool) -> list[int]:
        """Token ids of the text, after a beginning-of-sentence token where `bos`."""


class SentencePieceTokenizer:
    """A SentencePiece `.model` file."""

    def __init__(self, path: Path):
        from sentencepiece import SentencePieceProcessor

        self.path = path
        try:
            self._model: Any = SentencePieceProcessor(model_file=str(path))
        except (OSError, RuntimeError) as error:
            raise ProcessingError(
                f"{path}: expected a SentencePiece model, found a file it cannot read: {error}"
            ) from None
        self._bos: int = self._model.bos_id()
        if self._bos < 0:
            raise ProcessingError(f"{path}: expected a beginning-of-sentence token, found none")

    def encode(self, text: str, *, bos: bool) -> list[int]:
        """Token ids of the text."""
        ids: list[int] = self._model.encode(text)
        return [self._bos, *ids] if bos else ids


class JsonTokenizer:
    """A `tokenizer.json` of the `tokenizers` library.

    LeRobot writes fixed padding and truncation into the file; both are switched off here, and the
    prompt is padded and cut in one place for both kinds of file.
    """

    def __init__(self, path: Path):
        from tokenizers import Tokenizer as Backend

        self.path = path
        try:
            self._model: Any = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ProcessingError(
                f"{path}: expected a tokenizer.json, found a file it cannot read: {error}"
            ) from None
        self._model.no_padding()
        self._model.no_truncation()
        bos = self._model.token_to_id("<bos>")
        if bos is None:
            raise ProcessingError(f"{path}: expected the token <bos>, found none")
        self._bos: int = bos

    def encode(self, text: str, *, bos: bool) -> list[int]:
        """Token ids of the text."""
        ids: list[int] = self._model.encode(text, add_special_tokens=False).ids
        return [self._bos, *ids] if bos else ids


def find_tokenizer(folder: Path) -> Path | None:
    """Return the tokenizer file in a checkpoint's folder or its `tokenizer/`, or None."""
    candidates = (place / name for place in (folder / "tokenizer", folder) for name in _NAMES)
    return next((path for path in candidates if path.is_file()), None)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a file or from a folder that holds one.

    Raises:
        MissingTokenizerError: nothing there; the message says where to get it.
        ProcessingError: the file is of another kind or cannot be read.
    """
    path = Path(path)
    file = find_tokenizer(path) if path.is_dir() else path
    if file is None or not file.is_file():
        raise MissingTokenizerError(f"{path}: no tokenizer file there. {WHERE_TO_GET_IT}")
    if file.suffix == ".model":
        return SentencePieceTokenizer(file)
    if file.suffix == ".json":
        return JsonTokenizer(file)
    raise ProcessingError(f"{file}: expected a .model or .json file, found {file.suffix!r}")
