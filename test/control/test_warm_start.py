"""The shifted start, the formula of the warm start, and what was really executed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.control.chunk import Start
from flashrt_ros.control.plan import Execution, Plan
from flashrt_ros.control.warm_start import WarmStart, divergence, shift

from .smooth import HORIZON, MS, PERIOD_NS, SCALE, T0, Loop, SmoothPolicy

WARM = WarmStart(enabled=True)


@pytest.mark.parametrize("executed", [0, 1, HORIZON - 1, HORIZON, HORIZON + 3])
def test_shift_repeats_the_last_action(executed):
    chunk = np.arange(HORIZON * 3, dtype=np.float32).reshape(HORIZON, 3)
    start = shift(chunk, executed)
    left = max(0, HORIZON - executed)
    assert np.array_equal(start[:left], chunk[executed:])
    assert np.array_equal(start[left:], np.repeat(chunk[-1:], HORIZON - left, axis=0))
    assert start is not chunk


def plan(actions=None, start_ns=T0, chunk_id=1):
    actions = np.zeros((HORIZON, 6), np.float32) if actions is None else actions
    return Plan(chunk_id, start_ns, PERIOD_NS, actions, HORIZON, actions, np.zeros(6))


@given(st.integers(-3 * PERIOD_NS, (HORIZON + 3) * PERIOD_NS))
def test_executed_by_elapsed_time_is_the_nearest_action(elapsed_ns):
    executed = Execution().executed(plan(), T0 + elapsed_ns)
    assert 0 <= executed <= HORIZON
    if 0 < executed < HORIZON:
        assert 2 * abs(elapsed_ns - executed * PERIOD_NS) <= PERIOD_NS
    elif executed == 0:
        assert 2 * elapsed_ns < PERIOD_NS
    else:
        assert 2 * elapsed_ns >= (2 * HORIZON - 1) * PERIOD_NS


def test_executed_by_reports_where_there_are_any():
    execution = Execution()
    execution.report(1, 0, T0 + 40 * MS)
    execution.report(1, 1, T0 + 75 * MS)
    half_ns = PERIOD_NS // 2
    at = [(39 * MS, 1), (40 * MS, 0), (40 * MS + half_ns, 0), (41 * MS + half_ns, 1), (76 * MS, 1)]
    for passed_ns, executed in at:
        assert execution.executed(plan(), T0 + passed_ns) == executed
    # A robot that stands: by time it would be 9.
    assert execution.executed(plan(), T0 + 300 * MS) == 2
    assert execution.executed(plan(chunk_id=2), T0 + 300 * MS) == 9
    assert execution.executed(plan(start_ns=T0 + 80 * MS), T0 + 300 * MS) == 7, "another chunk 1's"
    execution.report(1, HORIZON - 1, T0 + 310 * MS)
    assert execution.executed(plan(), T0 + 310 * MS + half_ns) == HORIZON - 1
    assert execution.executed(plan(), T0 + 311 * MS + half_ns) == HORIZON
    execution.forget()
    assert execution.executed(plan(), T0 + 311 * MS) == 9


def test_reports_are_remembered_for_some_chunks_only():
    execution = Execution(memory=3)
    for chunk_id in range(10):
        execution.report(chunk_id, 4, T0 + MS)
    assert execution.executed(plan(chunk_id=9), T0 + 2 * MS) == 4
    assert execution.executed(plan(chunk_id=6), T0 + 2 * MS) == 0


def test_divergence_counts_joints_and_rows_that_have_a_plan():
    chunk, start = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    chunk[1, :2] = 2.0
    chunk[:, 2] = 100.0  # padding
    chunk[3] = 100.0  # beyond the plan
    assert divergence(chunk, start, slice(0, 2), 2) == pytest.approx(np.sqrt(2.0))
    assert divergence(chunk, start, slice(2, 2), 2) == 0.0


def test_first_call_is_cold_and_the_next_is_warm_by_the_formula():
    loop = Loop(warm_start=WARM)
    first = loop.chunk(0)
    second = loop.chunk(5)
    cold, warm = loop.policy.requests
    assert (cold.steps, cold.start_time, cold.initial) == (10, 1.0, None)
    assert (warm.steps, warm.start_time) == (1, 0.5)
    assert np.array_equal(warm.initial, shift(first.inference.normalized, 5))
    assert warm.initial.shape == (HORIZON, 8), "before trimming"
    assert not first.inference.warm_start
    assert second.inference.warm_start
    assert (second.inference.steps, second.inference.executed) == (1, 5)


def test_shift_follows_the_reports():
    loop = Loop(warm_start=WARM)
    first = loop.chunk(0)
    for index in range(3):  # fewer than the five periods that pass
        loop.session.report_applied(1, index, T0 + index * PERIOD_NS)
    assert loop.chunk(5).inference.executed == 3
    assert np.array_equal(loop.policy.requests[-1].initial, shift(first.inference.normalized, 3))


def test_start_now_shifts_by_what_passes_until_the_chunk_begins():
    loop = Loop(warm_start=WARM, start=Start.NOW)
    loop.chunk(0, delay_periods=3)
    assert loop.chunk(6, delay_periods=3).inference.executed == 3 + 3, "published at 3, seen at 6"


def test_a_chunk_that_was_not_published_is_not_started_from():
    loop = Loop(warm_start=WARM)
    first = loop.chunk(0)
    assert loop.chunk(4, delay_periods=HORIZON + 1) is None
    loop.chunk(5)
    assert np.array_equal(loop.policy.requests[-1].initial, shift(first.inference.normalized, 5))


def test_divergence_goes_on_with_all_steps_in_the_same_call():
    limit = 0.2
    loop = Loop(
        SmoothPolicy(offsets=[0.0, (limit - 0.01) * SCALE, 0.0, 0.4, 0.4]),
        warm_start=WarmStart(enabled=True, max_divergence=limit),
    )
    loop.chunk(0)
    near = loop.chunk(1)
    assert near.inference.warm_start
    assert near.inference.divergence == pytest.approx(limit - 0.01, abs=1e-3)
    loop.chunk(2)
    far = loop.chunk(3)
    assert not far.inference.warm_start
    assert far.inference.reset_reason == "divergence"
    assert far.inference.divergence == pytest.approx(0.4 / SCALE, abs=1e-3)
    assert [request.steps for request in loop.policy.requests] == [10, 1, 1, 1, 10]
    assert far.inference.steps == 10
    assert loop.session.resets == {"episode": 1, "divergence": 1}
    assert loop.chunk(4).inference.reset_reason == "divergence", "back from 0.4: far again"


def test_relative_actions_start_from_the_right_state():
    loop = Loop(SmoothPolicy(relative=True), warm_start=WARM)
    first = loop.chunk(0)
    there = first.actions[4] + 0.05
    second = loop.chunk(4, positions=there)
    assert second.inference.warm_start
    initial = loop.policy.requests[-1].initial[:, :6] * SCALE + there
    assert np.allclose(initial[: HORIZON - 4], first.inference.actions[4:], atol=1e-5)
