"""cutrace info: show the contents of a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..outputs import size_of
from ..units import count_of, format_duration, format_size, printable
from . import options
from .output import put, put_json, put_tables
from .record import not_annotated

if TYPE_CHECKING:
    from ..analysis.summary import Summary
    from ..analysis.tables import Table
    from ..loading import Clock
    from ..trace import Process, Trace
    from ..trace.codes import CodesOfKernel, KernelCodes


@click.command()
@options.sources("CAPTURE...")
@options.form(["text", "json"])
@options.clock
def info(sources: tuple[Path, ...], form: str, clock: Clock) -> None:
    """Show the processes, GPUs, rows and losses of CAPTURE, or of several as one."""
    from .. import api
    from ..loading import opened

    with opened(sources, clock=clock) as trace:
        summary = api.info(trace)
        size = sum(size_of(source) for source in sources)
        if form == "json":
            put_json("cutrace info", **_object(summary, trace, sources, size))
        else:
            _print(summary, trace, sources, size)


def _object(
    summary: Summary, trace: Trace, sources: tuple[Path, ...], size: int
) -> dict[str, Any]:
    quality = summary.quality
    losses = [
        {
            "reason": loss.reason,
            "count": loss.count,
            "detail": loss.detail,
            "process": loss.process,
        }
        for loss in quality.losses
    ]
    damage = [
        {
            "offset": one.offset,
            "bytes": one.size,
            "rows": one.rows,
            "reason": one.reason,
        }
        for one in quality.damage
    ]
    early_starts = summary.early_starts.items()
    processes = map(_process_object, summary.processes, summary.process_counts)
    shown = {
        "captures": list(map(str, sources)),
        "bytes": size,
        "start_ns": summary.start,
        "end_ns": summary.end,
        "span_ns": summary.span,
        "processes": list(processes),
        "gpus": list(map(asdict, summary.gpus)),
        "rows": summary.counts,
        "lossless": quality.lossless,
        "losses": losses,
        "unknown_times": quality.unknown,
        "damage": damage,
        "early_starts": {table: asdict(early) for table, early in early_starts},
    }
    if trace.codes:
        by_kernel = trace.codes.by_kernel.items()
        shown["codes"] = {name: _code_object(kernel) for name, kernel in by_kernel}
    shown["notes"] = [*quality.notes, *not_annotated(trace)]
    shown["imports"] = list(map(asdict, trace.imports))
    return shown


def _process_object(process: Process, rows: dict[str, int]) -> dict[str, Any]:
    info = process.info
    shown: dict[str, Any] = {
        "pid": process.pid,
        "name": process.name,
        "host": process.host,
        "command": process.command,
        "complete": process.complete,
    }
    if process.dumped_because:
        shown["dumped_because"] = process.dumped_because
    if process.capture_range:
        shown["capture_range"] = process.capture_range
        shown["windows"] = [
            {
                "start_ns": window.start,
                "end_ns": window.end,
            }
            for window in process.windows
        ]
    for key in _VERSIONS:
        shown[key] = info.get(key)
    for key in ("sampled", "sample_interval"):
        if key in info:
            shown[key] = info[key]
    shown["rows"] = rows
    return shown


def _code_object(kernel: CodesOfKernel) -> dict[str, Any]:
    codes = sorted(kernel.codes)
    candidates = sorted(kernel.candidates)
    return {
        "codes": [{**asdict(code), "hash": code.text} for code in codes],
        "candidates": [code.text for code in candidates],
        "unknown": kernel.unknown,
    }


_SHORT_UUID = len("GPU-01234567")
_VERSIONS = (
    "producer",
    "driver_version",
    "runtime_version",
    "cupti_version",
    "cupti_path",
)


def _print(
    summary: Summary, trace: Trace, sources: tuple[Path, ...], size: int
) -> None:
    """Print the page for people. Lines are shortened on a terminal only."""
    title = f"{len(sources)} captures"
    if len(sources) == 1:
        title = options.shown(str(sources[0]))
    span = format_duration(summary.span)
    bold = click.style(printable(title), bold=True)
    put([f"{bold}  {format_size(size)}, {span}{_when(trace)}\n\n"])
    reasons: list[str] = []
    for process in summary.processes:
        reasons += process.dumped_because
    if reasons:
        put(f"Dumped because: {printable(reason)}\n" for reason in reasons)
        put(["\n"])
    put_tables("cutrace info", _tables(summary), "table")
    if summary.counts.get("call_stacks"):
        put([f"\n{_stacks(summary)}\n"])
    if trace.codes:
        put([f"\n{_codes(trace.codes)}\n"])
    put(["\n"])
    sentences = [
        *summary.quality.sentences(),
        *not_annotated(trace),
        *_early(summary),
    ]
    mark = click.style("!", fg="yellow")
    put(f"{mark} {printable(options.as_options(sentence))}\n" for sentence in sentences)
    if not sentences:
        put(["Nothing is known to be missing.\n"])
    for file in trace.imports:
        for leftover in file.leftovers():
            line = printable(f"{file.source}: {leftover}")
            put([f"{click.style(line, dim=True)}\n"])


def _tables(summary: Summary) -> list[Table]:
    from ..analysis.tables import Table, columns_of
    from ..collect.cuda import cupti_version_text, version_text

    processes = []
    for process, rows in zip(summary.processes, summary.process_counts, strict=True):
        driver = _version(process, "driver_version", version_text)
        cupti = _version(process, "cupti_version", cupti_version_text)
        ranges = rows.get("nvtx_ranges", 0)
        marks = rows.get("nvtx_marks", 0)
        row = (
            process.name,
            process.host,
            driver,
            cupti,
            str(process.pid),
            rows.get("kernels", 0),
            rows.get("api_calls", 0),
            ranges + marks,
        )
        processes.append(row)
    of_process = (
        "process: text, host: text spare, driver: text spare, CUPTI: text spare, pid: text, kernels, API calls, "
        "NVTX"
    )
    tables = [Table("processes", "Processes", columns_of(of_process), processes)]
    gpus = []
    for gpu in summary.gpus:
        gpu_row = (
            gpu.name,
            gpu.uuid[:_SHORT_UUID],
            gpu.kernels,
            gpu.kernel_ns,
            gpu.compute_ns,
            gpu.busy_ns,
            gpu.utilization,
        )
        gpus.append(gpu_row)
    of_gpu = "GPU: text, UUID: text, kernels, kernel time: ns spare, compute: ns spare, busy: ns, utilisation: 1"
    if gpus:
        tables.append(Table("gpus", "GPUs", columns_of(of_gpu), gpus))
    counts = list(summary.counts.items())
    tables.append(Table("rows", "Rows", columns_of("table: text, rows"), counts))
    tables += _samples(summary.processes)
    return tables


def _stacks(summary: Summary) -> str:
    """Return a line about the Python stacks of calls."""
    stacks = summary.counts.get("call_stacks", 0)
    calls = summary.counts.get("api_calls", 0)
    every = count_of(calls, "API call")
    return f"Python stacks: {stacks:,} of {every}; `cutrace stats --report stack_sum` sums them"


def _codes(codes: KernelCodes) -> str:
    """Return a line about the machine code of kernels."""
    kernels = codes.by_kernel.values()
    hashes: set[int] = set()
    several = 0
    unknown = 0
    for kernel in kernels:
        hashes.update(code.hash for code in kernel.codes)
        several += len(kernel.codes) > 1
        unknown += kernel.unknown
    names = count_of(len(kernels), "kernel name")
    parts = [f"{count_of(len(hashes), 'code')} of {names}"]
    if several:
        parts.append(f"{several:,} with several codes")
    if unknown:
        parts.append(f"{unknown:,} with launches whose code is not known")
    return f"Machine code: {', '.join(parts)}"


def _samples(processes: Iterable[Process]) -> Iterator[Table]:
    """Yield a table of the sampled hardware counters of each process."""
    from ..analysis.tables import Table, columns_of

    for process in processes:
        sampled = process.info.get("sampled")
        interval = process.info.get("sample_interval")
        if isinstance(sampled, dict) and isinstance(interval, int):
            every = format_duration(interval)
            title = f"Hardware counters, every {every}"
            columns = columns_of("counter: text, description: text")
            meanings = map(str, sampled.values())
            rows = list(zip(sampled, meanings, strict=True))
            yield Table("sampled", title, columns, rows)


def _when(trace: Trace) -> str:
    """Return the time of the start of the capture, by the wall clock of its machine."""
    from ..trace.alignment import recorded

    began = recorded(trace.clocks, trace.start)
    if began is None:
        return ""
    return began.strftime(", recorded %Y-%m-%d %H:%M:%S")


def _version(process: Process, key: str, text: Callable[[int], str]) -> str:
    version = process.info.get(key)
    if isinstance(version, int) and version:
        return text(version)
    return "-"


def _early(summary: Summary) -> Iterator[str]:
    """Sentences on work that seems to start before its launch."""
    for table, early in summary.early_starts.items():
        if early.count:
            largest = format_duration(early.largest_ns)
            yield (
                f"{early.count:,} of {early.checked:,} {table} seem to start before their launch, "
                f"by {largest} at most: the GPU's clock is known no better than that"
            )
