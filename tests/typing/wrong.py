"""Wrong uses of cutrace. mypy and basedpyright read this file; nothing runs it. Each line has the error
that mypy must report. basedpyright must report an error there, too."""

from __future__ import annotations

import cutrace


def tables(trace: cutrace.Trace) -> None:
    print(trace.kernels["strat"])  # type: ignore[call-overload]
    print(trace.kernels["name"])  # type: ignore[call-overload]
    print(trace.kernels.start)  # type: ignore[attr-defined]
    print(trace.kernel)  # type: ignore[attr-defined]
    trace.kernels = trace.memcpys  # type: ignore[misc, assignment]
    trace.kernels["start"] + "1s"  # type: ignore[operator]
    trace.blocks("kernels", start=1.5)  # type: ignore[arg-type]
    trace.table(5)  # type: ignore[arg-type]
    cutrace.load(trace)  # type: ignore[arg-type]
    cutrace.load("run.bin", clock="none")  # type: ignore[arg-type]


def times() -> None:
    cutrace.convert("run.bin", "out.json", start=1.5)  # type: ignore[arg-type]
    cutrace.Conditions(start=0.5)  # type: ignore[arg-type]
    cutrace.stats("run.bin", short=1.5)  # type: ignore[call-overload]
    cutrace.open("run.bin", timeout=0.5)  # type: ignore[arg-type]
    cutrace.batch("all", ["run.bin"], "out", wait=0.5)  # type: ignore[arg-type]
    cutrace.attach(1, "run.bin").wait(0.5)  # type: ignore[arg-type]
    cutrace.record("run.bin", last=1.5)  # type: ignore[arg-type]


def names() -> None:
    cutrace.Conditions(kernel=5)  # type: ignore[arg-type]
    cutrace.Conditions(gpu=[0])  # type: ignore[list-item]
    cutrace.Conditions(kernels="gemm")  # type: ignore[call-arg]
    cutrace.Conditions(index=1.5)  # type: ignore[arg-type]
    cutrace.diff("a.bin", "b.bin", fail_on=5)  # type: ignore[arg-type]
    cutrace.why("run.bin", kernel=5)  # type: ignore[arg-type]
    cutrace.demangle(b"_Z5saxpyif")  # type: ignore[arg-type]


def words() -> None:
    cutrace.stats("run.bin", names="ful")  # type: ignore[call-overload]
    cutrace.convert("run.bin", "out.json", ranges="mine")  # type: ignore[arg-type]
    cutrace.convert("run.bin", "out.pftrace", compress="zip")  # type: ignore[arg-type]
    cutrace.flame("run.bin", by="thread")  # type: ignore[arg-type]
    cutrace.record("run.bin", api="some")  # type: ignore[arg-type]
    cutrace.record("run.bin", nvtx="yes")  # type: ignore[arg-type]
    cutrace.record("run.bin", kind="nvtx")  # type: ignore[call-arg]


def results() -> None:
    cutrace.slice("run.bin", "out.bin", {"kernel": "gemm"})  # type: ignore[arg-type]
    cutrace.slice("run.bin", "out.bin", cutrace.Conditions(), request="json")  # type: ignore[arg-type]
    print(cutrace.convert("run.bin", "out.json").rows)  # type: ignore[attr-defined]
    print(cutrace.stats("run.bin").rows)  # type: ignore[attr-defined]
    print(cutrace.load("run.bin").kernel_count)  # type: ignore[attr-defined]
    cutrace.trace("run.bin")  # type: ignore[operator]
