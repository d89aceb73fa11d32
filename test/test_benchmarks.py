"""Every benchmark script finds what it imports and says what its arguments are."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text())
ABSENT = ("matplotlib", "mujoco", "rclpy", "rosbags", "tqdm", "triton")  # of extras, or of ROS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_shows_its_arguments(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name in ABSENT:
            pytest.skip(str(error))
        raise
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0
    assert "--help" in capsys.readouterr().out
