"""The policy node: cameras and joint states in, action chunks and trajectories out.

A lifecycle node. `configure` loads the policy, `activate` opens the inputs and starts the one worker thread that
infers, `deactivate` closes and joins them, `cleanup` drops the policy. Callbacks only store and wake.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter, deque
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import State
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from flashrt_ros.control.observer import ObservationError
from flashrt_ros.control.parameters import POLICY
from flashrt_ros.control.policies import build_policy, policy_settings, release_memory
from flashrt_ros.control.resets import EPISODE
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.control.runner import PolicyRunner
from flashrt_ros.control.safety import UnsafeActionError
from flashrt_ros.control.session import PolicySession
from flashrt_ros.msg import ActionApplied, ActionChunk
from flashrt_ros.nodes.base import (
    EXECUTOR_THREADS,
    LATCHED,
    RELIABLE,
    Parameters,
    run,
    to_time,
)
from flashrt_ros.nodes.inputs import ObservationInputs
from flashrt_ros.nodes.messages import chunk_message, hold_message, trajectory_message
from flashrt_ros.nodes.policy_diagnostics import policy_status
from flashrt_ros.observation.frame import FrameSet
from flashrt_ros.observation.joint_state import JointStateError
from flashrt_ros.observation.timeline import to_ns

_WATCH_PERIOD_S = 0.05


class PolicyNode(LifecycleNodeMixin, Node):
    """See the module."""

    def __init__(self) -> None:
        Node.__init__(self, "policy")
        # Reentrant, so that the state can be asked for, and a wrong transition refused, while a configure runs.
        lifecycle_group = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(
            self, enable_communication_interface=True, callback_group=lifecycle_group
        )
        self._session: PolicySession | None = None
        self._inputs: ObservationInputs | None = None
        self._runner: PolicyRunner | None = None
        self._worker: threading.Thread | None = None
        self._progress = ""
        self._own_instructions: deque[str] = deque(maxlen=16)
        self.holds: Counter[str] = Counter()
        self.incidents: Counter[str] = Counter()
        self._settings = Parameters(self, POLICY, self._check_parameter, self._parameter_changed)

        self._chunks = self.create_publisher(ActionChunk, "~/action_chunk", RELIABLE)
        self._trajectories = self.create_publisher(JointTrajectory, "~/joint_trajectory", RELIABLE)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)
        self._instructions = self.create_publisher(String, "~/instruction", LATCHED)
        self.create_subscription(String, "~/instruction", self._on_instruction, LATCHED)
        self.create_subscription(
            ActionApplied, "action_player/action_applied", self._on_applied, RELIABLE
        )
        self.create_service(Trigger, "~/reset", self._on_reset)
        self.create_timer(1.0 / self._settings["diagnostics_rate"], self._publish_diagnostics)
        self.create_timer(_WATCH_PERIOD_S, self._watch)
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(
                min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True
            ),
            post_callback=self._on_clock_jump,
        )
        if self._settings["instruction"]:
            self._announce_instruction(self._settings["instruction"])
        if self._settings["autostart"]:
            self._autostart = self.create_timer(0.0, self._start, callback_group=lifecycle_group)

    # ------------------------------------------------------------ lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the robot contract and the policy."""
        try:
            path = find_robot(self._settings["robot"])
            self._tell(f"reading the robot contract {path}")
            robot = load_robot(path)
            policy = build_policy(policy_settings(self._settings), robot, progress=self._tell)
            self._session = PolicySession(policy, robot, clock_ns=self._now_ns)
            self._check_parameter("instruction", self._settings["instruction"])
        except Exception as error:
            self._session = None
            return self._failed("configure", error)
        self._tell("")
        self.get_logger().info(
            f"configured: policy {policy.spec.plan_id} on robot {robot.name}, horizon "
            f"{policy.spec.horizon}, cameras {', '.join(c.name for c in robot.cameras)}"
        )
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the inputs and start the worker."""
        try:
            session = self._session
            assert session is not None, "activate comes after configure"
            session.reset(EPISODE)
            self._inputs = ObservationInputs(self, session.robot, self._settings)
        except Exception as error:
            return self._failed("activate", error)
        self._runner = PolicyRunner(
            session, self._inputs.observer, self._settings, self._now_ns(), self.holds
        )
        self._worker = threading.Thread(
            target=self._work, args=(self._runner,), name="inference", daemon=True
        )
        self._worker.start()
        self.get_logger().info("active")
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the inputs and wait for the inference in flight."""
        self._publish_diagnostics()
        self._stop()
        self.get_logger().info("inactive: inputs closed, nothing in flight")
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Drop the policy and what it holds."""
        self._session = None
        release_memory()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """As deactivate and cleanup."""
        self._stop()
        self._session = None
        return TransitionCallbackReturn.SUCCESS

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Back to unconfigured, where a second configure works."""
        self._stop()
        self._session = None
        return TransitionCallbackReturn.SUCCESS

    def close(self) -> None:
        """Say what became of everything, and stop the worker before the node is destroyed."""
        self._publish_diagnostics()
        self._stop()

    def _start(self) -> None:
        self._autostart.cancel()
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    def _stop(self) -> None:
        inputs, self._inputs, self._runner = self._inputs, None, None
        if inputs is not None:
            inputs.destroy()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.join()

    def _failed(self, transition: str, error: Exception) -> TransitionCallbackReturn:
        self._tell("")
        self.incidents[f"{transition}_failed"] += 1
        self.get_logger().error(f"{transition} failed: {error}")
        if not isinstance(error, (ValueError, OSError, ImportError)):
            self.get_logger().error("".join(traceback.format_exception(error)))
        return TransitionCallbackReturn.FAILURE

    # ------------------------------------------------------------ inference

    def _work(self, runner: PolicyRunner) -> None:
        """Infer one set after the other, until the mailbox is closed. Nothing that goes wrong ends the loop."""
        while (frame_set := runner.observer.mailbox.take()) is not None:
            try:
                self._infer(runner, frame_set)
            except (ObservationError, UnsafeActionError) as error:
                self.get_logger().warning(str(error), throttle_duration_sec=1.0)
            except Exception as error:
                self.incidents["inference_failed"] += 1
                self.get_logger().error(
                    f"inference failed: {''.join(traceback.format_exception(error))}",
                    throttle_duration_sec=1.0,
                )

    def _infer(self, runner: PolicyRunner, frame_set: FrameSet) -> None:
        result = runner.infer(frame_set, self._now_ns())
        if result is None:
            return
        observation, inference = result
        session = runner.session
        chunk = session.publish(observation, inference)
        if chunk is None:
            self.get_logger().warning(
                "every action of a chunk was past or too old before it could be published: inference takes "
                "longer than the horizon or max_action_age_ms",
                throttle_duration_sec=1.0,
            )
            return
        self._chunks.publish(chunk_message(chunk, observation, session.robot))
        if not self._settings["dry_run"]:
            trajectory = trajectory_message(
                chunk, session.robot, self._now_ns(), self._settings.ns("stop_ms")
            )
            if trajectory is not None:
                self._trajectories.publish(trajectory)
        if runner.published(chunk.timeline.publish_ns):
            self.get_logger().info("chunks flow again")

    # ------------------------------------------------------------ watching

    def _watch(self) -> None:
        """Hold the robot when an input fell silent or no chunk came for `max_age_ms`."""
        runner = self._runner
        if runner is None:
            return
        now_ns = self._now_ns()
        reason = runner.watch(now_ns)
        if not reason:
            return
        self.get_logger().error(f"holding the robot: {reason}")
        if self._settings["dry_run"]:
            return
        try:
            positions = runner.observer.joint_states.nearest(now_ns).positions
        except JointStateError:
            # Without a position there is nothing to hold at; a controller ends its trajectory at rest by itself.
            return
        self._trajectories.publish(hold_message(positions, runner.session.robot, now_ns))

    def _on_clock_jump(self, jump: Any) -> None:
        self.incidents["clock_jump"] += 1
        self.get_logger().warning("the clock jumped: what was received before it is dropped")
        if self._runner is not None:
            self._runner.clock_jumped(self._now_ns())

    def _publish_diagnostics(self) -> None:
        message = DiagnosticArray()
        message.header.stamp = to_time(self._now_ns())
        state = self._state_machine.current_state
        message.status = policy_status(
            name=self.get_fully_qualified_name().lstrip("/"),
            state=state[1],
            active=state[0] == State.PRIMARY_STATE_ACTIVE,
            progress=self._progress,
            holding=self._runner.holding if self._runner is not None else "",
            session=self._session,
            inputs=self._inputs,
            counts={"holds": dict(self.holds), "incidents": dict(self.incidents)},
            now_ns=self._now_ns(),
        )
        self._diagnostics.publish(message)

    def _tell(self, progress: str) -> None:
        self._progress = progress
        if progress:
            self.get_logger().info(progress)
            self._publish_diagnostics()

    # ------------------------------------------------------------ instruction, parameters, services

    def _check_parameter(self, name: str, value: Any) -> None:
        if name == "instruction" and value and self._session is not None:
            self._session.policy.check_instruction(value)

    def _parameter_changed(self, name: str, value: Any) -> None:
        if name == "instruction":
            self.get_logger().info(f"instruction: {value!r}")
            self._announce_instruction(value)

    def _announce_instruction(self, text: str) -> None:
        """Say on the topic what the parameter says; our own message comes back and must not be taken for news."""
        self._own_instructions.append(text)
        self._instructions.publish(String(data=text))

    def _on_instruction(self, message: String) -> None:
        own = self._own_instructions
        if message.data in own:
            # What we said before it will not come any more: the topic keeps its newest message only. Left in the list,
            # it would be taken for our own when somebody else says it.
            while own.popleft() != message.data:
                pass
            return
        if message.data == self._settings["instruction"]:
            return
        (result,) = self.set_parameters([RosParameter("instruction", value=message.data)])
        if not result.successful:
            self.get_logger().error(f"instruction refused, the one before stays: {result.reason}")

    def _on_applied(self, message: ActionApplied) -> None:
        session = self._session
        if session is not None:
            session.report_applied(
                message.chunk_id, message.action_index, to_ns(message.header.stamp)
            )

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        session = self._session
        response.success = session is not None
        if session is None:
            response.message = "not configured: there is nothing to reset"
        else:
            session.reset(EPISODE)
            response.message = "the next inference starts afresh"
        return response

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)


def main() -> int:
    """Run the node."""
    return run(PolicyNode, threads=EXECUTOR_THREADS)


if __name__ == "__main__":
    sys.exit(main())
