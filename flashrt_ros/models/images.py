"""Camera images as the networks saw them in training: aspect kept, centred on black, in [-1, 1].

The resize filter is part of a checkpoint's contract. openpi shrinks with Pillow's antialiased
bilinear filter on uint8, LeRobot with a plain bilinear sample of floats; on a noisy 640×480 picture
they differ by 6/255 on average. openpi's filter is done with Pillow itself. torch's
`interpolate(antialias=True)` on uint8 takes 0.3 ms where Pillow takes 1.5 ms (640×480 to 224, one
core), but its coefficients are shorter: up to 1.5 % of the values are off by 1/255, and the tiny
golden networks' actions by 2e-4 to 6e-4, where the whole chain is kept to 1e-4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from flashrt_ros.models.errors import ProcessingError

FILTERS = {
    "openpi": "antialiased bilinear on uint8",
    "lerobot": "bilinear without antialias on [0, 1]",
}

_PIL_BILINEAR = 2  # `Image.Resampling.BILINEAR`; Pillow before 9.1 does not have that name
_MODEL_VALUES = np.arange(256, dtype=np.float32) / np.float32(255) * 2 - 1


def resized_shape(height: int, width: int, size: int) -> tuple[int, int]:
    """Height and width [pixels] that fit into a square of `size`, aspect kept, rounded down."""
    ratio = max(width / size, height / size)
    shape = int(height / ratio), int(width / ratio)
    if min(shape) < 1:
        raise ProcessingError(f"image of {height}×{width}: expected one that fits {size}×{size}")
    return shape


def _corner(inner: tuple[int, int], size: int) -> tuple[int, int]:
    """Top left pixel of a centred picture; an odd remainder goes below and to the right."""
    return (size - inner[0]) // 2, (size - inner[1]) // 2


def resize_with_pad_openpi(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize [H, W, 3] uint8 to [size, size, 3] uint8, as openpi_client.image_tools does."""
    if image.shape[:2] == (size, size):
        return image
    height, width = resized_shape(image.shape[0], image.shape[1], size)
    top, left = _corner((height, width), size)
    out = np.zeros((size, size, 3), np.uint8)
    resized = Image.fromarray(image).resize((width, height), _PIL_BILINEAR)
    out[top : top + height, left : left + width] = np.asarray(resized)
    return out


def resize_with_pad_lerobot(image: Tensor, size: int) -> Tensor:
    """Resize [3, H, W] float32 in [0, 1] to [3, size, size], as LeRobot's π0 and π0.5 do."""
    if tuple(image.shape[1:]) == (size, size):
        return image
    height, width = resized_shape(image.shape[1], image.shape[2], size)
    top, left = _corner((height, width), size)
    resized = torch.nn.functional.interpolate(
        image[None], size=(height, width), mode="bilinear", align_corners=False
    )[0]
    out = image.new_zeros((3, size, size))
    out[:, top : top + height, left : left + width] = resized.clamp_(0.0, 1.0)
    return out


@dataclass(frozen=True)
class PrepareImage:
    """uint8 RGB [H, W, 3] → float32 [3, size, size] in [-1, 1]; padding is -1."""

    size: int
    filter: str

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            expected = " or ".join(FILTERS)
            raise ProcessingError(f"image filter: expected {expected}, found {self.filter!r}")

    def __call__(self, image: Any) -> Tensor:
        """Raises ProcessingError for anything but uint8 [H, W, 3]."""
        array = np.asarray(image)
        if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
            raise ProcessingError(
                f"expected uint8 RGB [H, W, 3], found {array.dtype} {list(array.shape)}"
            )
        if self.filter == "openpi":
            # numpy, since torch would wake its thread pool for a picture of this size.
            resized = resize_with_pad_openpi(array, self.size)
            return torch.from_numpy(_MODEL_VALUES.take(resized.transpose(2, 0, 1)))
        # torch takes neither read-only memory nor negative strides; both are rare, and copied.
        if not array.flags.writeable or min(array.strides) < 0:
            array = array.copy()
        unit = torch.from_numpy(array).permute(2, 0, 1).to(torch.float32).div_(255.0)
        return resize_with_pad_lerobot(unit, self.size).mul_(2.0).sub_(1.0)

    def __str__(self) -> str:
        return (
            f"resize to {self.size}×{self.size}, aspect kept, centred on black, "
            f"{FILTERS[self.filter]} ({self.filter}); x/255·2-1"
        )
