"""Captures made by hand, for tests and benchmarks.

A :class:`Capture` writes one process of a run.bin, record by record. Its fields have the names of the tables::

    with Capture(path, pid=100) as c:
        k = c.launch("_Z4axpyPf", grid=(80, 1, 1), block=(256, 1, 1))
        c.api("cudaLaunchKernel", 1000, 1500, thread=100, correlation=7)
        c.kernel(k, 1600, 2600, stream=7, correlation=7)

:func:`training_steps` and :func:`awkward` write the two whole captures that tests need most: an ordinary one, and one
with all legal but unusual contents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from cutrace.runbin import TABLES, Writer

DATA = Path(__file__).parent / "data"
#: The start of the captures of this module (ns of BOOTTIME).
ORIGIN = 1_000_000_000_000

H200 = {
    "name": "NVIDIA H200", "pci": "0000:19:00.0", "compute_major": 9, "compute_minor": 0, "multiprocessors": 132,
    "memory": 150_121_545_728, "memory_bandwidth": 4_916_432_000, "core_clock": 1_980_000, "memory_clock": 3_201_000,
    "l2_cache": 62_914_560, "warp_size": 32, "max_threads_per_block": 1024, "max_threads_per_multiprocessor": 2048,
    "max_warps_per_multiprocessor": 64, "max_blocks_per_multiprocessor": 32, "registers_per_multiprocessor": 65536,
    "registers_per_block": 65536, "shared_per_multiprocessor": 233_472, "shared_per_block": 49_152,
    "shared_per_block_optin": 232_448, "shared_reserved_per_block": 1024, "copy_engines": 3,
}  # fmt: skip


class Capture:
    """One process of a capture. Rows are collected in memory until the end of the ``with`` block, or :meth:`flush`."""

    def __init__(self, path: str | Path, *, pid: int = 100, **info: Any) -> None:
        self.path = Path(path)
        info = {"host": "test", "boot_id": "boot", "command": ["program"]} | info
        self.writer = Writer(self.path, pid=pid, **info)
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add(self, table: str, **fields: Any) -> None:
        """Add a row of any table. Strings are interned if the field has a string id."""
        kinds = {f.name: f.type for f in TABLES[table].fields}
        row = {
            k: self.writer.string(v) if kinds[k] == "string" and isinstance(v, str) else v for k, v in fields.items()
        }
        self._rows.setdefault(table, []).append(row)

    def flush(self) -> None:
        """Write the collected rows, one block for each table."""
        for table, rows in self._rows.items():
            array = np.zeros(len(rows), TABLES[table].dtype)
            for i, row in enumerate(rows):
                for name, value in row.items():
                    array[name][i] = value
            self.writer.rows(table, array)
        self._rows.clear()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None:
            self.flush()
            self.writer.close()
        else:
            self.writer.discard()

    # Records of the program

    def launch(self, name: str, grid: Sequence[int] = (1, 1, 1), block: Sequence[int] = (32, 1, 1), **more: int) -> int:
        """Add a launch configuration. Returns its id."""
        dims = {
            f"{what}_{a}": v
            for what, dim in (("grid", grid), ("block", block))
            for a, v in zip("xyz", dim, strict=True)
        }
        return self.writer.intern_one("launches", **({"name": name, "registers": 32, "carveout": 255} | dims | more))

    def kernel(self, launch: int, start: int, end: int, **more: int) -> None:
        self.work("kernels", start, end, launch=launch, **more)

    def memcpy(
        self, start: int, end: int, size: int, *, kind: int = 1, source: int = 1, destination: int = 3, device: int = 0,
        **more: int,
    ) -> None:  # fmt: skip
        self.work("memcpys", start, end, bytes=size, kind=kind, source_memory=source, destination_memory=destination,
                   device=device, source_device=device, destination_device=device, **more)  # fmt: skip

    def memset(self, start: int, end: int, size: int, **more: int) -> None:
        self.work("memsets", start, end, bytes=size, memory=3, **more)

    def work(self, table: str, start: int, end: int, **fields: int) -> None:
        """Add GPU work, by default on stream 7 of context 1."""
        self.add(table, **{"start": ORIGIN + start, "end": ORIGIN + end, "stream": 7, "context": 1, **fields})

    def stack(self, *frames: tuple[str, int, str]) -> int:
        """Add a Python stack: file, line and function of each frame, outermost first. Returns its id."""
        stack = 0
        for file, line, function in frames:
            frame = self.writer.intern_one("frames", file=file, line=line, function=function)
            stack = self.writer.intern_one("stacks", parent=stack, frame=frame)
        return stack

    def api(
        self, name: str, start: int, end: int, *, thread: int = 100, status: int = 0, domain: int = 2, stack: int = 0,
        **more: int,
    ) -> None:  # fmt: skip
        """Add an API call. ``stack`` is a result of :meth:`stack`."""
        if stack:
            self.add("call_stacks", correlation=more["correlation"], stack=stack, thread=thread)
        function = self.writer.intern_one("functions", name=name, domain=domain, status=status, callback=211)
        self.add("api_calls", start=ORIGIN + start, end=ORIGIN + end, thread=thread, function=function, **more)

    def push_pop(
        self, name: str, start: int, end: int | None, *, thread: int = 100, domain: str = "", **more: int
    ) -> None:
        """Add a push/pop range. Without ``end``, it is open at the end of the capture."""
        flags = {"flags": 1} if end is None else {}
        self.add("nvtx_ranges", start=ORIGIN + start, end=0 if end is None else ORIGIN + end, name=name, domain=domain,
                 thread=thread, end_thread=thread, **flags, **more)  # fmt: skip

    def start_end(
        self, name: str, start: int, end: int, *, range_id: int, thread: int = 100, end_thread: int | None = None,
        domain: str = "", **more: int,
    ) -> None:  # fmt: skip
        end_thread = thread if end_thread is None else end_thread
        self.add("nvtx_ranges", start=ORIGIN + start, end=ORIGIN + end, name=name, domain=domain, thread=thread,
                 end_thread=end_thread, range_id=range_id, kind=1, **more)  # fmt: skip

    def mark(self, name: str, time: int, *, thread: int = 100, domain: str = "", **more: int) -> None:
        self.add("nvtx_marks", time=ORIGIN + time, name=name, domain=domain, thread=thread, **more)

    def graph_node(self, node: int, created: int, *ranges: str, thread: int = 100, original: int = 0) -> None:
        """Add the creation of a graph node inside NVTX ranges, outermost first."""
        self.add("graph_nodes", created=ORIGIN + created, graph_node=node, original=original, thread=thread,
                 ranges=json.dumps(ranges) if ranges else 0)  # fmt: skip

    # Hardware

    def device(self, device: int = 0, *, uuid: bytes = bytes(range(1, 17)), **facts: int | str) -> None:
        """Add a GPU with the attributes of an H200, or with the attributes in ``facts``."""
        self.add("devices", device=device, uuid=np.void(uuid), **(H200 | facts))

    def context(self, context: int = 1, device: int = 0) -> None:
        self.add("contexts", context=context, device=device, null_stream=7, compute_api=1)

    def thread(self, thread: int, name: str, *, source: int = 1) -> None:
        self.add("threads", thread=thread, name=name, source=source)

    def clocks(self, time: int = 0) -> None:
        boottime = ORIGIN + time
        self.add("clocks", boottime=boottime, monotonic=boottime - 5_000, monotonic_raw=boottime - 4_000,
                 realtime=boottime + 1_700_000_000_000_000_000, spread=100)  # fmt: skip

    def loss(self, reason: int, count: int, detail: str = "", time: int = 0) -> None:
        self.add("losses", time=ORIGIN + time, reason=reason, count=count, detail=detail)


def join(path: Path, parts: Iterable[Path]) -> Path:
    """Join several captures to one file."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def named(name: str, folder: Path) -> Path:
    """The capture with this name in tests/data. For ``training_steps`` and ``awkward``, a new one in ``folder``."""
    path = folder / f"{name}.bin"
    if name == "training_steps":
        return training_steps(path, steps=8)
    return awkward(path) if name == "awkward" else DATA / name


def training_steps(
    path: Path, *, pid: int = 100, steps: int = 20, layers: int = 8, streams: Sequence[int] = (7, 13)
) -> Path:
    """An ordinary capture: steps with NVTX ranges around launches on some streams, copies, fills and waits."""
    with Capture(path, pid=pid) as c:
        c.device()
        c.context()
        c.thread(pid, "main")
        c.thread(pid + 1, "loader", source=2)
        c.clocks()
        gemms = [
            c.launch(f"_ZN6kernel4gemmILi{i}EEEvPKfPf", grid=(64 * (i + 1), 1, 1), block=(256, 1, 1), registers=96 + i,
                     dynamic_shared=49_152, shared_executed=102_400)
            for i in range(layers)
        ]  # fmt: skip
        adds = c.launch("_Z3addPf", grid=(4096, 1, 1), block=(128, 1, 1))
        now, correlation = 1_000, 1
        gpu = dict.fromkeys(streams, now)
        for step in range(steps):
            begin = now
            c.memset(now + 900, now + 1_400, 1 << 16, stream=streams[0], correlation=correlation)
            c.api("cudaMemsetAsync", now + 100, now + 700, thread=pid, correlation=correlation)
            c.memcpy(
                now + 300, now + 9_300, 1 << 20, stream=streams[-1], correlation=correlation + 1, source=2, flags=1
            )
            c.api("cudaMemcpyAsync", now + 10, now + 2_010, thread=pid + 1, correlation=correlation + 1)
            correlation += 2
            now += 1_000
            for layer in range(layers):
                layer_begin = now
                stream = streams[layer % len(streams)]
                for kernel, duration in ((gemms[layer], 12_345 + 17 * layer), (adds, 1_800 + step)):
                    c.api("cudaLaunchKernel", now + 200, now + 2_300, thread=pid, correlation=correlation)
                    start = max(now + 3_000, gpu[stream] + 600)
                    gpu[stream] = start + duration
                    c.kernel(kernel, start, gpu[stream], stream=stream, correlation=correlation)
                    correlation += 1
                    now += 2_600
                c.push_pop(f"layer {layer}", layer_begin, now, thread=pid, depth=1)
            wait = max(*gpu.values(), now) + 500
            c.api("cudaDeviceSynchronize", now + 100, wait, thread=pid, correlation=correlation)
            c.add("synchronizations", start=ORIGIN + now + 150, end=ORIGIN + wait - 50, type=4, context=1,
                  correlation=correlation)  # fmt: skip
            correlation += 1
            now = wait + 300
            c.push_pop(f"step {step}", begin, now, thread=pid, color=0xFF00FF00, payload=step, payload_type=4)
            c.mark("step done", now + 5, thread=pid)
            now += 1_000
        c.add(
            "allocations", time=ORIGIN + 500, address=0x7F00_0000_0000, bytes=1 << 28, operation=1, memory=3, context=1
        )
        c.add("overheads", start=ORIGIN + 600, end=ORIGIN + 900, kind=1 << 16, thread=pid)
        c.clocks(now)
    return path


def replays(path: Path, *, pid: int = 100, count: int = 3) -> Path:
    """A graph that was captured in NVTX ranges and is replayed in other ranges, every microsecond. It has three kernels
    and a copy in layers, a kernel outside all ranges, and a kernel with an unrecorded creation."""
    paths = {
        1: ("forward", "layer0"), 2: ("forward", "layer0", "attn"), 3: ("forward", "layer1"), 4: (),
        6: ("forward", "layer0", "attn"),
    }  # fmt: skip
    with Capture(path, pid=pid) as c:
        c.device()
        c.context()
        for node, ranges in paths.items():
            c.graph_node(node, 100 * node, *ranges, thread=pid, original=node + 100)
            c.api("cudaLaunchKernel", 100 * node - 10, 100 * node + 50, thread=pid, correlation=node)
        kernels = [c.launch(f"_Z1{name}v", graph_node=node, graph=9) for node, name in enumerate("abcde", 1)]
        for replay in range(count):
            now = 10_000 + 1_000 * replay
            c.push_pop("step", now - 10, now + 60, thread=pid)
            c.api("cudaGraphLaunch", now, now + 50, thread=pid, correlation=50 + replay)
            for i, kernel in enumerate(kernels):
                c.kernel(kernel, now + 100 * (i + 1), now + 100 * (i + 1) + 80 + i, correlation=50 + replay)
            c.memcpy(now + 600, now + 650, 4096, correlation=50 + replay, graph=9, graph_node=6)
    return path


def python_calls(path: Path, *, pid: int = 100, root: str = "/app") -> Path:
    """Calls of a Python program, most of them with stacks: launches, replays of a graph, a copy, allocations and waits.
    One driver call is inside a runtime call. Files are in ``root``."""
    main, step = (f"{root}/train.py", 10, "main"), (f"{root}/train.py", 42, "step")
    with Capture(path, pid=pid) as c:
        c.device()
        c.context()
        launching = c.stack(main, step, (f"{root}/ops.py", 7, "fused_add"))
        plain = c.launch("_Z3addPf")
        for number in (0, 1):
            at = 1_000 * number
            c.api("cudaLaunchKernel", at + 100, at + 200, correlation=1 + number, stack=launching)
            c.api("cuLaunchKernel", at + 110, at + 190, domain=1, correlation=1 + number)
            c.kernel(plain, at + 300, at + 340, correlation=1 + number)
        c.api("cudaLaunchKernel", 2_000, 2_050, correlation=3, thread=101)  # a thread without Python
        c.kernel(plain, 2_100, 2_105, correlation=3)
        # A node of a graph is created in one function and replayed by another.
        c.graph_node(1, 3_010, "forward", thread=100)
        c.api("cudaLaunchKernel", 3_000, 3_050, correlation=10, stack=c.stack(main, (f"{root}/model.py", 3, "forward")))
        node = c.launch("_Z4nodev", graph_node=1, graph=9)
        replaying = c.stack(main, (f"{root}/train.py", 60, "replay"))
        for correlation, at in ((20, 4_000), (21, 5_000)):
            c.api("cudaGraphLaunch", at, at + 10, correlation=correlation, stack=replaying)
            c.kernel(node, at + 100, at + 400, correlation=correlation)
            c.memset(at + 500, at + 501, 64, correlation=correlation, graph=9)
        copying = c.stack(main, (f"{root}/data.py", 5, "load"))
        c.api("cudaMemcpyAsync", 6_000, 6_100, correlation=30, stack=copying)
        c.memcpy(6_200, 6_600, 4096, correlation=30)
        c.api("cudaMalloc", 7_000, 7_700, correlation=40, stack=copying)
        c.add("allocations", time=ORIGIN + 7_600, address=1 << 40, bytes=1 << 20, operation=1, memory=3, correlation=40)
        c.api("cudaFree", 8_000, 8_030, correlation=41, stack=copying)
        c.add("allocations", time=ORIGIN + 8_020, address=1 << 40, bytes=1 << 20, operation=2, memory=3, correlation=41)
        c.api("cudaStreamSynchronize", 9_000, 9_500, correlation=50, stack=c.stack(main, step))
        c.api("cudaDeviceSynchronize", 9_600, 9_700, correlation=51)
        c.api("cudaMemGetInfo", 9_800, 9_900, correlation=52)
    return path


def awkward(path: Path) -> Path:
    """Three processes with equal context and stream ids; two of them have the same pid. They have all legal but unusual
    contents: overlaps, ties, missing references, empty and foreign names, GPU work without a launch, launches without
    GPU work, ranges that never end, and losses."""
    parts = [path.with_suffix(f".{i}") for i in range(3)]
    for i, part in enumerate(parts):
        with Capture(part, pid=(100, 100, 300)[i], host=f"node{i // 2}", command=["python", "train.py"]) as c:
            if i == 0:
                c.device(0)
                c.device(1, uuid=bytes(range(2, 18)), pci="0000:3b:00.0")
                c.context(1)
                c.context(2, 1)
            kernel = c.launch("", grid=(0, 0, 0), block=(0, 0, 0))
            named = c.launch("_Z6überλv", registers=0)
            # Kernels that overlap on one stream; a launch id of 0; no duration; no correlation.
            c.kernel(kernel, 10_000, 20_000, correlation=1)
            c.kernel(named, 15_000, 25_000, correlation=2)
            c.kernel(0, 15_000, 15_000, correlation=3)
            c.kernel(named, 30_000, 30_001)
            c.kernel(named, 30_000, 30_001, context=2, device=1)
            # Many nodes of a graph have the correlation id of its launch. Some have unknown times.
            for node in range(5):
                graph = c.launch("_Z4nodev", graph_node=100 + node, graph=9)
                c.kernel(graph, 40_000 + 100 * node, 40_050 + 100 * node, correlation=50)
            c.memcpy(40_600, 40_700, 4096, kind=10, correlation=50, graph=9, graph_node=105)
            c.add("kernels", start=ORIGIN + 50_000, end=0, correlation=51, launch=named, stream=7, context=1)
            c.work("graph_launches", 60_000, 70_000, correlation=52, graph=9)
            c.memcpy(71_000, 71_000, 0, correlation=53)
            c.memset(71_000, 71_500, 64, value=255, correlation=1 << 31)
            # Calls that are nested, overlap, are tied, failed, or lack a function, with no GPU work or with many pieces
            # of it.
            c.api("cudaGraphLaunch", 5_000, 9_000, correlation=50)
            c.api("cuGraphLaunch", 5_000, 8_000, correlation=50, domain=1)
            c.api("cudaLaunchKernel", 9_000, 9_500, correlation=1)
            c.api("cudaLaunchKernel", 9_500, 9_500, correlation=2)
            c.api("cudaLaunchKernel", 9_500, 9_900, correlation=3, status=700)
            c.api("cudaMalloc", 9_800, 11_000, correlation=99)
            c.api("cudaFree", 10_500, 12_000)
            c.add("api_calls", start=ORIGIN + 12_000, end=ORIGIN + 12_500, thread=101)
            c.add("api_calls", start=ORIGIN + 12_000, end=ORIGIN + 12_500, thread=0)
            # Ranges of two domains. Some overlap without nesting, some end on another thread, and some are still open.
            c.push_pop("outer", 4_000, 9_500, domain="a")
            c.push_pop("", 4_000, 12_600, category=3, color=0x80112233)
            c.push_pop("ä µ 漢字", 8_900, 13_000, domain="b", payload=1 << 63, payload_type=1)
            c.push_pop("signed", 13_000, 13_000, payload=(1 << 64) - 5, payload_type=2)
            c.push_pop("float", 13_000, 13_001, payload=0x3FC00000, payload_type=6)
            c.push_pop("double", 13_001, 13_002, payload=0x4004000000000000, payload_type=3)
            c.push_pop("zero", 13_002, 13_003, payload=0, payload_type=5)
            c.push_pop("never ends", 4_500, None)
            c.push_pop("neither", 4_600, None)
            c.start_end("batch", 1_000, 50_000, range_id=1, thread=100, end_thread=101)
            c.start_end("batch", 2_000, 60_000, range_id=2, thread=101, end_thread=100)
            c.start_end("batch", 2_000, 3_000, range_id=3, domain="a")
            c.mark("tie", 9_500)
            c.mark("", 9_500, domain="b", category=7, payload=3, payload_type=4)
            c.add("nvtx_categories", domain="", category=3, name="loading")
            c.work("synchronizations", 1_000, 5_000, type=3, correlation=60)
            c.work("synchronizations", 2_000, 6_000, type=2, stream=8, event=4, correlation=61)
            c.add("cuda_events", device_time=123, event=4, stream=7, context=1, correlation=62)
            c.add("allocations", time=ORIGIN + 100, address=1 << 47, bytes=1 << 34, operation=1, memory=3, context=1)
            c.add("allocations", time=ORIGIN + 200, address=1 << 47, bytes=1 << 34, operation=2, memory=3, context=1)
            c.add("memory_pools", time=ORIGIN + 50, address=7, size=1 << 20, operation=1, pool_type=1)
            c.add("overheads", start=ORIGIN + 1, end=ORIGIN + 2, kind=2 << 16, thread=101)
            c.add("unified_memory", start=ORIGIN + 5, end=ORIGIN + 9, value=4096, kind=1, source_device=0xFFFFFFFF)
            c.add("jit", start=ORIGIN + 5, end=ORIGIN + 90, operation=3, entry=1, cache_path="/tmp/cache", thread=100)
            c.add("environment", time=ORIGIN + 7, kind=3, values=123)
            c.loss(1, 42, "kernel")
            c.clocks()
    return join(path, parts)
