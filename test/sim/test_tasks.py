import numpy as np
import pytest

from flashrt_ros.sim.tasks import REACH_RADIUS_M, Reach, jerk


def test_reach_keeps_the_first_time_within_the_radius():
    task = Reach("red")
    block = np.array([0.2, 0.1, 0.04])
    assert not task.update(0.1, block + np.array([0.0, 0.0, 1.01 * REACH_RADIUS_M]), block)
    assert task.reached_at_s is None
    assert task.update(0.2, block + np.array([0.0, 0.0, 0.99 * REACH_RADIUS_M]), block)
    assert task.update(0.3, block + 1.0, block)
    assert task.reached_at_s == 0.2


def test_jerk_of_a_cubic_is_its_third_derivative_squared_over_time():
    period_s = 0.01
    times = np.arange(0, 101) * period_s
    cubic = np.stack([times**3, 2 * times**3], axis=1)  # jerk 6 and 12 rad/s³
    differences = len(times) - 3
    assert jerk(cubic, period_s) == pytest.approx((36 + 144) * differences * period_s)


def test_steady_acceleration_has_no_jerk():
    times = np.arange(50)[:, None] * 0.1
    assert jerk(times**2, 0.1) == pytest.approx(0.0, abs=1e-12)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match=r"expected \[T >= 4, J\]"):
        jerk(np.zeros((3, 6)), 0.1)
