"""Processing beyond the golden chains: reuse, missing cameras, options, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from flashrt_ros.control.robot import RobotError, load_robot
from flashrt_ros.models.processing import (
    MissingTokenizerError,
    ProcessingError,
    ProcessingOptions,
    load_processor,
)
from flashrt_ros.models.transforms import (
    AddState,
    IntegrateVelocity,
    mask_from_runs,
    mean_std_lerobot,
    range_lerobot,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
OPENPI, PI0, LEROBOT = (GOLDEN / f"{n}_e2e" for n in ("openpi_pi05", "openpi_pi0", "lerobot_pi05"))
STATE = np.linspace(-0.5, 0.5, 7)
IMAGE = np.full((48, 64, 3), 90, np.uint8)


@pytest.fixture
def copy(tmp_path) -> Callable[[Path], Path]:
    """Copy a golden checkpoint; its golden tensors and pictures stay behind."""

    def make(source: Path) -> Path:
        ignored = shutil.ignore_patterns("golden*", "*.png", "tokenize_cases.json")
        return shutil.copytree(source, tmp_path / source.name, ignore=ignored)

    return make


def edit(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def step(values: dict, name: str) -> dict:
    return next(step for step in values["steps"] if step["registry_name"] == name)


# Reuse


@pytest.mark.parametrize("folder", [OPENPI, PI0, LEROBOT], ids=lambda path: path.name)
def test_an_unchanged_prompt_is_the_same_object(folder):
    processor = load_processor(folder)
    camera = processor.cameras[0]
    first = processor.prepare({camera: IMAGE}, STATE, "pick up the cube")
    again = processor.prepare({camera: IMAGE}, STATE, "pick up the cube")
    assert again.tokens is first.tokens
    assert again.token_mask is first.token_mask
    other = processor.prepare({camera: IMAGE}, STATE, "open the door")
    assert not torch.equal(other.tokens, first.tokens)
    moved = processor.prepare({camera: IMAGE}, STATE + 0.3, "pick up the cube")
    state_in_prompt = processor.family == "pi05"
    assert torch.equal(moved.tokens, first.tokens) != state_in_prompt
    tokens, mask = processor.prompt("pick up the cube", STATE)
    assert tokens is first.tokens
    assert mask is first.token_mask


def test_views_are_made_one_by_one():
    processor = load_processor(PI0)
    images = {camera: np.full_like(IMAGE, i * 50) for i, camera in enumerate(processor.cameras)}
    whole = processor.prepare(images, STATE, "go")
    views = {camera: processor.view(camera, image) for camera, image in images.items()}
    parts = processor.assemble(views, STATE, "go")
    assert torch.equal(parts.images, whole.images)
    assert parts.view_mask.all()


# Cameras


def test_a_missing_camera_is_black_and_masked_in_its_place():
    processor = load_processor(LEROBOT)
    inputs = processor.prepare({"observation.images.wrist": IMAGE}, STATE, "go")
    assert inputs.view_mask.tolist() == [False, True, False]
    assert (inputs.images[[0, 2]] == -1).all()
    assert (inputs.images[1] > -1).any()


def test_cameras_that_do_not_fit():
    processor = load_processor(OPENPI)
    with pytest.raises(ProcessingError, match=r"camera 'top': expected one of .*base_0_rgb"):
        processor.prepare({"top": IMAGE}, STATE, "go")
    with pytest.raises(ProcessingError, match="no camera image: expected one of"):
        processor.prepare({}, STATE, "go")
    with pytest.raises(ProcessingError, match="camera 'base_0_rgb': expected uint8 RGB"):
        processor.prepare({"base_0_rgb": IMAGE / 255}, STATE, "go")


def test_lerobots_rename_map(copy):
    folder = copy(LEROBOT)
    names = {"observation.images.top": "observation.images.base"}
    edit(
        folder / "policy_preprocessor.json",
        lambda v: step(v, "rename_observations_processor")["config"].update(rename_map=names),
    )
    processor = load_processor(folder)
    renamed = processor.prepare({"observation.images.top": IMAGE}, STATE, "go")
    plain = processor.prepare({"observation.images.base": IMAGE}, STATE, "go")
    assert torch.equal(renamed.images, plain.images)
    assert renamed.view_mask.tolist() == [True, False, False]
    assert "observation.images.top → observation.images.base" in str(processor)


# State and actions


@pytest.mark.parametrize("state", [np.zeros(6), np.zeros((1, 7)), np.full(7, np.nan)])
def test_states_that_do_not_fit(state):
    with pytest.raises(ProcessingError, match="state: expected 7 finite numbers"):
        load_processor(OPENPI).prepare({"base_0_rgb": IMAGE}, state, "go")


def test_a_state_longer_than_the_networks(copy):
    folder = copy(PI0)
    edit(folder / "config.json", lambda v: v.update(action_dim=6))
    with pytest.raises(ProcessingError, match="at most the network's 6 numbers, found 7"):
        load_processor(folder)


def test_actions_that_do_not_fit():
    with pytest.raises(ProcessingError, match=r"numbers \[H, 7 or more\], found float32 \[10, 6\]"):
        load_processor(OPENPI).finish(np.zeros((10, 6), np.float32), STATE)


def test_finish_takes_a_bfloat16_tensor():
    processor = load_processor(OPENPI)
    actions = torch.linspace(-1, 1, 320).reshape(10, 32).bfloat16()
    expected = processor.finish(actions.float().numpy(), STATE)
    assert (processor.finish(actions, STATE) == expected).all()


def test_delta_actions_only_need_the_state_where_the_mask_is_true():
    """LIBERO has eight numbers of state and seven of action."""
    processor = load_processor(OPENPI, options=ProcessingOptions(action_dim=5, delta_mask=(3,)))
    relative = processor.finish(np.zeros((2, 32)), STATE)
    absolute = replace(processor, absolute=None).finish(np.zeros((2, 32)), STATE)
    np.testing.assert_allclose(relative[:, :3], absolute[:, :3] + STATE[:3], atol=1e-6)
    assert (relative[:, 3:] == absolute[:, 3:]).all()


def test_a_mask_beyond_the_state_is_refused():
    options = ProcessingOptions(state_dim=3, delta_mask=(6, -1))
    with pytest.raises(ProcessingError, match="within the 3 numbers of the state"):
        load_processor(OPENPI, options=options)
    with pytest.raises(ProcessingError, match=r"delta_mask \(8,\): expected at most 7"):
        load_processor(OPENPI, options=ProcessingOptions(delta_mask=(8,)))


def test_droid_velocities_add_up_from_the_state():
    mask = mask_from_runs((2, -1), 3)
    velocities = np.array([[0.5, 2.0, 0.3], [0.5, -1.0, 0.7]])
    base = np.array([1.0, 2.0, 9.0])
    positions = IntegrateVelocity(mask, 0.2)(velocities, base)
    np.testing.assert_allclose(positions, [[1.1, 2.2, 0.3], [1.2, 2.0, 0.7]])
    options = ProcessingOptions(delta_mask=(6, -1), joint_velocity_step_rad=0.2)
    assert "state + Σ v·0.2 (all but 6)" in str(load_processor(OPENPI, options=options))
    with pytest.raises(ProcessingError, match="joint_velocity_step_rad: expected delta_mask"):
        load_processor(OPENPI, options=ProcessingOptions(joint_velocity_step_rad=0.2))


@pytest.mark.parametrize(
    ("mode", "names"),
    [("MIN_MAX", ("min", "max")), ("QUANTILES", ("q01", "q99")), ("QUANTILE10", ("q10", "q90"))],
)
def test_lerobots_ranges(copy, mode, names):
    folder = copy(GOLDEN / "rtc")
    for kind in ("preprocessor_step_3_normalizer", "postprocessor_step_0_unnormalizer"):
        statistics = load_file(folder / f"policy_{kind}_processor.safetensors")
        # The first joint never moved: LeRobot then divides by eps.
        for key in ("action", "observation.state"):
            statistics[f"{key}.{names[1]}"][0] = statistics[f"{key}.{names[0]}"][0]
        save_file(statistics, folder / f"policy_{kind}_processor.safetensors")
    for name, stage in (("pre", "normalizer_processor"), ("post", "unnormalizer_processor")):
        edit(
            folder / f"policy_{name}processor.json",
            lambda v, stage=stage: step(v, stage)["config"]["norm_map"].update(
                STATE=mode, ACTION=mode
            ),
        )
    low, high = (statistics[f"observation.state.{name}"] for name in names)
    processor = load_processor(folder)
    np.testing.assert_array_equal(processor.normalize_state(low), [-1.0] * 7)
    np.testing.assert_allclose(processor.normalize_state(high)[1:], [1.0] * 6, atol=1e-6)
    ends = processor.finish(np.array([[-1.0] * 32, [1.0] * 32]), STATE)
    expected = [statistics[f"action.{name}"] for name in names]
    np.testing.assert_allclose(ends, expected, rtol=1e-6, atol=1e-7)


def test_lerobots_mean_and_standard_deviation_has_eps_on_the_way_in_only():
    scale = mean_std_lerobot([1.0], [0.0], 0.5)
    assert scale.normalize([2.0]).tolist() == [2.0]
    assert scale.unnormalize([2.0]).tolist() == [1.0]
    assert range_lerobot([1.0], [1.0], 0.5, "min..max").normalize([2.0]).tolist() == [3.0]


def test_identity_passes_numbers_on(copy):
    folder = copy(LEROBOT)
    for name, stage in (("pre", "normalizer_processor"), ("post", "unnormalizer_processor")):
        edit(
            folder / f"policy_{name}processor.json",
            lambda v, stage=stage: step(v, stage)["config"].update(norm_map={}),
        )
    processor = load_processor(folder)
    assert processor.normalize_state(STATE).tolist() == STATE.astype(np.float32).tolist()
    assert (processor.finish(np.ones((1, 32)), STATE) == 1.0).all()


# Prompts


def test_state_padded_in_the_prompt_as_lerobot_did(copy):
    processor = load_processor(copy(LEROBOT), options=ProcessingOptions(pad_state_to=32))
    (text,) = processor.prompt_format.pieces("go", processor.normalize_state(STATE))
    bins = text.removeprefix("Task: go, State: ").removesuffix(";\nAction: ").split()
    assert len(bins) == 32
    assert bins[7:] == ["128"] * 25


def test_lerobots_pi0_prompt_is_left_as_given(copy):
    folder = copy(LEROBOT)
    edit(folder / "config.json", lambda v: v.update(type="pi0"))
    edit(
        folder / "policy_preprocessor.json",
        lambda v: step(v, "pi05_prepare_state_tokenizer_processor_step").update(
            registry_name="pi0_new_line_processor"
        ),
    )
    processor = load_processor(folder)
    state = processor.normalize_state(STATE)
    assert processor.prompt_format.pieces(" pick_up\nit ", state) == (" pick_up\nit \n",)
    assert processor.prompt_format.pieces("go\n", state) == ("go\n",)
    inputs = processor.prepare({"observation.images.base": IMAGE}, STATE, "go")
    assert inputs.state is not None
    assert inputs.state.shape == (32,)
    assert inputs.state[:7].tolist() == state.tolist()
    assert (inputs.state[7:] == 0).all()


# Files


@pytest.mark.parametrize("folder", [OPENPI, PI0, LEROBOT], ids=lambda path: path.name)
def test_saved_processing_is_self_contained_and_the_same(folder, tmp_path):
    options = None if folder is LEROBOT else ProcessingOptions(delta_mask=(6, -1))
    processor = load_processor(folder, options=options)
    processor.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["processing.json", "tokenizer.json"]
    loaded = load_processor(tmp_path)
    assert str(loaded) == str(processor)
    assert loaded.to_json() == processor.to_json()
    images = {processor.cameras[0]: IMAGE}
    for name in ("images", "view_mask", "tokens", "token_mask", "state"):
        before = getattr(processor.prepare(images, STATE, "go on"), name)
        after = getattr(loaded.prepare(images, STATE, "go on"), name)
        assert (before is None and after is None) or torch.equal(before, after)
    actions = np.linspace(-1, 1, 320, dtype=np.float32).reshape(10, 32)
    assert (loaded.finish(actions, STATE) == processor.finish(actions, STATE)).all()
    with pytest.raises(ProcessingError, match=r"options \['asset_id'\]: .*records these itself"):
        load_processor(tmp_path, options=ProcessingOptions(asset_id="x"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v: v.pop("max_tokens"), "expected the key 'max_tokens', found none"),
        (lambda v: v.update(format=2), "format: expected 1, found 2"),
        (lambda v: v["state"].update(kind="log"), "normalisation: unknown kind 'log'"),
        (lambda v: v["image"].update(filter="area"), "image filter: expected openpi or lerobot"),
        (lambda v: v.update(state_dim=8), "state: expected statistics for 8 numbers, found 7"),
    ],
)
def test_saved_processing_that_is_broken(tmp_path, change, expected):
    load_processor(OPENPI).save(tmp_path)
    edit(tmp_path / "processing.json", change)
    with pytest.raises(ProcessingError, match=f"processing.json: {expected}"):
        load_processor(tmp_path)


def test_chain_is_printed_in_the_order_in_which_it_runs():
    text = str(load_processor(PI0, options=ProcessingOptions(delta_mask=(6, -1))))
    words = ["resize to 56×56", "normalise state", "prompt", "tokenise", "pad state to 32",
             "network: pi0", "take the first 7", "unnormalise actions", "(all but 6)"]  # fmt: skip
    positions = [text.index(word) for word in words]
    assert positions == sorted(positions)


def test_options_beside_the_checkpoint_and_over_it(copy):
    folder = copy(OPENPI)
    file = folder / "processing_options.json"
    file.write_text(json.dumps({"delta_mask": [6, -1], "max_tokens": 64}))
    processor = load_processor(folder)
    assert processor.absolute == AddState((True,) * 6 + (False,))
    assert processor.max_tokens == 64
    over = load_processor(folder, options=ProcessingOptions(max_tokens=32))
    assert over.max_tokens == 32
    assert over.absolute == processor.absolute
    for text, expected in (
        ('{"delta": 1}', "delta: expected one of asset_id"),
        ('{"max_tokens": true}', "max_tokens: expected a whole number above 0, found True"),
        ("[", "expected JSON"),
    ):
        file.write_text(text)
        with pytest.raises(ProcessingError, match=rf"processing_options.json: {expected}"):
            load_processor(folder)


def test_statistics_of_several_robots_are_chosen_by_name(copy):
    folder = copy(OPENPI)
    shutil.copytree(folder / "assets" / "tiny_arm", folder / "assets" / "lab" / "other")
    with pytest.raises(ProcessingError, match=r"found \['lab/other', 'tiny_arm'\]: .*asset_id"):
        load_processor(folder)
    assert load_processor(folder, options=ProcessingOptions(asset_id="lab/other")).state_dim == 7
    with pytest.raises(ProcessingError, match=r"asset_id 'no': .*found \['lab/other', 'tiny_arm'"):
        load_processor(folder, options=ProcessingOptions(asset_id="no"))


def test_statistics_may_lie_elsewhere(copy):
    folder = copy(OPENPI)
    shutil.move(folder / "assets", folder / "elsewhere")
    with pytest.raises(ProcessingError, match=r"assets: expected <asset_id>/norm_stats.json"):
        load_processor(folder)
    options = ProcessingOptions(norm_stats="elsewhere/tiny_arm")
    assert load_processor(folder, options=options).action_dim == 7


NORM_STATS = "assets/tiny_arm/norm_stats.json"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["state"].pop("q01"), "norm_stats.state: q01: .*quantile.*found nothing"),
        (lambda s: s["actions"].update(q99=None), "norm_stats.actions: q99: .*found nothing"),
        (lambda s: s["actions"].update(q99=[1.0]), "norm_stats.actions: .*found 7 and 1"),
        (lambda s: s["state"].update(q01="x"), "norm_stats.state: q01: .*found 'x'"),
        (
            lambda s: s["state"]["q01"].__setitem__(0, float("nan")),
            "norm_stats.state: q01: .*finite.*nan",
        ),
        (lambda s: s.pop("actions"), "norm_stats: actions: expected dict, found nothing"),
    ],
)
def test_openpi_statistics_that_are_broken(copy, change, expected):
    folder = copy(OPENPI)
    edit(folder / NORM_STATS, lambda values: change(values["norm_stats"]))
    with pytest.raises(ProcessingError, match=f"{NORM_STATS}: {expected}"):
        load_processor(folder)


def test_lerobot_statistics_without_q01(copy):
    folder = copy(LEROBOT)
    name = "policy_preprocessor_step_3_normalizer_processor.safetensors"
    statistics = load_file(folder / name)
    del statistics["observation.state.q01"]
    save_file(statistics, folder / name)
    with pytest.raises(
        ProcessingError,
        match=rf"{name}: observation.state.q01: expected finite numbers for QUANTILES, found noth",
    ):
        load_processor(folder)
    (folder / name).write_bytes(b"short")
    with pytest.raises(ProcessingError, match=f"{name}: expected the statistics of normalizer_"):
        load_processor(folder)
    (folder / name).unlink()
    with pytest.raises(ProcessingError, match=f"{name}: expected the statistics of normalizer_"):
        load_processor(folder)


PRE, POST, CONFIG = "policy_preprocessor.json", "policy_postprocessor.json", "config.json"


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        (PRE, lambda v: step(v, "normalizer_processor").pop("state_file"), "state_file: expected"),
        (PRE, lambda v: v["steps"].append({"registry_name": "blur"}), "found 'blur'"),
        (PRE, lambda v: v["steps"].reverse(), "expected relative_actions_processor before normal"),
        (PRE, lambda v: v["steps"].append(v["steps"].pop(3)), "normalizer_processor before pi05_"),
        (POST, lambda v: v["steps"].reverse(), "unnormalizer_processor before absolute_actions_"),
        (PRE, lambda v: v["steps"].append(v["steps"][3]), "expected normalizer_processor once"),
        (PRE, lambda v: v.pop("steps"), "steps: expected list, found nothing"),
        (
            PRE,
            lambda v: v["steps"].remove(step(v, "pi05_prepare_state_tokenizer_processor_step")),
            "expected the step pi05_prepare_state",
        ),
        (
            PRE,
            lambda v: step(v, "normalizer_processor")["config"]["norm_map"].update(STATE="LOG"),
            "norm_map.STATE: expected one of IDENTITY, MEAN_STD.*found LOG",
        ),
        (
            PRE,
            lambda v: step(v, "normalizer_processor")["config"]["norm_map"].update(
                VISUAL="MEAN_STD"
            ),
            "norm_map.VISUAL: expected IDENTITY, found MEAN_STD",
        ),
        (
            POST,
            lambda v: step(v, "absolute_actions_processor")["config"].update(enabled=True),
            "absolute_actions_processor.enabled: expected False",
        ),
        (CONFIG, lambda v: v.update(type="act"), "type: expected pi0 or pi05, found 'act'"),
        (CONFIG, lambda v: v.update(use_visual_memory=True), "use_visual_memory: expected false"),
        (CONFIG, lambda v: v.update(image_resolution=[56, 64]), "image_resolution: expected a sq"),
        (
            CONFIG,
            lambda v: v["output_features"]["action"].update(shape=[8]),
            "action.shape: 8, .*policy_postprocessor.json has statistics for 7",
        ),
    ],
)
def test_lerobot_files_that_are_broken(copy, file, change, expected):
    folder = copy(LEROBOT)
    edit(folder / file, change)
    with pytest.raises(ProcessingError, match=rf"{file}: .*{expected}"):
        load_processor(folder)


def test_an_old_lerobot_checkpoint_says_how_to_migrate(copy):
    folder = copy(LEROBOT)
    (folder / PRE).unlink()
    with pytest.raises(ProcessingError, match="migrate_policy_normalization"):
        load_processor(folder)


def test_lerobot_takes_no_openpi_options():
    with pytest.raises(ProcessingError, match=r"options \['delta_mask'\]: a LeRobot checkpoint"):
        load_processor(LEROBOT, options=ProcessingOptions(delta_mask=(6, -1)))


def test_no_tokenizer_is_an_error_unless_waived(copy):
    folder = copy(OPENPI)
    tokenizer = shutil.move(folder / "tokenizer", folder.parent / "tokenizer")
    with pytest.raises(MissingTokenizerError, match=r"paligemma_tokenizer\.model"):
        load_processor(folder)
    processor = load_processor(folder, require_tokenizer=False)
    assert "no tokenizer" in str(processor)
    with pytest.raises(MissingTokenizerError, match=r"paligemma_tokenizer\.model"):
        processor.prepare({"base_0_rgb": IMAGE}, STATE, "go")
    assert load_processor(folder, tokenizer=tokenizer).tokenizer is not None


def test_a_folder_that_is_none_and_weights_that_are_not_there(copy):
    with pytest.raises(ProcessingError, match="expected a checkpoint folder, found none"):
        load_processor(GOLDEN / "nothing")
    folder = copy(OPENPI)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ProcessingError, match=r"model\.safetensors: expected openpi's weights"):
        load_processor(folder)


# Robots


def test_a_robot_is_checked_against_the_checkpoint():
    robots = Path(__file__).parents[2] / "config" / "robots"
    policy = load_processor(OPENPI)
    with pytest.raises(RobotError, match="action has 7 numbers, the robot 14 joints"):
        load_robot(robots / "aloha.yaml").check_policy(
            policy.cameras, policy.state_dim, policy.action_dim
        )
    droid = load_robot(robots / "franka_droid.yaml")
    arm = replace(droid, joints=droid.joints[:7])
    arm.check_policy(policy.cameras[:2], policy.state_dim, policy.action_dim)
    with pytest.raises(RobotError, match="right_wrist_0_rgb"):
        arm.check_policy(policy.cameras, policy.state_dim, policy.action_dim)
