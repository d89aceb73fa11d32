"""The robot contract: joints, limits, cameras and topics of one robot, from one YAML file.

It ties what a policy calls its features to what the robot calls its joints and topics. What does not fit is found when
it is read or checked against a policy, not at the first action.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from flashrt_ros.observation.frame import CameraRule, Role
from flashrt_ros.paths import config_path

UNITS = ("rad", "m", "degrees", "normalized")
TRANSPORTS = ("raw", "compressed")
_T = TypeVar("_T")


class RobotError(ValueError):
    """A contract that contradicts itself, a policy or a message. Says what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Joint:
    """One joint, in the robot's own unit."""

    name: str
    lower: float
    upper: float
    max_velocity: float
    """Per second."""
    unit: str = "rad"
    gripper: bool = False
    policy_scale: float = 1.0
    """Policy value = (position - policy_offset) * policy_scale."""
    policy_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera and the policy feature that it feeds."""

    name: str
    topic: str
    feature: str
    transport: str = "raw"
    role: Role = Role.REQUIRED
    max_age_s: float = 0.0
    """Role `hold`: oldest picture that may serve."""
    rate_hz: float | None = None
    """Its frame rate where it is known; learned from the stamps otherwise."""
    height: int | None = None
    """Rows of its pictures where they are known, so that all is built for them before the first one."""
    width: int | None = None
    """Columns."""

    @property
    def rule(self) -> CameraRule:
        """Its part in synchronisation."""
        return CameraRule(self.name, self.role, round(self.max_age_s * 1e9))


@dataclass(frozen=True, slots=True)
class Robot:
    """The contract of one robot; see `config/robots/so101.yaml` for every field."""

    name: str
    joints: tuple[Joint, ...]
    cameras: tuple[Camera, ...]
    period_s: float
    """Time between two actions."""
    joint_states_topic: str = "joint_states"

    @property
    def joint_names(self) -> list[str]:
        """In the order of every action and state vector."""
        return [joint.name for joint in self.joints]

    @property
    def sha256(self) -> str:
        """SHA-256 of everything that the contract says, whatever its file looks like."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def period_ns(self) -> int:
        """Time between two actions [ns]."""
        return round(self.period_s * 1e9)

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper position limits, float64 [joints] each, in the joints' units."""
        lower = np.array([joint.lower for joint in self.joints])
        upper = np.array([joint.upper for joint in self.joints])
        return lower, upper

    def max_velocity(self) -> NDArray[np.float64]:
        """Float64 [joints], units per second."""
        return np.array([joint.max_velocity for joint in self.joints])

    def max_step(self) -> NDArray[np.float64]:
        """Largest change from one action to the next, float64 [joints], units."""
        return self.max_velocity() * self.period_s

    def to_policy(self, positions: NDArray[np.floating]) -> NDArray[np.float64]:
        """Robot units to policy units, [..., joints]."""
        return (positions - self._offset()) * self._scale()

    def from_policy(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """Policy units to robot units, [..., joints]."""
        return values / self._scale() + self._offset()

    def check_policy(
        self, features: Sequence[str], state_size: int | None, action_size: int
    ) -> None:
        """Check that a policy fits this robot.

        Args:
            features: camera features that the policy cannot do without.
            state_size: numbers in its state; None when it does not say.
            action_size: numbers in an action.

        Raises:
            RobotError: lists everything that does not fit.
        """
        wrong = []
        served = {camera.feature for camera in self.cameras}
        absent = [feature for feature in features if feature not in served]
        if absent:
            wrong.append(f"no camera feeds {absent}: cameras feed {sorted(served)}")
        for what, size in (("state", state_size), ("action", action_size)):
            if size is not None and size != len(self.joints):
                wrong.append(
                    f"the policy's {what} has {size} numbers, the robot {len(self.joints)} joints"
                )
        if wrong:
            raise RobotError(f"robot {self.name!r} does not fit the policy: " + "; ".join(wrong))

    def _scale(self) -> NDArray[np.float64]:
        return np.array([joint.policy_scale for joint in self.joints])

    def _offset(self) -> NDArray[np.float64]:
        return np.array([joint.policy_offset for joint in self.joints])


def find_robot(name: str) -> Path:
    """Path of a robot contract: a file, or a name in config/robots.

    Raises:
        FileNotFoundError: neither.
    """
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        if path.exists():
            return path
        raise FileNotFoundError(f"robot: no file {path}")
    known = config_path("robots/so101.yaml").parent
    path = known / f"{name}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in known.glob("*.yaml")))
        raise FileNotFoundError(f"robot: expected a .yaml file or one of {names}, found {name!r}")
    return path


def load_robot(path: Path) -> Robot:
    """Read a contract.

    Raises:
        RobotError: names the file and the field, what was expected and what was found.
        FileNotFoundError: no such file.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RobotError(f"{path}: not YAML: {error}") from error
    return _Fields(path, "", content).robot()


@dataclass(frozen=True)
class _Fields:
    """The fields of one mapping of the file, taken with their checks."""

    path: Path
    where: str
    content: Any

    def robot(self) -> Robot:
        self._known("name", "period_s", "joint_states_topic", "joints", "cameras")
        joints = self._children("joints", _Fields.joint)
        cameras = self._children("cameras", _Fields.camera)
        if not any(camera.role is Role.REQUIRED for camera in cameras):
            raise self._error("cameras", "at least one of role 'required'", cameras)
        return Robot(
            name=self._text("name"),
            joints=joints,
            cameras=cameras,
            period_s=self._number("period_s", above=0.0),
            joint_states_topic=self._text("joint_states_topic", "joint_states"),
        )

    def joint(self, name: str) -> Joint:
        self._known(
            "unit", "lower", "upper", "max_velocity", "gripper", "policy_scale", "policy_offset"
        )
        joint = Joint(
            name=name,
            unit=self._choice("unit", UNITS, "rad"),
            lower=self._number("lower"),
            upper=self._number("upper"),
            max_velocity=self._number("max_velocity", above=0.0),
            gripper=bool(self.content.get("gripper", False)),
            policy_scale=self._number("policy_scale", default=1.0),
            policy_offset=self._number("policy_offset", default=0.0),
        )
        if joint.lower >= joint.upper:
            raise self._error("upper", f"more than lower ({joint.lower})", joint.upper)
        if joint.policy_scale == 0.0:
            raise self._error("policy_scale", "a number other than 0", 0.0)
        return joint

    def camera(self, name: str) -> Camera:
        self._known(
            "topic", "feature", "transport", "role", "max_age_s", "rate_hz", "height", "width"
        )
        role = Role(self._choice("role", tuple(r.value for r in Role), Role.REQUIRED.value))
        rate_hz = self.content.get("rate_hz")
        return Camera(
            name=name,
            topic=self._text("topic"),
            feature=self._text("feature", name),
            transport=self._choice("transport", TRANSPORTS, "raw"),
            role=role,
            max_age_s=self._number("max_age_s", above=0.0) if role is Role.HOLD else 0.0,
            rate_hz=None if rate_hz is None else self._number("rate_hz", above=0.0),
            height=self._pixels("height", with_="width"),
            width=self._pixels("width", with_="height"),
        )

    def _pixels(self, field: str, *, with_: str) -> int | None:
        """A side of a picture; both are given or none."""
        value = self.content.get(field)
        if value is None and self.content.get(with_) is None:
            return None
        if type(value) is not int or value < 1:
            raise self._error(field, f"pixels, as {with_} is given", value)
        return value

    def _children(self, field: str, build: Callable[[_Fields, str], _T]) -> tuple[_T, ...]:
        children = self.content.get(field)
        if not isinstance(children, Mapping) or not children:
            raise self._error(field, "a mapping from names to their fields", children)
        return tuple(
            build(_Fields(self.path, f"{field}.{name}.", child), str(name))
            for name, child in children.items()
        )

    def _known(self, *names: str) -> None:
        if not isinstance(self.content, Mapping):
            raise self._error("", f"a mapping with {', '.join(names)}", self.content)
        for field in self.content:
            if field not in names:
                raise self._error(str(field), f"one of {', '.join(names)}", field)

    def _text(self, field: str, default: str | None = None) -> str:
        value = self.content.get(field, default)
        if not isinstance(value, str) or not value:
            raise self._error(field, "a text", value)
        return value

    def _choice(self, field: str, options: Sequence[str], default: str) -> str:
        value = self.content.get(field, default)
        if value not in options:
            raise self._error(field, f"one of {', '.join(options)}", value)
        return str(value)

    def _number(
        self, field: str, *, default: float | None = None, above: float | None = None
    ) -> float:
        value = self.content.get(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
            raise self._error(field, "a number", value)
        if above is not None and value <= above:
            raise self._error(field, f"a number above {above:g}", value)
        return float(value)

    def _error(self, field: str, expected: str, found: Any) -> RobotError:
        where = f"{self.where}{field}".strip(".") or "the file"
        return RobotError(f"{self.path}: {where}: expected {expected}, found {found!r}")
