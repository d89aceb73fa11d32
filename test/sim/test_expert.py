import numpy as np
import pytest

from flashrt_ros.sim import kinematics
from flashrt_ros.sim.camera import BlockSight
from flashrt_ros.sim.expert import BlockTracker, ScriptedExpert
from flashrt_ros.sim.motion import MAX_JOINT_SPEED_RAD_S, BlockMotion, plan_touch
from flashrt_ros.sim.world import HOME_RAD, BeltWorld

from .closed_loop import run_episode

SIZE = (96, 96)
SEEDS = range(3)
COLOURS = ("red", "green", "blue")


def first_reached(seed, colour, speed_m_s, **options):
    belt = BeltWorld(seed, speed_m_s, SIZE)
    episode = run_episode(belt, f"touch the {colour} block", 4.0, stop_at=colour, **options)
    belt.close()
    return episode


@pytest.mark.parametrize("speed_m_s", [0.0, 0.05, -0.05])
@pytest.mark.parametrize("colour", COLOURS)
def test_the_named_block_is_reached_and_no_other_before(colour, speed_m_s):
    for seed in SEEDS:
        episode = first_reached(seed, colour, speed_m_s)
        assert list(episode.reached_at_s) == [colour]


def test_two_runs_of_an_episode_are_identical():
    first, second = (first_reached(1, "blue", 0.05) for _ in range(2))
    assert np.array_equal(first.joint_positions, second.joint_positions)


def test_the_touch_is_kept_on_the_moving_belt():
    belt = BeltWorld(0, 0.05, SIZE)
    run_episode(belt, "touch the red block", 3.0)
    assert belt.touching("red")
    assert belt.block_velocity("red")[1] > 0.03  # it follows, it does not hold the block back
    belt.close()


def test_blind_it_stays_and_reaches_nothing():
    for seed in SEEDS:
        episode = first_reached(seed, "red", 0.05, blind=True)
        assert episode.reached_at_s == {}
        assert np.ptp(episode.joint_positions, axis=0).max() < 1e-3


def test_latency_delays_the_touch():
    def mean_time_s(latency_s):
        episodes = [
            (colour, first_reached(seed, colour, 0.05, latency_s=latency_s))
            for seed in range(2)
            for colour in COLOURS
        ]
        return np.mean([episode.reached_at_s.get(colour, 4.0) for colour, episode in episodes])

    fresh, stale = mean_time_s(0.0), mean_time_s(0.4)
    assert stale > fresh + 0.1


def test_a_changed_instruction_leads_to_the_other_block():
    belt = BeltWorld(0, 0.0, SIZE)
    expert = ScriptedExpert()
    for tick in range(180):
        belt.step_until(tick / 30)
        instruction = "touch the red block" if tick < 60 else "touch the green block"
        images = {"overhead": belt.render("overhead")}
        chunk = expert.infer(images, belt.joint_positions, instruction, round(tick / 30 * 1e9))
        belt.set_joint_targets(chunk[0])
        if tick == 59:
            assert belt.touching("red")
    assert belt.touching("green")
    belt.close()


@pytest.fixture
def observation():
    belt = BeltWorld(0, 0.0)
    images = {"overhead": belt.render("overhead")}
    belt.close()
    return images, belt.joint_positions


def test_a_chunk_is_finite_within_limits_and_within_the_speed(observation):
    expert = ScriptedExpert()
    chunk = expert.infer(*observation, "red", 0)
    low, high = kinematics.JOINT_LIMITS_RAD.T
    assert chunk.shape == (expert.horizon, 6)
    assert chunk.dtype == np.float32
    assert ((chunk >= low) & (chunk <= high)).all()
    speed = np.abs(np.diff(chunk, axis=0)).max() / expert.period_s
    assert 0.5 < speed <= MAX_JOINT_SPEED_RAD_S * 1.001


def test_a_picture_without_the_block_holds_the_position(observation):
    images, joints = observation
    black = {"overhead": np.zeros_like(images["overhead"])}
    chunk = ScriptedExpert().infer(black, joints, "red", 0)
    assert np.array_equal(chunk, np.tile(joints.astype(np.float32), (16, 1)))


def test_a_hidden_block_is_believed_for_a_second_and_reset_forgets_it(observation):
    images, joints = observation
    black = {"overhead": np.zeros_like(images["overhead"])}

    def holds(expert, time_ns):
        return np.ptp(expert.infer(black, joints, "red", time_ns), axis=0).max() == 0

    expert = ScriptedExpert()
    expert.infer(images, joints, "red", 10**9)
    assert not holds(expert, 1_500_000_000)
    assert holds(expert, 2_100_000_000)
    expert.infer(images, joints, "red", 3 * 10**9)
    expert.reset()
    assert holds(expert, 3_100_000_000)


def test_bad_observations_are_named(observation):
    images, joints = observation
    expert = ScriptedExpert()
    with pytest.raises(ValueError, match="expected exactly one colour"):
        expert.infer(images, joints, "touch the block", 0)
    with pytest.raises(ValueError, match="expected one of camera 'overhead'"):
        expert.infer({"wrist": images["overhead"]}, joints, "red", 0)
    with pytest.raises(ValueError, match="expected 6 finite values"):
        expert.infer(images, joints[:5], "red", 0)
    with pytest.raises(ValueError, match="expected 6 finite values"):
        expert.infer(images, np.full(6, np.nan), "red", 0)


def test_the_tracker_tells_speed_from_stamps():
    tracker = BlockTracker()
    for tick in range(10):
        time_s = 100.0 + tick / 30
        motion = tracker.update(time_s, BlockSight(0.24, 0.05 * tick / 30, 1.0))
    assert motion.velocity_m_s == pytest.approx((0.0, 0.05), abs=1e-6)
    assert motion.position_m == pytest.approx((0.24, 0.05 * 9 / 30), abs=1e-6)
    moved = tracker.update(100.4, BlockSight(0.24, 0.20, 1.0))  # pushed: starts again there
    assert moved.position_m == pytest.approx((0.24, 0.20))


def test_a_moving_block_is_led_by_the_plan():
    still = plan_touch(HOME_RAD, BlockMotion((0.24, 0.0)), 16, 1 / 30)
    moving = plan_touch(HOME_RAD, BlockMotion((0.24, 0.0), (0.0, 0.1)), 16, 1 / 30)
    assert moving[-1, 0] > still[-1, 0] + 0.1  # the pan joint turns ahead of where the block was


def test_a_block_out_of_reach_is_awaited_above_the_edge():
    joints = HOME_RAD
    for _ in range(8):
        joints = plan_touch(joints, BlockMotion((0.24, 0.35)), 16, 1 / 30)[-1]
    _, y, z = kinematics.tip_position(joints)
    assert y == pytest.approx(kinematics.WORKSPACE_Y_M[1], abs=5e-3)
    assert z > 0.1
