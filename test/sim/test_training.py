"""Training of the small π0.5: it trains the network that inference runs, and goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from flashrt_ros.models import flow
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.models.weights import build_weights
from flashrt_ros.sim import demonstrations as demos
from flashrt_ros.sim.small_policy import (
    CONFIG,
    TOKENIZER_FILE,
    build_processor,
    token_ids,
    write_tokenizer,
)
from flashrt_ros.sim.training import (
    Batches,
    PromptTable,
    Training,
    TrainingSettings,
    relative_actions,
    velocity_loss,
)

DEVICE = torch.device("cpu")
SETTINGS = TrainingSettings(steps=8, batch=8, draws=2, warmup_steps=2)


def one_demonstration(folder: Path) -> demos.Demonstrations:
    """Made in a process of its own, as training does it."""
    (file,) = demos.prepare(folder, episodes=1, workers=1, first_seed=3)
    return demos.load(file)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return one_demonstration(tmp_path_factory.mktemp("demonstrations"))


@pytest.fixture(scope="module")
def processor(data, tmp_path_factory):
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("tokenizer") / TOKENIZER_FILE)
    return build_processor(data.states, relative_actions(data), tokenizer)


def test_demonstration_follows_from_its_seed_and_is_kept(data, tmp_path):
    again = one_demonstration(tmp_path)
    for name in ("images", "states", "targets", "actions"):
        assert np.array_equal(getattr(data, name), getattr(again, name)), name
    assert data.images.shape[1:] == (2, CONFIG.image_size, CONFIG.image_size, 3)
    assert np.isfinite(data.actions).all()
    (file,) = tmp_path.iterdir()
    made_ns = file.stat().st_mtime_ns
    one_demonstration(tmp_path)
    assert [file.stat().st_mtime_ns for file in tmp_path.iterdir()] == [made_ns]


def test_prompts_are_those_of_inference(data, processor):
    prompts = PromptTable(processor, DEVICE)
    states = torch.from_numpy(data.states[: len(demos.TARGETS)])
    made = prompts(torch.arange(len(demos.TARGETS)), states)
    for row, target, state in zip(made, demos.TARGETS, data.states, strict=False):
        tokens, mask = processor.prompt(f"touch the {target} block", state)
        assert tokens[mask].tolist() == row.tolist()
    text = "Task: touch the red block, State: -1 255 3;\nAction: "
    assert processor.tokenizer.encode(text, bos=False) == token_ids(text)


def test_loss_is_that_of_the_network_of_inference(data, processor):
    training = Training(CONFIG, SETTINGS, DEVICE)
    batches = Batches(data, processor, DEVICE, 0)
    weights = build_weights({n: t.detach() for n, t in training.parameters.items()})
    policy = FlowPolicy(weights, CONFIG, processor)
    images, tokens, actions = batches.draw(2, augment=False)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 2, CONFIG.horizon, CONFIG.action_dim, generator=generator)
    times = torch.rand(2, 2, generator=generator)
    one_by_one = []
    with torch.no_grad():
        together = velocity_loss(weights, CONFIG, images, tokens, actions, noise, times)
        for i in range(2):
            prefix = policy.encode_prefix(
                policy.embed_views(images[i]), policy.embed_prompt(tokens[i])
            )
            for k in range(2):
                t = float(times[i, k])
                x_t = t * noise[i, k] + (1 - t) * actions[i]
                (term,) = flow.flow_times(weights, CONFIG, (t,)).terms
                found = flow.velocity(weights, CONFIG, prefix, x_t, term)
                one_by_one.append((found - (noise[i, k] - actions[i])).square().mean())
    assert float(together) == pytest.approx(float(torch.stack(one_by_one).mean()), rel=1e-5)


def test_training_goes_on_where_it_stopped(data, processor, tmp_path):
    batches = Batches(data, processor, DEVICE, 0)
    quiet = lambda log, share: None  # noqa: E731
    training = Training(CONFIG, SETTINGS, DEVICE)
    assert not training.resume(tmp_path)
    training.run(batches, batches, quiet, lambda training: training.save(tmp_path))
    resumed = Training(CONFIG, SETTINGS, DEVICE)
    assert resumed.resume(tmp_path)
    assert resumed.log == training.log
    assert resumed.log.step == SETTINGS.steps
    for mine, other in ((training, resumed), (resumed, training)):
        for name, tensor in mine.average.items():
            assert torch.equal(tensor, other.average[name]), name
    batches.seed(1)
    one = training._inputs(batches, 4, augment=True)
    batches.seed(1)
    two = resumed._inputs(batches, 4, augment=True)
    assert torch.equal(training._gradients(one), resumed._gradients(two))
