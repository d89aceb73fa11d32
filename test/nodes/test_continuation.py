"""Chunks that go on from each other, by the node under ROS: a small network, the player, and what it applied."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from std_srvs.srv import Trigger

from flashrt_ros.msg import ActionApplied, ActionChunk
from flashrt_ros.observation.timeline import to_ns

from .graph import counts

pytestmark = pytest.mark.graph


@pytest.fixture
def chunks(graph):
    return graph.collect(ActionChunk, "/policy/action_chunk")


@pytest.fixture
def applied(graph):
    return graph.collect(ActionApplied, "/action_player/action_applied")


def start(graph, request, **parameters):
    checkpoint = request.config.rootpath / "test/data/tiny_so101"
    given = {
        "autostart": True,
        "instruction": "pick up the cup",
        "checkpoint": str(checkpoint),
        "device": "cpu",
        "steps": 4,
        "max_age_ms": 5000.0,
        "max_action_age_ms": 5000.0,
        # On a slow machine one inference takes longer than the chunk lasts.
        "reset_gap_ms": 60_000.0,
        "diagnostics_rate": 20.0,
    }
    graph.start("policy", **{**given, **parameters})
    graph.start("action_player", max_age_ms=5000.0)


def rows(chunk):
    return np.array(chunk.actions, np.float32).reshape(chunk.horizon, -1)


def planned_ns(chunk):
    return to_ns(chunk.planned_start) + to_ns(chunk.period) * np.arange(chunk.horizon)


def test_rtc_freezes_what_is_executed_meanwhile(graph, drivers, request, chunks, applied):
    """Each frozen action is, joint for joint, where the chunk before has the arm at that time: no join is felt."""
    start(graph, request, seam="rtc", replan="actions", replan_actions=3, delay_quantile=1.0)
    drivers.run(rate_hz=30.0)
    graph.wait_for(lambda: len(velocities(list(applied))[1]) > 25, "actions across joins")
    compared = 0
    for before, chunk in pairwise(list(chunks)):
        if chunk.reset_reason:
            continue
        assert chunk.seam == "rtc"
        times_ns = planned_ns(chunk)[: chunk.frozen]
        for joint in range(6):
            there = np.interp(times_ns, planned_ns(before), rows(before)[:, joint])
            assert np.abs(rows(chunk)[: chunk.frozen, joint] - there).max(initial=0.0) < 1e-6
        foreseen = -(-to_ns(chunk.foreseen_delay) // to_ns(chunk.period))
        assert chunk.frozen == min(foreseen, chunk.horizon - chunk.executed)
        compared += chunk.frozen
    assert compared > 20
    within, joins = velocities(list(applied))
    print(
        f"largest joint velocity [rad/s]: P99 {np.percentile(within, 99):.3f} within chunks "
        f"({len(within)} steps), {np.percentile(joins, 99):.3f} at joins ({len(joins)}); "
        f"P50 {np.percentile(within, 50):.3f} and {np.percentile(joins, 50):.3f}"
    )
    assert max(*within, *joins) <= 6.0 * 1.001, "within the step limit"
    # Chunks of this network have nothing to do with each other: replaced, they make it ten times as much.
    assert np.percentile(joins, 99) <= 1.5 * np.percentile(within, 99)


def velocities(applied):
    """Largest velocity of a joint between actions planned a period apart [rad/s]: within a chunk, and across joins."""
    found = {True: [], False: []}
    for before, action in pairwise(applied):
        passed_ns = to_ns(action.planned) - to_ns(before.planned)
        if 0 < passed_ns < 40_000_000:
            step = np.abs(np.subtract(action.positions, before.positions)).max()
            found[before.chunk_id == action.chunk_id].append(step / passed_ns * 1e9)
    return found[True], found[False]


def test_warm_start_is_cold_after_each_reset_and_counted(graph, drivers, request, chunks):
    last = graph.statuses()
    start(graph, request, warm_start=True, reset_divergence=100.0)
    drivers.run(rate_hz=30.0)
    graph.wait_for(lambda: len(chunks) > 20, "chunks")
    have = len(chunks)
    assert graph.call(Trigger, "/policy/reset", Trigger.Request()).success
    graph.wait_for(lambda: any(c.reset_reason for c in chunks[have:]), "the reset")
    have = len(chunks)
    assert graph.set_parameter("instruction", "put it down").successful
    graph.wait_for(lambda: any(c.reset_reason for c in chunks[have:]), "the new instruction")
    assert graph.set_parameter("reset_divergence", 0.0).successful
    graph.wait_for(lambda: chunks[-1].reset_reason == "divergence", "a warm start that is refused")
    seen = list(chunks)
    for chunk in seen:
        assert chunk.warm_start == (chunk.reset_reason == "")
        assert chunk.steps == (1 if chunk.warm_start else 4)
        assert (chunk.recovery_ns > 0) == (chunk.reset_reason != "")
        if chunk.recovery_ns:
            assert chunk.recovery_ns == to_ns(chunk.publish) - to_ns(chunk.infer_start)
    warm = [chunk for chunk in seen if chunk.warm_start]
    assert max(chunk.executed for chunk in warm) > 0
    assert all(chunk.divergence > 0 for chunk in warm)
    reasons = [chunk.reset_reason for chunk in seen if chunk.reset_reason]
    assert reasons[:3] in (
        ["episode", "episode", "instruction"],
        ["episode", "instruction", "divergence"],
    )
    assert set(reasons[3:]) <= {"divergence"}

    def all_published(told):
        """No inference is between its reset and its publication."""
        resets = told.get("resets", {})
        return resets.get("divergence") and told["recovery"]["count"] == sum(resets.values())

    told = counts(graph.until_status(last, "policy", lambda s: all_published(counts(s))))
    assert told["recovery"]["p50_ms"] <= told["recovery"]["p95_ms"] <= told["recovery"]["p99_ms"]


def test_replanning_by_actions_uses_the_newest_and_counts_the_rest(graph, drivers, request, chunks):
    last = graph.statuses()
    start(graph, request, replan="actions", replan_actions=4)
    drivers.run(rate_hz=30.0)
    graph.wait_for(lambda: len(chunks) > 15, "chunks")
    for before, chunk in pairwise(list(chunks)):
        if not chunk.reset_reason:
            passed_ns = to_ns(chunk.header.stamp) - to_ns(before.header.stamp)
            assert passed_ns >= 3.5 * to_ns(chunk.period), "at least four actions lie behind"
    status = graph.until_status(
        last,
        "policy",
        lambda s: counts(s).get("sets", {}).get("rejected", {}).get("not_due", 0) > 5,
    )
    assert counts(status)["actions_skipped"] >= sum(c.first_valid_index for c in chunks[:10])


def test_stale_tail_is_not_applied(graph, drivers, request, chunks, applied):
    start(graph, request, max_action_age_ms=150.0, stop_ms=100.0)
    drivers.run(rate_hz=2.0)  # each chunk has to last for longer than it may
    graph.wait_for(lambda: len(chunks) > 3 and len(applied) > 8, "actions")
    by_id = {chunk.chunk_id: chunk for chunk in chunks}
    for action in list(applied):
        chunk = by_id.get(action.chunk_id)
        if chunk is None:
            continue
        assert chunk.end_index == 5, "action 4 is due after 133 ms, action 5 after 167 ms"
        assert action.action_index < chunk.end_index
