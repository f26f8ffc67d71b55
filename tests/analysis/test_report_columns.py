"""Every column of the reports of `cutrace stats`, compared with loops over the rows of captures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import cutrace
from captures import DATA, ORIGIN, Capture, named, training_steps
from contents import rows
from cutrace.analysis.reports import tables
from cutrace.trace import Trace
from support.plain_stats import GPU_TABLES, Work, gpu, idle, queue, streams, union, work

FULL_QUEUE = 1024
SHORT = 10_000


@pytest.fixture(params=["training_steps", "torch_step", "small"])
def trace(request, tmp_path) -> Iterable[Trace]:
    path = DATA / f"{request.param}.bin"
    if request.param == "training_steps":
        path = training_steps(tmp_path / "a.bin", steps=5)
    elif request.param == "small":
        path = small(tmp_path / "a.bin")
    with cutrace.load(path) as opened:
        yield opened


def small(path: Path) -> Path:
    """A capture with a few rows of each kind. All numbers differ."""
    with Capture(path, command=["train"]) as c:
        c.device()
        c.device(1, uuid=bytes(range(3, 19)), name="NVIDIA L4")
        c.context()
        c.context(2, 1)
        one = c.launch("_Z3onePf", grid=(2, 3, 4), block=(5, 6, 7), registers=40, static_shared=100, dynamic_shared=28,
                       cluster_x=2, cluster_y=1, cluster_z=1)  # fmt: skip
        two = c.launch("_Z3twoPf", grid=(8, 1, 1), block=(64, 1, 1), registers=16)
        c.api("cudaLaunchKernel", 100, 190, correlation=1)
        c.api("cudaLaunchKernel", 200, 310, correlation=2, thread=101)
        c.api("cudaLaunchKernel", 320, 331, correlation=3, status=3)
        c.api("cudaMemcpyAsync", 400, 470, correlation=4)
        c.api("cudaMemsetAsync", 480, 483, correlation=5)
        c.kernel(one, 1_000, 2_500, correlation=1)
        c.kernel(two, 1_700, 4_100, correlation=2, device=1, context=2, stream=9)
        c.kernel(one, 2_600, 9_900, correlation=3)
        c.memcpy(9_950, 10_400, 3_000, correlation=4, stream=8)
        c.memset(12_000, 12_700, 512, correlation=5, stream=8)
        c.add("synchronizations", start=ORIGIN + 490, end=ORIGIN + 700, type=4, context=1)
        c.add("synchronizations", start=ORIGIN + 710, end=ORIGIN + 730, type=3, context=1)
        c.add("overheads", start=ORIGIN + 20, end=ORIGIN + 95, kind=1 << 16, thread=100)
        c.push_pop("outer", 90, 500)
        c.push_pop("inner", 95, 200)
    return path


def report(trace: Trace, name: str) -> list[dict]:
    (found,) = tables(trace, [name])
    return [dict(zip((column.name for column in found.columns), row, strict=True)) for row in found.rows]


def spread(values: list[int], whole: int) -> dict:
    """The columns of a spread."""
    return {
        "share": pytest.approx(sum(values) / whole), "total": sum(values), "count": len(values),
        "mean": pytest.approx(sum(values) / len(values)),
        "median": pytest.approx(statistics.median(values), rel=0.001), "min": min(values), "max": max(values),
        "stddev": pytest.approx(statistics.stdev(values) if len(values) > 1 else 0.0, rel=1e-6, abs=1e-6),
    }  # fmt: skip


def grouped(pairs: Iterable[tuple[tuple, int]]) -> dict[tuple, list[int]]:
    found: dict[tuple, list[int]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def check_spreads(trace: Trace, name: str, keys: tuple[str, ...], pairs: Iterable[tuple[tuple, int]]) -> None:
    """Compare the spreads of a report. The columns ``keys`` identify its rows."""
    groups = grouped(pairs)
    whole = sum(map(sum, groups.values()))
    found = report(trace, name)
    expected = {key: spread(values, whole) for key, values in groups.items()}
    assert {tuple(row[key] for key in keys): {c: row[c] for c in spread([1], 1)} for row in found} == expected
    order = [(-row["total"], -row["count"]) for row in found]
    assert order == sorted(order)


def size(row, what: str) -> str:
    return "x".join(str(row[f"{what}_{axis}"]) for axis in "xyz")


def test_gpus(trace):
    mine = work(trace)
    expected = []
    for process, device in sorted({(w.process, w.device) for w in mine}):
        here = [w for w in mine if (w.process, w.device) == (process, device)]
        parts = gpu(trace, process, device)
        span = max(w.end for w in here) - min(w.start for w in here)
        count = {table: sum(w.table == table for w in here) for table in ("kernels", "memcpys", "memsets")}
        kernel_time = sum(w.duration for w in here if w.table == "kernels")
        expected.append({
            "kernels": count["kernels"], "kernel time": kernel_time, "compute": parts["compute"],
            "busy": parts["busy"], "busy share": pytest.approx(parts["busy"] / span), "copies": count["memcpys"],
            "fills": count["memsets"], "idle": span - parts["busy"], "span": span,
        })  # fmt: skip
    found = report(trace, "gpu_sum")
    assert [{key: row[key] for key in expected[0]} for row in found] == expected


def test_streams(trace):
    expected = {}
    several = len({context for _, _, context, _ in streams(trace)}) > 1
    for key, here in streams(trace).items():
        span = max(w.end for w in here) - min(w.start for w in here)
        busy = union((w.start, w.end) for w in here)
        count = {table: sum(w.table == table for w in here) for table in ("kernels", "memcpys", "memsets")}
        why = idle(trace, key)
        waited = sum(why[reason] for reason in ("host", "kernel", "dependency", "other"))
        expected[f"{key[2]}/{key[3]}" if several else str(key[3])] = {
            "kernels": count["kernels"], "copies": count["memcpys"], "fills": count["memsets"], "graphs": 0,
            "busy": busy, "busy share": pytest.approx(busy / span), "span": span, "gaps": why["gaps"],
            "idle": waited, "host": why["host"], "kernel": why["kernel"], "dependency": why["dependency"],
            "other": why["other"], "host share": pytest.approx(why["host"] / waited if waited else 0.0),
        }  # fmt: skip
    found = {}
    for name in ("stream_sum", "idle_sum"):
        for row in report(trace, name):
            found.setdefault(row["stream"].partition(" ")[0], {}).update(row)
    columns = next(iter(expected.values()))
    assert {stream: {column: row[column] for column in columns} for stream, row in found.items()} == expected


def test_communication(trace):
    expected = []
    for process, device in sorted({(w.process, w.device) for w in work(trace)}):
        parts = gpu(trace, process, device)
        kinds = {"kernels": "communication", "copies": "copies"}
        if parts["communication"] and parts["copies"]:
            kinds["both"] = "both"
        for shown, part in kinds.items():
            time, hidden = parts[part], parts[f"{part} hidden"]
            if time:
                share = pytest.approx(hidden / time)
                expected.append({"communication": shown, "time": time, "hidden": hidden, "exposed": time - hidden,
                                 "hidden share": share})  # fmt: skip
    assert [{key: row[key] for key in expected[0]} for row in report(trace, "overlap_sum")] == expected


def test_launches(trace):
    pairs = [w for w in work(trace) if w.table == "kernels" and w.call]
    (row,) = report(trace, "launch_sum")
    latest = {"call": [], "latency": [], "queue": []}
    first = {}
    for w in pairs:
        first.setdefault((w.process, w.correlation), w)
    for w in first.values():
        latest["call"].append(w.call.end - w.call.start)
        latest["latency"].append(w.start - w.call.start)
        latest["queue"].append(max(w.start - w.call.end, 0))
    assert row["launches"] == len(first)
    assert row["kernels"] == len(pairs)
    for name, values in latest.items():
        assert row[name] == pytest.approx(statistics.median(values), rel=0.001), name
        assert row[f"max {name}"] == max(values)


def test_kernels(trace):
    kernels = [w for w in work(trace) if w.table == "kernels"]
    check_spreads(trace, "cuda_gpu_kern_sum", ("name",), [((w.name,), w.duration) for w in kernels])
    short = grouped(((w.name,), w.duration) for w in kernels)
    expected = []
    for (name,), times in short.items():
        below = sum(time < 10_000 for time in times)
        if below:
            expected.append({
                "short": below, "count": len(times), "short share": pytest.approx(below / len(times)),
                "total": sum(times), "mean": pytest.approx(sum(times) / len(times)),
                "median": pytest.approx(statistics.median(times), rel=0.001), "name": name,
            })  # fmt: skip
    assert report(trace, "short_kern_sum") == sorted(expected, key=lambda row: (-row["short"], row["name"]))


def test_launch_configurations(trace):
    pairs = []
    for row in trace.kernels:
        launch = trace.launches[row["launch"]]
        raw = trace.strings[int(launch["name"])]
        cluster = size(launch, "cluster") if any(launch[f"cluster_{axis}"] for axis in "xyz") else ""
        shared = int(launch["static_shared"]) + int(launch["dynamic_shared"])
        shape = size(launch, "grid"), size(launch, "block"), cluster, int(launch["registers"]), shared
        name = cutrace.analysis.names.normalize_kernel(raw)
        pairs.append(((*shape, name), int(row["end"]) - int(row["start"])))
    keys = ("grid", "block", "cluster", "registers", "shared", "name")
    check_spreads(trace, "cuda_gpu_kern_gb_sum", keys, pairs)


def test_calls(trace):
    names, status = trace.functions["name"], trace.functions["status"]
    pairs, failed = [], {}
    for row in trace.api_calls:
        name = cutrace.analysis.calls.plain_name(trace.strings[int(names[row["function"]])])
        pairs.append(((name,), int(row["end"]) - int(row["start"])))
        failed[name] = failed.get(name, 0) + bool(status[row["function"]])
    check_spreads(trace, "cuda_api_sum", ("name",), pairs)
    assert {row["name"]: row["failed"] for row in report(trace, "cuda_api_sum")} == failed


def test_executions(trace):
    groups: dict[tuple, dict[str, list[int]]] = {}
    for w in work(trace):
        if w.table == "kernels" and w.call:
            times = groups.setdefault((w.call.function, w.name), {"total": [], "call": [], "queue": [], "kernel": []})
            times["total"].append(w.end - w.call.start)
            times["call"].append(w.call.end - w.call.start)
            times["queue"].append(max(w.start - w.call.end, 0))
            times["kernel"].append(w.duration)
    found = report(trace, "cuda_kern_exec_sum")
    assert {(row["api"], row["kernel"]): row["count"] for row in found} == {
        key: len(times["total"]) for key, times in groups.items()
    }
    for row in found:
        for kind, times in groups[row["api"], row["kernel"]].items():
            expected = spread(times, 1)
            for what in ("mean", "median", "min", "max", "stddev"):
                assert row[f"{kind} {what}"] == expected[what], (kind, what)
    totals = [row["total mean"] * row["count"] for row in found]
    assert totals == sorted(totals, reverse=True)


def test_copies_and_fills(trace):
    found = {row["name"]: row for row in report(trace, "cuda_gpu_mem_time_sum")}
    sizes = {row["name"]: row for row in report(trace, "cuda_gpu_mem_size_sum")}
    moved = [r for table in ("memcpys", "memsets") for r in trace.table(table)]
    assert found.keys() == sizes.keys()
    assert sum(row["total"] for row in found.values()) == sum(int(r["end"]) - int(r["start"]) for r in moved)
    assert sum(row["total"] for row in sizes.values()) == sum(int(r["bytes"]) for r in moved)
    for name, row in found.items():
        assert row["bandwidth"] == pytest.approx(sizes[name]["total"] / row["total"] * 1e9)
        assert row["count"] == sizes[name]["count"]
    fills = [int(r["bytes"]) for r in trace.memsets]
    if fills:
        whole = sum(int(r["bytes"]) for r in moved)
        expected = spread(fills, whole)
        assert {key: sizes["[CUDA memset]"][key] for key in expected} == expected


def test_copies_by_size(trace):
    groups = {}
    for row in rows(trace, "memcpys"):
        power = 1 << (row["bytes"].bit_length() - 1) if row["bytes"] else 0
        key = row["source_memory"], row["destination_memory"], power
        groups.setdefault(key, []).append((row["bytes"], row["end"] - row["start"]))
    found = report(trace, "copy_size_sum")
    columns = ("at least", "count", "bytes", "time", "mean time", "bandwidth")
    expected = []
    for (_, _, power), copies in groups.items():
        moved, time = sum(size for size, _ in copies), sum(time for _, time in copies)
        expected.append((power, len(copies), moved, time, time / len(copies), moved * 1e9 / time))
    cells = sorted(tuple(row[column] for column in columns) for row in found)
    assert cells == [pytest.approx(row) for row in sorted(expected)]
    order = [(row["direction"], row["from"], row["to"], row["at least"]) for row in found]
    assert order == sorted(order)


def test_all_work(trace):
    found = report(trace, "cuda_gpu_sum")
    categories: dict[str, int] = {}
    for row in found:
        categories[row["category"]] = categories.get(row["category"], 0) + row["count"]
    kernels = len(trace.kernels)
    memory = len(trace.memcpys) + len(trace.memsets)
    assert categories == {"kernel": kernels, "memory": memory}
    assert sum(row["share"] for row in found) == pytest.approx(1)
    assert sum(row["total"] for row in found) == sum(w.duration for w in work(trace))


def test_waits_and_overheads(trace):
    for name, table in (("sync_sum", "synchronizations"), ("overhead_sum", "overheads")):
        found = report(trace, name)
        times = [int(r["end"]) - int(r["start"]) for r in trace.table(table)]
        assert sum(row["count"] for row in found) == len(times)
        assert sum(row["total"] for row in found) == sum(times)
        if times:
            assert min(row["min"] for row in found) == min(times)
            assert max(row["max"] for row in found) == max(times)
            assert all(row["mean"] == row["total"] / row["count"] for row in found)


def test_ranges(trace):
    pairs = []
    for row in rows(trace, "nvtx_ranges"):
        style = "start/end" if row["kind"] == 1 else "push/pop"
        pairs.append(((f"{row['domain']}:{row['name']}", style), row["end"] - row["start"]))
    found = report(trace, "nvtx_sum")
    assert {row["range"] for row in found} == {name for (name, _), _ in pairs}
    assert sum(row["total"] for row in found) == sum(time for _, time in pairs)
    for row in found:
        mine = [time for (name, _), time in pairs if name == row["range"]]
        expected = spread(mine, sum(time for _, time in pairs))
        assert {key: row[key] for key in expected} == expected


def test_listings(trace):
    mine = [w for w in work(trace) if w.table == "kernels" and w.call]
    found = report(trace, "cuda_kern_exec_trace")
    assert [
        (r["call start"], r["call"], r["start"], r["queue"], r["kernel"], r["total"], r["thread"], r["api"], r["name"])
        for r in found
    ] == [
        (
            w.call.start, w.call.end - w.call.start, w.start, max(w.start - w.call.end, 0), w.duration,
            max(w.end - w.call.start, 0), w.call.thread, w.call.function, w.name,
        )
        for w in mine
    ]  # fmt: skip
    listed = report(trace, "cuda_gpu_trace")
    assert [(r["start"], r["duration"], r["correlation"]) for r in listed] == [
        (w.start, w.duration, w.correlation) for w in work(trace)
    ]
    shapes = {}
    for row in trace.kernels:
        launch = trace.launches[row["launch"]]
        shared = int(launch["static_shared"]) + int(launch["dynamic_shared"])
        shapes[int(row["start"]), int(row["stream"])] = (
            size(launch, "grid"), size(launch, "block"), int(launch["registers"]), shared,
        )  # fmt: skip
    for r, w in zip(listed, work(trace), strict=True):
        expected = shapes[w.start, w.stream] if w.table == "kernels" else ("", "", None, None)
        assert (r["grid"], r["block"], r["registers"], r["shared"]) == expected
    calls = [(r["start"], r["duration"], r["correlation"], r["thread"]) for r in report(trace, "cuda_api_trace")]
    assert sorted(calls) == sorted(
        (int(r["start"]), int(r["end"]) - int(r["start"]), int(r["correlation"]), int(r["thread"]))
        for r in trace.api_calls
    )


def test_memory_and_counters(tmp_path):
    with Capture(tmp_path / "a.bin", command=["train"]) as c:
        c.device()
        for time, address, count, operation in ((10, 1, 700, 1), (20, 2, 50, 1), (30, 1, 700, 2), (40, 3, 90, 1)):
            c.add("allocations", time=ORIGIN + time, address=address, bytes=count, operation=operation, memory=3)
        c.kernel(c.launch("k"), 100, 200)
        for time, value in ((10, 3.0), (20, 8.0), (30, 4.0)):
            c.add("counters", time=ORIGIN + time, name="power", device=0, value=value)
            c.add("counters", time=ORIGIN + time, name="load", device=0xFFFF, value=2 * value)
    with cutrace.load(tmp_path / "a.bin") as trace:
        (memory,) = report(trace, "memory_sum")
        counters = report(trace, "counter_sum")
    del memory["memory"]
    assert memory == {
        "process": "train (100)", "GPU": "0 NVIDIA H200", "peak": 750, "net": 140, "allocations": 3, "allocated": 840,
        "frees": 1, "freed": 700,
    }  # fmt: skip
    assert [(r["counter"], r["GPU"], r["samples"], r["min"], r["mean"], r["max"]) for r in counters] == [
        ("load", "", 3, 6.0, 10.0, 16.0), ("power", "0 NVIDIA H200", 3, 3.0, 5.0, 8.0),
    ]  # fmt: skip


def test_unified_memory(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        for kind, value, start, stop in (
            (1, 4096, 0, 10),
            (1, 100, 20, 50),
            (2, 7, 60, 61),
            (4, 3, 70, 90),
            (4, 5, 95, 96),
        ):
            c.add("unified_memory", start=ORIGIN + start, end=ORIGIN + stop, value=value, kind=kind)
    with cutrace.load(tmp_path / "a.bin") as trace:
        found = report(trace, "um_sum")
    assert [(r["count"], r["bytes"], r["value"], r["time"]) for r in found] == [
        (2, 4196, None, 40), (2, None, 8, 21), (1, 7, None, 1),
    ]  # fmt: skip


# All captures, also with whole graphs, queues and failed calls


def every_kind(path):
    """A capture in which all counts and all times differ."""
    with Capture(path, command=["train"]) as c:
        c.device()
        axpy = c.launch("axpy", grid=(8, 2, 1), block=(64, 1, 1), registers=40, static_shared=512, dynamic_shared=1024)
        reduce = c.launch("ncclDevKernel_AllReduce")
        for number, (start, end) in enumerate(((1_000, 3_000), (5_000, 5_700), (30_000, 45_000)), 1):
            c.api("cudaLaunchKernel", start - 900, start - 100 * number, correlation=number, status=number == 2)
            c.kernel(axpy, start, end, correlation=number)
        c.api("cudaLaunchKernel", 100, 2_500, correlation=4)
        c.kernel(reduce, 2_000, 3_500, correlation=4, stream=8)
        c.kernel(reduce, 50_000, 50_001, correlation=99, stream=8)
        for number, (start, end) in enumerate(((6_000, 9_000), (40_000, 47_000)), 11):
            c.api("cudaGraphLaunch", start - 50, start - 20, correlation=number)
            c.work("graph_launches", start, end, graph=7, correlation=number)
        for size, start in ((1 << 20, 10_000), (1 << 12, 13_000), ((1 << 12) + 8, 31_000)):
            c.memcpy(start, start + size // 1024 + 100, size, stream=9)
        for start in range(60_000, 64_000, 1_000):
            c.memset(start, start + 30, 64, stream=9)
    return path


@pytest.fixture(params=[*sorted(path.name for path in DATA.glob("*.bin")), "awkward", "every_kind"])
def capture(request, tmp_path) -> Iterable[Trace]:
    if request.param == "every_kind":
        path = every_kind(tmp_path / "a.bin")
    else:
        path = named(request.param, tmp_path)
    with cutrace.load(path) as opened:
        yield opened


def shown(trace: Trace, name: str, *columns: str) -> list[tuple]:
    """The given columns of the rows of a report, sorted."""
    cells = [tuple(row[column] for column in columns) for row in report(trace, name)]
    return sorted(cells, key=repr)


def in_order(rows: Iterable[tuple]) -> list[tuple]:
    return sorted(rows, key=repr)


def part(some: float, whole: float) -> float:
    return some / whole if whole else 0.0


def span(mine: list[Work]) -> int:
    return max(w.end for w in mine) - min(w.start for w in mine)


def busy(mine: list[Work]) -> int:
    return union((w.start, w.end) for w in mine)


def test_gpus_with_graphs(capture):
    want = []
    for (process, device), mine in grouped(((w.process, w.device), w) for w in work(capture)).items():
        of = Counter(w.table for w in mine)
        kernel_time = sum(w.duration for w in mine if w.table in ("kernels", "graph_launches"))
        compute = gpu(capture, process, device)["compute"]
        used, whole = busy(mine), span(mine)
        kernels = of["kernels"] + of["graph_launches"]
        counts = (kernels, of["memcpys"], of["memsets"])
        want.append((*counts, kernel_time, compute, used, part(used, whole), whole - used, whole))
    columns = ("kernels", "copies", "fills", "kernel time", "compute", "busy", "busy share", "idle", "span")
    assert shown(capture, "gpu_sum", *columns) == in_order(want)


def test_streams_with_graphs_and_queues(capture):
    sums, queues = [], []
    for key, mine in streams(capture).items():
        of = Counter(w.table for w in mine)
        counts = (of["kernels"], of["memcpys"], of["memsets"], of["graph_launches"])
        sums.append((*counts, busy(mine), part(busy(mine), span(mine)), span(mine)))
        lengths, _, full = queue(capture, key, FULL_QUEUE)
        if lengths:
            figures = (len(lengths), sum(lengths) / len(lengths), min(lengths), max(lengths))
            queues.append((*figures, full, part(full, capture.end - capture.start)))
    columns = ("kernels", "copies", "fills", "graphs", "busy", "busy share", "span")
    assert shown(capture, "stream_sum", *columns) == in_order(sums)
    columns = ("launches", "mean at launch", "min", "max", "full", "full share")
    assert shown(capture, "queue_sum", *columns) == in_order(queues)


def test_launches_that_are_short_bound_or_early(capture):
    kernels = [w for w in work(capture) if w.table == "kernels"]
    want = []
    for process, launched in grouped((w.process, w) for w in kernels if w.call).items():
        short = sum(w.duration < SHORT for w in launched)
        bound = sum(w.duration < w.call.end - w.call.start for w in launched)
        early = sum(w.start < w.call.start for w in launched)
        everything = sum(w.process == process for w in kernels)
        most = (
            max(w.call.end - w.call.start for w in launched),
            max(max(w.start - w.call.start, 0) for w in launched),
            max(max(w.start - w.call.end, 0) for w in launched),
        )
        shares = (short / len(launched), bound / len(launched))
        want.append((len(launched), *most, *shares, everything, early))
    columns = ("launches", "max call", "max latency", "max queue", "short", "bound", "kernels", "early")
    assert shown(capture, "launch_sum", *columns) == in_order(want)


def test_graphs_that_were_traced_as_a_whole(capture):
    times = grouped((f"graph {row['graph']}", int(row["end"]) - int(row["start"])) for row in capture.graph_launches)
    want = [(name, len(own), sum(own), min(own), max(own)) for name, own in times.items()]
    columns = ("count", "total", "min", "max")
    assert shown(capture, "graph_sum", "graph", *columns) == in_order(want)
    among_all = [row for row in shown(capture, "cuda_gpu_sum", "category", "name", *columns) if row[0] == "graph"]
    assert [row[1:] for row in among_all] == in_order(want)


def test_the_listing_of_gpu_work_has_bytes(capture):
    want = []
    for table in GPU_TABLES:
        for row in capture.table(table):
            shape = (None, None)
            if table == "kernels":
                launch = capture.launches[row["launch"]]
                shape = (int(launch["registers"]), int(launch["static_shared"]) + int(launch["dynamic_shared"]))
            moved = int(row["bytes"]) if table in ("memcpys", "memsets") else None
            time = int(row["end"]) - int(row["start"])
            want.append((int(row["start"]), time, int(row["correlation"]), *shape, moved))
    columns = ("start", "duration", "correlation", "registers", "shared", "bytes")
    assert shown(capture, "cuda_gpu_trace", *columns) == in_order(want)


def test_the_listing_of_calls_has_their_status(capture):
    want = []
    for row in capture.api_calls:
        status = int(capture.functions["status"][row["function"]])
        time = int(row["end"]) - int(row["start"])
        want.append((int(row["start"]), time, int(row["correlation"]), status, int(row["thread"])))
    columns = ("start", "duration", "correlation", "status", "thread")
    assert shown(capture, "cuda_api_trace", *columns) == in_order(want)
