"""The programs that soak.py records: ``soak_program.py PART COUNT SECONDS FOLDER LIBRARIES``.

PART is ``launches`` (COUNT launches by eight threads), ``graph`` or ``nodes`` (COUNT graph nodes), ``cycles`` (COUNT
recordings of this process, one after the other) or ``child`` (COUNT launches). Each part ends early after SECONDS.
LIBRARIES is the folder of the native loops, or ``fake`` for the fake GPU of the tests. Prints one JSON object: the
amount of finished work, and samples of memory and clocks.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

_THREADS = 8
_NODES = 1000
_FORK_EVERY, _SPAWN_EVERY = 20, 250


class Gpu(Protocol):
    """A source of GPU work. Both calls return when the GPU has finished the work."""

    def launches(self, threads: int, each: int) -> None: ...

    def graph(self, nodes: int, replays: int) -> None: ...


class RealGpu:
    """The native loops of benchmarks/native."""

    def __init__(self, folder: Path) -> None:
        self._launches = ctypes.CDLL(str(folder / "liblaunch_loop.so")).launch_loop
        self._graph = ctypes.CDLL(str(folder / "libgraph_loop.so")).graph_loop

    def launches(self, threads: int, each: int) -> None:
        times = (ctypes.c_double * 2)()
        _must(self._launches(threads, ctypes.c_uint64(0), ctypes.c_uint64(each), times))

    def graph(self, nodes: int, replays: int) -> None:
        _must(self._graph(nodes, ctypes.c_uint64(replays)))


class FakeGpu:
    """The fake GPU of tests/support."""

    def launches(self, threads: int, each: int) -> None:
        import fakegpu

        def work(stream: int) -> None:
            for _ in range(each):
                fakegpu.launch("empty", stream=stream, duration_ns=100)

        fakegpu.init()
        running = [threading.Thread(target=work, args=(7 + i,)) for i in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        fakegpu.synchronize()

    def graph(self, nodes: int, replays: int) -> None:
        import fakegpu

        for _ in range(replays):
            fakegpu.graph_launch(nodes, duration_ns=100)
        fakegpu.synchronize()


def _must(status: int) -> None:
    if status:
        raise SystemExit(f"CUDA error {status}")


def memory() -> int:
    """Return the resident memory of this process (bytes)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Samples(threading.Thread):
    """Samples memory and clocks ten times a second and once at the end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.memory: list[int] = []
        self.clocks: list[tuple[int, int, int]] = []
        self._end = threading.Event()

    def run(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(0.1)
            self.memory.append(memory())
            before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            real = time.clock_gettime_ns(time.CLOCK_REALTIME)
            self.clocks.append((before, real, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - before))

    def end(self) -> dict[str, Any]:
        self._end.set()
        self.join()
        return {"memory": self.memory, "clocks": self.clocks}


def launches(gpu: Gpu, count: int, deadline: float) -> dict[str, Any]:
    samples = Samples()
    each = max(count // _THREADS // 25, 1)
    gpu.launches(_THREADS, each)  # starts CUDA and the collector, which allocate their memory
    samples.start()
    done = _THREADS * each
    while done < count and time.monotonic() < deadline:
        gpu.launches(_THREADS, each)
        done += _THREADS * each
    return {"launched": done, **samples.end()}


def graph(gpu: Gpu, count: int, deadline: float) -> dict[str, Any]:
    samples = Samples()
    replays = max(count // _NODES // 25, 1)
    gpu.graph(_NODES, replays)
    samples.start()
    done, captured = replays * _NODES, 1
    while done < count and time.monotonic() < deadline:
        gpu.graph(_NODES, replays)
        done += replays * _NODES
        captured += 1
    return {"launched": done, "graphs": captured, **samples.end()}


def cycles(gpu: Gpu, count: int, deadline: float, folder: Path, again: list[str]) -> dict[str, Any]:
    """Start recordings, launch and stop, with forks in the middle of recordings and children that use CUDA at the same
    time."""
    import cutrace

    held: list[int] = []
    recorded = lost = without_times = forks = spawned = 0
    each = 16
    gpu.launches(1, each)
    cycle = 0
    while cycle < count and time.monotonic() < deadline:
        path = folder / "cycle.bin"
        children: list[subprocess.Popen[bytes]] = []
        with cutrace.record(path):
            gpu.launches(1, each)
            if cycle % _SPAWN_EVERY == _SPAWN_EVERY // 5:
                children.append(
                    subprocess.Popen([sys.executable, __file__, "child", *again], stdout=subprocess.DEVNULL)
                )
            if cycle % _FORK_EVERY == 0:
                pid = os.fork()
                if pid == 0:
                    cutrace.mark("not recorded")
                    os._exit(0)
                _must(os.waitpid(pid, 0)[1])
                forks += 1
        for child in children:
            _must(child.wait())
            spawned += 1
        kernels, missing, unknown = contents(path)
        recorded += kernels
        lost += missing
        without_times += unknown
        held.append(memory())
        cycle += 1
    return {
        "launched": cycle * each, "cycles": cycle, "forks": forks, "spawned": spawned, "memory": held,
        "recorded": recorded, "lost": lost, "without_times": without_times,
    }  # fmt: skip


def contents(path: Path) -> tuple[int, int, int]:
    """Return the number of kernels in a capture, from its block headers alone; the number of kernels that it counts as
    lost; and the number of rows without times."""
    from cutrace.runbin import LOSS_REASONS, TABLES, Reader

    lost = without_times = 0
    with Reader(path) as reader:
        of = reader.headers["kind"] == TABLES["kernels"].number
        kernels = int(reader.headers["rows"][of].sum())
        for block in reader.indices(TABLES["losses"].number).tolist():
            for row in reader.read(block):
                reason = LOSS_REASONS[int(row["reason"])][0]
                # Rows without times are in the file. Losses of CUPTI kinds or NVTX are not kernels.
                lost += int(row["count"]) if reason in _KERNEL_LOSSES else 0
                without_times += int(row["count"]) if reason == "unknown_time" else 0
    return kernels, lost, without_times


_KERNEL_LOSSES = ("cupti_dropped", "memory_limit", "size_limit", "write_error", "let_go")


def main() -> None:
    part, count, seconds, folder, libraries = sys.argv[1:6]
    gpu: Gpu = FakeGpu() if libraries == "fake" else RealGpu(Path(libraries))
    deadline = time.monotonic() + float(seconds)
    if part == "launches":
        result = launches(gpu, int(count), deadline)
    elif part in ("graph", "nodes"):
        result = graph(gpu, int(count), deadline)
    elif part == "cycles":
        result = cycles(gpu, int(count), deadline, Path(folder), ["16", "10", folder, libraries])
    else:
        gpu.launches(1, int(count))
        result = {"launched": int(count)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
