"""How old is a camera frame when the subscriber's callback gets it, and how many frames never arrive?

One process publishes rgb8 images of 1 or 3 cameras at 30 Hz, all at the same tick, one after the other; another
subscribes as the policy node does (its QoS, its executor). Both are rclpy nodes on a ROS domain of their own. The age
is receipt minus header.stamp, which is set right before publish, so the publisher's own copies count. Each case runs
with the package's Fast DDS profile (config/fastdds.xml) and with the middleware's own settings.

    make build && source build/setup.bash
    python benchmarks/transport.py --output transport.json
    python benchmarks/transport.py --executor single --profile fastdds.xml --profile other.xml

Ages include what else the machine does: the load average is printed and written beside them.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
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
from flashrt_ros.nodes.base import sensor_qos, to_ns, to_time
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
    if name == "events":
        from rclpy.experimental.events_executor import EventsExecutor

        return EventsExecutor()
    # Three threads, as the policy node's main.
    return SingleThreadedExecutor() if name == "single" else MultiThreadedExecutor(num_threads=3)


def subscribe(cameras: int, executor_name: str) -> None:
    """Receive until stdin closes, then print the ages in nanoseconds of every counted frame as JSON."""
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

    # A thread that ends with the process: not every executor returns at a shutdown from elsewhere.
    threading.Thread(target=executor.spin, daemon=True).start()
    sys.stdin.read()
    print(json.dumps(ages_ns), flush=True)
    os._exit(0)


# ------------------------------------------------------------ one case and all of them


def run_case(cameras: int, size: str, profile: str, executor: str, seconds: float) -> dict[str, Any]:
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
        [*this, "subscribe", str(cameras), executor],
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
    from importlib.metadata import PackageNotFoundError, version

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
        subscribe(int(sys.argv[2]), sys.argv[3])
        return 0
    summary, usage = __doc__.split("\n", 1)
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
    parser.add_argument(
        "--executors", nargs="+", default=["multi"], choices=["multi", "single", "events"]
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
    print(f"{'case':<14}{'executor':<9}{'profile':<14}{'sent':>5}{'got':>5}{'lost':>5}", end="")
    print(f"{'P50':>7}{'P95':>7}{'P99':>7}{'max':>7} ms")
    for _ in range(arguments.repeats):
        for size in arguments.sizes:
            for cameras in arguments.cameras:
                for executor in arguments.executors:
                    for profile in arguments.profiles:
                        result = run_case(cameras, size, profile, executor, arguments.seconds)
                        results.append(result)
                        print_row(result)
                        if arguments.output:
                            data = {"machine": machine(), "settings": settings, "results": results}
                            arguments.output.write_text(json.dumps(data, indent=2) + "\n")
    return 0


def print_row(result: dict[str, Any]) -> None:
    ages = result["age_ms"]
    columns = "".join(f"{ages.get(name, float('nan')):7.1f}" for name in ("p50", "p95", "p99", "max"))
    case = f"{result['cameras']} x {result['size']}"
    print(
        f"{case:<14}{result['executor']:<9}{result['profile'][:13]:<14}"
        f"{result['sent']:>5}{result['received']:>5}{result['lost']:>5}{columns}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
