"""The stages of a call and what has versions between them: the engine's contract, written down."""

from __future__ import annotations

from flashrt_ros.models.config import ModelConfig
from flashrt_ros.runtime.contract import Rate, Stage


def marks(views: int) -> list[str]:
    """What has a version beside the buffers: parts of `rows`, `prompt`, `keys`, and the layout of the prefix."""
    slots = [f"{kind}.{slot}" for slot in range(views) for kind in ("slot", "rows.view")]
    return [*slots, "views", "tokens.fixed", "tokens.moving", "rows.fixed", "rows.moving",
            "prefix", "state_token"]  # fmt: skip


def stages(config: ModelConfig, views: int) -> list[Stage]:
    """From pictures and tokens to actions; `see.{slot}` is one stage for each view."""
    view_rows = tuple(f"rows.view.{slot}" for slot in range(views))
    rows = (*view_rows, "rows.fixed", "rows.moving", "views")
    see = [
        Stage(f"see.{slot}", Rate.OBSERVATION, (f"slot.{slot}",), (f"rows.view.{slot}",))
        for slot in range(views)
    ]
    fixed, moving = ("tokens.fixed", "views"), ("tokens.moving", "views")
    pi0 = config.family == "pi0"
    state = Stage("append_state", Rate.OBSERVATION, ("prefix", "state"), ("state_token",))
    return [
        *see,
        Stage("read_fixed", Rate.INSTRUCTION, fixed, ("rows.fixed",)),
        Stage("read_moving", Rate.OBSERVATION, moving, ("rows.moving",)),
        Stage("encode", Rate.OBSERVATION, rows, ("prefix",)),
        *([state] if pi0 else []),
        Stage("denoise", Rate.STEP, ("prefix", "state_token", "x0"), ("actions",)),
    ]
