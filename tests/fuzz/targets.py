"""The Python fuzz targets, and the conditions for every input: only :class:`CutraceError` may be raised, time and
memory are proportional to the input, and the result is well formed.

A target makes an input from a random generator, and checks it. An input is bytes, so that a failing one can be kept as
a file.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import tempfile
import time
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

import cutrace
from captures import awkward, python_calls, training_steps
from cutrace import CutraceError
from cutrace.analysis.marks import Window, begin, end
from cutrace.analysis.metrics import measure
from cutrace.analysis.summary import summarize
from cutrace.analysis.windows import whole, windows
from cutrace.cli import main
from cutrace.golden import read, text
from cutrace.runbin import TABLES, TableLayout
from cutrace.runbin.layout import BY_NUMBER, REFERRED
from cutrace.trace.process import Process
from cutrace.trace.strings import StringTable

from . import mutate

DATA = Path(__file__).parents[1] / "data"
#: The limits of an input in seconds and bytes: a constant, and an addition for each byte of the input.
SECONDS, SECONDS_A_BYTE = 3.0, 100e-6
BYTES, BYTES_A_BYTE = 96 << 20, 400

_SMALL = 64 << 10


class Target(ABC):
    """One entry point of cutrace. ``check`` raises an exception for a bug, and CutraceError for a bad input."""

    name: ClassVar[str]

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(dir=folder)
        self.folder = Path(self._temporary.name)

    @abstractmethod
    def make(self, rng: random.Random) -> bytes: ...

    @abstractmethod
    def check(self, data: bytes) -> None: ...

    def run(self, data: bytes, *, memory: bool = False) -> None:
        """Run one input within its limits. With ``memory``, also measure memory, which is slow."""
        if memory:
            tracemalloc.start()
        started = time.process_time()
        try:
            self.check(data)
        finally:
            seconds = time.process_time() - started
            peak = tracemalloc.get_traced_memory()[1] if memory else 0
            tracemalloc.stop()
        limit = (SECONDS + SECONDS_A_BYTE * len(data)) * (10 if memory else 1)
        assert seconds < limit, f"{seconds:.1f} s for {len(data)} bytes"
        assert peak < BYTES + BYTES_A_BYTE * len(data), f"{peak:,} bytes of memory for {len(data):,} bytes"


def in_range(trace: cutrace.Trace, table: TableLayout, rows: np.ndarray) -> None:
    """Check that all references in rows are valid."""
    if not len(rows):
        return
    sizes = {kind: len(trace.table(name)) for kind, name in REFERRED.items()}
    sizes["string"] = len(trace.strings)
    for f in table.fields:
        if f.type in sizes:
            assert int(rows[f.name].max()) < sizes[f.type]
    if "process" in table.offsets:
        assert int(rows["process"].max()) < len(trace.processes)


class Captures(Target):
    """Any bytes as a capture. Checks every table, the quality, the figures, the windows and their metrics, the
    conversion, and the printing commands."""

    name = "capture"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        made = self.folder / "seed.bin"
        seeds = [path.read_bytes() for path in sorted(DATA.glob("*.bin"))]
        seeds += [training_steps(made, steps=1, layers=1).read_bytes()]
        seeds += [python_calls(made).read_bytes()]
        seeds += [awkward(made).read_bytes() for _ in range(6)]  # small captures with every table
        self._seeds = [mutate.blocks_of(seed) for seed in seeds]

    def make(self, rng: random.Random) -> bytes:
        return mutate.capture(rng, self._seeds)

    def check(self, data: bytes) -> None:
        rng = random.Random(len(data))
        path, converted = self.folder / "fuzzed.bin", self.folder / "fuzzed.pftrace"
        path.write_bytes(data)
        with contextlib.suppress(CutraceError), cutrace.load(path) as trace:
            self._read(trace)
            compress = rng.choice((None, None, None, "zstd", "deflate"))
            window = {"start": trace.start + 5, "end": trace.start + 50_000} if rng.random() < 0.2 else {}
            cutrace.convert(path, converted, compress=compress, **window)
            if rng.random() < 0.1 and not compress:
                protos.Trace().ParseFromString(converted.read_bytes())
        if rng.random() < 0.1:
            self._print(path)
        if rng.random() < 0.1:
            with contextlib.suppress(CutraceError):
                cutrace.view(path, self.folder / "fuzzed.html")

    def _read(self, trace: cutrace.Trace) -> None:
        for name, table in TABLES.items():
            rows = trace.table(name)
            assert rows.dtype == table.dtype
            in_range(trace, table, rows)
            list(trace.blocks(name, trace.start, trace.end))
        assert all(isinstance(sentence, str) for sentence in trace.quality.sentences())
        assert trace.start <= trace.end
        summarize(trace)
        with contextlib.suppress(CutraceError):
            for window in (whole(trace), *windows(trace))[:4]:
                measure(trace, window)

    def _print(self, path: Path) -> None:
        for arguments in (["info", str(path)], ["info", "--format", "json", str(path)]):
            with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.redirect_stderr(io.StringIO()):
                status = _status(arguments)
            assert status in (0, 2), arguments


class Reading(Captures):
    """Any bytes as a capture. Only opens it and reads its tables, so that many more inputs can run."""

    name = "reader"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        # Small captures: this target checks the parsing of blocks.
        self._seeds = [seed for seed in self._seeds if sum(len(block.payload) for block in seed) < _SMALL]

    def check(self, data: bytes) -> None:
        path = self.folder / "fuzzed.bin"
        path.write_bytes(data)
        with contextlib.suppress(CutraceError), cutrace.load(path) as trace:
            for kind in np.unique(trace._reader.headers["kind"]).tolist():
                if kind in BY_NUMBER:
                    table = BY_NUMBER[kind]
                    rows, unknown = trace.table(table.name), trace.unknown(table.name)
                    assert rows.dtype == unknown.dtype == table.dtype
                    # Equal launches and functions are merged, and row 0 means no launch or function.
                    assert len(rows) + len(unknown) <= trace.count(table.name) + ("id" in table.offsets)
                    in_range(trace, table, rows)
            assert trace.start <= trace.end
            assert len(trace.processes) >= 1


def _status(arguments: list[str]) -> object:
    try:
        main(arguments)
    except SystemExit as ended:
        return ended.code


class GoldenFiles(Target):
    """Any string as a golden file. It is refused with file and line, or stays unchanged after reading and writing."""

    name = "golden"

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._path = self.folder / "fuzzed.toml"

    _SEED = """\
# Written by cutrace. Review it like code.
format = 2
module = "tests/test_softmax.py"
seen = ["sm_80", "sm_90"]

["test_fwd[a-\\u001b]"]
unconfirmed = ["sm_80"]
kernels = { softmax_fwd = 1, "a b" = [2, 3] }
memcpy_count = { d2h = 4 }
syncs = {}
peak_memory_bytes = { min = 0, max = 33554432 }
"ours.tokens" = -7
unstable.memset_count = [1, 2]
["test_fwd[a-\\u001b]".region."a \\"b\\""]
graph_launches = 1
["test_fwd[a-\\u001b]".on.sm_90]
kernel_time_ns = { min = 1, median = 2, q3 = 3, n = 3, samples = [1, 2, 3] }
[test_b]
seen = ["sm_90"]
against = "0123456789abcdef"
kernels.softmax_fwd = 1
[test_b.on.sm_90.region.forward]
sync_calls = [1, 2]
"""
    _PIECES = (
        "[", "]", "[[", "=", '"', "'", '"""', "{", "}", ",", "\n", "\r\n", "\0", "\\", "\\u0000", "\\ud800", ".",
        "-", "+", "1e999", "nan", "inf", "0x7f", "9" * 30, "9" * 5000, "-1", "1979-05-27", "true", "format", "module",
        "seen", "on", "region", "unstable", "against", "kernels", "ä", "\ufeff", "# x\n", "[test_b]\n", "[1, 1]",
        "<<<<<<< ours\n", "[seen]\n", "sm_90",
        "[" * 2000, "a." * 500, "{a=" * 900,
    )  # fmt: skip

    def make(self, rng: random.Random) -> bytes:
        data = bytearray(self._SEED.encode())
        for _ in range(rng.choice((1, 1, 2, 3, 8, 30))):
            at, length = rng.randrange(len(data) + 1), rng.choice((0, 0, 1, 5, 60))
            kind = rng.randrange(4)
            if kind == 0:
                data[at : at + length] = rng.choice(self._PIECES).encode("utf-8")
            elif kind == 1:
                start = rng.randrange(len(data) + 1)
                data[at:at] = data[start : start + rng.choice((3, 20, 200))]
            elif kind == 2:
                del data[at : at + length]
            elif at < len(data):
                data[at] = rng.randrange(256)
        return bytes(data)

    def check(self, data: bytes) -> None:
        self._path.write_bytes(data)
        with contextlib.suppress(CutraceError):
            golden = read(self._path)
            written = text(golden)
            self._path.write_text(written, encoding="utf-8", newline="\n")
            assert text(read(self._path)) == written


@dataclass
class _Marked:
    """The part of a trace that windows need."""

    nvtx_marks: np.ndarray
    strings: StringTable
    processes: Sequence[Process]
    start: int
    end: int


class Marks(Target):
    """Marks in any order, in any processes and threads, with any strings. Each window must lie inside the capture and
    have exactly the marks of its time."""

    name = "marks"

    def make(self, rng: random.Random) -> bytes:
        kinds, names = ("test", "region", "tool"), ("a", "b", "a\\u0041", "\ud800", "x" * 700, "", "ä\n")
        marks = []
        for _ in range(rng.choice((1, 3, 10, 10, 40))):
            kind, name = rng.choice(kinds), rng.choice(names)
            what = (begin if rng.random() < 0.6 else end)(kind, name)
            if rng.random() < 0.1:
                what = what[rng.randrange(3) :] + rng.choice(("", "\\", "\\u12", "\n"))
            time_ = rng.randrange(50) if rng.random() < 0.95 else mutate.number(rng, 8) >> 1
            marks.append([time_, what, rng.randrange(3), rng.randrange(3), int(rng.random() < 0.95)])
        parents = [rng.choice((0, 1, 2, 3, None, [], "1", 1e400, True)) for _ in range(3)]
        return json.dumps({"marks": marks, "parents": parents}).encode()

    def check(self, data: bytes) -> None:
        given: dict[str, Any] = json.loads(data)
        strings = StringTable()
        rows = np.zeros(len(given["marks"]), TABLES["nvtx_marks"].dtype)
        for row, (moment, what, process, thread, source) in zip(rows, given["marks"], strict=True):
            row["time"], row["process"], row["thread"], row["source"] = moment, process, thread, source
            row["name"] = strings.add(what.encode("utf-8", "surrogatepass"))
        processes = [
            Process(i, i + 1, "p", "h", "b", (), {"parent_pid": parent}) for i, parent in enumerate(given["parents"])
        ]
        first, last = (int(rows["time"].min()), int(rows["time"].max())) if len(rows) else (0, 0)
        trace: Any = _Marked(rows, strings, processes, first, last)
        for window in (*windows(trace), whole(trace)):
            self._hold(window, SimpleNamespace(start=first, end=last + 1))
            for region in window.regions:
                self._hold(region, window)
                assert not region.regions

    def _hold(self, window: Window, around: Any) -> None:
        assert around.start <= window.start <= window.end <= around.end or window.start >= around.end
        assert all(s < window.end and e > window.start for s, e in window.tool)
