"""What goes wrong between a checkpoint's files and the network."""

from __future__ import annotations


class ProcessingError(ValueError):
    """Processing cannot be done as recorded; the message names file, key, expected and found."""


class MissingTokenizerError(ProcessingError):
    """No tokenizer file; the message says where to get it."""
