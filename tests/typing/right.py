"""Correct uses of every public name of cutrace. mypy and basedpyright read this file; nothing runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typing_extensions import Unpack, assert_type

import cutrace

Times = np.ndarray[tuple[int], np.dtype[np.uint64]]
Ids = np.ndarray[tuple[int], np.dtype[np.uint32]]


def tables(path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    with cutrace.load([path, "rank1.bin"], clock="keep") as trace:
        assert_type(trace, cutrace.Trace)
        kernels = trace.kernels
        assert_type(kernels["start"], Times)
        assert_type(kernels["launch"], Ids)
        assert_type(kernels[kernels["end"] > 5]["start"], Times)
        assert_type(kernels[np.argsort(kernels["start"])][:10]["end"], Times)
        assert_type(kernels[0], np.void)
        assert_type(kernels[["start", "end"]], np.ndarray[tuple[int], np.dtype[np.void]])
        assert_type(trace.counters["value"], np.ndarray[tuple[int], np.dtype[np.float64]])
        names: list[str] = trace.strings.take(trace.launches["name"][kernels["launch"]]).tolist()
        for block in trace.blocks("kernels", start="1s", end=kernels["end"][0]):
            print(len(block), names[0], cutrace.demangle(names[0]))
        frame = trace.df("kernels"), trace.pl("kernels"), trace.arrow("kernels"), trace.payloads()
        print(frame, trace.quality.sentences(), trace.processes[0].name, trace.start, trace.unknown("kernels"))
        return kernels


def figures(source: cutrace.Source, step: cutrace.Time) -> None:
    assert_type(cutrace.stats(source, "cuda_gpu_kern_sum", sort="total"), cutrace.Report)
    assert_type(cutrace.stats(source, ["cuda_gpu_kern_sum", "launch_sum"], short=step), list[cutrace.Report])
    assert_type(cutrace.stats(source, kernel_wait="30ns", names="full", ranges="own"), list[cutrace.Report])
    assert_type(cutrace.info(source), cutrace.Summary)
    report: cutrace.Report = cutrace.stats(source, "step_sum", name="step *").head(3)
    print(report.title, [column.name for column in report.columns], report.rows, report.arrow(), report.df())
    difference = cutrace.diff(source, "after.bin", fail_on=["counts", "time"], tolerance="time=10%")
    assert_type(difference, cutrace.Diff)
    assert_type(difference.failed, bool)
    assert_type(difference.verdict, str)
    assert_type(difference.reports(everything=True), list[cutrace.Report])
    print(cutrace.sql(source, "select * from kernels").num_rows)
    assert_type(cutrace.flame(source, by="stack").coverage, "str | None")
    graph: cutrace.FlameGraph = cutrace.flame(source)
    print(graph.root.gpu_ns)
    with cutrace.trace_processor(source, shell="trace_processor_shell") as processor:
        print(processor)


def slow(source: cutrace.Source, kernels: cutrace.Patterns) -> None:
    assert_type(cutrace.why(source, "after.bin", kernel=kernels, destination="why.html"), cutrace.Why)
    assert_type(cutrace.roofline(source), list[cutrace.Roofline])
    profile = cutrace.profile(["python", "train.py"], "run.bin", metrics="flops", kernel=kernels, count=3)
    assert_type(profile, cutrace.Profile)
    assert_type(profile.status, int)
    with cutrace.region("forward", ["instructions"]) as counted:
        pass
    assert_type(counted, dict[str, float])


def files(source: cutrace.Source, trace: cutrace.Trace, request: cutrace.Request) -> None:
    cutrace.convert(source, Path("run.pftrace"), start="1.5s", end="@20", compress="zstd", progress=print)
    cutrace.convert(trace, "run.csv", table="kernels", start=trace.kernels["start"][0], end=np.uint64(5))
    one = cutrace.Conditions(nvtx="step", index=-1, gpu="0", start=5, ranges="own")
    several = cutrace.Conditions(kernel=["gemm*", "/soft.*max/"], process=("0",), without="api_calls")
    cut = cutrace.slice([Path("a.bin"), "b.bin"], "part.json", one, request=request)
    assert_type(cut, cutrace.Cut)
    assert_type(cut.rows, int)
    cutrace.slice(trace, "part.bin", several, request=cutrace.Request(format="chrome", derived=False))
    assert_type(cutrace.merge(["a.bin", "b.bin"], "job.tar", names=["a", "b"]), tuple[cutrace.Rank, ...])
    cutrace.redact("run.bin", "redacted.bin")
    cutrace.view(source, "page.html", before="before.bin")
    cutrace.open(source, browser=False, timeout="1m", say=print)
    batch = cutrace.batch("all", [Path("a.bin"), "b.bin"], "out", baseline="c.bin", wait="10s", workers=2)
    assert_type(batch, cutrace.Batch)
    assert_type(batch.reports, list[cutrace.Report])


def recorded(limit: cutrace.Size, **options: Unpack[cutrace.OptionArguments]) -> None:
    with cutrace.record("run.bin", kinds=["kernel", "nvtx"], max_size=limit, last="30s") as capture:
        cutrace.mark("here")
        assert_type(cutrace.dump("dump.bin"), bool)
    assert_type(capture, cutrace.Capture)

    @cutrace.record("run.bin", **options)
    def step(number: int) -> str:
        return str(number)

    assert_type(step(5), str)
    armed: cutrace.Armed = cutrace.arm("run.bin", api="all", stacks="sync,launch:1/100", stacks_min="20us")
    assert_type(armed.stop(), "Path | None")
    processes: list[cutrace.StandbyProcess] = cutrace.processes()
    with cutrace.attach(processes[0].pid, "run.bin", nvtx=False) as attachment:
        assert_type(attachment, cutrace.Attachment)
        assert_type(attachment.wait("1s"), bool)
        assert_type(attachment.record_for("10s"), bool)
        assert_type(attachment.stop(), cutrace.Recording)


def refused() -> str:
    try:
        cutrace.load("run.bin").close()
    except cutrace.BadCapture as error:
        return str(error)
    except cutrace.CutraceError as error:
        return str(error)
    return ""
