"""Sizes of a π0 or π0.5 network. Everything else about a checkpoint is in its processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FAMILIES = ("pi0", "pi05")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the three transformers and of the flow head.

    The language model and the action expert share depth, heads and head size, and have one
    key/value head, as in Gemma 2B and the 300M expert. The defaults are those of the released
    π0.5; `sizes.config_from_shapes` reads the sizes of a checkpoint from its tensors.
    """

    family: str = "pi05"
    # SigLIP So400m/14
    vision_width: int = 1152
    vision_depth: int = 27
    vision_heads: int = 16
    vision_mlp: int = 4304
    patch: int = 14
    image_size: int = 224
    # Gemma 2B reads the prefix, a 300M Gemma the actions
    width: int = 2048
    mlp: int = 16384
    expert_width: int = 1024
    expert_mlp: int = 4096
    depth: int = 18
    heads: int = 8
    head_dim: int = 256
    vocab: int = 257152
    # Flow head: `action_dim` is the padded one, also that of π0's state token
    horizon: int = 50
    action_dim: int = 32
    min_period: float = 4e-3
    max_period: float = 4.0
    # Longest prompt the processing produces; no tensor has this size
    max_prompt_tokens: int = 200

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r}: expected one of {', '.join(FAMILIES)}")
        for name in ("vision_width", "width", "expert_width", "depth", "heads", "head_dim",
                     "vision_depth", "vision_heads", "patch", "image_size", "vocab", "horizon",
                     "action_dim", "max_prompt_tokens"):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}: expected a whole number, at least 1")
        for name, divisor in (("vision_width", "vision_heads"), ("image_size", "patch")):
            if getattr(self, name) % getattr(self, divisor):
                raise ValueError(
                    f"{name} {getattr(self, name)} is not a multiple of "
                    f"{divisor} {getattr(self, divisor)}"
                )

    @property
    def view_tokens(self) -> int:
        """Prefix tokens of one camera view."""
        return (self.image_size // self.patch) ** 2

    @property
    def qkv_rows(self) -> int:
        """Rows of a fused query, key and value projection: all query heads, one key, one value."""
        return (self.heads + 2) * self.head_dim

    @property
    def norm_sites(self) -> int:
        """Norms of the expert: two a layer, and the final one."""
        return 2 * self.depth + 1

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Build from `to_json` values: every field must be there, and no other.

        Raises:
            ValueError: names the missing, unknown or wrongly typed fields.
        """
        names = {field.name for field in fields(cls)}
        if names != set(values):
            raise ValueError(
                f"missing fields {sorted(names - set(values))}, "
                f"unknown fields {sorted(set(values) - names)}"
            )
        for field in fields(cls):
            allowed = {"int": (int,), "float": (int, float)}.get(str(field.type), (str,))
            if type(values[field.name]) not in allowed:
                raise ValueError(
                    f"{field.name}: expected {field.type}, found {values[field.name]!r}"
                )
        return cls(**values)
