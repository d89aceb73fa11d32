"""Recorded ranges against what the stages of the network are known to multiply."""

import numpy as np
import pytest
import torch

from flashrt_ros.models.activations import ActivationRecorder, product_names
from flashrt_ros.models.policy import load_policy

from .golden import GOLDEN

CASES = {"pi05": "openpi_pi05_e2e", "pi0": "openpi_pi0_e2e"}
STEPS = 3


def observation(policy, seed):
    random = np.random.default_rng(seed)
    images = {
        camera: random.integers(0, 256, (64, 80, 3), dtype=np.uint8)
        for camera in policy.processor.cameras
    }
    state = random.normal(size=policy.processor.state_dim).astype(np.float32)
    return images, state, "fold the towel"


@pytest.fixture(params=CASES, scope="module")
def policy(request):
    return load_policy(GOLDEN / CASES[request.param])


def test_every_product_is_recorded_and_nothing_else(policy):
    with ActivationRecorder(policy.weights) as recorder:
        policy.infer(*observation(policy, 0), steps=STEPS)
    assert set(recorder.ranges()) == product_names(policy.weights)


def test_ranges_are_those_of_the_inputs(policy):
    torch.manual_seed(0)
    images, trace = [], []
    noises = [torch.randn(policy.config.horizon, policy.config.action_dim) for _ in range(2)]
    with ActivationRecorder(policy.weights) as recorder:
        for seed, noise in enumerate(noises):
            policy.infer(*observation(policy, seed), noise=noise, steps=STEPS)
    for seed, noise in enumerate(noises):
        inputs = policy.processor.prepare(*observation(policy, seed))
        images.append(inputs.images[inputs.view_mask])
        times = policy.flow_times([1.0 - i / STEPS for i in range(STEPS)])
        policy.denoise(policy.encode(inputs), noise, times, trace)
    ranges = recorder.ranges()

    pixels = torch.cat(images)
    patch = ranges["vision.patch"]
    assert (patch.lowest, patch.highest) == (float(pixels.min()), float(pixels.max()))
    assert patch.rms == pytest.approx(float(pixels.double().square().mean().sqrt()), rel=1e-6)
    assert patch.calls == 2

    states = torch.cat([step.x_t for step in trace])
    action = ranges["flow.action_in"]
    assert action.calls == 2 * STEPS
    assert action.rows == len(states) == 2 * STEPS * policy.config.horizon
    assert torch.equal(action.channel_largest, states.abs().amax(0))
    assert action.largest == float(states.abs().max())
    calls = states.reshape(2 * STEPS, -1).abs().numpy()
    expected = np.quantile(calls, 0.999, axis=1, method="inverted_cdf").max()
    assert action.quantile == pytest.approx(float(expected))


def test_recording_changes_nothing(policy):
    noise = torch.randn(policy.config.horizon, policy.config.action_dim)
    plain = policy.infer(*observation(policy, 0), noise=noise, steps=STEPS)
    with ActivationRecorder(policy.weights):
        recorded = policy.infer(*observation(policy, 0), noise=noise, steps=STEPS)
    assert np.array_equal(plain, recorded)
    assert np.array_equal(plain, policy.infer(*observation(policy, 0), noise=noise, steps=STEPS))
