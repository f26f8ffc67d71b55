"""Writing run.bin from Python, for slices, importers, tests and benchmarks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._native import Keys
from ..errors import CutraceError
from ..outputs import publish, unwritable
from .blocks import pack_header, padded
from .layout import (
    FORMAT_VERSION,
    LOSS_REASONS,
    PROCESS_BLOCK,
    STRINGS_BLOCK,
    TABLES,
    TableLayout,
    schema,
)

#: Rows are written in blocks of about this many bytes.
BLOCK_BYTES = 1 << 20


class Writer:
    """Writes one process of a capture to ``path``.

    The file has a temporary name until :meth:`close` renames it. An exception in a ``with`` block removes it. With
    ``file``, an open file of the caller, blocks are appended to that file. ``info`` is the process description
    (docs/internals/run-bin.md lists the keys); its ``ended`` is written last, so that a file that is cut lacks it.
    Raises :class:`CutraceError` when the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        pid: int = 0,
        instance: int | None = None,
        file: BinaryIO | None = None,
        **info: Any,
    ) -> None:
        self.path = Path(path)
        self._part = self.path.with_name(
            f".{self.path.name}.{os.urandom(4).hex()}.part"
        )
        self._pid = pid
        if instance is None:
            self._instance = int.from_bytes(os.urandom(8), "little")
        else:
            self._instance = instance
        self._sequence = 0
        self._ended: int | None = info.pop("ended", None)
        self._last = 0
        self._string_ids: dict[bytes, int] = {}
        self._new_strings: list[tuple[int, bytes]] = []
        self._interned: dict[str, Keys] = {}
        self._owned = file is None
        try:
            # Only this user can read a capture that is not complete. publish() sets the mode that the umask allows.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            flags |= getattr(os, "O_BINARY", 0)
            self._file: BinaryIO = file or os.fdopen(
                os.open(self._part, flags, 0o600), "wb"
            )
        except OSError as error:
            raise unwritable(self.path, error) from None
        known = {
            "format": FORMAT_VERSION,
            "producer": "cutrace",
            "pid": pid,
            "host": "",
            "command": [],
        }
        description = {
            **known,
            "clock": "boottime",
            **info,
            "tables": schema(),
        }
        self.process(description)

    def process(self, info: dict[str, Any]) -> None:
        """Write keys of the process description; a later value of a key replaces an earlier one."""
        self._block(
            PROCESS_BLOCK,
            json.dumps(info, ensure_ascii=False).encode("utf-8", "replace"),
            rows=1,
        )

    def string(self, text: str | bytes) -> int:
        """The id of a string. The empty string has id 0."""
        if isinstance(text, str):
            data = text.encode("utf-8", "surrogateescape")
        else:
            data = text
        if not data:
            return 0
        known = self._string_ids.get(data)
        if known is None:
            known = self._string_ids[data] = len(self._string_ids) + 1
            self._new_strings.append((known, data))
        return known

    def intern_one(self, table: str, **fields: int | str) -> int:
        """The id of a row with these ``fields`` of an interned table, strings as such."""
        row = np.zeros(1, TABLES[table].dtype)
        for name, value in fields.items():
            row[name] = self.string(value) if isinstance(value, str) else value
        return int(self.intern(table, row)[0])

    def intern(self, table: str, rows: np.ndarray) -> np.ndarray:
        """The ids of rows of an interned table. The field ``id`` of the given rows is 0. Writes new rows. The id is 0
        for a row of zeros, and when there are no more ids."""
        layout = TABLES[table]
        words = as_words(rows)
        filled = words.any(axis=1)
        keys = self._interned.setdefault(table, Keys(words.shape[1]))
        numbers, first = keys.ids(
            [np.ascontiguousarray(column) for column in words[filled].T]
        )
        most = int(np.iinfo(layout.dtype["id"]).max)
        first = first[numbers[first] < most]
        if len(first):
            new = rows[filled][first]
            new["id"] = numbers[first] + 1
            self.rows(table, new)
        ids = np.zeros(len(rows), np.int64)
        ids[filled] = np.where(numbers < most, numbers + 1, 0)
        return ids

    def rows(self, table: str, rows: np.ndarray) -> None:
        """Write rows of a table: an array with the table's dtype and with ids of this writer."""
        layout = TABLES[table]
        rows = np.ascontiguousarray(rows, layout.dtype).reshape(-1)
        self._write_strings()
        step = max(1, BLOCK_BYTES // layout.row_size)
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            first, last = span(part, layout)
            payload = part.view(np.uint8).data
            self._block(
                layout.number,
                payload,
                rows=len(part),
                row_size=layout.row_size,
                first=first,
                last=last,
            )

    def losses(self, losses: Iterable[tuple[str, int, str]], time: int = 0) -> None:
        """Write losses: the name of a reason in :data:`LOSS_REASONS`, the count and the detail of each. ``time`` is in
        ns."""
        numbers = {name: number for number, (name, _) in LOSS_REASONS.items()}
        rows = []
        for reason, count, detail in losses:
            text = self.string(detail)
            rows.append((time, count, numbers[reason], 0, text))
        self.rows("losses", np.array(rows, TABLES["losses"].dtype))

    def close(self, *, in_order: bool = True) -> None:
        """Write the remaining data, mark the capture as closed in order and rename the file. With ``in_order`` False
        the mark is not written."""
        self._write_strings()
        if self._ended is None:
            self._ended = self._last
        if in_order:
            self.process({"ended": self._ended})
        if not self._owned:
            return
        try:
            self._file.close()
            publish(self._part, self.path)
        except OSError as error:
            self.discard()
            raise unwritable(self.path, error) from None
        except CutraceError:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the temporary file. A file of the caller stays as it is."""
        if self._owned:
            self._file.close()
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _write_strings(self) -> None:
        while self._new_strings:
            taken = 0
            size = 0
            while taken < len(self._new_strings) and (taken == 0 or size < BLOCK_BYTES):
                size += 8 + len(self._new_strings[taken][1])
                taken += 1
            part = self._new_strings[:taken]
            self._new_strings = self._new_strings[taken:]
            self._block(STRINGS_BLOCK, pack_strings(part), rows=len(part))

    def _block(
        self,
        kind: int,
        payload: bytes | memoryview,
        *,
        rows: int,
        row_size: int = 0,
        first: int = 0,
        last: int = 0,
    ) -> None:
        header = pack_header(
            kind,
            row_size=row_size,
            rows=rows,
            payload=payload,
            pid=self._pid,
            sequence=self._sequence,
            instance=self._instance,
            first_time=first,
            last_time=last,
        )
        try:
            for piece in (header, payload, bytes(padded(len(payload)) - len(payload))):
                self._file.write(piece)
        except OSError as error:
            self.discard()
            raise unwritable(self.path, error) from None
        self._sequence += 1
        self._last = max(self._last, last)


class NewIds:
    """A map from ids of another file to ids of a new file; 0 stays 0. ``write`` writes the entries of ids (distinct,
    ascending) at their first use, and returns the new ids."""

    def __init__(self, write: Callable[[np.ndarray], Any]) -> None:
        self._write = write
        self._new = np.zeros(1024, np.uint32)

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        largest = int(ids.max(initial=0))
        if largest >= len(self._new):
            room = np.zeros(largest + 1, np.uint32)
            self._new = np.append(self._new, room)
        without_new = self._new[ids] == 0
        unknown = np.unique(ids[without_new & (ids != 0)])
        if len(unknown):
            self._new[unknown] = self._write(unknown)
        return self._new[ids]


def as_words(rows: np.ndarray) -> np.ndarray:
    """The bytes of rows as an array of integers, one line for each row. :class:`cutrace._native.Keys` finds equal rows
    in it. Rows of whole words are not copied."""
    size = rows.dtype.itemsize
    plain = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), size)
    if size % 8 == 0:
        return plain.view(np.int64)
    count = -(-size // 8)
    words = np.zeros((len(rows), count), np.int64)
    words.view(np.uint8)[:, :size] = plain
    return words


def pack_strings(texts: Sequence[tuple[int, bytes]]) -> bytes:
    """The payload of a strings block: the id and the length of each string, then the strings."""
    sizes = [(number, len(text)) for number, text in texts]
    head = np.array(sizes, "<u4").tobytes()
    return head + b"".join(text for _, text in texts)


def span(rows: np.ndarray, table: TableLayout) -> tuple[int, int]:
    """The smallest known start and the largest known end of the rows; 0 for unknown."""
    start = table.start_field
    end = table.end_field
    if start is None or end is None or not len(rows):
        return 0, 0
    known = rows[start][rows[start] > 0]
    if len(known):
        last_start = int(known.max())
        last_end = int(rows[end].max())
        return int(known.min()), max(last_start, last_end)
    return (0, int(rows[end].max()))
