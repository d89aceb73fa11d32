"""What launch files name exists; read from their text, for machines without launch."""

import ast
import inspect
from pathlib import Path

import pytest

from flashrt_ros.control.parameters import NODES
from flashrt_ros.demo import DemoSettings
from flashrt_ros.paths import config_path, executable_path

ROOT = Path(__file__).resolve().parents[2]
EXECUTABLES = {
    "policy.launch.py": {"policy", "age_logger"},
    "demo.launch.py": {"action_player", "sim_camera", "sim_robot"},
    "replay.launch.py": {"action_player", "bag_player", "bag_recorder"},
}


def calls(file, function):
    """Calls of a function in a launch file."""
    for node in ast.walk(ast.parse((ROOT / "launch" / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
            yield node


def keywords(call):
    return {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}


def arguments(file):
    """Defaults of a launch file's arguments, where they are literal."""
    return {
        call.args[0].value: keywords(call).get("default_value")
        for call in calls(file, "DeclareLaunchArgument")
    }


def test_executables_exist():
    policy = [*calls("policy.launch.py", "Node"), *calls("policy.launch.py", "LifecycleNode")]
    started = {
        "policy.launch.py": {keywords(call)["executable"] for call in policy},
        **{
            file: {call.args[0].value for call in calls(file, "node")}
            for file in ("demo.launch.py", "replay.launch.py")
        },
    }
    assert started == EXECUTABLES
    for name in set.union(*started.values()):
        assert executable_path(name).is_file()


@pytest.mark.parametrize("file", EXECUTABLES)
def test_config_files_exist(file):
    for call in calls(file, "config_path"):
        assert config_path(call.args[0].value).is_file()


def test_demo_is_the_demo_of_the_command():
    settings = inspect.signature(DemoSettings).parameters
    command = {
        name.removesuffix("_s").removesuffix("_m"): parameter.default
        for name, parameter in settings.items()
        if name not in ("duration_s", "folder", "checkpoint", "bag", "storage")
    }
    launch = arguments("demo.launch.py")
    assert launch.keys() == command.keys() | {"duration", "params_file"}
    for name, default in command.items():
        assert type(default)(launch[name]) == default


@pytest.mark.parametrize("file", ["demo.launch.py", "replay.launch.py"])
def test_nodes_get_parameters_that_exist(file):
    for call in calls(file, "node"):
        table = {parameter.name for parameter in NODES[call.args[0].value]} | {"use_sim_time"}
        assert {keyword.arg for keyword in call.keywords if keyword.arg} <= table
