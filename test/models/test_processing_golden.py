"""Every step of processing against the tensors that openpi and LeRobot recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flashrt_ros.models.images import resize_with_pad_lerobot, resize_with_pad_openpi
from flashrt_ros.models.processing import ProcessingOptions, Processor, load_processor
from flashrt_ros.models.prompt import StatePrompt, TextPrompt, encode, state_bins
from flashrt_ros.models.tokenizer import load_tokenizer

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CAMERAS = {"base_0_rgb": "base", "left_wrist_0_rgb": "wrist"}

OPENPI_RUNS = [
    ("openpi_pi05_e2e", "golden"),
    ("openpi_pi05_e2e", "golden_nostate"),
    ("openpi_pi0_e2e", "golden"),
]


class OpenpiRun:
    """One recorded run; the second one of π0.5 shares the inputs of the first."""

    def __init__(self, folder: str, name: str):
        self.spec = json.loads((GOLDEN / folder / f"{name}.json").read_text())
        inputs = load_file(GOLDEN / folder / "golden.safetensors")
        self.golden = {**inputs, **load_file(GOLDEN / folder / f"{name}.safetensors")}
        self.images = {c: inputs[f"in.image.{source}"].numpy() for c, source in CAMERAS.items()}
        self.state = inputs["in.state"].numpy()
        self.processor = load_processor(
            GOLDEN / folder,
            options=ProcessingOptions(
                delta_mask=(6, -1),
                max_tokens=self.spec["max_token_len"],
                discrete_state_input=self.spec["discrete_state_input"],
            ),
        )


@pytest.fixture(params=OPENPI_RUNS, ids="-".join)
def openpi(request) -> OpenpiRun:
    return OpenpiRun(*request.param)


def test_openpi_inputs(openpi):
    golden, processor = openpi.golden, openpi.processor
    assert processor.family == openpi.spec["family"]
    assert list(processor.cameras) == openpi.spec["image_order"]
    inputs = processor.prepare(openpi.images, openpi.state, openpi.spec["prompt_in"])
    for index, camera in enumerate(processor.cameras):
        assert bool(inputs.view_mask[index]) == openpi.spec["image_mask"][camera]
        assert torch.equal(inputs.images[index : index + 1], golden[f"mid.image.{camera}"])
    assert inputs.tokens.dtype == torch.int64
    assert torch.equal(inputs.tokens, golden["mid.tokens"])
    assert torch.equal(inputs.token_mask, golden["mid.token_mask"])
    assert int(inputs.token_mask.sum()) == openpi.spec["n_tokens"]
    if processor.family == "pi0":
        assert inputs.state is not None
        assert torch.equal(inputs.state, golden["mid.state_padded"].float())
    else:
        assert inputs.state is None


def test_openpi_steps(openpi):
    golden, processor = openpi.golden, openpi.processor
    for camera, image in openpi.images.items():
        resized = resize_with_pad_openpi(image, openpi.spec["dims"]["image_size"])
        assert (resized == golden[f"mid.image_uint8.{camera}"].numpy()).all()
    normalized = processor.normalize_state(openpi.state)
    assert (normalized == golden["mid.state_normalized"].numpy()).all()
    pieces = processor.prompt_format.pieces(openpi.spec["prompt_in"], normalized)
    assert list(pieces) == [call["text"] for call in openpi.spec["tokenizer_calls"]]
    if "state_bins" in openpi.spec:
        assert state_bins(normalized) == openpi.spec["state_bins"]
    base = processor.state.unnormalize(normalized)
    np.testing.assert_allclose(base, golden["out.state_unnormalized"][:7], rtol=0, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 10])
def test_openpi_actions(openpi, steps):
    golden, processor = openpi.golden, openpi.processor
    raw = golden[f"out.n{steps}.actions_normalized"]
    unnormalized = processor.actions.unnormalize(raw[:, :7])
    expected = golden[f"out.n{steps}.actions_unnormalized"][:, :7]
    np.testing.assert_allclose(unnormalized, expected, rtol=0, atol=1e-12)
    actions = processor.finish(raw, openpi.state)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, golden[f"out.n{steps}.actions"], rtol=0, atol=5e-7)
    absolute = golden[f"out.n{steps}.actions_absolute_padded"][:, :7]
    np.testing.assert_allclose(actions, absolute, rtol=0, atol=5e-7)


@pytest.mark.parametrize("folder", ["openpi_pi05_e2e", "openpi_pi0_e2e"])
def test_openpi_prompts(folder):
    tokenizer = load_tokenizer(GOLDEN / folder)
    for case in json.loads((GOLDEN / folder / "tokenize_cases.json").read_text()):
        state = case["state_normalized"]
        prompt = TextPrompt(openpi=True) if state is None else StatePrompt()
        pieces = prompt.pieces(case["prompt_in"], np.array(state or []))
        assert list(pieces) == case["encoded_texts"]
        tokens, mask = encode(tokenizer, pieces, case["max_len"])
        assert tokens.tolist() == case["tokens"]
        assert mask.tolist() == [i < case["n_valid"] for i in range(case["max_len"])]


def test_a_cut_prompt_is_reported(caplog):
    tokenizer = load_tokenizer(GOLDEN / "openpi_pi0_e2e")
    encode(tokenizer, ("a long instruction", "\n"), 4)
    assert "cut to 4: 'a long instruction'" in caplog.text


def test_lerobot_end_to_end():
    folder = GOLDEN / "lerobot_pi05_e2e"
    golden = load_file(folder / "golden.safetensors")
    spec = json.loads((folder / "golden.json").read_text())
    processor = load_processor(folder)
    state = golden["in.observation.state"].numpy()
    views = {}
    for index, camera in enumerate(processor.cameras):
        unit = golden[f"in.{camera}"]
        views[camera] = resize_with_pad_lerobot(unit, 56) * 2 - 1
        assert torch.equal(views[camera][None], golden[f"mid.image.{index}"])
    inputs = processor.assemble(views, state, spec["task_in"])
    assert torch.equal(inputs.images[2:], golden["mid.image.2_empty"])
    assert inputs.view_mask.tolist() == [True, True, False]
    normalized = processor.normalize_state(state)
    assert normalized.dtype == np.float32
    assert (normalized == golden["mid.state_normalized"][0].numpy()).all()
    assert processor.prompt_format.pieces(spec["task_in"], normalized) == (spec["prompt"],)
    assert torch.equal(inputs.tokens, golden["mid.tokens"][0])
    assert torch.equal(inputs.token_mask, golden["mid.token_mask"][0])
    assert (processor.finish(golden["out.raw"][0], state) == golden["out.actions"][0].numpy()).all()


def lerobot_copy(tmp_path: Path, **relative: object) -> Path:
    """The LeRobot checkpoint with other settings of its relative-action steps, no weights."""
    folder = tmp_path / "checkpoint"
    source = GOLDEN / "lerobot_pi05_e2e"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("model.*", "golden.*"))
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        values = json.loads((folder / name).read_text())
        for step in values["steps"]:
            if step["registry_name"] == "relative_actions_processor":
                step["config"].update(relative)
            if step["registry_name"] == "absolute_actions_processor":
                step["config"]["enabled"] = relative["enabled"]
        (folder / name).write_text(json.dumps(values))
    return folder


def test_lerobot_relative_actions_leave_the_named_joints_absolute(tmp_path):
    golden = load_file(GOLDEN / "lerobot_pi05_e2e" / "golden.safetensors")
    state, raw = golden["in.observation.state"].numpy(), golden["out.raw"][0]
    names = [*(f"joint_{i}.pos" for i in range(6)), "Gripper.pos"]
    processor = load_processor(lerobot_copy(tmp_path, enabled=True, action_names=names))
    expected = golden["out.actions_if_relative"][0].numpy()
    assert (processor.finish(raw, state) == expected).all()
    assert processor.action_names == tuple(names)
    assert "+ state (all but 6)" in str(processor)


def test_lerobot_without_names_takes_every_action_as_relative(tmp_path):
    golden = load_file(GOLDEN / "lerobot_pi05_e2e" / "golden.safetensors")
    state, raw = golden["in.observation.state"].numpy(), golden["out.raw"][0]
    processor = load_processor(lerobot_copy(tmp_path, enabled=True))
    expected = golden["out.actions"][0].numpy() + state
    assert (processor.finish(raw, state) == expected).all()
    assert "+ state (all)" in str(processor)


def test_lerobot_plain_chain_of_the_real_time_chunking_checkpoint():
    folder = GOLDEN / "rtc"
    golden = load_file(folder / "golden.safetensors")
    spec = json.loads((folder / "golden.json").read_text())
    processor: Processor = load_processor(folder)
    assert list(processor.cameras) == spec["image_order"]
    images = {camera: golden[f"in.{camera}"].numpy() for camera in processor.cameras}
    state = golden["in.observation.state"].numpy()
    inputs = processor.prepare(images, state, spec["task_in"])
    for index in range(2):
        assert torch.equal(inputs.images[index : index + 1], golden[f"mid.image.{index}"])
    assert inputs.view_mask.tolist() == spec["image_mask"]
    assert torch.equal(inputs.tokens, golden["mid.tokens"][0])
    assert torch.equal(inputs.token_mask, golden["mid.token_mask"][0])
    normalized = processor.normalize_state(state)
    assert (normalized == golden["mid.state_normalized"][0].numpy()).all()
    assert state_bins(normalized) == spec["state_bins"]
    for steps in spec["num_steps"]:
        actions = processor.finish(golden[f"out.n{steps}.actions_normalized_padded"][0], state)
        assert (actions == golden[f"out.n{steps}.actions"][0].numpy()).all()
