"""Row 17: every encoding that is taken gives the right colours, the others are refused with the list."""

import array

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from sensor_msgs.msg import CompressedImage, Image

from flashrt_ros.observation.images import ACCEPTED_ENCODINGS, check_image, decode
from flashrt_ros.observation.pixels import ImageError

HEIGHT, WIDTH = 48, 64


@pytest.fixture
def colours():
    """Smooth patches, so that subsampled and mosaic layouts keep their colours: uint8 [48, 64, 3] RGB."""
    patches = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    patches[:, :16] = (200, 40, 30)
    patches[:, 16:32] = (40, 180, 60)
    patches[:, 32:48] = (50, 60, 190)
    patches[:, 48:] = (120, 120, 120)
    return patches


def message(encoding, rows, padding=0):
    rows = np.ascontiguousarray(rows).reshape(rows.shape[0], -1).view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=77)
    made = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=padded.shape[1])
    made.data = array.array("B", padded.tobytes())
    return made


def encode(encoding, rgb):
    if encoding in ("rgb8", "8UC3"):
        return rgb
    if encoding == "bgr8":
        return rgb[..., ::-1]
    if encoding == "rgba8":
        return np.dstack([rgb, np.full(rgb.shape[:2], 9, np.uint8)])
    if encoding == "bgra8":
        return np.dstack([rgb[..., ::-1], np.full(rgb.shape[:2], 9, np.uint8)])
    if encoding in ("mono8", "8UC1"):
        return rgb.mean(axis=2).astype(np.uint8)
    if encoding == "mono16":
        return rgb.mean(axis=2).astype(np.uint16) * 256 + 17
    if encoding.startswith("bayer"):
        pattern = encoding[6:10]
        mosaic = np.zeros(rgb.shape[:2], np.uint8)
        for at, letter in enumerate(pattern):
            y, x = divmod(at, 2)
            mosaic[y::2, x::2] = rgb[y::2, x::2, "rgb".index(letter)]
        return mosaic
    return encode_yuv(encoding, rgb)


def encode_yuv(encoding, rgb):
    """BT.601 limited range, as OpenCV's decoder expects."""
    r, g, b = (rgb[..., i].astype(np.float64) for i in range(3))
    y = 16 + (65.738 * r + 129.057 * g + 25.064 * b) / 256
    u = 128 + (-37.945 * r - 74.494 * g + 112.439 * b) / 256
    v = 128 + (112.439 * r - 94.154 * g - 18.285 * b) / 256
    y, u, v = (np.rint(c).astype(np.uint8) for c in (y, u, v))
    if encoding == "nv21":
        chroma = np.stack([v[::2, ::2], u[::2, ::2]], axis=-1).reshape(HEIGHT // 2, WIDTH)
        return np.vstack([y, chroma])
    packed = np.empty((HEIGHT, WIDTH, 2), np.uint8)
    luma, chroma = (1, 0) if encoding in ("yuv422", "uyvy") else (0, 1)
    packed[..., luma] = y
    packed[:, ::2, chroma] = u[:, ::2]
    packed[:, 1::2, chroma] = v[:, ::2]
    return packed


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("encoding", ACCEPTED_ENCODINGS)
def test_row_17_every_accepted_encoding(encoding, padding, colours):
    made = message(encoding, encode(encoding, colours), padding)
    check_image(made)
    found = decode(made)
    grey = encoding in ("mono8", "8UC1", "mono16")
    wanted = np.repeat(colours.mean(axis=2).astype(np.uint8)[..., None], 3, 2) if grey else colours
    assert found.shape == (HEIGHT, WIDTH, 3)
    assert found.dtype == np.uint8
    # The middle of each patch: mosaic and chroma bleed at the edges.
    for x in (8, 24, 40, 56):
        difference = np.abs(found[24, x].astype(int) - wanted[24, x])
        assert difference.max() <= 4, (encoding, x, found[24, x], wanted[24, x])


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1", "nv24", "rgb16", "", "garbage"])
def test_row_17_other_encodings_are_refused_with_the_list(encoding):
    made = message("rgb8", np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    made.encoding = encoding
    with pytest.raises(ImageError, match="expected one of rgb8, 8UC3, bgr8") as error:
        check_image(made)
    assert error.value.reason == "encoding"


@pytest.mark.parametrize("encoding", ACCEPTED_ENCODINGS)
def test_row_16_short_data_is_refused_in_every_encoding(encoding, colours):
    made = message(encoding, encode(encoding, colours))
    made.data = made.data[:-1]
    with pytest.raises(ImageError) as error:
        check_image(made)
    assert error.value.reason == "short_data"


def check_and_decode(made):
    check_image(made)
    return decode(made)


def compressed(colours, extension, cut=0):
    data = cv2.imencode(extension, colours[..., ::-1])[1].tobytes()
    return CompressedImage(format=extension[1:], data=array.array("B", data[: len(data) - cut]))


@pytest.mark.parametrize(("extension", "tolerance"), [(".jpg", 6), (".png", 0)])
def test_compressed_images(colours, extension, tolerance):
    made = compressed(colours, extension)
    check_image(made)
    found = decode(made)
    for x in (8, 24, 40, 56):
        assert np.abs(found[24, x].astype(int) - colours[24, x]).max() <= tolerance


@pytest.mark.parametrize(
    "made",
    [
        CompressedImage(format="jpeg"),
        CompressedImage(format="jpeg", data=array.array("B", b"not a picture")),
    ],
)
def test_row_16_no_picture_at_all(made):
    with pytest.raises(ImageError):
        check_and_decode(made)


def test_row_16_truncated_jpeg_is_refused_before_it_is_decoded(colours):
    with pytest.raises(ImageError, match="ends before its end marker"):
        check_image(compressed(colours, ".jpg", cut=200))


def test_row_16_truncated_png(colours):
    made = compressed(colours, ".png", cut=40)
    with pytest.raises(ImageError) as error:
        check_and_decode(made)
    assert error.value.reason == "corrupt"
