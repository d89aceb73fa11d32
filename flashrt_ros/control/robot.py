"""The robot contract: one YAML file that ties a robot's topics and joints to a policy's features.

A `Robot` says where observations come from, in which order and unit the joints are, what they may
do, and under which name the policy knows each camera. It is checked against the checkpoint before
anything moves (`Robot.check_against`). The files are in `config/robots/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

UNITS = ("rad", "m", "normalized", "degrees")
TRANSPORTS = ("raw", "compressed")
ROLES = ("required", "optional", "hold")

_TOPIC = re.compile(r"~?/?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


class RobotError(ValueError):
    """A robot file, a joint state or a policy that does not fit the contract."""


class PolicyFeatures(Protocol):
    """What a robot is checked against; a checkpoint's processor has these attributes.

    What a checkpoint does not record is None and is not checked.
    """

    @property
    def cameras(self) -> Sequence[str]:
        """Names of the policy's image features in the model's order."""

    @property
    def state_dim(self) -> int | None:
        """Numbers in the robot's state."""

    @property
    def action_dim(self) -> int | None:
        """Numbers in one action."""

    @property
    def state_names(self) -> Sequence[str] | None:
        """Joint names of the state, in order."""

    @property
    def action_names(self) -> Sequence[str] | None:
        """Joint names of an action, in order."""


@dataclass(frozen=True)
class Affine:
    """`policy = robot * scale + offset`."""

    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True)
class Joint:
    """One joint; limits and velocity (unit/s) in the unit of the robot's own topics.

    `state` converts the joint's position to what the policy was trained on, `action` the policy's
    answer back; they differ only where a policy was trained so (ALOHA's gripper in openpi).
    `policy_name` is the joint's name in the checkpoint where that differs.
    """

    name: str
    unit: str
    lower: float
    upper: float
    max_velocity: float
    gripper: bool = False
    policy_name: str = ""
    state: Affine = Affine()
    action: Affine = Affine()


@dataclass(frozen=True)
class Camera:
    """One camera and the policy feature that it feeds.

    role `required`: no observation without it; `optional`: absent, it is a masked view; `hold`: its
    last frame is used up to `max_age_s`. `rate_hz` (of the driver) is for noticing lost frames.
    """

    name: str
    topic: str
    policy_feature: str
    transport: str = "raw"
    role: str = "required"
    max_age_s: float | None = None
    rate_hz: float | None = None


@dataclass(frozen=True)
class Robot:
    """A robot as the policy node needs it; joints in the policy's order.

    `period_s` is the time between two actions of a chunk. `masked_features` are image features of
    the checkpoint that this robot knowingly does not have: the policy sees a masked view there.
    """

    name: str
    period_s: float
    joint_states_topic: str
    trajectory_topic: str
    joints: tuple[Joint, ...]
    cameras: Mapping[str, Camera]
    masked_features: tuple[str, ...] = ()
    instruction: str = ""
    source: str = "robot"

    @classmethod
    def load(cls, path: str | Path) -> Robot:
        """Read a robot file. Raises RobotError naming file, field, expected and found."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RobotError(
                f"{path}: expected a readable robot file, found: {error.strerror}"
            ) from None
        try:
            data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RobotError(
                f"{path}: expected YAML, found: {' '.join(str(error).split())}"
            ) from None
        return cls.from_dict(data, source=str(path))

    @classmethod
    def from_dict(cls, data: Any, source: str = "robot") -> Robot:
        """Build a robot from the mapping of its file; `source` names it in errors."""
        fields = _Fields(source, "", data)
        robot = cls(
            name=fields.text("name"),
            period_s=fields.number("period_s", above=0.0),
            joint_states_topic=fields.topic("joint_states_topic"),
            trajectory_topic=fields.topic("trajectory_topic"),
            joints=tuple(_joint(item) for item in fields.items("joints")),
            cameras={item.name: _camera(item) for item in fields.entries("cameras")},
            masked_features=fields.texts("masked_features"),
            instruction=fields.text("instruction", ""),
            source=source,
        )
        fields.reject_unknown()
        _reject_repeated(source, "joints[].name", [j.name for j in robot.joints])
        _reject_repeated(source, "cameras.*.topic", [c.topic for c in robot.cameras.values()])
        features = [c.policy_feature for c in robot.cameras.values()]
        _reject_repeated(
            source,
            "policy_feature of a camera or masked_features",
            [*features, *robot.masked_features],
        )
        return robot

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Joint names in the policy's order, as in the robot's topics."""
        return tuple(joint.name for joint in self.joints)

    @cached_property
    def lower(self) -> NDArray[np.float64]:
        """Lower position limits [J], robot units."""
        return np.array([joint.lower for joint in self.joints])

    @cached_property
    def upper(self) -> NDArray[np.float64]:
        """Upper position limits [J], robot units."""
        return np.array([joint.upper for joint in self.joints])

    @cached_property
    def max_velocity(self) -> NDArray[np.float64]:
        """Velocity limits [J], robot units per second."""
        return np.array([joint.max_velocity for joint in self.joints])

    @cached_property
    def gripper_mask(self) -> NDArray[np.bool_]:
        """True where a joint is a gripper [J]."""
        return np.array([joint.gripper for joint in self.joints])

    def state_vector(self, names: Sequence[str], positions: ArrayLike) -> NDArray[np.float64]:
        """Positions [J] in this robot's joint order, robot units, from a joint state by name.

        Order is free and joints of others are ignored. Raises RobotError for a joint that is
        missing or not finite, and where names and positions differ in length.
        """
        values = np.asarray(positions, dtype=np.float64)
        if values.shape != (len(names),):
            raise RobotError(
                f"{self.joint_states_topic}: expected one position per name, "
                f"found {len(names)} names and positions of shape {list(values.shape)}"
            )
        index = {name: i for i, name in enumerate(names)}
        missing = [name for name in self.joint_names if name not in index]
        if missing:
            raise RobotError(
                f"{self.joint_states_topic}: expected the joints of {self.source}, "
                f"missing {missing}, found {list(names)}"
            )
        state: NDArray[np.float64] = values[[index[name] for name in self.joint_names]]
        if not np.isfinite(state).all():
            bad = [n for n, v in zip(self.joint_names, state, strict=True) if not math.isfinite(v)]
            raise RobotError(
                f"{self.joint_states_topic}: expected finite positions, not so for {bad}"
            )
        return state

    def to_policy(self, positions: ArrayLike) -> NDArray[np.float64]:
        """State [..., J] in robot units → what the policy was trained on."""
        scale, offset = self._state_affine
        return self._per_joint(positions) * scale + offset

    def from_policy(self, actions: ArrayLike) -> NDArray[np.float64]:
        """Absolute actions [..., J] of the policy → positions in robot units."""
        scale, offset = self._action_affine
        return (self._per_joint(actions) - offset) / scale

    def check_against(self, policy: PolicyFeatures) -> None:
        """Raise one RobotError listing every mismatch between this robot and the policy."""
        problems = [
            *self._dimension_problems("state", policy.state_dim),
            *self._dimension_problems("action", policy.action_dim),
            *self._name_problems("state", policy.state_names),
            *self._name_problems("action", policy.action_names),
            *self._camera_problems(policy.cameras),
        ]
        if problems:
            title = f"{self.source}: robot {self.name!r} does not fit the policy:"
            raise RobotError("\n  - ".join([title, *problems]))

    @cached_property
    def _state_affine(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _columns([joint.state for joint in self.joints])

    @cached_property
    def _action_affine(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _columns([joint.action for joint in self.joints])

    def _per_joint(self, values: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(values, dtype=np.float64)
        if array.ndim == 0 or array.shape[-1] != len(self.joints):
            raise RobotError(
                f"{self.source}: expected {len(self.joints)} joints in the last dimension, "
                f"found shape {list(array.shape)}"
            )
        return array

    def _dimension_problems(self, what: str, dim: int | None) -> list[str]:
        if dim is None or dim == len(self.joints):
            return []
        return [f"{what}: the policy has {dim} dimensions, the robot {len(self.joints)} joints"]

    def _name_problems(self, what: str, names: Sequence[str] | None) -> list[str]:
        if names is None:
            return []
        # LeRobot's motors are called `<joint>.pos`.
        expected = [name.removesuffix(".pos") for name in names]
        found = [joint.policy_name for joint in self.joints]
        if expected == found:
            return []
        if sorted(expected) == sorted(found):
            return [f"{what}: the policy's joint order is {expected}, the robot's {found}"]
        return [f"{what}: the policy's joints are {expected}, the robot's {found} (`policy_name`)"]

    def _camera_problems(self, features: Sequence[str]) -> list[str]:
        fed = {camera.policy_feature: camera.name for camera in self.cameras.values()}
        problems = [
            f"camera {name!r}: policy_feature {feature!r} is none of the policy's {list(features)}"
            for feature, name in fed.items()
            if feature not in features
        ]
        problems += [
            f"masked_features: {feature!r} is none of the policy's {list(features)}"
            for feature in self.masked_features
            if feature not in features
        ]
        problems += [
            f"policy camera {feature!r}: no camera has it as policy_feature "
            "(list it in masked_features if the policy shall do without)"
            for feature in features
            if feature not in fed and feature not in self.masked_features
        ]
        return problems


class _Fields:
    """One mapping of a robot file, read field by field with errors that say where."""

    def __init__(self, source: str, path: str, data: Any, name: str = ""):
        self.source, self.path, self.name = source, path, name
        if not isinstance(data, Mapping):
            self.fail("", "a mapping", data)
        self.data: Mapping[Any, Any] = data
        self.known: set[str] = set()

    def fail(self, key: str, expected: str, found: Any) -> None:
        where = ".".join(part for part in (self.path, key) if part) or "file"
        shown = "nothing" if found is None else repr(found)
        raise RobotError(f"{self.source}: {where}: expected {expected}, found {shown}")

    def get(self, key: str) -> Any:
        self.known.add(key)
        return self.data.get(key)

    def number(self, key: str, default: float | None = None, *, above: float = -math.inf) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        usable = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not usable or not math.isfinite(value) or value <= above:
            bound = "" if above == -math.inf else f" above {above:g}"
            self.fail(key, f"a finite number{bound}", value)
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key, above=0.0)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value.strip():
            self.fail(key, "text", value)
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "a list of texts", value)
        return tuple(value)

    def topic(self, key: str) -> str:
        value = self.text(key)
        if not _TOPIC.fullmatch(value):
            self.fail(key, "a ROS topic name such as /camera/image_raw", value)
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in choices:
            self.fail(key, f"one of {', '.join(choices)}", value)
        return value

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.fail(key, "true or false", value)
        return bool(value)

    def affine(self, key: str, default: Affine) -> Affine:
        value = self.get(key)
        if value is None:
            return default
        fields = _Fields(self.source, f"{self.path}.{key}", value)
        result = Affine(fields.number("scale", 1.0), fields.number("offset", 0.0))
        fields.reject_unknown()
        if result.scale == 0.0:
            fields.fail("scale", "a number other than 0", 0)
        return result

    def items(self, key: str) -> list[_Fields]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            self.fail(key, "a list with at least one entry", value)
        return [_Fields(self.source, f"{key}[{i}]", item) for i, item in enumerate(value)]

    def entries(self, key: str) -> list[_Fields]:
        value = self.get(key)
        if not isinstance(value, Mapping) or not value:
            self.fail(key, "a mapping with at least one entry", value)
        for name in value:
            if not isinstance(name, str):
                self.fail(key, "names that are text", name)
        return [_Fields(self.source, f"{key}.{name}", item, name) for name, item in value.items()]

    def reject_unknown(self) -> None:
        unknown = [key for key in self.data if key not in self.known]
        if unknown:
            self.fail("", f"only the fields {', '.join(sorted(self.known))}", unknown)


def _joint(fields: _Fields) -> Joint:
    name = fields.text("name")
    state = fields.affine("policy", Affine())
    joint = Joint(
        name=name,
        unit=fields.choice("unit", UNITS),
        lower=fields.number("lower"),
        upper=fields.number("upper"),
        max_velocity=fields.number("max_velocity", above=0.0),
        gripper=fields.flag("gripper"),
        policy_name=fields.text("policy_name", name),
        state=state,
        action=fields.affine("policy_action", state),
    )
    fields.reject_unknown()
    if joint.lower >= joint.upper:
        fields.fail("upper", f"a number above lower ({joint.lower:g})", joint.upper)
    return joint


def _camera(fields: _Fields) -> Camera:
    camera = Camera(
        name=fields.name,
        topic=fields.topic("topic"),
        policy_feature=fields.text("policy_feature"),
        transport=fields.choice("transport", TRANSPORTS, "raw"),
        role=fields.choice("role", ROLES, "required"),
        max_age_s=fields.optional_number("max_age_s"),
        rate_hz=fields.optional_number("rate_hz"),
    )
    fields.reject_unknown()
    if camera.role == "hold" and camera.max_age_s is None:
        fields.fail("max_age_s", "seconds, since role is hold", None)
    if camera.role != "hold" and camera.max_age_s is not None:
        fields.fail("max_age_s", f"nothing, since role is {camera.role}", camera.max_age_s)
    return camera


def _reject_repeated(source: str, what: str, values: Sequence[str]) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise RobotError(f"{source}: {what}: expected each once, found more than once: {repeated}")


def _columns(affines: Sequence[Affine]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.array([a.scale for a in affines]), np.array([a.offset for a in affines])
