"""A colcon workspace that holds this package builds, and its packages are what a sourced shell gets."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

EXECUTABLES = [
    "action_player",
    "age_logger",
    "bag_player",
    "bag_recorder",
    "policy",
    "sim_camera",
    "sim_robot",
]
PROBE = """
from pathlib import Path
import flashrt_ros.kernels, flashrt_ros.observation
from flashrt_ros.msg import ActionChunk
from flashrt_ros.paths import config_path
from rclpy.serialization import deserialize_message, serialize_message
chunk = ActionChunk(chunk_id=3)
assert deserialize_message(serialize_message(chunk), ActionChunk) == chunk
print(flashrt_ros.__file__, flashrt_ros.msg.__file__, flashrt_ros.kernels.__file__, config_path("robots"), sep="\\n")
"""


@pytest.mark.skipif(not shutil.which("colcon"), reason="colcon is not installed")
@pytest.mark.parametrize("options", [(), ("--symlink-install",)], ids=["copied", "symlinked"])
def test_workspace_builds(package, bare_environ, options):
    workspace = package.parents[1]
    build = subprocess.run(
        ["colcon", "build", *options, "--cmake-args", f"-DPython3_EXECUTABLE={sys.executable}"],
        cwd=workspace,
        env=bare_environ,
        text=True,
        capture_output=True,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    prefix = workspace / "install" / "flashrt_ros"

    shell = 'source install/setup.bash && command -v flashrt && exec "$0" -c "$1"'
    probe = subprocess.run(
        ["bash", "-c", shell, sys.executable, PROBE],
        cwd=workspace,
        env=bare_environ,
        text=True,
        capture_output=True,
    )
    assert probe.returncode == 0, probe.stderr
    paths = probe.stdout.split()
    assert len(paths) == 5
    assert all(path.startswith(f"{prefix}/") for path in paths), paths

    for name in EXECUTABLES:
        script = prefix / "lib" / "flashrt_ros" / name
        assert script.stat().st_mode & 0o111, f"{script} is not executable"
        assert f"flashrt_ros.nodes.{name}" in script.read_text()
    share = prefix / "share" / "flashrt_ros"
    assert (share / "package.xml").exists()
    for folder in ("checkpoints", "config", "launch"):
        for path in (package / folder).rglob("*"):
            assert (share / path.relative_to(package)).exists()
