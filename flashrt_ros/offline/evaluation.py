"""How good were the actions of a run: against recorded ones, and against those of the chunk before."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.control.chunk import Chunk
from flashrt_ros.control.robot import Robot
from flashrt_ros.offline.recorded_actions import RecordedActions


@dataclass(frozen=True, slots=True, eq=False)
class ActionTable:
    """Every action of every chunk, beside what was recorded for the same moment."""

    joints: Sequence[str]
    units: Sequence[str]
    chunk_id: NDArray[np.int64]
    """[chunks]"""
    planned_ns: NDArray[np.int64]
    """[chunks, horizon]: when each action is meant, ROS time."""
    actions: NDArray[np.float32]
    """[chunks, horizon, joints], robot units."""
    recorded: NDArray[np.float64]
    """The same shape; NaN where nothing was recorded."""


def action_table(chunks: Sequence[Chunk], robot: Robot, recorded: RecordedActions) -> ActionTable:
    """Put the actions of all chunks beside the recorded ones."""
    joints, count = len(robot.joints), len(chunks)
    horizon = chunks[0].horizon if chunks else 0
    starts = np.array([chunk.planned_start_ns for chunk in chunks], dtype=np.int64)
    planned_ns = starts[:, None] + np.arange(horizon, dtype=np.int64) * robot.period_ns
    actions = np.array([chunk.actions for chunk in chunks], dtype=np.float32)
    return ActionTable(
        joints=robot.joint_names,
        units=[joint.unit for joint in robot.joints],
        chunk_id=np.array([chunk.chunk_id for chunk in chunks], dtype=np.int64),
        planned_ns=planned_ns,
        actions=actions.reshape(count, horizon, joints),
        recorded=recorded.at(planned_ns.reshape(-1)).reshape(count, horizon, joints),
    )


def action_error(table: ActionTable) -> dict[str, Any]:
    """Mean absolute and root mean square error of every action against the recorded one, in the joints' units.

    Returns:
        `compared` and `not_compared` actions; `per_joint` and, by index in the chunk, `by_horizon_index`.
    """
    error = table.actions - table.recorded
    present = np.asarray(~np.isnan(error).any(axis=2))
    result: dict[str, Any] = {
        "compared": int(present.sum()),
        "not_compared": int((~present).sum()),
        "per_joint": {},
        "by_horizon_index": {},
    }
    for at, (joint, unit) in enumerate(zip(table.joints, table.units, strict=True)):
        values = error[..., at]
        result["per_joint"][joint] = {"unit": unit, **_mae_rmse(values[present])}
        rows = [_mae_rmse(values[:, k][present[:, k]]) for k in range(values.shape[1])]
        result["by_horizon_index"][joint] = {
            name: [row[name] for row in rows] for name in ("mae", "rmse")
        }
    return result


def consistency(table: ActionTable) -> dict[str, Any]:
    """How much each chunk changes what the one before it said about the same moments.

    The earlier chunk is interpolated linearly at the later one's times, where both have something to say.

    Returns:
        `compared` actions, and per joint mean absolute, root mean square and largest difference in its unit.
    """
    differences = []
    for number in range(1, len(table.chunk_id)):
        earlier, later = table.planned_ns[number - 1], table.planned_ns[number]
        shared = (later >= earlier[0]) & (later <= earlier[-1])
        if not shared.any():
            continue
        offsets = later[shared] - earlier[0]
        known = earlier - earlier[0]
        expected = np.stack(
            [np.interp(offsets, known, column) for column in table.actions[number - 1].T], axis=1
        )
        differences.append(table.actions[number][shared] - expected)
    stacked = np.concatenate(differences) if differences else np.zeros((0, len(table.joints)))
    per_joint = {}
    for at, (joint, unit) in enumerate(zip(table.joints, table.units, strict=True)):
        values = stacked[:, at]
        largest = float(np.abs(values).max()) if len(values) else None
        per_joint[joint] = {"unit": unit, **_mae_rmse(values), "max": largest}
    return {"compared": len(stacked), "per_joint": per_joint}


def write_actions_csv(table: ActionTable, path: Path) -> None:
    """One row for each action: chunk_id, action_index, planned_ns, `<joint>`, `recorded.<joint>`."""
    columns = _columns(table)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def write_parquet(columns: dict[str, NDArray[Any]], path: Path) -> None:
    """Columns of equal length as a Parquet file.

    Raises:
        ImportError: pyarrow is not installed.
    """
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)


def write_actions_parquet(table: ActionTable, path: Path) -> None:
    """The rows of `write_actions_csv`."""
    write_parquet(_columns(table), path)


def _columns(table: ActionTable) -> dict[str, NDArray[Any]]:
    count, horizon = table.planned_ns.shape
    columns: dict[str, NDArray[Any]] = {
        "chunk_id": np.repeat(table.chunk_id, horizon),
        "action_index": np.tile(np.arange(horizon), count),
        "planned_ns": table.planned_ns.reshape(-1),
    }
    for at, joint in enumerate(table.joints):
        columns[joint] = table.actions[..., at].reshape(-1)
    for at, joint in enumerate(table.joints):
        columns[f"recorded.{joint}"] = table.recorded[..., at].reshape(-1)
    return columns


def _mae_rmse(values: NDArray[np.floating]) -> dict[str, float | None]:
    if not len(values):
        return {"mae": None, "rmse": None}
    wide = values.astype(np.float64)
    return {"mae": float(np.abs(wide).mean()), "rmse": float(np.sqrt(np.square(wide).mean()))}
