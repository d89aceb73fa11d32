"""Pixels of a raw image message, without a Python-level copy per byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Channels of each encoding, and the slice that makes RGB of them. None: grey, repeated.
_RGB = slice(0, 3)
_BGR = slice(2, None, -1)
_LAYOUTS: dict[str, tuple[int, slice | None]] = {
    "rgb8": (3, _RGB),
    "8UC3": (3, _RGB),
    "bgr8": (3, _BGR),
    "rgba8": (4, _RGB),
    "bgra8": (4, _BGR),
    "mono8": (1, None),
    "8UC1": (1, None),
}

DIRECT_ENCODINGS = tuple(_LAYOUTS)
"""Encodings that `rgb_view` takes."""


class ImageError(ValueError):
    """An image that cannot be used. `reason` is a short name to count it under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_layout(
    height: int, width: int, step: int, size: int, bytes_per_pixel: float, encoding: str
) -> None:
    """Check that an image's buffer holds what its header says.

    Raises:
        ImageError: `empty` for no pixels, `short_step` for rows shorter than their pixels, `short_data` for a buffer
            shorter than height × step.
    """
    if height == 0 or width == 0:
        raise ImageError("empty", f"image has no pixels: {height}×{width}")
    row_bytes = int(width * bytes_per_pixel)
    if step < row_bytes:
        raise ImageError(
            "short_step",
            f"step is {step} bytes, expected at least {row_bytes} for {width} pixels of {encoding}",
        )
    # The last row may lack its padding.
    if size < (height - 1) * step + row_bytes:
        raise ImageError(
            "short_data",
            f"data has {size} bytes, expected {height} rows × {step} bytes = {height * step}",
        )


def bytes_per_pixel(encoding: str) -> int:
    """Bytes of one pixel in an encoding of `DIRECT_ENCODINGS`."""
    return _LAYOUTS[encoding][0]


def rgb_view(data: Any, height: int, width: int, step: int, encoding: str) -> NDArray[np.uint8]:
    """View a raw image's buffer as RGB; row padding is respected.

    Args:
        data: buffer of uint8 (bytes, array.array, numpy).
        height: rows.
        width: pixels a row.
        step: bytes a row, padding included.
        encoding: one of `DIRECT_ENCODINGS`.

    Returns:
        uint8 [height, width, 3] RGB. A read-only view of `data`, with strides of its own.

    Raises:
        ImageError: the buffer does not hold what the arguments say (`check_layout`).
    """
    channels, rgb = _LAYOUTS[encoding]
    flat = np.frombuffer(data, dtype=np.uint8)
    check_layout(height, width, step, flat.size, channels, encoding)
    # `as_strided` does the same and takes five times as long, while a complete set waits.
    pixels: NDArray[np.uint8] = np.ndarray(
        (height, width, channels), np.uint8, flat, strides=(step, channels, 1)
    )
    pixels.flags.writeable = False
    if rgb is None:
        return np.broadcast_to(pixels, (height, width, 3))
    return pixels[..., rgb]
