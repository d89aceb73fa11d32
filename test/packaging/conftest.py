"""What both ways of packaging start from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import flashrt_ros.msg

ROOT = Path(__file__).resolve().parents[2]
FILES = ["CMakeLists.txt", "LICENSE", "MANIFEST.in", "package.xml", "pyproject.toml", "setup.py"]
FOLDERS = ["checkpoints", "cmake", "config", "flashrt_ros", "kernels", "launch", "msg"]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of what the package is made of, so that no build leaves anything in the checkout."""
    copy = tmp_path / "workspace" / "src" / "flashrt_ros"
    copy.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def bare_environ() -> dict[str, str]:
    """The environment without the package that is installed in it, which would stand in for a failed build."""
    built = next(
        folder
        for folder in Path(flashrt_ros.msg.__file__).parents
        if (folder / "share" / "flashrt_ros").is_dir()
    )
    environ = dict(os.environ)
    for name in ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH"):
        entries = environ.pop(name, "").split(os.pathsep)
        kept = [entry for entry in entries if entry and not Path(entry).is_relative_to(built)]
        if kept:
            environ[name] = os.pathsep.join(kept)
    return environ
