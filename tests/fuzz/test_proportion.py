"""Captures crafted to be expensive: time and memory must grow linearly with their size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cutrace
from cutrace._native import Lanes, Submissions, demangle
from cutrace.analysis.marks import begin
from cutrace.analysis.windows import windows
from cutrace.runbin import TABLES, Reader, Writer
from cutrace.runbin.blocks import MAGIC, pack_header
from support.growth import grows_with, growth

from .mutate import Block


def capture_of(path: Path, blocks: list[Block]) -> Path:
    path.write_bytes(b"".join(block.sealed() for block in blocks))
    return path


def empty(process: int, sequence: int = 0, kind: int = 16, payload: bytes = b"") -> Block:
    return Block(kind, 0, 0, payload, process, sequence, process, 0, 0)


def opened(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert trace.processes
        assert trace.quality


@growth
def test_a_capture_of_many_processes(tmp_path: Path) -> None:
    grows_with(400, lambda n: lambda: opened(capture_of(tmp_path / "a.bin", [empty(i) for i in range(n)])))


def test_more_processes_than_rows_can_tell_apart_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    heads = b"".join(
        pack_header(16, row_size=0, rows=0, payload=b"", pid=1, sequence=0, instance=i) for i in range(1, 65_538)
    )
    path.write_bytes(heads)
    with pytest.raises(cutrace.BadCapture, match="join fewer captures"):
        cutrace.load(path)


@growth
def test_many_damaged_blocks(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        rows = np.zeros(1, TABLES["kernels"].dtype).tobytes()
        good = Block(16, 34, 1, rows, 1, 0, 1, 0, 0)
        data = b"".join(
            pack_header(16, row_size=34, rows=1, payload=b"other" + bytes(29), pid=1, sequence=i, instance=1)
            + good.payload + bytes(6) for i in range(n)
        )  # fmt: skip
        (tmp_path / "a.bin").write_bytes(data)
        return lambda: opened(tmp_path / "a.bin")

    grows_with(1000, work)


@growth
def test_headers_that_claim_the_rest_of_the_file(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        size = 64 * n
        heads = []
        for i in range(n):
            head = bytearray(pack_header(16, row_size=0, rows=0, payload=b"", pid=1, sequence=i, instance=1))
            head[16:20] = (size - 64 * i - 8).to_bytes(4, "little")
            heads.append(reseal(head))
        (tmp_path / "a.bin").write_bytes(b"".join(heads) + empty(1).sealed())
        return lambda: Reader(tmp_path / "a.bin").close()

    grows_with(2000, work)


def reseal(head: bytearray) -> bytes:
    from cutrace._native import crc32c

    return bytes(head[:60]) + crc32c(bytes(head[:60])).to_bytes(4, "little")


@growth
def test_magic_upon_magic(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        (tmp_path / "a.bin").write_bytes(empty(1).sealed() + MAGIC * n)
        return lambda: Reader(tmp_path / "a.bin").close()

    grows_with(4000, work)


@growth
def test_slices_that_all_overlap() -> None:
    def work(n: int) -> Callable[[], object]:
        starts = np.arange(1, n + 1, dtype=np.uint64)
        groups, ends = np.zeros(n, np.uint32), starts + np.uint64(n)

        def run() -> None:
            lanes = Lanes()
            lanes.add(0, groups, starts, ends)
            lanes.close(2**64 - 1)
            _, (count,), (used,), _ = lanes.groups()
            assert (count, used) == (2 * n, n)
            lanes.take(b"\0", 0, np.arange(n, dtype=np.uint32))

        return run

    grows_with(20_000, work)


@growth
def test_calls_that_share_a_correlation_with_all_work() -> None:
    def work(n: int) -> Callable[[], object]:
        same = np.full(n, 7, np.uint32)

        def run() -> None:
            submissions = Submissions(0)
            submissions.assign(same)
            assert len(submissions.lists(same)[1]) <= 16 * n

        return run

    grows_with(5000, work)


def test_correlations_scattered_over_all_numbers_take_no_more_memory(tmp_path: Path) -> None:
    import resource

    scattered = (np.arange(100_000, dtype=np.uint64) * 42_949 % 2**32).astype(np.uint32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    submissions = Submissions(0)
    submissions.assign(scattered)
    submissions.assign(scattered)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KiB


def test_names_that_unfold() -> None:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name = "_Z1f1PIiiE" + "".join(f"S_IS{digits[i]}_S{digits[i]}_E" for i in range(30))
    assert demangle(name) == name
    assert demangle("_Z1f1PIiiES_IS0_S0_E") == "f(P<int, int>, P<P<int, int>, P<int, int> >)"


@growth
def test_marks_that_begin_and_never_end(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        with Writer(tmp_path / "a.bin", pid=1) as writer:
            rows = np.zeros(n, TABLES["nvtx_marks"].dtype)
            rows["time"], rows["source"] = np.arange(1, n + 1), 1
            rows["name"] = writer.string(begin("region", "a"))
            rows["name"][0] = writer.string(begin("test", "t"))
            writer.rows("nvtx_marks", rows)
        trace = cutrace.load(tmp_path / "a.bin")
        return lambda: windows(trace)

    grows_with(2000, work)


@growth
def test_a_line_of_descent_as_long_as_the_capture(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        described = (json.dumps({"pid": i, "parent_pid": i - 1, "boot_id": "b"}).encode() for i in range(n))
        path = capture_of(
            tmp_path / "a.bin", [empty(i, kind=1, payload=payload) for i, payload in enumerate(described)]
        )
        trace = cutrace.load(path)
        return lambda: windows(trace)

    grows_with(1000, work)


def test_a_row_cannot_name_a_process_that_is_not_there(tmp_path: Path) -> None:
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        rows = np.zeros(3, TABLES["kernels"].dtype)
        rows["start"], rows["end"], rows["process"] = 1, 2, 9
        writer.rows("kernels", rows)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert trace.kernels["process"].tolist() == [0, 0, 0]


def converted(path: Path, tables: dict[str, np.ndarray]) -> Callable[[], object]:
    """Return a function that converts a capture of these rows."""
    with Writer(path, pid=1) as writer:
        function = writer.intern_one("functions", name="cudaLaunchKernel", domain=2, status=0, callback=1)
        for name, rows in tables.items():
            if "function" in (rows.dtype.names or ()):
                rows["function"] = function
            writer.rows(name, rows)
    return lambda: cutrace.convert(path, path.with_suffix(".pftrace"))


def rows_of(table: str, n: int, **columns: object) -> np.ndarray:
    rows = np.zeros(n, TABLES[table].dtype)
    for name, values in columns.items():
        rows[name] = values
    return rows


@growth
def test_ranges_that_all_hold_all_launches_on_streams_of_their_own(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        i = np.arange(1, n + 1)
        return converted(tmp_path / "a.bin", {
            "nvtx_ranges": rows_of("nvtx_ranges", n, start=i, end=9 * n + i, thread=1, kind=1, range_id=i),
            "api_calls": rows_of("api_calls", n, start=2 * n + i, end=2 * n + i + 1, thread=1, correlation=i),
            "kernels": rows_of("kernels", n, start=3 * n + i, end=3 * n + i + 1, correlation=i, stream=i),
        })  # fmt: skip

    grows_with(500, work)


@growth
def test_ranges_that_all_hold_all_launches_of_one_stream(tmp_path: Path) -> None:
    def work(n: int) -> Callable[[], object]:
        i = np.arange(1, n + 1)
        return converted(tmp_path / "a.bin", {
            "nvtx_ranges": rows_of("nvtx_ranges", n, start=i, end=9 * n + i, thread=1, kind=1, range_id=i),
            "api_calls": rows_of("api_calls", n, start=2 * n + i, end=2 * n + i + 1, thread=1, correlation=i),
            "kernels": rows_of("kernels", n, start=3 * n + i, end=3 * n + i + 1, correlation=i, stream=7),
        })  # fmt: skip

    grows_with(10_000, work)


@growth
def test_waits_for_contexts_of_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutrace.exporters.perfetto.derived import waits

    monkeypatch.setattr(waits, "MOST", 1 << 14)

    def work(n: int) -> Callable[[], object]:
        i = np.arange(1, n + 1)
        return converted(tmp_path / "a.bin", {
            "kernels": rows_of("kernels", n, start=i, end=i + 1, correlation=i, stream=i, context=1),
            "api_calls": rows_of("api_calls", n, start=i, end=i + 1, thread=1, correlation=n + i),
            "synchronizations": rows_of(
                "synchronizations", n, start=i, end=i + 1, correlation=n + i, type=4, context=1
            ),
        })  # fmt: skip

    grows_with(500, work)
