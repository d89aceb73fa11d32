"""Checkpoints that cannot be used: one clear error each, naming the file and the key."""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashrt_ros.models.checkpoint import CheckpointError, load_weights, open_checkpoint
from flashrt_ros.models.config import ModelConfig
from flashrt_ros.models.convert import convert_checkpoint
from flashrt_ros.models.inspect import format_table, inspect_checkpoint
from flashrt_ros.models.policy import load_policy
from flashrt_ros.models.processing import MissingTokenizerError, ProcessingError
from flashrt_ros.models.upstream import (
    canonical_keys,
    dropped_sources,
    output_embeddings,
    sources,
)
from flashrt_ros.models.weights import named_tensors, tensor_specs

from .golden import GOLDEN, recorded

VISION = "paligemma_with_expert.paligemma.model.vision_tower."
Q_PROJ = "paligemma_with_expert.gemma_expert.model.layers.1.self_attn.q_proj.weight"
EMBEDDING = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
LM_HEAD = "paligemma_with_expert.paligemma.lm_head.weight"


@pytest.fixture
def openpi(tmp_path):
    """A copy of the openpi π0.5 checkpoint that a test may break."""
    return copied("openpi_pi05_e2e", tmp_path)


@pytest.fixture
def lerobot(tmp_path):
    return copied("lerobot_pi05_e2e", tmp_path)


def copied(name, tmp_path):
    return shutil.copytree(GOLDEN / name, tmp_path / name)


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder, name="config.json", **values):
    file = folder / name
    settings = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))


def refused(folder, *parts, error=CheckpointError):
    """Loading fails with an error whose message has all the parts, the first one being a file."""
    with pytest.raises(error) as caught:
        load_policy(folder)
    for part in (str(folder), *parts):
        assert part in str(caught.value)


def test_truncated_file(openpi):
    file = openpi / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    refused(openpi, "model.safetensors", "truncated")


def test_file_that_is_not_safetensors(openpi):
    (openpi / "model.safetensors").write_bytes(b"not tensors at all")
    refused(openpi, "model.safetensors", "expected a whole safetensors file, found 18 bytes")


def test_missing_key(openpi):
    edit_tensors(openpi, lambda tensors: tensors.pop(Q_PROJ))
    refused(openpi, "model.safetensors", f"expected {Q_PROJ} [128, 32], found no such tensor")


def test_unknown_key(openpi):
    edit_tensors(openpi, lambda tensors: tensors.update({"extra.weight": torch.zeros(2, 3)}))
    refused(openpi, "model.safetensors", "found unknown extra.weight [2, 3]")


def test_wrong_shape(openpi):
    edit_tensors(openpi, lambda tensors: tensors.update({Q_PROJ: torch.zeros(128, 31)}))
    refused(openpi, "model.safetensors", f"{Q_PROJ}: expected shape [128, 32], found [128, 31]")


def test_wrong_shape_of_a_tensor_that_is_not_used(openpi):
    key = "paligemma_with_expert.paligemma.model.language_model.norm.weight"
    edit_tensors(openpi, lambda tensors: tensors.update({key: torch.zeros(63)}))
    refused(openpi, f"{key}: expected shape [64], found [63]")


def test_integer_weights(openpi):
    tensor = torch.zeros(128, 32, dtype=torch.int8)
    edit_tensors(openpi, lambda tensors: tensors.update({Q_PROJ: tensor}))
    refused(openpi, f"model.safetensors: {Q_PROJ}: expected one of", "found I8")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite(openpi, value):
    def spoil(tensors):
        tensors[Q_PROJ][3, 4] = value

    edit_tensors(openpi, spoil)
    refused(openpi, "model.safetensors", f"NaN or infinity in {Q_PROJ};")


def test_another_lerobot_policy(lerobot):
    edit_config(lerobot, type="smolvla")
    refused(lerobot, "config.json: type: expected one of ['pi0', 'pi05'], found 'smolvla'")


def test_type_that_contradicts_the_tensors(lerobot):
    edit_config(lerobot, type="pi0")
    refused(lerobot, "config.json: type: expected 'pi05'", "found 'pi0'")


def test_weights_of_another_model(openpi):
    save_file({"encoder.weight": torch.zeros(2)}, openpi / "model.safetensors")
    refused(openpi, "model.safetensors: expected time_mlp_in.weight", "encoder.weight")


def test_lerobot_options_that_change_the_network(lerobot):
    edit_config(lerobot, use_visual_memory=True)
    refused(lerobot, "config.json: use_visual_memory: expected false, found True")


def test_padded_action_dimension_that_differs(openpi):
    edit_config(openpi, action_dim=24)
    refused(openpi, "action_in_proj.weight: expected action dimension 24", "found 32")


def test_robot_action_dimension_beyond_the_network(lerobot):
    settings = json.loads((lerobot / "config.json").read_text())
    settings["output_features"]["action"]["shape"] = [40]
    (lerobot / "config.json").write_text(json.dumps(settings))
    refused(lerobot, "40", error=(CheckpointError, ProcessingError))


def test_horizon_that_nobody_states(openpi):
    edit_config(openpi, action_horizon=None)
    refused(openpi, "config.json: action_horizon: expected the chunk length")
    assert open_checkpoint(openpi, horizon=7).config.horizon == 7


def test_vision_heads_that_nobody_states(openpi):
    edit_config(openpi, vision_heads=None)
    refused(openpi, "config.json: vision_heads: expected", "48 wide")
    assert open_checkpoint(openpi, vision_heads=4).config.vision_heads == 4


def test_vision_heads_that_do_not_divide(openpi):
    edit_config(openpi, vision_heads=5)
    refused(openpi, "vision_width 48 is not a multiple of vision_heads 5")


def test_json_that_is_damaged(openpi):
    (openpi / "config.json").write_text("{")
    refused(openpi, "config.json: cannot be read as JSON")


def test_no_folder(tmp_path):
    refused(tmp_path / "nowhere", "expected a checkpoint folder, found none")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickles_are_never_opened(openpi, name):
    (openpi / "model.safetensors").rename(openpi / name)
    refused(openpi, f"expected model.safetensors, found {name}", "convert them to safetensors")


def test_jax_parameters(openpi):
    (openpi / "model.safetensors").unlink()
    (openpi / "params").mkdir()
    refused(openpi, "convert_jax_model_to_pytorch.py")


def test_weights_in_several_files(openpi):
    part = "model-00001-of-00002.safetensors"
    (openpi / "model.safetensors").rename(openpi / part)
    refused(openpi, f"expected model.safetensors, found {part}", "join the parts")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_load_and_are_checked(openpi, dtype):
    edit_tensors(
        openpi, lambda tensors: tensors.update({k: t.to(dtype) for k, t in tensors.items()})
    )
    checkpoint = open_checkpoint(openpi)
    assert list(checkpoint.stored_parameters) == [str(dtype).removeprefix("torch.")]
    weights = load_weights(checkpoint, precision="float32")
    assert weights.dtype == torch.float32

    def spoil(tensors):
        tensors[Q_PROJ][0, 0] = float("inf")

    edit_tensors(openpi, spoil)
    refused(openpi, f"NaN or infinity in {Q_PROJ};")


def test_no_weights(openpi):
    (openpi / "model.safetensors").unlink()
    refused(openpi, "expected model.safetensors, found no such file")


def test_no_tokenizer(openpi):
    shutil.rmtree(openpi / "tokenizer")
    refused(openpi, "paligemma_tokenizer.model", error=MissingTokenizerError)


def test_statistics_without_quantiles(openpi):
    file = openpi / "assets" / "tiny_arm" / "norm_stats.json"
    statistics = json.loads(file.read_text())
    del statistics["norm_stats"]["state"]["q01"]
    file.write_text(json.dumps(statistics))
    refused(openpi, "norm_stats.json: norm_stats.state: q01: expected", error=ProcessingError)


def test_lerobot_statistics_without_quantiles(lerobot):
    name = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    statistics = load_file(lerobot / name)
    del statistics["observation.state.q01"]
    save_file(statistics, lerobot / name)
    refused(lerobot, name, "observation.state.q01", error=ProcessingError)


@pytest.fixture
def converted(tmp_path):
    run = recorded("openpi_pi0")
    return convert_checkpoint(run.folder, tmp_path / "converted", options=run.options)


def test_converted_from_another_version(converted):
    edit_config(converted, "flashrt.json", version=99)
    refused(converted, "flashrt.json: version: expected 1, found 99")


def test_converted_with_a_field_missing(converted):
    model = json.loads((converted / "flashrt.json").read_text())["model"]
    del model["vocab"]
    edit_config(converted, "flashrt.json", model=model)
    refused(converted, "flashrt.json: model: missing fields ['vocab']")


def test_converted_with_a_field_of_another_type(converted):
    model = json.loads((converted / "flashrt.json").read_text())["model"]
    edit_config(converted, "flashrt.json", model={**model, "heads": "8"})
    refused(converted, "flashrt.json: model: heads: expected int, found '8'")


def test_converted_sizes_cannot_be_overruled(converted):
    with pytest.raises(CheckpointError, match="horizon: asked for 5, found 10"):
        open_checkpoint(converted, horizon=5)


def test_converted_tensor_missing(converted):
    edit_tensors(converted, lambda tensors: tensors.pop("flow.state"))
    refused(converted, "model.safetensors", "expected flow.state [32, 32]")


def test_unknown_precision():
    with pytest.raises(ValueError, match="precision: expected one of"):
        load_policy(GOLDEN / "rtc", precision="float16")


def test_keys_of_every_origin_meet():
    assert canonical_keys([f"model.{Q_PROJ}"]) == {Q_PROJ: f"model.{Q_PROJ}"}
    short = f"model.{VISION}post_layernorm.bias"
    assert canonical_keys([short]) == {f"{VISION}vision_model.post_layernorm.bias": short}
    assert canonical_keys([LM_HEAD]) == {EMBEDDING: LM_HEAD}
    assert canonical_keys([LM_HEAD, EMBEDDING]) == {LM_HEAD: LM_HEAD, EMBEDDING: EMBEDDING}


def test_keys_without_vision_model_load_alike(lerobot):
    def shorten(tensors):
        for key in [key for key in tensors if ".vision_model." in key]:
            tensors[key.replace(".vision_model.", ".")] = tensors.pop(key)

    expected = named_tensors(load_weights(open_checkpoint(lerobot)))
    edit_tensors(lerobot, shorten)
    found = named_tensors(load_weights(open_checkpoint(lerobot)))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("name", ["openpi_pi05_e2e", "openpi_pi0_e2e"])
def test_precision_of_each_tensor(name):
    checkpoint = open_checkpoint(GOLDEN / name)
    tensors = named_tensors(load_weights(checkpoint, precision="bfloat16"))
    specs = tensor_specs(checkpoint.config)
    assert set(tensors) == set(specs)
    for key, tensor in tensors.items():
        assert tuple(tensor.shape) == specs[key].shape
        kept = specs[key].float32
        assert tensor.dtype == (torch.float32 if kept else torch.bfloat16)


@pytest.mark.parametrize(("family", "tensors"), [("pi05", 813), ("pi0", 778)])
def test_released_sizes_are_recognised(family, tensors, tmp_path):
    """A LeRobot file of the released size, as a header over a hole in the disk."""
    expected = ModelConfig(family=family, max_prompt_tokens=200)
    parts = [source for group in sources(expected).values() for source in group]
    parts += [*dropped_sources(expected), *output_embeddings(expected)]
    header, end = {}, 0
    for key, shape in parts:
        start, end = end, end + 2 * math.prod(shape)
        header[f"model.{key}"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    settings = {"type": family, "chunk_size": 50, "max_action_dim": 32,
                "tokenizer_max_length": 200}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == expected
    assert len(checkpoint.stored_keys) == tensors
    assert round(checkpoint.stored_parameters["bfloat16"] / 1e9, 2) in (4.03, 4.14)


def test_inspection_shows_what_a_checkpoint_is(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    text = format_table(inspect_checkpoint("lerobot_pi05_e2e"))
    assert max(len(line) for line in text.splitlines()) <= 80
    flat = re.sub(r"\s+", " ", text)
    for part in ("LeRobot", "π0.5", "278 k used", "10 actions of 32", "observation.images.wrist",
                 "7 numbers", "q01", "tokenizer.json", "4 heads"):  # fmt: skip
        assert part in flat
    assert "MISSING" not in text


def test_inspection_shows_what_is_missing(openpi):
    shutil.rmtree(openpi / "tokenizer")
    rows = {row.name: row for row in inspect_checkpoint(openpi)}
    assert rows["tokenizer"].missing
    assert "paligemma_tokenizer.model" in rows["tokenizer"].value
    shutil.rmtree(openpi / "assets")
    rows = {row.name: row for row in inspect_checkpoint(openpi)}
    assert rows["processing"].missing
    assert "norm_stats.json" in rows["processing"].value
    assert rows["family"].value == "π0.5"


def test_inspection_of_a_converted_checkpoint(converted):
    text = format_table(inspect_checkpoint(converted))
    assert "flashrt_ros, converted" in text
    assert "MISSING" not in text
