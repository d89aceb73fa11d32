"""The engine on a CPU: the policy's actions, nothing computed twice, and reuse that changes no bit."""

import dataclasses

import numpy as np
import pytest
import torch

from flashrt_ros.models.errors import ProcessingError
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.models.weights import build_weights, tensor_specs
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.launcher import ShapeError
from flashrt_ros.runtime.operators import ReferenceOperators
from flashrt_ros.runtime.settings import EngineSettings

from ..models.golden import RUNS, recorded
from .engines import INSTRUCTIONS, NOISE, engine_of, pictures, policy_of, ran, walk_beside
from .padded import PaddedOperators


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RUNS)
def test_actions_are_the_policys(name, precision):
    run, engine = recorded(name), engine_of(name, precision=precision)
    arguments = (run.images, run.state, run.instruction)
    expected = engine.policy.infer(*arguments, noise=run.noise)
    found = engine.infer(*arguments, noise=run.noise)
    assert found.dtype == np.float32
    tolerance = 1e-5 if precision == "float32" else 2e-2
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerance)
    if precision == "float32":
        np.testing.assert_allclose(found, run.actions[10], rtol=0.0, atol=run.tolerance)


@pytest.mark.parametrize("name", ["openpi_pi05", "openpi_pi0"])
def test_every_reuse_gives_the_bits_of_recomputation(name):
    walk_beside(name, engine_of(name, kept_instructions=2), engine_of(name))


@pytest.mark.parametrize("name", ["openpi_pi05", "openpi_pi0"])
def test_operators_that_know_lengths_on_the_device_only_agree(name):
    """What a captured implementation must do, computed on a CPU: padded rows change nothing."""
    run, size = recorded(name), policy_of(name).config.image_size
    cameras = dict.fromkeys(run.images, (size, size))
    lazy, eager, plain = (
        engine_of(name, cameras=cameras, make_operators=make, kept_instructions=2)
        for make in (PaddedOperators, PaddedOperators, ReferenceOperators)
    )
    arguments = (pictures(name, shape=(size, size)), run.state, run.instruction)
    found, expected = (engine.infer(*arguments, noise=NOISE) for engine in (lazy, plain))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)
    lazy.contract.ran.clear()
    walk_beside(name, lazy, eager, calls=10, shape=(size, size))


@pytest.mark.parametrize(
    ("name", "reads"), [("openpi_pi05", {"read_moving": 1}), ("openpi_pi0", {"append_state": 1})]
)
def test_only_what_depends_on_a_change_runs(name, reads):
    engine, images, state = engine_of(name), pictures(name), recorded(name).state
    rest = {"encode": 1, "denoise": 1} | ({"append_state": 1} if name == "openpi_pi0" else {})

    def call(images=images, state=state, instruction=INSTRUCTIONS[0]):
        return ran(engine, lambda: engine.infer(images, state, instruction, noise=NOISE))

    first = call()
    moving = {"read_moving": 1} if name == "openpi_pi05" else {}
    assert first == {"see.0": 1, "see.1": 1, "read_fixed": 1, **moving, **rest}
    assert call() == {"denoise": 1}
    changed = {**images, "left_wrist_0_rgb": images["left_wrist_0_rgb"] // 2}
    assert call(images=changed) == {"see.1": 1, **rest}
    moved = call(images=changed, state=state + 0.1)
    encoded = {"encode": 1} if name == "openpi_pi05" else {}
    assert moved == {**reads, **encoded, "denoise": 1}
    assert engine.contract.reused["read_fixed"] == 3


@pytest.mark.parametrize("name", ["openpi_pi05", "openpi_pi0"])
def test_switching_back_reads_no_instruction(name):
    engine, images, state = (
        engine_of(name, kept_instructions=2),
        pictures(name),
        recorded(name).state,
    )

    def call(instruction):
        return ran(engine, lambda: engine.infer(images, state, instruction, noise=NOISE))

    one, two, three = *INSTRUCTIONS, "wait"
    assert call(one)["read_fixed"] == 1
    assert call(two)["read_fixed"] == 1
    for instruction in (one, two, one):
        assert "read_fixed" not in call(instruction)
    assert call(three)["read_fixed"] == 1  # and `two`, the least recently used, is out
    assert "read_fixed" not in call(one)
    assert call(two)["read_fixed"] == 1


def test_a_view_is_seen_ahead_of_its_set_and_once():
    name = "openpi_pi05"
    engine, images, state = engine_of(name), pictures(name), recorded(name).state
    expected = engine_of(name).infer(images, state, "go", noise=NOISE)
    camera, other = images
    assert ran(engine, lambda: engine.see(camera, images[camera])) == {"see.0": 1}
    assert not engine.see(camera, images[camera].copy())
    with pytest.raises(ValueError, match="nothing was observed"):
        engine.denoise()
    found = []
    stages = ran(engine, lambda: found.append(engine.infer(images, state, "go", noise=NOISE)))
    assert stages["see.1"] == 1
    assert "see.0" not in stages
    assert (found[0] == expected).all()
    # The set takes a later frame than the one that was seen ahead.
    engine.see(other, images[other] // 2)
    stages = ran(engine, lambda: found.append(engine.infer(images, state, "go", noise=NOISE)))
    assert stages["see.1"] == 1
    assert (found[1] == expected).all()


def test_a_prompt_that_grows_across_buckets_rebuilds_nothing():
    name = "openpi_pi05"
    engine, images, run = engine_of(name), pictures(name), recorded(name)
    lengths, states = set(), [np.full_like(run.state, v) for v in (-5.0, -0.5, 0.0, 0.4, 5.0)]
    memory = engine.buffers["rows"].data_ptr()
    for state in states:
        fresh = engine_of(name)
        found = engine.infer(images, state, INSTRUCTIONS[1], noise=NOISE)
        lengths.add(engine.host.length)
        assert (found == fresh.infer(images, state, INSTRUCTIONS[1], noise=NOISE)).all()
    assert len(lengths) > 1
    assert engine.contract.ran["read_fixed"] == 1
    assert engine.contract.ran["see.0"] == 1
    assert engine.buffers["rows"].data_ptr() == memory


def random_policy(family, **sizes):
    """The golden policy's processing on a network of other sizes with random weights."""
    base = policy_of("openpi_pi0" if family == "pi0" else "openpi_pi05")
    config = dataclasses.replace(base.config, **sizes)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        n: torch.randn(s.shape, generator=generator) * 0.05 for n, s in tensor_specs(config).items()
    }
    cameras = tuple(f"view_{i}" for i in range(4))
    processor = dataclasses.replace(
        base.processor, cameras=cameras, padded_state_dim=config.action_dim
    )
    return FlowPolicy(build_weights(tensors), config, processor)


@pytest.mark.parametrize("family", ["pi0", "pi05"])
@pytest.mark.parametrize(("views", "horizon", "action_dim"), [(1, 64, 32), (3, 1, 7), (4, 17, 9)])
def test_other_sizes(family, views, horizon, action_dim):
    policy = random_policy(family, horizon=horizon, action_dim=action_dim)
    random, state = np.random.default_rng(1), recorded("openpi_pi05").state
    shapes = [(48, 64), (56, 56), (30, 20), (90, 33)][:views]
    images = {f"view_{i}": random.integers(0, 256, (*s, 3), np.uint8) for i, s in enumerate(shapes)}
    engine = FlowEngine(
        policy, EngineSettings(cameras=dict(zip(images, shapes, strict=True)), unbuilt="refuse")
    )
    engine.build()
    noise = torch.randn(horizon, action_dim)
    found = engine.infer(images, state, "go", noise=noise, steps=3)
    expected = policy.infer(images, state, "go", noise=noise, steps=3)
    assert found.shape == (horizon, 7)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5)


def test_a_warm_step_follows_the_policys():
    run, engine = recorded("openpi_pi05"), engine_of("openpi_pi05", flows=((10, 1.0), (1, 0.5)))
    arguments = (run.images, run.state, run.instruction)
    engine.infer(*arguments, noise=run.noise)
    previous = engine.chunk
    assert previous.shape == (10, 32)
    warm = {"noise": NOISE, "steps": 1, "start_time": 0.5, "initial": previous}
    stages = ran(engine, lambda: engine.denoise(**warm))
    assert stages == {"denoise": 1}
    found = engine.infer(*arguments, **warm)
    np.testing.assert_allclose(found, engine.policy.infer(*arguments, **warm), rtol=0, atol=1e-5)
    assert (engine.denoise(**warm) == engine.chunk).all()


def test_guidance_changes_the_velocity_of_each_step():
    run, engine = recorded("openpi_pi05"), engine_of("openpi_pi05")
    engine.observe(run.images, run.state, run.instruction)
    plain = engine.denoise(noise=run.noise, steps=4)
    seen = []

    def watch(step, time, x, v):
        seen.append((step, time, x.clone()))
        return v

    assert (engine.denoise(noise=run.noise, steps=4, guidance=watch) == plain).all()
    assert [(step, time) for step, time, _ in seen] == [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]
    assert (seen[0][2] == run.noise).all()
    # The flow ends where the last velocity says that it does.
    found = engine.denoise(
        noise=run.noise, steps=4, guidance=lambda step, time, x, v: (x - NOISE) / time
    )
    torch.testing.assert_close(found, NOISE, rtol=0.0, atol=1e-5)


def test_a_refused_state_leaves_no_chunk_of_older_pictures():
    name = "openpi_pi05"
    state, engine = recorded(name).state, engine_of(name)
    engine.infer(pictures(name), state, INSTRUCTIONS[0])
    new = pictures(name, seed=1)
    with pytest.raises(ValueError, match="state"):
        engine.observe(new, state[:-1], INSTRUCTIONS[0])
    with pytest.raises(ValueError, match="nothing was observed"):
        engine.denoise(noise=NOISE)
    found = engine.infer(new, state, INSTRUCTIONS[0], noise=NOISE)
    assert (found == engine_of(name).infer(new, state, INSTRUCTIONS[0], noise=NOISE)).all()


def test_noise_comes_from_the_engines_generator():
    name = "openpi_pi05"
    arguments = (pictures(name), recorded(name).state, "go")
    one, same = engine_of(name, seed=4), engine_of(name, seed=4)
    first, second = (one.infer(*arguments, steps=1) for _ in range(2))
    assert (first != second).any()
    assert (same.infer(*arguments, steps=1) == first).all()
    given = torch.Generator().manual_seed(4)
    assert (same.infer(*arguments, steps=1, generator=given) == first).all()


def test_pictures_of_another_size_are_built_for_or_refused():
    name = "openpi_pi05"
    images, state = pictures(name), recorded(name).state
    cameras = dict.fromkeys(images, (8, 8))
    engine = engine_of(name, cameras=cameras, unbuilt="refuse")
    with pytest.raises(ShapeError, match=r"'base_0_rgb': picture of .* was not built for"):
        engine.infer(images, state, "go")
    told = []
    engine = FlowEngine(policy_of(name), EngineSettings(cameras=cameras), progress=told.append)
    found = engine.infer(images, state, "go", noise=NOISE)
    assert (found == engine_of(name).infer(images, state, "go", noise=NOISE)).all()
    assert any("building for pictures" in line for line in told)


def test_bad_input_is_named_and_costs_nothing():
    name = "openpi_pi05"
    engine, images, state = engine_of(name), pictures(name), recorded(name).state
    expected = engine.infer(images, state, "go", noise=NOISE)
    camera = next(iter(images))
    for arguments, error, message in (
        (({}, state, "go"), ProcessingError, "no camera image"),
        (({"nose": images[camera]}, state, "go"), ProcessingError, "'nose'"),
        (({camera: images[camera].astype(float)}, state, "go"), ProcessingError, "float64"),
        ((images, state[:3], "go"), ProcessingError, "state"),
    ):
        with pytest.raises(error, match=message):
            engine.infer(*arguments, noise=NOISE)
    with pytest.raises(ValueError, match="steps"):
        engine.infer(images, state, "go", steps=0)
    with pytest.raises(ValueError, match="initial"):
        engine.infer(images, state, "go", start_time=0.5, steps=1)
    found = []
    stages = ran(engine, lambda: found.append(engine.infer(images, state, "go", noise=NOISE)))
    assert stages == {"denoise": 1}
    assert (found[0] == expected).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cameras": {}}, "at least one"),
        ({"cameras": {"nose": (8, 8)}}, "'nose'"),
        ({"cameras": {"base_0_rgb": (0, 8)}}, "expected pixels"),
        ({"optional": frozenset({"right_wrist_0_rgb"})}, "every optional one"),
        ({"kept_instructions": 0}, "kept_instructions"),
        ({"flows": ()}, "flows"),
    ],
)
def test_settings_that_contradict_themselves(settings, message):
    with pytest.raises(ValueError, match=message):
        engine_of("openpi_pi05", **settings)
