"""A flow policy that is known exactly, a clock, and observations: for sessions whose every chunk can be foretold.

Its flow is the ideal one, `v = (x - action) / t`, towards a smooth motion in absolute time; each chunk may be off by a
constant of its own, as a policy is that changes its mind. Everything else is as with a checkpoint: noise, steps, start
time, guidance, actions that are normalised, padded and relative to the state.
"""

from __future__ import annotations

import numpy as np

from flashrt_ros.control.policy import PolicySpec
from flashrt_ros.control.robot import load_robot
from flashrt_ros.control.session import PolicySession
from flashrt_ros.control.settings import SessionSettings
from flashrt_ros.observation.frame import Frame, FrameSet, Observation
from flashrt_ros.paths import config_path

MS = 1_000_000
T0 = 1_000_000 * MS
ROBOT = load_robot(config_path("robots/so101.yaml"))
PERIOD_NS = ROBOT.period_ns
HORIZON = 16
JOINTS = 6
WIDTH = 8
SCALE = 0.5  # rad per normalised unit


def motion(times_ns):
    """Positions [n, joints] in rad of the motion that the policy wants, at absolute times."""
    phase = 2.0 * np.pi * (np.asarray(times_ns) - T0)[:, None] / 2e9
    return 0.5 + 0.4 * np.sin(phase + 0.5 * np.arange(JOINTS))


class SmoothPolicy:
    """See the module. `offsets` [rad] are taken by one denoising after the other; then they are 0."""

    def __init__(self, *, offsets=(), relative=False, steps=10):
        self.spec = PolicySpec("smooth", HORIZON, JOINTS, ["base_0_rgb"], steps=steps)
        self.offsets = list(offsets)
        self.relative = relative
        self.requests = []
        self.resets = 0
        self._random = np.random.default_rng(0)

    def encode(self, observation, instruction):
        return observation

    def denoise(self, context, request):
        self.requests.append(request)
        offset = self.offsets.pop(0) if self.offsets else 0.0
        times_ns = context.frame_set.stamp_ns + PERIOD_NS * np.arange(HORIZON)
        wanted = np.zeros((HORIZON, WIDTH))
        base = context.joint_positions if self.relative else 0.0
        wanted[:, :JOINTS] = (motion(times_ns) + offset - base) / SCALE
        t = request.start_time
        x = self._random.standard_normal((HORIZON, WIDTH))
        if t < 1.0:
            x = t * x + (1.0 - t) * request.initial
        size = t / request.steps
        for step in range(request.steps):
            v = (x - wanted) / t
            if request.guidance is not None:
                g = request.guidance
                v = v - g.strengths[step] * g.weights[:, None] * (g.target - (x - t * v))
            x, t = x - size * v, t - size
        return x.astype(np.float32)

    def decode(self, normalized, observation):
        base = observation.joint_positions if self.relative else 0.0
        return (normalized[:, :JOINTS] * SCALE + base).astype(np.float32)

    def rebase(self, normalized, old_positions, new_positions):
        moved = normalized.copy()
        if self.relative:
            moved[:, :JOINTS] += ((old_positions - new_positions) / SCALE).astype(np.float32)
        return moved

    def infer(self, observation, instruction):
        raise AssertionError("a session denoises by itself")

    def check_instruction(self, instruction):
        pass

    def reset(self):
        self.resets += 1


class Clock:
    """Stands still but for what the test says."""

    def __init__(self, now_ns=T0):
        self.now_ns = now_ns

    def __call__(self):
        return self.now_ns


def observation(capture_ns=T0, *, positions=None, epoch=0, grey=100):
    """The arm where the motion has it, under a camera that sees one grey."""
    frame = Frame("overhead", capture_ns, capture_ns)
    frames = FrameSet({"overhead": frame}, frozenset(), frame, frame, capture_ns, epoch)
    if positions is None:
        positions = motion([capture_ns])[0]
    image = np.full((48, 64, 3), grey, np.uint8)
    return Observation(frames, {"overhead": image}, np.asarray(positions), capture_ns, capture_ns)


class Loop:
    """A session with its clock: each `chunk` is observed, inferred and published after a delay."""

    def __init__(self, policy=None, **settings):
        self.policy = policy or SmoothPolicy()
        self.clock = Clock()
        self.session = PolicySession(
            self.policy, ROBOT, SessionSettings(**settings), clock_ns=self.clock
        )

    def chunk(self, periods=0.0, *, delay_periods=0.0, instruction="go", **seen):
        """Observe `periods` after T0, publish `delay_periods` later."""
        capture_ns = T0 + round(periods * PERIOD_NS)
        self.clock.now_ns = capture_ns
        made = observation(capture_ns, **seen)
        inference = self.session.step(made, instruction)
        self.clock.now_ns += round(delay_periods * PERIOD_NS)
        return self.session.publish(made, inference)

    def reasons(self, *calls):
        """Reset reasons of chunks, each given as keyword arguments."""
        return [self.chunk(**call).inference.reset_reason for call in calls]


def command_at(chunk, times_ns):
    """What a player applies of a chunk at times at which its actions are due."""
    index = (np.asarray(times_ns) - chunk.planned_start_ns) // chunk.inference.period_ns
    return chunk.actions[index]
