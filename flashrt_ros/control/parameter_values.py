"""Values of a node's parameters where no node holds them: in a replay, from defaults and a ROS parameter file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.control.parameter import duration_ns
from flashrt_ros.control.parameters import NODES

if TYPE_CHECKING:
    from flashrt_ros.control.observer import Made, Settings


class ParameterValues:
    """Values of one node's parameters where no node holds them: in a replay.

    Args:
        node: name in `NODES`.
        given: values by name; the others have their defaults.

    Raises:
        ValueError: an unknown name, or a value that does not fit.
    """

    def __init__(self, node: str, given: Mapping[str, Any]) -> None:
        self._table = {parameter.name: parameter for parameter in NODES[node]}
        self._values = {name: parameter.default for name, parameter in self._table.items()}
        for name, value in given.items():
            self.set(name, value)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def ns(self, name: str) -> int:
        """A duration parameter in nanoseconds."""
        return duration_ns(name, self[name])

    def made(self, make: Callable[[Settings], Made]) -> Made:
        """What `make` makes of the values."""
        return make(self)

    def set(self, name: str, value: Any) -> None:
        """Change one value.

        Raises:
            ValueError: an unknown name, or it does not fit.
        """
        if name not in self._table:
            raise ValueError(f"parameter {name}: expected one of {', '.join(self._table)}")
        self._values[name] = self._table[name].check(value)


def read_parameter_file(path: Path, node: str) -> dict[str, Any]:
    """What a ROS parameter file sets for a node of this name, in whatever namespace.

    Raises:
        ValueError: not such a file.
        FileNotFoundError: no such file.
    """
    # Those who only want the table need no YAML.
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping from node names to ros__parameters")
    values: dict[str, Any] = {}
    for pattern, entry in content.items():
        if str(pattern).rpartition("/")[2] in (node, "**"):
            if not isinstance(entry, dict) or not isinstance(entry.get("ros__parameters"), dict):
                raise ValueError(f"{path}: {pattern}: expected ros__parameters: with a mapping")
            values |= entry["ros__parameters"]
    return values
