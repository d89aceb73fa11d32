"""Calibration data from recordings: representative observations, and what they make of a checkpoint's activations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.observer import ObservationError, Observer
from flashrt_ros.control.parameter_values import ParameterValues
from flashrt_ros.control.policies import (
    EXPERT,
    CheckpointPolicy,
    build_policy,
    checkpoint_folder,
    policy_settings,
)
from flashrt_ros.control.robot import Robot, find_robot, load_robot
from flashrt_ros.models.activations import ActivationRecorder, product_names
from flashrt_ros.models.checkpoint import open_checkpoint
from flashrt_ros.models.policy import FlowPolicy
from flashrt_ros.observation.frame import FrameSet, Observation
from flashrt_ros.offline.bag import Bag
from flashrt_ros.offline.bag_topics import find_topics
from flashrt_ros.runtime.calibration import (
    CalibrationError,
    CalibrationKey,
    CalibrationSample,
    file_sha256,
    write_calibration,
)

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An observation that a bag holds, before it is decoded."""

    bag: Path
    stamp_ns: int
    instruction: str


def calibrate(
    bags: Sequence[Path],
    folder: Path,
    parameters: Mapping[str, Any],
    count: int,
    *,
    namespace: str | None = None,
    progress: Progress = lambda what, share: None,
) -> dict[str, Any]:
    """Collect observations of bags, run the reference on each, and write what `load_calibration` reads.

    Args:
        bags: recordings of the robot.
        folder: to write.
        parameters: of the policy node; `checkpoint` and `robot` among them.
        count: observations wanted; fewer where the bags hold fewer.
        namespace: of the robot in the bags; None finds it.
        progress: told what is being done and the share of it that is.

    Returns:
        Counts for people: observations by bag and instruction, products.

    Raises:
        CalibrationError: nothing to calibrate with, or a product that no observation reached.
        BagError: a bag cannot be read.
        FileExistsError: the folder holds calibration data already.
    """
    if count < 1:
        raise CalibrationError(f"observations: expected at least 1, found {count}")
    values = ParameterValues("policy", parameters)
    if values["checkpoint"] == EXPERT:
        raise CalibrationError("checkpoint: expected a network, found the scripted expert")
    robot = load_robot(find_robot(values["robot"]))
    policy = build_policy(policy_settings(values), robot)
    assert isinstance(policy, CheckpointPolicy)
    key = calibration_key(policy, values, robot)
    candidates: list[Candidate] = []
    for number, bag in enumerate(bags):
        progress(f"looking through {bag.name}", number / len(bags))
        candidates += [
            Candidate(bag, frame_set.stamp_ns, instruction)
            for _, frame_set, instruction in _walk(bag, robot, values, namespace)
        ]
    chosen = choose(candidates, count)
    if not chosen:
        raise CalibrationError(
            f"no observation with an instruction in {', '.join(map(str, bags))}: give one with --instruction"
        )
    samples = []
    network = _unprepared(policy.network)
    with ActivationRecorder(network.weights) as recorder:
        for observation, candidate in _observations(chosen, robot, values, namespace):
            sample = _sample(observation, candidate, robot)
            network.infer(sample.views, sample.state, sample.instruction, steps=values["steps"])
            samples.append(sample)
            progress("running the reference", len(samples) / len(chosen))
    ranges = recorder.ranges()
    missing = sorted(product_names(network.weights) - ranges.keys())
    if missing:
        raise CalibrationError(f"no observation reached the products {', '.join(missing)}")
    write_calibration(folder, key, samples, ranges)
    by_bag: dict[str, int] = defaultdict(int)
    by_instruction: dict[str, int] = defaultdict(int)
    for sample in samples:
        by_bag[sample.bag] += 1
        by_instruction[sample.instruction] += 1
    return {
        "observations": len(samples),
        "wanted": count,
        "candidates": len(candidates),
        "by_bag": dict(by_bag),
        "by_instruction": dict(by_instruction),
        "products": len(ranges),
        "largest": max((found.largest, name) for name, found in ranges.items()),
    }


def _unprepared(network: FlowPolicy) -> FlowPolicy:
    """The plain network on the same weights, without the products that its engine has computed beforehand.

    What runs in its place may multiply folded weights, and what is kept reaches no product a second time.
    """
    return FlowPolicy(network.weights, network.config, network.processor)


def calibration_key(
    policy: CheckpointPolicy, values: ParameterValues, robot: Robot
) -> CalibrationKey:
    """What calibration data of this checkpoint on this robot must have been taken of."""
    checkpoint = open_checkpoint(checkpoint_folder(values["checkpoint"]))
    network = policy.network
    return CalibrationKey(
        weights_sha256=file_sha256(checkpoint.weights_file),
        contract_sha256=robot.sha256,
        settings={
            "family": network.config.family,
            "precision": network.precision,
            "steps": values["steps"],
            "image_size": network.config.image_size,
            "max_prompt_tokens": network.config.max_prompt_tokens,
            "horizon": network.config.horizon,
        },
    )


def choose(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Take `count`, alike many of each instruction, spread evenly over the time of each.

    What a rare instruction cannot fill the others do. Order of bags, then of time.
    """
    strata: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        strata[candidate.instruction].append(candidate)
    left, taken = count, []
    # The smallest stratum first: what it does not need is shared among those that follow.
    for number, group in enumerate(sorted(strata.values(), key=len)):
        share = min(len(group), -(-left // (len(strata) - number)))
        # The middle of each of `share` equal parts.
        places = (np.arange(share) + 0.5) * len(group) / share
        taken += [group[int(place)] for place in places]
        left -= share
    order = {id(candidate): at for at, candidate in enumerate(candidates)}
    return sorted(taken, key=lambda candidate: order[id(candidate)])


def _observations(
    chosen: Sequence[Candidate], robot: Robot, values: ParameterValues, namespace: str | None
) -> Iterator[tuple[Observation, Candidate]]:
    """The chosen observations, decoded, bag by bag."""
    for bag in dict.fromkeys(candidate.bag for candidate in chosen):
        wanted = {c.stamp_ns: c for c in chosen if c.bag == bag}
        for observer, frame_set, _ in _walk(bag, robot, values, namespace):
            candidate = wanted.pop(frame_set.stamp_ns, None)
            if candidate is not None:
                yield observer.observe(frame_set), candidate
            if not wanted:
                break


def _walk(
    path: Path, robot: Robot, values: ParameterValues, namespace: str | None
) -> Iterator[tuple[Observer, FrameSet, str]]:
    """Each set of a bag for which there is a joint state and an instruction."""
    with Bag(path) as bag:
        topics = find_topics(bag, robot, namespace)
        camera_of = {topic: camera for camera, topic in topics.cameras.items()}
        observer = Observer(robot, values, bag.start_ns)
        instruction = values["instruction"]
        wanted = {*camera_of, topics.joint_states, topics.instruction} - {""}
        for topic, record_ns, message in bag.messages(wanted):
            if topic == topics.joint_states:
                observer.add_joint_state(message, record_ns)
            elif topic == topics.instruction:
                instruction = values["instruction"] or message.data
            else:
                frame_set, _ = observer.frames.add(camera_of[topic], message, record_ns)
                if frame_set is None or not instruction:
                    continue
                try:
                    observer.observe(frame_set)
                except ObservationError:
                    continue
                yield observer, frame_set, instruction


def _sample(observation: Observation, candidate: Candidate, robot: Robot) -> CalibrationSample:
    return CalibrationSample(
        views={
            camera.feature: observation.images[camera.name]
            for camera in robot.cameras
            if camera.name in observation.images
        },
        state=robot.to_policy(observation.joint_positions).astype(np.float32),
        instruction=candidate.instruction,
        bag=str(candidate.bag),
        stamp_ns=candidate.stamp_ns,
    )
