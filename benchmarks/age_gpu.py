"""How old is an observation when its chunk is published, with a network on this machine and pictures over real DDS?

Processes as on a robot: each camera is one, all at 30 Hz and at the same tick of the wall clock, each picture another;
joint states at 100 Hz are one; the policy node infers on a checkpoint; this one receives the chunks. Every term comes
from the stamps in the chunk: `input` capture to receipt of the oldest frame, `sync` until the set is complete, `queue`
until inference begins, `infer`, `output` until publication; `delivery` until this process has the chunk. `age` is
capture to publication, and `beside inference` what of it is not inference.

    make build && source build/setup.bash
    python benchmarks/age_gpu.py --output age.json
    python benchmarks/age_gpu.py --size tiny --device cpu --precision float32 --steps 2 --seconds 5

Weights are random, unless a checkpoint of an SO-101 is named. The actions move nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from common import add_policy_arguments, markdown, random_checkpoint, report, write
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from flashrt_ros.demo import node_environment
from flashrt_ros.models.processor import FILE_NAME
from flashrt_ros.msg import ActionChunk
from flashrt_ros.nodes.base import RELIABLE, prepare_process, sensor_qos, to_time
from flashrt_ros.observation.timeline import to_ns
from flashrt_ros.paths import executable_path

CAMERA_RATE_HZ = 30
JOINT_STATE_RATE_HZ = 100
JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]
DRIVER = "driver"
"""First argument of the processes that this one starts from its own file."""
START_LIMIT_S = 400.0
STOP_LIMIT_S = 20.0
WARM_UP_CHUNKS = 30
INSTRUCTION = "put the red cup on the shelf beside the green block"
TERMS = ("input", "sync", "queue", "infer", "output", "delivery", "age", "beside inference")


# ------------------------------------------------------------ the drivers, a process each


def publish_pictures(camera: str, width: int, height: int) -> None:
    """One camera, until stdin closes. The stamp is taken last: its pictures are made before."""
    node = _driver(f"camera_{camera}")
    publisher = node.create_publisher(Image, f"/{camera}/image_raw", sensor_qos(4))
    random = np.random.default_rng(list(camera.encode()))
    pictures = [
        Image(height=height, width=width, encoding="rgb8", step=3 * width) for _ in range(8)
    ]
    for picture in pictures:
        picture.data.frombytes(random.integers(0, 256, 3 * width * height, np.uint8).tobytes())
    for number in _ticks(CAMERA_RATE_HZ):
        picture = pictures[number % len(pictures)]
        picture.header.stamp = to_time(time.time_ns())
        publisher.publish(picture)
    rclpy.shutdown()


def publish_joint_states() -> None:
    """All joints, until stdin closes."""
    node = _driver("joints")
    publisher = node.create_publisher(JointState, "/joint_states", sensor_qos(10))
    state = JointState(name=JOINTS)
    for number in _ticks(JOINT_STATE_RATE_HZ):
        state.header.stamp = to_time(time.time_ns())
        state.position = [0.1 * np.sin(0.01 * number + joint) for joint in range(len(JOINTS))]
        publisher.publish(state)
    rclpy.shutdown()


def _driver(name: str) -> Node:
    prepare_process()
    rclpy.init()
    return rclpy.create_node(name)


def _ticks(rate_hz: int) -> Iterator[int]:
    """Numbers at multiples of the period on the wall clock, the same in every process, until stdin closes."""
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    number = time.time_ns() * rate_hz // 1_000_000_000
    while True:
        number += 1
        due_ns = number * 1_000_000_000 // rate_hz
        if stopped.wait(max(0, due_ns - time.time_ns()) / 1e9):
            return
        yield number


# ------------------------------------------------------------ the node and its chunks


def write_robot(folder: Path, features: list[str], width: int, height: int) -> Path:
    """A contract with these cameras and limits that random actions keep."""
    joint = {"lower": -1e6, "upper": 1e6, "max_velocity": 1e9}
    camera = {"height": height, "width": width, "rate_hz": CAMERA_RATE_HZ}
    contract = {
        "name": "benchmark",
        "period_s": 1.0 / 30.0,
        "joints": {name: dict(joint) for name in JOINTS},
        "cameras": {f: {"topic": f"/{f}/image_raw", "feature": f, **camera} for f in features},
    }
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(contract, sort_keys=False), encoding="utf-8")
    return path


@contextlib.contextmanager
def running(name: str, command: list[str], folder: Path, **options: Any) -> Iterator[Any]:
    """A process with its output in a file, interrupted at the end."""
    with (folder / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        else:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def policy_command(args: argparse.Namespace, checkpoint: Path, robot: Path) -> list[str]:
    """The policy node, configured and activated by itself."""
    parameters = {
        "checkpoint": str(checkpoint),
        "robot": str(robot),
        "device": args.device,
        "precision": args.precision,
        "runtime": args.runtime,
        "selection": args.selection,
        "steps": args.steps,
        "instruction": INSTRUCTION,
        "autostart": True,
        "max_age_ms": 10_000.0,
    }
    command = [sys.executable, str(executable_path("policy")), "--ros-args"]
    for name, value in parameters.items():
        command += ["-p", f"{name}:={json.dumps(value)}"]
    return command


class Chunks:
    """Receives chunks in a thread of its own."""

    def __init__(self) -> None:
        rclpy.init()
        self._node = rclpy.create_node("age_benchmark")
        self._node.create_subscription(ActionChunk, "/policy/action_chunk", self._take, RELIABLE)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._executor.spin)
        self._thread.start()
        self.received: list[tuple[ActionChunk, int]] = []
        self._arrived = threading.Condition()

    def _take(self, chunk: ActionChunk) -> None:
        arrival_ns = time.time_ns()
        with self._arrived:
            self.received.append((chunk, arrival_ns))
            self._arrived.notify_all()

    def wait_for(self, count: int, process: Any, log: Path) -> None:
        """Until so many have come. Raises RuntimeError with the node's last words where they do not."""
        deadline = time.monotonic() + START_LIMIT_S
        with self._arrived:
            while len(self.received) < count:
                if process.poll() is not None or time.monotonic() > deadline:
                    words = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
                    raise RuntimeError(f"{len(self.received)} chunks came; the node said:\n{words}")
                self._arrived.wait(1.0)

    def close(self) -> None:
        """Receive no more."""
        self._executor.shutdown()
        self._thread.join()
        rclpy.shutdown()


def terms(chunk: ActionChunk, arrival_ns: int) -> dict[str, int]:
    """Every term of one chunk [ns]; the first five sum to the age."""
    names = ("receive", "sync", "infer_start", "infer_end", "publish")
    stamps = [to_ns(chunk.header.stamp), *(to_ns(getattr(chunk, name)) for name in names)]
    found = dict(
        zip(TERMS[:5], (b - a for a, b in zip(stamps, stamps[1:], strict=False)), strict=True)
    )
    age = stamps[-1] - stamps[0]
    return found | {
        "delivery": arrival_ns - stamps[-1],
        "age": age,
        "beside inference": age - found["infer"],
    }


def percentiles(values_ns: list[int]) -> dict[str, float]:
    """P50, P95, P99 and largest [ms]."""
    ms = np.quantile(np.array(values_ns) / 1e6, (0.5, 0.95, 0.99, 1.0))
    return dict(zip(("p50", "p95", "p99", "max"), (round(float(x), 3) for x in ms), strict=True))


def run(args: argparse.Namespace, checkpoint: Path, folder: Path) -> dict[str, Any]:
    """One run of `--seconds`."""
    width, height = map(int, args.picture.split("x"))
    cameras = json.loads((checkpoint / FILE_NAME).read_text())["cameras"][: args.views]
    robot = write_robot(folder, cameras, width, height)
    drivers = {c: ["camera", c, str(width), str(height)] for c in cameras} | {"joints": ["joints"]}
    os.environ.update(node_environment())
    chunks = Chunks()
    try:
        with contextlib.ExitStack() as processes:
            policy = processes.enter_context(
                running("policy", policy_command(args, checkpoint, robot), folder)
            )
            for name, arguments in drivers.items():
                command = [sys.executable, __file__, DRIVER, *arguments]
                processes.enter_context(running(name, command, folder, stdin=subprocess.PIPE))
            log = folder / "policy.log"
            chunks.wait_for(WARM_UP_CHUNKS, policy, log)
            time.sleep(args.seconds)
            received = chunks.received[WARM_UP_CHUNKS:]
            if policy.poll() is not None or not received:
                raise RuntimeError(f"no chunk was measured; {log.read_text(errors='replace')}")
    finally:
        chunks.close()
    rows = [terms(chunk, arrival_ns) for chunk, arrival_ns in received]
    first, last = received[0][0], received[-1][0]
    return {
        "plan": last.plan_id,
        "chunks": len(rows),
        "sets": round(args.seconds * CAMERA_RATE_HZ),
        "chunks_not_received": last.chunk_id - first.chunk_id + 1 - len(rows),
        "load_average": round(os.getloadavg()[0], 2),
        "terms_ms": {name: percentiles([row[name] for row in rows]) for name in TERMS},
    }


def main() -> int:
    if sys.argv[1:2] == [DRIVER]:
        if sys.argv[2] == "camera":
            publish_pictures(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
        else:
            publish_joint_states()
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_policy_arguments(parser)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time")
    parser.set_defaults(views=3)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkpoint = args.checkpoint or stack.enter_context(random_checkpoint(args))
        result = run(args, checkpoint, folder)
    settings = {"cameras": args.views, "camera_rate_hz": CAMERA_RATE_HZ}
    values = report("age_gpu", args, cores=len(os.sched_getaffinity(0)), **settings)
    write(args.output, {**values, "results": [result]})
    rows = [(name, *result["terms_ms"][name].values()) for name in TERMS]
    print(markdown(("term, ms", "P50", "P95", "P99", "max"), rows))
    print(f"{result['chunks']} chunks of {result['sets']} sets, {result['plan']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
