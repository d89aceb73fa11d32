"""Made-up logs, written by the writer that the nodes use."""

import numpy as np

from flashrt_ros.observation.age_log import AgeLogWriter
from flashrt_ros.observation.ages import AgeJoiner, ChunkRecord
from flashrt_ros.observation.timeline import Timeline

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
POLICY_COUNTS = {
    "cameras": {
        "overhead_camera_with_a_long_name": {
            "received": 123456,
            "used": 123000,
            "superseded": 400,
            "late": 6,
            "rejected": {"zero_stamp": 40, "future_stamp": 9},
            "pending": 1,
            "unexplained": 0,
            "lost_before": 17,
        }
    },
    "sets": {
        "received": 123000,
        "taken": 122000,
        "superseded": 999,
        "waiting": 1,
        "rejected": {"stale": 5, "joint_states": 3},
    },
    "resets": {"episode": 1, "hold": 2},
    "holds": {"silent: overhead": 2},
    "chunks_refused": {"not_finite": 1},
    "recovery": {"count": 3, "p50_ms": 25.25, "p95_ms": 31.5, "p99_ms": 31.5},
    "deadlines_missed": {"recovery": 2, "steady": 1},
    "clipped": {"position": 7},
}


def write_log(path, chunks=200, seed=0, delay_ms=0, applied=3, settings=None):
    """A made-up run: 20 chunks a second, `applied` actions of each; `delay_ms` is added to the term input."""
    random = np.random.default_rng(seed)
    joiner = AgeJoiner()
    with AgeLogWriter(path, "test", settings) as log:
        for number in range(1, chunks + 1):
            capture = T0 + number * 50 * MS
            stamps = capture + delay_ms * MS + np.cumsum(random.integers(1, 20 * MS, 5))
            record = ChunkRecord(
                number, Timeline(capture, *map(int, stamps)), capture, 10 * MS, 16, 4
            )
            cameras = {
                "overhead": [capture, int(stamps[0])],
                "wrist": [capture + 2 * MS, int(stamps[0])],
            }
            log.chunk(
                record,
                skew_ns=2 * MS,
                instruction="go",
                plan_id="expert",
                reset_reason="",
                cameras=cameras,
            )
            joiner.add_chunk(record)
            for index in range(4, 4 + applied):
                apply = int(stamps[-1] + random.integers(0, 30 * MS))
                log.age(joiner.add_applied(number, index, apply))
        log.fates("policy", T0, POLICY_COUNTS)
        log.fates("age_logger", T0, {"actions": joiner.fates(), "reports_refused": {}})
        log.fates(
            "player", T0, {"chunks_accepted": 200, "chunks_refused": {"older": 1}, "holds": {}}
        )
    return path
