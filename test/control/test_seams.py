"""Seams, alignment and skipping: what the robot is commanded across the joins."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.control.chunk import Start
from flashrt_ros.control.delay import DelayModel, DelaySettings, Estimate
from flashrt_ros.control.plan import Plan
from flashrt_ros.control.replanning import Replan, Replanning
from flashrt_ros.control.rtc import Rtc, Schedule, Strength, prefix_weights
from flashrt_ros.control.safety import Limits
from flashrt_ros.control.seams import SeamKind, Seams, blend, ensemble
from flashrt_ros.control.warm_start import WarmStart

from .smooth import HORIZON, MS, PERIOD_NS, ROBOT, T0, Loop, SmoothPolicy, motion, observation

NO_EASE = Limits(ease_in_ns=0)
OFFSET = 0.12  # rad, how much the policy changes its mind; below the step limit of 0.2


def plan(actions, start_ns=T0, end_index=HORIZON):
    actions = np.asarray(actions, np.float32)
    return Plan(1, start_ns, PERIOD_NS, actions, end_index, None, np.zeros(6))


def smooth_plan(start_ns, offset=0.0):
    times_ns = start_ns + PERIOD_NS * np.arange(HORIZON, dtype=np.int64)
    return plan(motion(times_ns) + offset, start_ns)


def commands(loop, chunks_at, delay_periods):
    """What a player applies, period by period, [n, joints], and the rows at which a chunk took over."""
    applied, joins, before = [], [], None
    for at in chunks_at:
        chunk = loop.chunk(at, delay_periods=delay_periods)
        first = at + chunk.first_valid_index
        if before is not None:
            took_over = first - before[1]
            applied += list(before[0].actions[before[0].first_valid_index :][:took_over])
            joins.append(len(applied))
        before = (chunk, first)
    applied += list(before[0].actions[before[0].first_valid_index :])
    return np.array(applied, np.float64), joins


@pytest.mark.parametrize("kind", SeamKind)
@pytest.mark.parametrize("delay_periods", [0, 3])
def test_seam_is_continuous_for_a_smooth_policy(kind, delay_periods):
    loop = Loop(seams=Seams(kind), limits=NO_EASE)
    applied, joins = commands(loop, range(0, 40, 5), delay_periods)
    steps = np.abs(np.diff(applied, axis=0)).max(axis=1)
    assert len(joins) == 7
    fastest = 0.4 * 2 * np.pi / 2.0 * PERIOD_NS / 1e9
    assert steps.max() < 1.01 * fastest, "no step is larger than the motion's own"
    assert not loop.session.clipped


@pytest.mark.parametrize("kind", [SeamKind.BLEND, SeamKind.ENSEMBLE, SeamKind.RTC])
@pytest.mark.parametrize("relative", [False, True])
def test_seam_smooths_a_policy_that_changes_its_mind(kind, relative):
    policy = SmoothPolicy(offsets=[0.0, 0.0, 0.0, 0.0, OFFSET], relative=relative)
    loop = Loop(policy, seams=Seams(kind), limits=NO_EASE)
    applied, joins = commands(loop, range(0, 25, 5), 3)
    jumps = np.abs(np.diff(applied, axis=0) - np.diff(motion_like(applied), axis=0)).max(axis=1)
    assert jumps[joins[-1] - 1] < 0.4 * OFFSET
    raw = Loop(SmoothPolicy(offsets=[0.0] * 4 + [OFFSET]), limits=NO_EASE)
    abrupt, joins = commands(raw, range(0, 25, 5), 3)
    jumps = np.abs(np.diff(abrupt, axis=0) - np.diff(motion_like(abrupt), axis=0)).max(axis=1)
    assert jumps[joins[-1] - 1] == pytest.approx(OFFSET, abs=1e-5), "replace: the whole of it"


def motion_like(applied):
    """The motion without any change of mind, from the time of the first applied action on."""
    return motion(T0 + 3 * PERIOD_NS + PERIOD_NS * np.arange(len(applied)))


@given(st.integers(0, HORIZON), st.integers(1, 20), st.integers(-PERIOD_NS, 2 * PERIOD_NS))
@settings(max_examples=50, deadline=None)
def test_blend_is_linear_from_the_old_chunk_to_the_new(first, actions, late_ns):
    old, new = smooth_plan(T0), smooth_plan(T0 + late_ns, offset=OFFSET)
    joined = blend(new, old, first, actions)
    times_ns = new.planned_start_ns + PERIOD_NS * np.arange(HORIZON, dtype=np.int64)
    was = old.positions_at(times_ns)
    assert np.allclose(joined[:first], was[:first], atol=1e-6)
    assert np.allclose(joined[first + actions :], new.actions[first + actions :], atol=1e-6)
    share = (joined - was)[first : first + actions, 0] / (new.actions - was)[
        first : first + actions, 0
    ]
    expected = np.arange(1, len(share) + 1) / (actions + 1)
    assert np.allclose(share, expected, atol=1e-3)


def test_ensemble_weighs_the_oldest_most():
    offsets = [0.0, 1.0, 2.0]
    made = [plan(np.full((HORIZON, 6), o), T0 + i * PERIOD_NS) for i, o in enumerate(offsets)]
    joined = ensemble(made, 0.5)
    weights = np.exp(-0.5 * np.arange(3))
    assert joined[0] == pytest.approx((weights * offsets).sum() / weights.sum())
    # The oldest ends at action 13 of the newest, the second at action 14.
    two = np.exp(-0.5 * np.arange(2))
    assert joined[14] == pytest.approx((two * offsets[1:]).sum() / two.sum())
    assert joined[15] == pytest.approx(2.0)


def test_ensemble_forgets_at_a_reset_and_still_joins_smoothly():
    policy = SmoothPolicy(offsets=[0.0, 0.0, OFFSET, OFFSET])
    loop = Loop(policy, seams=Seams(SeamKind.ENSEMBLE, blend_actions=4), limits=NO_EASE)
    loop.chunk(0)
    loop.chunk(1)
    changed = loop.chunk(2, instruction="stop")
    wanted = motion(T0 + PERIOD_NS * np.arange(2, 2 + HORIZON))
    share = (changed.actions - wanted)[:6, 0] / OFFSET
    assert np.allclose(share, [0.2, 0.4, 0.6, 0.8, 1.0, 1.0], atol=1e-3)
    after = loop.chunk(3, instruction="stop").actions
    assert np.allclose(
        after, motion(T0 + PERIOD_NS * np.arange(3, 3 + HORIZON)) + OFFSET, atol=1e-3
    )


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("strength", Strength)
def test_rtc_keeps_frozen_actions(warm, steps, strength):
    policy = SmoothPolicy(offsets=[0.0] + [OFFSET] * 9, steps=steps)
    loop = Loop(
        policy,
        seams=Seams(SeamKind.RTC),
        rtc=Rtc(strength=strength),
        warm_start=WarmStart(enabled=warm, max_divergence=10.0),
        limits=Limits(tolerance=100.0, ease_in_ns=0),
    )
    before = loop.chunk(0, delay_periods=3)
    assert before.inference.frozen == 0, "nothing to go on from"
    now = loop.chunk(5, delay_periods=3)
    assert now.inference.warm_start == warm
    assert now.inference.frozen == 3
    assert now.first_valid_index == 3
    assert np.abs(now.actions[:3] - before.actions[5:8]).max() <= 1e-6
    assert now.seam == "rtc"
    # In the normalised chunk too, which the next one goes on from.
    frozen = [chunk.inference.normalized for chunk in (now, before)]
    assert np.array_equal(frozen[0][:3], frozen[1][5:8])


def test_rtc_freezes_where_the_arm_is_between_two_actions():
    loop = Loop(SmoothPolicy(offsets=[0.0, OFFSET]), seams=Seams(SeamKind.RTC), limits=NO_EASE)
    before = loop.chunk(0, delay_periods=3)
    now = loop.chunk(5.25, delay_periods=3)
    there = 0.75 * before.actions[5:8] + 0.25 * before.actions[6:9]
    assert np.abs(now.actions[:3] - there).max() <= 1e-6


def test_rtc_freezes_by_the_foreseen_delay_and_no_more_than_the_plan_has():
    loop = Loop(seams=Seams(SeamKind.RTC), delay=DelaySettings(Estimate.LAST), limits=NO_EASE)
    loop.chunk(0, delay_periods=2.5)
    assert loop.chunk(4, delay_periods=1).inference.frozen == 3
    assert loop.chunk(8, delay_periods=6).inference.frozen == 1
    chunk = loop.chunk(8 + HORIZON - 2, delay_periods=1)
    assert chunk.inference.frozen == 2, "two were left"


def test_rtc_after_a_new_instruction_guides_nothing_but_what_is_executed_meanwhile():
    loop = Loop(seams=Seams(SeamKind.RTC), limits=NO_EASE)
    loop.chunk(0, delay_periods=3)
    loop.chunk(5, delay_periods=3, instruction="stop")
    weights = loop.policy.requests[-1].guidance.weights
    assert np.array_equal(weights, [1.0] * 3 + [0.0] * (HORIZON - 3))
    loop.session.reset("hold")
    held = loop.chunk(10, delay_periods=3, instruction="stop")
    assert loop.policy.requests[-1].guidance is None
    assert (held.seam, held.inference.frozen) == ("", 0)


@given(st.integers(1, 60), st.integers(0, 80), st.integers(0, 80), st.sampled_from(list(Schedule)))
def test_weights_decay_from_1_to_0(length, frozen, horizon, schedule):
    weights = prefix_weights(length, frozen, horizon, schedule)
    assert weights.shape == (length,)
    assert np.all(np.diff(weights) <= 0)
    horizon = min(horizon, length)
    assert np.all(weights[: min(frozen, horizon)] == 1.0)
    assert np.all(weights[horizon:] == 0.0)
    if schedule is not Schedule.ZEROS:
        assert np.all(weights[:horizon] > 0.0)


# ------------------------------------------------------------ alignment and skipping


@given(st.integers(0, 20 * PERIOD_NS))
@settings(max_examples=200, deadline=None)
def test_aligned_actions_are_skipped_to_the_nanosecond(delay_ns):
    loop = Loop(limits=NO_EASE)
    seen = observation(T0)
    loop.clock.now_ns = T0
    inference = loop.session.step(seen, "go")
    loop.clock.now_ns = T0 + delay_ns
    chunk = loop.session.publish(seen, inference)
    if delay_ns > (HORIZON - 1) * PERIOD_NS:
        assert chunk is None
        assert loop.session.refused == {"all_past": 1}
        return
    first = chunk.first_valid_index
    assert T0 + first * PERIOD_NS >= T0 + delay_ns, "not past"
    assert first == 0 or T0 + (first - 1) * PERIOD_NS < T0 + delay_ns, "and the one before is"
    assert chunk.planned_start_ns == T0
    assert loop.session.skipped_actions == first


@given(st.integers(0, 20 * PERIOD_NS))
@settings(max_examples=50, deadline=None)
def test_start_now_skips_nothing(delay_ns):
    loop = Loop(start=Start.NOW, limits=NO_EASE)
    seen = observation(T0)
    loop.clock.now_ns = T0
    inference = loop.session.step(seen, "go")
    loop.clock.now_ns = T0 + delay_ns
    chunk = loop.session.publish(seen, inference)
    assert (chunk.first_valid_index, chunk.planned_start_ns) == (0, T0 + delay_ns)


@pytest.mark.parametrize("start", Start)
def test_stale_tail_is_cut_to_the_nanosecond(start):
    for max_age_ns in (0, 1, PERIOD_NS - 1, PERIOD_NS, 5 * PERIOD_NS + 7, 100 * PERIOD_NS):
        loop = Loop(start=start, max_action_age_ns=max_age_ns, limits=NO_EASE)
        chunk = loop.chunk(0, delay_periods=2 if start is Start.NOW else 0)
        dues = [
            (2 if start is Start.NOW else 0) * PERIOD_NS + k * PERIOD_NS for k in range(HORIZON)
        ]
        fresh = sum(due <= max_age_ns for due in dues)
        if fresh == 0:
            assert chunk is None
            assert loop.session.refused == {"all_past": 1}
        else:
            assert chunk.end_index == fresh


def test_a_cut_plan_is_held_where_it_ends():
    cut = plan(np.arange(HORIZON * 6).reshape(HORIZON, 6), end_index=4)
    times_ns = T0 + PERIOD_NS * np.array([0, 3, 4, 100])
    assert cut.positions_at(times_ns)[:, 0].tolist() == [0, 18, 18, 18]
    assert cut.end_ns == T0 + 4 * PERIOD_NS
    assert replace(cut, end_index=HORIZON).positions_at(times_ns)[2, 0] == 24


# ------------------------------------------------------------ replanning and delay


def test_replanning_waits_for_what_it_was_told_to():
    loop = Loop(replanning=Replanning(Replan.ACTIONS, actions=4))
    due = loop.session.due
    assert due(T0, "go"), "nothing was inferred yet"
    loop.chunk(0)
    assert [due(T0 + n * PERIOD_NS, "go") for n in range(7)] == [False] * 4 + [True] * 3
    assert due(T0 + PERIOD_NS, "stop"), "a new instruction does not wait"
    loop.session.reset("episode")
    assert due(T0 + PERIOD_NS, "go"), "nor does a reset"
    loop.session.settings = replace(
        loop.session.settings, replanning=Replanning(Replan.REMAINING, remaining_ns=5 * PERIOD_NS)
    )
    loop.chunk(1)
    end_ns = T0 + (1 + HORIZON) * PERIOD_NS
    for now_ns, expected in ((end_ns - 5 * PERIOD_NS, False), (end_ns - 5 * PERIOD_NS + 1, True)):
        loop.clock.now_ns = now_ns
        assert due(now_ns, "go") is expected
    loop.session.settings = replace(loop.session.settings, replanning=Replanning(Replan.NEWEST))
    assert due(T0 + PERIOD_NS, "go")


def test_delay_is_foreseen_from_what_was_measured():
    model, delays = DelayModel(), [50, 10, 90, 20, 30]
    for index, delay in enumerate(delays):
        model.add(delay * MS, T0 + index * MS, DelaySettings())
    now_ns = T0 + len(delays) * MS

    def foreseen(now_ns=now_ns, **settings):
        return model.foresee_ns(now_ns, DelaySettings(**settings)) / MS

    assert foreseen(estimate=Estimate.LAST) == 30
    assert foreseen(estimate=Estimate.MEDIAN) == 30
    assert foreseen(estimate=Estimate.QUANTILE, quantile=0.8) == 50
    assert foreseen(estimate=Estimate.QUANTILE, quantile=1.0) == 90
    assert foreseen(estimate=Estimate.QUANTILE, quantile=1.0, window=2) == 30
    assert foreseen(quantile=1.0, forget_ns=3 * MS) == 90, "measured 3 ms ago"
    assert foreseen(quantile=1.0, forget_ns=3 * MS - 1) == 30
    assert foreseen(now_ns + 10**12) == 0, "all forgotten"
    model.add(70 * MS, T0 - MS, DelaySettings())
    assert foreseen(T0, quantile=1.0) == 70, "the clock went back: what was before does not count"


def test_delay_is_measured_for_chunks_that_come_too_late_as_well():
    loop = Loop(delay=DelaySettings(Estimate.LAST))
    assert loop.chunk(0, delay_periods=HORIZON + 2) is None
    assert loop.session.foreseen_delay_ns() == (HORIZON + 2) * PERIOD_NS


# ------------------------------------------------------------ limits


def test_little_excess_is_clipped_and_counted_large_excess_refused():
    upper = ROBOT.limits()[1]
    policy = SmoothPolicy()
    loop = Loop(policy, limits=NO_EASE)
    policy.decode = lambda normalized, seen: actions
    actions = np.tile(upper, (HORIZON, 1)).astype(np.float32)
    actions[5:, 0] += 0.1
    chunk = loop.chunk(0, positions=upper)
    assert chunk.actions.max(axis=0) == pytest.approx(upper)
    assert loop.session.clipped == {"position": HORIZON - 5}
    assert chunk.clipped == HORIZON - 5
    actions = actions.copy()
    actions[5, 0] += 0.2
    with pytest.raises(ValueError, match="action 5 of joint shoulder_pan"):
        loop.chunk(1, positions=upper)


def test_a_jump_at_the_join_is_spread_over_steps_within_the_limit():
    loop = Loop(SmoothPolicy(offsets=[0.0, 0.5]), limits=NO_EASE)
    before = loop.chunk(0)
    after = loop.chunk(4)
    steps = np.abs(np.diff(np.vstack((before.actions[3:4], after.actions)), axis=0))
    assert np.all(steps <= ROBOT.max_step() * 1.001)
    assert loop.session.clipped["velocity"] == after.clipped > 0
    assert np.allclose(after.actions[4:], after.inference.actions[4:], atol=1e-6), "caught up"


def test_first_motion_is_eased_in_from_where_the_arm_is():
    ease_ns = 10 * PERIOD_NS
    away = motion([T0])[0] + 0.3
    loop = Loop(limits=Limits(ease_in_ns=ease_ns))
    chunk = loop.chunk(0, positions=away)
    steps = np.abs(np.diff(np.vstack((away, chunk.actions)), axis=0))
    allowed = ROBOT.max_step() * np.minimum(np.arange(1, HORIZON + 1) / 10, 1.0)[:, None]
    assert np.all(steps <= allowed * 1.002)
    assert loop.session.clipped["ease_in"] > 0
    loop.chunk(5)
    moving = loop.session.clipped["ease_in"]
    loop.chunk(15)
    assert loop.session.clipped["ease_in"] == moving, (
        "a motion that is under way is not eased again"
    )
    loop.session.reset("hold")
    loop.chunk(16, positions=motion([T0 + 16 * PERIOD_NS])[0] + 0.3)
    assert loop.session.clipped["ease_in"] > moving, "a new one is"
