"""Image messages to RGB arrays: refused at arrival when they cannot be used, decoded when they are.

Takes anything with the fields of sensor_msgs/Image or sensor_msgs/CompressedImage: a ROS message or one read from a bag
without ROS. Encodings that a view of the buffer can serve go through `pixels`, the others through OpenCV.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from flashrt_ros.observation.pixels import (
    DIRECT_ENCODINGS,
    ImageError,
    bytes_per_pixel,
    check_layout,
    rgb_view,
)

# OpenCV's code to RGB. OpenCV names a mosaic by its second row: rggb is BayerBG.
_BAYER: dict[str, int] = {
    "bayer_rggb8": cv2.COLOR_BayerBG2RGB,
    "bayer_bggr8": cv2.COLOR_BayerRG2RGB,
    "bayer_gbrg8": cv2.COLOR_BayerGR2RGB,
    "bayer_grbg8": cv2.COLOR_BayerGB2RGB,
}
_DEEP_GREY = "mono16"
# Bytes of a pixel in one row of the YUV layouts, and OpenCV's code to RGB.
_YUV: dict[str, tuple[int, int]] = {
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (2, cv2.COLOR_YUV2RGB_YUY2),
    "nv21": (1, cv2.COLOR_YUV2RGB_NV21),
}
ACCEPTED_ENCODINGS = (*DIRECT_ENCODINGS, *_BAYER, _DEEP_GREY, *_YUV)
"""Encodings of sensor_msgs/Image that are taken. 16UC1 and 32FC1 are depth: no picture for these policies."""

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


def check_image(message: Any) -> None:
    """Refuse what `decode` could not use, without touching the pixels.

    Raises:
        ImageError: `encoding`, `empty`, `short_step`, `short_data` or `corrupt`.
    """
    if is_compressed(message):
        _check_compressed(message)
        return
    encoding = message.encoding
    if encoding not in ACCEPTED_ENCODINGS:
        raise ImageError(
            "encoding",
            f"encoding {encoding!r} is not taken: expected one of {', '.join(ACCEPTED_ENCODINGS)}",
        )
    rows = message.height * 3 // 2 if encoding == "nv21" else message.height
    check_layout(
        rows, message.width, message.step, len(message.data), _pixel_bytes(encoding), encoding
    )


def decode(message: Any) -> NDArray[np.uint8]:
    """Decode a message that passed `check_image`.

    Returns:
        uint8 [height, width, 3] RGB; for rgb8 and bgr8 a view of the message's buffer.

    Raises:
        ImageError: `corrupt`, a compressed image that cannot be decoded.
    """
    if is_compressed(message):
        bgr = cv2.imdecode(np.frombuffer(message.data, dtype=np.uint8), cv2.IMREAD_COLOR)
        if bgr is None:
            raise ImageError("corrupt", f"compressed image ({message.format!r}) cannot be decoded")
        return np.asarray(bgr[..., ::-1], dtype=np.uint8)
    encoding = message.encoding
    if encoding in DIRECT_ENCODINGS:
        return rgb_view(message.data, message.height, message.width, message.step, encoding)
    rows = message.height * 3 // 2 if encoding == "nv21" else message.height
    packed = _packed_rows(message, rows, message.width * _pixel_bytes(encoding))
    if encoding == _DEEP_GREY:
        # The high byte of each pixel.
        grey = packed[:, (0 if message.is_bigendian else 1) :: 2]
        return np.broadcast_to(grey[..., None], (*grey.shape, 3))
    if encoding in _BAYER:
        return np.asarray(cv2.cvtColor(packed, _BAYER[encoding]), dtype=np.uint8)
    pixel_bytes, code = _YUV[encoding]
    if pixel_bytes == 2:
        packed = packed.reshape(rows, message.width, 2)
    return np.asarray(cv2.cvtColor(packed, code), dtype=np.uint8)


def is_compressed(message: Any) -> bool:
    """Whether it is a CompressedImage: the one message of the two that has no `encoding`."""
    return not hasattr(message, "encoding")


def _pixel_bytes(encoding: str) -> int:
    if encoding in DIRECT_ENCODINGS:
        return bytes_per_pixel(encoding)
    if encoding in _YUV:
        return _YUV[encoding][0]
    return 2 if encoding == _DEEP_GREY else 1


def _packed_rows(message: Any, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """uint8 [rows, row_bytes] without the padding of the rows."""
    flat = np.frombuffer(message.data, dtype=np.uint8)
    padded = np.lib.stride_tricks.as_strided(flat, (rows, row_bytes), (message.step, 1))
    return np.ascontiguousarray(padded)


def _check_compressed(message: Any) -> None:
    if len(message.data) == 0:
        raise ImageError("empty", "compressed image has no data")
    head = bytes(message.data[:2])
    # OpenCV fills what a truncated JPEG lacks with grey, without a word.
    if head == _JPEG_START and _JPEG_END not in bytes(message.data[-64:]):
        raise ImageError("corrupt", f"JPEG of {len(message.data)} bytes ends before its end marker")
