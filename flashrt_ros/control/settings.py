"""Everything that can be set about a session. Read once for each inference, so it may change in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from flashrt_ros.control.chunk import Start
from flashrt_ros.control.delay import DelaySettings
from flashrt_ros.control.replanning import Replanning
from flashrt_ros.control.resets import ResetRules
from flashrt_ros.control.rtc import Rtc
from flashrt_ros.control.safety import Limits
from flashrt_ros.control.seams import Seams
from flashrt_ros.control.warm_start import WarmStart


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How chunks are made, when, and how each follows the one before."""

    start: Start = Start.ALIGNED
    """When action 0 of a chunk is meant."""
    max_action_age_ns: int | None = None
    """Actions due longer than this after the capture are not applied; None applies all."""
    warm_start: WarmStart = field(default_factory=WarmStart)
    resets: ResetRules = field(default_factory=ResetRules)
    replanning: Replanning = field(default_factory=Replanning)
    seams: Seams = field(default_factory=Seams)
    rtc: Rtc = field(default_factory=Rtc)
    delay: DelaySettings = field(default_factory=DelaySettings)
    limits: Limits = field(default_factory=Limits)
