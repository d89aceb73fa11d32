"""Joint states, gaps, mailbox and pixels: the small parts between a topic and an observation."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.observation.frame import Frame, FrameSet
from flashrt_ros.observation.gaps import GapCounter
from flashrt_ros.observation.joint_state import JointStateBuffer, JointStateError
from flashrt_ros.observation.mailbox import Mailbox
from flashrt_ros.observation.pixels import ImageError, rgb_view

MS = 1_000_000
T0 = 1_000_000 * MS


# ---------------------------------------------------------------- joint states


def test_row_18_positions_go_by_name():
    buffer = JointStateBuffer(["a", "b"], 100 * MS)
    buffer.add(["other", "b", "a"], [9.0, 2.0, 1.0], T0, T0 + MS)
    assert buffer.nearest(T0).positions.tolist() == [1.0, 2.0]


def test_row_18_missing_joint_is_named():
    buffer = JointStateBuffer(["a", "b"], 100 * MS)
    buffer.add(["a"], [1.0], T0, T0)
    with pytest.raises(JointStateError, match=r"lacks b: needed are \['a', 'b'\], found \['a'\]"):
        buffer.nearest(T0)


def test_joint_state_may_arrive_while_the_nearest_is_sought():
    buffer = JointStateBuffer(["a"], 100 * MS)
    buffer.add(["a"], [1.0], T0, T0)
    buffer.add(["a"], [2.0], T0 + 10 * MS, T0)

    class Stamp(int):
        def __rsub__(self, other):
            buffer.add(["a"], [3.0], T0 + 20 * MS, T0)  # as another thread would, in the midst
            return other - int(self)

    assert buffer.nearest(Stamp(T0 + 9 * MS)).positions.tolist() == [2.0]


def test_joint_that_falls_silent_is_named():
    buffer = JointStateBuffer(["a", "b"], 100 * MS)
    buffer.add(["a", "b"], [1.0, 2.0], T0, T0)
    for k in range(1, 40):
        buffer.add(["a"], [1.0], T0 + 10 * k * MS, T0)
    with pytest.raises(JointStateError, match="b fell silent"):
        buffer.nearest(T0 + 390 * MS)


def test_states_in_parts_are_put_together():
    buffer = JointStateBuffer(["arm", "gripper"], 100 * MS)
    buffer.add(["arm"], [1.0], T0, T0)
    buffer.add(["gripper"], [0.5], T0 + 5 * MS, T0)
    assert buffer.nearest(T0 + 5 * MS).positions.tolist() == [1.0, 0.5]


def test_parts_a_little_out_of_order_are_no_clock_jump():
    buffer = JointStateBuffer(["arm", "gripper"], 100 * MS)
    for k in range(20):
        buffer.add(["arm"], [float(k)], T0 + 10 * k * MS, T0)
        buffer.add(["gripper"], [0.5], T0 + (10 * k - 5) * MS, T0)
    assert buffer.nearest(T0 + 50 * MS).positions.tolist() == [5.0, 0.5]


def test_nearest_in_time_is_taken():
    buffer = JointStateBuffer(["a"], 100 * MS)
    for k in range(300):
        buffer.add(["a"], [float(k)], T0 + 10 * k * MS, T0 + 10 * k * MS + MS)
    sample = buffer.nearest(T0 + 2504 * MS)
    assert (sample.positions[0], sample.receive_ns) == (250.0, T0 + 2501 * MS)


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=60), st.integers(-5, 600))
def test_nearest_is_the_nearest_of_all_though_some_come_out_of_order(offsets_ms, picture_ms):
    buffer = JointStateBuffer(["a"], 10_000 * MS)
    captures = [T0 + 10 * k * MS + offset * MS for k, offset in enumerate(offsets_ms)]
    for capture_ns in captures:
        buffer.add(["a"], [capture_ns / MS], capture_ns, capture_ns)
    picture_ns = T0 + picture_ms * MS
    found = buffer.nearest(picture_ns)
    assert abs(found.capture_ns - picture_ns) == min(abs(c - picture_ns) for c in captures)
    assert found.positions[0] == found.capture_ns / MS


@pytest.mark.parametrize(
    ("names", "positions", "message"),
    [
        (["a", "b"], [1.0], "2 names but 1 positions"),
        (["a"], [float("nan")], "position of a is nan"),
    ],
)
def test_broken_states_are_refused_and_change_nothing(names, positions, message):
    buffer = JointStateBuffer(["a"], 100 * MS)
    buffer.add(["a"], [3.0], T0, T0)
    with pytest.raises(JointStateError, match=message):
        buffer.add(names, positions, T0 + MS, T0)
    assert buffer.nearest(T0).positions.tolist() == [3.0]


def test_clock_that_jumped_back_starts_afresh():
    buffer = JointStateBuffer(["a"], 100 * MS)
    buffer.add(["a"], [1.0], T0, T0)
    buffer.add(["a"], [2.0], T0 - 5000 * MS, T0)
    assert buffer.nearest(T0 - 5000 * MS).positions.tolist() == [2.0]
    with pytest.raises(JointStateError, match="5000 ms from the picture"):
        buffer.nearest(T0)


# ---------------------------------------------------------------- gaps


@given(
    st.lists(st.booleans(), min_size=40, max_size=200),
    st.integers(10, 100),
    st.randoms(use_true_random=False),
)
def test_lost_frames_are_counted_with_a_known_period(arrives, period_ms, random):
    counter = GapCounter(period_ms * MS)
    arrives = [True, *arrives, True]
    for k, here in enumerate(arrives):
        if here:
            counter.add(T0 + k * period_ms * MS + random.randint(-period_ms, period_ms) * MS // 10)
    assert counter.lost == arrives.count(False)


def test_period_is_learned():
    counter = GapCounter()
    for k in range(100):
        if k % 10 != 7:
            counter.add(T0 + 33 * k * MS)
    assert counter.period_ns == 33 * MS
    assert counter.lost == 10


def test_repeated_and_jumped_stamps_are_no_gap():
    counter = GapCounter(33 * MS)
    for stamp in (T0, T0, T0 - 9000 * MS, T0 - 9000 * MS + 33 * MS):
        counter.add(stamp)
    assert counter.lost == 0


# ---------------------------------------------------------------- mailbox


def some_set(number: int) -> FrameSet:
    frame = Frame("a", T0 + number, T0 + number)
    return FrameSet({"a": frame}, frozenset(), frame, frame, T0 + number, 0)


def test_row_20_newest_set_replaces_the_one_that_waits():
    box = Mailbox()
    for number in range(100):
        box.put(some_set(number))
    assert box.take().stamp_ns == T0 + 99
    fates = box.fates()
    assert (fates.received, fates.taken, fates.superseded, fates.waiting) == (100, 1, 99, 0)


def test_fifo_keeps_the_order_and_drops_the_oldest():
    box = Mailbox(depth=3)
    for number in range(5):
        box.put(some_set(number))
    assert [box.take().stamp_ns - T0 for _ in range(3)] == [2, 3, 4]
    assert box.fates().superseded == 2


def test_close_wakes_the_worker():
    box = Mailbox()
    taken = []
    worker = threading.Thread(target=lambda: taken.append(box.take()))
    worker.start()
    box.close()
    worker.join(timeout=30)
    assert taken == [None]


# ---------------------------------------------------------------- pixels


@pytest.mark.parametrize("padding", [0, 1, 13])
@pytest.mark.parametrize(
    ("encoding", "channels", "order"),
    [
        ("rgb8", 3, [0, 1, 2]),
        ("8UC3", 3, [0, 1, 2]),
        ("bgr8", 3, [2, 1, 0]),
        ("rgba8", 4, [0, 1, 2]),
        ("bgra8", 4, [2, 1, 0]),
        ("mono8", 1, [0, 0, 0]),
        ("8UC1", 1, [0, 0, 0]),
    ],
)
def test_row_16_channels_and_padding(encoding, channels, order, padding):
    random = np.random.default_rng(0)
    height, width = 5, 7
    step = width * channels + padding
    rows = random.integers(0, 256, (height, step), dtype=np.uint8)
    pixels = rows[:, : width * channels].reshape(height, width, channels)
    found = rgb_view(rows.tobytes(), height, width, step, encoding)
    assert np.array_equal(found, pixels[..., order])


def test_last_row_may_lack_its_padding():
    data = bytes(range(12)) + bytes(4) + bytes(range(12))
    assert rgb_view(data, 2, 4, 16, "rgb8").shape == (2, 4, 3)


def test_rgb8_is_a_view():
    data = np.zeros((4, 12), dtype=np.uint8)
    assert np.shares_memory(rgb_view(data.reshape(-1), 4, 4, 12, "rgb8"), data)


@pytest.mark.parametrize(
    ("height", "width", "step", "size", "reason"),
    [
        (0, 4, 12, 0, "empty"),
        (4, 0, 0, 0, "empty"),
        (4, 4, 11, 44, "short_step"),
        (4, 4, 12, 47, "short_data"),
        (4, 4, 12, 0, "short_data"),
    ],
)
def test_row_16_impossible_layouts(height, width, step, size, reason):
    with pytest.raises(ImageError) as error:
        rgb_view(bytes(size), height, width, step, "rgb8")
    assert error.value.reason == reason
