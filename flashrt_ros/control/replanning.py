"""When the next inference is due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flashrt_ros.control.plan import Execution, Plan


class Replan(str, Enum):
    """What an inference waits for. It takes the newest observation, and there is never a second one beside it."""

    NEWEST = "newest"
    """For an observation."""
    ACTIONS = "actions"
    """Until a number of the plan's actions lies behind."""
    REMAINING = "remaining"
    """Until the plan's end is near."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """Settings of replanning."""

    mode: Replan = Replan.NEWEST
    actions: int = 4
    """Of `Replan.ACTIONS`: actions of the plan that lie behind the observation."""
    remaining_ns: int = 200_000_000
    """Of `Replan.REMAINING`: time that the plan still has."""

    def due(self, plan: Plan | None, execution: Execution, capture_ns: int, now_ns: int) -> bool:
        """Whether an observation of `capture_ns` is to be inferred now; always without a plan."""
        if plan is None or self.mode is Replan.NEWEST:
            return True
        if self.mode is Replan.ACTIONS:
            return execution.executed(plan, capture_ns) >= self.actions
        return plan.end_ns - now_ns < self.remaining_ns
