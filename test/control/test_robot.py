import numpy as np
import pytest
import yaml

from flashrt_ros.control.robot import RobotError, load_robot
from flashrt_ros.observation.frame import Role
from flashrt_ros.paths import config_path

SO101 = config_path("robots/so101.yaml")


def write(tmp_path, change):
    content = yaml.safe_load(SO101.read_text())
    change(content)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize("name", ["so101", "aloha", "franka_droid"])
def test_examples_load(name):
    robot = load_robot(config_path(f"robots/{name}.yaml"))
    assert robot.name == name
    lower, upper = robot.limits()
    assert (lower < upper).all()


def test_so101():
    robot = load_robot(SO101)
    assert robot.joint_names[0] == "shoulder_pan"
    assert len(robot.joints) == 6
    assert robot.period_ns == 33_333_333
    assert [c.rule.role for c in robot.cameras] == [Role.REQUIRED, Role.REQUIRED]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c["joints"]["gripper"].update(lower="x"),
            r"joints\.gripper\.lower: expected a number",
        ),
        (
            lambda c: c["joints"]["gripper"].update(lower=2),
            r"joints\.gripper\.upper: expected more than",
        ),
        (
            lambda c: c["joints"]["gripper"].update(limit=2),
            r"joints\.gripper\.limit: expected one of unit",
        ),
        (lambda c: c["joints"]["gripper"].pop("max_velocity"), "max_velocity: expected a number"),
        (lambda c: c["joints"]["gripper"].update(max_velocity=0), "a number above 0"),
        (
            lambda c: c["joints"]["gripper"].update(policy_scale=0),
            "policy_scale: expected a number other",
        ),
        (lambda c: c.update(joints={}), "joints: expected a mapping"),
        (lambda c: c.pop("cameras"), "cameras: expected a mapping"),
        (lambda c: c["cameras"]["wrist"].update(role="often"), "role: expected one of required"),
        (lambda c: c["cameras"]["wrist"].update(role="hold"), "max_age_s: expected a number"),
        (
            lambda c: [c["cameras"][n].update(role="optional") for n in c["cameras"]],
            "at least one of role",
        ),
        (
            lambda c: c["cameras"]["wrist"].update(transport="theora"),
            "transport: expected one of raw",
        ),
        (lambda c: c["cameras"]["wrist"].pop("topic"), r"cameras\.wrist\.topic: expected a text"),
        (lambda c: c.update(period_s=True), "period_s: expected a number"),
    ],
)
def test_mistakes_name_file_field_expected_and_found(tmp_path, change, message):
    path = write(tmp_path, change)
    with pytest.raises(RobotError, match=message) as error:
        load_robot(path)
    assert str(path) in str(error.value)
    assert "found" in str(error.value)


@pytest.mark.parametrize("text", ["", "- 1\n", "name: [\n"])
def test_not_a_contract(tmp_path, text):
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    with pytest.raises(RobotError, match=r"robot\.yaml"):
        load_robot(path)


def test_policy_that_does_not_fit_lists_everything():
    robot = load_robot(SO101)
    with pytest.raises(RobotError) as error:
        robot.check_policy(["base_0_rgb", "right_wrist_0_rgb"], 7, 8)
    for part in ("right_wrist_0_rgb", "state has 7 numbers", "action has 8 numbers", "6 joints"):
        assert part in str(error.value)
    robot.check_policy(["base_0_rgb"], None, 6)


def test_policy_units_round_trip(tmp_path):
    path = write(
        tmp_path,
        lambda c: c["joints"]["gripper"].update(policy_scale=100 / 1.92, policy_offset=-0.17),
    )
    robot = load_robot(path)
    positions = np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 1.75]])
    values = robot.to_policy(positions)
    assert values[0, 5] == pytest.approx(100)
    assert np.allclose(robot.from_policy(values), positions, atol=1e-12)
