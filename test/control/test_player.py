import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.control.player import ChunkPlayer, PlayableChunk
from flashrt_ros.control.watchdog import Watchdog

MS = 1_000_000
T0 = 1_000_000 * MS
JOINTS = ["a", "b"]


def chunk(chunk_id=1, capture_ms=0, horizon=5, first=0, joints=JOINTS, actions=None, end=None):
    capture_ns = T0 + capture_ms * MS
    if actions is None:
        actions = np.arange(horizon * 2, dtype=np.float32).reshape(horizon, 2) + 100 * chunk_id
    end = len(actions) if end is None else end
    return PlayableChunk(chunk_id, capture_ns, capture_ns, 10 * MS, first, joints, actions, end)


def play(player, times_ms):
    found = [(t, player.due(T0 + t * MS)) for t in times_ms]
    return [(t, action.chunk_id, action.action_index) for t, action in found if action]


def test_each_action_once_when_it_is_due():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    assert player.accept(chunk(), T0) == ""
    assert play(player, [0, 5, 10, 14, 20, 35, 49]) == [
        (0, 1, 0),
        (10, 1, 1),
        (20, 1, 2),
        (35, 1, 3),
        (49, 1, 4),
    ]


def test_late_tick_skips_to_the_newest():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(), T0)
    assert play(player, [0, 31]) == [(0, 1, 0), (31, 1, 3)]


def test_last_action_is_played_even_if_late():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(), T0)
    assert play(player, [30, 55, 60]) == [(30, 1, 3), (55, 1, 4)]
    assert player.hold_reason == "exhausted"


def test_past_actions_are_not_played():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(first=3), T0 + 25 * MS)
    assert play(player, [25, 29, 30]) == [(30, 1, 3)]


def test_newer_chunk_replaces_mid_way():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(1), T0)
    assert play(player, [0, 10]) == [(0, 1, 0), (10, 1, 1)]
    player.accept(chunk(2, capture_ms=10, first=1), T0 + 15 * MS)
    assert play(player, [15, 20, 30]) == [(20, 2, 1), (30, 2, 2)]


def test_row_8_stale_observation_holds_and_recovers():
    player = ChunkPlayer(JOINTS, 25 * MS)
    player.accept(chunk(horizon=50), T0)
    assert [index for _, _, index in play(player, range(100))] == [0, 1, 2]
    assert player.hold_reason == "stale"
    assert player.holds == {"stale": 1}
    player.accept(chunk(2, capture_ms=100), T0 + 101 * MS)
    assert play(player, [101]) == [(101, 2, 0)]
    assert player.hold_reason == ""


def test_clock_that_jumps_back_holds():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(), T0)
    assert player.due(T0 - MS) is None
    assert player.hold_reason == "clock_jump"
    assert player.accept(chunk(1, capture_ms=-500), T0 - 495 * MS) == ""


@pytest.mark.parametrize(
    ("bad", "now_ms", "reason"),
    [
        (chunk(joints=["b", "a"]), 0, "joint_names"),
        (chunk(actions=np.zeros((5, 3), np.float32)), 0, "shape"),
        (chunk(actions=np.full((5, 2), np.nan, np.float32)), 0, "not_finite"),
        (chunk(first=5), 0, "all_past"),
        (chunk(), 50, "all_past"),
        (chunk(horizon=5000), 2000, "stale"),
        (chunk(end=0), 0, "shape"),
        (chunk(end=6), 0, "shape"),
        (chunk(first=2, end=2), 0, "all_past"),
        (chunk(end=2), 20, "all_past"),
    ],
)
def test_bad_chunks_are_refused_and_counted(bad, now_ms, reason):
    player = ChunkPlayer(JOINTS, 1000 * MS)
    assert player.accept(bad, T0 + now_ms * MS) == reason
    assert player.refused == {reason: 1}
    assert player.due(T0 + now_ms * MS) is None


def test_actions_that_are_too_old_are_not_played():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(end=2), T0)
    assert play(player, range(0, 50, 5)) == [(0, 1, 0), (10, 1, 1)]
    assert player.hold_reason == "exhausted"
    assert player.stopping(T0 + 50 * MS) is None


def test_motion_comes_to_rest_when_actions_run_out():
    player = ChunkPlayer(JOINTS, 1000 * MS, stop_ns=40 * MS)
    player.accept(chunk(), T0)  # the last actions lie 2 apart, 10 ms apart
    assert len(play(player, range(0, 50, 10))) == 5
    way = []
    for now_ms in range(50, 120, 5):
        assert player.due(T0 + now_ms * MS) is None
        position = player.stopping(T0 + now_ms * MS)
        if position is not None:
            way.append((now_ms, position - chunk().actions[-1]))
    times = [now_ms for now_ms, _ in way]
    assert times == [50, 55, 60, 65, 70, 75, 80], "one last command at rest"
    steps = np.diff([0.0, *(position[0] for _, position in way)])
    assert np.all(steps >= 0), "never back"
    assert np.all(np.diff(steps[1:]) < 0), "slower and slower"
    # 0.2 per ms, falling to 0 in 40 ms: half of 0.2 * 40
    assert way[-1][1] == pytest.approx([4.0, 4.0])
    player.accept(chunk(2, capture_ms=121), T0 + 121 * MS)
    assert play(player, [121]) == [(121, 2, 0)]
    assert player.stopping(T0 + 122 * MS) is None


def test_older_chunk_does_not_replace_a_newer_one():
    player = ChunkPlayer(JOINTS, 1000 * MS)
    player.accept(chunk(5, capture_ms=20), T0 + 20 * MS)
    assert player.accept(chunk(6, capture_ms=10), T0 + 21 * MS) == "older"
    assert player.accept(chunk(1, capture_ms=30), T0 + 31 * MS) == "", (
        "a restarted policy counts from 1"
    )


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), min_size=1, max_size=10),
    st.lists(st.integers(0, 1500), max_size=80),
)
def test_no_action_is_played_twice_early_or_stale(chunks, ticks):
    player = ChunkPlayer(JOINTS, 200 * MS)
    arrivals = sorted((ms + 5, ms, first) for ms, first in chunks)
    seen = set()
    for now_ms in sorted([*ticks, *(a[0] for a in arrivals)]):
        while arrivals and arrivals[0][0] <= now_ms:
            _, capture_ms, first = arrivals.pop(0)
            player.accept(chunk(capture_ms, capture_ms, first=first, horizon=40), T0 + now_ms * MS)
        action = player.due(T0 + now_ms * MS)
        if action is not None:
            key = (action.chunk_id, action.action_index)
            assert key not in seen
            seen.add(key)
            assert action.planned_ns <= T0 + now_ms * MS
            assert T0 + now_ms * MS - (T0 + action.chunk_id * MS) <= 200 * MS


def test_watchdog_names_who_is_silent():
    dog = Watchdog(["overhead", "wrist"], 100 * MS)
    assert dog.silent(T0) == []
    dog.start(T0)
    dog.hear("wrist", T0 + 80 * MS)
    assert dog.silent(T0 + 100 * MS) == []
    assert dog.silent(T0 + 101 * MS) == ["overhead"]
    assert dog.silent(T0 + 181 * MS) == ["overhead", "wrist"]
    dog.hear("overhead", T0 + 190 * MS)
    assert dog.silent(T0 + 190 * MS) == ["wrist"]
    assert dog.silence_ns("wrist", T0 + 190 * MS) == 110 * MS
