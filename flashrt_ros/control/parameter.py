"""What a node's parameter is: name, default, unit, range, and how a value is checked.

Nothing here imports ROS, so that the documentation can be made without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str | list[str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. Its type is the type of its default."""

    name: str
    default: Any
    description: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[str] = ()
    live: bool = False
    """Takes effect while the node runs; the others at the next configure (or start)."""

    @property
    def type_name(self) -> str:
        """As `ros2 param` calls it."""
        if isinstance(self.default, list):
            return "string_array"
        kinds = {bool: "bool", int: "integer", float: "double", str: "string"}
        return kinds[type(self.default)]

    @property
    def range_text(self) -> str:
        """Range or choices, for people."""
        if self.choices:
            return " | ".join(self.choices)
        if self.minimum is None and self.maximum is None:
            return ""
        low = "-∞" if self.minimum is None else f"{self.minimum:.10g}"
        high = "∞" if self.maximum is None else f"{self.maximum:.10g}"
        return f"{low} to {high}"

    def check(self, value: Any) -> Any:
        """The value in this parameter's type; an integer is taken for a double.

        Raises:
            ValueError: another type, or out of range; names the parameter, what is expected and what was found.
        """
        if isinstance(self.default, float) and type(value) is int:
            value = float(value)
        if isinstance(self.default, list):
            fits = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            value = list(value) if fits else value
        else:
            fits = type(value) is type(self.default)
        inside = fits and (
            (not self.choices or value in self.choices)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
        )
        if not inside:
            allowed = f", {self.range_text}" if self.range_text else ""
            unit = f" {self.unit}" if self.unit else ""
            raise ValueError(
                f"parameter {self.name}: expected {self.type_name}{allowed}{unit}, found {value!r}"
            )
        return value


def duration_ns(name: str, value: float) -> int:
    """Nanoseconds of a duration parameter, by the unit in its name (`_ms` or `_s`)."""
    return round(value * (1e6 if name.endswith("_ms") else 1e9))
