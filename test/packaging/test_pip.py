"""`pip install .` gives the core, kernels and configuration included, where there is no ROS."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

PROBE = """
import importlib, pkgutil, sys
for name in ("rclpy", "launch", "message_filters", "cv_bridge", "std_msgs", "sensor_msgs", "builtin_interfaces"):
    sys.modules[name] = None  # importing it fails, as it does without ROS
import flashrt_ros
from flashrt_ros.paths import config_path
for module in pkgutil.walk_packages(flashrt_ros.__path__, "flashrt_ros."):
    importlib.import_module(module.name)
    print(module.name)
print(config_path("robots"))
"""


def test_core_without_ros(package, bare_environ, tmp_path):
    target = tmp_path / "target"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    install = subprocess.run(
        [*pip, "--target", str(target), str(package)], text=True, capture_output=True
    )
    assert install.returncode == 0, install.stderr

    installed = {path.relative_to(target / "flashrt_ros") for path in target.rglob("*.py")}
    for folder in ("observation", "control", "runtime", "models", "kernels"):
        assert any(path.parts[0] == folder for path in installed)
    assert not any(path.parts[0] == "nodes" for path in installed)
    for folder in ("config", "checkpoints"):
        files = {path.relative_to(package) for path in (package / folder).rglob("*")}
        assert files
        assert all((target / "flashrt_ros" / path).exists() for path in files)
    version = ElementTree.parse(package / "package.xml").getroot().findtext("version")
    assert (target / f"flashrt_ros-{version}.dist-info").is_dir()
    assert (target / "bin" / "flashrt").exists()

    environ = dict(bare_environ, PYTHONPATH=str(target))
    probe = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=tmp_path, env=environ, text=True, capture_output=True
    )
    assert probe.returncode == 0, probe.stderr
    assert "flashrt_ros.kernels" in probe.stdout.split()
    assert probe.stdout.split()[-1] == str(target / "flashrt_ros" / "config" / "robots")
