"""Plays action chunks for robots without a trajectory controller, and reports each action that it applies."""

from __future__ import annotations

import json
import sys

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

from flashrt_ros.control.parameters import ACTION_PLAYER
from flashrt_ros.control.player import ChunkPlayer
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.msg import ActionApplied, ActionChunk
from flashrt_ros.nodes.base import RELIABLE, Parameters, run, to_time
from flashrt_ros.nodes.messages import (
    applied_message,
    command_message,
    diagnostic_status,
    playable_chunk,
)
from flashrt_ros.nodes.policy_diagnostics import COUNTS_KEY


class ActionPlayer(Node):
    """Commands on `~/command`, reports on `~/action_applied`; holds by sending nothing new, at once or after a stop."""

    def __init__(self) -> None:
        super().__init__("action_player")
        self._settings = Parameters(self, ACTION_PLAYER)
        robot = load_robot(find_robot(self._settings["robot"]))
        self._names = robot.joint_names
        self._limits = robot.limits()
        self._player = ChunkPlayer(self._names, self._settings.ns("max_age_ms"))
        self._told = ""
        self._interface = self._settings["interface"]
        kind = JointState if self._interface == "joint_state" else Float64MultiArray
        self._commands = self.create_publisher(kind, "~/command", RELIABLE)
        self._applied = self.create_publisher(ActionApplied, "~/action_applied", RELIABLE)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)
        self.create_subscription(ActionChunk, "policy/action_chunk", self._on_chunk, RELIABLE)
        self.create_timer(1.0 / self._settings["rate"], self._tick)
        self.create_timer(1.0, self._publish_diagnostics)

    def close(self) -> None:
        """Say what became of the chunks."""
        self._publish_diagnostics()

    def _on_chunk(self, message: ActionChunk) -> None:
        try:
            chunk = playable_chunk(message)
        except ValueError as error:
            self._player.refused["shape"] += 1
            self.get_logger().error(str(error), throttle_duration_sec=1.0)
            return
        reason = self._player.accept(chunk, self._now_ns())
        if reason:
            self.get_logger().warning(
                f"chunk {chunk.chunk_id} refused: {reason} (joints {self._names})",
                throttle_duration_sec=1.0,
            )

    def _tick(self) -> None:
        self._player.max_age_ns = self._settings.ns("max_age_ms")
        self._player.stop_ns = self._settings.ns("stop_ms")
        now_ns = self._now_ns()
        action = self._player.due(now_ns)
        if self._player.hold_reason != self._told:
            self._told = self._player.hold_reason
            if self._told:
                self.get_logger().warning(f"holding: {self._told}")
            else:
                self.get_logger().info("actions flow again")
        if action is None:
            stopping = self._player.stopping(now_ns)
            if stopping is not None:
                self._command(np.clip(stopping, *self._limits), now_ns)
            return
        self._command(action.positions, now_ns)
        self._applied.publish(
            applied_message(
                action.chunk_id,
                action.action_index,
                action.planned_ns,
                now_ns,
                self._names,
                action.positions,
            )
        )

    def _command(self, positions: np.ndarray, now_ns: int) -> None:
        self._commands.publish(
            command_message(self._interface, self._names, positions, to_time(now_ns))
        )

    def _publish_diagnostics(self) -> None:
        player = self._player
        counts = {
            "chunks_accepted": player.accepted,
            "chunks_refused": dict(player.refused),
            "holds": dict(player.holds),
        }
        held = bool(player.hold_reason)
        status = diagnostic_status(
            DiagnosticStatus.WARN if held else DiagnosticStatus.OK,
            self.get_fully_qualified_name().lstrip("/"),
            f"holding: {player.hold_reason}" if held else "playing",
            {COUNTS_KEY: json.dumps(counts)},
        )
        message = DiagnosticArray(status=[status])
        message.header.stamp = to_time(self._now_ns())
        self._diagnostics.publish(message)

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def main() -> int:
    """Run the node."""
    return run(ActionPlayer)


if __name__ == "__main__":
    sys.exit(main())
