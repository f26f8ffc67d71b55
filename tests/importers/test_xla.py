"""Import of the JSON of XLA's profiler, which JAX and TensorFlow write.

The format is that of OpenXLA's public sources (Apache-2.0): xla/tsl/profiler/convert/trace_events_to_json.cc writes the
events. xplane_to_trace_events.cc selects processes, threads and arguments. cupti_collector.cc in
xla/backends/profiler/gpu names the streams and writes the details of kernels, copies and fills. Devices are processes
from 1 on, and host threads are in process 701. Lines that are derived from the kernels have thread ids from 0xdeadbeef
on. All arguments are strings. The last element of the array is an empty object.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import cutrace
from support import cutrace as run

Event = dict[str, Any]
HOST, MODULES, OPS = 701, 0xDEADBEEF + 4, 0xDEADBEEF + 5
KERNEL = "regs:32 static_shared:64 dynamic_shared:1024 grid:8,2,1 block:128,1,1 occ_pct:100"


def named(pid: int, name: str, tid: int | None = None) -> list[Event]:
    """The metadata events of a process or a thread: its name, and its place in the order."""
    kind = "process" if tid is None else "thread"
    place = {} if tid is None else {"tid": tid}
    event = {"ph": "M", "pid": pid, **place}
    return [
        {**event, "name": f"{kind}_name", "args": {"name": name}},
        {**event, "name": f"{kind}_sort_index", "args": {"sort_index": tid or pid}},
    ]


def x(pid: int, tid: int, ts: float, dur: float, name: str, **args: str) -> Event:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


def events(*more: Event, kernel: str = KERNEL) -> list[Event]:
    details = {"kernel_details": kernel} if kernel else {"theoretical_occupancy_pct": "100"}
    at = {"context_id": "$$1"}
    return [
        *named(1, "/device:GPU:0"),
        *named(1, "Stream #13(Compute)", 13),
        *named(1, "Stream #14(MemcpyH2D,MemcpyP2P,Memset)", 14),
        *named(1, "XLA Modules", MODULES),
        *named(1, "XLA Ops", OPS),
        *named(HOST, "/host:CPU"),
        *named(HOST, "python", 4242),
        x(HOST, 4242, 1, 30, "PjitFunction(f)"),
        x(HOST, 4242, 2, 3, "cuLaunchKernel", correlation_id="7", device_id="0", **at),
        x(1, 13, 10.5, 3.25, "loop_fusion", correlation_id="7", hlo_op="fusion.1", tf_op="jit(f)/mul", **at, **details),
        x(1, 14, 6, 2, "MemcpyH2D", correlation_id="8", **at,
          memcpy_details="kind_src:pageable kind_dst:device size:4096 dest:0 async:1"),
        x(1, 14, 8, 1, "MemcpyP2P", correlation_id="9", **at,
          memcpy_details="kind_src:device kind_dst:device size:64 dest:3 async:1"),
        x(1, 14, 9, 1, "Memset", correlation_id="10", **at, Memset_details="kind:device_static num_bytes:16 async:0"),
        x(1, 13, 20, 5, "CudaGraphExec:4", correlation_id="11", **at, cuda_graph_id="4", cuda_graph_exec_id="4"),
        x(1, 13, 30, 5, "MemoryAlloc", memalloc_details="kind:device num_bytes:99"),
        x(1, MODULES, 10.5, 3.25, "jit_f(1)", hlo_module="jit_f"),
        x(1, OPS, 10.5, 3.25, "fusion.1"),
        *more,
        {},
    ]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, events())


def write(folder: Path, some: list[Event]) -> Path:
    path = folder / "host.trace.json.gz"
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": some}
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode()))
    return path


def microseconds(trace: cutrace.Trace, times: Any) -> list[float]:
    offset = trace.processes[0].info["time_offset_ns"]
    return [(time - offset) / 1000 for time in times.tolist()]


def strings(trace: cutrace.Trace, rows: Any, field: str) -> list[str]:
    return trace.strings.take(rows[field]).tolist()


def test_kernels_of_streams_have_their_details(path: Path) -> None:
    with cutrace.load(path) as trace:
        (kernel,) = trace.kernels[["device", "context", "stream", "correlation"]].tolist()
        assert kernel == (0, 1, 13, 7)
        assert microseconds(trace, trace.kernels["start"]) == [10.5]
        assert microseconds(trace, trace.kernels["end"]) == [13.75]
        shape = ["registers", "static_shared", "dynamic_shared", "grid_x", "grid_y", "grid_z", "block_x", "block_y"]
        assert trace.launches[shape].tolist()[1:] == [(32, 64, 1024, 8, 2, 1, 128, 1)]
        assert strings(trace, trace.launches, "name")[1:] == ["loop_fusion"]
        assert trace.imports[0].format == "xla"


def test_kernels_of_older_files_have_no_details(tmp_path: Path) -> None:
    with cutrace.load(write(tmp_path, events(kernel=""))) as trace:
        assert trace.kernels[["stream", "correlation"]].tolist() == [(13, 7)]
        assert trace.launches[["registers", "grid_x"]].tolist()[1:] == [(0, 0)]


def test_copies_and_fills_have_their_kinds_and_sizes(path: Path) -> None:
    with cutrace.load(path) as trace:
        fields = ["stream", "correlation", "bytes", "kind", "source_memory", "destination_memory", "destination_device"]
        assert trace.memcpys[fields].tolist() == [(14, 8, 4096, 1, 1, 3, 0), (14, 9, 64, 10, 3, 3, 3)]
        assert trace.memsets[["stream", "correlation", "bytes", "memory"]].tolist() == [(14, 10, 16, 6)]
        assert trace.graph_launches[["stream", "correlation", "graph"]].tolist() == [(13, 11, 4)]


def test_calls_launch_the_kernels_of_their_correlation(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert trace.api_calls[["thread", "correlation"]].tolist() == [(4242, 7)]
        assert strings(trace, trace.functions, "name")[1:] == ["cuLaunchKernel"]
    assert "3.0us    8.5us  5.5us" in run("stats", path, "--report", "launch_sum").stdout  # call, latency, queue


def test_lines_of_xla_are_ranges_of_a_process_with_the_name_of_the_gpu(path: Path) -> None:
    with cutrace.load(path) as trace:
        assert [process.name for process in trace.processes] == ["/host:CPU", "/device:GPU:0"]
        names = {
            (process, thread): name
            for process, thread, name in zip(
                *(trace.threads[field].tolist() for field in ("process", "thread")),
                strings(trace, trace.threads, "name"),
                strict=True,
            )
        }
        rows = trace.host_slices
        lines = [names[key] for key in zip(rows["process"].tolist(), rows["thread"].tolist(), strict=True)]
        found = sorted(zip(lines, strings(trace, rows, "name"), strict=True))
        assert found == [("XLA Modules", "jit_f(1)"), ("XLA Ops", "fusion.1"), ("python", "PjitFunction(f)")]
        assert strings(trace, trace.gpu_slices, "name") == ["fusion.1", "MemoryAlloc"]


def test_kernels_have_their_operation_beside_them_with_the_other_arguments(path: Path) -> None:
    with cutrace.load(path) as trace:
        operation = trace.gpu_slices[:1]
        assert operation[["device", "context", "stream", "correlation"]].tolist() == [(0, 1, 13, 7)]
        assert operation["start"] == trace.kernels["start"]
        assert operation["end"] == trace.kernels["end"]
        assert strings(trace, operation, "category") == ["XLA Ops"]
        (arguments,) = strings(trace, operation, "arguments")
        assert json.loads(arguments) == {"hlo_op": "fusion.1", "tf_op": "jit(f)/mul"}


def test_nothing_is_lost_and_what_is_left_out_is_in_the_account(path: Path, tmp_path: Path) -> None:
    done = run("convert", path, "-o", tmp_path / "x.pftrace")
    assert (done.returncode, done.stderr.count("could not be used")) == (0, 0)
    with cutrace.load(path) as trace:
        accounts = {account.what: account for account in trace.imports[0].accounts}
        assert all(account.balanced and not account.lost for account in accounts.values())
        assert accounts["kernel"].kept.count == 1
        assert "argument hlo_op of kernel" not in accounts
        assert accounts["argument device_id of cuda_driver"].seen.count == 1
        assert not trace.quality.losses


def test_an_empty_object_is_no_event_of_any_program(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{}, x(1, 1, 1, 1, "a"), {}, {"name": "b"}]))
    with cutrace.load(path) as trace:
        assert [(loss.detail, loss.count) for loss in trace.quality.losses] == [("events: no phase", 1)]


@pytest.mark.parametrize("name", ["/device:TPU:0", "/host:CPU"])
def test_files_without_gpus_have_slices_only(tmp_path: Path, name: str) -> None:
    some = [*named(1, name), *named(1, "Stream #1", 1), x(1, 1, 1, 2, "work", correlation_id="x")]
    with cutrace.load(write(tmp_path, [*some, {}])) as trace:
        assert trace.imports[0].format == "xla"
        assert (len(trace.kernels), len(trace.host_slices) + len(trace.api_calls)) == (0, 1)
        assert not trace.quality.losses


@pytest.mark.parametrize(
    "details", ["", "grid:", "grid:1,2 block:x", "regs:-1 grid:9999999999,1,1", "regs:" + "9" * 40]
)
def test_unusable_details_are_unknown(tmp_path: Path, details: str) -> None:
    with cutrace.load(write(tmp_path, events(kernel=details or "x"))) as trace:
        assert len(trace.kernels) == 1
        assert trace.launches[["registers", "grid_x"]].tolist()[1][1] == 0


def test_a_real_file_of_jax_has_all_its_gpu_work(tmp_path: Path) -> None:
    real = Path(__file__).parents[1] / "data" / "jax.trace.json.gz"
    with gzip.open(real) as file:
        document = json.load(file)["traceEvents"]
    slices = [event for event in document if event.get("ph") == "X"]
    of_gpu = [event["args"] for event in slices if event["pid"] == 1]
    with cutrace.load(real) as trace:
        assert sorted(trace.kernels["correlation"].tolist()) == sorted(
            int(args["correlation_id"]) for args in of_gpu if "kernel_details" in args
        )
        sizes = [args["memcpy_details"].partition("size:")[2].split()[0] for args in of_gpu if "memcpy_details" in args]
        assert sorted(trace.memcpys["bytes"].tolist()) == sorted(map(int, sizes))
        assert len(trace.memsets) == sum("Memset_details" in args for args in of_gpu)
        rows = (trace.kernels, trace.memcpys, trace.memsets, trace.api_calls, trace.host_slices)
        assert sum(map(len, rows)) == len(slices)
        assert set(trace.launches["registers"].tolist()) >= {28, 88, 74}
        assert len(trace.processes) == 1
        assert len(trace.gpu_slices) == sum("hlo_op" in args for args in of_gpu)
    assert run("convert", real, "-o", tmp_path / "x.pftrace").returncode == 0
