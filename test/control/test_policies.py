"""Checkpoints as policies: what the settings make of them on a CPU."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from flashrt_ros.control.policies import PolicyError, PolicySettings, build_policy, noise_seed
from flashrt_ros.control.policy import Denoising
from flashrt_ros.control.robot import RobotError, load_robot
from flashrt_ros.control.rtc import Rtc
from flashrt_ros.control.safety import Limits
from flashrt_ros.control.seams import SeamKind, Seams
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.control.warm_start import WarmStart
from flashrt_ros.observation.frame import Frame, FrameSet, Observation, Role
from flashrt_ros.paths import config_path

torch = pytest.importorskip("torch", reason="checkpoints need torch")

from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.policy import load_policy
from flashrt_ros.runtime.launcher import ShapeError

ROBOT = load_robot(config_path("robots/so101.yaml"))
T0, PERIOD_NS = 1_000_000_000_000, ROBOT.period_ns


@pytest.fixture
def checkpoint(request):
    return str(request.config.rootpath / "test/data/tiny_so101")


def observation(shape=(224, 224), seed=0, cameras=("overhead", "wrist"), stamp_ns=0):
    random = np.random.default_rng(seed)
    images = {name: random.integers(0, 256, (*shape, 3), np.uint8) for name in cameras}
    frame = Frame("overhead", stamp_ns, stamp_ns)
    frames = FrameSet({"overhead": frame}, frozenset(), frame, frame, stamp_ns, 0)
    return Observation(frames, images, np.full(6, 0.1), stamp_ns, stamp_ns)


def with_cameras(**changes):
    cameras = tuple(dataclasses.replace(camera, **changes) for camera in ROBOT.cameras)
    return dataclasses.replace(ROBOT, cameras=cameras)


def plain_arguments(seen, instruction="touch the red block"):
    """What a network is given for an observation of the contract."""
    views = {"base_0_rgb": seen.images["overhead"], "left_wrist_0_rgb": seen.images["wrist"]}
    return views, ROBOT.to_policy(seen.joint_positions).astype(np.float32), instruction


def test_actions_are_those_of_the_plain_policy(checkpoint):
    policy = build_policy(PolicySettings(checkpoint, steps=3, seed=5), ROBOT)
    assert policy.spec.plan_id == "pi05/tiny_so101/float32/cpu/reference"
    plain = load_policy(checkpoint)
    found = []
    for stamp_ns in (T0, T0 + PERIOD_NS, T0):
        seen = observation(stamp_ns=stamp_ns)
        generator = torch.Generator().manual_seed(noise_seed(5, stamp_ns))
        expected = plain.infer(*plain_arguments(seen), steps=3, generator=generator)
        found.append(policy.infer(seen, "touch the red block"))
        np.testing.assert_allclose(found[-1], ROBOT.from_policy(expected), rtol=0.0, atol=1e-5)
    assert (found[0] != found[1]).all(), "of another stamp: other noise"
    assert (found[0] == found[2]).all(), "whatever was inferred in between"
    assert policy.engine.contract.ran["encode"] == 1
    assert policy.engine.contract.ran["denoise"] == 3


def test_noise_is_another_for_each_seed_and_stamp():
    seeds = {noise_seed(seed, T0 + n) for seed in range(10) for n in range(100)}
    assert len(seeds) == 1000
    assert noise_seed(2, T0) == noise_seed(2, T0)


def test_plans_are_built_for_what_the_session_will_ask(checkpoint):
    settings = PolicySettings(checkpoint, steps=3, warm_steps=2, warm_alpha=0.75)
    built = build_policy(settings, ROBOT).engine.settings
    assert (built.flows, built.guided) == (((3, 1.0),), False)
    settings = dataclasses.replace(settings, warm_start=True, seam="rtc")
    built = build_policy(settings, ROBOT).engine.settings
    assert (built.flows, built.guided) == (((3, 1.0), (2, 0.25)), True)
    request = WarmStart(True, 2, 0.75).request(np.zeros((10, 32), np.float32))
    assert (request.steps, request.start_time) in built.flows


def test_guided_chunks_are_those_of_the_plain_network(checkpoint):
    policy = build_policy(PolicySettings(checkpoint, steps=4, seed=5, seam="rtc"), ROBOT)
    plain = load_policy(checkpoint)
    target = np.random.default_rng(1).normal(size=(10, 32)).astype(np.float32)
    initial = np.full((10, 32), 0.2, np.float32)
    seen = observation(stamp_ns=T0)
    prefix = plain.encode(plain.processor.prepare(*plain_arguments(seen)))
    for request in (Denoising(4), Denoising(2, 0.5, initial)):
        guidance = Rtc().guidance(request, target, left=7, frozen=3)
        context = policy.encode(seen, "touch the red block")
        found = policy.denoise(context, dataclasses.replace(request, guidance=guidance))
        generator = torch.Generator().manual_seed(noise_seed(5, T0))
        x = plain.initial_state(request.start_time, None, request.initial, generator)
        times = plain.flow_times(uniform_times(request.steps, request.start_time))
        drawn = plain.guidance(guidance.target, guidance.weights, guidance.strengths)
        expected = plain.denoise(prefix, x, times, guidance=drawn).numpy()
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)
        free = plain.denoise(prefix, x, times).numpy()
        assert np.abs(found - target)[:3].max() < 0.5 * np.abs(free - target)[:3].max()


@pytest.mark.parametrize("warm", [False, True])
def test_rtc_freezes_what_is_executed_meanwhile(checkpoint, warm):
    """Through the engine: each chunk begins with what the chunk before has at those times."""
    settings = PolicySettings(checkpoint, steps=4, seam="rtc", warm_start=warm)
    session = PolicySession(
        build_policy(settings, ROBOT),
        ROBOT,
        SessionSettings(
            seams=Seams(SeamKind.RTC),
            warm_start=WarmStart(warm, max_divergence=100.0),
            limits=Limits(ease_in_ns=0),
        ),
        clock_ns=lambda: now_ns,
    )
    chunks = []
    for number in range(4):
        now_ns = stamp_ns = T0 + 3 * number * PERIOD_NS
        seen = observation(seed=number, stamp_ns=stamp_ns)
        inference = session.step(seen, "touch the red block")
        now_ns += 2 * PERIOD_NS
        chunks.append(session.publish(seen, inference))
    for before, chunk in pairwise(chunks):
        frozen = chunk.inference.frozen
        assert (frozen, chunk.inference.warm_start) == (2, warm)
        np.testing.assert_allclose(
            chunk.actions[:frozen], before.actions[3 : 3 + frozen], rtol=0.0, atol=1e-6
        )
        found, there = chunk.inference.normalized, before.inference.normalized
        np.testing.assert_allclose(found[:frozen], there[3 : 3 + frozen], rtol=0.0, atol=1e-6)
        assert (chunk.actions[frozen:7] != before.actions[3 + frozen :]).any()


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
