"""A session with its inputs: what is inferred, what is not, and when the robot is held. Live and in a replay."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flashrt_ros.control.chunk import Inference
from flashrt_ros.control.observer import Observer, Settings
from flashrt_ros.control.resets import HOLD
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.session_settings import session_settings
from flashrt_ros.observation.frame import FrameSet, Observation


class PolicyRunner:
    """Decides for each set whether it is inferred, and watches over silence. Knows no ROS.

    `infer` is called by one worker, `watch` by another thread.

    Args:
        session: what infers.
        observer: where the sets come from.
        settings: of the policy node; read anew at each call.
        now_ns: ROS time at which it starts; the silence of the policy counts from here.
        holds: counts the holds, where they are to be counted beyond this runner's life.
    """

    def __init__(
        self,
        session: PolicySession,
        observer: Observer,
        settings: Settings,
        now_ns: int,
        holds: Counter[str] | None = None,
    ) -> None:
        self.session = session
        self.observer = observer
        self._settings = settings
        self.last_publish_ns = now_ns
        self.holding = ""
        """Why the robot is held; empty while it is not."""
        self.holds: Counter[str] = Counter() if holds is None else holds
        """Times that a hold began, by reason."""

    def infer(self, frame_set: FrameSet, now_ns: int) -> tuple[Observation, Inference] | None:
        """Infer one set, as the parameters are now; None when it is not to be inferred, which is counted.

        Raises:
            ObservationError: it cannot become an observation; counted.
            UnsafeActionError: the actions must not reach the robot; counted.
            ValueError: the policy refuses the instruction; counted.
        """
        instruction = self._settings["instruction"]
        if not instruction:
            self.observer.reject("no_instruction")
            return None
        if now_ns - frame_set.stamp_ns > self._settings.ns("max_age_ms"):
            self.observer.reject("stale")
            return None
        self.session.settings = self._settings.made(session_settings)
        if not self.session.due(frame_set.stamp_ns, instruction):
            self.observer.reject("not_due")
            return None
        observation = self.observer.observe(frame_set)
        return observation, self.session.step(observation, instruction)

    def counts(self) -> dict[str, Any]:
        """What became of everything received, inferred and refused, as plain values."""
        return {
            "holds": dict(self.holds),
            **self.session.counts(),
            **self.observer.counts(),
        }

    def published(self, publish_ns: int) -> bool:
        """Say that a chunk went out; returns whether that ended a hold."""
        self.last_publish_ns = publish_ns
        held, self.holding = bool(self.holding), ""
        return held

    def watch(self, now_ns: int) -> str:
        """Hold when an input fell silent or no chunk came for `max_age_ms`; returns why, when a hold begins."""
        watchdog = self.observer.watchdog
        watchdog.max_silence_ns = max_age_ns = self._settings.ns("max_age_ms")
        silent = watchdog.silent(now_ns)
        if silent:
            reason = f"silent: {', '.join(silent)}"
        elif self._settings["instruction"] and now_ns - self.last_publish_ns > max_age_ns:
            reason = "no chunk"
        else:
            return ""
        if self.holding == reason:
            return ""
        self.holding = reason
        self.holds[reason] += 1
        self.session.reset(HOLD)
        return reason

    def clock_jumped(self, now_ns: int) -> None:
        """The clock went back to `now_ns`."""
        self.last_publish_ns = now_ns
        self.observer.clock_jumped(now_ns)
