"""The robot files and what they refuse."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from flashrt_ros.control.robot import Affine, Robot, RobotError

ROBOTS = Path(__file__).parents[2] / "config" / "robots"
SO101 = ROBOTS / "so101.yaml"


@dataclass(frozen=True)
class Features:
    cameras: tuple[str, ...]
    state_dim: int | None
    action_dim: int | None
    state_names: tuple[str, ...] | None = None
    action_names: tuple[str, ...] | None = None


SO101_FEATURES = Features(("observation.images.overhead", "observation.images.wrist"), 6, 6)


@pytest.fixture
def so101() -> Robot:
    return Robot.load(SO101)


@pytest.fixture
def data() -> dict:
    return yaml.safe_load(SO101.read_text())


@pytest.mark.parametrize("path", sorted(ROBOTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_loads_and_is_named_after_its_file(path):
    robot = Robot.load(path)
    assert robot.name == path.stem
    assert (robot.lower < robot.upper).all()


def test_so101_is_the_demo_robot(so101):
    names = "shoulder_pan, shoulder_lift, elbow_flex, wrist_flex, wrist_roll, gripper"
    assert ", ".join(so101.joint_names) == names
    assert so101.period_s == pytest.approx(1 / 30, abs=1e-12)
    assert {c.name: c.topic for c in so101.cameras.values()} == {
        "overhead": "/overhead/image_raw",
        "wrist": "/wrist/image_raw",
    }
    assert so101.gripper_mask.tolist() == [False] * 5 + [True]
    so101.check_against(SO101_FEATURES)


def test_state_is_taken_by_name_in_any_order_among_others(so101):
    names = [*reversed(so101.joint_names), "lift_motor"]
    positions = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0, float("nan")]
    assert so101.state_vector(names, positions).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("names", "positions", "expected"),
    [
        (["shoulder_pan"], [0.0], r"missing \['shoulder_lift', 'elbow_flex'"),
        (["shoulder_pan"], [], "1 names and positions of shape \\[0\\]"),
        (None, [0, 0, float("nan"), 0, 0, 0], r"finite positions, not so for \['elbow_flex'\]"),
    ],
)
def test_a_joint_state_that_does_not_fit(so101, names, positions, expected):
    with pytest.raises(RobotError, match=expected):
        so101.state_vector(names or so101.joint_names, positions)


def test_units_of_the_policy(data):
    data["joints"][0]["policy"] = {"scale": 180 / np.pi}
    data["joints"][5]["policy"] = {"scale": 2.0, "offset": 1.0}
    data["joints"][5]["policy_action"] = {"offset": -0.5}
    robot = Robot.from_dict(data)
    positions = np.array([np.pi / 2, 0.1, 0.2, 0.3, 0.4, 0.5])
    np.testing.assert_allclose(robot.to_policy(positions), [90.0, 0.1, 0.2, 0.3, 0.4, 2.0])
    actions = np.array([[90.0, 0.1, 0.2, 0.3, 0.4, 0.5]] * 2)
    expected = [[np.pi / 2, 0.1, 0.2, 0.3, 0.4, 1.0]] * 2
    np.testing.assert_allclose(robot.from_policy(actions), expected)
    assert robot.joints[5].action == Affine(1.0, -0.5)
    with pytest.raises(RobotError, match=r"6 joints in the last dimension, found shape \[2, 7\]"):
        robot.from_policy(np.zeros((2, 7)))


def changed(data: dict, path: str, value: object) -> dict:
    data = copy.deepcopy(data)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    node = data
    for key in parents:
        node = node[key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("name", None, "name: expected text, found nothing"),
        ("period_s", 0, "period_s: expected a finite number above 0, found 0"),
        ("period_s", "fast", "period_s: expected a finite number above 0, found 'fast'"),
        ("joint_states_topic", "/a b", "joint_states_topic: expected a ROS topic name"),
        ("joints", [], "joints: expected a list with at least one entry, found []"),
        ("joints/2/unit", "furlong", "joints[2].unit: expected one of rad, m, normalized, degrees"),
        ("joints/2/lower", True, "joints[2].lower: expected a finite number, found True"),
        ("joints/2/lower", float("nan"), "joints[2].lower: expected a finite number, found nan"),
        ("joints/2/upper", -3.0, "joints[2].upper: expected a number above lower (-1.75)"),
        ("joints/2/max_velocity", None, "joints[2].max_velocity: expected a finite number above 0"),
        ("joints/2/name", "gripper", "joints[].name: expected each once, found more than once"),
        ("joints/2/gripper", "yes", "joints[2].gripper: expected true or false, found 'yes'"),
        ("joints/2/policy", {"scale": 0}, "joints[2].policy.scale: expected a number other than 0"),
        ("joints/2/policy", {"gain": 2}, "joints[2].policy: expected only the fields offset"),
        ("joints/2/upper_limit", 1.0, "joints[2]: expected only the fields"),
        ("cameras", [], "cameras: expected a mapping with at least one entry"),
        ("cameras/wrist", "topic", "cameras.wrist: expected a mapping, found 'topic'"),
        ("cameras/wrist/transport", "h264", "transport: expected one of raw, compressed"),
        ("cameras/wrist/role", "hold", "cameras.wrist.max_age_s: expected seconds, since role is"),
        ("cameras/wrist/max_age_s", 0.5, "max_age_s: expected nothing, since role is required"),
        ("cameras/wrist/policy_feature", "observation.images.overhead", "found more than once"),
        ("masked_features", "x", "masked_features: expected a list of texts, found 'x'"),
        ("speed", 1, "file: expected only the fields"),
    ],
)
def test_a_file_that_does_not_fit_says_where(data, path, value, expected):
    with pytest.raises(RobotError) as error:
        Robot.from_dict(changed(data, path, value), source="arm.yaml")
    assert str(error.value).startswith("arm.yaml: ")
    assert expected in str(error.value)


def test_unreadable_files_name_themselves(tmp_path):
    with pytest.raises(RobotError, match=r"none\.yaml: expected a readable robot file"):
        Robot.load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("joints: [")
    with pytest.raises(RobotError, match=r"broken\.yaml: expected YAML"):
        Robot.load(tmp_path / "broken.yaml")


def test_every_mismatch_with_the_policy_is_listed(so101):
    features = Features(
        cameras=("observation.images.overhead", "observation.images.top"),
        state_dim=7,
        action_dim=14,
        action_names=("gripper.pos", *(f"{n}.pos" for n in so101.joint_names[:5])),
    )
    with pytest.raises(RobotError) as error:
        so101.check_against(features)
    lines = str(error.value).splitlines()
    assert "robot 'so101' does not fit the policy" in lines[0]
    assert len(lines) == 6
    assert "state: the policy has 7 dimensions, the robot 6 joints" in lines[1]
    assert "action: the policy has 14 dimensions" in lines[2]
    assert "joint order" in lines[3]
    assert "camera 'wrist': policy_feature 'observation.images.wrist' is none of" in lines[4]
    assert "policy camera 'observation.images.top': no camera has it" in lines[5]


def test_a_masked_view_must_be_asked_for(so101):
    features = replace(SO101_FEATURES, cameras=(*SO101_FEATURES.cameras, "right_wrist_0_rgb"))
    with pytest.raises(RobotError, match="masked_features"):
        so101.check_against(features)
    replace(so101, masked_features=("right_wrist_0_rgb",)).check_against(features)
    with pytest.raises(RobotError, match="masked_features: 'front' is none of"):
        replace(so101, masked_features=("front",)).check_against(SO101_FEATURES)


def test_names_of_the_checkpoint_are_checked_where_recorded(so101, data):
    names = ("base.pos", *(f"{n}.pos" for n in so101.joint_names[1:]))
    features = replace(SO101_FEATURES, state_names=names, action_names=names)
    with pytest.raises(RobotError, match="the policy's joints are"):
        so101.check_against(features)
    data["joints"][0]["policy_name"] = "base"
    Robot.from_dict(data).check_against(features)


OPENPI_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


def test_aloha_speaks_the_base_models_units():
    robot = Robot.load(ROBOTS / "aloha.yaml")
    robot.check_against(Features(OPENPI_CAMERAS, 14, 14))
    open_gripper = np.array([0.1] * 6 + [1.6296] + [0.1] * 6 + [0.5476])
    policy = robot.to_policy(open_gripper)
    np.testing.assert_allclose(policy[:7], [0.1, -0.1, -0.1, 0.1, 0.1, 0.1, 1.0], atol=1e-7)
    np.testing.assert_allclose(policy[13], 0.0, atol=1e-7)
    np.testing.assert_allclose(robot.from_policy(policy)[[1, 6]], [0.1, 1.5476], atol=1e-7)


def test_droid_counts_a_closed_gripper_as_one():
    robot = Robot.load(ROBOTS / "franka_droid.yaml")
    robot.check_against(Features(OPENPI_CAMERAS, 8, 8))
    np.testing.assert_allclose(robot.to_policy([0.0] * 7 + [0.8])[7], 1.0)
