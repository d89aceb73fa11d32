"""Checkpoints as policies: what the settings make of them on a CPU."""

import dataclasses

import numpy as np
import pytest

from flashrt_ros.control.policies import PolicyError, PolicySettings, build_policy
from flashrt_ros.control.robot import RobotError, load_robot
from flashrt_ros.observation.frame import Frame, FrameSet, Observation, Role
from flashrt_ros.paths import config_path

torch = pytest.importorskip("torch", reason="checkpoints need torch")

from flashrt_ros.models.policy import load_policy
from flashrt_ros.runtime.launcher import ShapeError

ROBOT = load_robot(config_path("robots/so101.yaml"))


@pytest.fixture
def checkpoint(request):
    return str(request.config.rootpath / "test/data/tiny_so101")


def observation(shape=(224, 224), seed=0, cameras=("overhead", "wrist")):
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (*shape, 3), np.uint8) for name in cameras}
    frame = Frame("overhead", 0, 0)
    frames = FrameSet({"overhead": frame}, frozenset(), frame, frame, 0, 0)
    return Observation(frames, images, np.full(6, 0.1), 0, 0)


def with_cameras(**changes):
    cameras = tuple(dataclasses.replace(camera, **changes) for camera in ROBOT.cameras)
    return dataclasses.replace(ROBOT, cameras=cameras)


def test_actions_are_those_of_the_plain_policy(checkpoint):
    policy = build_policy(PolicySettings(checkpoint, steps=3, seed=5), ROBOT)
    assert policy.spec.plan_id == "pi05/tiny_so101/float32/cpu/reference"
    seen = observation()
    plain = load_policy(checkpoint)
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        expected = plain.infer(
            {"base_0_rgb": seen.images["overhead"], "left_wrist_0_rgb": seen.images["wrist"]},
            ROBOT.to_policy(seen.joint_positions).astype(np.float32),
            "touch the red block",
            steps=3,
            generator=generator,
        )
        found = policy.infer(seen, "touch the red block")
        np.testing.assert_allclose(found, ROBOT.from_policy(expected), rtol=0.0, atol=1e-5)
    assert policy.engine.contract.ran["encode"] == 1
    assert policy.engine.contract.ran["denoise"] == 2


def test_picture_sizes_come_from_the_contract_or_are_built_for(checkpoint):
    told = []
    settings = PolicySettings(checkpoint, steps=1)
    seen = observation((48, 64))
    known = build_policy(settings, with_cameras(height=48, width=64), progress=told.append)
    expected = known.infer(seen, "go")
    assert not any("pictures" in line for line in told)
    unknown = build_policy(settings, ROBOT, progress=told.append)
    assert (unknown.infer(seen, "go") == expected).all()
    assert any("building for pictures" in line for line in told)
    assert told[-1] == ""
    refusing = build_policy(dataclasses.replace(settings, unbuilt_shape="refuse"), ROBOT)
    with pytest.raises(ShapeError, match="picture of 48×64 was not built for"):
        refusing.infer(seen, "go")


def test_an_optional_camera_may_be_absent(checkpoint):
    cameras = (ROBOT.cameras[0], dataclasses.replace(ROBOT.cameras[1], role=Role.OPTIONAL))
    robot = dataclasses.replace(ROBOT, cameras=cameras)
    policy = build_policy(PolicySettings(checkpoint, steps=1), robot)
    assert policy.engine.settings.optional == {"left_wrist_0_rgb"}
    both, one = observation(), observation(cameras=("overhead",))
    first = policy.infer(both, "go")
    assert (policy.infer(one, "go") != first).any()
    assert policy.engine.contract.ran["see.0"] == 1


def test_what_cannot_run_here_is_refused(checkpoint):
    for change, error, message in (
        ({"checkpoint": "/no/such/folder"}, PolicyError, "/no/such/folder"),
        ({"runtime": "fused"}, ValueError, "fused kernels need a CUDA device"),
    ):
        settings = dataclasses.replace(PolicySettings(checkpoint), **change)
        with pytest.raises(error, match=message):
            build_policy(settings, ROBOT)
    if not torch.cuda.is_available():
        with pytest.raises(PolicyError, match="torch sees no CUDA device"):
            build_policy(PolicySettings(checkpoint, device="cuda"), ROBOT)
    with pytest.raises(RobotError, match="policy has views"):
        build_policy(PolicySettings(checkpoint), with_cameras(feature="nose"))


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        ("{topic: a, height: 48}", r"cameras.a.width: expected pixels, as height is given"),
        ("{topic: a, height: 0, width: 4}", r"cameras.a.height: expected pixels"),
        ("{topic: a, height: 4.5, width: 4}", r"cameras.a.height: expected pixels"),
    ],
)
def test_picture_sizes_of_a_contract_are_checked(camera, message, tmp_path):
    text = config_path("robots/so101.yaml").read_text()
    path = tmp_path / "robot.yaml"
    path.write_text(text[: text.index("cameras:")] + f"cameras:\n  a: {camera}\n")
    with pytest.raises(RobotError, match=message):
        load_robot(path)


def test_picture_sizes_of_a_contract_are_read(tmp_path):
    text = config_path("robots/so101.yaml").read_text()
    path = tmp_path / "robot.yaml"
    start = text.index("cameras:")
    path.write_text(text[:start] + "cameras:\n  a: {topic: a, height: 480, width: 640}\n")
    (camera,) = load_robot(path).cameras
    assert (camera.height, camera.width) == (480, 640)
