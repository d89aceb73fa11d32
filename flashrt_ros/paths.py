"""Where the package's own files lie, however it was installed."""

from __future__ import annotations

from pathlib import Path

_MODULE = Path(__file__).parent


def config_path(name: str) -> Path:
    """Path of one file of config/, for example ``robots/so101.yaml`` or ``fastdds.xml``.

    Looks where each way of installing puts them: inside the package (pip), beside it (a checkout), and in
    ``share/flashrt_ros`` of the prefix that holds the package (colcon, ament, ``make build``).

    Args:
        name: path below config/, with forward slashes.

    Returns:
        The path of the existing file.

    Raises:
        FileNotFoundError: no such file in any of them; the message lists the folders searched.
    """
    shares = [parent / "share" / "flashrt_ros" / "config" for parent in _MODULE.parents]
    folders = [_MODULE / "config", _MODULE.parent / "config", *shares]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    present = [str(folder) for folder in folders if folder.is_dir()] or [str(folders[0])]
    raise FileNotFoundError(f"no config file {name!r} in {', '.join(present)}")
