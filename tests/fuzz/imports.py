"""Damaged files of other tools. Every import ends with a trace of valid references and a balanced account, or with
:class:`CutraceError`."""

from __future__ import annotations

import contextlib
import gzip
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import cutrace
import databases
from captures import awkward
from cutrace import CutraceError
from cutrace.runbin import TABLES, Writer

from .targets import DATA, Target, in_range

#: Unusual numbers and strings.
_VALUES = (
    None, 0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 0.5, -1e300, 1e300, float("inf"), "", "text", "12", "-1",
    "\0", "\ud7ff", "x" * 3000, b"", b"\xff\xfe", b"\0" * 16, '{"a": 1}', "[" * 500,
)  # fmt: skip
# Pieces of JSON that change the meaning of the following bytes.
_PIECES = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u", b"\\ud800", b"\\u0000", b"null", b"true", b"NaN", b"-",
    b"1e999", b"-1e-999", b"9" * 40, b"0.0000000001", b"1.5E+3", b"-0", b"\xff", b"\xc3", b"\0", b"\xef\xbb\xbf",
    b"[" * 700, b'{"a":' * 300, b'"ph":"X"', b'"ph":"B"', b'"ph":"E"', b'"ph":"C"', b'"ph":"s"', b'"ph":"b"',
    b'"ph":"M"', b'"ph":7', b'"ts":1e18', b'"ts":-5', b'"ts":"5"', b'"dur":-1', b'"dur":1e30', b'"pid":"p"',
    b'"tid":-1', b'"tid":{}', b'"args":[]', b'"args":{"stream":-1}', b'"args":{"correlation":1e20}', b'"name":7',
    b'"cat":"kernel"', b'"cat":"gpu_memcpy"', b'"cat":"cuda_runtime"', b'"id":"0x1"', b"\n", b" " * 3000,
)  # fmt: skip


class Imports(Target):
    """Files of one kind. ``seeds`` are valid files."""

    suffix: ClassVar[str] = ""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._seeds = self.seeds()

    def seeds(self) -> list[bytes]:
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        rng = random.Random(len(data))
        path, converted = self.folder / f"fuzzed{self.suffix}", self.folder / "fuzzed.pftrace"
        path.write_bytes(data)
        with contextlib.suppress(CutraceError), cutrace.load(path) as trace:
            for name, table in TABLES.items():
                rows, unknown = trace.table(name), trace.unknown(name)
                in_range(trace, table, rows)
                in_range(trace, table, unknown)
            for file in trace.imports:
                for account in file.accounts:
                    assert account.balanced, account
            assert all(isinstance(sentence, str) for sentence in trace.quality.sentences())
            if rng.random() < 0.05:
                cutrace.convert(path, converted)


def _scrambled(rng: random.Random, data: bytes, pieces: tuple[bytes, ...]) -> bytes:
    """Bytes with pieces inserted, and parts repeated, removed, swapped or flipped."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 12))):
        at, length = rng.randrange(len(out) + 1), rng.choice((0, 1, 1, 4, 30, 400))
        kind = rng.randrange(6)
        if kind == 0 and pieces:
            out[at : at + length] = rng.choice(pieces)
        elif kind == 1:
            out[at:at] = out[(start := rng.randrange(len(out) + 1)) : start + length]
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3 and rng.random() < 0.2:
            del out[at:]
        elif at < len(out):
            out[at] ^= 1 << rng.randrange(8)
    return bytes(out)


class Json(Imports):
    """Traces of torch.profiler and other trace-event JSON."""

    name = "json"
    suffix = ".json"

    def seeds(self) -> list[bytes]:
        made = []
        for path in sorted(DATA.glob("kineto-*.json.gz")):
            text = gzip.decompress(path.read_bytes())
            events = text.index(b'"traceEvents"')
            # The metadata, and events from the start, the middle and the end of the file.
            for part in range(4):
                at = text.find(b'{\n    "ph"', events + part * (len(text) - events) // 5)
                to = text.rfind(b"},", at, at + 9000)
                if 0 < at < to:
                    made.append(text[:events] + b'"traceEvents": [' + text[at : to + 1] + b"]}")
        awkward_trace = self.folder / "seed.json"
        cutrace.convert(awkward(self.folder / "seed.bin"), awkward_trace)
        made.append(awkward_trace.read_bytes())
        made.append(
            b'[{"ph":"B","name":"a","pid":1,"tid":2,"ts":1.5,"args":{"x":[1,{"y":"z"}]}},'
            b'{"ph":"E","pid":1,"tid":2,"ts":3},{"ph":"b","cat":"c","id":"0x7","name":"q","pid":"p","tid":"t","ts":1},'
            b'{"ph":"e","cat":"c","id":"0x7","name":"q","pid":"p","tid":"t","ts":9},{"ph":"C","name":"n","pid":1,"ts":4,'
            b'"args":{"a":1,"b":2.5}},{"ph":"i","s":"g","name":"i","pid":1,"tid":2,"ts":5},{"ph":"s","id":1,"cat":"f",'
            b'"name":"f","pid":1,"tid":2,"ts":2},{"ph":"f","bp":"e","id":1,"cat":"f","name":"f","pid":1,"tid":2,"ts":8},'
            b'{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"main"}}'
        )
        return made

    def make(self, rng: random.Random) -> bytes:
        data = _scrambled(rng, rng.choice(self._seeds), _PIECES)
        return gzip.compress(data, 1) if rng.random() < 0.05 else data


class Databases(Imports):
    """Databases of nsys, nvprof and cutrace, with changed cells, missing columns and tables, and damaged pages."""

    name = "database"
    suffix = ".sqlite"

    def seeds(self) -> list[bytes]:
        folder = self.folder
        own = folder / "own.sqlite"
        cutrace.convert(awkward(folder / "seed.bin"), own)
        nvprof = databases.nvprof(
            folder / "nvprof.db", ["_Z1kPf", "range"],
            CONCURRENT_KERNEL=[{"start": 10, "end": 20, "correlationId": 1, "streamId": 7, "name": 1, "gridX": 1}] * 3,
            RUNTIME=[{"start": 1, "end": 5, "correlationId": 1, "cbid": 211, "processId": 3, "threadId": 2**40}] * 3,
            DRIVER=[{"start": 1, "end": 5, "correlationId": 2, "cbid": 307}],
            MEMSET=[{"start": 5, "end": 6, "bytes": 4}],
            MEMCPY=[{"start": 5, "end": 6, "bytes": 4, "copyKind": 1}], OVERHEAD=[{"start": 1, "end": 2}],
            MARKER=[{"timestamp": 5, "id": 1, "flags": 2, "name": 2}, {"timestamp": 9, "id": 1, "flags": 4}],
        )  # fmt: skip
        return [path.read_bytes() for path in (databases.NSYS, own, nvprof)]

    def make(self, rng: random.Random) -> bytes:
        data = rng.choice(self._seeds)
        if rng.random() < 0.85:
            data = self._edited(rng, data)
        return _scrambled(rng, data, ()) if rng.random() < 0.25 else data

    def _edited(self, rng: random.Random, data: bytes) -> bytes:
        path = self.folder / "edited.sqlite"
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA synchronous = OFF")
            query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            tables = [name for (name,) in database.execute(query)]
            filled = [t for t in tables if database.execute(f'SELECT 1 FROM "{t}" LIMIT 1').fetchone()]
            for _ in range(rng.choice((1, 2, 3, 8))):
                with contextlib.suppress(sqlite3.Error):
                    _edit(rng, database, rng.choice(filled or tables))
            database.commit()
        return path.read_bytes()


def _edit(rng: random.Random, database: sqlite3.Connection, table: str) -> None:
    columns = [c[1] for c in database.execute(f'PRAGMA table_info("{table}")')]
    column, kind = rng.choice(columns or [""]), rng.random()
    if kind < 0.7:
        where = "" if rng.random() < 0.2 else f" WHERE rowid % 7 = {rng.randrange(7)}"
        database.execute(f'UPDATE "{table}" SET "{column}" = ?{where}', [rng.choice(_VALUES)])
    elif kind < 0.8:
        database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif kind < 0.85:
        database.execute(f'DROP TABLE "{table}"')
    elif kind < 0.9:
        database.execute(f'DELETE FROM "{table}" WHERE rowid % 3 = 0')
    else:
        names = ", ".join(f'"{c}"' for c in columns)
        database.execute(f'INSERT INTO "{table}" ({names}) SELECT {names} FROM "{table}" LIMIT 200')


class Traces(Imports):
    """Perfetto traces that cutrace wrote: with their capture, without it, and in compressed groups."""

    name = "pftrace"
    suffix = ".pftrace"

    def seeds(self) -> list[bytes]:
        made = []
        small = self.folder / "small.bin"
        with Writer(small, pid=1, command=["x"]) as writer:
            writer.string("a")
        path = self.folder / "seed.pftrace"
        foreign = []
        # Traces with slices, counters and arguments, which recordings do not have.
        for i, data in enumerate(Json(self.folder).seeds()):
            foreign.append(self.folder / f"seed{i}.json")
            foreign[-1].write_bytes(data)
        for capture in (awkward(self.folder / "seed.bin"), small, *foreign):
            for compress, inside in ((None, True), (None, False), ("zstd", False), ("deflate", False)):
                cutrace.convert(capture, path, compress=compress, capture=inside)
                made.append(path.read_bytes())
        return made

    _VARINTS = (b"\x80" * 10, b"\xff" * 9 + b"\x01", b"\x00", b"\x7f", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x10")

    def make(self, rng: random.Random) -> bytes:
        return _scrambled(rng, rng.choice(self._seeds), self._VARINTS)
