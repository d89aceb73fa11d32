"""rosbag2 recordings without ROS: MCAP and SQLite, compressed or not, in one file or several, whole or broken.

Every storage file is read by itself through `rosbags`; metadata.yaml is a hint for their names and no more. So a bag
without it opens, and of one whose last file was cut off the others, and the whole part of that one, are still there.
What was lost is said in `Bag.notes`, one line each.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import yaml

_STORAGE = (".mcap", ".db3")
_FILE_COMPRESSION = (".zstd", ".zst", ".lz4")
_ZSTD_MAGIC, _LZ4_MAGIC = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
# https://mcap.dev/spec: magic, then records of one byte operation code, eight bytes length, content.
_MCAP_MAGIC = b"\x89MCAP0\r\n"
_MCAP_FOOTER, _MCAP_DATA_END = 0x02, 0x0F
_REORDER_NS = 2_000_000_000


class BagError(ValueError):
    """A recording of which nothing can be used. One line: the file, what was expected, what was found."""


@dataclass(slots=True)
class Topic:
    """One topic of a recording."""

    types: set[str] = field(default_factory=set)
    """Full names such as sensor_msgs/msg/Image; one unless something is wrong."""
    count: int = 0


@dataclass(slots=True)
class _File:
    path: Path
    reader: Any
    cut_off: bool
    """Repaired: read by scanning, in the order of writing."""


class Bag:
    """An opened recording; use it as a context manager, or `close` it.

    Args:
        path: a folder with or without metadata.yaml, or one .mcap or .db3 file (also .zstd or .lz4).

    Raises:
        BagError: nothing in it can be read.
        ImportError: rosbags is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        """What is wrong with it and what was usable all the same, one line each."""
        self.topics: dict[str, Topic] = {}
        self.skipped: Counter[str] = Counter()
        """Messages that could not be decoded, by topic."""
        self._files: list[_File] = []
        self._temporary = tempfile.TemporaryDirectory(prefix="flashrt_bag_")
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and remove what was unpacked."""
        for file in self._files:
            file.reader.close()
        self._files.clear()
        self._temporary.cleanup()

    @property
    def start_ns(self) -> int:
        """Record time of the first message."""
        return min(int(f.reader.start_time) for f in self._files if f.reader.message_count)

    @property
    def end_ns(self) -> int:
        """Record time after the last message."""
        return max(int(f.reader.end_time) for f in self._files if f.reader.message_count)

    @property
    def message_count(self) -> int:
        """Messages of all topics."""
        return sum(file.reader.message_count for file in self._files)

    def raw(self, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
        """Topic, record time [ns] and serialised message of each message, in the order of record times."""
        streams = [self._messages(file, topics) for file in self._files]
        yield from heapq.merge(*streams, key=lambda message: message[1])

    def messages(self, topics: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """As `raw`, decoded: messages have the fields of ROS's. What cannot be decoded is counted in `skipped`."""
        types = {topic: next(iter(self.topics[topic].types)) for topic in topics}
        for topic, record_ns, data in self.raw(topics):
            try:
                message = self._store.deserialize_cdr(data, types[topic])
            except Exception as error:  # Broken bytes break the decoder in many ways.
                if not self.skipped[topic]:
                    self.notes.append(f"{topic}: not a {types[topic]}: {_line(error)}; skipped")
                self.skipped[topic] += 1
                continue
            yield topic, record_ns, message

    def type_of(self, topic: str) -> str:
        """Message type of a topic; empty where it is not there."""
        types = self.topics[topic].types if topic in self.topics else set()
        return ", ".join(sorted(types))

    # ------------------------------------------------------------ opening

    def _open(self, path: Path) -> None:
        from rosbags.typesys import Stores, get_typestore

        if not path.exists():
            raise BagError(f"{path}: no such bag")
        for storage in _storage_files(path, self.notes):
            self._open_file(storage)
        if not self._files:
            raise BagError("; ".join(self.notes) or f"{path}: holds no .mcap and no .db3 file")
        if not self.message_count:
            raise BagError("; ".join([*self.notes, f"{path}: the bag holds no message"]))
        self._store = get_typestore(Stores.LATEST)
        for file in self._files:
            for connection in file.reader.connections:
                topic = self.topics.setdefault(connection.topic, Topic())
                topic.types.add(connection.msgtype)
                topic.count += connection.msgcount
                self._register(connection)

    def _open_file(self, path: Path) -> None:
        from rosbags.rosbag2 import Reader

        try:
            plain = _unpacked(path, Path(self._temporary.name))
            reader = Reader(plain)
            reader.open()
        except Exception as error:  # A broken file breaks the reader in many ways.
            self._open_broken(path, error)
            return
        self._files.append(_File(path, reader, cut_off=False))

    def _open_broken(self, path: Path, error: Exception) -> None:
        """Read a file that does not open from a copy of what is whole in it."""
        from rosbags.rosbag2 import Reader

        repaired = Path(self._temporary.name) / f"{len(self._files)}_{path.name}"
        mcap = path.suffix == ".mcap"
        try:
            if mcap:
                with path.open("rb") as source, repaired.open("wb") as target:
                    _copy_whole_records(source, target)
            else:
                _copy_whole_rows(path, repaired)
            reader = Reader(repaired)
            reader.open()
        except Exception:  # As above: whatever a reader may stumble over.
            size = path.stat().st_size
            reason = _line(error).replace(f"{path}: ", "") if size else "it is empty"
            self.notes.append(f"{path.name}: cannot be read ({size} bytes): {reason}")
            return
        seconds = max(0, reader.end_time - reader.start_time) / 1e9 if reader.message_count else 0.0
        what = "cut off or without its index" if mcap else "damaged"
        self.notes.append(
            f"{path.name}: {what}: {reader.message_count} messages over {seconds:.1f} s could be read"
        )
        self._files.append(_File(path, reader, cut_off=mcap))

    def _register(self, connection: Any) -> None:
        """Learn the definition of a message type that rosbags does not bring."""
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.typesys import get_types_from_idl, get_types_from_msg

        name, definition = connection.msgtype, connection.msgdef
        if name in self._store.fielddefs or definition.format == MessageDefinitionFormat.NONE:
            return
        idl = definition.format == MessageDefinitionFormat.IDL
        try:
            types = (
                get_types_from_idl(definition.data)
                if idl
                else get_types_from_msg(definition.data, name)
            )
            known = self._store.fielddefs
            self._store.register({key: value for key, value in types.items() if key not in known})
        except Exception as error:  # A definition may hold anything.
            self.notes.append(f"{connection.topic}: definition of {name}: {_line(error)}")

    # ------------------------------------------------------------ reading

    def _messages(self, file: _File, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
        connections = [c for c in file.reader.connections if c.topic in topics]
        if not connections:
            return
        messages = (
            _reordered(file.reader.storage.messages_scan(connections))
            if file.cut_off
            else file.reader.messages(connections)
        )
        count = 0
        while True:
            try:
                connection, record_ns, data = next(messages)
                data = _decompressed(data)
            except StopIteration:
                return
            except Exception as error:  # Of a file that breaks in its midst the beginning counts.
                self.notes.append(f"{file.path.name}: {_line(error)}; {count} messages before it")
                return
            count += 1
            yield connection.topic, record_ns, data


def _storage_files(path: Path, notes: list[str]) -> list[Path]:
    """The storage files of a bag, in order."""
    if path.is_file():
        return [path]
    present = sorted(
        (
            file
            for file in path.iterdir()
            if file.suffix in _STORAGE
            or (file.suffix in _FILE_COMPRESSION and Path(file.stem).suffix in _STORAGE)
        ),
        key=lambda file: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", file.name)],
    )
    metadata = path / "metadata.yaml"
    if not metadata.is_file():
        if present:
            notes.append(f"metadata.yaml is missing: reading {', '.join(f.name for f in present)}")
        return present
    try:
        content = yaml.safe_load(metadata.read_text(encoding="utf-8"))
        listed = content["rosbag2_bagfile_information"]["relative_file_paths"]
        named = [path / Path(name).name for name in listed]
    except (yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError) as error:
        notes.append(f"metadata.yaml cannot be used ({_line(error)}): reading the files beside it")
        return present
    for file in named:
        # Some recorders list a file by its name before it was compressed.
        if not file.exists() and not any(p.name.startswith(file.name) for p in present):
            notes.append(f"{file.name} is missing, which metadata.yaml lists")
    return present


def _unpacked(path: Path, folder: Path) -> Path:
    """The storage file itself, or a copy of it without compression."""
    if path.suffix not in _FILE_COMPRESSION:
        return path
    target = folder / path.stem
    if path.suffix == ".lz4":
        import lz4.frame

        opened: Any = lz4.frame.open(path, "rb")
    else:
        opened = _zstd().open(path, "rb")
    with opened as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
    return target


def _zstd() -> Any:
    try:
        from compression import zstd
    except ImportError:  # Before Python 3.14; rosbags brings it.
        from backports import zstd
    return zstd


def _decompressed(data: bytes) -> bytes:
    """A message as it was before a recorder compressed it by itself; a CDR message begins with a zero."""
    head = bytes(data[:4])
    if head == _ZSTD_MAGIC:
        return bytes(_zstd().decompress(data))
    if head == _LZ4_MAGIC:
        import lz4.frame

        return bytes(lz4.frame.decompress(data))
    return data


def _copy_whole_records(source: BinaryIO, target: BinaryIO) -> None:
    """Copy an MCAP file up to where its data end or it was cut off, and give it an end without an index."""
    if source.read(len(_MCAP_MAGIC)) != _MCAP_MAGIC:
        raise BagError("expected an MCAP file, found another beginning")
    target.write(_MCAP_MAGIC)
    while len(head := source.read(9)) == 9:
        length = int.from_bytes(head[1:], "little")
        if head[0] in (_MCAP_DATA_END, _MCAP_FOOTER):
            break
        content = source.read(length)
        if len(content) < length:
            break
        target.write(head + content)
    target.write(bytes([_MCAP_DATA_END]) + (4).to_bytes(8, "little") + bytes(4))
    target.write(bytes([_MCAP_FOOTER]) + (20).to_bytes(8, "little") + bytes(20) + _MCAP_MAGIC)


def _copy_whole_rows(source: Path, target: Path) -> None:
    """Copy a damaged SQLite recording up to the damage, and from its end back to it."""
    # A path of a URI: what is special there is escaped.
    damaged = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
    copy = sqlite3.connect(target)
    try:
        tables = damaged.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        for name, sql in tables.fetchall():
            copy.execute(sql)
            for order in ("ASC", "DESC") if name == "messages" else ("ASC",):
                # Damage ends a scan; what came before it has been copied.
                with contextlib.suppress(sqlite3.DatabaseError):
                    for row in damaged.execute(f"SELECT * FROM {name} ORDER BY rowid {order}"):
                        marks = ",".join("?" * len(row))
                        copy.execute(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", row)
        copy.commit()
    finally:
        damaged.close()
        copy.close()


def _reordered(messages: Iterator[tuple[Any, int, bytes]]) -> Iterator[tuple[Any, int, bytes]]:
    """Messages in the order of record times, if none is out of its place by more than `_REORDER_NS`."""
    waiting: list[tuple[int, int, Any, bytes]] = []
    for number, (connection, record_ns, data) in enumerate(messages):
        heapq.heappush(waiting, (record_ns, number, connection, data))
        while waiting[0][0] < record_ns - _REORDER_NS:
            first_ns, _, first, first_data = heapq.heappop(waiting)
            yield first, first_ns, first_data
    while waiting:
        first_ns, _, first, first_data = heapq.heappop(waiting)
        yield first, first_ns, first_data


def _line(error: BaseException) -> str:
    """An error in one line, without its full stop."""
    return " ".join(str(error).split()).rstrip(".")
