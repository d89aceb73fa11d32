"""Real nodes in processes of their own, on a ROS domain of their own, and a client that talks to them."""

from __future__ import annotations

import array
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState

from flashrt_ros.demo import node_environment
from flashrt_ros.nodes.base import sensor_qos, to_time
from flashrt_ros.paths import executable_path

LIMIT_S = 60.0
"""How long anything may take before a test gives up; nothing waits for it to pass."""

JOINTS = ["shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper"]
CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
DEACTIVATE, CLEANUP = Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP

_domains = itertools.count(os.getpid())


def shared_memory(pid: int) -> set[Path]:
    """Fast DDS's segments that a process has mapped: 64 MB each, and nobody removes them after a kill."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return {Path(path) for path in re.findall(r"/dev/shm/fast\w+", maps)}


class Graph:
    """Processes and client of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.domain = 20 + next(_domains) % 180
        self._environment = node_environment() | {"ROS_DOMAIN_ID": str(self.domain)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._left_behind: set[Path] = set()
        self._changed = threading.Condition()
        os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=self.domain)
        self.client = rclpy.create_node("test_client", context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.client)
        self._spinner = threading.Thread(target=self._spin, daemon=True)
        self._spinner.start()

    def _spin(self) -> None:
        with contextlib.suppress(Exception):
            self._executor.spin()

    # ------------------------------------------------------------ processes

    def start(self, node: str, *arguments: str, **parameters: Any) -> subprocess.Popen[bytes]:
        """Start a node with parameters (as JSON values) in a process group of its own."""
        command = [sys.executable, str(executable_path(node)), "--ros-args", *arguments]
        if node == "policy":
            parameters.setdefault("checkpoint", "expert")  # ready at once: no torch, no network
        for name, value in parameters.items():
            command += ["-p", f"{name}:={json.dumps(value)}"]
        return self.run(node, command)

    def run(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command on this graph's domain in a process group of its own; its output is `log(name)`."""
        with (self.folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def kill(self, node: str) -> None:
        """Kill a node the hard way."""
        process = self._processes.pop(node)
        self._left_behind |= shared_memory(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, node: str) -> str:
        """What a node has printed so far."""
        return (self.folder / f"{node}.log").read_text(errors="replace")

    def alive(self, node: str) -> bool:
        """Whether a node's process still runs."""
        return self._processes[node].poll() is None

    def close(self) -> None:
        """End everything in order, by force what does not, and remove the shared memory that force leaves behind.

        The client goes first: while others leave, Fast DDS's threads may wait for each other for good (its issue 6502).
        """
        self._executor.shutdown()
        self._spinner.join(timeout=10)
        rclpy.shutdown(context=self.context)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process in self._processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._left_behind |= shared_memory(process.pid)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for path in self._left_behind - shared_memory(os.getpid()):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}_el").unlink(missing_ok=True)

    # ------------------------------------------------------------ client

    def collect(self, kind: Any, topic: str, qos: Any = 50) -> list[Any]:
        """A list that grows with each message of a topic."""
        messages: list[Any] = []

        def take(message: Any) -> None:
            with self._changed:
                messages.append(message)
                self._changed.notify_all()

        self.client.create_subscription(kind, topic, take, qos)
        return messages

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition on what was collected holds; returns its value."""
        deadline = time.monotonic() + LIMIT_S
        with self._changed:
            while not (value := condition()):
                if time.monotonic() > deadline:
                    logs = "\n".join(
                        f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}"
                        for p in self.folder.glob("*.log")
                    )
                    raise AssertionError(f"waited {LIMIT_S:.0f} s for {what}\n{logs}")
                self._changed.wait(0.05)
        return value

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service."""
        client = self.client.create_client(kind, service)
        assert client.wait_for_service(LIMIT_S), f"no service {service}"
        future = client.call_async(request)
        self.wait_for(future.done, f"an answer of {service}")
        return future.result()

    def call_async(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service; returns the future."""
        client = self.client.create_client(kind, service)
        assert client.wait_for_service(LIMIT_S), f"no service {service}"
        return client.call_async(request)

    def change_state(self, transition: int, node: str = "/policy") -> bool:
        """Ask a lifecycle node for a transition; whether it was made."""
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.call(ChangeState, f"{node}/change_state", request).success)

    def state(self, node: str = "/policy") -> str:
        """Label of a lifecycle node's state."""
        answer = self.call(GetState, f"{node}/get_state", GetState.Request())
        return str(answer.current_state.label)

    def set_parameter(self, name: str, value: Any, node: str = "/policy") -> Any:
        """Set one parameter; returns the result."""
        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg()]
        )
        return self.call(SetParameters, f"{node}/set_parameters", request).results[0]

    def parameter(self, name: str, node: str = "/policy") -> Any:
        """Value message of one parameter."""
        return self.call(
            GetParameters, f"{node}/get_parameters", GetParameters.Request(names=[name])
        ).values[0]

    def describe(self, name: str, node: str = "/policy") -> Any:
        """Descriptor of one parameter."""
        request = DescribeParameters.Request(names=[name])
        return self.call(DescribeParameters, f"{node}/describe_parameters", request).descriptors[0]

    def statuses(self) -> Callable[[str], DiagnosticStatus | None]:
        """A function that returns the last diagnostic status of a name (after the node's own)."""
        arrays = self.collect(DiagnosticArray, "/diagnostics")

        def last(name: str) -> DiagnosticStatus | None:
            for message in reversed(arrays):
                for status in message.status:
                    if status.name == name:
                        return status
            return None

        return last

    def until_status(
        self, last: Callable[[str], DiagnosticStatus | None], name: str, holds: Callable[[Any], Any]
    ) -> DiagnosticStatus:
        """Wait for a diagnostic status that fulfils a condition."""

        def check() -> DiagnosticStatus | None:
            status = last(name)
            return status if status is not None and holds(status) else None

        return self.wait_for(check, f"a status {name!r}")


def counts(status: DiagnosticStatus) -> dict[str, Any]:
    """The counts of a node's status."""
    return next(json.loads(item.value) for item in status.values if item.key == "counts")


class Drivers:
    """Camera and joint drivers that publish what a test wants, when it wants it.

    With `run`, pictures of both cameras and joint states flow at `rate_hz` until `stop`.
    """

    def __init__(self, graph: Graph, cameras: tuple[str, ...] = ("overhead", "wrist")) -> None:
        self._graph = graph
        self._clock = graph.client.get_clock()
        self.cameras = cameras
        self.images = {
            camera: graph.client.create_publisher(Image, f"/{camera}/image_raw", sensor_qos(10))
            for camera in cameras
        }
        self.states = graph.client.create_publisher(JointState, "/joint_states", sensor_qos(10))
        self.joint_names = list(JOINTS)
        self.sent = 0
        self.change: Callable[[str, Image], Image | None] = lambda camera, image: image
        """Applied to each picture before it is sent; None: it is not."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def now_ns(self) -> int:
        return int(self._clock.now().nanoseconds)

    def picture(self, stamp_ns: int, size: int = 96) -> Image:
        image = Image(height=size, width=size, encoding="rgb8", step=3 * size)
        image.data = array.array("B", bytes(3 * size * size))
        image.header.stamp = to_time(stamp_ns)
        return image

    def send_state(self, stamp_ns: int) -> None:
        message = JointState(
            name=self.joint_names, position=np.zeros(len(self.joint_names)).tolist()
        )
        message.header.stamp = to_time(stamp_ns)
        self.states.publish(message)

    def send(self, stamp_ns: int | None = None) -> None:
        """One joint state and one picture of each camera."""
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        self.send_state(stamp_ns)
        for camera in self.cameras:
            image = self.change(camera, self.picture(stamp_ns))
            if image is not None:
                self.images[camera].publish(image)
        self.sent += 1

    def run(self, rate_hz: float = 30.0) -> Drivers:
        def work() -> None:
            while not self._stopping.wait(1.0 / rate_hz):
                self.send()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
