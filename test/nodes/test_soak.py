"""A minute at 30 Hz with everything switched on: memory stays, and every action has a fate."""

import time
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="ROS 2 is not installed")

from flashrt_ros.msg import ActionAge, ActionApplied, ActionChunk
from flashrt_ros.offline.run_log import read_run
from flashrt_ros.offline.summary import summarize

pytestmark = [pytest.mark.graph, pytest.mark.slow]

SECONDS = 60
WARM_UP_S = 20
MAX_GROWTH_MB = 4.0
"""Of a process between the 20th and the last second: its allocator's own breath."""


def resident_mb(pid):
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def test_a_minute_at_30_hz(graph, drivers, request):
    chunks = graph.collect(ActionChunk, "/policy/action_chunk", 500)
    applied = graph.collect(ActionApplied, "/action_player/action_applied", 500)
    ages = graph.collect(ActionAge, "/age_logger/action_age", 500)
    log = graph.folder / "ages.jsonl"
    nodes = {
        "policy": graph.start(
            "policy",
            autostart=True,
            instruction="pick up the cup",
            checkpoint=str(request.config.rootpath / "test/data/tiny_so101"),
            device="cpu",
            warm_start=True,
            seam="rtc",
        ),
        "action_player": graph.start("action_player", stop_ms=200.0),
        "age_logger": graph.start("age_logger", log_file=str(log)),
    }
    graph.wait_for(lambda: graph.client.count_subscribers("/overhead/image_raw") > 0, "the inputs")
    drivers.run(rate_hz=30.0)
    graph.wait_for(lambda: len(applied) > 10, "actions")
    begin_s = time.monotonic()
    sizes = {name: [] for name in nodes}
    while (passed_s := time.monotonic() - begin_s) < SECONDS:
        for name, process in nodes.items():
            sizes[name].append((passed_s, resident_mb(process.pid)))
        have = len(chunks)
        graph.wait_for(lambda have=have: len(chunks) > have + 20, "more chunks")
    drivers.stop()
    for name, process in nodes.items():
        settled = [size for passed_s, size in sizes[name] if passed_s >= WARM_UP_S]
        print(f"{name}: {settled[0]:.1f} MB after {WARM_UP_S} s, at most {max(settled):.1f} MB")
        assert max(settled) - settled[0] < MAX_GROWTH_MB, name
        if name == "age_logger":
            graph.wait_for(lambda: len(ages) == len(applied), "the age of every action")
        process.terminate()
        process.wait()
    summary = summarize(read_run(log))
    print(f"{summary['chunks']} chunks of {drivers.sent} observations")
    print(summary["action_fates"], summary["resets"])
    assert summary["chunks"] >= len(chunks) > SECONDS
    fates = summary["action_fates"]
    assert sum(fates.values()) == chunks[0].horizon * summary["chunks"], "0 unexplained"
    assert fates["pending"] == 0
    assert fates["applied"] == summary["actions_measured"] == len(applied)
    assert not summary["reports_refused"].get("unknown_chunk")
    assert summary["frames_unexplained"] == 0
