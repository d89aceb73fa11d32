"""Real-time chunking as LeRobot computes it, on the chunks recorded from it; and actions seen from another state."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flashrt_ros.control.policy import Denoising
from flashrt_ros.control.rtc import Rtc, Schedule, Strength
from flashrt_ros.models.flow import uniform_times
from flashrt_ros.models.policy import load_policy

from .golden import GOLDEN, recorded

FOLDER = GOLDEN / "rtc"
SPEC = json.loads((FOLDER / "rtc.json").read_text())["cases"]
GUIDED = [name for name, case in SPEC.items() if case["mode"] == "guided"]
VALUES = load_file(FOLDER / "rtc.safetensors")
SCHEDULES = {
    "LINEAR": Schedule.LINEAR,
    "EXP": Schedule.EXPONENTIAL,
    "ONES": Schedule.ONES,
    "ZEROS": Schedule.ZEROS,
}


def guidance_of(case, leftover, strength=Strength.LEROBOT):
    """As LeRobot does: zeros behind the leftover and beside it, weights for all 32 numbers."""
    left, width = leftover.shape
    target = np.zeros((10, 32), np.float32)
    target[:left, :width] = leftover
    horizon = case["execution_horizon_argument"] or case["execution_horizon_config"]
    rtc = Rtc(horizon, SCHEDULES[case["schedule"]], strength, case["max_guidance_weight"])
    return rtc.guidance(Denoising(case["num_steps"]), target, left, case["inference_delay"])


def leftover_of(name):
    leftover = VALUES[f"{name}.prev_chunk_left_over"].numpy()
    return leftover[0] if leftover.ndim == 3 else leftover


@pytest.fixture(scope="module")
def policy():
    return load_policy(FOLDER)


@pytest.fixture(scope="module")
def prefix(policy):
    run = recorded("lerobot_pi05")
    return policy.encode(policy.processor.prepare(run.images, run.state, run.instruction))


def denoise(policy, prefix, guidance, steps):
    made = guidance and policy.guidance(guidance.target, guidance.weights, guidance.strengths)
    times = policy.flow_times(uniform_times(steps))
    return policy.denoise(prefix, VALUES["in.noise"][0], times, guidance=made)


@pytest.mark.parametrize("name", GUIDED)
def test_guided_chunks_recorded_from_lerobot(policy, prefix, name):
    case, guidance = SPEC[name], None
    if case["leftover_shape"] is not None:
        guidance = guidance_of(case, leftover_of(name))
        np.testing.assert_allclose(guidance.weights, case["weights_per_action_step"], atol=1e-6)
        expected = case["guidance_weight_per_denoise_step"]
        np.testing.assert_allclose(guidance.strengths, expected, rtol=1e-5)
    found = denoise(policy, prefix, guidance, case["num_steps"])[:, :7].numpy()
    expected = VALUES[f"{name}.actions_normalized"][0].numpy()
    # A single step from pure noise overshoots tenfold: its numbers are tenfold, and so is their rounding.
    scale = max(1.0, np.abs(expected).max() / 4.0)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * scale)
    actions = policy.processor.finish(found, recorded("lerobot_pi05").state)
    expected = VALUES[f"{name}.actions"][0].numpy()
    np.testing.assert_allclose(actions, expected, rtol=0.0, atol=1e-5 * scale)


@pytest.mark.parametrize("steps", [1, 2, 5, 10])
def test_bounded_strength_never_passes_the_target(policy, prefix, steps):
    """LeRobot's overshoots with fewer than 10 steps; the bounded one leaves no more error than was there."""
    case = dict(SPEC["linear"], num_steps=steps)
    leftover = leftover_of("linear")
    plain = denoise(policy, prefix, None, steps)[:2, :7].numpy()
    bounded = guidance_of(case, leftover, Strength.BOUNDED)
    found = denoise(policy, prefix, bounded, steps)[:2, :7].numpy()
    error, before = np.abs(found - leftover[:2]).max(), np.abs(plain - leftover[:2]).max()
    assert error < 0.25 * before
    if steps == 1:
        assert error < 1e-5, "one step goes all the way to the frozen actions"
        wild = denoise(policy, prefix, guidance_of(case, leftover), steps)[:2, :7].numpy()
        assert np.abs(wild - leftover[:2]).max() > before


def test_weights_of_another_length_are_refused(policy):
    with pytest.raises(ValueError, match=r"weights: expected \[10\], found \[9\]"):
        policy.guidance(np.zeros((10, 32)), np.zeros(9), [1.0])
    with pytest.raises(ValueError, match=r"target: expected \[10, 32\], found \[10, 7\]"):
        policy.guidance(np.zeros((10, 7)), np.zeros(10), [1.0])


def test_relative_actions_keep_their_positions_when_seen_from_another_state():
    run = recorded("openpi_pi05")  # six relative joints, an absolute gripper
    processor = load_policy(run.folder, options=run.options).processor
    normalized = torch.randn(10, 32, generator=torch.Generator().manual_seed(1)).numpy()
    old, new = run.state, run.state + np.linspace(-0.3, 0.4, 7, dtype=np.float32)
    moved = processor.rebase(normalized, old, new)
    np.testing.assert_allclose(
        processor.finish(moved, new), processor.finish(normalized, old), rtol=0.0, atol=2e-6
    )
    assert np.abs(moved[:, :6] - normalized[:, :6]).max() > 0.1
    assert np.array_equal(moved[:, 6:], normalized[:, 6:]), "absolute and padded numbers stay"


def test_absolute_actions_do_not_depend_on_the_state(policy):
    normalized = VALUES["in.previous_chunk"][0].numpy()
    moved = policy.processor.rebase(normalized, np.zeros(7), np.ones(7))
    assert np.array_equal(moved, normalized)
