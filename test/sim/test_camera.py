import numpy as np
import pytest

from flashrt_ros.sim.camera import OVERHEAD, find_block, instruction_colour
from flashrt_ros.sim.world import BeltWorld

SIZES = [(96, 96), (224, 224), (240, 320)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("light", [0.4, 1.0, 1.6])
def test_blocks_are_placed_within_a_centimetre(size, light):
    seen = 0
    for seed in range(4):
        belt = BeltWorld(seed, 0.15, size, ("red", "green", "blue", "yellow"), light)
        for time_s in (0.0, 0.7, 1.4):
            belt.step_until(time_s)
            image = belt.render("overhead")
            for colour in belt.colours:
                x, y, _ = belt.block_position(colour)
                if abs(y) > 0.26:  # partly in a housing
                    continue
                sight = find_block(image, colour)
                assert sight is not None
                assert np.hypot(sight.x_m - x, sight.y_m - y) < 0.01
                assert sight.visible_share > 0.6
                seen += 1
        belt.close()
    assert seen > 20


def test_half_a_block_is_still_placed_within_a_block_and_says_so():
    belt = BeltWorld(1)
    image = belt.render("overhead")
    x, y, z = belt.block_position("red")
    column = int(OVERHEAD.project(np.array([[x, y, z]]), 224, 224)[0, 0])
    image[:, column:] = 200  # something grey in front of its right half
    sight = find_block(image, "red")
    assert sight is not None
    assert np.hypot(sight.x_m - x, sight.y_m - y) < 0.02
    assert sight.visible_share < 0.7
    belt.close()


def test_stray_pixels_do_not_pull_the_place():
    belt = BeltWorld(1)
    image = belt.render("overhead")
    clean = find_block(image, "blue")
    away = 190 if clean.y_m < 0 else 30
    image[115:117, away : away + 3] = (20, 40, 220)
    strayed = find_block(image, "blue")
    assert (strayed.x_m, strayed.y_m) == pytest.approx((clean.x_m, clean.y_m), abs=2e-3)
    belt.close()


def test_what_is_not_there_is_not_seen():
    belt = BeltWorld(1, colours=("red", "green"))
    image = belt.render("overhead")
    assert find_block(image, "blue") is None
    assert find_block(np.zeros_like(image), "red") is None
    belt.close()


def test_projection_and_its_inverse_agree():
    points = np.array([[0.2, -0.1, 0.04], [0.3, 0.25, 0.04], [0.1, 0.0, 0.04]])
    for (column, row), point in zip(OVERHEAD.project(points, 240, 320), points, strict=True):
        assert OVERHEAD.on_plane(column, row, 240, 320, 0.04) == pytest.approx(point[:2])


def test_bad_pictures_and_colours_are_named():
    with pytest.raises(ValueError, match="expected one of red, green"):
        find_block(np.zeros((8, 8, 3), np.uint8), "mauve")
    with pytest.raises(ValueError, match=r"expected \[H, W, 3\] uint8 RGB, found \[8, 8\] float64"):
        find_block(np.zeros((8, 8)), "red")


@pytest.mark.parametrize(
    ("instruction", "colour"),
    [("touch the red block", "red"), ("Reach the BLUE block.", "blue"), ("green", "green")],
)
def test_the_instructions_colour_is_found(instruction, colour):
    assert instruction_colour(instruction) == colour


@pytest.mark.parametrize(
    "instruction", ["", "touch the block", "the red or the blue one", "touch the bored block"]
)
def test_none_or_several_colours_are_refused(instruction):
    with pytest.raises(ValueError, match="expected exactly one colour of red, green, blue"):
        instruction_colour(instruction)
