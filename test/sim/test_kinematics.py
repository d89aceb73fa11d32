import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.sim import kinematics
from flashrt_ros.sim.world import BeltWorld


def within(limits):
    return st.floats(*limits)


@given(
    x=within(kinematics.WORKSPACE_X_M),
    y=within(kinematics.WORKSPACE_Y_M),
    z=within(kinematics.WORKSPACE_Z_M),
)
def test_inverse_then_forward_returns_to_the_point(x, y, z):
    joints = kinematics.inverse((x, y, z), roll_rad=0.5, gripper_rad=0.2)
    low, high = kinematics.JOINT_LIMITS_RAD.T
    assert ((joints >= low) & (joints <= high)).all()
    assert joints[4:] == pytest.approx([0.5, 0.2])
    assert kinematics.tip_position(joints) == pytest.approx([x, y, z], abs=1e-9)


@given(
    x=st.floats(0.2, 0.28),
    y=st.floats(-0.2, 0.2),
    z=st.floats(0.05, 0.12),
)
def test_neighbouring_points_have_neighbouring_joints(x, y, z):
    here = kinematics.inverse((x, y, z))
    there = kinematics.inverse((x + 1e-4, y + 1e-4, z + 1e-4))
    assert np.abs(there - here).max() < 5e-3


def test_forward_agrees_with_the_simulated_arm():
    belt = BeltWorld(0)
    random = np.random.default_rng(0)
    for _ in range(20):
        belt._data.qpos[:6] = random.uniform(*kinematics.JOINT_LIMITS_RAD.T)
        belt.set_state(belt.state())
        belt.render("overhead")  # brings the sites up to the state
        simulated = belt._data.site("tip").xpos
        assert kinematics.tip_position(belt.joint_positions) == pytest.approx(simulated, abs=1e-9)
    belt.close()


@pytest.mark.parametrize("position", [(0.6, 0.0, 0.05), (-0.24, 0.0, 0.05), (0.24, 0.0, 0.6)])
def test_what_the_arm_cannot_reach_is_refused(position):
    with pytest.raises(kinematics.UnreachableError, match="move the target into the workspace"):
        kinematics.inverse(position)
