"""How old is a camera frame when the subscriber's callback gets it, and how many frames never arrive?

One process publishes rgb8 images of 1 or 3 cameras at 30 Hz, all at the same tick, one after the other; another
subscribes with the policy node's QoS. Both are rclpy nodes on a ROS domain of their own. The age is receipt minus
header.stamp, which is set right before publish, so the publisher's own copies count. Each case runs with the package's
Fast DDS profile (config/fastdds.xml) and with the middleware's own settings.

    make build && source build/setup.bash
    python benchmarks/transport.py --output transport.json
    python benchmarks/transport.py --executors multi single --processes plain prepared --repeats 3

The publisher is an ordinary node, as somebody's camera driver; `prepared` is what the package's own nodes do to their
process (nodes.base.prepare_process). Ages include what else the machine does: the load average is written beside them.
"""

from __future__ import annotations

import argparse
import array
import itertools
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import rclpy
from rclpy.executors import (
    Executor,
    MultiThreadedExecutor,
    SingleThreadedExecutor,
)
from sensor_msgs.msg import Image

from flashrt_ros.demo import profile_variable
from flashrt_ros.nodes.base import (
    EXECUTOR_THREADS,
    prepare_process,
    sensor_qos,
    to_time,
)
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.paths import config_path

RATE_HZ = 30
WARM_UP_FRAMES = 30
CAMERA_QOS_DEPTH = 4
SIZES = ("640x480", "1280x720")
CAMERA_COUNTS = (1, 3)
MIDDLEWARE_DEFAULT = "default"
MATCH_LIMIT_S = 30.0
ARRIVAL_LIMIT_S = 1.0
PROFILE_VARIABLES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")


# ------------------------------------------------------------ the two processes


def publish(cameras: int, width: int, height: int, frames: int) -> None:
    """Publish `frames` images of each camera after a warm-up; each says its number in frame_id, warm-up below 0."""
    rclpy.init()
    node = rclpy.create_node("cameras")
    publishers = [
        node.create_publisher(Image, f"/camera_{camera}/image_raw", sensor_qos(CAMERA_QOS_DEPTH))
        for camera in range(cameras)
    ]
    image = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    # Not all zero, so that no page of it is shared.
    image.data = array.array("B", bytes(range(256)) * (3 * width * height // 256))
    deadline = time.monotonic() + MATCH_LIMIT_S
    while not all(publisher.get_subscription_count() for publisher in publishers):
        if time.monotonic() > deadline:
            raise SystemExit(f"no subscriber within {MATCH_LIMIT_S:.0f} s")
        time.sleep(0.01)
    period_ns = 1_000_000_000 // RATE_HZ
    begin_ns = time.monotonic_ns()
    for number in range(-WARM_UP_FRAMES, frames):
        due_ns = begin_ns + (number + WARM_UP_FRAMES) * period_ns
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        image.header.frame_id = str(number)
        for publisher in publishers:
            image.header.stamp = to_time(time.time_ns())
            publisher.publish(image)
    rclpy.shutdown()


def make_executor(name: str) -> Executor:
    """Executor by its name on the command line."""
    if name == "single":
        return SingleThreadedExecutor()
    return MultiThreadedExecutor(num_threads=EXECUTOR_THREADS)


def subscribe(cameras: int, executor_name: str, process: str) -> None:
    """Receive until stdin closes, then print the ages in nanoseconds of every counted frame as JSON."""
    if process == "prepared":
        prepare_process()
    rclpy.init()
    node = rclpy.create_node("subscriber")
    ages_ns: list[int] = []

    def receive(image: Image) -> None:
        receive_ns = time.time_ns()
        if int(image.header.frame_id) >= 0:
            ages_ns.append(receive_ns - to_ns(image.header.stamp))

    for camera in range(cameras):
        node.create_subscription(
            Image, f"/camera_{camera}/image_raw", receive, sensor_qos(CAMERA_QOS_DEPTH)
        )
    executor = make_executor(executor_name)
    executor.add_node(node)

    spinner = threading.Thread(target=executor.spin)
    spinner.start()
    sys.stdin.read()
    executor.shutdown()
    spinner.join()
    rclpy.shutdown()
    print(json.dumps(ages_ns))


# ------------------------------------------------------------ one case and all of them


def run_case(
    cameras: int, size: str, executor: str, process: str, profile: str, seconds: float
) -> dict[str, Any]:
    """Run both processes once; ages in ms."""
    environment = {k: v for k, v in os.environ.items() if k not in PROFILE_VARIABLES}
    if profile != MIDDLEWARE_DEFAULT:
        environment[profile_variable()] = profile
    environment["ROS_DOMAIN_ID"] = str(1 + os.getpid() % 100)
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    frames = round(seconds * RATE_HZ)
    width, height = size.split("x")
    load = os.getloadavg()[0]
    this = [sys.executable, __file__]
    subscriber = subprocess.Popen(
        [*this, "subscribe", str(cameras), executor, process],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        subprocess.run(
            [*this, "publish", str(cameras), width, height, str(frames)],
            env=environment,
            check=True,
            timeout=MATCH_LIMIT_S + 10 * seconds + 30,
        )
        # What has not arrived by then never will.
        time.sleep(ARRIVAL_LIMIT_S)
        output, _ = subscriber.communicate(timeout=30)
    finally:
        subscriber.kill()
    ages_ms = sorted(age_ns / 1e6 for age_ns in json.loads(output))
    sent = frames * cameras
    return {
        "cameras": cameras,
        "size": size,
        "profile": Path(profile).name,
        "executor": executor,
        "process": process,
        "sent": sent,
        "received": len(ages_ms),
        "lost": sent - len(ages_ms),
        "load_average": round(load, 2),
        "age_ms": percentiles(ages_ms),
    }


def percentiles(ages_ms: Sequence[float]) -> dict[str, float]:
    """P50, P95, P99 and largest of sorted ages; empty without ages."""
    if not ages_ms:
        return {}
    last = len(ages_ms) - 1
    ranks = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(ages_ms[round(rank * last)], 3) for name, rank in ranks.items()}


def machine() -> dict[str, Any]:
    """What the figures hold for."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    try:
        rclpy_version = version("rclpy")
    except PackageNotFoundError:
        rclpy_version = "unknown"
    return {
        "platform": platform.platform(),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "ros_distro": os.environ.get("ROS_DISTRO", "wheels"),
        "rclpy": rclpy_version,
        "rmw": rclpy.get_rmw_implementation_identifier(),
    }


def main() -> int:
    if sys.argv[1:2] == ["publish"]:
        cameras, width, height, frames = map(int, sys.argv[2:])
        publish(cameras, width, height, frames)
        return 0
    if sys.argv[1:2] == ["subscribe"]:
        subscribe(int(sys.argv[2]), sys.argv[3], sys.argv[4])
        return 0
    summary = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured time of each run")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each case, in turn")
    parser.add_argument("--cameras", type=int, nargs="+", default=CAMERA_COUNTS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="WIDTHxHEIGHT")
    parser.add_argument(
        "--profiles",
        nargs="+",
        default=[MIDDLEWARE_DEFAULT, str(config_path("fastdds.xml"))],
        help=f"Fast DDS profile files to compare; {MIDDLEWARE_DEFAULT}: none",
    )
    parser.add_argument("--executors", nargs="+", default=["single"], choices=["multi", "single"])
    parser.add_argument(
        "--processes",
        nargs="+",
        default=["prepared"],
        choices=["prepared", "plain"],
        help="whether the subscriber calls prepare_process first, as the package's nodes do",
    )
    parser.add_argument("--output", type=Path, help="JSON file, rewritten after every run")
    arguments = parser.parse_args()
    settings = {
        "rate_hz": RATE_HZ,
        "seconds": arguments.seconds,
        "encoding": "rgb8",
        "qos": f"best effort, keep last {CAMERA_QOS_DEPTH}",
    }
    results: list[dict[str, Any]] = []
    cases = itertools.product(
        arguments.sizes,
        arguments.cameras,
        arguments.executors,
        arguments.processes,
        arguments.profiles,
    )
    print(f"{'case':<13}{'subscriber':<16}{'profile':<12}{'sent':>5}{'recv':>5}{'lost':>5}", end="")
    print(f"{'P50':>6}{'P95':>6}{'P99':>6}{'max':>6}")
    for size, cameras, executor, process, profile in [*cases] * arguments.repeats:
        result = run_case(cameras, size, executor, process, profile, arguments.seconds)
        print(row(result), flush=True)
        results.append(result)
        if arguments.output:
            data = {"machine": machine(), "settings": settings, "results": results}
            arguments.output.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    print(f"ages in ms; load average of the last minute: {os.getloadavg()[0]:.1f}")
    return 0


def row(result: dict[str, Any]) -> str:
    """One line of the table, 80 columns."""
    case = f"{result['cameras']} x {result['size']}"
    subscriber = f"{result['executor']} {result['process']}"
    counts = "".join(f"{result[name]:>5}" for name in ("sent", "received", "lost"))
    ages = "".join(f"{age:>6.1f}" for age in result["age_ms"].values())
    return f"{case:<13}{subscriber:<16}{result['profile'][:11]:<12}{counts}{ages}"


if __name__ == "__main__":
    sys.exit(main())
