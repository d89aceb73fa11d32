"""The overhead camera: its model, and where it sees a block of a colour.

No simulator here: a pinhole model with known pose and numpy on pixels, as one would write it for a
real camera over a real table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

BLOCK_HALF_SIZE_M = 0.02
BELT_TOP_M = 0.02  # above the table
BLOCK_CENTRE_M = BELT_TOP_M + BLOCK_HALF_SIZE_M
BELT_CENTRE_X_M = 0.24
BELT_HALF_WIDTH_M = 0.09
BELT_VISIBLE_HALF_LENGTH_M = 0.30  # along y, between the two housings

# Colours by name: the RGB the blocks are painted in. Segmentation uses their ratios only.
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.85, 0.10, 0.10),
    "green": (0.12, 0.65, 0.15),
    "blue": (0.10, 0.25, 0.90),
    "yellow": (0.92, 0.78, 0.08),
}


@dataclass(frozen=True)
class PinholeCamera:
    """A camera without distortion and with square pixels, its optical axis through the image
    centre.

    `position_m`, `look_at_m`: camera centre and a point on the axis, world frame. `up`: what is up
    in the picture. `fovy_deg`: vertical field of view.
    """

    position_m: tuple[float, float, float]
    look_at_m: tuple[float, float, float]
    up: tuple[float, float, float]
    fovy_deg: float

    @property
    def axes(self) -> NDArray[np.float64]:
        """Rows [3, 3]: the picture's right, its up, and backward along the axis, in the world
        frame."""
        backward = np.subtract(self.position_m, self.look_at_m)
        backward /= np.linalg.norm(backward)
        right = np.cross(self.up, backward)
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(backward, right), backward])

    def project(
        self, points_m: NDArray[np.float64], height: int, width: int
    ) -> NDArray[np.float64]:
        """Image positions [N, 2] (column, row; pixel centres at .5) of world points [N, 3] in front
        of it."""
        local = (points_m - np.array(self.position_m)) @ self.axes.T
        focal = 0.5 * height / math.tan(math.radians(0.5 * self.fovy_deg))
        depth = -local[:, 2]
        column = 0.5 * width + focal * local[:, 0] / depth
        row = 0.5 * height - focal * local[:, 1] / depth
        return np.stack([column, row], axis=1)

    def on_plane(
        self, column: float, row: float, height: int, width: int, plane_z_m: float
    ) -> tuple[float, float]:
        """World (x, y) (m) where the ray through an image position meets the plane z =
        `plane_z_m`."""
        focal = 0.5 * height / math.tan(math.radians(0.5 * self.fovy_deg))
        right, up, backward = self.axes
        ray = (column - 0.5 * width) * right + (0.5 * height - row) * up - focal * backward
        x0, y0, z0 = self.position_m
        scale = (plane_z_m - z0) / float(ray[2])
        return x0 + scale * float(ray[0]), y0 + scale * float(ray[1])


# It looks from the far side of the belt towards the arm, so that the hand reaches blocks from
# behind them and a touched block stays partly in view.
OVERHEAD = PinholeCamera(
    position_m=(0.58, 0.0, 0.66), look_at_m=(0.175, 0.0, 0.02), up=(-1.0, 0.0, 0.0), fovy_deg=50.0
)


@dataclass(frozen=True)
class BlockSight:
    """One block in one picture: centre (x, y) in m, world frame, and the share of its usual area in
    view."""

    x_m: float
    y_m: float
    visible_share: float


def find_block(image: NDArray[np.uint8], colour: str) -> BlockSight | None:
    """Find the block of `colour` in an overhead picture [H, W, 3], uint8 RGB; None where none is in
    view.

    The colour is told by channel ratios, so that brightness does not matter; the centre of its
    pixels is taken for the projection of the block's centre. Raises ValueError for an unknown
    colour or another shape.
    """
    if colour not in COLOURS:
        raise ValueError(f"colour {colour!r}: expected one of {', '.join(COLOURS)}")
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(
            f"overhead image: expected [H, W, 3] uint8 RGB, found {list(image.shape)} {image.dtype}"
        )
    height, width = image.shape[:2]
    stride = max(
        1, height // 224
    )  # more pixels than that cost time and add no accuracy that matters
    top, bottom, left, right = _belt_window(height, width)
    crop = image[top:bottom:stride, left:right:stride]
    rows, columns = np.nonzero(_colour_mask(crop, colour))
    if rows.size == 0:
        return None
    # A few stray pixels must not pull the centre: keep those within a block's size of the median.
    scale_m = _metres_per_pixel(height) * stride
    reach = 2.0 * BLOCK_HALF_SIZE_M / scale_m
    near = (np.abs(rows - np.median(rows)) <= reach) & (
        np.abs(columns - np.median(columns)) <= reach
    )
    count = int(np.count_nonzero(near))
    share = count * scale_m**2 / (1.3 * (2.0 * BLOCK_HALF_SIZE_M) ** 2)
    if share < 0.1:
        return None
    row = top + stride * float(rows[near].mean()) + 0.5
    column = left + stride * float(columns[near].mean()) + 0.5
    x, y = OVERHEAD.on_plane(column, row, height, width, BLOCK_CENTRE_M)
    return BlockSight(x, y, min(share, 1.0))


def _colour_mask(pixels: NDArray[np.uint8], colour: str) -> NDArray[np.bool_]:
    red, green, blue = (pixels[..., channel].astype(np.int16) for channel in range(3))
    if colour == "red":
        strong, weak, other = red, green, blue
    elif colour == "green":
        strong, weak, other = green, red, blue
    elif colour == "blue":
        strong, weak, other = blue, red, green
    else:  # yellow: red and green alike, blue far below both
        low = np.minimum(red, green)
        return (low > 24) & (low > 2 * blue) & (2 * low > np.maximum(red, green))
    return (strong > 24) & (strong > 2 * weak) & (strong > 2 * other)


def _metres_per_pixel(height: int) -> float:
    focal = 0.5 * height / math.tan(math.radians(0.5 * OVERHEAD.fovy_deg))
    centre = (BELT_CENTRE_X_M, 0.0, BLOCK_CENTRE_M)
    return math.dist(OVERHEAD.position_m, centre) / focal


@lru_cache(maxsize=16)
def _belt_window(height: int, width: int) -> tuple[int, int, int, int]:
    """Rows and columns [top, bottom, left, right) that a block on the belt can cover."""
    x = (BELT_CENTRE_X_M - BELT_HALF_WIDTH_M, BELT_CENTRE_X_M + BELT_HALF_WIDTH_M)
    y = (-BELT_VISIBLE_HALF_LENGTH_M - 0.03, BELT_VISIBLE_HALF_LENGTH_M + 0.03)
    z = (BELT_TOP_M, BLOCK_CENTRE_M + BLOCK_HALF_SIZE_M)
    corners = np.array([(a, b, c) for a in x for b in y for c in z])
    columns, rows = OVERHEAD.project(corners, height, width).T
    return (
        max(0, math.floor(rows.min())),
        min(height, math.ceil(rows.max())),
        max(0, math.floor(columns.min())),
        min(width, math.ceil(columns.max())),
    )


def instruction_colour(instruction: str) -> str:
    """The one known colour that an instruction names, such as "red" in "touch the red block".

    Raises ValueError where it names none or several.
    """
    words = {word.strip(".,;:!?\"'()").lower() for word in instruction.split()}
    named: Sequence[str] = [colour for colour in COLOURS if colour in words]
    if len(named) != 1:
        found = " and ".join(named) if named else "none"
        raise ValueError(
            f"instruction {instruction!r}: expected exactly one colour of {', '.join(COLOURS)}, "
            f'found {found}; write for example "touch the red block"'
        )
    return named[0]
