"""Pixels to patches, against the pictures that a checkpoint was trained on."""

import numpy as np
import pytest
import torch

from flashrt_ros.kernels.resize import (
    part_width,
    resize_tables,
    resize_to_patches,
    resize_to_patches_reference,
    split_weights,
)
from flashrt_ros.models.images import PrepareImage, resized_shape

from .compare import DEVICE, Draw, error, poisoned

PICTURES = [(48, 64), (97, 61), (20, 30), (28, 28), (1, 5)]


@pytest.mark.parametrize("name", ["openpi", "lerobot"])
@pytest.mark.parametrize("picture", PICTURES, ids=str)
def test_patches_are_those_of_the_processor(picture, name):
    size, patch = 28, 14
    pixels = np.random.default_rng(0).integers(0, 256, (*picture, 3), dtype=np.uint8)
    tables = resize_tables(*picture, size, resized_shape(*picture, size), name, DEVICE)
    side, part, n = size // patch, part_width(patch), 3 * patch * patch
    found = poisoned(side * side, 3 * part, dtype=torch.float16)
    plain = torch.empty_like(found)
    on_device = torch.from_numpy(pixels).to(DEVICE)
    resize_to_patches(on_device, found, tables, patch)
    resize_to_patches_reference(on_device, plain, tables, patch)
    image = PrepareImage(size, name)(pixels).to(DEVICE)
    wanted = image.view(3, side, patch, side, patch).permute(1, 3, 0, 2, 4).reshape(-1, n)
    for patches in (found, plain):
        value = patches[:, :n].float() + patches[:, part : part + n].float()
        # openpi's is integer arithmetic, and two float16 hold a float32 of this range to 2^-22.
        assert float((value - wanted).abs().max()) < (1e-6 if name == "openpi" else 1e-5)
        assert torch.equal(patches[:, :part], patches[:, 2 * part :])


def test_a_product_of_split_parts_has_the_accuracy_of_float32():
    patch = 7
    n, part = 3 * patch * patch, part_width(patch)
    draw = Draw()
    w, x = draw(16, n), draw(40, n)
    high = x.to(torch.float16)
    low = (x - high.float()).to(torch.float16)
    parts = torch.zeros(40, 3 * part, dtype=torch.float16, device=DEVICE)
    for i, values in enumerate((high, low, high)):
        parts[:, i * part : i * part + n] = values
    found = parts.double() @ split_weights(w, patch, torch.float16).double().T
    assert error(found, x.double() @ w.double().T) < 1e-6
    assert error(high.double() @ w.to(torch.float16).double().T, x.double() @ w.double().T) > 1e-4
