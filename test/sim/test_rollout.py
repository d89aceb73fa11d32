"""Tasks, judge, latency model and rollouts of the belt world, with the small π0.5 that comes along."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from flashrt_ros.cli import main
from flashrt_ros.control.policies import EXPERT, SMALL, PolicySettings
from flashrt_ros.models.policy import load_policy
from flashrt_ros.paths import checkpoint_path
from flashrt_ros.sim import kinematics
from flashrt_ros.sim.latency import FixedLatency, StepLatency, parse_latency
from flashrt_ros.sim.motion import TOUCH_HEIGHT_M
from flashrt_ros.sim.rollout import RolloutSettings, rollout, rollout_pool
from flashrt_ros.sim.rollout_report import summarize, table, wilson_interval
from flashrt_ros.sim.small_policy import CONFIG, initial_tensors, write_checkpoint
from flashrt_ros.sim.tasks import FLASH_S, HOLD_S, TASKS, Judge, draw_episode
from flashrt_ros.sim.world import BeltWorld

CPU = PolicySettings(checkpoint=SMALL, device="cpu", precision="float32")
SMALL_POLICY = RolloutSettings(policy=CPU)
EXPERT_POLICY = RolloutSettings(policy=PolicySettings(checkpoint=EXPERT))


@pytest.fixture(scope="module")
def pool():
    with rollout_pool(2) as workers:
        yield workers


def verdicts(results) -> Counter[str]:
    return Counter(result.verdict for result in results)


# ---------------------------------------------------------------- tasks and judge


@pytest.mark.parametrize("task", TASKS)
def test_episode_follows_from_its_seed(task):
    first, again, other = draw_episode(task, 5), draw_episode(task, 5), draw_episode(task, 6)
    assert first == again
    assert first != other
    assert first.target in first.colours


def test_tasks_say_what_happens():
    switch = draw_episode("switch", 3)
    (_, before), (when_s, after) = switch.instructions
    assert switch.target in after
    assert switch.target not in before
    assert when_s == switch.judged_from_s
    assert switch.instruction_at(when_s - 1e-3) == before
    assert switch.instruction_at(when_s) == after
    flash = draw_episode("flash", 3)
    ((begin_s, end_s),) = flash.brief
    assert end_s - begin_s == pytest.approx(FLASH_S)
    assert not any(colour in flash.instruction_at(0.0) for colour in flash.colours)
    speeds = [change.speed_m_s for _, change in draw_episode("intercept", 3).changes]
    assert len(set(speeds)) == len(speeds) > 3
    with pytest.raises(ValueError, match="expected one of reach, intercept"):
        draw_episode("juggle", 0)
    with pytest.raises(ValueError, match=r"expected 0 to 0\.1"):
        draw_episode("intercept", 0, belt_speed_m_s=2.0)


def judged(episode, colour: str | None) -> str:
    """The verdict on an arm that stays on a block from the start, or at home."""
    world = BeltWorld(0, colours=episode.colours)
    episode.lay_out(world)
    if colour is not None:
        x, y, _ = world.block_position(colour)
        world.reset(episode.seed, 0.0, episode.light, kinematics.inverse((x, y, TOUCH_HEIGHT_M)))
    judge = Judge(episode)
    time_s = 0.0
    while not judge.update(time_s, world):
        time_s += 0.01
    assert judge.verdict != "success" or time_s == pytest.approx(
        episode.judged_from_s + HOLD_S, abs=0.011
    )
    return judge.verdict


def test_judge_wants_the_finger_to_stay_on_the_named_block():
    reach = draw_episode("reach", 1)
    other = next(colour for colour in reach.colours if colour != reach.target)
    assert judged(reach, reach.target) == "success"
    assert judged(reach, other) == "wrong_block"
    assert judged(reach, None) == "time"
    # Who is on the first block when the instruction changes has done nothing wrong yet.
    switch = draw_episode("switch", 1)
    first = next(colour for colour in switch.colours if colour in switch.instruction_at(0.0))
    assert judged(switch, first) == "time"
    assert judged(switch, switch.target) == "success"


# ---------------------------------------------------------------- latency and figures


def test_latency_model():
    random = np.random.default_rng(0)
    assert parse_latency("40ms") == FixedLatency(40_000_000)
    assert parse_latency("0.1s").draw_ns(random, 5, 10) == 100_000_000
    assert parse_latency("real").draw_ns(random, 5, 10) == 5
    assert StepLatency(1_000, 10).draw_ns(random, 5, 4) == 1_040
    for wrong in ("40", "-1ms", "soon"):
        with pytest.raises(ValueError, match="expected a duration"):
            parse_latency(wrong)


def test_latency_from_measured_samples(tmp_path):
    file = tmp_path / "samples.json"
    file.write_text("[10, 20.5]")
    random = np.random.default_rng(0)
    drawn = {parse_latency(str(file)).draw_ns(random, 5, 10) for _ in range(50)}
    assert drawn == {10_000_000, 20_500_000}
    for wrong in ("[]", "[-1]", '{"p50": 3}'):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="list of milliseconds"):
            parse_latency(str(file))


def test_ages_are_the_latency_and_the_wait_for_the_next_chunk(pool):
    period_ns = 1e9 / 30
    for latency_ms, youngest, oldest in ((0, 0, 3), (90, 3, 6)):
        settings = replace(EXPERT_POLICY, latency=FixedLatency(latency_ms * 1_000_000))
        (result,) = rollout("reach", [1], settings, pool=pool)
        periods = result.ages_ns / period_ns
        assert periods.min() == pytest.approx(youngest, abs=0.01)
        assert periods.max() == pytest.approx(oldest, abs=0.01)


def test_wilson_interval():
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for successes, trials, low, high in (
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):  # fmt: skip
        assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)


# ---------------------------------------------------------------- the small policy


def test_checkpoint_that_comes_along():
    folder = checkpoint_path(SMALL)
    policy = load_policy(folder)
    assert policy.config == CONFIG
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000


def test_small_policy_reaches(pool):
    results = list(rollout("reach", range(1000, 1020), SMALL_POLICY, pool=pool))
    summary = summarize("reach", results, SMALL_POLICY)
    assert summary["success"] >= 0.9, verdicts(results)
    assert not summary["refused"]
    assert all(len(line) <= 80 for line in table(summary).splitlines())


def test_same_episode_twice_is_identical_to_the_bit(pool):
    settings = replace(SMALL_POLICY, latency=FixedLatency(50_000_000))
    first, again, other = rollout("intercept", [7, 7, 8], settings, pool=pool)
    assert first.joint_positions.tobytes() == again.joint_positions.tobytes()
    assert first.commands.tobytes() == again.commands.tobytes()
    assert first.commands.tobytes() != other.commands.tobytes()


def test_small_policy_needs_its_eyes_and_the_instruction(pool):
    blind = list(rollout("reach", range(4), replace(SMALL_POLICY, blind=True), pool=pool))
    assert verdicts(blind)["success"] == 0
    misled = replace(SMALL_POLICY, wrong_instruction=True)
    assert verdicts(rollout("reach", range(4), misled, pool=pool)) == {"wrong_block": 4}


def test_untrained_weights_fail(pool, tmp_path):
    processor = load_policy(checkpoint_path(SMALL)).processor
    tensors = initial_tensors(CONFIG, 0)
    random = torch.Generator().manual_seed(1)
    tensors["flow.action_out"] = 0.3 * torch.randn(
        tensors["flow.action_out"].shape, generator=random
    )
    write_checkpoint(tmp_path, tensors, CONFIG, processor, {})
    settings = replace(SMALL_POLICY, policy=replace(CPU, checkpoint=str(tmp_path)))
    assert verdicts(rollout("reach", range(4), settings, pool=pool))["success"] == 0


def test_command_writes_figures_and_pictures(tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "png", "gif")}
    code = main(
        ["rollout", "--task", "nudge", "--episodes", "3", "--checkpoint", EXPERT, "--latency",
         "40ms", "--json", str(files["json"]), "--sheet", str(files["png"]), "--video",
         str(files["gif"]), "--seam", "blend", "--workers", "2"]
    )  # fmt: skip
    assert code == 0
    assert "nudge: " in capsys.readouterr().out
    summary = json.loads(files["json"].read_text())
    assert summary["settings"]["latency"] == "40ms"
    assert [episode["seed"] for episode in summary["results"]] == [0, 1, 2]
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert files["gif"].read_bytes().startswith(b"GIF8")
    for wrong, message in (
        (["--episodes", "0"], "at least 1"),
        (["--video", "out.avi"], "ends in .gif or .mp4"),
    ):
        assert main(["rollout", "--workers", "1", *wrong]) == 1
        assert message in capsys.readouterr().err
