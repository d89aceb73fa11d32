"""The table of parameters for people: a commented parameter file, and a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flashrt_ros.control.parameters import NODES


def yaml_text(node: str) -> str:
    """A parameter file for one node with every default and its comment."""
    return "\n".join(_yaml_lines(node)) + "\n"


def _yaml_lines(node: str) -> Iterator[str]:
    yield f"/**/{node}:"
    yield "  ros__parameters:"
    for parameter in NODES[node]:
        notes = [parameter.description]
        if parameter.unit:
            notes.append(f"[{parameter.unit}]")
        if parameter.range_text:
            notes.append(f"({parameter.range_text})")
        if parameter.live:
            notes.append("Live.")
        yield f"    # {' '.join(notes)}"
        yield f"    {parameter.name}: {_yaml_value(parameter.default)}"


def _yaml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(value) + "]"
    return str(value)


def markdown_table(node: str) -> str:
    """The table of one node's parameters, for the documentation."""
    rows = [
        "| parameter | type | default | unit | range | live | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    for p in NODES[node]:
        allowed = p.range_text.replace("|", "/")
        rows.append(
            f"| `{p.name}` | {p.type_name} | `{_yaml_value(p.default)}` | {p.unit} | {allowed} | "
            f"{'yes' if p.live else ''} | {p.description} |"
        )
    return "\n".join(rows) + "\n"
