"""The networks against tensors that openpi recorded, with its masks, its padding and its times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from flashrt_ros.models.checkpoint import load_weights, open_checkpoint
from flashrt_ros.models.flow import (
    append_state,
    denoise,
    flow_times,
    uniform_times,
    velocity,
)
from flashrt_ros.models.gemma import embed_prompt, encode_prefix
from flashrt_ros.models.siglip import embed_views

from .golden import GOLDEN

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


class Network:
    """A tiny network, its recorded values, and the prefix computed here without what is masked."""

    def __init__(self, folder: Path):
        checkpoint = open_checkpoint(folder)
        self.config, self.weights = checkpoint.config, load_weights(checkpoint)
        self.values = load_file(folder / "golden.safetensors")
        self.images = torch.cat([self.values[f"in.image.{camera}"] for camera in CAMERAS])
        self.views = torch.cat([self.values[f"in.image_mask.{camera}"] for camera in CAMERAS])
        self.valid = self.values["out.prefix_pad_masks"][0]
        self.tokens, mask = self.values["in.tokens"][0], self.values["in.token_mask"][0]
        self.rows = self.embed(self.images[self.views], self.tokens[mask])
        self.prefix = encode_prefix(self.weights.language, self.config, self.rows)
        self.seen = self.with_state(self.prefix)

    def embed(self, images, tokens):
        views = embed_views(self.weights.vision, self.config, images)
        prompt = embed_prompt(self.weights.language, tokens)
        return torch.cat((views.flatten(0, 1), prompt))

    def with_state(self, prefix):
        if self.config.family == "pi05":
            return prefix
        return append_state(self.weights, self.config, prefix, self.values["in.state"][0])

    def denoise(self, x, times, trace=None):
        flow = flow_times(self.weights, self.config, times)
        return denoise(self.weights, self.config, self.seen, x, flow, trace)


@pytest.fixture(scope="module", params=["openpi_pi05_tiny", "openpi_pi0_tiny"])
def network(request):
    return Network(GOLDEN / request.param)


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=0.0, atol=tolerance)


def test_something_is_masked(network):
    assert network.views.tolist() == [True, True, False]
    assert network.valid.sum() < len(network.valid) - network.config.view_tokens


def test_prefix_embeddings(network):
    close(network.rows, network.values["out.prefix_embs"][0][network.valid])


def test_prefix_keys_and_values_of_every_layer(network):
    for i in range(network.config.depth):
        for found, kind in ((network.prefix.keys, "k"), (network.prefix.values, "v")):
            close(found[i], network.values[f"out.prefix_{kind}.{i}"][0, 0][network.valid])


def test_every_step_at_recorded_times(network):
    trace = []
    times = network.values["out.times"].tolist()
    actions = network.denoise(network.values["in.noise"][0], times, trace)
    assert [step.time for step in trace] == times
    close(torch.stack([step.x_t for step in trace]), network.values["out.x_t"])
    close(torch.stack([step.v_t for step in trace]), network.values["out.v_t"])
    close(actions, network.values["out.actions"][0])


def test_exact_times_stay_near_accumulated_ones(network):
    actions = network.denoise(network.values["in.noise"][0], uniform_times(10))
    close(actions, network.values["out.actions"][0], 1e-4)


def test_a_start_below_one_continues_where_a_run_was(network):
    times = network.values["out.times"].tolist()
    half_way = network.values["out.x_t"][5]
    close(network.denoise(half_way, times[5:]), network.values["out.actions"][0])
    actions = network.denoise(half_way, uniform_times(5, start_time=0.5))
    close(actions, network.values["out.actions"][0], 1e-4)


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_steps_are_euler_steps(network, steps):
    x = network.values["in.noise"][0]
    found = network.denoise(x, uniform_times(steps))
    for i in range(steps):
        flow = flow_times(network.weights, network.config, [1.0 - i / steps])
        x = x - velocity(network.weights, network.config, network.seen, x, flow.terms[0]) / steps
    close(found, x)


def test_masked_parts_would_matter_if_they_were_kept(network):
    """The recorded values could not be met with a masked view or padding in the prefix."""
    mask = network.values["in.token_mask"][0]
    expected = network.values["out.actions"][0]
    for images, tokens in (
        (network.images, network.tokens[mask]),
        (network.images[network.views], network.tokens),
    ):
        rows = network.embed(images, tokens)
        prefix = network.with_state(encode_prefix(network.weights.language, network.config, rows))
        flow = flow_times(network.weights, network.config, uniform_times(10))
        found = denoise(
            network.weights, network.config, prefix, network.values["in.noise"][0], flow
        )
        assert (found - expected).abs().max() > 1e-3


def test_a_view_does_not_depend_on_the_others(network):
    together = embed_views(network.weights.vision, network.config, network.images)
    for i, image in enumerate(network.images):
        close(embed_views(network.weights.vision, network.config, image[None])[0], together[i])


@pytest.mark.parametrize("times", [[], [0.0], [1.1], [0.5, 0.5], [0.5, 1.0]])
def test_times_that_do_not_descend_are_refused(network, times):
    with pytest.raises(ValueError, match="times: expected"):
        flow_times(network.weights, network.config, times)


def test_bad_steps_and_start_are_refused():
    with pytest.raises(ValueError, match="steps: expected at least 1, found 0"):
        uniform_times(0)
    with pytest.raises(ValueError, match=r"start_time: expected .* found 1.5"):
        uniform_times(10, 1.5)


def test_pi05_has_no_state_token():
    network = Network(GOLDEN / "openpi_pi05_tiny")
    with pytest.raises(ValueError, match="no state token"):
        append_state(network.weights, network.config, network.prefix, torch.zeros(32))
