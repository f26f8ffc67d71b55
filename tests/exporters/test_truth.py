"""Every record of a capture is one event of its trace with the same times, names and arguments, and vice versa. Traces
are decoded with the perfetto package and compared with the capture's tables."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import captures
import cutrace
from cutrace._native import demangle
from cutrace.exporters.perfetto.descriptors import pids
from cutrace.trace import Trace
from pftrace import Decoded, Slice, decode

COMMITTED = sorted(captures.DATA.glob("*.bin"))

#: By host table, the fields that become arguments of its events. Arguments with the value 0 are left out.
ARGUMENTS = {
    "synchronizations": ("correlation", "stream", "event", "event_record", "context", "status", "flags"),
    "overheads": ("correlation", "kind"),
    "jit": ("correlation", "cache_size", "device"),
    "unified_memory": ("value", "address", "stream", "kind", "source_device", "destination_device", "flags"),
    "allocations": ("bytes", "address", "correlation", "stream", "pool", "pool_used", "device", "context"),
    "memory_pools": ("address", "size", "used", "release_threshold", "minimum", "correlation", "device"),
    "environment": ("values", "flags", "device"),
}
CATEGORIES = {
    "synchronizations": "cuda_synchronization", "overheads": "overhead", "jit": "jit",
    "unified_memory": "unified_memory", "environment": "environment",
}  # fmt: skip


@pytest.fixture(params=["training_steps", "awkward", *(p.name for p in COMMITTED)])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return captures.named(request.param, tmp_path)


@pytest.fixture(params=[".pftrace", ".pftrace.gz", "zstd", "deflate"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    packed = request.param if not request.param.startswith(".") else None
    return {"destination": tmp_path / f"out{'.pftrace' if packed else request.param}", "compress": packed}


def convert_and_decode(capture: Path, destination: Path, **options: Any) -> Decoded:
    cutrace.convert(capture, destination, **options)
    return decode(destination)


def row_dicts(rows: np.ndarray) -> Iterator[dict[str, Any]]:
    names = rows.dtype.names or ()
    for row in rows.tolist():
        yield dict(zip(names, row, strict=True))


def bag(items: Iterator[Any]) -> Counter[str]:
    return Counter(map(repr, items))


def expect_kernels(trace: Trace, pid: list[int]) -> Iterator[Any]:
    for k in row_dicts(trace.kernels):
        launch = trace.launches[k["launch"]]
        name = trace.strings[int(launch["name"])]
        facts: tuple[Any, ...] = ()
        if k["launch"]:
            facts = (
                name,
                tuple(int(launch[f"grid_{a}"]) for a in "xyz"),
                tuple(int(launch[f"block_{a}"]) for a in "xyz"),
                *(int(launch[f]) for f in ("registers", "static_shared", "dynamic_shared", "graph", "graph_node")),
            )
        shown = demangle(name) if k["launch"] else "(unknown kernel)"
        yield (pid[k["process"]], k["start"], k["end"], shown, k["correlation"], k["device"], k["context"], k["stream"],
               facts)  # fmt: skip


def found_kernels(decoded: Decoded) -> Iterator[Any]:
    for e in decoded.gpu:
        if e.stage != "Kernel":
            continue
        facts: tuple[Any, ...] = ()
        if "registers_per_thread" in e.args:
            numbers = ("registers_per_thread", "shared_mem_static", "shared_mem_dynamic", "graph", "graph_node")
            facts = (e.kernel.name, e.grid, e.block, *(e.args.get(n, 0) for n in numbers))
        yield (
            e.pid,
            e.start,
            e.end,
            e.kernel.demangled_name,
            e.submission,
            e.args["device"],
            e.args["context"],
            e.args["stream_id"],
            facts,
        )


def test_kernels(capture: Path, output: dict[str, Any]) -> None:
    decoded = convert_and_decode(capture, **output)
    with cutrace.load(capture) as trace:
        assert bag(found_kernels(decoded)) == bag(expect_kernels(trace, pids(trace)))
    assert all(e.category == (2 if e.stage == "Kernel" else 0) and e.api == 4 for e in decoded.gpu)


def test_copies_fills_and_graphs(capture: Path, tmp_path: Path) -> None:
    decoded = convert_and_decode(capture, tmp_path / "out.pftrace")
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        tables = {
            "Memcpy": (trace.memcpys, ("bytes", "graph", "graph_node")),
            "Memset": (trace.memsets, ("bytes", "value", "graph", "graph_node")),
            "CUDA graph": (trace.graph_launches, ("graph",)),
        }
        for stage, (rows, fields) in tables.items():
            columns = ("device", "context", "stream", *fields)
            arguments = ("device", "context", "stream_id", *fields)
            expected = (
                (pid[r["process"]], r["start"], r["end"], r["correlation"], *(r[f] for f in columns))
                for r in row_dicts(rows)
            )
            found = (
                (e.pid, e.start, e.end, e.submission, *(e.args.get(f, 0) for f in arguments))
                for e in decoded.gpu
                if e.stage == stage
            )
            assert bag(found) == bag(expected), stage


def test_api_calls(capture: Path, output: dict[str, Any]) -> None:
    decoded = convert_and_decode(capture, **output)
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        domains = {0: "cuda", 1: "cuda_driver", 2: "cuda_runtime"}

        def expected() -> Iterator[Any]:
            for r in row_dicts(trace.api_calls):
                f = trace.functions[r["function"]]
                name = trace.strings[int(f["name"])] if r["function"] else "(unknown call)"
                yield (pid[r["process"]], r["thread"], r["start"], r["end"], name, r["correlation"], int(f["status"]),
                       domains[int(f["domain"])])  # fmt: skip

        def found() -> Iterator[Any]:
            for s in decoded.slices:
                if s.is_call:
                    args = (s.args.get("correlation", 0), s.args.get("return_value", 0))
                    yield (s.pid, s.tid, s.start, s.end, s.name, *args, s.categories[0])

        assert bag(found()) == bag(expected())


def test_calls_point_at_the_work_they_launched(capture: Path, tmp_path: Path) -> None:
    decoded = convert_and_decode(capture, tmp_path / "out.pftrace")
    work = {e.event_id: e for e in decoded.gpu}
    launched: dict[tuple[int, int], set[int]] = {}
    for e in decoded.gpu:
        if e.submission:
            launched.setdefault((e.pid, e.submission), set()).add(e.event_id)
    for s in decoded.slices:
        if s.is_call:
            assert set(s.submits) == launched.get((s.pid, s.args.get("correlation", 0)), set())
            assert all(i in work for i in s.submits)


def payload_of(r: dict[str, Any]) -> Any:
    raw = r["payload"].to_bytes(8, "little")
    formats = {0: None, 1: "<Q", 2: "<q", 3: "<d", 4: "<I", 5: "<i", 6: "<f"}
    form = formats[r["payload_type"]]
    return struct.unpack_from(form, raw)[0] if form else None


def is_nvtx(s: Slice) -> bool:
    return bool(s.categories) and (s.categories[0] == "nvtx" or s.categories[0].startswith("nvtx."))


def test_nvtx(capture: Path, output: dict[str, Any]) -> None:
    decoded = convert_and_decode(capture, **output)
    with cutrace.load(capture) as trace:
        pid = pids(trace)

        def expected() -> Iterator[Any]:
            opened = trace.unknown("nvtx_ranges")
            opened = opened[(opened["start"] > 0) & (opened["end"] == 0)]
            for r in (*row_dicts(trace.nvtx_ranges), *row_dicts(opened), *row_dicts(trace.nvtx_marks)):
                start = r.get("time", r.get("start"))
                end = r.get("end", start) or None
                crossing = (r["thread"], r["end_thread"], r["range_id"]) if r.get("kind") else None
                on_thread = r["thread"] if crossing is None and end is not None else 0
                colour = f"#{r['color']:08X}" if r["color"] else None
                domain = trace.strings[r["domain"]] or None
                name = trace.strings[r["name"]]
                yield (pid[r["process"]], on_thread, start, end, name, domain, r["category"], colour,
                       payload_of(r), crossing)  # fmt: skip

        def found() -> Iterator[Any]:
            for s in decoded.slices:
                if is_nvtx(s):
                    a = s.args
                    crossing = (a.get("thread", 0), a.get("end_thread", 0), a["range_id"]) if "range_id" in a else None
                    yield (s.pid, s.tid, s.start, s.end, s.name, a.get("domain"), a.get("category", 0), a.get("color"),
                           a.get("payload"), crossing)  # fmt: skip

        assert bag(found()) == bag(expected())


def category_of(table: str, s: Slice) -> bool:
    if table == "memory_pools":
        return s.categories == ("memory",) and s.name.startswith("pool ")
    if table == "allocations":
        return s.categories == ("memory",) and not s.name.startswith("pool ")
    return s.categories == (CATEGORIES[table],)


@pytest.mark.parametrize("table", ARGUMENTS)
def test_other_tables(table: str, capture: Path, tmp_path: Path) -> None:
    decoded = convert_and_decode(capture, tmp_path / "out.pftrace")
    with cutrace.load(capture) as trace:
        pid = pids(trace)
        expected = (
            (pid[r["process"]], r.get("start", r.get("time")), r.get("end", r.get("time")),
             *(r[f] for f in ARGUMENTS[table]))
            for r in row_dicts(trace.table(table))
        )  # fmt: skip
        found = (
            (s.pid, s.start, s.end, *(s.args.get(f, 0) for f in ARGUMENTS[table]))
            for s in decoded.slices
            if category_of(table, s)
        )
        assert bag(found) == bag(expected)


def test_nothing_else_is_in_the_trace(capture: Path, tmp_path: Path) -> None:
    decoded = convert_and_decode(capture, tmp_path / "out.pftrace")
    with cutrace.load(capture) as trace:
        opened = trace.unknown("nvtx_ranges")
        host = ("api_calls", "nvtx_ranges", "nvtx_marks", *ARGUMENTS)
        gpu = ("kernels", "memcpys", "memsets", "graph_launches")
        rows = sum(len(trace.table(t)) for t in host) + int(((opened["start"] > 0) & (opened["end"] == 0)).sum())
        marks = int((trace.nvtx_marks["source"] == 1).sum())
        assert sum(s.categories[0] != "cutrace.missing" for s in decoded.slices) == rows
        assert sum(s.categories == ("cutrace",) for s in decoded.slices) == marks
        assert len(decoded.gpu) == sum(len(trace.table(t)) for t in gpu)


def test_slices_nest_on_every_track(capture: Path, tmp_path: Path) -> None:
    decoded = convert_and_decode(capture, tmp_path / "out.pftrace")
    tracks: dict[int, list[Slice]] = {}
    for s in decoded.slices:
        if s.end is not None and not s.instant:
            tracks.setdefault(s.track.uuid, []).append(s)
    for slices in tracks.values():
        stack: list[Slice] = []
        for s in sorted(slices, key=lambda s: (s.start, -s.end)):  # type: ignore[operator]
            while stack and stack[-1].end <= s.start:  # type: ignore[operator]
                stack.pop()
            assert not stack or s.end <= stack[-1].end  # type: ignore[operator]
            stack.append(s)
