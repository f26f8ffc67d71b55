"""cutrace info: show the contents of a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
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
    from ..trace.codes import KernelCodes


@click.command()
@options.sources("CAPTURE...")
@options.form(["text", "json"])
@options.as_json
@options.clock
def info(sources: tuple[Path, ...], form: str, as_json: bool, clock: Clock) -> None:
    """Show the processes, GPUs, rows and losses of CAPTURE, or of several as one."""
    from .. import api
    from ..loading import opened

    with opened(sources, clock=clock) as trace:
        summary = api.info(trace)
        size = sum(size_of(source) for source in sources)
        if as_json or form == "json":
            put_json("cutrace info", **_object(summary, trace, sources, size))
        else:
            _print(summary, trace, sources, size)


def _object(
    summary: Summary, trace: Trace, sources: tuple[Path, ...], size: int
) -> dict[str, Any]:
    quality = summary.quality
    return {
        "captures": [str(source) for source in sources],
        "bytes": size,
        "start_ns": summary.start,
        "end_ns": summary.end,
        "span_ns": summary.span,
        "processes": [
            {
                "pid": p.pid,
                "name": p.name,
                "host": p.host,
                "command": list(p.command),
                "complete": p.complete,
                **(
                    {"dumped_because": list(p.dumped_because)}
                    if p.dumped_because
                    else {}
                ),
                **_windows(p),
                **{key: p.info.get(key) for key in _VERSIONS},
                **{
                    key: p.info[key]
                    for key in ("sampled", "sample_interval")
                    if key in p.info
                },
                "rows": rows,
            }
            for p, rows in zip(summary.processes, summary.process_counts, strict=True)
        ],
        "gpus": [
            {
                name: round(value, 6) if name == "utilization" else value
                for name, value in asdict(gpu).items()
            }
            for gpu in summary.gpus
        ],
        "rows": summary.counts,
        "lossless": quality.lossless,
        "losses": [
            {
                "reason": x.reason,
                "count": x.count,
                "detail": x.detail,
                "process": x.process,
            }
            for x in quality.losses
        ],
        "unknown_times": quality.unknown,
        "damage": [
            {"offset": d.offset, "bytes": d.size, "rows": d.rows, "reason": d.reason}
            for d in quality.damage
        ],
        "early_starts": {
            table: asdict(early) for table, early in summary.early_starts.items()
        },
        **({"codes": _code_object(trace.codes)} if trace.codes else {}),
        "notes": [*quality.notes, *not_annotated(trace)],
        "imports": [asdict(file) for file in trace.imports],
    }


def _code_object(codes: KernelCodes) -> dict[str, Any]:
    return {
        name: {
            "codes": [
                {**asdict(code), "hash": code.text} for code in sorted(kernel.codes)
            ],
            "candidates": [code.text for code in sorted(kernel.candidates)],
            "unknown": kernel.unknown,
        }
        for name, kernel in codes.by_kernel.items()
    }


def _windows(process: Process) -> dict[str, Any]:
    """What a process with a capture range recorded."""
    if not process.capture_range:
        return {}
    windows = [
        {"start_ns": window.start, "end_ns": window.end} for window in process.windows
    ]
    return {"capture_range": process.capture_range, "windows": windows}


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
    """Print the page for people. Outside a terminal, lines are not shortened."""
    if len(sources) == 1:
        title = options.shown(str(sources[0]))
    else:
        title = f"{len(sources)} captures"
    span = f"{format_size(size)}, {format_duration(summary.span)}{_when(trace)}"
    reasons = [
        f"Dumped because: {printable(reason)}\n"
        for p in summary.processes
        for reason in p.dumped_because
    ]
    put(
        [
            f"{click.style(printable(title), bold=True)}  {span}\n\n",
            *reasons,
            "\n" * bool(reasons),
        ]
    )
    put_tables("cutrace info", _tables(summary), "table")
    if summary.counts.get("call_stacks"):
        put([f"\n{_stacks(summary)}\n"])
    if trace.codes:
        put([f"\n{_codes(trace.codes)}\n"])
    sentences = [*summary.quality.sentences(), *not_annotated(trace), *_early(summary)]
    put(
        [
            "\n",
            *(
                f"{click.style('!', fg='yellow')} {printable(sentence)}\n"
                for sentence in sentences
            ),
        ]
    )
    if not sentences:
        put(["Nothing is known to be missing.\n"])
    leftovers = (
        f"{file.source}: {line}" for file in trace.imports for line in file.leftovers()
    )
    put(f"{click.style(printable(line), dim=True)}\n" for line in leftovers)


def _tables(summary: Summary) -> list[Table]:
    from ..analysis.tables import Table, columns_of
    from ..collect.cuda import cupti_version_text, version_text

    processes = [
        (p.name, p.host, _version(p, "driver_version", version_text), _version(p, "cupti_version", cupti_version_text),
         str(p.pid), rows.get("kernels", 0), rows.get("api_calls", 0),
         rows.get("nvtx_ranges", 0) + rows.get("nvtx_marks", 0))
        for p, rows in zip(summary.processes, summary.process_counts, strict=True)
    ]  # fmt: skip
    # The start of the UUID distinguishes GPUs; JSON has all of it.
    gpus = [
        (
            g.name,
            g.uuid[:_SHORT_UUID],
            g.kernels,
            g.kernel_ns,
            g.compute_ns,
            g.busy_ns,
            g.utilization,
        )
        for g in summary.gpus
    ]
    of_process = "process: text, host: text, driver: text, CUPTI: text, pid: text, kernels, API calls, NVTX"
    of_gpu = "GPU: text, UUID: text, kernels, kernel time: ns, compute: ns, busy: ns, utilisation: 1"
    tables = [
        Table("processes", "Processes", columns_of(of_process), processes),
        Table("gpus", "GPUs", columns_of(of_gpu), gpus),
        Table(
            "rows",
            "Rows",
            columns_of("table: text, rows"),
            list(summary.counts.items()),
        ),
    ]
    tables += _samples(summary.processes)
    return [table for table in tables if table.rows or table.name != "gpus"]


def _stacks(summary: Summary) -> str:
    """Return a line about the Python stacks of calls."""
    stacks, calls = (
        summary.counts.get(table, 0) for table in ("call_stacks", "api_calls")
    )
    return f"Python stacks: {stacks:,} of {count_of(calls, 'API call')}; `cutrace stats --report stack_sum` sums them"


def _codes(codes: KernelCodes) -> str:
    """Return a line about the machine code of kernels."""
    kernels = codes.by_kernel.values()
    hashes = {code.hash for kernel in kernels for code in kernel.codes}
    several = sum(len(kernel.codes) > 1 for kernel in kernels)
    unknown = sum(kernel.unknown for kernel in kernels)
    parts = [
        f"{count_of(len(hashes), 'code')} of {count_of(len(kernels), 'kernel name')}"
    ]
    parts += [f"{several:,} with several codes"] if several else []
    parts += [f"{unknown:,} with launches whose code is not known"] if unknown else []
    return f"Machine code: {', '.join(parts)}"


def _samples(processes: Iterable[Process]) -> Iterator[Table]:
    """Yield a table of the sampled hardware counters of each process."""
    from ..analysis.tables import Table, columns_of

    for process in processes:
        sampled = process.info.get("sampled")
        interval = process.info.get("sample_interval")
        if isinstance(sampled, dict) and isinstance(interval, int):
            title = f"Hardware counters, every {format_duration(interval)}"
            columns = columns_of("counter: text, description: text")
            yield Table(
                "sampled",
                title,
                columns,
                [(name, str(meaning)) for name, meaning in sampled.items()],
            )


def _when(trace: Trace) -> str:
    """Return the begin of the capture, by the wall clock of its machine."""
    clocks = trace.clocks
    if not len(clocks):
        return ""
    realtime = (
        int(clocks[0]["realtime"]) - int(clocks[0]["boottime"]) + trace.start
    ) / 1e9
    return datetime.fromtimestamp(realtime).strftime(", recorded %Y-%m-%d %H:%M:%S")


def _version(process: Process, key: str, text: Callable[[int], str]) -> str:
    version = process.info.get(key)
    if isinstance(version, int) and version:
        return text(version)
    return "-"


def _early(summary: Summary) -> list[str]:
    return [
        f"{e.count:,} of {e.checked:,} {table} seem to start before their launch, "
        f"by {format_duration(e.largest_ns)} at most: the GPU's clock is known no better than that"
        for table, e in summary.early_starts.items()
        if e.count
    ]
