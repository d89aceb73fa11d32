"""Image messages to RGB arrays: refused at arrival when they cannot be used, decoded when they are.

The encodings that a view of the buffer can serve go through `observation.pixels`; cv_bridge takes the others that it
knows, OpenCV the YUV layouts that it does not know everywhere.
"""

from __future__ import annotations

import array

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

# Bytes of a pixel in the encodings that cv_bridge reads, and OpenCV's code to RGB; None: deep grey.
_BRIDGED: dict[str, tuple[int, int | None]] = {
    "bayer_rggb8": (1, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr8": (1, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg8": (1, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg8": (1, cv2.COLOR_BayerGB2RGB),
    "mono16": (2, None),
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
        pixel_bytes = (_BRIDGED.get(encoding) or _YUV[encoding])[0]
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
    return _decode_yuv(message) if encoding in _YUV else _decode_bridged(message)


def _packed_rows(message: Image, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """uint8 [rows, row_bytes] without the padding of the rows."""
    flat = np.frombuffer(message.data, dtype=np.uint8)
    padded = np.lib.stride_tricks.as_strided(flat, (rows, row_bytes), (message.step, 1))
    return np.ascontiguousarray(padded)


def _decode_bridged(message: Image) -> NDArray[np.uint8]:
    pixel_bytes, code = _BRIDGED[message.encoding]
    row_bytes = message.width * pixel_bytes
    if message.step != row_bytes:
        # Not every cv_bridge knows about padding.
        rows = _packed_rows(message, message.height, row_bytes)
        message = Image(
            header=message.header,
            height=message.height,
            width=message.width,
            encoding=message.encoding,
            is_bigendian=message.is_bigendian,
            step=row_bytes,
            data=array.array("B", rows.tobytes()),
        )
    try:
        pixels = _bridge.imgmsg_to_cv2(message, "passthrough")
    except (CvBridgeError, KeyError, TypeError, ValueError) as error:
        raise ImageError(
            "corrupt", f"{message.encoding} image cannot be converted: {error}"
        ) from error
    if code is not None:
        return np.asarray(cv2.cvtColor(pixels, code), dtype=np.uint8)
    grey = (pixels >> 8).astype(np.uint8)
    return np.broadcast_to(grey[..., None], (*grey.shape, 3))


def _decode_yuv(message: Image) -> NDArray[np.uint8]:
    pixel_bytes, code = _YUV[message.encoding]
    rows = message.height * 3 // 2 if message.encoding == "nv21" else message.height
    packed = _packed_rows(message, rows, message.width * pixel_bytes)
    if pixel_bytes == 2:
        packed = packed.reshape(rows, message.width, 2)
    return np.asarray(cv2.cvtColor(packed, code), dtype=np.uint8)


def _check_compressed(message: CompressedImage) -> None:
    if len(message.data) == 0:
        raise ImageError("empty", "compressed image has no data")
    head = bytes(message.data[:2])
    # OpenCV fills what a truncated JPEG lacks with grey, without a word.
    if head == _JPEG_START and _JPEG_END not in bytes(message.data[-64:]):
        raise ImageError("corrupt", f"JPEG of {len(message.data)} bytes ends before its end marker")
