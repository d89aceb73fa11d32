"""Where the package's own files lie, however it was installed."""

from __future__ import annotations

from pathlib import Path

import flashrt_ros

# More than one where Python was started in a checkout: the checkout's folder, then the built package's.
_FOLDERS = [Path(folder) for folder in flashrt_ros.__path__]
_PREFIXES = [parent for folder in _FOLDERS for parent in folder.parents]


def config_path(name: str) -> Path:
    """Path of a file or folder of config/, for example ``fastdds.xml`` or ``robots/so101.yaml``.

    Args:
        name: path below config/, with forward slashes.

    Returns:
        The path of the existing file or folder.

    Raises:
        FileNotFoundError: nothing of that name in any of them; the message lists the folders searched.
    """
    return _shared("config", name)


def checkpoint_path(name: str) -> Path:
    """Path of the folder of a checkpoint that comes with the package; otherwise as `config_path`."""
    return _shared("checkpoints", name)


def _shared(kind: str, name: str) -> Path:
    """Looks where each way of installing puts files: inside the package (pip), beside it (a checkout), and in
    ``share/flashrt_ros`` of the prefix that holds the package (colcon, ament, ``make build``)."""
    places = [*_FOLDERS, *(folder.parent for folder in _FOLDERS)]
    places += [prefix / "share" / "flashrt_ros" for prefix in _PREFIXES]
    folders = [place / kind for place in places if (place / kind).is_dir()]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    searched = ", ".join(map(str, folders)) or f"no {kind}/ beside {_FOLDERS[0]}"
    raise FileNotFoundError(f"no {name!r} in {kind}/ as installed, looked in {searched}")


def executable_path(name: str) -> Path:
    """Path of one node's executable in ``lib/flashrt_ros`` of the prefix that holds this package.

    Raises:
        FileNotFoundError: the package was installed without its nodes (by pip, as the core alone).
    """
    for prefix in _PREFIXES:
        path = prefix / "lib" / "flashrt_ros" / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no node {name!r} beside {_FOLDERS[-1]}: build the ROS package with `make build` or colcon "
        "(pip installs the core alone)"
    )
