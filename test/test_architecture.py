"""The arrows between the rooms, read from every import statement, those inside functions included."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Rooms of flashrt_ros that a room may import besides itself. A room that is not named here may import all but nodes.
ALLOWED = {
    "observation": set(),
    "models": {"observation"},
    "kernels": set(),
    "runtime": {"observation", "models", "kernels"},
}
ROS = {
    "action_msgs",
    "ament_index_python",
    "cv_bridge",
    "launch",
    "launch_ros",
    "message_filters",
    "rclpy",
    "rosidl_runtime_py",
    "std_srvs",
}


def imported(source: str, package: str) -> set[str]:
    """Full names of the modules that a source text imports anywhere, ``package`` being where relative ones start."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from flashrt_ros import models` names the room after the word import.
            names |= {f"{base}.{alias.name}" for alias in node.names} | {base}
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names.add(node.args[0].value)
    return names


def room(name: str) -> str:
    """The room that a full module name lies in: '' for flashrt_ros itself and for other packages."""
    parts = name.split(".")
    return parts[1] if parts[0] == "flashrt_ros" and len(parts) > 1 else ""


def is_ros(name: str) -> bool:
    top = name.split(".")[0]
    generated = room(name) in ("msg", "srv", "action")
    return (
        generated or top in ROS or top.endswith(("_msgs", "_interfaces")) or top.startswith("tf2_")
    )


def modules() -> dict[str, Path]:
    """Every module of the package by its full name as installed."""
    found = {}
    for folder, prefix in (("flashrt_ros", "flashrt_ros"), ("kernels", "flashrt_ros.kernels")):
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([prefix, *inner])] = path
    return found


MODULES = modules()


def imports_of(name: str) -> set[str]:
    return imported(MODULES[name].read_text(encoding="utf-8"), name.rpartition(".")[0])


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down(name):
    here = room(name)
    rooms = {room(target) for target in imports_of(name)} & {room(module) for module in MODULES}
    rooms -= {here, "", "__init__", "paths"}
    if here in ALLOWED:
        assert rooms <= ALLOWED[here], f"{here} imports {sorted(rooms - ALLOWED[here])}"
    elif here != "nodes":
        assert "nodes" not in rooms, (
            f"{name} imports nodes, which only launch files and executables start"
        )


@pytest.mark.parametrize("name", sorted(name for name in MODULES if room(name) != "nodes"))
def test_only_nodes_import_ros(name):
    ros = sorted(filter(is_ros, imports_of(name)))
    assert not ros, f"{name} imports {ros}: only flashrt_ros/nodes and launch/ may"


def test_benchmarks_run_without_ros():
    # Those that measure pictures on their way through ROS: there is nothing in them to run without it.
    of_ros = {ROOT / "benchmarks" / name for name in ("transport.py", "age_gpu.py")}
    paths = set((ROOT / "benchmarks").rglob("*.py")) - of_ros
    assert paths
    for path in paths:
        ros = sorted(filter(is_ros, imported(path.read_text(encoding="utf-8"), "benchmarks")))
        assert not ros, f"{path.name} imports {ros}"


@pytest.mark.parametrize("name", sorted(n for n in MODULES if room(n) == "observation"))
def test_observation_is_free_of_torch(name):
    assert "torch" not in {target.split(".")[0] for target in imports_of(name)}


@pytest.mark.parametrize("name", sorted(n for n in MODULES if room(n) == "kernels"))
def test_kernels_import_torch_and_triton_only(name):
    tops = {target.split(".")[0] for target in imports_of(name)}
    strangers = tops - {"torch", "triton", "flashrt_ros"} - set(sys.stdlib_module_names)
    assert not strangers, f"{name} imports {sorted(strangers)}"


def test_finder_sees_every_way_to_import():
    source = """
import a.b
from c import d
from . import e
from ..f import g
def late():
    from h import i
    importlib.import_module("j.k")
"""
    names = imported(source, "flashrt_ros.nodes")
    assert {"a.b", "c.d", "flashrt_ros.nodes.e", "flashrt_ros.f.g", "h.i", "j.k"} <= names
    ros = ["rclpy.node", "sensor_msgs.msg", "flashrt_ros.msg", "rcl_interfaces"]
    assert all(map(is_ros, ros))
    assert not any(map(is_ros, ["torch", "flashrt_ros.models", "launchpad"]))
