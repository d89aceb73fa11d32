"""Where the package's own files lie, however it was installed."""

from __future__ import annotations

from pathlib import Path

_MODULE = Path(__file__).parent


def config_path(name: str) -> Path:
    """Path of a file or folder of config/, for example ``fastdds.xml`` or ``robots/so101.yaml``.

    Looks where each way of installing puts them: inside the package (pip), beside it (a checkout), and in
    ``share/flashrt_ros`` of the prefix that holds the package (colcon, ament, ``make build``).

    Args:
        name: path below config/, with forward slashes.

    Returns:
        The path of the existing file or folder.

    Raises:
        FileNotFoundError: nothing of that name in any of them; the message lists the folders searched.
    """
    shares = [parent / "share" / "flashrt_ros" / "config" for parent in _MODULE.parents]
    folders = [_MODULE / "config", _MODULE.parent / "config", *shares]
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    present = [str(folder) for folder in folders if folder.is_dir()] or [str(folders[0])]
    raise FileNotFoundError(f"no {name!r} in config/ as installed, looked in {', '.join(present)}")


def executable_path(name: str) -> Path:
    """Path of one node's executable in ``lib/flashrt_ros`` of the prefix that holds this package.

    Raises:
        FileNotFoundError: the package was installed without its nodes (by pip, as the core alone).
    """
    for parent in _MODULE.parents:
        path = parent / "lib" / "flashrt_ros" / name
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no node {name!r} beside {_MODULE}: build the ROS package with `make build` or colcon "
        "(pip installs the core alone)"
    )
