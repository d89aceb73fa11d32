"""The companion: how old was the observation behind every action when it was applied?

Joins `ActionChunk` with `ActionApplied`, publishes each age and running statistics, watches thresholds, and writes a
log as it goes.
"""

from __future__ import annotations

import array
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile
from std_msgs.msg import Header

from flashrt_ros.control.parameters import AGE_LOGGER
from flashrt_ros.msg import ActionAge as ActionAgeMessage
from flashrt_ros.msg import ActionApplied, ActionChunk, AgeStatistics
from flashrt_ros.nodes.base import RELIABLE, Parameters, run, to_duration, to_time
from flashrt_ros.nodes.messages import age_message, chunk_record, diagnostic_status
from flashrt_ros.nodes.policy_diagnostics import COUNTS_KEY
from flashrt_ros.observation.age_log import AgeLogWriter
from flashrt_ros.observation.ages import STATISTICS_ROWS, ActionAge, AgeJoiner, AgeWindow
from flashrt_ros.observation.timeline import to_ns

_THRESHOLDS = ("warn_age_ms", "error_age_ms")
_PERCENTILES = (50, 95, 99, 100)
_DEEP = QoSProfile(history=HistoryPolicy.KEEP_LAST, depth=200)


def free_path(path: Path) -> Path:
    """The path itself, or with a number where it is taken: nothing is overwritten."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


class AgeLogger(Node):
    """See the module."""

    def __init__(self) -> None:
        super().__init__("age_logger")
        self._settings = parameters = Parameters(self, AGE_LOGGER, self._check_parameter)
        self._check_parameter("warn_age_ms", parameters["warn_age_ms"])
        self._window_ns = parameters.ns("window_s")
        self._window = AgeWindow(self._window_ns)
        self._joiner = AgeJoiner()
        self._first_chunk_ns: int | None = None
        self._log: AgeLogWriter | None = None
        if parameters["log_file"]:
            path = free_path(Path(parameters["log_file"]).expanduser())
            thresholds = {name: parameters[name] for name in _THRESHOLDS}
            self._log = AgeLogWriter(path, self.get_fully_qualified_name(), thresholds)
            self.get_logger().info(f"logging to {path}")
        self._ages = self.create_publisher(ActionAgeMessage, "~/action_age", _DEEP)
        self._statistics = self.create_publisher(AgeStatistics, "~/statistics", RELIABLE)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)
        self.create_subscription(ActionChunk, "policy/action_chunk", self._on_chunk, _DEEP)
        self.create_subscription(
            ActionApplied, "action_player/action_applied", self._on_applied, _DEEP
        )
        self.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, RELIABLE)
        self.create_timer(1.0 / parameters["rate"], self._tick)

    def _check_parameter(self, name: str, value: Any) -> None:
        """Raise ValueError for thresholds in the wrong order."""
        if name not in _THRESHOLDS:
            return
        warn_ms, error_ms = (
            value if other == name else self._settings[other] for other in _THRESHOLDS
        )
        if warn_ms > error_ms:
            raise ValueError(
                f"parameter {name}: expected warn_age_ms ≤ error_age_ms, found {warn_ms:g} > {error_ms:g} ms"
            )

    def close(self) -> None:
        """Settle what is open and say what the run was like."""
        self._take(self._joiner.finish())
        self._log_fates()
        if self._log is not None:
            self._log.close()
        table = self._window.percentiles(_PERCENTILES) / 1e6
        fates = ", ".join(
            f"{count} {fate}" for fate, count in self._joiner.fates().items() if count
        )
        self.get_logger().info(
            f"{self._joiner.chunks} chunks; actions: {fates or 'none'}; age over the last "
            f"{self._window_ns / 1e9:g} s: P50 {table[0, 0]:.1f} ms, P95 {table[1, 0]:.1f} ms, "
            f"P99 {table[2, 0]:.1f} ms"
        )

    def _on_chunk(self, message: ActionChunk) -> None:
        record = chunk_record(message)
        if self._first_chunk_ns is None:
            self._first_chunk_ns = record.timeline.publish_ns
        if self._log is not None:
            frames = {
                camera.camera: (to_ns(camera.capture), to_ns(camera.receive))
                for camera in message.cameras
                if camera.status == camera.SYNCHRONIZED
            }
            captures = [capture_ns for capture_ns, _ in frames.values()]
            self._log.chunk(
                record,
                cameras=frames,
                skew_ns=max(captures, default=0) - min(captures, default=0),
                instruction=message.instruction,
                steps=message.steps,
                warm_start=message.warm_start,
                divergence=message.divergence,
                reset_reason=message.reset_reason,
                recovery_ns=message.recovery_ns,
                deadline_missed=message.deadline_missed,
                seam=message.seam,
                executed=message.executed,
                frozen=message.frozen,
                clipped=message.clipped,
                plan_id=message.plan_id,
                infer_steady_ns=message.infer_steady_ns,
            )
        self._take(self._joiner.add_chunk(record))

    def _on_applied(self, message: ActionApplied) -> None:
        age = self._joiner.add_applied(
            message.chunk_id, message.action_index, to_ns(message.header.stamp)
        )
        if age is not None:
            self._take([age])

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        """Keep the counts that nodes publish of themselves."""
        if self._log is None:
            return
        for status in message.status:
            for item in status.values:
                if item.key == COUNTS_KEY:
                    stamp_ns = to_ns(message.header.stamp)
                    self._log.fates(status.name, stamp_ns, json.loads(item.value))

    def _take(self, ages: Iterable[ActionAge]) -> None:
        for age in ages:
            self._window.add(age)
            self._ages.publish(age_message(age))
            if self._log is not None:
                self._log.age(age)

    def _tick(self) -> None:
        now_ns = int(self.get_clock().now().nanoseconds)
        self._take(self._joiner.settle(now_ns))
        self._window.trim(now_ns)
        self._log_fates()
        table = self._window.percentiles(_PERCENTILES)
        status = self._status(now_ns, p50_ms=table[0, 0] / 1e6, p99_ms=table[2, 0] / 1e6)
        diagnostics = DiagnosticArray(status=[status])
        diagnostics.header.stamp = to_time(now_ns)
        self._diagnostics.publish(diagnostics)
        rows = [array.array("q", row.tobytes()) for row in table]
        fates = self._joiner.fates()
        self._statistics.publish(
            AgeStatistics(
                header=Header(stamp=to_time(now_ns)),
                window=to_duration(self._window_ns),
                count=len(self._window),
                measured=self._window.measured,
                terms=list(STATISTICS_ROWS),
                p50_ns=rows[0],
                p95_ns=rows[1],
                p99_ns=rows[2],
                max_ns=rows[3],
                fates=list(fates),
                fate_counts=array.array("Q", fates.values()),
            )
        )

    def _status(self, now_ns: int, *, p50_ms: float, p99_ms: float) -> DiagnosticStatus:
        """Whether the ages within the window are as they should be."""
        level, text = DiagnosticStatus.OK, f"P50 {p50_ms:.1f} ms, P99 {p99_ms:.1f} ms"
        warn_ms, error_ms = (self._settings[name] for name in _THRESHOLDS)
        if not len(self._window):
            text = "no chunk yet" if self._first_chunk_ns is None else "no action yet"
            if self._first_chunk_ns is not None and now_ns - self._first_chunk_ns > self._window_ns:
                level = DiagnosticStatus.WARN
                text = f"no action was applied in the last {self._window_ns / 1e9:g} s"
        elif p99_ms > error_ms:
            level, text = DiagnosticStatus.ERROR, f"{text}: above error_age_ms = {error_ms:g}"
        elif p99_ms > warn_ms:
            level, text = DiagnosticStatus.WARN, f"{text}: above warn_age_ms = {warn_ms:g}"
        values = {
            "p50_ms": f"{p50_ms:.3f}",
            "p99_ms": f"{p99_ms:.3f}",
            "actions": len(self._window),
            "chunks": self._joiner.chunks,
        }
        return diagnostic_status(level, self.get_fully_qualified_name().lstrip("/"), text, values)

    def _log_fates(self) -> None:
        if self._log is not None:
            now_ns = int(self.get_clock().now().nanoseconds)
            counts = {
                "chunks": self._joiner.chunks,
                "actions": self._joiner.fates(),
                "reports_refused": dict(self._joiner.refused),
            }
            self._log.fates("age_logger", now_ns, counts)


def main() -> int:
    """Run the node."""
    return run(AgeLogger)


if __name__ == "__main__":
    sys.exit(main())
