"""How long does a report of a million actions take, and how much memory?

The log is made by the writer that the nodes use (250,000 chunks of 16 actions, four of each applied, about 370 MB; it
takes a minute and stays in --folder for the next time). The report is made by `flashrt report` in a process of its own,
which is timed from start to end; its peak memory is what the kernel counts.

    python benchmarks/report.py --output report.json
    python benchmarks/report.py --chunks 25000 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.observation.age_log import AgeLogWriter
from flashrt_ros.observation.ages import AgeJoiner, ChunkRecord
from flashrt_ros.observation.timeline import Timeline

MS = 1_000_000
T0_NS = 1_700_000_000_000_000_000
CHUNK_PERIOD_NS = 66 * MS
HORIZON, FIRST_VALID, APPLIED = 16, 4, 4


def write_log(path: Path, chunks: int) -> None:
    """A run with terms of gamma-distributed lengths, 4 × 3 ms on average."""
    random = np.random.default_rng(0)
    joiner = AgeJoiner()
    with AgeLogWriter(path, "benchmark") as log:
        for number in range(1, chunks + 1):
            capture_ns = T0_NS + number * CHUNK_PERIOD_NS
            lengths_ns = random.gamma(4.0, 3.0 * MS, 5).astype(np.int64)
            stamps_ns = (capture_ns + np.cumsum(lengths_ns)).tolist()
            record = ChunkRecord(
                number,
                Timeline(capture_ns, *stamps_ns),
                capture_ns,
                CHUNK_PERIOD_NS // APPLIED,
                HORIZON,
                FIRST_VALID,
            )
            log.chunk(
                record,
                skew_ns=2 * MS,
                instruction="touch the red block",
                plan_id="pi05/base/bfloat16/cuda",
                reset_reason="",
                steps=10,
                warm_start=False,
                infer_steady_ns=int(lengths_ns[3]),
                cameras={
                    "overhead": [capture_ns, stamps_ns[0]],
                    "wrist": [capture_ns + 2 * MS, stamps_ns[0]],
                },
            )
            joiner.add_chunk(record)
            for index in range(FIRST_VALID, FIRST_VALID + APPLIED):
                due_ns = stamps_ns[-1] + (index - FIRST_VALID) * record.period_ns
                age = joiner.add_applied(number, index, due_ns + int(random.integers(0, 5 * MS)))
                assert age is not None
                log.age(age)
            joiner.settle(stamps_ns[-1])
        log.fates("age_logger", T0_NS, {"actions": joiner.fates(), "reports_refused": {}})


def measure(log: Path) -> dict[str, float]:
    """Seconds and peak memory of one `flashrt report`."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "flashrt_ros.cli", "report", str(log), "--out", out]
        begin_s = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - begin_s
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1000),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=250_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    log = given.folder / f"flashrt_report_{given.chunks}.jsonl"
    if not log.is_file():
        print(f"writing {log}", file=sys.stderr)
        unfinished = log.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        write_log(unfinished, given.chunks)
        unfinished.rename(log)
    result: dict[str, Any] = {
        "actions": given.chunks * APPLIED,
        "log_mb": round(log.stat().st_size / 1e6),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_average_before": round(os.getloadavg()[0], 2),
        "runs": [],
    }
    for _ in range(given.repeats):
        result["runs"].append(measure(log))
        print(result["runs"][-1], file=sys.stderr)
    text = json.dumps(result, indent=2)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
