"""The synchroniser against its promises, over arrivals that no one would plan."""

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashrt_ros.observation.frame import CameraRule, Frame, Role
from flashrt_ros.observation.synchronizer import Synchronizer, tightest

MS = 1_000_000
START_NS = 1_000_000 * MS
SLOP_NS = 50 * MS


def frame(camera: str, ms: float, received_ms: float | None = None) -> Frame:
    capture_ns = START_NS + round(ms * MS)
    received_ns = capture_ns if received_ms is None else START_NS + round(received_ms * MS)
    return Frame(camera, capture_ns, received_ns)


def rules(*names: str) -> list[CameraRule]:
    return [CameraRule(name) for name in names]


def feed(sync: Synchronizer, *frames: Frame):
    return [found for f in frames if (found := sync.add(f)) is not None]


def stamps(found) -> dict[str, float]:
    return {name: (f.capture_ns - START_NS) / MS for name, f in found.frames.items()}


def test_row_3_identical_stamps_match_without_slop():
    sync = Synchronizer(rules("A", "B"), slop_ns=0)
    (found,) = feed(sync, frame("A", 0), frame("B", 0))
    assert found.skew_ns == 0


def test_row_4_sets_never_go_back():
    sync = Synchronizer(rules("A", "B"), slop_ns=SLOP_NS)
    found = feed(sync, frame("A", 0), frame("A", 33), frame("B", 34), frame("B", 1))
    assert [stamps(f) for f in found] == [{"A": 33, "B": 34}]
    assert sync.fates()["B"].late == 1
    assert sync.fates()["A"].superseded == 1


def test_row_5_better_pair_is_not_lost():
    sync = Synchronizer(rules("A", "B"), slop_ns=SLOP_NS)
    found = feed(sync, frame("A", 0), frame("B", 40), frame("A", 41))
    assert [stamps(f) for f in found] == [{"A": 0, "B": 40}, {"A": 41, "B": 40}]


def test_cameras_in_turn_do_not_double_the_rate():
    sync = Synchronizer(rules("A", "B"), slop_ns=SLOP_NS)
    arrivals = [f for k in range(30) for f in (frame("A", 33 * k), frame("B", 33 * k + 1))]
    assert len(feed(sync, *arrivals)) == 30


def test_row_6_zero_stamp_is_rejected():
    sync = Synchronizer(rules("A"), slop_ns=0)
    assert sync.add(Frame("A", 0, START_NS)) is None
    assert sync.fates()["A"].rejected == {"zero_stamp": 1}


def test_future_stamp_is_rejected():
    sync = Synchronizer(rules("A"), slop_ns=0, max_future_ns=10 * MS)
    assert feed(sync, frame("A", 11, received_ms=0)) == []
    assert len(feed(sync, frame("A", 10, received_ms=0))) == 1
    assert sync.fates()["A"].rejected == {"future_stamp": 1}


def test_row_2_bag_loop_resets_the_queues():
    sync = Synchronizer(rules("A", "B"), slop_ns=SLOP_NS, depth=4)
    feed(sync, *(frame("A", 5000 + 33 * k) for k in range(8)))  # full queue, no partner
    found = feed(sync, *(f for k in range(20) for f in (frame("A", 33 * k), frame("B", 33 * k))))
    assert len(found) == 20
    assert {f.epoch for f in found} == {1}
    assert sync.fates()["A"].rejected == {"clock_jump": 4}


def test_duplicate_stamp_is_rejected_waiting_or_given():
    sync = Synchronizer(rules("A", "B"), slop_ns=SLOP_NS)
    feed(sync, frame("A", 0), frame("A", 0), frame("B", 0), frame("B", 0))
    assert sync.fates()["A"].rejected == {"duplicate_stamp": 1}
    assert sync.fates()["B"].rejected == {"duplicate_stamp": 1}


def test_unknown_camera_names_the_known_ones():
    sync = Synchronizer(rules("A", "B"), slop_ns=0)
    with pytest.raises(ValueError, match=r"unknown camera 'C': expected one of \['A', 'B'\]"):
        sync.add(frame("C", 0))


def test_optional_camera_is_waited_for_while_it_lives():
    cameras = [CameraRule("A"), CameraRule("B", Role.OPTIONAL)]
    sync = Synchronizer(cameras, slop_ns=SLOP_NS, absent_after_ns=100 * MS)
    assert [stamps(f) for f in feed(sync, frame("A", 0))] == [{"A": 0}], (
        "never seen: not waited for"
    )
    assert feed(sync, frame("B", 33)) == []
    assert [stamps(f) for f in feed(sync, frame("A", 34))] == [{"A": 34, "B": 33}]
    assert feed(sync, frame("A", 67)) == [], "B lives: wait for it"
    assert [stamps(f) for f in feed(sync, frame("B", 68))] == [{"A": 67, "B": 68}]
    silent = feed(sync, *(frame("A", 100 + 33 * k) for k in range(4)))
    assert [stamps(f) for f in silent] == [{"A": 199}], "B died: given up after 100 ms"


def test_held_camera_serves_until_it_is_too_old():
    cameras = [CameraRule("A"), CameraRule("B", Role.HOLD, max_age_ns=80 * MS)]
    sync = Synchronizer(cameras, slop_ns=10 * MS)
    assert feed(sync, frame("A", 0)) == [], "no picture of B yet"
    found = feed(sync, frame("B", 5), frame("A", 33), frame("A", 66), frame("A", 99))
    assert [stamps(f) for f in found] == [{"A": 33, "B": 5}, {"A": 66, "B": 5}]
    assert all(f.held == {"B"} for f in found)
    assert [f.stamp_ns - START_NS for f in found] == [33 * MS, 66 * MS], "age counts from A"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rules": rules("A", "A"), "slop_ns": 0}, "unique"),
        ({"rules": [CameraRule("A", Role.OPTIONAL)], "slop_ns": 0}, "at least one"),
        ({"rules": rules("A"), "slop_ns": -1}, "slop_ns"),
        ({"rules": rules("A"), "slop_ns": 2, "absent_after_ns": 1}, "absent_after_ns"),
    ],
)
def test_contradicting_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Synchronizer(**arguments)


# ---------------------------------------------------------------- properties

arrivals = st.lists(
    st.tuples(
        st.sampled_from("ABC"),
        st.integers(0, 400),  # capture [ms]; small, so that matches, duplicates and disorder abound
        st.sampled_from([0, 0, 0, -100, 3000]),  # receipt minus capture, and clocks that are off
    ),
    max_size=60,
)
jumps = st.lists(st.sampled_from([0, 0, 0, 0, 1500, -1500]), min_size=60, max_size=60)


@given(arrivals, jumps, st.sampled_from([0, 10, 50]), st.integers(1, 5))
def test_promises_hold_for_any_arrivals(events, offsets, slop_ms, depth):
    sync = Synchronizer(rules("A", "B", "C"), slop_ns=slop_ms * MS, depth=depth, max_future_ns=0)
    previous, base = None, 10_000
    for (camera, at, delay), jump in zip(events, offsets, strict=False):
        base += jump
        found = sync.add(frame(camera, base + at, base + at + delay))
        for fates in sync.fates().values():
            assert fates.unexplained == 0
            assert fates.pending <= depth
        if found is None:
            continue
        assert set(found.frames) == {"A", "B", "C"}
        assert found.skew_ns <= slop_ms * MS
        if previous is not None and previous.epoch == found.epoch:
            assert found.stamp_ns > previous.stamp_ns
            for name, f in found.frames.items():
                assert f.capture_ns >= previous.frames[name].capture_ns
        previous = found


@example(
    [("A", 233, 0), ("A", 235, 0), ("B", 234, 0), ("B", 236, 0), ("C", 233, 0), ("C", 234, 0)], 10
)
@given(arrivals, st.sampled_from([0, 10, 50]))
def test_no_complete_set_is_lost_to_a_worse_one(events, slop_ms):
    """Whatever could be formed from the frames at hand is not tighter than what went out.

    A frame may serve a second time only in a tighter set than the first.
    """
    sync = Synchronizer(rules("A", "B", "C"), slop_ns=slop_ms * MS, depth=100)
    at_hand: dict[str, list[int]] = {"A": [], "B": [], "C": []}
    last = None
    for camera, at, _ in events:
        arrived = frame(camera, 10_000 + at)
        late = last is not None and (
            arrived.capture_ns <= last.stamp_ns
            or arrived.capture_ns < last.frames[camera].capture_ns
        )
        if not late and arrived.capture_ns not in at_hand[camera]:
            at_hand[camera].append(arrived.capture_ns)
        found = sync.add(arrived)
        oldest_ns = last.stamp_ns if last else 0
        possible = [
            max(choice) - min(choice)
            for choice in product(*at_hand.values())
            if arrived.capture_ns == choice["ABC".index(camera)]
            and max(choice) - min(choice) <= slop_ms * MS
            and min(choice) > oldest_ns
        ]
        again = {n: last.frames[n].capture_ns for n in last.frames} if last else {}
        fresh = [
            max(choice) - min(choice)
            for choice in product(*at_hand.values())
            if arrived.capture_ns == choice["ABC".index(camera)]
            and max(choice) - min(choice) <= slop_ms * MS
            and min(choice) > oldest_ns
            and not any(again.get(n) == stamp for n, stamp in zip("ABC", choice, strict=True))
        ]
        if found is not None:
            allowed = fresh + [skew for skew in possible if last is None or skew < last.skew_ns]
            assert found.skew_ns == min(allowed)
            last = found
            for name, f in found.frames.items():
                at_hand[name] = [s for s in at_hand[name] if s >= f.capture_ns]
        elif possible and not late:
            assert last is not None
            assert min(possible) >= last.skew_ns, "only a set that fits worse may be withheld"


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=2, max_size=4))
def test_tightest_is_optimal(captures):
    own = {f"camera{i}": sorted(set(c)) for i, c in enumerate(captures)}
    pivot = Frame("camera0", own["camera0"][0], 0)
    found = tightest(pivot, own, slop_ns=20)
    spans = [
        max(choice) - min(choice) for choice in product([pivot.capture_ns], *list(own.values())[1:])
    ]
    best = min(spans)
    if best > 20:
        assert found is None
    else:
        assert max(found.values()) - min(found.values()) == best
