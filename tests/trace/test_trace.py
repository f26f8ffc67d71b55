"""A capture as tables: ids and clocks of the whole trace, separate rows without times, and views if possible."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import cutrace.trace
from captures import Capture
from cutrace.errors import CutraceError
from cutrace.runbin import TABLES, Writer
from cutrace.runbin.blocks import HEADER_SIZE
from cutrace.trace.quality import EarlyStart
from cutrace.trace.selection import INTERNED

DATA = Path(__file__).parents[1] / "data"


def rows(table: str, length: int, /, **values) -> np.ndarray:
    out = np.zeros(length, TABLES[table].dtype)
    for name, value in values.items():
        out[name] = value
    return out


def concatenated(path: Path, *parts: Path) -> Path:
    path.write_bytes(b"".join(p.read_bytes() for p in parts))
    return path


def one_process(path: Path, kernel: str, *, pid: int = 1, before: tuple[str, ...] = (), **info) -> Path:
    with Writer(path, pid=pid, **info) as w:
        for text in before:
            w.string(text)
        launch = w.intern_one("launches", name=kernel, grid_x=4, block_x=128)
        call = w.intern_one("functions", name="cudaLaunchKernel", domain=2, callback=211)
        w.rows("kernels", rows("kernels", 2, start=[100, 200], end=[150, 260], correlation=[1, 2], launch=launch))
        w.rows("api_calls", rows("api_calls", 2, start=[50, 180], end=[60, 190], correlation=[1, 2], function=call))
    return path


def names(trace: cutrace.trace.Trace) -> list[str]:
    return trace.strings.take(trace.launches[trace.kernels["launch"]]["name"]).tolist()


def test_a_table_of_one_block_is_a_view_of_the_file(tmp_path):
    trace = cutrace.trace.load(one_process(tmp_path / "a.bin", "k"))
    assert not trace.kernels.flags.owndata
    assert {"process", "start", "end", "correlation", "device", "context", "stream"} <= set(trace.kernels.dtype.names)


def test_processes_keep_their_own_names_though_their_ids_are_equal(tmp_path):
    a = one_process(tmp_path / "a.bin", "first_kernel", pid=10)
    b = one_process(tmp_path / "b.bin", "second_kernel", pid=20)
    trace = cutrace.trace.load(concatenated(tmp_path / "ab.bin", a, b))
    assert [p.pid for p in trace.processes] == [10, 20]
    assert trace.kernels["process"].tolist() == [0, 0, 1, 1]
    assert names(trace) == ["first_kernel"] * 2 + ["second_kernel"] * 2
    assert trace.strings.take(trace.functions[trace.api_calls["function"]]["name"]).tolist() == ["cudaLaunchKernel"] * 4


def test_equal_names_configurations_and_functions_of_processes_are_one(tmp_path):
    a = one_process(tmp_path / "a.bin", "k", pid=1)
    b = one_process(tmp_path / "b.bin", "k", pid=2, before=("shifts", "the ids"))
    trace = cutrace.trace.load(concatenated(tmp_path / "ab.bin", a, b))
    assert len(set(trace.kernels["launch"].tolist())) == 1
    assert len(set(trace.api_calls["function"].tolist())) == 1
    assert names(trace) == ["k"] * 4


def test_rows_without_times_are_set_apart_and_counted(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        w.rows("kernels", rows("kernels", 4, start=[0, 5, 9, 7], end=[3, 0, 8, 10]))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    assert trace.kernels[["start", "end"]].tolist() == [(7, 10)]
    assert trace.unknown("kernels")[["start", "end"]].tolist() == [(0, 3), (5, 0), (9, 8)]
    assert trace.quality.unknown == {"kernels": 3}
    assert trace.count("kernels") == 4
    assert not trace.quality.lossless


def test_ids_that_nothing_explains_become_unknown(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        known = w.intern_one("launches", name="k")
        w.rows("kernels", rows("kernels", 3, start=1, end=2, launch=[known, 99, 0xFFFFFFFF]))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    assert names(trace) == ["k", "", ""]


def test_blocks_stream_what_the_table_holds(tmp_path):
    start = 1 + np.arange(100_000, dtype=np.uint64)
    with Writer(tmp_path / "a.bin") as w:
        w.rows("kernels", rows("kernels", len(start), start=start, end=start))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    parts = list(trace.blocks("kernels"))
    assert len(parts) > 2
    assert [len(p) for p in parts] == [b.rows for b in trace.block_infos("kernels")]
    np.testing.assert_array_equal(np.concatenate(parts), trace.kernels)


def test_many_small_blocks_make_the_same_table(tmp_path):
    parts = [tmp_path / f"{pid}.bin" for pid in (1, 2, 3)]
    for pid, part in enumerate(parts, 1):
        with Writer(part, pid=pid) as w:
            w.string(f"a text of process {pid}")
            for number in range(5):
                launch = w.intern_one("launches", name=f"kernel {pid}", grid_x=number + 1)
                # The first row of the first block has no known times.
                w.rows("kernels", rows("kernels", 2, start=[number, number + 1], end=9, launch=launch))
    trace = cutrace.trace.load(concatenated(tmp_path / "all.bin", *parts))
    blocks = list(trace.blocks("kernels"))
    assert len(blocks) == 15
    assert trace.kernels.tolist() == np.concatenate(blocks).tolist()
    assert trace.kernels["process"].tolist() == [0] * 9 + [1] * 9 + [2] * 9
    assert names(trace) == ["kernel 1"] * 9 + ["kernel 2"] * 9 + ["kernel 3"] * 9
    assert trace.quality.unknown == {"kernels": 3}
    again = cutrace.trace.load(tmp_path / "all.bin")
    assert len(again.kernels) == 27
    assert again.quality.unknown == {"kernels": 3}


def test_blocks_outside_a_window_are_not_read(tmp_path):
    start = 1 + np.arange(100_000, dtype=np.uint64)
    with Writer(tmp_path / "a.bin") as w:
        w.rows("kernels", rows("kernels", len(start), start=start, end=start))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    (part,) = trace.blocks("kernels", start=10, end=20)
    assert part["start"][0] == 1
    assert list(trace.blocks("kernels", start=200_000)) == []


def test_processes_of_one_boot_share_the_clock(tmp_path):
    a = one_process(tmp_path / "a.bin", "k", pid=1, boot_id="x")
    b = one_process(tmp_path / "b.bin", "k", pid=2, boot_id="x")
    trace = cutrace.trace.load(concatenated(tmp_path / "ab.bin", a, b))
    assert trace.kernels["start"].tolist() == [100, 200, 100, 200]
    assert trace.start == 50
    assert trace.end == 260


def test_processes_of_other_machines_are_aligned_through_realtime(tmp_path):
    for name, boot, boottime, realtime in (("a", "x", 1000, 5_000_000), ("b", "y", 400, 5_000_100)):
        with Writer(tmp_path / f"{name}.bin", boot_id=boot) as w:
            w.rows("clocks", rows("clocks", 1, boottime=boottime, realtime=realtime))
            w.rows("kernels", rows("kernels", 1, start=500, end=600))
    trace = cutrace.trace.load(concatenated(tmp_path / "ab.bin", tmp_path / "a.bin", tmp_path / "b.bin"))
    # The clock of b shows 400 when the clock of a shows 1100, so 500 in b is 1200 in a.
    assert trace.kernels["start"].tolist() == [500, 1200]
    assert [p.alignment.offset for p in trace.processes] == [0, 700]
    assert trace.end == 1300


def test_losses_are_named_and_added_up(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        detail = w.string("kernel")
        w.rows("losses", rows("losses", 3, count=[5, 7, 1], reason=[1, 1, 4], detail=[detail, detail, 0]))
    losses = cutrace.trace.load(tmp_path / "a.bin").quality.losses
    assert [(x.reason, x.count, x.detail) for x in losses] == [
        ("cupti_dropped", 12, "kernel"),
        ("nvtx_unmatched_pop", 1, ""),
    ]


def test_work_that_seems_to_start_before_its_launch_is_measured_and_not_moved(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        w.rows("api_calls", rows("api_calls", 2, start=[100, 500], end=[120, 520], correlation=[1, 2]))
        w.rows("kernels", rows("kernels", 3, start=[90, 510, 7], end=1000, correlation=[1, 2, 3]))
        # All work of the block has ended before the call.
        w.rows("memsets", rows("memsets", 1, start=480, end=490, correlation=2))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    early = trace.early_starts
    assert early == {"kernels": EarlyStart(2, 1, 10), "memsets": EarlyStart(1, 1, 20)}
    assert trace.kernels["start"].tolist() == [90, 510, 7]


def test_damage_of_any_block_is_told(tmp_path):
    data = (DATA / "torch_step.bin").read_bytes()
    with cutrace.trace.load(DATA / "torch_step.bin") as trace:
        blocks = trace._reader.blocks
    path = tmp_path / "damaged.bin"
    for block in blocks[1:]:
        damaged = bytearray(data)
        damaged[block.offset + HEADER_SIZE] ^= 1
        path.write_bytes(damaged)
        with cutrace.trace.load(path) as trace:
            places = [damage.offset for damage in trace.quality.damage]
        assert block.offset in places, block


def test_a_damaged_block_of_an_unknown_table_is_told(tmp_path):
    with Writer(tmp_path / "a.bin") as w:
        w._block(4000, b"new", rows=1)
    data = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(data.replace(b"new", b"old"))
    with cutrace.trace.load(tmp_path / "a.bin") as trace:
        assert [damage.rows for damage in trace.quality.damage] == [1]


def test_a_capture_that_was_not_closed_in_order_says_so(tmp_path):
    writer = Writer(tmp_path / "a.bin")
    writer.rows("kernels", rows("kernels", 1, start=1, end=2))
    writer._file.flush()
    killed = tmp_path / "killed.bin"
    killed.write_bytes(writer._part.read_bytes())
    writer.discard()
    trace = cutrace.trace.load(killed)
    assert trace.quality.incomplete == (0,)
    assert len(trace.kernels) == 1


def test_an_unknown_table_is_an_error_that_lists_the_tables(tmp_path):
    trace = cutrace.trace.load(one_process(tmp_path / "a.bin", "k"))
    with pytest.raises(CutraceError, match="kernels, memcpys"):
        trace.table("warps")


def test_every_table_is_an_attribute():
    assert not [name for name in TABLES if not hasattr(cutrace.trace.Trace, name)]


def test_a_capture_without_rows_is_an_empty_trace(tmp_path):
    with Writer(tmp_path / "a.bin"):
        pass
    trace = cutrace.trace.load(tmp_path / "a.bin")
    assert all(len(trace.table(name)) == (name in INTERNED) for name in TABLES)
    assert (trace.start, trace.end) == (0, 0)
    assert trace.quality.lossless


def test_tables_stay_valid_when_the_trace_is_closed(tmp_path):
    with cutrace.trace.load(one_process(tmp_path / "a.bin", "k")) as trace:
        table = trace.kernels
    assert table["end"].tolist() == [150, 260]


def test_a_process_is_named_after_what_runs(tmp_path):
    commands = {
        ("/usr/bin/python3", "-u", "dir/train.py", "--fast"): "python3 train.py",
        ("/usr/bin/python3", "-c", "import train", "dir/data"): "python3",
        ("bin/train", "dir/data"): "train",
    }
    for command, name in commands.items():
        with Writer(tmp_path / "a.bin", command=list(command)):
            pass
        (process,) = cutrace.trace.load(tmp_path / "a.bin").processes
        assert process.name == name


def test_counting_what_is_missing_does_not_keep_the_blocks(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as w:
        for _ in range(20):
            w.rows("kernels", rows("kernels", 30_000, start=5, end=7))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    tracemalloc.start()
    try:
        assert trace.quality.lossless
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_times_beyond_all_clocks_are_set_apart(tmp_path):
    late = 1 << 63
    with Writer(tmp_path / "a.bin", pid=1) as w:
        w.rows("kernels", rows("kernels", 3, start=[5, 6, late], end=[7, late, late + 1]))
    trace = cutrace.trace.load(tmp_path / "a.bin")
    assert trace.kernels["start"].tolist() == [5]
    assert len(trace.unknown("kernels")) == 2
    assert (trace.start, trace.end) == (5, late - 1)


def test_a_trace_that_nobody_closes_closes_its_file(tmp_path):
    path = one_process(tmp_path / "a.bin", "k")
    held = len(list(Path("/proc/self/fd").iterdir()))
    tables = [cutrace.trace.load(path).kernels for _ in range(20)]
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == held
    assert tables[0]["start"].tolist() == [100, 200]


def test_a_closed_trace_keeps_what_was_read_and_says_that_it_is_closed(tmp_path):
    with cutrace.trace.load(one_process(tmp_path / "a.bin", "k")) as trace:
        kernels = trace.kernels
    assert trace.kernels is kernels
    with pytest.raises(CutraceError, match="is closed"):
        _ = trace.api_calls


def test_early_starts_do_not_depend_on_the_order_of_files(tmp_path):
    for name, pid, at in (("a", 1, 1_000), ("b", 2, 900_000)):
        with Capture(tmp_path / f"{name}.bin", pid=pid) as c:
            c.kernel(c.launch("k"), at, at + 10, correlation=7)
            c.api("cudaLaunchKernel", at + 3, at + 5, correlation=7)
    for order in ("ab", "ba"):
        with cutrace.load([tmp_path / f"{name}.bin" for name in order]) as trace:
            early = trace.early_starts["kernels"]
            assert (early.checked, early.count, early.largest_ns) == (2, 2, 3)
