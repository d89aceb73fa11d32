"""What every node shares: parameters from their table, stamps as integers, a main that ends in one clear line."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import rclpy
from builtin_interfaces.msg import Duration, Time
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.exceptions import ParameterException
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions

from flashrt_ros.control.parameter import Parameter, duration_ns

if TYPE_CHECKING:
    from flashrt_ros.control.observer import Made, Settings

_SIGNAL_PERIOD_S = 0.2

RELIABLE = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=10, reliability=ReliabilityPolicy.RELIABLE
)
EXECUTOR_THREADS = 3
"""Of a node with a slow callback: one for it, one for everything else, one that waits."""
LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


def sensor_qos(depth: int, *, reliable: bool = False) -> QoSProfile:
    """Keep the newest `depth` messages, best effort unless asked otherwise."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
    )


def to_time(ns: int) -> Time:
    """Stamp message of nanoseconds."""
    return Time(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)


def to_duration(ns: int) -> Duration:
    """Duration message of nanoseconds."""
    return Duration(sec=ns // 1_000_000_000, nanosec=ns % 1_000_000_000)


class Parameters:
    """Declares a table of parameters on a node, refuses what does not fit, and reads them typed.

    What was read, or made of them, is kept until one changes: a policy needs dozens before each inference. May be read
    from any thread; once setting a parameter returns, all that is read is new.

    Args:
        node: whose parameters they are.
        table: from `parameters.py`.
        check: called with a name and the checked value of a change; raises ValueError to refuse it.
        changed: called with a name and the value after a change took effect.

    Raises:
        ValueError: the value given at start does not fit.
    """

    def __init__(
        self,
        node: Node,
        table: Sequence[Parameter],
        check: Callable[[str, Any], None] | None = None,
        changed: Callable[[str, Any], None] | None = None,
    ) -> None:
        self._node = node
        self._table = {parameter.name: parameter for parameter in table}
        self._check = check
        self._changed = changed
        self._kept: dict[Any, Any] = {}
        # Humble's rclpy does not say when a change is in force: nothing is kept there.
        self._keep = hasattr(node, "add_post_set_parameters_callback")
        if hasattr(node, "add_pre_set_parameters_callback"):
            node.add_pre_set_parameters_callback(self._pre_set)
        for parameter in table:
            try:
                given = node.declare_parameter(
                    parameter.name, parameter.default, _descriptor(parameter)
                )
            except ParameterException as error:
                raise ValueError(str(error)) from error
            fitting = parameter.check(given.value)
            if type(given.value) is int and isinstance(fitting, float):
                node.set_parameters([RosParameter(parameter.name, value=fitting)])
        node.add_on_set_parameters_callback(self._on_set)
        if self._keep:
            node.add_post_set_parameters_callback(self._post_set)

    def __getitem__(self, name: str) -> Any:
        return self._once(
            name, lambda: self._table[name].check(self._node.get_parameter(name).value)
        )

    def ns(self, name: str) -> int:
        """A duration parameter in nanoseconds, by the unit in its name (`_ms` or `_s`)."""
        return duration_ns(name, self[name])

    def made(self, make: Callable[[Settings], Made]) -> Made:
        """What `make` makes of the parameters as they are now; made once until one changes."""
        value: Made = self._once(make, lambda: make(self))
        return value

    def _once(self, key: Any, read: Callable[[], Any]) -> Any:
        # The dictionary is taken before the value: one that is read while it changes goes into a dictionary that the
        # change throws away.
        kept = self._kept
        if key in kept:
            return kept[key]
        value = read()
        if self._keep:
            kept[key] = value
        return value

    def _pre_set(self, changes: Sequence[Any]) -> list[Any]:
        """An integer given for a double becomes one, so that `ros2 param describe` and `dump` show a double."""
        return [
            RosParameter(change.name, value=float(change.value))
            if type(change.value) is int and isinstance(self._default(change.name), float)
            else change
            for change in changes
        ]

    def _default(self, name: str) -> Any:
        return self._table[name].default if name in self._table else None

    def _on_set(self, changes: Sequence[Any]) -> SetParametersResult:
        mine = [change for change in changes if change.name in self._table]
        try:
            for change in mine:
                value = self._table[change.name].check(change.value)
                if self._check is not None:
                    self._check(change.name, value)
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        if not self._keep:
            # Humble's rclpy has no post-set callbacks; a change that came this far is not refused any more.
            self._post_set(changes)
        return SetParametersResult(successful=True)

    def _post_set(self, changes: Sequence[Any]) -> None:
        self._kept = {}
        for change in changes:
            parameter = self._table.get(change.name)
            if parameter is None:
                continue
            if not parameter.live:
                self._node.get_logger().info(
                    f"parameter {change.name} takes effect at the next start"
                )
            if self._changed is not None:
                self._changed(change.name, parameter.check(change.value))


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    unit = f" [{parameter.unit}]" if parameter.unit else ""
    # Dynamic typing lets an integer stand for a double; `Parameter.check` holds the type otherwise.
    descriptor = ParameterDescriptor(
        description=parameter.description + unit,
        additional_constraints=" | ".join(parameter.choices),
        dynamic_typing=True,
    )
    low, high = parameter.minimum, parameter.maximum
    if low is not None and high is not None:
        if isinstance(parameter.default, float):
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        else:
            descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    return descriptor


# glibc's mallopt, by the numbers in malloc.h. An image that is received is allocated three times over. By default each
# of these goes back to the kernel when freed, and the next one comes page by page: half of a frame's age.
_MALLOPT = {
    -1: 256 << 20,  # M_TRIM_THRESHOLD: free memory that stays with the process
    -2: 64 << 20,  # M_TOP_PAD: how much the heap grows at a time
    -3: 32 << 20,  # M_MMAP_THRESHOLD: larger blocks are still mapped one by one
    -8: 1,  # M_ARENA_MAX: the executor's threads reuse each other's memory
}
_SWITCH_INTERVAL_S = 0.0005


def prepare_process() -> None:
    """Set this process up to receive images soon: before its first thread starts.

    Keeps freed memory for the next image where the C library is glibc, and has Python's threads hand over after 0.5 ms
    instead of 5 ms, as executor and callback wait for each other with every image.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOPT.items():
            mallopt(option, value)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def run(
    make_node: Callable[[], Any],
    *,
    threads: int = 1,
    until: Callable[[Any], bool] = lambda node: False,
) -> int:
    """Run one node until SIGINT or SIGTERM; then its `close` is called while it can still publish.

    Args:
        make_node: the node's class. A ValueError, OSError or ImportError that it raises is told in one line.
        threads: of the executor.
        until: asked of the node a few times a second; it ends when this holds.

    Returns:
        Exit code: 0, or 1 where the node could not be made.
    """
    prepare_process()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # A second signal must not interrupt the cleaning up that the first one began.
        signal.signal(number, lambda *_: stopping.set())
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        try:
            node = make_node()
        except (ValueError, OSError, ImportError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        executor = (
            SingleThreadedExecutor() if threads == 1 else MultiThreadedExecutor(num_threads=threads)
        )
        executor.add_node(node)
        try:
            while not stopping.is_set() and not until(node):
                executor.spin_once(timeout_sec=_SIGNAL_PERIOD_S)
        finally:
            if threads > 1:
                # rclpy's own shutdown does not wait for callbacks in flight: they then stumble over what it destroyed.
                executor._executor.shutdown(wait=True)
            executor.shutdown()
            node.close()
            node.destroy_node()
    finally:
        rclpy.try_shutdown()
        for number in (signal.SIGINT, signal.SIGTERM):
            # The interpreter gives a handler back to the system as it ends; a late signal would then kill it.
            signal.signal(number, signal.SIG_IGN)
    return 0
