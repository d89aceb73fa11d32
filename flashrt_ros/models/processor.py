"""One checkpoint's processing: observation in, network inputs out, absolute actions back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from flashrt_ros.models import prompt as prompts
from flashrt_ros.models import transforms
from flashrt_ros.models.errors import MissingTokenizerError, ProcessingError
from flashrt_ros.models.images import PrepareImage
from flashrt_ros.models.prompt import PromptFormat
from flashrt_ros.models.tokenizer import WHERE_TO_GET_IT, Tokenizer
from flashrt_ros.models.transforms import Absolute, AddState, Floats, Scale

FILE_NAME = "processing.json"
_FORMAT = 1
_NUMBERS = "fiu"  # numpy's kinds: floats and integers


@dataclass(frozen=True)
class ModelInputs:
    """What a network takes, on the CPU; not to be written to, since tokens are shared.

    images: float32 [V, 3, S, S] in [-1, 1]; view_mask: bool [V], False where a view does not count.
    tokens: int64 [L]; token_mask: bool [L]. While instruction and (π0.5) state bins stay the same,
    these two are the same objects as in the call before.
    state: float32 [D], normalised and padded; None for π0.5, which reads the state in the prompt.
    """

    images: Tensor
    view_mask: Tensor
    tokens: Tensor
    token_mask: Tensor
    state: Tensor | None


@dataclass(frozen=True)
class Processor:
    """The chain of one checkpoint; `print(processor)` shows it in the order in which it runs.

    cameras: names of the image features, one view each, in the model's order. A camera keeps its
        place when it is missing: its view is black and masked. (LeRobot moves missing views to the
        end; masked tokens have no position and are not attended to, so the place changes nothing.)
    empty_views: further views that are always masked.
    rename: LeRobot's names of the data set → names in `cameras`; both are accepted.
    state_dim, action_dim: the robot's; padded_state_dim: the network's.
    state_names, action_names: joint names where the checkpoint records them.
    """

    origin: str
    family: str
    cameras: tuple[str, ...]
    empty_views: int
    image: PrepareImage
    state: Scale
    prompt_format: PromptFormat
    max_tokens: int
    padded_state_dim: int
    actions: Scale
    absolute: Absolute | None
    state_dim: int
    action_dim: int
    tokenizer: Tokenizer | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.cameras or len(set(self.cameras)) != len(self.cameras):
            raise ProcessingError(
                f"cameras: expected different names, at least one, found {self.cameras}"
            )
        if self.max_tokens < 1:
            raise ProcessingError(f"max_tokens: expected at least 1, found {self.max_tokens}")
        for name, scale, dim in (
            ("state", self.state, self.state_dim),
            ("action", self.actions, self.action_dim),
        ):
            if scale.dim not in (None, dim):
                raise ProcessingError(
                    f"{name}: expected statistics for {dim} numbers, found {scale.dim}"
                )
        if self.family == "pi0" and self.state_dim > self.padded_state_dim:
            raise ProcessingError(
                f"state: expected at most the network's {self.padded_state_dim} numbers, "
                f"found {self.state_dim}"
            )
        if self.absolute is not None:
            relative = [i for i, on in enumerate(self.absolute.mask) if on]
            if (
                len(self.absolute.mask) != self.action_dim
                or max(relative, default=-1) >= self.state_dim
            ):
                raise ProcessingError(
                    f"relative actions: expected a mask of {self.action_dim} within the "
                    f"{self.state_dim} numbers of the state, found {self.absolute.mask}"
                )

    def prepare(
        self, images: Mapping[str, NDArray[np.uint8]], state: ArrayLike, instruction: str
    ) -> ModelInputs:
        """One observation → network inputs.

        images: uint8 RGB [H, W, 3] by camera name; state: [state_dim], the policy's units.
        Raises ProcessingError for an unknown camera, no camera at all, a state of another length.
        """
        views = {camera: self.view(camera, image) for camera, image in images.items()}
        return self.assemble(views, state, instruction)

    def view(self, camera: str, image: NDArray[np.uint8]) -> Tensor:
        """One camera's uint8 RGB [H, W, 3] → float32 [3, S, S]; depends on nothing else."""
        try:
            return self.image(image)
        except ProcessingError as error:
            raise ProcessingError(f"camera {camera!r}: {error}") from None

    def assemble(
        self, views: Mapping[str, Tensor], state: ArrayLike, instruction: str
    ) -> ModelInputs:
        """Views by camera name, as `view` made them, with state and instruction → inputs."""
        if not views:
            raise ProcessingError(f"no camera image: expected one of {list(self.cameras)}")
        count = len(self.cameras) + self.empty_views
        images = np.empty((count, 3, self.image.size, self.image.size), np.float32)
        mask = np.zeros(count, np.bool_)
        for name, view in views.items():
            index = self.view_index(name)
            if mask[index]:
                raise ProcessingError(f"camera {self.cameras[index]!r}: expected one image of it")
            images[index] = view.numpy()
            mask[index] = True
        images[~mask] = -1.0
        normalized = self.normalize_state(state)
        tokens, token_mask = self._encode(instruction, normalized)
        return ModelInputs(
            torch.from_numpy(images),
            torch.from_numpy(mask),
            tokens,
            token_mask,
            self.state_token(normalized),
        )

    def prompt(self, instruction: str, state: ArrayLike) -> tuple[Tensor, Tensor]:
        """Token ids int64 [L] and mask bool [L] of an instruction with the raw state."""
        return self._encode(instruction, self.normalize_state(state))

    def fixed_tokens(self, instruction: str, tokens: Tensor) -> int:
        """How many leading ids of `tokens`, an instruction's valid ones, come from the instruction alone.

        A tokenizer may join the text's last letters with the state's first digit: what counts is
        how far the prompt agrees with its text tokenised without a state.
        """
        prompts.check(instruction)
        head, mask = self._tokens(self.prompt_format.head(instruction))
        length = min(int(mask.sum()), len(tokens))
        differing = (head[:length] != tokens[:length]).nonzero()
        return int(differing[0]) if len(differing) else length

    def normalize_state(self, state: ArrayLike) -> Floats:
        """Raw state [state_dim] → normalised, in the dtype of the statistics."""
        return self.state.normalize(self._checked_state(state))

    def finish(self, actions_normalized: ArrayLike | Tensor, state: ArrayLike) -> Floats:
        """Network output [H, >= action_dim] → absolute actions float32 [H, action_dim].

        state: the raw state of the observation that the chunk was computed from.
        """
        if isinstance(actions_normalized, Tensor):
            actions_normalized = actions_normalized.detach().to("cpu", torch.float32).numpy()
        raw = np.asarray(actions_normalized)
        if raw.ndim != 2 or raw.shape[1] < self.action_dim or raw.dtype.kind not in _NUMBERS:
            raise ProcessingError(
                f"actions: expected numbers [H, {self.action_dim} or more], "
                f"found {raw.dtype} {list(raw.shape)}"
            )
        actions = self.actions.unnormalize(raw[:, : self.action_dim])
        if self.absolute is not None:
            actions = self.absolute(actions, self._base(state))
        return actions.astype(np.float32)

    def rebase(
        self, actions_normalized: ArrayLike, old_state: ArrayLike, new_state: ArrayLike
    ) -> Floats:
        """Network output that belongs to one raw state → the same actions as seen from another.

        Joints relative to the state keep their absolute positions, up to rounding; everything else
        stays bit for bit: absolute joints, velocities, and the numbers beyond the robot's
        dimensions. float32 [H, >= action_dim].
        """
        moved = np.array(actions_normalized, np.float32)
        if not isinstance(self.absolute, AddState):
            return moved
        inside = moved[:, : self.action_dim]
        relative = np.array(self.absolute.mask)
        actions = self.absolute.rebase(
            self.actions.unnormalize(inside).astype(np.float64),
            self._base(old_state).astype(np.float64),
            self._base(new_state).astype(np.float64),
        )
        inside[:, relative] = self.actions.normalize(actions)[:, relative]
        return moved

    def chain(self) -> list[str]:
        """One line per step, in the order in which they run."""
        views = ", ".join(self.cameras) + (f" + {self.empty_views} empty" * bool(self.empty_views))
        file = self.tokenizer.path.name if self.tokenizer else "no tokenizer"
        tokens = f"{file}, BOS, at most {self.max_tokens} tokens, padded right"
        renamed = [f"rename: {old} → {new}" for old, new in self.rename.items()]
        padded = [f"pad state to {self.padded_state_dim}"] if self.family == "pi0" else []
        return [
            *renamed,
            f"each of {views}: {self.image}",
            f"normalise state: {self.state}",
            f"prompt: {self.prompt_format}",
            f"tokenise: {tokens}",
            *padded,
            f"network: {self.family}",
            f"take the first {self.action_dim} numbers of each action",
            f"unnormalise actions: {self.actions}",
            *([str(self.absolute)] if self.absolute is not None else []),
        ]

    def __str__(self) -> str:
        lines = [f"{number:2}  {line}" for number, line in enumerate(self.chain(), start=1)]
        return "\n".join([f"processing of a {self.family} checkpoint from {self.origin}", *lines])

    def to_json(self) -> dict[str, Any]:
        """Everything but the tokenizer, as plain values."""
        return {
            "format": _FORMAT,
            "origin": self.origin,
            "family": self.family,
            "cameras": list(self.cameras),
            "empty_views": self.empty_views,
            "rename": dict(self.rename),
            "image": {"size": self.image.size, "filter": self.image.filter},
            "state": transforms.to_json(self.state),
            "prompt": prompts.to_json(self.prompt_format),
            "max_tokens": self.max_tokens,
            "padded_state_dim": self.padded_state_dim,
            "actions": transforms.to_json(self.actions),
            "absolute": None if self.absolute is None else transforms.to_json(self.absolute),
            "state_dim": self.state_dim,
            "action_dim": self.action_dim,
            "state_names": self.state_names,
            "action_names": self.action_names,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], tokenizer: Tokenizer | None) -> Processor:
        """Inverse of `to_json`. Raises ProcessingError naming a key that is missing."""
        if values.get("format") != _FORMAT:
            raise ProcessingError(f"format: expected {_FORMAT}, found {values.get('format')!r}")
        absolute = values.get("absolute")
        try:
            return cls(
                cameras=tuple(values["cameras"]),
                image=PrepareImage(**values["image"]),
                state=transforms.scale_from_json(values["state"]),
                prompt_format=prompts.from_json(values["prompt"]),
                actions=transforms.scale_from_json(values["actions"]),
                absolute=None if absolute is None else transforms.absolute_from_json(absolute),
                tokenizer=tokenizer,
                origin=values["origin"],
                family=values["family"],
                empty_views=values["empty_views"],
                rename=values["rename"],
                max_tokens=values["max_tokens"],
                padded_state_dim=values["padded_state_dim"],
                state_dim=values["state_dim"],
                action_dim=values["action_dim"],
                state_names=_names(values["state_names"]),
                action_names=_names(values["action_names"]),
            )
        except KeyError as error:
            raise ProcessingError(f"expected the key {error}, found none") from None
        except (TypeError, AttributeError) as error:
            raise ProcessingError(f"expected the values that `save` writes: {error}") from None

    def save(self, folder: str | Path) -> None:
        """Write `processing.json` and a copy of the tokenizer file into an existing folder."""
        folder = Path(folder)
        if self.tokenizer is not None:
            shutil.copyfile(self.tokenizer.path, folder / f"tokenizer{self.tokenizer.path.suffix}")
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @cached_property
    def _tokens(self) -> Callable[[tuple[str, ...]], tuple[Tensor, Tensor]]:
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise MissingTokenizerError(f"no tokenizer was found. {WHERE_TO_GET_IT}")
        return lru_cache(maxsize=8)(
            lambda pieces: prompts.encode(tokenizer, pieces, self.max_tokens)
        )

    def _encode(self, instruction: str, normalized: Floats) -> tuple[Tensor, Tensor]:
        prompts.check(instruction)
        return self._tokens(self.prompt_format.pieces(instruction, normalized))

    def view_index(self, name: str) -> int:
        """Place of a camera among `cameras`, also by its name in the data set (`rename`)."""
        name = self.rename.get(name, name)
        if name not in self.cameras:
            raise ProcessingError(f"camera {name!r}: expected one of {list(self.cameras)}")
        return self.cameras.index(name)

    def _checked_state(self, state: ArrayLike) -> Floats:
        values = np.asarray(state)
        numbers = values.shape == (self.state_dim,) and values.dtype.kind in _NUMBERS
        if not numbers or not np.isfinite(values).all():
            raise ProcessingError(
                f"state: expected {self.state_dim} finite numbers, found {values.tolist()}"
            )
        return values

    def state_token(self, normalized: Floats) -> Tensor | None:
        """Normalised state → float32 [D], padded; None for π0.5, which reads it in the prompt."""
        if self.family != "pi0":
            return None
        padded = torch.zeros(self.padded_state_dim)
        padded[: len(normalized)] = torch.from_numpy(normalized)
        return padded

    def _base(self, state: ArrayLike) -> Floats:
        """State [action_dim] that relative actions are added to, 0 beyond the state's length."""
        base = self._checked_state(state)
        return np.pad(base[: self.action_dim], (0, max(0, self.action_dim - len(base))))


def _names(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)
