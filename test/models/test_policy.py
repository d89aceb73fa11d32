"""Whole policies: recorded chains from raw inputs to absolute actions, and the same converted."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flashrt_ros.models.checkpoint import CheckpointError
from flashrt_ros.models.convert import convert_checkpoint
from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.images import resize_with_pad_lerobot
from flashrt_ros.models.policy import load_policy
from flashrt_ros.models.processing import MissingTokenizerError

from .golden import GOLDEN, RUNS, recorded

CASES = [(name, steps) for name in RUNS for steps in recorded(name).actions]


def load(name, path=None, **options):
    run = recorded(name)
    given = run.options if path is None else None
    return load_policy(path or run.folder, options=given, **options)


def infer(policy, run, **options):
    return policy.infer(run.images, run.state, run.instruction, noise=run.noise, **options)


@pytest.mark.parametrize(("name", "steps"), CASES)
def test_recorded_actions(name, steps):
    run, policy = recorded(name), load(name)
    actions = infer(policy, run, steps=steps)
    assert actions.dtype == np.float32
    assert actions.shape == (10, 7)
    tolerance = 1e-5 if steps == 1 else run.tolerance
    np.testing.assert_allclose(actions, run.actions[steps], rtol=0.0, atol=tolerance)


def test_recorded_actions_of_lerobot_from_float_images():
    folder = GOLDEN / "lerobot_pi05_e2e"
    values = load_file(folder / "golden.safetensors")
    policy, state = load_policy(folder), values["in.observation.state"].numpy()
    views = {  # float in [0, 1] as LeRobot's data sets have them, not multiples of 1/255
        camera: resize_with_pad_lerobot(values[f"in.{camera}"], 56) * 2 - 1
        for camera in policy.processor.cameras
    }
    task = json.loads((folder / "golden.json").read_text())["task_in"]
    prefix = policy.encode(policy.processor.assemble(views, state, task))
    times = policy.flow_times(uniform_times(10))
    found = policy.denoise(prefix, values["in.noise"][0], times)
    for actual, expected in (
        (found[:, :7], values["out.raw"][0]),
        (policy.processor.finish(found, state), values["out.actions"][0]),
    ):
        np.testing.assert_allclose(actual, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_recorded_steps_of_a_whole_run(name):
    run, policy = recorded(name), load(name)
    inputs = policy.processor.prepare(run.images, run.state, run.instruction)
    times = policy.flow_times(run.values["out.n10.times"].tolist())
    trace = []
    policy.denoise(policy.encode(inputs), run.noise, times, trace)
    for i, step in enumerate(trace):
        for found, key in ((step.x_t, "x_t"), (step.v_t, "v_t")):
            expected = run.values[f"out.n10.{key}"][i]
            torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["openpi_pi05", "openpi_pi0"])
def test_bfloat16_is_as_near_as_openpis(name):
    run, policy = recorded(name), load(name, precision="bfloat16")
    assert policy.precision == "bfloat16"
    for steps, expected in run.actions.items():
        ours = np.abs(infer(policy, run, steps=steps) - expected)
        theirs = np.abs(run.values[f"out.n{steps}.actions_bf16_policy"].numpy() - expected)
        assert 0.0 < ours.mean() < 1.5 * theirs.mean()
        assert ours.max() < 1.5 * theirs.max()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RUNS)
def test_converted_checkpoints_give_identical_actions(name, precision, tmp_path):
    run, target = recorded(name), tmp_path / "out" / "converted"
    convert_checkpoint(run.folder, target, precision=precision, options=run.options)
    expected = infer(load(name, precision=precision), run)
    assert (infer(load(name, target, precision=precision), run) == expected).all()
    assert [path.name for path in target.parent.iterdir()] == ["converted"]
    size = (target / "model.safetensors").stat().st_size
    assert size < (run.folder / "model.safetensors").stat().st_size


def test_conversion_refuses_what_it_would_overwrite_or_has_done(tmp_path):
    run = recorded("lerobot_pi05")
    target = convert_checkpoint(run.folder, tmp_path / "converted")
    with pytest.raises(CheckpointError, match="expected no such folder yet"):
        convert_checkpoint(run.folder, target)
    with pytest.raises(CheckpointError, match="found a converted one"):
        convert_checkpoint(target, tmp_path / "again")


def test_a_failed_conversion_leaves_nothing(tmp_path):
    run = recorded("openpi_pi05")
    missing = tmp_path / "no_tokenizer.json"
    with pytest.raises(MissingTokenizerError):
        convert_checkpoint(run.folder, tmp_path / "target", tokenizer=missing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["openpi_pi05", "openpi_pi0"])
def test_a_warm_start_mixes_noise_into_earlier_actions(name):
    run, policy = recorded(name), load(name)
    half_way = run.values["out.n10.x_t"][5]
    initial = torch.full_like(half_way, 0.25)
    noise = 2.0 * half_way - initial  # so that the mixture at time 1/2 is x there
    found = policy.infer(
        run.images, run.state, run.instruction, noise=noise, initial=initial, steps=5,
        start_time=0.5,
    )  # fmt: skip
    np.testing.assert_allclose(found, run.actions[10], rtol=0.0, atol=1e-4)


def test_noise_comes_from_the_generator():
    run, policy = recorded("lerobot_pi05"), load("lerobot_pi05")

    def actions(seed):
        generator = torch.Generator().manual_seed(seed)
        return policy.infer(run.images, run.state, run.instruction, steps=1, generator=generator)

    assert (actions(1) == actions(1)).all()
    assert (actions(1) != actions(2)).any()


def test_flow_times_are_computed_once():
    policy = load("lerobot_pi05")
    assert policy.flow_times([1.0, 0.5]) is policy.flow_times((1.0, 0.5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": np.zeros((10, 7))}, r"noise: expected \[10, 32\], found \[10, 7\]"),
        ({"start_time": 0.5}, "initial: expected actions to start from at 0.5, found None"),
        ({"steps": 0}, "steps: expected at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options, message):
    run, policy = recorded("lerobot_pi05"), load("lerobot_pi05")
    with pytest.raises(ValueError, match=message):
        policy.infer(run.images, run.state, run.instruction, **options)


def test_pi0_needs_its_state():
    policy, run = load("openpi_pi0"), recorded("openpi_pi0")
    inputs = policy.processor.prepare(run.images, run.state, run.instruction)
    views, prompt = policy.embed_views(inputs.images), policy.embed_prompt(inputs.tokens)
    with pytest.raises(ValueError, match="state: π0 reads it as a token"):
        policy.encode_prefix(views, prompt)


def test_tokens_of_another_vocabulary_are_refused():
    policy = load("lerobot_pi05")
    with pytest.raises(ValueError, match="vocabulary of 512, found 512"):
        policy.embed_prompt(torch.tensor([1, 512]))


def test_converted_description_is_complete(tmp_path):
    run = recorded("lerobot_pi05")
    target = convert_checkpoint(run.folder, tmp_path / "converted")
    described = json.loads((target / "flashrt.json").read_text())
    assert described["converted_from"] == "lerobot"
    assert described["model"] == load("lerobot_pi05").config.to_json()
    assert load("lerobot_pi05", target).config == load("lerobot_pi05").config
