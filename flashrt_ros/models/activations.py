"""What enters each matrix product of a network with weights: its range, over as many runs as one likes.

with ActivationRecorder(policy.weights) as recorder:
    policy.infer(images, state, instruction)
recorder.ranges()["language.down.3"].largest
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from flashrt_ros.models.weights import Weights, named_tensors

_QUANTILE = 0.999


@dataclass(slots=True)
class ActivationRange:
    """Range of the input of one matrix product, float32 [rows, channels] in each call."""

    channel_largest: Tensor
    """float32 [channels], on the CPU: largest magnitude of each input channel."""
    lowest: float
    highest: float
    quantile: float
    """Largest over the calls of the 99.9 % quantile of the magnitudes of one call."""
    square_sum: float
    rows: int
    calls: int

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(abs(self.lowest), abs(self.highest))

    @property
    def rms(self) -> float:
        """Root mean square."""
        return float((self.square_sum / (self.rows * len(self.channel_largest))) ** 0.5)


class ActivationRecorder(TorchFunctionMode):
    """While it is entered, every product with a tensor of `weights` on this thread is recorded.

    A product is named by its weight: `vision.qkv.3` is layer 3 of the stacked `vision.qkv`, `flow.time_in[:, 64:128]`
    the second half of the columns of a matrix.

    Args:
        weights: of the network that runs.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        tensors = sorted(named_tensors(weights).items(), key=lambda item: item[1].data_ptr())
        self._starts = [tensor.data_ptr() for _, tensor in tensors]
        self._tensors = tensors
        self._ranges: dict[str, ActivationRange] = {}

    def ranges(self) -> dict[str, ActivationRange]:
        """Range by name of the product, in the order of the first call."""
        return dict(self._ranges)

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch in place of each of its functions."""
        kwargs = kwargs or {}
        if function is F.linear:
            name = self._name(args[1] if len(args) > 1 else kwargs["weight"])
            if name:
                self._record(name, args[0] if args else kwargs["input"])
        return function(*args, **kwargs)

    def _name(self, weight: Tensor) -> str:
        """Name of a weight, by where it lies in memory; empty where it is none of the network's."""
        at = bisect_right(self._starts, weight.data_ptr()) - 1
        if at < 0:
            return ""
        name, tensor = self._tensors[at]
        offset = (weight.data_ptr() - tensor.data_ptr()) // tensor.element_size()
        if offset >= tensor.numel():
            return ""
        if tensor.dim() == 3 and weight.numel() <= tensor[0].numel():
            return f"{name}.{offset // tensor[0].numel()}"
        columns, width = weight.shape[-1], tensor.shape[-1]
        return name if columns == width else _part(name, offset % width, columns)

    def _record(self, name: str, values: Tensor) -> None:
        x = values.detach().reshape(-1, values.shape[-1]).float()
        magnitudes = x.abs()
        rank = max(1, round(_QUANTILE * magnitudes.numel()))
        channel_largest = magnitudes.amax(0).cpu()
        lowest, highest = float(x.min()), float(x.max())
        quantile = float(magnitudes.flatten().kthvalue(rank).values)
        square_sum = float(x.double().square().sum())
        known = self._ranges.get(name)
        if known is None:
            self._ranges[name] = ActivationRange(
                channel_largest, lowest, highest, quantile, square_sum, len(x), 1
            )
            return
        known.channel_largest = torch.maximum(known.channel_largest, channel_largest)
        known.lowest, known.highest = min(known.lowest, lowest), max(known.highest, highest)
        known.quantile = max(known.quantile, quantile)
        known.square_sum += square_sum
        known.rows += len(x)
        known.calls += 1


def product_names(weights: Weights) -> set[str]:
    """Names of all products that a network with these weights has."""
    names = set()
    for name, tensor in named_tensors(weights).items():
        field = name.partition(".")[2]
        if field.endswith("_bias") or field.startswith(("norm", "final_norm", "position")):
            continue
        if field == "embedding":
            continue
        if tensor.dim() == 3 and field != "modulation":
            names |= {f"{name}.{layer}" for layer in range(len(tensor))}
        elif name == "flow.time_in" and tensor.shape[1] == 2 * tensor.shape[0]:
            # π0 multiplies actions and time by one half each.
            half = tensor.shape[0]
            names |= {_part(name, 0, half), _part(name, half, half)}
        else:
            names.add(name)
    return names


def _part(name: str, start: int, columns: int) -> str:
    return f"{name}[:, {start}:{start + columns}]"
