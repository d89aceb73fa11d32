"""What is made from source is up to date, and the parameter files name parameters that exist."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flashrt_ros.control.parameters import NODES

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "name", ["config/policy.yaml", "docs/parameters.md", "docs/messages.md", "docs/cli.md"]
)
def test_pages_are_up_to_date(tmp_path, name):
    subprocess.run([sys.executable, ROOT / "tools/make_reference.py", tmp_path], check=True)
    assert (ROOT / name).read_text() == (tmp_path / name).read_text(), "run tools/make_reference.py"


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_parameter_files_name_parameters_that_exist_with_values_that_fit(path):
    for pattern, content in yaml.safe_load(path.read_text()).items():
        table = {p.name: p for p in NODES[pattern.rpartition("/")[2]]}
        for name, value in content["ros__parameters"].items():
            table[name].check(value)


@pytest.mark.parametrize("node", NODES)
def test_every_parameter_is_described_and_its_default_fits(node):
    names = [p.name for p in NODES[node]]
    assert len(set(names)) == len(names)
    for parameter in NODES[node]:
        assert parameter.check(parameter.default) == parameter.default
        assert parameter.description.endswith(".")
        for unit in ("ms", "s"):
            if parameter.name.endswith(f"_{unit}"):
                assert parameter.unit == unit


def test_integers_are_taken_for_doubles_and_nothing_else_is_converted():
    slop = next(p for p in NODES["policy"] if p.name == "slop_ms")
    assert slop.check(5) == 5.0
    assert isinstance(slop.check(5), float)
    for wrong in ("5", True, None, [5.0], float("nan"), -1, 1001):
        with pytest.raises(ValueError, match="slop_ms: expected double, 0 to 1000 ms, found"):
            slop.check(wrong)
