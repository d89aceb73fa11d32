import subprocess
import sys

import numpy as np
import pytest

from flashrt_ros.sim import kinematics, scene, world
from flashrt_ros.sim.world import BeltWorld, RenderingUnavailableError

TARGETS = np.array([0.4, 0.3, 0.2, 0.5, -0.6, 0.8])


def moved(seed, times_s):
    belt = BeltWorld(seed, 0.05)
    belt.set_joint_targets(TARGETS)
    for time_s in times_s:
        belt.step_until(time_s)
    return belt


def test_same_seed_and_commands_give_the_same_bits():
    assert np.array_equal(moved(3, [1.5]).state(), moved(3, [1.5]).state())
    assert not np.array_equal(moved(3, [1.5]).state(), moved(4, [1.5]).state())


def test_how_time_is_cut_into_calls_does_not_matter():
    assert np.array_equal(moved(3, [1.5]).state(), moved(3, np.arange(1, 151) / 100).state())


def test_time_advances_in_whole_steps():
    belt = BeltWorld(0)
    belt.step_until(1 / 30)
    assert belt.time_s == pytest.approx(1 / 30, abs=1e-12)
    belt.advance(0.1 * belt.timestep_s)
    assert belt.time_s == pytest.approx(1 / 30, abs=1e-12)
    with pytest.raises(ValueError, match="expected a time from now"):
        belt.step_until(0.0)


@pytest.mark.parametrize("camera", world.CAMERAS)
def test_a_state_renders_the_same_picture_in_another_world(camera):
    first, second = moved(3, [2.0]), BeltWorld(3, 0.0)
    before = second.render(camera)
    second.set_state(first.state())
    assert np.array_equal(first.render(camera), second.render(camera))
    assert not np.array_equal(before, second.render(camera))
    first.close(), second.close()


def test_a_state_goes_on_the_same_way_in_another_world():
    first, second = moved(3, [1.0]), BeltWorld(3, 0.0)
    second.set_state(first.state())
    first.step_until(2.0), second.step_until(2.0)
    assert np.array_equal(first.state(), second.state())


def test_pictures_leave_the_physics_alone():
    seen, unseen = BeltWorld(5, 0.05), BeltWorld(5, 0.05)
    for tick in range(1, 20):
        seen.step_until(tick / 30), unseen.step_until(tick / 30)
        seen.render("overhead")
    assert np.array_equal(seen.state(), unseen.state())
    seen.close()


def test_pictures_have_the_asked_size_and_move_with_the_belt():
    belt = BeltWorld(0, 0.05, image_size=(96, 128))
    first = belt.render("overhead")
    assert first.shape == (96, 128, 3)
    assert first.dtype == np.uint8
    belt.step_until(0.5)
    assert not np.array_equal(first, belt.render("overhead"))
    belt.close()


def test_one_picture_tells_the_belt_speed():
    belt = BeltWorld(0, 0.0)
    still = belt.render("overhead")
    belt.set_belt_speed(0.1)
    assert not np.array_equal(still, belt.render("overhead"))
    belt.close()


def test_the_servos_bring_the_joints_to_their_targets():
    belt = moved(0, [3.0])
    assert belt.joint_positions == pytest.approx(TARGETS, abs=0.01)
    assert belt.joint_velocities == pytest.approx(np.zeros(6), abs=0.01)


def test_targets_are_clipped_to_the_limits():
    belt = BeltWorld(0)
    belt.set_joint_targets([9.0, 0.0, 0.0, 0.0, 0.0, -9.0])
    belt.step_until(3.0)
    low, high = kinematics.JOINT_LIMITS_RAD.T
    assert belt.joint_positions[0] == pytest.approx(high[0], abs=0.01)
    assert belt.joint_positions[5] == pytest.approx(low[5], abs=0.01)


def test_blocks_ride_at_the_belts_speed_and_come_round_again():
    belt = BeltWorld(2, 0.2)
    belt.step_until(1.0)
    start = {colour: belt.block_position(colour) for colour in belt.colours}
    for colour in belt.colours:
        assert belt.block_velocity(colour) == pytest.approx([0.0, 0.2], abs=1e-3)
    belt.advance(2 * scene.BELT_HALF_LENGTH_M / 0.2)
    for colour in belt.colours:
        assert belt.block_position(colour) == pytest.approx(start[colour], abs=2e-3)


def test_a_pushed_block_stays_between_the_rails_and_the_belt_takes_it_again():
    belt = BeltWorld(2, 0.05)
    belt.push_block("red", (2.0, 0.5))
    belt.step_until(1.5)
    assert abs(belt.block_position("red")[0] - 0.24) < scene.BELT_HALF_WIDTH_M
    assert belt.block_velocity("red") == pytest.approx([0.0, 0.05], abs=1e-3)


def test_touching_is_told_per_block():
    belt = BeltWorld(0)
    assert not belt.touching("red")
    x, y, z = belt.block_position("red")
    above = kinematics.inverse((x, y, 0.12))
    belt.set_joint_targets(above)
    belt.step_until(2.0)
    belt.set_joint_targets(kinematics.inverse((x, y, z + 0.025)))
    belt.step_until(3.5)
    assert belt.touching("red")
    assert not belt.touching("green")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"colours": ("red", "mauve")}, "expected one or more different names of red, green"),
        ({"colours": ("red", "red")}, "different names"),
        ({"belt_speed_m_s": 0.5}, "belt speed 0.5 m/s: expected -0.2 to 0.2"),
        ({"belt_speed_m_s": float("nan")}, "belt speed nan"),
        ({"image_size": (4, 224)}, "at least 16"),
        ({"light": 9.0}, "expected 0.2 to 2.0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        BeltWorld(0, **arguments)


def test_bad_commands_are_named_and_change_nothing():
    belt = BeltWorld(0)
    before = belt.state()
    with pytest.raises(ValueError, match="expected 6 finite positions"):
        belt.set_joint_targets([0.0] * 5)
    with pytest.raises(ValueError, match="expected 6 finite positions"):
        belt.set_joint_targets([float("nan")] * 6)
    with pytest.raises(ValueError, match="state of shape"):
        belt.set_state(before[:-1])
    with pytest.raises(ValueError, match="camera 'front': expected one of overhead, wrist"):
        belt.render("front")
    with pytest.raises(ValueError, match="block 'mauve': expected one of red, green, blue"):
        belt.block_position("mauve")
    assert np.array_equal(belt.state(), before)


def test_without_egl_the_first_picture_says_what_to_install(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(sys.modules, "mujoco.egl", None)  # importing it fails, as without libEGL
    belt = BeltWorld(0)
    belt.step_until(0.1)
    with pytest.raises(RenderingUnavailableError, match="apt install libegl1"):
        belt.render("overhead")


def test_physics_alone_makes_no_gl_context():
    script = (
        "import sys\n"
        "from flashrt_ros.sim.world import BeltWorld\n"
        "BeltWorld(0, 0.05).step_until(0.1)\n"
        "assert 'mujoco.egl' not in sys.modules\n"
    )
    environment = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
