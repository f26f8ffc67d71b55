"""Reading a run.bin file block by block, damaged files included.

Opening a file reads its block headers only, or all of a small file. Payloads are read one at a time with ``pread``.
With a memory map, truncation by another process would kill the reader.
"""

from __future__ import annotations

import json
import os
import stat
import weakref
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .._native import crc32c
from ..errors import BadCapture, CutraceError, cannot_read
from ..outputs import open_to_read, read_at
from ..units import count_of
from .blocks import HEADER_SIZE, MAGIC, BlockInfo, Damage, scan
from .joining import places
from .layout import (
    BY_NUMBER,
    FORMAT_VERSION,
    PROCESS_BLOCK,
    STRINGS_BLOCK,
    TABLES,
    TYPES,
    TableLayout,
    schema,
)

_MAKE_ONE = "make one with `cutrace record -o run.bin -- COMMAND`"
_TYPES_OF_INFO: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("pid", "parent_pid", "started", "ended", "rank"), (int,)),
    **dict.fromkeys(
        (
            "producer",
            "host",
            "boot_id",
            "executable",
            "clock",
            "clock_of",
            "cupti_path",
        ),
        (str,),
    ),
    **dict.fromkeys(("driver", "name", "capture_range"), (str,)),
    **dict.fromkeys(("cupti_version", "driver_version", "runtime_version"), (int, str)),
    **dict.fromkeys(("options", "tables", "import", "merged", "environment"), (dict,)),
    **dict.fromkeys(("nvtx", "from_start", "counted_only"), (bool,)),
}
_TEXTS_OF_INFO = frozenset(("command", "kinds", "notes", "dumped_because"))

# For each kind of dtype, the kinds in a file that can be read as this kind. A signed integer can be read as an unsigned
# one, and an unsigned integer as a signed one.
_READ_AS = {"u": "ui", "i": "ui", "f": "f", "V": "V"}

#: Files up to this size are read at once: a test suite writes many small files.
_READ_AT_ONCE = 1 << 16

_NO_BLOCKS = np.empty(0, np.int64)

#: The number of values of a row's ``process`` field.
MOST_PROCESSES = 1 << 16


class Reader:
    """A run.bin file, opened for reading.

    Raises :class:`BadCapture` when the path cannot be read, is empty or holds no block. The reader skips smaller
    damage: see :attr:`damage`.

    ``processes`` holds the merged process description of each process, in the order of first appearance.
    ``headers`` (dtype :data:`cutrace.runbin.blocks.HEADER`), ``offsets`` and ``process_of`` are parallel arrays
    with one entry a block.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._fd = open_to_read(self.path)
        except OSError as error:
            absent = f"No such file. Check its name, or {_MAKE_ONE}."
            sentence = cannot_read(self.path, error, absent=absent)
            raise BadCapture(sentence) from None
        # Closes the file when the reader is collected without close().
        self._file = weakref.finalize(self, os.close, self._fd)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise BadCapture(
                f"cannot read {self.path}: it is {kind}. Name a capture, or {_MAKE_ONE}."
            )
        self.size = status.st_size
        self._whole = b""
        if self.size <= _READ_AT_ONCE:
            self._whole = self._read_at(self.size, 0)
        first = self._read_at(len(MAGIC), 0)
        if self.size == 0:
            raise BadCapture(
                f"{self.path} is empty: the recorded program wrote nothing to it. Record it again."
            )
        headers, offsets, damage = scan(self._read_at, self.size)
        if not len(offsets):
            if first == MAGIC:
                raise BadCapture(
                    f"{self.path} is a capture that is cut off inside its first block: copy it or record it again."
                )
            raise BadCapture(f"{self.path} is not a run.bin capture: {_MAKE_ONE}.")
        #: The parts of the file that hold no usable block.
        self.unusable = tuple(damage)
        self._damage = dict.fromkeys(damage)  # in order, each once
        self._index(headers, offsets)
        self._unread = np.ones(len(self.offsets), bool)
        self._infos: dict[int, BlockInfo] = {}
        self.processes: list[dict[str, Any]] = [{} for _ in range(self._process_count)]
        self._beginnings: set[int] = set()
        describes = self.headers["kind"] == PROCESS_BLOCK
        for block in np.flatnonzero(describes).tolist():
            self._merge_process(block)
        for info in self.processes:
            version = info.get("format", FORMAT_VERSION)
            if version != FORMAT_VERSION:
                raise BadCapture(
                    f"{self.path} has format {version!r} and this cutrace reads format {FORMAT_VERSION}: "
                    "install the version of cutrace that recorded it, or a newer one."
                )
        self._layouts = [_layouts(info.get("tables")) for info in self.processes]
        self._note_missing_blocks()
        self._note_missing_files()

    def _read_at(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        end = offset + size
        if end <= len(self._whole):
            return self._whole[offset:end]
        try:
            return read_at(self._fd, size, offset)
        except OSError as error:  # The disk has failed.
            raise BadCapture(cannot_read(self.path, error)) from None

    def _index(self, headers: np.ndarray, offsets: np.ndarray) -> None:
        """Number the processes, and drop repeated blocks (a file appended to itself or to a copy)."""
        if _of_one_process(headers):
            self._process_count = 1
            self.headers = headers
            self.offsets = offsets
            self.process_of = np.zeros(len(headers), np.int64)
            return
        keys = np.empty(len(headers), [("instance", "<u8"), ("pid", "<u4")])
        keys["instance"] = headers["instance"]
        keys["pid"] = headers["pid"]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        count = len(first)
        order = np.empty(count, np.int64)
        order[np.argsort(first)] = np.arange(count)
        process = order[inverse.reshape(-1)]
        self._process_count = count
        if count > MOST_PROCESSES:
            raise BadCapture(
                f"{self.path} holds {count:,} processes, more than the {MOST_PROCESSES:,} of a capture: "
                "join fewer captures."
            )
        high = process.astype(np.uint64) << np.uint64(32)
        identity = high | headers["sequence"]
        _, kept = np.unique(identity, return_index=True)
        if len(kept) < len(headers):
            repeated = np.setdiff1d(np.arange(len(headers)), kept)
            payloads = headers["payload_size"][repeated]
            size = int(payloads.sum()) + HEADER_SIZE * len(repeated)
            blocks = count_of(len(repeated), "repeated block")
            self._note(
                Damage(
                    int(offsets[repeated[0]]),
                    size,
                    f"a recording twice, counted once: {blocks}",
                )
            )
            kept.sort()
            headers = headers[kept]
            offsets = offsets[kept]
            process = process[kept]
        self.headers = headers
        self.offsets = offsets
        self.process_of = process

    def _note_missing_blocks(self) -> None:
        """Note gaps in the sequence numbers of blocks. A gap before the first block of a file is no loss, because a
        recording may have been cut into several files."""
        sequence = self.headers["sequence"].astype(np.int64)
        steps = sequence[1:] - sequence[:-1]
        one_file = self._process_count == 1 and 0 in self._beginnings
        if one_file and bool((steps == 1).all()):
            return
        order = np.lexsort((sequence, self.process_of))
        process = self.process_of[order]
        number = sequence[order]
        first = np.diff(process, prepend=-1) != 0
        skipped = np.diff(number, prepend=-1) - 1
        gaps = np.where(first, number, skipped)
        beginnings = list(self._beginnings)
        gaps[np.isin(order, beginnings)] = 0
        missing = np.zeros(self._process_count, np.int64)
        np.add.at(missing, process, gaps)
        for p in np.flatnonzero(missing).tolist():
            lacked = count_of(int(missing[p]), "block")
            self._note(Damage(0, 0, f"process {p} lacks {lacked}"))

    def _note_missing_files(self) -> None:
        """Note the files that a joined capture lacks."""
        parts = self.headers["part"]
        found = parts[parts > 0].tolist()
        if not found:
            return
        _, count = places(found)
        missing = count - len(found)
        if missing > 0:
            reason = f"the capture was joined from {count} files and lacks {missing}: it was copied in part"
            self._note(Damage(0, 0, reason))

    @property
    def first_blocks(self) -> list[int]:
        """The indices of the first blocks of the files from which this capture was joined."""
        joined = np.flatnonzero(self.headers["part"]).tolist()
        return sorted(self._beginnings.union(joined))

    @property
    def recordings(self) -> list[tuple[int, int]]:
        """The instance and the pid of each process. No two recordings share both."""
        headers = self.headers[:1]
        if self._process_count > 1:
            first = np.unique(self.process_of, return_index=True)[1]
            headers = self.headers[first]
        instances = headers["instance"].tolist()
        pids = headers["pid"].tolist()
        return list(zip(instances, pids, strict=True))

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damage found so far, in the order of the file. A damaged payload is found when it is read."""
        return tuple(sorted(self._damage, key=lambda damage: damage.offset))

    @property
    def blocks(self) -> tuple[BlockInfo, ...]:
        """All usable blocks, in the order of the file."""
        return tuple(self.block(i) for i in range(len(self.offsets)))

    def block(self, index: int) -> BlockInfo:
        """The block with this index in :attr:`headers`."""
        known = self._infos.get(index)
        if known is not None:
            return known
        h = self.headers[index]
        table = BY_NUMBER.get(int(h["kind"]))
        info = BlockInfo(
            index=index,
            table=table.name if table else None,
            rows=int(h["rows"]),
            offset=int(self.offsets[index]),
            payload_size=int(h["payload_size"]),
            first_time=int(h["first_time"]),
            last_time=int(h["last_time"]),
            process=int(self.process_of[index]),
        )
        self._infos[index] = info
        return info

    def table(self, index: int) -> TableLayout:
        """The table whose rows the block with this index holds. Raises KeyError for other blocks."""
        return BY_NUMBER[int(self.headers["kind"][index])]

    def indices(self, kind: int) -> np.ndarray:
        """Indices of the blocks of one kind, in the order of the file."""
        return self._by_kind.get(kind, _NO_BLOCKS)

    @cached_property
    def _by_kind(self) -> dict[int, np.ndarray]:
        """The indices of all blocks, by their kind."""
        by_kind: dict[int, list[int]] = {}
        for index, kind in enumerate(self.headers["kind"].tolist()):
            by_kind.setdefault(kind, []).append(index)
        return {kind: np.array(indices) for kind, indices in by_kind.items()}

    def payload(self, index: int) -> bytes | None:
        """The payload of a block; None, with an entry in :attr:`damage`, when its checksum does not match."""
        header = self.headers[index]
        offset = int(self.offsets[index])
        size = int(header["payload_size"])
        if not self._file.alive:
            raise CutraceError(
                f"{self.path} is closed: read its tables before closing it, or open it again"
            )
        data = self._read_at(size, offset + HEADER_SIZE)
        self._unread[index] = False
        checksum = int(header["payload_crc"])
        if len(data) == size and crc32c(data) == checksum:
            return data
        self._note(
            Damage(offset, HEADER_SIZE + size, "damaged block", int(header["rows"]))
        )
        return None

    def read(self, index: int) -> np.ndarray:
        """The rows of a table block in this version's layout; no rows when the block is damaged.

        Ids are the ids of the block's process, and ``process`` is 0. :class:`cutrace.Trace` resolves both. The array is
        a read-only view of the payload when the file has this version's layout.
        """
        header = self.headers[index]
        table = self.table(index)
        process = int(self.process_of[index])
        layout = self._layouts[process].get(table.name)
        data = self.payload(index)
        if data is None:
            return np.empty(0, table.dtype)
        if layout is None or layout.itemsize != int(header["row_size"]):
            offset = int(self.offsets[index])
            self._note(
                Damage(
                    offset,
                    0,
                    f"{table.name} rows of unknown layout",
                    int(header["rows"]),
                )
            )
            return np.empty(0, table.dtype)
        rows = np.frombuffer(data, layout)
        if layout == table.dtype:
            return rows
        out = np.zeros(len(rows), table.dtype)
        for name in rows.dtype.names or ():
            out[name] = rows[name]
        return out

    def strings(self, index: int) -> tuple[tuple[int, bytes], ...] | None:
        """The ids and strings of a strings block; None when it is damaged."""
        data = self.payload(index)
        if data is None:
            return None
        count = int(self.headers["rows"][index])
        if len(data) <= MOST_REPEATED:
            strings = _strings_again(data, count)
        else:
            strings = _strings(data, count)
        if strings is None:
            self._note(
                Damage(
                    int(self.offsets[index]),
                    len(data),
                    "strings block with wrong lengths",
                    count,
                )
            )
        return strings

    def read_rest(self) -> None:
        """Read each block that was not read before, so that :attr:`damage` is complete."""
        kinds = self.headers["kind"]
        unread = np.flatnonzero(self._unread)
        for index in unread.tolist():
            kind = int(kinds[index])
            if kind == STRINGS_BLOCK:
                self.strings(index)
            elif kind in BY_NUMBER:
                self.read(index)
            else:
                self.payload(index)

    def contents(self, size: int) -> Iterator[bytes]:
        """The bytes of the file, at most ``size`` at a time. The parts end at the start of a block unless it is larger.
        Raises :class:`BadCapture` when the file got shorter."""
        offset = 0
        while offset < self.size:
            end = min(offset + size, self.size)
            blocks = self.offsets[self.offsets <= end]
            start = blocks.max(initial=0)
            if offset < start and end < self.size:
                end = start
            size_of_part = end - offset
            data = self._read_at(size_of_part, offset)
            if len(data) < size_of_part:
                raise BadCapture(
                    f"{self.path} got shorter while it was read: wait until no program writes to it."
                )
            yield data
            offset = end

    def close(self) -> None:
        """Close the file. Arrays already read stay valid."""
        self._file()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, damage: Damage) -> None:
        self._damage[damage] = None

    def header_bytes(self, offset: int) -> bytes:
        """The bytes of a header at an offset of the file, which may be the header of an unusable block."""
        return self._read_at(HEADER_SIZE, offset)

    def description(self, index: int) -> dict[str, Any] | None:
        """The JSON object of a process block, without values of a wrong type; None when the block is damaged."""
        data = self.payload(index)
        if data is None:
            return None
        if len(data) <= MOST_REPEATED:
            info = _described_again(data)
        else:
            info = _described(data)
        if info is None:
            self._note(
                Damage(
                    int(self.offsets[index]),
                    len(data),
                    "process block that is not a JSON object",
                )
            )
        return info

    def _merge_process(self, index: int) -> None:
        info = self.description(index)
        if info is not None:
            process = self.processes[int(self.process_of[index])]
            if "tables" in info:
                # A new file of the process starts here. These keys belong to the previous file.
                process.pop("ended", None)
                process.pop("dumped_because", None)
                self._beginnings.add(index)
            windows = process.get("windows", [])
            process.update(info)
            if windows:
                # Each file of a process has its own windows. It describes a window again at the end of the window.
                by_start = {
                    window[0]: window for window in (*windows, *process["windows"])
                }
                process["windows"] = [*by_start.values()]


def _strings(data: bytes, count: int) -> tuple[tuple[int, bytes], ...] | None:
    """The ids and strings in the payload of a strings block; None if its lengths are wrong."""
    if count * 8 > len(data):
        return None
    pairs = np.frombuffer(data, "<u4", count * 2).reshape(-1, 2)
    strings = []
    start = count * 8
    for number, length in pairs.tolist():
        end = start + length
        strings.append((number, data[start:end]))
        start = end
    if start > len(data):
        return None
    return tuple(strings)


def _described(data: bytes) -> dict[str, Any] | None:
    """The JSON object of a process block, without values of a wrong type; None for any other payload."""
    try:
        info = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(info, dict):
        return None
    if "tables" in info and info["tables"] == _own_schema():
        # Share the declaration: a capture of a thousand ranks would otherwise hold a thousand equal objects.
        info["tables"] = _own_schema()
    return {key: value for key, value in info.items() if _sound(key, value)}


#: What is read from up to this many bytes is cached, because the captures of a test suite repeat it.
MOST_REPEATED = 1 << 16
_described_again = lru_cache(maxsize=8)(_described)
_strings_again = lru_cache(maxsize=8)(_strings)


def _of_one_process(headers: np.ndarray) -> bool:
    """Whether all blocks are of one process and each occurs once, as in a file that was never joined."""
    for field in ("instance", "pid"):
        values = headers[field]
        if (values != values[0]).any():
            return False
    sequence = headers["sequence"]
    rises = sequence[1:] > sequence[:-1]
    return bool(rises.all())


def _sound(key: str, value: object) -> bool:
    """Whether the value of a key in a process description has the right type. Other values are left out, so that
    callers of the reader need no checks. Unknown keys may have any type."""
    if key == "windows":
        return isinstance(value, list) and bool(value) and all(map(_is_window, value))
    if key in _TEXTS_OF_INFO:
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    return type(value) in _TYPES_OF_INFO.get(key, (type(value),))


def _is_window(value: object) -> bool:
    """Whether this is a window: a list of its start, its end and its last time (ns)."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    return all(map(_is_time, value))


def _is_time(value: object) -> bool:
    """Whether this is a time (ns) that a signed integer of 64 bits holds."""
    return type(value) is int and 0 <= value < 1 << 63


@cache
def _own_schema() -> dict[str, object]:
    """The layouts of this version."""
    return schema()


@cache
def _own_layouts() -> dict[str, np.dtype]:
    """The dtypes of this version."""
    layouts = {}
    for name, table in TABLES.items():
        layouts[name] = table.dtype
    return layouts


def _layouts(declared: object) -> dict[str, np.dtype]:
    """The row layout of each table for a process with this declaration. If the process block is lost, these are the
    layouts of this version."""
    if not isinstance(declared, dict) or declared is _own_schema():
        return _own_layouts()
    layouts = {}
    for name, table in TABLES.items():
        layout = _layout(table, declared.get(name))
        if layout is not None:
            layouts[name] = layout
    return layouts


def _layout(table: TableLayout, declared: Any) -> np.dtype | None:
    """The layout that a file declares for a table; None when the declaration is missing or invalid."""
    if declared == _own_schema()[table.name]:
        # The usual case. Parsing the declaration would take longer than opening a small file.
        return table.dtype
    formats = {}
    offsets = {}
    try:
        for name, kind, offset, *_ in declared["fields"]:
            if name not in table.offsets or kind not in TYPES:
                continue  # The field is of a newer version.
            if name in formats:
                return None
            formats[name] = TYPES[kind][1]
            offsets[name] = offset
            wanted = table.dtype[name].kind
            if np.dtype(formats[name]).kind not in _READ_AS[wanted]:
                return None
        return np.dtype(
            {
                "names": list(formats),
                "formats": list(formats.values()),
                "offsets": list(offsets.values()),
                "itemsize": declared["row_size"],
            }
        )
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
