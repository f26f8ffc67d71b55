"""cutrace.convert(): its errors, and the time window. tests/exporters checks its outputs."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import ORIGIN, Capture, training_steps
from cutrace.analysis.marks import Window
from cutrace.analysis.metrics import measure
from cutrace.runbin import LOSS_REASONS
from support import small_capture

DATA = Path(__file__).parent / "data"
FORMATS = ("bin", "pftrace", "sqlite", "json", "parquet")


def test_the_capture_is_never_overwritten(tmp_path):
    capture = small_capture(tmp_path / "a.pftrace")
    (tmp_path / "link.pftrace").symlink_to(capture)
    for name in ("a.pftrace", "link.pftrace"):
        with pytest.raises(cutrace.CutraceError, match="is an input"):
            cutrace.convert([capture], tmp_path / name)


def test_no_capture_is_an_error(tmp_path):
    with pytest.raises(cutrace.CutraceError, match="no capture"):
        cutrace.convert([], tmp_path / "a.pftrace")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.pftrace", {"table": "kernels"}, r"is not made of one table: choose \.csv"),
        ("a.sqlite", {"compress": "zstd"}, r"has no packets to compress: choose \.pftrace"),
        ("a.json", {"ranges": "own"}, r"which work belongs to a range: leave out `ranges=`, or choose \.pftrace"),
        ("a.folded", {"derived": False}, r"computed from records: leave out `derived=False`, or choose \.pftrace"),
    ],
)
def test_an_option_of_another_format_is_an_error(tmp_path, name, options, message):
    with pytest.raises(cutrace.CutraceError, match=message):
        cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / name, **options)


# The window


def test_a_stretch_of_time_has_to_have_a_length(tmp_path):
    with pytest.raises(cutrace.CutraceError, match="after the start"):
        cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / "a.pftrace", start=10, end=10)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("window", [{"start": 301}, {"end": 50}])
def test_a_window_outside_the_capture_says_its_span(tmp_path, window):
    with pytest.raises(cutrace.CutraceError, match="spans 250 ns, from @50 to @300"):
        cutrace.convert(small_capture(tmp_path / "a.bin"), tmp_path / "a.pftrace", **window)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A capture with a last mark and kernel far from the others."""
    with Capture(tmp_path / "run.bin") as c:
        early, late = c.launch("early_kernel"), c.launch("SECRET_kernel")
        c.kernel(early, 100, 200)
        c.kernel(late, 9_000_000, 9_000_100)
        c.mark("early mark", 150)
        c.mark("SECRET mark", 9_000_000)
        c.add("nvtx_ranges", start=ORIGIN + 50, end=0, name="open range", thread=100, kind=0, flags=1)
    return tmp_path / "run.bin"


def texts(path: Path) -> Iterator[bytes]:
    """The bytes of a trace, decoded as far as needed to search for strings in it."""
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as connection:
            yield "\n".join(connection.iterdump()).encode()
    elif path.is_dir():
        parquet = pytest.importorskip("pyarrow.parquet")
        for part in path.rglob("*.parquet"):
            yield str(parquet.read_table(part).to_pydict()).encode()
    else:
        yield gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.parametrize("ending", FORMATS)
def test_nothing_outside_the_window_is_in_the_output(long, tmp_path, ending):
    cutrace.convert(long, tmp_path / f"part.{ending}", end=ORIGIN + 1000)
    whole = b"\n".join(texts(tmp_path / f"part.{ending}"))
    assert b"early mark" in whole
    assert b"early_kernel" in whole
    assert b"SECRET" not in whole


@pytest.mark.parametrize("ending", FORMATS)
def test_a_window_keeps_the_kernels_that_touch_it(tmp_path, ending):
    with cutrace.load(training_steps(tmp_path / "run.bin")) as trace:
        kernels = trace.kernels
        start, end = (int(time) for time in np.quantile(kernels["start"], [0.3, 0.6]))
    cutrace.convert(tmp_path / "run.bin", tmp_path / f"part.{ending}", start=start, end=end)
    if ending == "parquet":
        found = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "part.parquet" / "kernels.parquet")
    else:
        with cutrace.load(tmp_path / f"part.{ending}") as part:
            found = part.arrow("kernels")
    inside = kernels[(kernels["end"] >= start) & (kernels["start"] < end)]
    assert sorted(found["start"].to_pylist()) == sorted(inside["start"].tolist())


@pytest.mark.parametrize("ending", FORMATS)
def test_a_range_that_never_ended_is_in_every_later_window(long, tmp_path, ending):
    cutrace.convert(long, tmp_path / f"part.{ending}", start=ORIGIN + 8_000_000)
    whole = b"\n".join(texts(tmp_path / f"part.{ending}"))
    assert b"open range" in whole
    assert b"SECRET mark" in whole
    assert b"early" not in whole


def test_a_window_needs_room_for_temporary_files(long, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(cutrace.CutraceError, match=r"temporary files in .*missing.* Set TMPDIR"):
        cutrace.convert(long, tmp_path / "part.json", end=ORIGIN + 1000)


def test_a_full_folder_for_temporary_files_is_named(long, tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cutrace.trace.writing._ProcessWriter.rows", full)
    with pytest.raises(cutrace.CutraceError, match=r"temporary files in .*: No space left on device. Set TMPDIR"):
        cutrace.convert(long, tmp_path / "part.json", end=ORIGIN + 1000)


# Traces of several files, and the capture in a trace


def test_a_list_of_files_is_one_trace(tmp_path):
    files = [small_capture(tmp_path / "a.bin", pid=1), small_capture(tmp_path / "b.bin", pid=2)]
    with cutrace.load(files) as trace:
        assert [p.pid for p in trace.processes] == [1, 2]
        assert len(trace.kernels) == 4
        joined = trace.path
        assert joined.stat().st_size == sum(path.stat().st_size for path in files)
    assert not joined.exists()


def test_the_path_of_a_trace_is_the_capture_behind_it(tmp_path):
    path = small_capture(tmp_path / "a.bin")
    with cutrace.load(path) as trace:
        assert trace.path == path
    assert path.exists()


def test_several_captures_open_as_one_trace(tmp_path):
    paths = [small_capture(tmp_path / f"{pid}.bin", pid=pid) for pid in (100, 200)]
    with cutrace.load(paths) as trace:
        assert [process.pid for process in trace.processes] == [100, 200]
        assert len(trace.kernels) == 4
    with cutrace.load(paths[:1]) as trace:
        assert len(trace.kernels) == 2
    with pytest.raises(cutrace.CutraceError, match="no capture"):
        cutrace.load([])


# Outputs


@pytest.mark.parametrize("ending", FORMATS)
def test_progress_ends_at_the_whole(tmp_path, ending):
    told: list[tuple[int, int]] = []
    capture = training_steps(tmp_path / "run.bin")
    cutrace.convert(capture, tmp_path / f"out.{ending}", progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("name", ["kernels.csv", "run.json"])
def test_a_compressed_file_has_the_same_bytes(tmp_path, name):
    capture = training_steps(tmp_path / "run.bin")
    for out in (tmp_path / name, tmp_path / f"{name}.gz"):
        cutrace.convert(capture, out)
    assert gzip.decompress((tmp_path / f"{name}.gz").read_bytes()) == (tmp_path / name).read_bytes()


def test_what_a_link_leads_to_is_replaced(tmp_path):
    capture = small_capture(tmp_path / "a.bin")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "old.json").write_text("{}")
    for link, target in (("old.json", "old.json"), ("new.json", "new.json")):
        (tmp_path / link).symlink_to(tmp_path / "disk" / target)
        cutrace.convert(capture, tmp_path / link)
        assert (tmp_path / link).is_symlink()
        assert b"saxpy" in (tmp_path / "disk" / target).read_bytes()


def test_endings_count_in_upper_case_too(tmp_path):
    capture = small_capture(tmp_path / "a.bin")
    for name in ("A.PFTRACE", "A.Json.GZ", "Kernels.CSV"):
        cutrace.convert(capture, tmp_path / name)
    assert b"saxpy" in gzip.decompress((tmp_path / "A.Json.GZ").read_bytes())
    assert b"saxpy" in (tmp_path / "Kernels.CSV").read_bytes()
    with cutrace.load(tmp_path / "A.PFTRACE") as trace:
        assert len(trace.kernels) == 2


@pytest.fixture
def lacking(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """A capture of a killed process with losses of each kind, and their counts by reason."""
    path = tmp_path / "lacking.bin"
    with Capture(path, pid=100) as capture:
        launch = capture.launch("work")
        capture.api("cudaLaunchKernel", ORIGIN, ORIGIN + 10, thread=100, correlation=1)
        capture.kernel(launch, ORIGIN + 20, ORIGIN + 30, stream=7, correlation=1)
        capture.loss(1, 4200, "kernel")
        capture.flush()
        capture.memcpy(ORIGIN + 40, ORIGIN + 50, 8, stream=7, correlation=2)
    with cutrace.load(path) as trace:
        (damaged,) = trace.block_infos("memcpys")
    data = bytearray(path.read_bytes())
    data[damaged.offset + 70] ^= 1
    ended = data.rindex(b'{"ended"')
    path.write_bytes(data[: ended - 64])
    return path, {"cupti_dropped": 4200, "not_closed": 1, "unreadable": 1}


@pytest.mark.parametrize("ending", ["pftrace", "json", "json.gz", "sqlite", "bin"])
def test_a_file_without_its_capture_has_its_losses(lacking, tmp_path, ending):
    capture, counts = lacking
    target = tmp_path / f"b.{ending}"
    if ending == "bin":
        cutrace.convert([capture], target)
    else:
        cutrace.convert([capture], target, capture=False)
    with cutrace.load(capture) as source, cutrace.load(target) as trace:
        assert source.quality.lacks_records
        assert trace.quality.lacks_records
        found = {loss.reason: loss.count for loss in trace.quality.losses}
        assert found == counts
        assert len(trace.quality.losses) == len(counts)


@pytest.mark.parametrize("ending", ["json", "pftrace", "sqlite"])
def test_a_gate_fails_for_a_file_without_its_capture_as_for_the_capture(lacking, tmp_path, ending):
    capture, _ = lacking
    target = tmp_path / f"b.{ending}"
    cutrace.convert([capture], target, capture=False)
    with cutrace.load(target) as trace:
        problems = " ".join(measure(trace, Window("all", trace.start, trace.end + 1)).problems)
    for part in ("4,200 records that CUPTI dropped", "not closed in order", "damaged block"):
        assert part in problems


def test_the_tables_of_losses_have_what_the_file_lacks(lacking, tmp_path):
    capture, counts = lacking
    cutrace.convert([capture], tmp_path / "losses.csv")
    lines = (tmp_path / "losses.csv").read_text().splitlines()[1:]
    numbers = {name: number for number, (name, _) in LOSS_REASONS.items()}
    expected = sorted((count, numbers[reason]) for reason, count in counts.items())
    cells = [line.split(",") for line in lines]
    assert sorted((int(count), int(reason)) for _, count, reason, *_ in cells) == expected

    cutrace.convert([capture], tmp_path / "a.sqlite")
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database:
        assert sorted(database.execute("SELECT count, reason FROM losses")) == expected

    parquet = pytest.importorskip("pyarrow.parquet")
    cutrace.convert([capture], tmp_path / "a.parquet")
    tables = [parquet.read_table(tmp_path / "a.parquet" / "losses.parquet")]
    with cutrace.load(capture) as trace:
        tables.append(trace.arrow("losses"))
    pytest.importorskip("duckdb")
    tables.append(cutrace.sql(capture, "select * from losses"))
    for table in tables:
        assert sorted((row["count"], row["reason"]) for row in table.to_pylist()) == expected
    details = {row["detail"] for row in table.to_pylist()}
    assert any("process 100" in detail for detail in details)


def packet_ends(data: bytes) -> Iterator[int]:
    """The offsets behind the packets of a trace."""
    at = 0
    while at < len(data):
        size, shift = 0, 0
        at += 1  # the tag of TracePacket
        while True:
            size |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                break
        at += size
        yield at


@pytest.mark.parametrize("name", ["torch_step", "cuda_graph", "processes"])
def test_a_trace_that_is_cut_between_packets_lacks_records(tmp_path, name):
    whole = tmp_path / "whole.pftrace"
    cutrace.convert([DATA / f"{name}.bin"], whole, capture=False)
    data = whole.read_bytes()
    ends = list(packet_ends(data))
    assert len(ends) > 50
    for at in np.linspace(10, len(ends) - 2, 20).astype(int).tolist():
        cut = tmp_path / "cut.pftrace"
        cut.write_bytes(data[: ends[at]])
        try:
            trace = cutrace.load(cut)
        except cutrace.CutraceError:
            continue  # no event is before the cut
        with trace:
            assert trace.quality.lacks_records, at
