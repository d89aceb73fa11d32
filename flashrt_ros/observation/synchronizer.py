"""Frames in, synchronised sets out: the newest complete set, best fit, at once.

A set is given the moment its last frame arrives; nothing waits for a better one that may never come. A frame that was
given once is given again only in a *better* set, one of smaller skew. So with A at 1.000, B at 1.040 and A at 1.041 s
the 40 ms pair goes out when B arrives and the 1 ms pair when the second A does, while two cameras that alternate do
not double the rate with pairs that fit worse. Stamps of sets (their oldest capture) strictly increase.

The work for one arrival is bounded by cameras × depth, whatever has passed through before. No locks: the owner calls
from one thread, or guards the calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flashrt_ros.observation.frame import CameraRule, Frame, FrameSet, Role

REJECT_ZERO_STAMP = "zero_stamp"
REJECT_FUTURE = "future_stamp"
REJECT_DUPLICATE = "duplicate_stamp"
REJECT_CLOCK_JUMP = "clock_jump"


@dataclass(slots=True)
class FrameFates:
    """What became of one camera's frames. `received` equals the sum of all the others."""

    received: int = 0
    used: int = 0
    """Part of at least one set."""
    superseded: int = 0
    """A newer set went out, or the queue was full."""
    late: int = 0
    """Not newer than what had gone out already."""
    rejected: Counter[str] = field(default_factory=Counter)
    """By reason."""
    pending: int = 0
    """Still waiting for partners."""

    @property
    def unexplained(self) -> int:
        """Frames without a fate: 0, always."""
        known = self.used + self.superseded + self.late + self.rejected.total() + self.pending
        return self.received - known


@dataclass(slots=True)
class _Queue:
    """Frames of one camera that wait, oldest first, and the last one given out."""

    rule: CameraRule
    fates: FrameFates = field(default_factory=FrameFates)
    waiting: list[Frame] = field(default_factory=list)
    given: Frame | None = None
    newest_ns: int = 0

    def stamps(self, include_given: bool) -> list[int]:
        stamps = [frame.capture_ns for frame in self.waiting]
        if include_given and self.given is not None:
            stamps.insert(0, self.given.capture_ns)
        return stamps

    def frame_at(self, capture_ns: int) -> Frame:
        if self.given is not None and self.given.capture_ns == capture_ns:
            return self.given
        return self.waiting[bisect_left(self.waiting, capture_ns, key=lambda f: f.capture_ns)]

    def insert(self, frame: Frame) -> None:
        at = bisect_left(self.waiting, frame.capture_ns, key=lambda f: f.capture_ns)
        self.waiting.insert(at, frame)

    def give(self, frame: Frame) -> None:
        """Mark a frame as given out; what waited before it is superseded."""
        if frame is self.given:
            return
        at = bisect_left(self.waiting, frame.capture_ns, key=lambda f: f.capture_ns)
        self.fates.superseded += at
        self.fates.used += 1
        del self.waiting[: at + 1]
        self.given = frame

    def supersede_until(self, stamp_ns: int) -> None:
        """Drop what can be in no later set any more."""
        at = bisect_left(self.waiting, stamp_ns + 1, key=lambda f: f.capture_ns)
        self.fates.superseded += at
        del self.waiting[:at]


class Synchronizer:
    """Matches the frames of several cameras by capture stamp.

    Args:
        rules: one for each camera; their order is the order of `FrameSet.frames`. At least one is required.
        slop_ns: largest skew of a set [ns]; 0 asks for identical stamps (policy `exact`).
        depth: frames that may wait for each camera.
        max_future_ns: a capture later than its receipt by more than this is refused.
        jump_back_ns: a capture older than the camera's newest by more than this means that the clock jumped back (a
            bag that loops): all queues are emptied and a new epoch begins.
        absent_after_ns: an optional camera is waited for as long as its newest capture is within this of the arriving
            one; at least `slop_ns`.

    Raises:
        ValueError: the arguments contradict each other.
    """

    def __init__(
        self,
        rules: Sequence[CameraRule],
        *,
        slop_ns: int,
        depth: int = 8,
        max_future_ns: int = 50_000_000,
        jump_back_ns: int = 1_000_000_000,
        absent_after_ns: int = 200_000_000,
    ) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError(f"camera names must be unique, found {names}")
        if not any(rule.role is Role.REQUIRED for rule in rules):
            raise ValueError(f"at least one camera must have role 'required', found {list(rules)}")
        if slop_ns < 0 or depth < 1:
            raise ValueError(f"slop_ns must be >= 0 and depth >= 1, found {slop_ns} and {depth}")
        if absent_after_ns < slop_ns:
            raise ValueError(
                f"absent_after_ns must be at least slop_ns ({slop_ns}), found {absent_after_ns}"
            )
        self.slop_ns = slop_ns
        self.depth = depth
        self.max_future_ns = max_future_ns
        self.jump_back_ns = jump_back_ns
        self.absent_after_ns = absent_after_ns
        self._queues = {rule.name: _Queue(rule) for rule in rules}
        self._epoch = 0
        self._last: FrameSet | None = None
        self.sets = 0
        """Sets given out so far."""

    @property
    def epoch(self) -> int:
        """Number of resets so far."""
        return self._epoch

    def fates(self) -> dict[str, FrameFates]:
        """What became of every frame received, by camera. The values are live: read, do not keep."""
        for queue in self._queues.values():
            queue.fates.pending = len(queue.waiting)
        return {name: queue.fates for name, queue in self._queues.items()}

    def reject(self, camera: str, reason: str) -> None:
        """Count a frame that its receiver refused before it got here (a broken image, say)."""
        fates = self._queue(camera).fates
        fates.received += 1
        fates.rejected[reason] += 1

    def rejected(self, camera: str) -> int:
        """Frames of a camera that were rejected so far, for whatever reason."""
        return self._queue(camera).fates.rejected.total()

    def reset(self, reason: str) -> None:
        """Drop everything that waits, counted under `reason`; the next set may have any stamp."""
        for queue in self._queues.values():
            queue.fates.rejected[reason] += len(queue.waiting)
            queue.waiting.clear()
            queue.given = None
            queue.newest_ns = 0
        self._last = None
        self._epoch += 1

    def add(self, frame: Frame) -> FrameSet | None:
        """Take one frame; return the set that it completes, if it does.

        Raises:
            ValueError: no rule names the frame's camera.
        """
        queue = self._queue(frame.camera)
        queue.fates.received += 1
        if frame.capture_ns <= 0:
            queue.fates.rejected[REJECT_ZERO_STAMP] += 1
            return None
        if frame.capture_ns - frame.receive_ns > self.max_future_ns:
            queue.fates.rejected[REJECT_FUTURE] += 1
            return None
        if frame.capture_ns < queue.newest_ns - self.jump_back_ns:
            self.reset(REJECT_CLOCK_JUMP)
        if frame.capture_ns in queue.stamps(include_given=True):
            queue.fates.rejected[REJECT_DUPLICATE] += 1
            return None
        if self._is_late(queue, frame):
            queue.fates.late += 1
            return None
        queue.newest_ns = max(queue.newest_ns, frame.capture_ns)
        queue.insert(frame)
        if len(queue.waiting) > self.depth:
            dropped = queue.waiting.pop(0)
            queue.fates.superseded += 1
            if dropped is frame:
                return None
        if queue.rule.role is Role.HOLD:
            return None
        return self._complete(frame)

    def _queue(self, camera: str) -> _Queue:
        try:
            return self._queues[camera]
        except KeyError:
            raise ValueError(
                f"unknown camera {camera!r}: expected one of {list(self._queues)}"
            ) from None

    def _is_late(self, queue: _Queue, frame: Frame) -> bool:
        if queue.given is not None and frame.capture_ns < queue.given.capture_ns:
            return True
        if queue.rule.role is Role.HOLD or self._last is None:
            return False
        return frame.capture_ns <= self._last.stamp_ns

    def _complete(self, frame: Frame) -> FrameSet | None:
        """Find the best set that holds `frame`, and give it out."""
        partners = [
            queue
            for queue in self._queues.values()
            if queue.rule.role is Role.REQUIRED
            or (
                queue.rule.role is Role.OPTIONAL
                and queue.newest_ns >= frame.capture_ns - self.absent_after_ns
            )
        ]
        chosen = self._best_fit(frame, partners)
        if chosen is None:
            return None
        held = self._held(min(f.capture_ns for f in chosen.values()))
        if held is None:
            return None
        return self._give(frame, chosen, held)

    def _best_fit(self, frame: Frame, partners: Sequence[_Queue]) -> dict[str, Frame] | None:
        """Of all sets that hold `frame`, the one of least skew that may go out now; None if there is none."""
        best: dict[str, int] | None = None
        best_skew = self.slop_ns + 1
        fresh = tightest(frame, {q.rule.name: q.stamps(False) for q in partners}, self.slop_ns)
        if fresh is not None and self._follows(fresh):
            best, best_skew = fresh, _skew(fresh.values())
        if self._last is not None:
            # A frame of the last set may serve again only where the fit gets better.
            reused = tightest(frame, {q.rule.name: q.stamps(True) for q in partners}, self.slop_ns)
            if (
                reused is not None
                and _skew(reused.values()) < min(best_skew, self._last.skew_ns)
                and self._follows(reused)
            ):
                best = reused
        if best is None:
            return None
        return {name: self._queues[name].frame_at(stamp_ns) for name, stamp_ns in best.items()}

    def _follows(self, stamps: dict[str, int]) -> bool:
        return self._last is None or min(stamps.values()) > self._last.stamp_ns

    def _held(self, stamp_ns: int) -> dict[str, Frame] | None:
        """Latest frame of every `hold` camera; None when one has none that is young enough."""
        held = {}
        for name, queue in self._queues.items():
            if queue.rule.role is not Role.HOLD:
                continue
            latest = queue.waiting[-1] if queue.waiting else queue.given
            if latest is None or stamp_ns - latest.capture_ns > queue.rule.max_age_ns:
                return None
            held[name] = latest
        return held

    def _give(self, last_in: Frame, chosen: dict[str, Frame], held: dict[str, Frame]) -> FrameSet:
        by_capture = sorted(chosen.values(), key=lambda f: f.capture_ns)
        members = chosen | held
        frames = {name: members[name] for name in self._queues if name in members}
        result = FrameSet(
            frames=frames,
            held=frozenset(held),
            oldest=by_capture[0],
            newest=by_capture[-1],
            sync_ns=last_in.receive_ns,
            epoch=self._epoch,
        )
        for name, queue in self._queues.items():
            if name in frames:
                queue.give(frames[name])
            elif queue.rule.role is not Role.HOLD:
                queue.supersede_until(result.stamp_ns)
        self._last = result
        self.sets += 1
        return result


def tightest(frame: Frame, stamps: dict[str, list[int]], slop_ns: int) -> dict[str, int] | None:
    """Stamp for each camera such that `frame` is among them and their skew is the least possible.

    Every set has an oldest member: try each stamp that could be it, and take from each camera the first stamp that is
    not older. Exact for any number of cameras, unlike taking from each what lies nearest to `frame`.

    Args:
        frame: must be a member.
        stamps: captures to choose from, ascending, by camera [ns]; the frame's own camera among them.
        slop_ns: largest skew.

    Returns:
        Stamp by camera [ns]; of equal skews the newest; None where no choice is within the slop.
    """
    pivot_ns = frame.capture_ns
    best: dict[str, int] | None = None
    for first_ns in sorted({s for own in stamps.values() for s in own}):
        if not pivot_ns - slop_ns <= first_ns <= pivot_ns:
            continue
        choice = {}
        for name, own in stamps.items():
            if name == frame.camera:
                choice[name] = pivot_ns
                continue
            at = bisect_left(own, first_ns)
            if at == len(own) or own[at] - first_ns > slop_ns:
                break
            choice[name] = own[at]
        else:
            if best is None or _skew(choice.values()) <= _skew(best.values()):
                best = choice
    return best


def _skew(stamps: Iterable[int]) -> int:
    values = list(stamps)
    return max(values) - min(values)
