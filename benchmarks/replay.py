"""How much faster than real time does a recording replay?

    python benchmarks/replay.py RECORDING [RECORDING ...] [--checkpoint test/data/tiny_so101] [--json FILE]

Each recording (`flashrt record`) is replayed in a process of its own, as the command does it, with the inference
latency of this machine. `replay_s` is everything from the first message to the last result, `load_s` torch and the
checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path


def measure(bag: Path, checkpoint: str, steps: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "flashrt_ros.cli", "replay", str(bag), "--out", str(out)]
        command += ["--checkpoint", checkpoint, "-p", f"steps:={steps}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        result = json.loads((out / "replay.json").read_text())
    summary = result["summary"]
    return {
        "bag": bag.name,
        "checkpoint": Path(checkpoint).name,
        "steps": steps,
        "recorded_s": result["bag"]["duration_s"],
        "load_s": result["load_s"],
        "replay_s": result["replay_s"],
        "times_real_time": result["times_real_time"],
        "chunks": summary["chunks"],
        "sets_superseded": summary["sets"]["superseded"],
        "infer_p50_ms": summary["terms"]["infer"]["p50_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bags", nargs="+", type=Path)
    parser.add_argument("--checkpoint", default="test/data/tiny_so101")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [
        measure(bag, checkpoint, given.steps)
        for bag in given.bags
        for checkpoint in ("expert", given.checkpoint)
        for _ in range(given.repeats)
    ]
    result = {
        "machine": {"cores": len(os.sched_getaffinity(0)), "processor": platform.processor()},
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "unset"),
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
