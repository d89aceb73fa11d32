"""What measurements hold for: the machine, the libraries and the code that was measured."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterable
from pathlib import Path

import torch

_DRIVER = Path("/proc/driver/nvidia/version")


def machine(device: torch.device) -> dict[str, str]:
    """Processor or GPU, driver, and versions of what computes."""
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else _processor(),
        "driver": _driver() if on_gpu else "",
        "cuda": (torch.version.cuda or "") if on_gpu else "",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
    }


def code() -> str:
    """SHA-256 over the sources of kernels/ and runtime/: another text, another measurement."""
    # kernels/ lies beside the package in a checkout and inside it once installed.
    kernels = importlib.util.find_spec("flashrt_ros.kernels")
    found = (kernels.submodule_search_locations if kernels else None) or []
    return sources_digest([Path(__file__).parent, *map(Path, found)])


def sources_digest(folders: Iterable[Path]) -> str:
    """SHA-256 over all Python files below these folders: where a folder lies does not matter, its name does."""
    sources = {
        (folder.name, path.relative_to(folder).as_posix()): path.read_bytes()
        for folder in folders
        for path in folder.rglob("*.py")
    }
    digest = hashlib.sha256()
    for (folder, name), text in sorted(sources.items()):
        digest.update(f"{folder}/{name}".encode() + b"\0" + text + b"\0")
    return digest.hexdigest()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def _driver() -> str:
    """Of NVIDIA, such as 580.95.05; empty where the kernel module does not say."""
    try:
        text = _DRIVER.read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else ""


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
