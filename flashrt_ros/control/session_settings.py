"""The parameters of the policy node as settings of a session."""

from __future__ import annotations

from flashrt_ros.control.chunk import Start
from flashrt_ros.control.delay import DelaySettings, Estimate
from flashrt_ros.control.observer import Settings
from flashrt_ros.control.replanning import Replan, Replanning
from flashrt_ros.control.resets import ResetRules
from flashrt_ros.control.rtc import Rtc, Schedule, Strength
from flashrt_ros.control.safety import Limits
from flashrt_ros.control.seams import SeamKind, Seams
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.control.warm_start import WarmStart


def session_settings(values: Settings) -> SessionSettings:
    """Read all of them once: they hold for one inference."""
    p = values
    return SessionSettings(
        start=Start(p["start"]),
        max_action_age_ns=p.ns("max_action_age_ms"),
        warm_start=WarmStart(
            p["warm_start"], p["warm_steps"], p["warm_alpha"], p["reset_divergence"]
        ),
        resets=ResetRules(p["reset_state_jump"], p["reset_view_change"], p.ns("reset_gap_ms")),
        replanning=Replanning(
            Replan(p["replan"]), p["replan_actions"], p.ns("replan_remaining_ms")
        ),
        seams=Seams(SeamKind(p["seam"]), p["blend_actions"], p["ensemble_coefficient"]),
        rtc=Rtc(
            p["rtc_horizon"],
            Schedule(p["rtc_schedule"]),
            Strength(p["rtc_strength"]),
            p["rtc_max_strength"],
        ),
        delay=DelaySettings(
            Estimate(p["delay_estimate"]),
            p["delay_quantile"],
            p["delay_window"],
            p.ns("delay_forget_s"),
        ),
        limits=Limits(p["limit_tolerance"], p.ns("ease_in_ms")),
    )
