"""Each reset on its trigger and only there, through a whole session."""

from dataclasses import replace

import numpy as np
import pytest

from flashrt_ros.control.replanning import Replan, Replanning
from flashrt_ros.control.resets import MOTION_GOES_ON, RESETS, ResetRules
from flashrt_ros.control.safety import UnsafeActionError
from flashrt_ros.control.warm_start import WarmStart

from .smooth import HORIZON, MS, PERIOD_NS, ROBOT, T0, Loop, SmoothPolicy, motion, observation

WARM = WarmStart(enabled=True)
RANGE = np.subtract(*reversed(ROBOT.limits()))


def off_by(periods, joint, beyond):
    """Positions that are `beyond` [share of range] further than the joint can have moved in a period."""
    positions = motion([T0 + round((periods - 1) * PERIOD_NS)])[0]
    positions[joint] += ROBOT.max_step()[joint] + beyond * RANGE[joint]
    return positions


CASES = {
    "steady": ("", {}),
    "instruction": ("instruction", {"instruction": "stop"}),
    "small push": ("", {"positions": off_by(1, 2, 0.045)}),
    "push": ("state_jump", {"positions": off_by(1, 2, 0.055)}),
    "push of the gripper": ("state_jump", {"positions": off_by(1, 5, 0.055)}),
    "some change of view": ("", {"grey": 199}),
    "change of view": ("view_change", {"grey": 201}),
    "late": ("", {"periods": HORIZON}),
    "gap": ("gap", {"periods": HORIZON + 0.01}),
    "clock jump": ("clock_jump", {"epoch": 1}),
    "time goes back": ("clock_jump", {"periods": -1}),
}


@pytest.mark.parametrize("case", CASES)
def test_reset_fires_on_its_trigger_and_only_there(case):
    expected, call = CASES[case]
    loop = Loop(warm_start=WARM)
    assert loop.reasons({"periods": 0}) == ["episode"]
    chunk = loop.chunk(**{"periods": 1, **call})
    assert chunk.inference.reset_reason == expected
    assert chunk.inference.warm_start == (expected == "")
    after = {**call, "periods": call.get("periods", 1) + 1}
    assert loop.reasons(after) == [""], "once, not again"
    assert loop.session.resets["episode"] == 1
    assert loop.session.resets[expected] == (1 if expected else 0)
    assert loop.policy.resets == sum(loop.session.resets.values())


def test_rules_can_be_turned_off():
    loop = Loop(resets=ResetRules(state_jump=0.0, view_change=0.0, gap_ns=10_000 * MS))
    calls = [{"periods": 1, "grey": 255, "positions": off_by(1, 0, 0.3)}, {"periods": 100}]
    assert loop.reasons({"periods": 0}, *calls) == ["episode", "", ""]


def test_gap_as_a_time():
    loop = Loop(resets=ResetRules(gap_ns=2 * PERIOD_NS))
    calls = [{"periods": n} for n in (0, 2, 4.001)]
    assert loop.reasons(*calls) == ["episode", "", "gap"]


def test_asked_for_resets_come_first_and_are_counted_once():
    loop = Loop()
    loop.chunk(0)
    loop.session.reset("hold")
    loop.session.reset("episode")
    assert loop.reasons({"periods": 1, "instruction": "stop", "epoch": 1}) == ["hold"]
    assert loop.reasons({"periods": 2, "instruction": "stop", "epoch": 1}) == [""]
    assert loop.session.resets == {"episode": 1, "hold": 1}


def test_a_refused_chunk_holds():
    loop = Loop(SmoothPolicy(offsets=[0.0, 5.0]))
    loop.chunk(0)
    with pytest.raises(UnsafeActionError, match="the whole chunk is refused"):
        loop.chunk(1)
    assert loop.reasons({"periods": 2}) == ["hold"]


@pytest.mark.parametrize("delay_periods", [HORIZON + 1, None], ids=["too late", "lost"])
def test_a_reset_lasts_until_a_chunk_goes_out(delay_periods):
    """Else the next chunk would go on from a plan that was made for another instruction."""
    loop = Loop(warm_start=WARM, replanning=Replanning(Replan.ACTIONS, actions=4))
    loop.chunk(0)
    if delay_periods is None:
        loop.session.step(observation(T0 + PERIOD_NS), "stop")
    else:
        assert loop.chunk(1, delay_periods=delay_periods, instruction="stop") is None
    assert loop.session.due(T0 + 2 * PERIOD_NS, "stop"), "a reset does not wait"
    again = loop.chunk(2, instruction="stop").inference
    assert (again.reset_reason, again.warm_start, again.steps) == ("instruction", False, 10)
    assert not loop.session.due(T0 + 3 * PERIOD_NS, "stop")
    after = loop.chunk(3, instruction="stop").inference
    assert (after.reset_reason, after.warm_start) == ("", True)
    assert loop.session.resets == {"episode": 1, "instruction": 2}


def test_a_picture_of_another_size_is_another_view():
    loop = Loop()
    loop.chunk(0)
    seen = observation(T0 + PERIOD_NS)
    seen = replace(seen, images={"overhead": np.full((120, 64, 3), 100, np.uint8)})
    assert loop.session.step(seen, "go").reset_reason == "view_change"


def test_a_camera_that_was_absent_is_no_change_of_view():
    loop = Loop()
    loop.chunk(0)
    for index, images in enumerate(({}, {"overhead": np.zeros((48, 64, 3), np.uint8)}), start=1):
        seen = replace(observation(T0 + index * PERIOD_NS), images=images)
        assert loop.session.step(seen, "go").reset_reason == ""


def test_names():
    assert set(RESETS) | {""} >= MOTION_GOES_ON
    assert len(set(RESETS)) == len(RESETS)


def test_recovery_is_timed_and_misses_are_told_apart():
    loop = Loop()
    first = loop.chunk(0, delay_periods=3)
    assert first.recovery_ns == 3 * PERIOD_NS
    assert not first.deadline_missed, "there was no plan to run out of"
    steady = loop.chunk(4, delay_periods=2)
    assert steady.recovery_ns == 0
    # The plan lasts until 4 + HORIZON: the call begins before and ends after.
    late = loop.chunk(HORIZON + 3, delay_periods=2)
    assert late.deadline_missed
    assert late.recovery_ns == 0
    changed = loop.chunk(2 * HORIZON + 2, delay_periods=2, instruction="stop")
    assert changed.deadline_missed
    assert changed.recovery_ns == 2 * PERIOD_NS
    # The plan ran out before the call began: nothing that the call could have missed.
    loop.session.reset("hold")
    assert not loop.chunk(4 * HORIZON, delay_periods=1, instruction="stop").deadline_missed
    recovery = loop.session.recovery
    assert recovery.deadlines_missed == {"steady": 1, "recovery": 1}
    found = recovery.percentiles_ms()
    assert found["count"] == 3
    assert found["p50_ms"] == pytest.approx(2 * PERIOD_NS / 1e6)
    assert found["p99_ms"] == pytest.approx(3 * PERIOD_NS / 1e6)
