"""Both resize filters against the pictures that openpi and LeRobot made."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.images import (
    PrepareImage,
    resize_with_pad_lerobot,
    resize_with_pad_openpi,
)

RESIZE = Path(__file__).parents[1] / "data" / "golden" / "resize"
SPEC = json.loads((RESIZE / "resize.json").read_text())
CASES = SPEC["cases"]


def picture(content: str, height: int, width: int) -> np.ndarray:
    """The formulas of the golden data, over row y, column x, channel c and a seed."""
    y, x, c = np.ogrid[:height, :width, :3]
    seed = SPEC["seed"]
    if content == "smooth":
        return np.abs((x * (c + 2) + y * (5 - c) + seed + 85 * c) % 510 - 255).astype(np.uint8)
    mixed = x * 374761393 + y * 668265263 + c * 2246822519 + seed * 3266489917
    v = mixed.astype(np.uint64) & 0xFFFFFFFF
    v = ((v ^ (v >> np.uint64(13))) * np.uint64(1274126177)) & np.uint64(0xFFFFFFFF)
    v = v ^ (v >> np.uint64(16))
    return ((v >> np.uint64(8)) & np.uint64(255)).astype(np.uint8)


@pytest.fixture(params=sorted(CASES))
def case(request):
    spec = CASES[request.param]
    image = picture(spec["content"], spec["height"], spec["width"])
    assert hashlib.sha256(image.tobytes()).hexdigest() == spec["input_sha256"]
    return request.param, image, spec["target"]


def test_openpi_filter(case):
    name, image, size = case
    with np.load(RESIZE / "openpi_uint8.npz") as golden:
        difference = np.abs(resize_with_pad_openpi(image, size).astype(int) - golden[name])
    assert difference.max() <= 1
    # Pillow changed its rounding of one shape after the golden data was made.
    assert difference.any() <= ("100x37_to56" in name)


def test_lerobot_filter(case):
    name, image, size = case
    unit = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    resized = resize_with_pad_lerobot(unit, size).permute(1, 2, 0).numpy()
    with np.load(RESIZE / "lerobot_float32.npz") as golden:
        np.testing.assert_allclose(resized, golden[name], rtol=0, atol=2e-7)


@pytest.mark.parametrize("filter_name", ["openpi", "lerobot"])
def test_padding_is_centred_with_the_remainder_below_and_right(filter_name):
    white = np.full((10, 20, 3), 255, np.uint8)
    wide = PrepareImage(7, filter_name)(white)
    assert wide.shape == (3, 7, 7)
    assert wide.dtype == torch.float32
    # 20×10 becomes 7×3: two black rows above, two below.
    assert wide[0, :, 3].tolist() == [-1, -1, 1, 1, 1, -1, -1]
    tall = PrepareImage(8, filter_name)(white.transpose(1, 0, 2)[:, :7])
    # 7×20 becomes 2×8, three columns left and three right; with size 7 it is 2×7: two and three.
    assert tall[0, 3].tolist() == [-1, -1, -1, 1, 1, -1, -1, -1]
    odd = PrepareImage(7, filter_name)(white.transpose(1, 0, 2)[:, :7])
    assert odd[0, 3].tolist() == [-1, -1, 1, 1, -1, -1, -1]


@pytest.mark.parametrize("filter_name", ["openpi", "lerobot"])
def test_memory_layouts_of_camera_drivers(filter_name):
    prepare = PrepareImage(56, filter_name)
    image = picture("random", 48, 64)
    expected = prepare(image)
    padded_rows = np.zeros((48, 80, 3), np.uint8)
    padded_rows[:, :64] = image
    from_bytes = np.frombuffer(image.tobytes(), np.uint8).reshape(image.shape)
    bgr = np.ascontiguousarray(image[..., ::-1])
    for same in (padded_rows[:, :64], from_bytes, bgr[..., ::-1]):
        assert torch.equal(prepare(same), expected)


@pytest.mark.parametrize("filter_name", ["openpi", "lerobot"])
def test_a_picture_of_the_right_size_is_left_alone_and_unwritten(filter_name):
    image = picture("random", 56, 56)
    before = image.copy()
    ready = PrepareImage(56, filter_name)(image)
    expected = torch.from_numpy(image).permute(2, 0, 1).float() / 255 * 2 - 1
    assert torch.equal(ready, expected)
    assert (image == before).all()


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (np.zeros((4, 4, 3), np.float32), r"float32 \[4, 4, 3\]"),
        (np.zeros((4, 4), np.uint8), r"uint8 \[4, 4\]"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 \[4, 4, 4\]"),
        (np.zeros((0, 4, 3), np.uint8), r"uint8 \[0, 4, 3\]"),
    ],
)
def test_other_pictures_are_refused(image, found):
    with pytest.raises(ProcessingError, match=rf"expected uint8 RGB \[H, W, 3\], found {found}"):
        PrepareImage(56, "openpi")(image)


def test_a_sliver_and_an_unknown_filter_are_refused():
    with pytest.raises(ProcessingError, match="image of 1×1000"):
        PrepareImage(56, "lerobot")(np.zeros((1, 1000, 3), np.uint8))
    with pytest.raises(ProcessingError, match="openpi or lerobot, found 'cubic'"):
        PrepareImage(56, "cubic")
