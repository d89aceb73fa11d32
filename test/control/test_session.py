"""Session, safety gate and chunk arithmetic, with a policy whose answers the test decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.control.chunk import Start, first_due_index, trajectory_points
from flashrt_ros.control.policy import PolicySpec
from flashrt_ros.control.robot import RobotError, load_robot
from flashrt_ros.control.safety import Limits, UnsafeActionError
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.observation.frame import Frame, FrameSet, Observation
from flashrt_ros.paths import config_path

MS = 1_000_000
T0 = 1_000_000 * MS
HORIZON = 8
ROBOT = load_robot(config_path("robots/so101.yaml"))


class Answers:
    """A policy that returns the actions that it was given."""

    spec = PolicySpec("answers", HORIZON, 6, ["base_0_rgb"])

    def __init__(self):
        self.actions = np.zeros((HORIZON, 6), np.float32)
        self.resets = 0

    def infer(self, observation, instruction):
        if isinstance(self.actions, Exception):
            raise self.actions
        return self.actions

    def check_instruction(self, instruction):
        pass

    def reset(self):
        self.resets += 1


class Clock:
    def __init__(self, now_ns):
        self.now_ns = now_ns

    def __call__(self):
        self.now_ns += MS
        return self.now_ns


def observation(capture_ns=T0, epoch=0):
    frame = Frame("overhead", capture_ns, capture_ns + 5 * MS)
    frames = FrameSet({"overhead": frame}, frozenset(), frame, frame, capture_ns + 6 * MS, epoch)
    return Observation(frames, {}, np.zeros(6), capture_ns, capture_ns + MS)


def session(now_ns=T0 + 10 * MS, **settings):
    policy = Answers()
    chosen = SessionSettings(**settings)
    return PolicySession(policy, ROBOT, chosen, clock_ns=Clock(now_ns)), policy


def test_chunk_carries_every_stamp():
    made, _ = session()
    seen = observation()
    chunk = made.publish(seen, made.step(seen, "go"))
    timeline = chunk.timeline
    assert (timeline.capture_ns, timeline.receive_ns, timeline.sync_ns) == (
        T0,
        T0 + 5 * MS,
        T0 + 6 * MS,
    )
    assert (timeline.infer_start_ns, timeline.infer_end_ns, timeline.publish_ns) == (
        T0 + 11 * MS,
        T0 + 12 * MS,
        T0 + 13 * MS,
    )
    assert chunk.planned_start_ns == T0
    assert chunk.first_valid_index == 1
    assert chunk.chunk_id == 1


def test_start_now_plays_from_the_first_action():
    made, _ = session(start=Start.NOW)
    seen = observation()
    chunk = made.publish(seen, made.step(seen, "go"))
    assert chunk.planned_start_ns == chunk.timeline.publish_ns
    assert chunk.first_valid_index == 0


def test_row_12_chunk_that_is_all_past_is_not_published():
    made, _ = session(now_ns=T0 + HORIZON * ROBOT.period_ns)
    seen = observation()
    assert made.publish(seen, made.step(seen, "go")) is None
    assert made.refused == {"all_past": 1}
    later = observation(T0 + HORIZON * ROBOT.period_ns)
    assert made.publish(later, made.step(later, "go")).chunk_id == 1


def test_resets_fire_on_their_trigger_and_only_there():
    made, policy = session()

    def reason(seen, instruction):
        inference = made.step(seen, instruction)
        made.publish(seen, inference)
        return inference.reset_reason

    reasons = [reason(observation(), "go"), reason(observation(), "go")]
    reasons.append(reason(observation(), "stop"))
    reasons += [reason(observation(epoch=1), "stop"), reason(observation(epoch=1), "stop")]
    made.reset("hold")
    made.reset("episode")
    reasons.append(reason(observation(epoch=1), "stop"))
    assert reasons == ["episode", "", "instruction", "clock_jump", "", "hold"]
    assert policy.resets == 4
    assert made.resets == {"episode": 1, "instruction": 1, "clock_jump": 1, "hold": 1}


def spoil(row, column, value):
    actions = np.zeros((HORIZON, 6), np.float32)
    actions[row, column] = value
    return actions


@pytest.mark.parametrize(
    ("actions", "reason", "message"),
    [
        (spoil(3, 2, np.nan), "not_finite", "action 3 of joint elbow_flex is nan"),
        (spoil(0, 5, np.inf), "not_finite", "action 0 of joint gripper is inf"),
        (spoil(7, 0, 1.93), "position_limit", "action 7 of joint shoulder_pan is 1.93"),
        (
            spoil(4, 1, 0.5),
            "velocity_limit",
            "shoulder_lift would move at 15.00 rad/s after action 3",
        ),
        (np.zeros((HORIZON, 7), np.float32), "shape", r"\(8, 7\), expected \(8, 6\)"),
        (np.zeros((HORIZON - 1, 6), np.float32), "shape", r"\(7, 6\)"),
    ],
)
def test_row_14_unsafe_chunk_is_rejected_whole(actions, reason, message):
    made, policy = session(limits=Limits(tolerance=0.0))
    made.step(observation(), "go")
    policy.actions = actions
    with pytest.raises(UnsafeActionError, match=message):
        made.step(observation(), "go")
    assert made.refused == {reason: 1}
    policy.actions = np.zeros((HORIZON, 6), np.float32)
    assert made.step(observation(), "go").reset_reason == "hold"


def test_limits_themselves_are_inside():
    made, policy = session()
    lower, upper = ROBOT.limits()
    for limit in (lower, upper):
        policy.actions = np.tile(limit, (HORIZON, 1)).astype(np.float32)
        made.step(observation(), "go")


def test_policy_error_is_counted_and_passed_on():
    made, policy = session()
    policy.actions = ValueError("which block?")
    with pytest.raises(ValueError, match="which block"):
        made.step(observation(), "go")
    assert made.refused == {"policy_error": 1}


def test_policy_that_does_not_fit_is_found_at_once():
    class Seven(Answers):
        spec = PolicySpec("seven", HORIZON, 7, ["base_0_rgb"])

    with pytest.raises(RobotError, match="action has 7 numbers, the robot 6 joints"):
        PolicySession(Seven(), ROBOT)


@given(st.integers(-5 * 10**9, 5 * 10**9), st.integers(1, 10**8), st.integers(1, 64))
def test_first_due_index_to_the_nanosecond(elapsed_ns, period_ns, horizon):
    index = first_due_index(T0, period_ns, horizon, T0 + elapsed_ns)
    assert 0 <= index <= horizon
    if index < horizon:
        assert T0 + index * period_ns >= T0 + elapsed_ns
    if index > 0:
        assert T0 + (index - 1) * period_ns < T0 + elapsed_ns


@given(
    st.integers(0, (HORIZON + 2) * ROBOT.period_ns),
    st.sampled_from([None, 100 * MS]),
    st.sampled_from([0, 90 * MS]),
)
def test_rows_12_and_13_trajectory_lies_ahead(elapsed_ns, max_action_age_ns, stop_ns):
    made, policy = session(max_action_age_ns=max_action_age_ns, limits=Limits(ease_in_ns=0))
    policy.actions = np.linspace(0, 0.1, HORIZON * 6, dtype=np.float32).reshape(HORIZON, 6)
    seen = observation()
    chunk = made.publish(seen, made.step(seen, "go"))
    end = (
        HORIZON if max_action_age_ns is None else 4
    )  # 100 ms is past action 3, due at 99.999999 ms
    assert chunk.end_index == end
    positions, velocities, times_ns = trajectory_points(chunk, T0 + elapsed_ns, stop_ns)
    assert all(time_ns > 0 for time_ns in times_ns)
    assert all(b > a for a, b in zip(times_ns, times_ns[1:], strict=False))
    assert len(positions) == len(velocities) == len(times_ns)
    if not times_ns:
        assert elapsed_ns >= (end - 1) * ROBOT.period_ns
        return
    stop = 3 if stop_ns else 0  # points until the motion is at rest
    first = end - (len(times_ns) - stop)
    assert np.array_equal(positions[: end - first], policy.actions[first:end].astype(np.float64))
    assert T0 + elapsed_ns + times_ns[0] == T0 + first * ROBOT.period_ns
    assert not velocities[-1].any()
    if stop:
        steps = np.diff(positions[end - first - 1 :, 0])
        assert np.all(steps > 0)
        assert np.all(np.diff(steps) < 0), "slower and slower"
