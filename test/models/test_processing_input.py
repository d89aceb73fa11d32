"""What no checkpoint, option or observation may hold, and what it may: one clear error, or none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from flashrt_ros.models.processing import ProcessingError, ProcessingOptions, load_processor

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
OPENPI, PI0, LEROBOT = (GOLDEN / f"{n}_e2e" for n in ("openpi_pi05", "openpi_pi0", "lerobot_pi05"))
FOLDERS = pytest.mark.parametrize("folder", [OPENPI, PI0, LEROBOT], ids=lambda path: path.name)
STATE = np.linspace(-0.5, 0.5, 7)
IMAGE = np.full((48, 64, 3), 90, np.uint8)


def checkpoint(source: Path, tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("golden*", "*.png", "tokenize_cases.json")
    return shutil.copytree(source, tmp_path / source.name, ignore=ignored)


# Observations


@FOLDERS
@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "拾起红色方块 🟥",
        "cafe\u0301 \u00a0\u3000",
        "<bos><eos><image>",
        "\x00",
        "a_b\r\n",
    ],
)
def test_any_unicode_text_is_an_instruction(folder, text):
    processor = load_processor(folder)
    inputs = processor.prepare({processor.cameras[0]: IMAGE}, STATE, text)
    count = int(inputs.token_mask.sum())
    assert 1 < count < len(inputs.tokens)
    assert (inputs.tokens[count:] == 0).all()


@FOLDERS
@pytest.mark.parametrize("text", [None, b"go", 3, "go \udc80"], ids=repr)
def test_what_is_no_unicode_text_is_refused(folder, text):
    processor = load_processor(folder)
    with pytest.raises(ProcessingError, match="instruction: expected text of valid Unicode"):
        processor.prompt(text, STATE)


@FOLDERS
@pytest.mark.parametrize(
    "state",
    [
        np.full(7, "a"),
        np.full(7, None),
        np.zeros(7, bool),
        np.zeros(7, complex),
        np.full(7, np.inf),
    ],
    ids=lambda values: str(values.dtype),
)
def test_states_that_are_no_numbers(folder, state):
    with pytest.raises(ProcessingError, match="state: expected 7 finite numbers, found"):
        load_processor(folder).normalize_state(state)


@FOLDERS
def test_a_state_may_come_in_any_type_of_number(folder):
    processor = load_processor(folder)
    expected = processor.normalize_state(np.ones(7, np.float32))
    for state in ([1] * 7, np.ones(7, np.int64), np.ones(7, np.float16), torch.ones(7)):
        np.testing.assert_array_equal(processor.normalize_state(state), expected)


@pytest.mark.parametrize("actions", [np.zeros((1, 10, 32)), np.full((2, 32), "a"), None])
def test_actions_that_are_no_numbers(actions):
    with pytest.raises(ProcessingError, match=r"actions: expected numbers \[H, 7 or more\]"):
        load_processor(OPENPI).finish(actions, STATE)


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (300, 500)])
@FOLDERS
def test_pictures_of_odd_shapes(folder, shape):
    processor = load_processor(folder)
    view = processor.view(processor.cameras[0], np.full((*shape, 3), 255, np.uint8))
    assert view.shape == (3, 56, 56)
    # White on black. A line one pixel thick lies in front of the middle.
    torch.testing.assert_close(view.abs(), torch.ones_like(view), rtol=0, atol=1e-6)
    assert (view[:, 27, 27] > 0).all()


def test_one_image_a_view(tmp_path):
    folder = checkpoint(LEROBOT, tmp_path)
    file = folder / "policy_preprocessor.json"
    values = json.loads(file.read_text())
    values["steps"][0]["config"]["rename_map"] = {"top": "observation.images.base"}
    file.write_text(json.dumps(values))
    images = {"top": IMAGE, "observation.images.base": IMAGE}
    with pytest.raises(ProcessingError, match=r"camera 'observation.images.base': expected one"):
        load_processor(folder).prepare(images, STATE, "go")


# Options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cameras": "base_0_rgb"}, "cameras: expected a list of names, found 'base_0_rgb'"),
        ({"cameras": ("",)}, "cameras: expected a list of names"),
        ({"max_tokens": 0}, "max_tokens: expected a whole number above 0, found 0"),
        ({"pad_state_to": -1}, "pad_state_to: expected a whole number above 0, found -1"),
        ({"state_dim": 7.0}, "state_dim: expected a whole number above 0, found 7.0"),
        ({"delta_mask": (6, 0)}, "delta_mask: expected whole numbers, such as 6, -1"),
        ({"delta_mask": ("6",)}, "delta_mask: expected whole numbers, such as 6, -1"),
        ({"joint_velocity_step_rad": -0.2}, "joint_velocity_step_rad: expected a number above 0"),
        ({"use_quantile_norm": 1}, "use_quantile_norm: expected true or false, found 1"),
        ({"asset_id": ""}, "asset_id: expected a name, found ''"),
    ],
)
def test_options_are_checked_when_they_are_made(options, expected):
    with pytest.raises(ProcessingError, match=f"^{expected}"):
        ProcessingOptions(**options)


@pytest.mark.parametrize("cameras", [(), ("base_0_rgb", "base_0_rgb")])
def test_cameras_are_at_least_one_and_different(cameras):
    with pytest.raises(ProcessingError, match="cameras: expected different names, at least one"):
        load_processor(OPENPI, options=ProcessingOptions(cameras=cameras))


def test_a_lerobot_checkpoint_without_cameras(tmp_path):
    folder = checkpoint(LEROBOT, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["input_features"] = {"observation.state": {"type": "STATE", "shape": [7]}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ProcessingError, match=r"config.json: input_features: expected a camera"):
        load_processor(folder)


# Statistics


@pytest.mark.parametrize(
    ("source", "change", "expected"),
    [
        (OPENPI, {"q01": [1.0] * 7, "q99": [0.0] * 7}, "width of q01..q99: expected 7 positive"),
        (OPENPI, {"q01": [], "q99": []}, "q01..q99: expected some finite numbers"),
        (OPENPI, {"q01": ["0"] * 7}, "q01: expected a list of finite numbers"),
        (OPENPI, {"q01": [True] * 7}, "q01: expected a list of finite numbers"),
        (OPENPI, {"q01": [[0.0] * 7]}, "q01: expected a list of finite numbers"),
        (PI0, {"std": [-1.0] * 7}, "standard deviation: expected 7 positive numbers"),
    ],
)
def test_openpi_statistics_that_make_no_sense(tmp_path, source, change, expected):
    folder = checkpoint(source, tmp_path)
    (file,) = folder.glob("assets/**/norm_stats.json")
    stats = json.loads(file.read_text())
    stats["norm_stats"]["state"].update(change)
    file.write_text(json.dumps(stats))
    with pytest.raises(ProcessingError, match=f"norm_stats.json: norm_stats.state: {expected}"):
        load_processor(folder)


def test_openpi_statistics_of_a_joint_that_never_moved(tmp_path):
    folder = checkpoint(OPENPI, tmp_path)
    (file,) = folder.glob("assets/**/norm_stats.json")
    stats = json.loads(file.read_text())
    entry = stats["norm_stats"]["state"]
    entry["q99"][0] = entry["q01"][0]
    file.write_text(json.dumps(stats))
    processor = load_processor(folder)
    low = np.array(entry["q01"])
    assert processor.normalize_state(low)[0] == -1.0
    np.testing.assert_allclose(processor.normalize_state(low + 1e-6)[0], 1.0, atol=1e-6)


def test_lerobot_statistics_that_make_no_sense(tmp_path):
    folder = checkpoint(LEROBOT, tmp_path)
    file = folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    statistics = load_file(file)
    statistics["action.q99"] = statistics["action.q01"] - 1
    save_file(statistics, file)
    with pytest.raises(ProcessingError, match=rf"{file.name}: action: width of q01..q99: expected"):
        load_processor(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("image", {"filter": "openpi"}), ("state", 3), ("cameras", None), ("max_tokens", "200")],
)
def test_saved_processing_of_other_types(tmp_path, key, value):
    processor = load_processor(OPENPI)
    processor.save(tmp_path)
    file = tmp_path / "processing.json"
    file.write_text(json.dumps({**processor.to_json(), key: value}))
    with pytest.raises(ProcessingError, match=r"processing.json: expected the values that `save`"):
        load_processor(tmp_path)
