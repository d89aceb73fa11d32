"""The text that π0 and π0.5 read, from an instruction and, in π0.5, the discretised state."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.tokenizer import Tokenizer
from flashrt_ros.models.transforms import Floats

logger = logging.getLogger(__name__)

_BIN_EDGES = np.linspace(-1, 1, 256 + 1)[:-1]


def check(instruction: str) -> None:
    """Raise ProcessingError for what is not Unicode text; text from bytes may hold lone halves."""
    try:
        instruction.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ProcessingError(
            f"instruction: expected text of valid Unicode, found {instruction!r}"
        ) from None


def clean(instruction: str) -> str:
    """Strip the text and turn `_` and newlines into spaces, as openpi's tokenizer does."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def state_bins(state_normalized: Floats) -> list[int]:
    """Bins of a normalised state [n]: 256 over [-1, 1], -1 below it, 255 above."""
    bins: list[int] = (np.digitize(state_normalized, _BIN_EDGES) - 1).tolist()
    return bins


@dataclass(frozen=True)
class StatePrompt:
    """π0.5: `Task: {text}, State: {bins};\\nAction: `.

    pad_state_to: LeRobot up to 0.4.4 filled the state with zeros to this many numbers before
    printing it; checkpoints do not record that.
    """

    pad_state_to: int | None = None
    kind: ClassVar[str] = "state"

    def pieces(self, instruction: str, state_normalized: Floats) -> tuple[str, ...]:
        """Texts to encode one by one, the first after BOS; state [n] is normalised."""
        state = state_normalized
        if self.pad_state_to is not None:
            state = np.pad(state, (0, max(0, self.pad_state_to - len(state))))
        bins = " ".join(str(number) for number in state_bins(state))
        return (f"Task: {clean(instruction)}, State: {bins};\nAction: ",)

    def head(self, instruction: str) -> tuple[str, ...]:
        """The texts that come before the state, whatever it is."""
        return (f"Task: {clean(instruction)}, State:",)

    def __str__(self) -> str:
        padded = f", padded to {self.pad_state_to} numbers" if self.pad_state_to else ""
        return f"'Task: {{text}}, State: {{256 bins{padded}}};\\nAction: ', text cleaned"


@dataclass(frozen=True)
class TextPrompt:
    """π0, and π0.5 trained with discrete_state_input=False: the text and a newline, no state.

    openpi cleans the text and encodes the newline by itself; LeRobot leaves the text as it is and
    appends a newline where it has none.
    """

    openpi: bool
    kind: ClassVar[str] = "text"

    def pieces(self, instruction: str, state_normalized: Floats) -> tuple[str, ...]:
        """Texts to encode one by one, the first after BOS; the state is not used."""
        if self.openpi:
            return clean(instruction), "\n"
        return (instruction if instruction.endswith("\n") else f"{instruction}\n",)

    def head(self, instruction: str) -> tuple[str, ...]:
        """All of it."""
        return self.pieces(instruction, np.empty(0))

    def __str__(self) -> str:
        if self.openpi:
            return "'{text}', then '\\n' encoded by itself, text cleaned"
        return "'{text}\\n', text as given"


PromptFormat = StatePrompt | TextPrompt


def encode(tokenizer: Tokenizer, pieces: tuple[str, ...], length: int) -> tuple[Tensor, Tensor]:
    """Token ids int64 [length], padded with 0 on the right, and which of them count, bool [length].

    A longer prompt is cut at the end, as both projects do, and a warning logged.
    """
    ids = tokenizer.encode(pieces[0], bos=True)
    for piece in pieces[1:]:
        ids = ids + tokenizer.encode(piece, bos=False)
    if len(ids) > length:
        logger.warning("prompt of %d tokens cut to %d: %r", len(ids), length, pieces[0])
        ids = ids[:length]
    tokens = torch.zeros(length, dtype=torch.int64)
    tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return tokens, torch.arange(length) < len(ids)


def to_json(prompt: PromptFormat) -> dict[str, Any]:
    """Plain values of a prompt format."""
    return {"kind": prompt.kind, **asdict(prompt)}


def from_json(values: dict[str, Any]) -> PromptFormat:
    """Inverse of `to_json`."""
    if values["kind"] == StatePrompt.kind:
        return StatePrompt(values["pad_state_to"])
    if values["kind"] == TextPrompt.kind:
        return TextPrompt(values["openpi"])
    raise ProcessingError(f"prompt: unknown kind {values['kind']!r}")
