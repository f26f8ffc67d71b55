"""What all importers share: the file they read, the capture they write, and the account of both.

An importer writes rows with :class:`cutrace.runbin.Writer`, as a recording does, so everything that works on a capture
works on what was imported. It owes an account: each event of the source became rows, has no place in a capture, or
could not be used.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypedDict, cast

import numpy as np

from ..errors import BadCapture
from ..outputs import concatenate
from ..runbin import LOSS_REASONS, TABLES, Writer

#: How much of a file (bytes, unpacked) is looked at to find its format.
HEAD = 1 << 16

#: Why something was lost that a damage hides.
DAMAGED_FILE = "the file is damaged"

_UNREADABLE = next(number for number, (name, _) in LOSS_REASONS.items() if name == "unreadable")
_PACKED: dict[bytes, Literal["gzip", "zstd"]] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Source:
    """A file, or a folder (then ``head`` is empty), that may be imported.

    ``head`` is its first 64 KiB, unpacked when the file is compressed as ``packed`` says.
    """

    path: Path
    head: bytes
    packed: Literal["", "gzip", "zstd"] = ""

    @classmethod
    def at(cls, path: Path) -> Source:
        """The source at a path. Raises :class:`BadCapture` when it cannot be read."""
        try:
            if not path.is_file():
                return cls(path, b"")
            with path.open("rb") as file:
                begin, head = file.read(4), b""
            packed = next((kind for magic, kind in _PACKED.items() if begin.startswith(magic)), "")
            source = cls(path, b"", cast(Any, packed))
            # Of a damaged file, what stands in front of the damage.
            with suppress(*DAMAGED), source.open() as file:
                while len(head) < HEAD and (piece := cast(io.BufferedReader, file).read1(HEAD - len(head))):
                    head += piece
            return replace(source, head=head)
        except OSError as error:
            raise BadCapture(f"cannot read {path}: {error.strerror}. Look at its name and permissions.") from None

    def open(self) -> BinaryIO:
        """The whole file, unpacked as it is read. Reading raises one of :data:`DAMAGED` where it is damaged."""
        if self.packed == "gzip":
            return cast(BinaryIO, gzip.open(self.path, "rb"))
        file = self.path.open("rb")
        if self.packed == "zstd":
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            return cast(BinaryIO, io.BufferedReader(cast(Any, reader), 1 << 20))
        return file


def _damaged() -> tuple[type[Exception], ...]:
    import zstandard

    return (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)


#: What reading a damaged compressed file raises.
DAMAGED = _damaged()


class Importer(Protocol):
    """Reads one format. ``name`` is a word, ``description`` what people call the format."""

    name: str
    description: str

    def recognizes(self, source: Source) -> bool:
        """Whether the source is of this format, by its content and never by its name."""
        ...

    def read(self, source: Source, out: Import) -> None:
        """Write what the source holds. Raises :class:`BadCapture` when nothing of it can be used."""
        ...


#: Keys of the description of a process that are about the file it stood in.
_OF_THE_FILE = frozenset(("format", "tables", "import"))


class _Account(TypedDict):
    """The events of one kind in the source: those that were seen, and what became of them."""

    seen: dict[str, int]
    kept: dict[str, int]
    left: dict[str, dict[str, int]]
    lost: dict[str, dict[str, int]]


def _tally(count: int = 0, duration_ns: int = 0) -> dict[str, int]:
    return {"count": int(count), "duration_ns": int(duration_ns)}


def _add(tally: dict[str, int], count: int, duration_ns: int) -> None:
    tally["count"] += int(count)
    tally["duration_ns"] += int(duration_ns)


class Import:
    """A capture under way, in files of the folder ``folder``, and the account of the events that it came from."""

    def __init__(self, folder: Path, source: Source, importer: Importer) -> None:
        self._folder, self._source, self._importer = folder, source, importer
        self._writers: dict[Hashable, Writer] = {}
        self._accounts: dict[str, _Account] = {}
        self._notes: list[str] = []
        #: Whether the descriptions of processes are whole as they are, and say what was closed in order.
        self.as_described = False
        # Captures with one boot id share a clock; nothing else shares that of this file.
        self._boot_id = f"import-{os.urandom(8).hex()}"

    def process(
        self,
        key: Hashable,
        *,
        pid: int = 0,
        name: str = "",
        host: str = "",
        command: list[str] | None = None,
        boot_id: str = "",
        **info: Any,
    ) -> Writer:
        """The writer of the process that ``key`` stands for, made when it is first asked for. ``info`` is more of its
        description (docs/run-bin.md lists the keys); later knowledge goes into ``Writer.process``."""
        if key not in self._writers:
            path = self._folder / f"{len(self._writers)}.bin"
            boot_id = boot_id or self._boot_id
            self._writers[key] = Writer(path, pid=pid, host=host, command=command, boot_id=boot_id, name=name, **info)
        return self._writers[key]

    def restored(self, key: Hashable, info: dict[str, Any], pid: int) -> Writer:
        """The writer of a process that a capture of cutrace described as ``info``."""
        self.as_described = True
        told = {name: value for name, value in info.items() if name not in _OF_THE_FILE}
        if "import" in info:
            told["imported_from"] = info["import"]
        notes = told.get("notes")
        if not self._writers:  # what is noted of the import comes behind them
            for note in notes if isinstance(notes, list) else ():
                self.note(str(note))
        writer = self.process(key, pid=pid, boot_id=str(told.get("boot_id", "")))
        writer.process(told)
        return writer

    def seen(self, what: str, count: int, duration_ns: int = 0) -> None:
        """The source has ``count`` events of the kind ``what``; their durations add up to ``duration_ns``."""
        _add(self._account(what)["seen"], count, duration_ns)

    def kept(self, what: str, count: int, duration_ns: int = 0) -> None:
        """So many of them became rows."""
        _add(self._account(what)["kept"], count, duration_ns)

    def left(self, what: str, count: int, duration_ns: int = 0, why: str = "") -> None:
        """So many of them were understood and have no place in a capture."""
        if count:
            _add(self._account(what)["left"].setdefault(why, _tally()), count, duration_ns)

    def lost(self, what: str, count: int, duration_ns: int = 0, why: str = "") -> None:
        """So many of them could not be used. They are among the losses of the trace."""
        if count:
            _add(self._account(what)["lost"].setdefault(why, _tally()), count, duration_ns)

    def damaged(self, what: str, how: str) -> None:
        """A part of the source that could not be read to its end, for the reason ``how``. At least one thing was
        lost."""
        self.note(f"{what} is damaged ({how}): what could be read of it is here. Copy or export the file again.")
        if DAMAGED_FILE not in self._account(what)["lost"]:
            self.seen(what, 1)
            self.lost(what, 1, why=DAMAGED_FILE)

    def note(self, sentence: str) -> None:
        """A sentence for people: what happened, and what to do about it."""
        if sentence not in self._notes:
            self._notes.append(sentence)

    def close(self) -> Path:
        """Finish the capture and return its file."""
        first = self.process(next(iter(self._writers), None))
        # As cutrace.trace.imported reads it.
        about = {"format": self._importer.name, "source": self._source.path.name, "events": self._accounts}
        first.process({"import": about, "notes": self._notes})
        reasons = [(what, why, t["count"]) for what, a in self._accounts.items() for why, t in a["lost"].items()]
        rows = np.zeros(len(reasons), TABLES["losses"].dtype)
        for row, (what, why, count) in zip(rows, reasons, strict=True):
            row["count"], row["reason"] = count, _UNREADABLE
            row["detail"] = first.string(f"{what}: {why}" if why else what)
        if len(rows):
            first.rows("losses", rows)
        paths = [writer.path for writer in self._writers.values()]
        for writer in self._writers.values():
            writer.close(in_order=not self.as_described)
        if len(paths) > 1:
            # Not opened for appending: the kernel does not copy into such files.
            with paths[0].open("r+b") as whole:
                whole.seek(0, os.SEEK_END)
                concatenate(paths[1:], whole)
            for path in paths[1:]:
                path.unlink()
        return paths[0]

    def discard(self) -> None:
        """Drop what was written."""
        for writer in self._writers.values():
            writer.discard()

    def _account(self, what: str) -> _Account:
        return self._accounts.setdefault(what, {"seen": _tally(), "kept": _tally(), "left": {}, "lost": {}})


def value_of(text: bytes | str | None) -> Any:
    """The value of JSON text. Invalid JSON gives None."""
    try:
        return json.loads(text or b"")
    except (ValueError, TypeError, RecursionError):
        return None


def object_of(text: bytes | str | None) -> dict[str, Any]:
    """JSON text as an object, an empty one for any other text."""
    value = value_of(text)
    return value if isinstance(value, dict) else {}


def rows_of(table: str, count: int, **fields: Any) -> np.ndarray:
    """Rows of a table with these fields, each an array or one value for all rows; the other fields are 0."""
    rows = np.zeros(count, TABLES[table].dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows


def read(importer: Importer, source: Source, folder: Path, damage: str = "") -> Path:
    """Import a source into a capture in ``folder``; returns its path. ``damage`` says why the capture inside the source
    is of no use. Raises :class:`BadCapture` when nothing can be used, :class:`CutraceError` when the folder has no
    room."""
    out = Import(folder, source, importer)
    try:
        if damage:
            out.damaged("the capture inside", damage)
        importer.read(source, out)
        return out.close()
    except OSError as error:
        out.discard()
        raise BadCapture(f"cannot read {source.path}: {error.strerror or error}. Look at its permissions.") from None
    except BaseException:
        out.discard()
        raise
