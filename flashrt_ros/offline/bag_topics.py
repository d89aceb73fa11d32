"""Which topics of a recording are the cameras, joint states, instruction and actions of a robot contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashrt_ros.control.observer import JOINT_STATES
from flashrt_ros.control.robot import Robot
from flashrt_ros.observation.frame import Role
from flashrt_ros.offline.bag import Bag, BagError
from flashrt_ros.offline.recorded_actions import ACTION_APPLIED, JOINT_STATE, TRAJECTORY, TYPES

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
CHUNK = "flashrt_ros/msg/ActionChunk"
STRING = "std_msgs/msg/String"


@dataclass(frozen=True, slots=True)
class BagTopics:
    """Full topic names by what they are for; empty where there is none."""

    namespace: str
    cameras: dict[str, str]
    """Topic by camera name."""
    joint_states: str
    instruction: str
    chunks: str
    """ActionChunk messages of a policy that ran."""
    actions: str
    """What the actions are measured against: applied actions, trajectories, or the joint states."""


def find_topics(
    bag: Bag, robot: Robot, namespace: str | None = None, actions: str = ""
) -> BagTopics:
    """Find the topics of a contract.

    Args:
        bag: opened; what is missing and can be done without is added to its notes.
        robot: names topics, relative to the namespace unless they begin with /.
        namespace: of the robot; None looks for the one that the bag holds.
        actions: topic of the recorded actions, where it is to be a certain one.

    Raises:
        BagError: a topic is missing or of another type, or the bag holds several robots; one line that says what there
            is.
    """
    wanted = {camera.name: camera.topic for camera in robot.cameras}
    wanted[JOINT_STATES] = robot.joint_states_topic
    if namespace is None:
        namespace = _find_namespace(bag, list(wanted.values()))
    found = {name: _resolve(namespace, topic) for name, topic in wanted.items()}
    types = {
        camera.name: COMPRESSED if camera.transport == "compressed" else IMAGE
        for camera in robot.cameras
    }
    types[JOINT_STATES] = JOINT_STATE
    optional = {camera.name for camera in robot.cameras if camera.role is Role.OPTIONAL}
    wrong = []
    for name, topic in list(found.items()):
        problem = _problem(bag, name, topic, types[name])
        if problem and name in optional:
            bag.notes.append(f"{problem}; it is optional, the replay does without")
            del found[name]
        elif problem:
            wrong.append(problem)
    if wrong:
        usable = [
            f"{name} ({bag.topics[topic].count} messages)"
            for name, topic in found.items()
            if not _problem(bag, name, topic, types[name])
        ]
        raise BagError(
            f"{bag.path}: {'; '.join(wrong)}; usable: {', '.join(usable) or 'nothing'}; the bag's topics: "
            f"{_listed(bag)}"
        )
    joint_states = found.pop(JOINT_STATES)
    instruction = _resolve(namespace, "policy/instruction")
    return BagTopics(
        namespace=namespace,
        cameras=found,
        joint_states=joint_states,
        instruction=instruction if bag.type_of(instruction) == STRING else "",
        chunks=_only(bag, namespace, CHUNK),
        actions=_actions(bag, namespace, actions) or joint_states,
    )


def _find_namespace(bag: Bag, topics: Sequence[str]) -> str:
    """The namespace under which the bag holds most of the topics; the root where there is none.

    Raises:
        BagError: several hold as many.
    """
    relative = [topic for topic in topics if not topic.startswith("/")]
    held: dict[str, int] = {}
    for name in bag.topics:
        for topic in relative:
            if name.endswith(f"/{topic}"):
                namespace = name.removesuffix(topic).rstrip("/")
                held[namespace] = held.get(namespace, 0) + 1
    most = max(held.values(), default=0)
    best = sorted(namespace for namespace, count in held.items() if count == most)
    if len(best) > 1 and "" not in best:
        raise BagError(
            f"{bag.path}: holds {len(best)} robots: choose one with --namespace {' or '.join(best)}"
        )
    if not best or "" in best:
        return ""
    bag.notes.append(f"topics found in namespace {best[0]}")
    return best[0]


def _resolve(namespace: str, topic: str) -> str:
    if topic.startswith("/"):
        return topic
    return "/" + "/".join(part for part in (namespace.strip("/"), topic) if part)


def _problem(bag: Bag, name: str, topic: str, expected: str) -> str:
    kind = "joint states" if name == JOINT_STATES else f"camera {name}"
    if topic not in bag.topics:
        return f"no topic {topic} ({kind}, {expected})"
    if bag.topics[topic].types != {expected}:
        return f"{topic} ({kind}): expected {expected}, found {bag.type_of(topic)}"
    if not bag.topics[topic].count:
        return f"{topic} ({kind}): no message in it"
    return ""


def _only(bag: Bag, namespace: str, kind: str) -> str:
    """The one topic of a type in a namespace; empty where there is none or more."""
    inside = [
        name
        for name, topic in bag.topics.items()
        if topic.types == {kind} and topic.count and name.startswith(f"{namespace}/")
    ]
    return inside[0] if len(inside) == 1 else ""


def _actions(bag: Bag, namespace: str, chosen: str) -> str:
    if not chosen:
        return _only(bag, namespace, ACTION_APPLIED) or _only(bag, namespace, TRAJECTORY)
    topic = _resolve(namespace, chosen)
    if bag.type_of(topic) not in TYPES:
        raise BagError(
            f"{bag.path}: actions {topic}: expected one of {', '.join(TYPES)}, found "
            f"{bag.type_of(topic) or 'no such topic'}; the bag's topics: {_listed(bag)}"
        )
    return topic


def _listed(bag: Bag) -> str:
    return ", ".join(f"{name} [{bag.type_of(name)}]" for name in sorted(bag.topics)) or "none"
