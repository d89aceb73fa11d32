"""Image messages to RGB arrays: refused at arrival when they cannot be used, decoded when they are.

The encodings that a view of the buffer can serve go through `observation.pixels`; cv_bridge takes the others that it
knows, OpenCV the YUV layouts that it does not know everywhere.
"""

from __future__ import annotations

import cv2
import numpy as np
from cv_bridge import CvBridge, CvBridgeError
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from flashrt_ros.observation.pixels import (
    DIRECT_ENCODINGS,
    ImageError,
    bytes_per_pixel,
    check_layout,
    rgb_view,
)

# Bytes of a pixel in the encodings that cv_bridge turns into rgb8.
_BRIDGED: dict[str, int] = {
    "bayer_rggb8": 1,
    "bayer_bggr8": 1,
    "bayer_gbrg8": 1,
    "bayer_grbg8": 1,
    "mono16": 2,
}
# Bytes of a pixel in one row of the YUV layouts, and OpenCV's code to RGB.
_YUV: dict[str, tuple[int, int]] = {
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (2, cv2.COLOR_YUV2RGB_YUY2),
    "nv21": (1, cv2.COLOR_YUV2RGB_NV21),
}
ACCEPTED_ENCODINGS = (*DIRECT_ENCODINGS, *_BRIDGED, *_YUV)
"""Encodings of sensor_msgs/Image that are taken. 16UC1 and 32FC1 are depth: no picture for these policies."""

_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_bridge = CvBridge()


def check_image(message: Image | CompressedImage) -> None:
    """Refuse what `decode` could not use, without touching the pixels.

    Raises:
        ImageError: `encoding`, `empty`, `short_step`, `short_data` or `corrupt`.
    """
    if isinstance(message, CompressedImage):
        _check_compressed(message)
        return
    encoding = message.encoding
    if encoding not in ACCEPTED_ENCODINGS:
        raise ImageError(
            "encoding",
            f"encoding {encoding!r} is not taken: expected one of {', '.join(ACCEPTED_ENCODINGS)}",
        )
    if encoding in DIRECT_ENCODINGS:
        pixel_bytes = bytes_per_pixel(encoding)
    else:
        pixel_bytes = _BRIDGED.get(encoding) or _YUV[encoding][0]
    rows = message.height * 3 // 2 if encoding == "nv21" else message.height
    check_layout(rows, message.width, message.step, len(message.data), pixel_bytes, encoding)


def decode(message: Image | CompressedImage) -> NDArray[np.uint8]:
    """Decode a message that passed `check_image`.

    Returns:
        uint8 [height, width, 3] RGB; for rgb8 and bgr8 a view of the message's buffer.

    Raises:
        ImageError: `corrupt`, a compressed image that cannot be decoded.
    """
    if isinstance(message, CompressedImage):
        bgr = cv2.imdecode(np.frombuffer(message.data, dtype=np.uint8), cv2.IMREAD_COLOR)
        if bgr is None:
            raise ImageError("corrupt", f"compressed image ({message.format!r}) cannot be decoded")
        return np.asarray(bgr[..., ::-1], dtype=np.uint8)
    encoding = message.encoding
    if encoding in DIRECT_ENCODINGS:
        return rgb_view(message.data, message.height, message.width, message.step, encoding)
    if encoding in _YUV:
        return _decode_yuv(message)
    try:
        if encoding == "mono16":
            deep = _bridge.imgmsg_to_cv2(message, "passthrough")
            grey = (deep >> 8).astype(np.uint8)
            return np.broadcast_to(grey[..., None], (*grey.shape, 3))
        return np.asarray(_bridge.imgmsg_to_cv2(message, "rgb8"), dtype=np.uint8)
    except (CvBridgeError, KeyError, cv2.error) as error:
        raise ImageError("corrupt", f"{encoding} image cannot be converted: {error}") from error


def _decode_yuv(message: Image) -> NDArray[np.uint8]:
    row_bytes, code = _YUV[message.encoding]
    rows = message.height * 3 // 2 if message.encoding == "nv21" else message.height
    flat = np.frombuffer(message.data, dtype=np.uint8)
    shape = (rows, message.width) if row_bytes == 1 else (rows, message.width, row_bytes)
    strides = (message.step, 1) if row_bytes == 1 else (message.step, row_bytes, 1)
    packed = np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, shape, strides))
    return np.asarray(cv2.cvtColor(packed, code), dtype=np.uint8)


def _check_compressed(message: CompressedImage) -> None:
    if len(message.data) == 0:
        raise ImageError("empty", "compressed image has no data")
    head = bytes(message.data[:2])
    # OpenCV fills what a truncated JPEG lacks with grey, without a word.
    if head == _JPEG_START and _JPEG_END not in bytes(message.data[-64:]):
        raise ImageError("corrupt", f"JPEG of {len(message.data)} bytes ends before its end marker")
