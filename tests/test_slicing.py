"""Slices: the rows that conditions keep, compared with loops in Python, and the syntax of conditions."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from captures import ORIGIN, Capture, awkward, join, replays, training_steps
from contents import EVENTS, contents, rows
from cutrace.analysis.marks import begin, end
from cutrace.analysis.names import normalize_kernel
from cutrace.conversion import convert
from cutrace.errors import CutraceError
from cutrace.exporters.base import Request
from cutrace.runbin import TABLES
from cutrace.runbin.blocks import HEADER_SIZE
from cutrace.slicing import Conditions, cut
from cutrace.trace import Trace, load
from pftrace import decode
from range_rule import owners, ranges_of

DATA = Path(__file__).parent / "data"
CAPTURES = sorted(path.name for path in DATA.glob("*.bin"))
WORK = ("kernels", "memcpys", "memsets", "graph_launches")


def sliced(path: Path, tmp_path: Path, **conditions: Any) -> Trace:
    cut(path, tmp_path / "slice.bin", Conditions(**conditions))
    return load(tmp_path / "slice.bin")


def span(table: str, row: dict[str, Any]) -> tuple[int, int]:
    start, end = row[TABLES[table].start_field or ""], row[TABLES[table].end_field or ""]
    return start, (1 << 63 if table == "nvtx_ranges" and not end else end)


def events(trace: Trace, table: str) -> list[dict[str, Any]]:
    return rows(trace, table) + rows(trace, table, unknown=True)


def same(found: Trace, table: str, expected: list[dict[str, Any]]) -> None:
    key = lambda row: sorted((k, str(v)) for k, v in row.items() if k != "process")  # noqa: E731
    assert sorted(map(key, events(found, table))) == sorted(map(key, expected)), table


def outermost(trace: Trace) -> dict[tuple[int, int], dict[str, Any]]:
    """The call of each process and correlation id. If there are several, the first."""
    calls: dict[tuple[int, int], dict[str, Any]] = {}
    for call in sorted(rows(trace, "api_calls"), key=lambda c: c["start"]):
        if call["correlation"]:
            calls.setdefault((call["process"], call["correlation"]), call)
    return calls


# All rows, and no rows


@pytest.mark.parametrize("name", CAPTURES)
def test_without_conditions_everything_is_kept(tmp_path, name):
    found = sliced(DATA / name, tmp_path)
    with load(DATA / name) as trace:
        assert contents(found) == contents(trace)
        assert found.quality == trace.quality


@pytest.mark.parametrize("name", CAPTURES)
def test_a_window_around_everything_keeps_everything(tmp_path, name):
    with load(DATA / name) as trace:
        found = sliced(DATA / name, tmp_path, start="@0", end=f"@{trace.end + 1}")
        kept, whole = contents(found), contents(trace)
    for table in whole:
        if not TABLES[table].start_field and table in EVENTS:
            assert kept[table] <= whole[table]
        else:
            assert kept[table] == whole[table], table


# Graph nodes


def test_replayed_work_is_in_the_ranges_of_its_creation(tmp_path):
    run = replays(tmp_path / "run.bin")
    with sliced(run, tmp_path, nvtx=["layer0"]) as found:
        names = found.strings.take(found.launches["name"][found.kernels["launch"]]).tolist()
        assert sorted(names) == ["_Z1av"] * 3 + ["_Z1bv"] * 3
        assert len(found.memcpys) == 3
        # The calls that launch graphs are kept, and the calls during the capture are not.
        assert len(found.api_calls) == 3
        assert sorted(found.graph_nodes["graph_node"].tolist()) == [1, 2, 6]
        assert "and graph nodes created in it" in found.quality.notes[-1]


@pytest.mark.parametrize(
    "conditions",
    [{"nvtx": "step 1"}, {"nvtx": "step", "index": "3"}, {"kernel": "k"}, {"gpu": "B200"}, {"start": "1s"}],
)
def test_an_error_about_absent_records_names_the_first_loss(tmp_path, conditions):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 10, 20)
        c.loss(6, 3)
        c.loss(1, 7)
    with pytest.raises(CutraceError) as error:
        sliced(tmp_path / "a.bin", tmp_path, **conditions)
    assert str(error.value).endswith(" The trace lacks records: 7 records that CUPTI dropped because it had no buffer")


def test_ranges_of_a_domain_are_named_without_it(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        for node, name in enumerate(("torch:mm", "torch:add"), 1):
            c.graph_node(node, 5, name)
            c.kernel(c.launch("_Z1kv", graph_node=node), 100 * node, 100 * node + 1, correlation=node)
    for pattern in ("mm", "torch:mm", "*mm"):
        with sliced(tmp_path / "run.bin", tmp_path, nvtx=[pattern]) as found:
            assert (found.kernels["start"] - ORIGIN).tolist() == [100]


@pytest.mark.parametrize("more", [{"index": "1"}, {"ranges": "own"}])
def test_an_index_and_a_thread_choose_among_launches(tmp_path, more):
    with Capture(tmp_path / "run.bin") as c:
        c.push_pop("a", 0, 40)
        c.push_pop("a", 50, 90)
        c.graph_node(1, 5, "a")
        kernel = c.launch("_Z1kv", graph_node=1)
        for i, called in enumerate((60, 100), 1):
            c.api("cudaGraphLaunch", called, called + 1, correlation=i)
            c.kernel(kernel, 1_000 * i, 1_000 * i + 1, correlation=i)
    with sliced(tmp_path / "run.bin", tmp_path, nvtx=["a"], **more) as found:
        assert (found.kernels["start"] - ORIGIN).tolist() == [1_000]


def test_creations_stay_for_the_nodes_that_stay(tmp_path):
    run = replays(tmp_path / "run.bin")
    nodes = {}
    for name, conditions in {
        "all": {}, "kernel": {"kernel": ["b"]}, "without": {"without": ["kernels"]}, "time": {"end": "10.1us"},
        "process": {"process": ["100"]},
    }.items():  # fmt: skip
        with sliced(run, tmp_path, **conditions) as found:
            nodes[name] = sorted(found.graph_nodes["graph_node"].tolist())
            assert ("layer1" in "".join(found.strings)) == (3 in nodes[name])
    assert nodes == {"all": [1, 2, 3, 4, 6], "kernel": [2], "without": [6], "time": [1], "process": [1, 2, 3, 4, 6]}


def test_nodes_of_a_process_do_not_keep_those_of_another(tmp_path):
    parts = [replays(tmp_path / f"{pid}.bin", pid=pid, count=pid) for pid in (1, 2)]
    with sliced(join(tmp_path / "run.bin", parts), tmp_path, end="10.95us", kernel=["a"]) as found:
        assert found.graph_nodes[["process", "graph_node"]].tolist() == [(0, 1), (1, 1)]


# Time


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("seed", range(3))
def test_disjoint_windows_part_what_lies_inside_them(tmp_path, name, seed):
    rng = random.Random(seed)
    with load(DATA / name) as trace:
        edges = [trace.start, *sorted(rng.sample(range(trace.start + 1, trace.end), 4)), trace.end + 1]
        timed = [table for table in EVENTS if TABLES[table].start_field is not None]
        # Cut each table separately, or all tables at once.
        groups = [timed]
        if seed == 0:
            groups = [[table] for table in timed]
        for tables in groups:
            whole = {table: events(trace, table) for table in tables}
            inside = dict.fromkeys(tables, 0)
            for first, last in pairwise(edges):
                touching = {table: touched(table, whole[table], first, last) for table in tables}
                conditions = Conditions(start=f"@{first}", end=f"@{last}", tables=tables)
                if not any(touching.values()):
                    with pytest.raises(CutraceError, match="nothing is selected"):
                        cut(DATA / name, tmp_path / "s.bin", conditions)
                    continue
                cut(DATA / name, tmp_path / "s.bin", conditions)
                with load(tmp_path / "s.bin") as found:
                    for table in tables:
                        same(found, table, touching[table])
                        inside[table] += sum(is_inside(table, row, first, last) for row in rows(found, table))
            for table in tables:
                parts = [(row, *edge) for row in whole[table] for edge in pairwise(edges)]
                assert inside[table] == sum(is_inside(table, *part) for part in parts)


def touched(table: str, whole: list[dict[str, Any]], first: int, last: int) -> list[dict[str, Any]]:
    return [row for row in whole if span(table, row)[0] < last and span(table, row)[1] >= first]


def is_inside(table: str, row: dict[str, Any], first: int, last: int) -> bool:
    start, end = span(table, row)
    return start >= first and end < last


@pytest.mark.parametrize(("damaged", "lost"), [(0, 0), (1, 1), (2, 0)])
def test_blocks_outside_a_window_are_not_read(tmp_path, damaged, lost):
    with Capture(tmp_path / "a.bin") as c:
        for at in (1_000, 2_000, 3_000):
            c.api("cudaLaunchKernel", at, at + 100)
            c.flush()
    with load(tmp_path / "a.bin") as trace:
        block = trace.block_infos("api_calls")[damaged]
    data = bytearray((tmp_path / "a.bin").read_bytes())
    data[block.offset + HEADER_SIZE] ^= 1
    (tmp_path / "a.bin").write_bytes(data)
    found = sliced(tmp_path / "a.bin", tmp_path, start=f"@{ORIGIN + 2_000}", end=f"@{ORIGIN + 2_500}")
    assert (len(found.api_calls), len(found.losses)) == (1 - lost, lost)


def test_times_count_from_the_begin_as_those_of_convert_do(tmp_path):
    training_steps(tmp_path / "a.bin")
    with load(tmp_path / "a.bin") as trace:
        first, last = trace.start + 100_000, trace.start + 300_000
        expected = [r for r in rows(trace, "kernels") if r["start"] < last and r["end"] >= first]
    same(sliced(tmp_path / "a.bin", tmp_path, start="100us", end="0.3ms"), "kernels", expected)


def test_times_mean_the_same_to_slice_and_convert(tmp_path):
    training_steps(tmp_path / "a.bin")
    expected = sliced(tmp_path / "a.bin", tmp_path, start="100us", end="0.3ms")
    with load(tmp_path / "a.bin") as trace:
        first = trace.start + 100_000
        last = trace.start + 300_000
    for times in ((first, last), (f"@{first}", f"@{last}"), ("0.1ms", last)):
        window = dict(zip(("start", "end"), times, strict=True))
        assert contents(sliced(tmp_path / "a.bin", tmp_path, **window)) == contents(expected)
        convert(tmp_path / "a.bin", tmp_path / "converted.bin", **window)
        with load(tmp_path / "converted.bin") as converted:
            assert contents(converted) == contents(expected)
            assert converted.notes == ("cut out of a longer recording: from 100.0 us to 300.0 us",)


def test_a_range_that_never_ended_goes_on(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("open", 1000, None)
        c.push_pop("over", 1000, 2000)
        c.mark("late", 9000)
    found = sliced(tmp_path / "a.bin", tmp_path, start="5us")
    assert [r["name"] for r in events(found, "nvtx_ranges")] == ["open"]
    with Capture(tmp_path / "b.bin") as c:
        c.mark("early", 0)
        c.push_pop("open", 1000, None)
    assert not events(sliced(tmp_path / "b.bin", tmp_path, end="1us"), "nvtx_ranges")


def test_an_open_range_that_starts_after_a_range_is_not_in_it(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("around", 1, None)
        c.push_pop("step", 100, 200)
        c.push_pop("later", 50_000_000, None)
    found = sliced(tmp_path / "a.bin", tmp_path, nvtx=["step"])
    assert {r["name"] for r in events(found, "nvtx_ranges")} == {"around", "step"}
    assert found.end == ORIGIN + 200


def test_a_window_inside_an_open_range_can_be_cut_again(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("hangs", 1, None)
        c.mark("late", 9000)
    window = {"start": f"@{ORIGIN + 1000}", "end": f"@{ORIGIN + 2000}"}
    once = sliced(tmp_path / "a.bin", tmp_path, **window)
    cut(tmp_path / "slice.bin", tmp_path / "again.bin", Conditions(**window))
    with load(tmp_path / "again.bin") as again:
        assert [r["name"] for r in events(again, "nvtx_ranges")] == ["hangs"]
        assert contents(again) == contents(once)


@pytest.mark.parametrize(
    "conditions",
    [
        {"gpu": ["7"]},
        {"stream": ["99"]},
        {"end": "@1"},
        {"stream": ["99"], "nvtx": ["step 0"]},
        {"tables": ["jit"]},
        {"gpu": ["7"], "tables": ["nvtx_marks"]},
    ],
)
@pytest.mark.parametrize("name", ["s.bin", "s.json"])
def test_a_selection_without_rows_is_an_error(tmp_path, conditions, name):
    with Capture(tmp_path / "a.bin") as c:
        c.mark(begin("test", "t.py::a"), 100, source=1)
        c.push_pop("step 0", 10_000, 20_000)
        c.kernel(c.launch("k"), 12_000, 13_000)
    with pytest.raises(CutraceError, match=r"The trace spans 19\.9 us"):
        cut(tmp_path / "a.bin", tmp_path / name, Conditions(**conditions))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("time", ["@99999999999999999999999", "999999999h", "@18446744073709551615"])
def test_a_time_that_no_clock_reaches_is_behind_everything(tmp_path, time):
    training_steps(tmp_path / "a.bin", steps=1)
    with load(tmp_path / "a.bin") as trace:
        assert len(sliced(tmp_path / "a.bin", tmp_path, end=time).kernels) == len(trace.kernels)
    with pytest.raises(CutraceError, match="The trace spans"):
        sliced(tmp_path / "a.bin", tmp_path, start=time)


def test_a_range_whose_times_cannot_be_is_no_stretch(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("k"), 1000, 2000, correlation=1)
        c.api("cudaLaunchKernel", 900, 950, correlation=1)
        c.push_pop("r", 500, 5000)
        c.add("nvtx_ranges", start=(1 << 64) - 5, end=(1 << 64) - 1, name="r")
        c.add("nvtx_ranges", start=ORIGIN + 9, end=ORIGIN + 3, name="r")
    assert len(sliced(tmp_path / "a.bin", tmp_path, nvtx=["r"]).kernels) == 1
    assert len(sliced(tmp_path / "a.bin", tmp_path, nvtx=["r"], index="0").kernels) == 1


def test_rows_without_times_are_in_no_window(tmp_path):
    awkward(tmp_path / "a.bin")
    with load(tmp_path / "a.bin") as trace:
        assert len(trace.unknown("kernels"))
    assert not len(sliced(tmp_path / "a.bin", tmp_path, start="0").unknown("kernels"))


# Work by its launch


def launched(
    trace: Trace, table: str, stretches: list[tuple[int, int, int, int, str]], by: str
) -> list[dict[str, Any]]:
    """The work of ranges (process, start, end, thread, domain) of a trace. ``by`` selects the rule for launches in
    ranges."""
    calls = outermost(trace)
    ranges = ranges_of(trace)

    def called(process: int, call: dict[str, Any]) -> bool:
        start = call["start"]
        nests = owners(ranges, process, call["thread"], start, by)[1]
        return any(p == process and a <= start < b and (t, domain) in nests for p, a, b, t, domain in stretches)

    def within(process: int, thread: int | None, start: int, end: int) -> bool:
        return any(p == process and start < b and end >= a and thread in (None, 0, t) for p, a, b, t, _ in stretches)

    kept = []
    for row in events(trace, table):
        call = calls.get((row["process"], row.get("correlation", 0))) if row.get("correlation") else None
        if call:
            here = called(row["process"], call)
        elif TABLES[table].start_field is None:
            here = False
        else:
            start, end = span(table, row)
            thread = None if by == "adopted" else row.get("thread")
            if table == "nvtx_ranges" and row["kind"] == 1:
                thread = 0
            end = start if table in (*WORK, "api_calls") else end
            in_any = table not in WORK  # work without a known call is in no range
            here = in_any and start > 0 and within(row["process"], thread, start, end)
        if here:
            kept.append(row)
    return kept


@pytest.mark.parametrize("by", ["adopted", "own"])
@pytest.mark.parametrize(
    ("capture", "name", "index"),
    [("torch_step", "step ", index) for index in ("all", "0", "2", "-1", "1:3", ":2")]
    + [
        ("ranks", "step ", "all"),
        ("ranks", "ncclAllReduce", "all"),
        ("groups", "ddp 4", "all"),
        ("cpp_streams", "step", "all"),
    ],
)
def test_what_was_launched_in_a_range_belongs_to_it(tmp_path, capture, name, index, by):
    path = DATA / f"{capture}.bin"
    found = sliced(path, tmp_path, nvtx=[f"{name}*"], index=index, ranges=by)
    with load(path) as trace:
        steps = sorted((r for r in rows(trace, "nvtx_ranges") if r["name"].startswith(name)), key=lambda r: r["start"])
        chosen = {"all": steps, "0": steps[:1], "2": steps[2:3], "-1": steps[-1:], "1:3": steps[1:3], ":2": steps[:2]}[
            index
        ]
        stretches = [(r["process"], r["start"], r["end"], r["thread"], r["domain"]) for r in chosen]
        for table in EVENTS:
            same(found, table, launched(trace, table, stretches, by))
        assert 0 < len(found.kernels) < len(trace.kernels) or index == "all"


def test_work_of_the_backward_pass_belongs_to_the_step_unless_its_thread_is_asked_for(tmp_path):
    all_threads = sliced(DATA / "torch_step.bin", tmp_path, nvtx=["step 1"])
    threads = {r["thread"] for r in rows(all_threads, "api_calls")}
    own = sliced(DATA / "torch_step.bin", tmp_path, nvtx=["step 1"], ranges="own")
    assert len(threads) > 1
    assert {r["thread"] for r in rows(own, "api_calls")} == {r["thread"] for r in rows(own, "nvtx_ranges")}
    assert len(own.kernels) < len(all_threads.kernels)


def test_ranges_side_by_side_share_no_work(tmp_path):
    training_steps(tmp_path / "a.bin", steps=6)
    with load(tmp_path / "a.bin") as trace:
        total = len(trace.kernels)
    parts = [sliced(tmp_path / "a.bin", tmp_path, nvtx=[f"step {n}"]) for n in range(6)]
    correlations = [c for part in parts for c in part.kernels["correlation"].tolist()]
    assert len(correlations) == len(set(correlations)) == total


def test_an_index_counts_in_each_process(tmp_path):
    join(tmp_path / "a.bin", [training_steps(tmp_path / f"{pid}.bin", pid=pid, steps=3) for pid in (100, 300)])
    found = sliced(tmp_path / "a.bin", tmp_path, nvtx=["/^step/"], index="1")
    names = [(r["process"], r["name"]) for r in rows(found, "nvtx_ranges") if r["name"].startswith("step")]
    assert sorted(names) == [(0, "step 1"), (1, "step 1")]


def test_of_calls_with_one_id_on_both_sides_of_an_edge_the_outer_one_decides(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("k")
        c.push_pop("first", 100, 205)
        c.push_pop("second", 205, 300)
        for runtime, driver, correlation in ((200, 210, 1), (206, 208, 2)):
            c.api("cuLaunchKernel", driver, driver + 1, domain=1, correlation=correlation)
            c.api("cudaLaunchKernel", runtime, driver + 5, correlation=correlation)
            c.kernel(kernel, 1000 * correlation, 1000 * correlation + 10, correlation=correlation)
    for name, correlation in (("first", 1), ("second", 2)):
        found = sliced(tmp_path / "a.bin", tmp_path, nvtx=[name])
        assert found.kernels["correlation"].tolist() == [correlation]
        assert found.api_calls["correlation"].tolist() == [correlation] * 2


def test_work_without_a_recorded_call_is_in_no_range(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        kernel = c.launch("k")
        c.push_pop("here", 100, 200)
        c.kernel(kernel, 150, 500, correlation=1)
        c.kernel(kernel, 160, 170)
        c.kernel(kernel, 200, 250, correlation=2)
        c.api("cudaLaunchKernel", 50, 60, correlation=3)
        c.kernel(kernel, 180, 190, correlation=3)
        c.api("cudaLaunchKernel", 120, 130, correlation=4)
        c.kernel(kernel, 300, 310, correlation=4)
    found = sliced(tmp_path / "a.bin", tmp_path, nvtx=["here"])
    assert (found.kernels["start"] - ORIGIN).tolist() == [300]


def capture_of_tests(path: Path) -> Path:
    """A capture with two tests and a child process. One of the tests runs twice."""
    with Capture(path.with_suffix(".0"), pid=100, parent_pid=1) as c:
        kernel = c.launch("k")
        for n, (name, start) in enumerate((("t.py::a", 1000), ("t.py::b[1]", 2000), ("t.py::a", 3000))):
            c.mark(begin("test", name), start, source=1)
            c.api("cudaLaunchKernel", start + 100, start + 110, correlation=n + 1, thread=7)
            c.kernel(kernel, start + 5000, start + 5100, correlation=n + 1)
            c.mark(end("test", name), start + 500, source=1)
    with Capture(path.with_suffix(".1"), pid=200, parent_pid=100) as c:
        c.api("cudaLaunchKernel", 2200, 2300, correlation=1)
        c.kernel(c.launch("child"), 2400, 2500, correlation=1)
    return join(path, [path.with_suffix(".0"), path.with_suffix(".1")])


def test_a_test_is_what_it_and_its_children_launched(tmp_path):
    capture_of_tests(tmp_path / "a.bin")
    found = sliced(tmp_path / "a.bin", tmp_path, test=["t.py::b[1]"])
    assert (found.kernels["start"] - ORIGIN).tolist() == [7000, 2400]
    assert [r["name"] for r in rows(found, "nvtx_marks")] == [begin("test", "t.py::b[1]"), end("test", "t.py::b[1]")]
    both = sliced(tmp_path / "a.bin", tmp_path, test=["*::a"])
    assert (both.kernels["start"] - ORIGIN).tolist() == [6000, 8000]


def test_a_slice_of_a_test_can_be_sliced_by_it_again(tmp_path):
    capture_of_tests(tmp_path / "a.bin")
    once = sliced(tmp_path / "a.bin", tmp_path, test=["t.py::a"])
    cut(tmp_path / "slice.bin", tmp_path / "again.bin", Conditions(test=["t.py::a"]))
    with load(tmp_path / "again.bin") as again:
        assert contents(again) == contents(once)


# Tests and ranges together


def capture_of_tests_with_ranges(path: Path) -> Path:
    """Two tests, each with launches every 50 ns in two threads. There are ranges inside, around, across and between the
    tests, some of them overlapping. Another process has ranges at the same times, but no known test."""
    with Capture(path.with_suffix(".0"), pid=100, parent_pid=1) as c:
        kernel = c.launch("k")
        for name, start, stop in (("t.py::a", 1000, 2000), ("t.py::b", 3000, 4000)):
            c.mark(begin("test", name), start, source=1)
            c.mark(end("test", name), stop, source=1)
        for number, time in enumerate(range(500, 5000, 50), 1):
            for thread in (7, 8):
                c.api("cudaLaunchKernel", time + thread, time + 20, correlation=10 * number + thread, thread=thread)
                c.kernel(kernel, 10_000 + time + thread, 10_000 + time + 20, correlation=10 * number + thread)
        for start, stop in (
            (600, 1100),
            (1200, 1300),
            (1250, 1400),
            (1900, 3100),
            (2300, 2400),
            (3500, 3500),
            (3700, 9000),
        ):
            c.push_pop("part", start, stop, thread=7)
    with Capture(path.with_suffix(".1"), pid=200, parent_pid=1) as c:
        c.push_pop("part", 1500, 1800, thread=7)
        c.api("cudaLaunchKernel", 1600, 1610, correlation=1, thread=7)
        c.kernel(c.launch("k"), 1700, 1710, correlation=1)
    return join(path, [path.with_suffix(".0"), path.with_suffix(".1")])


@pytest.mark.parametrize("by", ["adopted", "own"])
@pytest.mark.parametrize("test", [["t.py::a"], ["t.py::b"], ["t.py::*"]])
def test_a_range_of_a_test_is_what_lies_in_both(tmp_path, test, by):
    path = capture_of_tests_with_ranges(tmp_path / "a.bin")
    tests = {"t.py::a": (1000, 2001), "t.py::b": (3000, 4001)}
    windows = [times for name, times in tests.items() if test in ([name], ["t.py::*"])]
    with load(path) as trace:
        ranges = rows(trace, "nvtx_ranges")
        expected = [
            kernel
            for kernel in rows(trace, "kernels")
            for call in [outermost(trace)[kernel["process"], kernel["correlation"]]]
            if any(start <= call["start"] - ORIGIN < stop for start, stop in windows)
            and any(r["process"] == kernel["process"] and r["start"] <= call["start"] < r["end"] for r in ranges)
            and (by == "adopted" or call["thread"] == 7)
        ]
    assert expected
    same(sliced(path, tmp_path, test=test, nvtx=["part"], ranges=by), "kernels", expected)


def test_a_range_counts_inside_the_tests_of_its_own_process(tmp_path):
    paths = []
    for pid, start in ((100, 1000), (200, 3000)):
        with Capture(tmp_path / f"{pid}.bin", pid=pid) as c:
            c.mark(begin("test", "t"), start, source=1)
            c.mark(end("test", "t"), start + 1000, source=1)
            c.push_pop("part", 500, 5000)
            for correlation, time in enumerate((1500, 3500), 1):
                c.api("cudaLaunchKernel", time, time + 10, correlation=correlation)
                c.kernel(c.launch("k"), time + 20, time + 30, correlation=correlation)
        paths.append(c.path)
    found = sliced(join(tmp_path / "both.bin", paths), tmp_path, test=["t"], nvtx=["part"])
    assert [(int(p), int(s) - ORIGIN) for p, s in found.kernels[["process", "start"]]] == [(0, 1520), (1, 3520)]


def test_ranges_outside_of_a_test_leave_nothing_of_it(tmp_path):
    path = capture_of_tests(tmp_path / "a.bin")
    with Capture(tmp_path / "more.bin", pid=100, parent_pid=1) as c:
        c.mark(begin("test", "t"), 1000, source=1)
        c.mark(end("test", "t"), 2000, source=1)
        c.push_pop("part", 2100, 2200)
        c.api("cudaLaunchKernel", 2150, 2160, correlation=1)
        c.kernel(c.launch("k"), 2170, 2180, correlation=1)
    with pytest.raises(CutraceError, match="nothing is selected"):
        cut(tmp_path / "more.bin", path, Conditions(test=["t"], nvtx=["part"]))


# Places of work


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("seed", range(4))
def test_conditions_on_work_keep_its_calls_and_what_is_around_them(tmp_path, name, seed):
    rng = random.Random(seed)
    with load(DATA / name) as trace:
        wanted: dict[str, Any] = {}
        if seed % 2:
            wanted["stream"] = [str(rng.choice(trace.kernels["stream"].tolist() or [7]))]
        if seed != 1:
            kernels = [normalize_kernel(r["launch"][0]) for r in rows(trace, "kernels")]
            wanted["kernel"] = [rng.choice(kernels)] if kernels else []
        if seed == 3:
            wanted["gpu"] = ["0"]
        if not any(wanted.values()):
            return

        def fits(table: str, row: dict[str, Any]) -> bool:
            return (
                ("stream" not in wanted or str(row.get("stream", "")) in wanted["stream"])
                and ("gpu" not in wanted or row.get("device") == 0)
                and (
                    not wanted.get("kernel")
                    or (table == "kernels" and normalize_kernel(row["launch"][0]) in wanted["kernel"])
                )
            )

        chosen = {table: [r for r in events(trace, table) if fits(table, r)] for table in WORK}
        if not any(chosen.values()):
            with pytest.raises(CutraceError, match="nothing is selected"):
                sliced(DATA / name, tmp_path, **wanted)
            return
        found = sliced(DATA / name, tmp_path, **wanted)
        ids = {(r["process"], r["correlation"]) for table in WORK for r in chosen[table] if r["correlation"]}
        calls = [r for r in events(trace, "api_calls") if (r["process"], r["correlation"]) in ids]
        for table in WORK:
            same(found, table, chosen[table])
        same(found, "api_calls", calls)
        around = [
            r for r in events(trace, "nvtx_ranges")
            if any(
                c["process"] == r["process"] and (r["kind"] == 1 or c["thread"] == r["thread"])
                and r["start"] <= c["start"] < span("nvtx_ranges", r)[1]
                for c in calls
            )
        ]  # fmt: skip
        same(found, "nvtx_ranges", around)
        for table in ("cuda_events", "external_correlations"):
            same(found, table, [r for r in events(trace, table) if (r["process"], r["correlation"]) in ids])
        same(found, "nvtx_marks", [r for r in events(trace, "nvtx_marks") if r["source"] == 1])


@pytest.mark.parametrize("condition", [{"kernel": ["k"]}, {"stream": ["7"]}, {"gpu": ["0"]}])
def test_a_range_that_ends_at_a_launch_is_not_around_it(tmp_path, condition):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("before", 10, 50)
        c.push_pop("around", 50, 60)
        c.push_pop("empty", 50, 50)
        c.push_pop("after", 60, 90)
        c.api("cudaLaunchKernel", 50, 55, correlation=1)
        c.kernel(c.launch("k"), 70, 80, correlation=1, stream=7)
    found = sliced(tmp_path / "a.bin", tmp_path, **condition)
    assert [found.strings[name] for name in found.nvtx_ranges["name"].tolist()] == ["around"]


def test_conditions_combine(tmp_path):
    training_steps(tmp_path / "a.bin")
    with load(tmp_path / "a.bin") as trace:
        middle = trace.start + (trace.end - trace.start) // 2
        step = next(r for r in rows(trace, "nvtx_ranges") if r["name"] == "step 10")
        calls = outermost(trace)
        expected = [
            r for r in rows(trace, "kernels")
            if r["stream"] == 13 and normalize_kernel(r["launch"][0]) == "kernel::gemm" and r["end"] >= middle
            and step["start"] <= calls[r["process"], r["correlation"]]["start"] < step["end"]
        ]  # fmt: skip
    found = sliced(
        tmp_path / "a.bin", tmp_path, stream=["13"], kernel=["kernel::gemm"], nvtx=["step 10"], start=f"@{middle}"
    )
    assert expected
    same(found, "kernels", expected)


def test_a_gpu_is_an_ordinal_a_uuid_its_begin_or_a_name(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.device(0, uuid=bytes(range(16)), name="NVIDIA H200")
        c.device(1, uuid=bytes(range(16, 32)), name="NVIDIA L4")
        c.context(1, 0)
        c.context(2, 1)
        kernel = c.launch("k")
        c.kernel(kernel, 100, 200, device=0, context=1)
        c.kernel(kernel, 300, 400, device=1, context=2)
        c.add("synchronizations", start=ORIGIN + 1, end=ORIGIN + 2, type=4, context=2)
        c.add("counters", time=ORIGIN + 5, name="power", device=1)
        c.add("counters", time=ORIGIN + 5, name="load", device=0xFFFF)
    for word in ("1", "GPU-10111213", "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", "NVIDIA L4", "*L4", "/L\\d/"):
        found = sliced(tmp_path / "a.bin", tmp_path, gpu=[word])
        assert found.kernels["device"].tolist() == [1]
        assert [r["name"] for r in rows(found, "counters")] == ["power"]
        assert len(found.synchronizations) == 1
        assert len(found.devices) == 2, "facts stay"


def test_a_stream_is_an_id_or_a_name(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.add("resource_names", object=13, name="copies", kind=1, context=1)
        c.kernel(c.launch("k"), 100, 200, stream=13)
        c.kernel(c.launch("k"), 100, 200, stream=7)
    for word in ("13", "copies", "cop*"):
        assert sliced(tmp_path / "a.bin", tmp_path, stream=[word]).kernels["stream"].tolist() == [13]


def test_a_kernel_is_named_mangled_demangled_or_normalised(tmp_path):
    training_steps(tmp_path / "a.bin", steps=2)
    names = ("_ZN6kernel4gemmILi3EEEvPKfPf", "void kernel::gemm<3>(float const*, float*)", "/gemm<3>/")
    for name in names:
        found = sliced(tmp_path / "a.bin", tmp_path, kernel=[name])
        assert {r["launch"][0] for r in rows(found, "kernels")} == {names[0]}
    every = sliced(tmp_path / "a.bin", tmp_path, kernel=["kernel::gemm"])
    assert len({r["launch"][0] for r in rows(every, "kernels")}) == 8
    assert not len(every.memcpys)


def test_a_process_is_a_pid_an_index_or_a_name_and_the_others_are_gone(tmp_path):
    parts = []
    for pid, name in ((100, "rank0"), (300, "rank1")):
        with Capture(tmp_path / f"{pid}.bin", pid=pid, name=name) as c:
            c.kernel(c.launch(f"of {name}"), 100, 200)
        parts.append(c.path)
    join(tmp_path / "a.bin", parts)
    for word in ("300", "1", "rank1", "*1"):
        found = sliced(tmp_path / "a.bin", tmp_path, process=[word])
        assert [(p.pid, p.name) for p in found.processes] == [(300, "rank1")]
        assert [r["launch"][0] for r in rows(found, "kernels")] == ["of rank1"]
        assert "of rank0" not in list(found.strings)


def test_without_calls_ranges_are_kept_around_the_work_itself(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        kept, left = c.launch("kept"), c.launch("left")
        c.kernel(kept, 100, 200)
        c.kernel(left, 600, 700)
        c.push_pop("around the kept one", 50, 300, thread=7)
        c.push_pop("begins with it", 100, 110, thread=8)
        c.push_pop("ends with its start", 90, 100, thread=9)
        c.push_pop("inside it", 120, 150)
        c.push_pop("around the other one", 500, 800)
    found = sliced(tmp_path / "a.bin", tmp_path, kernel=["kept"])
    names = ["around the kept one", "begins with it"]
    assert sorted(r["name"] for r in rows(found, "nvtx_ranges")) == names


def test_moved_memory_belongs_to_both_of_its_gpus(tmp_path):
    pairs = [(0, 1), (1, 0), (2, 0), (0, 2), (1, 2), (0xFFFFFFFF, 1), (1, 0xFFFFFFFF), (0xFFFFFFFF, 0)]
    with Capture(tmp_path / "a.bin") as c:
        for device in range(3):
            c.device(device, uuid=bytes(range(device, device + 16)))
        for number, (source, destination) in enumerate(pairs):
            c.add("unified_memory", start=ORIGIN + number, end=ORIGIN + 9, source_device=source,
                  destination_device=destination)  # fmt: skip
    for device in range(3):
        found = sliced(tmp_path / "a.bin", tmp_path, gpu=[str(device)])
        moved = [(r["source_device"], r["destination_device"]) for r in rows(found, "unified_memory")]
        assert moved == [pair for pair in pairs if device in pair]


# Tables


def test_tables_can_be_kept_or_left_out(tmp_path):
    """As with `nvprof-tools truncate`: without calls a capture is smaller, but has all its work."""
    training_steps(tmp_path / "a.bin")
    found = sliced(tmp_path / "a.bin", tmp_path, without=["api_calls"])
    with load(tmp_path / "a.bin") as trace:
        kept, whole = contents(found), contents(trace)
        assert not kept.pop("api_calls")
        assert kept == {table: rows for table, rows in whole.items() if table != "api_calls"}
    assert (tmp_path / "slice.bin").stat().st_size < (tmp_path / "a.bin").stat().st_size
    only = contents(sliced(tmp_path / "a.bin", tmp_path, tables=["kernels"], without=["memcpys"]))
    assert {table for table in EVENTS if only[table]} == {"kernels"}


def test_tables_that_are_left_out_still_say_what_belongs_together(tmp_path):
    found = sliced(DATA / "torch_step.bin", tmp_path, nvtx=["step 1"], without=["api_calls", "nvtx_ranges"])
    whole = sliced(DATA / "torch_step.bin", tmp_path, nvtx=["step 1"])
    assert len(found.kernels) == len(whole.kernels)
    assert not len(found.api_calls)


# Messages


def test_a_stream_without_a_name_is_known_by_its_id(tmp_path):
    with pytest.raises(CutraceError, match=r"no stream copies: there is 6, 7, 8, .* and \d+ more"):
        cut(DATA / "torch_step.bin", tmp_path / "a.bin", Conditions(stream=["copies"]))


@pytest.mark.parametrize(
    ("conditions", "sentence"),
    [
        ({"nvtx": ["stp 1"]}, "no NVTX range stp 1: did you mean step 1"),
        ({"nvtx": ["step 1"], "index": "3"}, "index 3 selects none of the NVTX ranges step 1: a process has 1 at most"),
        ({"nvtx": ["step 1"], "index": "x"}, "'x' is not an index"),
        ({"index": "3"}, "name the range"),
        ({"test": ["t.py::x"]}, "no test t.py::x: it has none"),
        ({"process": ["9"]}, "no process 9: there is program, 100"),
        ({"gpu": ["GPU-ff"]}, "no GPU GPU-ff"),
        ({"gpu": ["3"]}, "no GPU 3: there is 0"),
        ({"stream": ["copies"]}, "no stream copies: it has none"),
        ({"stream": ["4294967303"]}, "no stream 4294967303: it has none"),
        ({"stream": ["9" * 23]}, "no stream 999"),
        ({"stream": ["²"]}, "no stream ²"),
        ({"gpu": ["9" * 5_000]}, "no GPU 999"),
        ({"kernel": ["kernel::gem"]}, "no kernel kernel::gem: did you mean kernel::gemm"),
        ({"kernel": ["gemm"]}, "no kernel gemm: did you mean '*gemm*', which matches kernel::gemm?"),
        ({"kernel": ["regex:gemm"]}, "regex:gemm is not a pattern here: write '/gemm/'"),
        ({"kernel": ["*GEMM*"]}, "no kernel *GEMM*: upper and lower case differ, and there is kernel::gemm."),
        ({"kernel": ["/L::G/"]}, "no kernel /L::G/: upper and lower case differ, and there is kernel::gemm."),
        ({"kernel": ["/(/"]}, "not a regular expression"),
        ({"start": "2s", "end": "1s"}, "give an end after the start"),
        ({"start": "@x"}, "'@x' is not a time"),
        ({"start": "soon"}, "'soon' is not a time"),
        ({"tables": ["kernel"]}, "did you mean kernels"),
        ({"without": ["devices"]}, "there is no table 'devices'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said(tmp_path, conditions, sentence):
    training_steps(tmp_path / "a.bin", steps=2)
    with pytest.raises(CutraceError) as raised:
        cut(tmp_path / "a.bin", tmp_path / "out.bin", Conditions(**conditions))
    assert sentence in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_a_slice_says_what_it_is(tmp_path):
    training_steps(tmp_path / "a.bin", steps=3)
    done = cut(tmp_path / "a.bin", tmp_path / "s.bin", Conditions(nvtx=["step 1"], kernel=["add"], end="1s"))
    assert done.sentences == (
        "from its start to 1.000 s",
        "NVTX range step 1 [1 of 1], 72.6 us to 143.6 us",
        "kernels add",
    )
    assert done.rows < done.total
    with load(tmp_path / "s.bin") as found:
        assert found.quality.notes == (f"cut out of a longer recording: {'; '.join(done.sentences)}",)
        assert found.quality.lossless


def test_losses_of_the_whole_stay_losses_of_a_part(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.mark("a", 5)
        c.loss(1, 42, "kernel")
    found = sliced(tmp_path / "a.bin", tmp_path, end="1ns")
    assert [(x.reason, x.count) for x in found.quality.losses] == [("cupti_dropped", 42)]


@pytest.mark.parametrize("name", ["s.bin", "s.json"])
def test_damage_is_told_by_the_cut_that_finds_it(tmp_path, name):
    training_steps(tmp_path / "a.bin", steps=3)
    with load(tmp_path / "a.bin") as trace:
        block = trace.block_infos("kernels")[0]
    data = bytearray((tmp_path / "a.bin").read_bytes())
    data[block.offset + HEADER_SIZE] ^= 1
    (tmp_path / "a.bin").write_bytes(data)
    done = cut(tmp_path / "a.bin", tmp_path / name, Conditions(end="1s"))
    assert [sentence.partition(" at ")[0] for sentence in done.missing] == ["damaged block"]


def test_several_files_are_cut_as_one(tmp_path):
    paths = [training_steps(tmp_path / f"{pid}.bin", pid=pid, steps=2) for pid in (100, 300)]
    cut(paths, tmp_path / "s.bin", Conditions(nvtx=["step 1"]))
    with load(tmp_path / "s.bin") as found:
        assert [p.pid for p in found.processes] == [100, 300]


@pytest.mark.parametrize("name", ["a.pftrace", "a.pftrace.gz"])
def test_a_slice_can_be_written_as_whatever_can_be_converted_to(tmp_path, name):
    training_steps(tmp_path / "in.bin", steps=3)
    cut(tmp_path / "in.bin", tmp_path / name, Conditions(nvtx=["step 1"]))
    found = sliced(tmp_path / "in.bin", tmp_path, nvtx=["step 1"])
    assert len(decode(tmp_path / name).gpu) == sum(found.count(table) for table in WORK)


@pytest.mark.parametrize(("name", "format", "begin"), [("a.bin", "json", b"{"), ("a.json", "capture", b"\x89CUTR")])
def test_the_named_format_wins_over_the_ending(tmp_path, name, format, begin):
    training_steps(tmp_path / "in.bin", steps=1)
    cut(tmp_path / "in.bin", tmp_path / name, Conditions(), request=Request(format=format))
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_the_capture_itself_is_not_overwritten(tmp_path):
    training_steps(tmp_path / "a.bin", steps=1)
    before = (tmp_path / "a.bin").read_bytes()
    with pytest.raises(CutraceError, match="is an input"):
        cut(tmp_path / "a.bin", tmp_path / "a.bin", Conditions())
    assert (tmp_path / "a.bin").read_bytes() == before
