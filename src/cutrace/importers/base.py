"""The parts that all importers share: the source file, the capture, and the account of the source's events.

An importer writes rows with :class:`cutrace.runbin.Writer`, so everything that works on a capture works on an import.
It accounts for each event of the source: the event is kept as rows, left out because no table holds it, or lost because
it is unusable.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

import numpy as np
import zstandard

from ..errors import BadCapture, cannot_read
from ..outputs import concatenate, replacing
from ..runbin import LOSS_REASONS, TABLES, Writer
from ..runbin.copying import Changes, copy
from ..runbin.layout import GPU_WORK, TableLayout
from ..runbin.reader import Reader
from ..units import count_of

#: The number of bytes (unpacked) at the start of a file that identify its format.
HEAD = 1 << 16

#: Exceptions of reading a damaged compressed file.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
#: The note of a file that cutrace wrote without its capture.
WITHOUT_CAPTURE = (
    "cutrace wrote this file without its capture, so only the events that other programs show were imported. Convert "
    "the capture again, with `capture=True`, to get all rows."
)
#: The reason for events that a damaged file hides.
DAMAGED_FILE = "the file is damaged"

#: Some files have times in whole microseconds. There a driver call can seem to start this long (ns) after the runtime
#: call around it has ended.
_ROUNDED = np.uint64(2_000)
#: The fields of calls that say which calls are inside each other.
_OF_CALLS = ("start", "end", "correlation", "thread")
#: The end of a call without a known end.
_NEVER = np.uint64((1 << 63) - 1)

_PACKED: dict[bytes, Literal["gzip", "zstd"]] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
}


@dataclass(frozen=True)
class SourceFile:
    """A file, or a folder, that may be imported.

    ``head`` is its first 64 KiB, unpacked if ``packed`` names a compression; empty for a folder.
    """

    path: Path
    head: bytes
    packed: Literal["", "gzip", "zstd"] = ""

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """The source at a path. Raises :class:`BadCapture` when it cannot be read."""
        try:
            if not path.is_file():
                return cls(path, b"")
            with path.open("rb") as file:
                begin = file.read(4)
                head = b""
            packed = next(
                (kind for magic, kind in _PACKED.items() if begin.startswith(magic)), ""
            )
            source = cls(path, b"", cast(Any, packed))
            # The head of a damaged file ends before the damage.
            with suppress(*DAMAGED), source.open() as file:
                while len(head) < HEAD and (
                    piece := cast(io.BufferedReader, file).read1(HEAD - len(head))
                ):
                    head += piece
            return replace(source, head=head)
        except OSError as error:
            raise BadCapture(cannot_read(path, error)) from None

    def open(self) -> BinaryIO:
        """Open the file for reading, unpacked. Reading raises one of :data:`DAMAGED` where it is damaged."""
        if self.packed == "gzip":
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        file = self.path.open("rb")
        if self.packed == "zstd":
            reader = zstandard.ZstdDecompressor().stream_reader(
                file, read_across_frames=True
            )
            return cast(BinaryIO, io.BufferedReader(cast(Any, reader), 1 << 20))
        return file


#: The prefix of the boot ids of imported files.
FILE_BOOT = "import-"


class Importer(Protocol):
    """Reads one format. ``name`` is one word, ``description`` names the format in messages."""

    name: str
    description: str

    def recognizes(self, source: SourceFile) -> bool:
        """Whether the source has this format, by its content, not its name."""
        ...

    def read(self, source: SourceFile, out: Import) -> None:
        """Write the contents of the source. Raises :class:`BadCapture` when nothing of it can be used."""
        ...


#: The names of the reasons of losses.
_REASONS = {name for name, _ in LOSS_REASONS.values()}
#: The largest count of a loss.
_MOST = (1 << 63) - 1


def _list(value: Any) -> list[Any]:
    """A value that should be a list. Any other value is an empty one."""
    if isinstance(value, list):
        return value
    return []


def _tally() -> dict[str, int]:
    return {"count": 0, "duration_ns": 0}


class Import:
    """A capture that is being written, in files of ``folder``, and the account of the source's events: each event is
    counted once, as kept, left or lost."""

    def __init__(self, folder: Path, source: SourceFile, importer: Importer) -> None:
        self._folder = folder
        self._source = source
        self._importer = importer
        self._writers: dict[Hashable, Writer] = {}
        self._foreign_ids: dict[Hashable, list[np.ndarray]] = {}
        # By kind of events, in the notation of cutrace.trace.imported.
        self._accounts: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        # Losses that the file states: the name of the reason, the count and the detail.
        self._carried: list[tuple[str, int, str]] = []
        # Captures with the same boot id share a clock. This file has its own clock, so it gets its own boot id.
        self._boot_id = f"{FILE_BOOT}{os.urandom(8).hex()}"

    def process(
        self, key: Hashable, *, name: str = "", boot_id: str = "", **info: Any
    ) -> Writer:
        """The writer of the process with this ``key``, created by the first call with the arguments of a
        :class:`Writer`; ``Writer.process`` adds later keys of the description."""
        if key not in self._writers:
            path = self._folder / f"{len(self._writers)}.bin"
            self._writers[key] = Writer(
                path, name=name, boot_id=boot_id or self._boot_id, **info
            )
        return self._writers[key]

    def foreign_ids(self, key: Hashable, correlations: np.ndarray) -> None:
        """Note correlation ids of calls of other processes, whose work may be among the work of the process with this
        ``key``."""
        self._foreign_ids.setdefault(key, []).append(correlations)

    def kept(self, what: str, count: int, duration_ns: int = 0) -> None:
        """Count events of the kind ``what`` that became rows; ``duration_ns`` is the sum of their durations."""
        self.count("kept", what, count, duration_ns)

    def left(self, what: str, count: int, duration_ns: int = 0, why: str = "") -> None:
        """Count events that no table holds."""
        self.count("left", what, count, duration_ns, why)

    def lost(self, what: str, count: int, duration_ns: int = 0, why: str = "") -> None:
        """Count events that could not be used. They become losses of the trace."""
        self.count("lost", what, count, duration_ns, why)

    def count(
        self, outcome: str, what: str, count: int, duration_ns: int, why: str = ""
    ) -> None:
        """Count events with the method named ``outcome``: :meth:`kept`, :meth:`left` or :meth:`lost`."""
        if count:
            account = self._accounts.setdefault(
                what, {"seen": _tally(), "kept": _tally(), "left": {}, "lost": {}}
            )
            if outcome == "kept":
                part = account["kept"]
            else:
                part = account[outcome].setdefault(why, _tally())
            for tally in (account["seen"], part):
                tally["count"] += int(count)
                tally["duration_ns"] += int(duration_ns)

    def damaged(self, what: str, how: str) -> None:
        """Note that a part of the source could not be read to its end, and count one loss. ``how`` is the reason."""
        self.note(
            f"{what} is damaged ({how}): its readable part was imported. Copy or export the file again."
        )
        if DAMAGED_FILE not in self._accounts.get(what, {"lost": ()})["lost"]:
            self.lost(what, 1, why=DAMAGED_FILE)

    def carried(self, value: Any) -> None:
        """Add what a file of cutrace says about its losses, a result of :meth:`.Quality.carried`. The value may have
        been changed, so it may have any type."""
        if not isinstance(value, dict):
            return
        for sentence in _list(value.get("notes")):
            self.note(str(sentence))
        for loss in _list(value.get("losses")):
            match loss:
                case [str(reason), int(count), str(detail)] if count > 0:
                    self.carried_loss(reason, count, detail)

    def carried_loss(self, reason: str, count: int, detail: str) -> None:
        """Add a loss that a file of cutrace states. Newer versions may have other reasons."""
        if reason not in _REASONS:
            detail = f"{reason}: {detail}"
            reason = "unreadable"
        self._carried.append((reason, min(count, _MOST), detail))

    def note(self, sentence: str) -> None:
        """Add a sentence for users: a problem, and its remedy."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def close(self) -> Path:
        """Finish the capture and return its file."""
        first = self.process(next(iter(self._writers), None))
        imported = {
            "format": self._importer.name,
            "source": self._source.path.name,
            "events": self._accounts,
        }
        first.process({"import": imported, "notes": self._notes})
        first.losses(
            ("unreadable", tally["count"], f"{what}: {why}" if why else what)
            for what, account in self._accounts.items()
            for why, tally in account["lost"].items()
        )
        first.losses(self._carried)
        paths = [writer.path for writer in self._writers.values()]
        for key, writer in self._writers.items():
            writer.close()
            _remove_shared_ids(writer.path, self._foreign_ids.get(key, []))
        if len(paths) > 1:
            # The file is not in append mode: the kernel refuses copy_file_range() to such files.
            with paths[0].open("r+b") as whole:
                whole.seek(0, os.SEEK_END)
                concatenate(paths[1:], whole)
            for path in paths[1:]:
                path.unlink()
        return paths[0]

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


class _WithoutIds(Changes):
    """Removes correlation ids from GPU work, and adds a note with the amount of this work."""

    def __init__(self, reader: Reader, ids: np.ndarray) -> None:
        self._reader = reader
        self._ids = ids
        self._work = 0

    def rows(self, process: int, table: TableLayout, rows: np.ndarray) -> np.ndarray:
        if table.name in GPU_WORK:
            mask = np.isin(rows["correlation"], self._ids)
            self._work += int(np.count_nonzero(mask))
            rows = rows.copy()
            rows["correlation"][mask] = 0
        return rows

    def description(self, process: int, info: dict[str, Any]) -> dict[str, Any]:
        if "ended" not in info or not self._work:
            return info
        _, pid = self._reader.recordings[process]
        notes = self._reader.processes[process].get("notes", [])
        note = (
            f"{count_of(self._work, 'piece')} of GPU work of process {pid} without a launch: the file joins ranks or "
            "recordings whose correlation ids repeat. Name the file of each of them instead."
        )
        return info | {"notes": [*notes, note]}


def _remove_shared_ids(path: Path, foreign: list[np.ndarray]) -> None:
    """Remove the correlation ids that do not name one call from the GPU work of a process, so that no reader finds a
    wrong launch. ``foreign`` are ids of calls of other processes."""
    with Reader(path) as reader:
        ids = [*foreign, _shared_ids(reader)]
        shared = np.unique(np.concatenate(ids))
        shared = shared[shared != 0]
        if len(shared):
            every = range(len(reader.offsets))
            with replacing(path) as changed, changed.open("wb") as file:
                copy(reader, every, _WithoutIds(reader, shared), file)


def _shared_ids(reader: Reader) -> np.ndarray:
    """The correlation ids of calls that are not inside each other. A driver call inside a runtime call has the same id
    and the same thread."""
    ids = [rows["correlation"] for rows in _calls(reader)]
    none = np.zeros(0, np.uint32)
    ascending = np.concatenate([none, *ids])
    ascending.sort()
    later = ascending[1:]
    repeated: np.ndarray = later[later == ascending[:-1]]
    if not len(repeated):
        return repeated
    parts = []
    for rows in _calls(reader):
        found = np.isin(rows["correlation"], repeated)
        parts.append([rows[name][found] for name in _OF_CALLS])
    start, end, id_, thread = map(np.concatenate, zip(*parts, strict=True))
    end[end == 0] = _NEVER
    order = np.lexsort((~end, start, id_))
    start = start[order]
    end = end[order]
    id_ = id_[order]
    thread = thread[order]
    # The first call of an id is the outermost.
    first = np.searchsorted(id_, id_)
    inside = start <= end[first] + _ROUNDED
    inside &= thread == thread[first]
    shared: np.ndarray = id_[~inside]
    return shared


def _calls(reader: Reader) -> Iterator[np.ndarray]:
    for index in reader.indices(TABLES["api_calls"].number):
        yield reader.read(index)


def value_of(text: bytes | str | None) -> Any:
    """The value of JSON text. Invalid JSON gives None."""
    try:
        return json.loads(text or b"")
    except (ValueError, TypeError, RecursionError):
        return None


def object_of(text: bytes | str | None) -> dict[str, Any]:
    """JSON text as an object, an empty one for any other string."""
    value = value_of(text)
    if isinstance(value, dict):
        return value
    return {}


def rows_of(table: str, count: int, **fields: Any) -> np.ndarray:
    """Rows of a table with these fields. Each field is an array or one value for all rows. The other fields are 0."""
    rows = np.zeros(count, TABLES[table].dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows


def read(
    importer: Importer, source: SourceFile, folder: Path, damage: str = ""
) -> Path:
    """Import a source as a capture in ``folder``. Returns the path of the capture. ``damage`` is the reason why the
    embedded capture is unusable. Raises :class:`BadCapture` when nothing can be used, :class:`CutraceError` when the
    folder is full."""
    out = Import(folder, source, importer)
    try:
        if damage:
            out.damaged("the embedded capture", damage)
        importer.read(source, out)
        return out.close()
    except OSError as error:
        out.discard()
        raise BadCapture(
            f"cannot read {source.path}: {error.strerror or error}. Check its permissions."
        ) from None
    except BaseException:
        out.discard()
        raise
