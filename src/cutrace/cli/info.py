"""cutrace info: what a capture holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..outputs import size_of
from ..units import format_duration, format_size, printable
from . import options

if TYPE_CHECKING:
    from rich.table import Table

    from ..analysis.summary import Summary
    from ..trace import Process, Trace


@click.command(short_help="Show what a capture holds.")
@options.sources("CAPTURE...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (documented in docs/cli.md).")
def info(sources: tuple[Path, ...], as_json: bool) -> int:
    """Show the processes, GPUs, rows and losses of CAPTURE, or of several as one."""
    from ..analysis.summary import summarize
    from ..loading import opened

    with opened(sources) as trace:
        summary = summarize(trace)
        size = sum(size_of(source) for source in sources)
        if as_json:
            click.echo(json.dumps(_object(summary, trace, sources, size), indent=2))
        else:
            _print(summary, trace, sources, size)
    return 0


def _object(summary: Summary, trace: Trace, sources: tuple[Path, ...], size: int) -> dict[str, Any]:
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
                **{key: p.info.get(key) for key in _VERSIONS},
                "rows": rows,
            }
            for p, rows in zip(summary.processes, summary.process_counts, strict=True)
        ],
        "gpus": [
            {
                "name": g.name,
                "uuid": g.uuid,
                "kernels": g.kernels,
                "kernel_ns": g.kernel_ns,
                "busy_ns": g.busy_ns,
                "compute_ns": g.compute_ns,
                "utilization": round(g.utilization, 6),
            }
            for g in summary.gpus
        ],
        "rows": summary.counts,
        "lossless": quality.lossless,
        "losses": [
            {"reason": x.reason, "count": x.count, "detail": x.detail, "process": x.process} for x in quality.losses
        ],
        "unknown_times": quality.unknown,
        "damage": [{"offset": d.offset, "bytes": d.size, "rows": d.rows, "reason": d.reason} for d in quality.damage],
        "early_starts": {
            table: {"checked": e.checked, "count": e.count, "largest_ns": e.largest_ns}
            for table, e in summary.early_starts.items()
        },
        "notes": list(quality.notes),
        "imports": [asdict(file) for file in trace.imports],
    }


_NO_LIMIT = 10_000
_SHORT_UUID = len("GPU-01234567")
_VERSIONS = ("producer", "driver_version", "runtime_version", "cupti_version", "cupti_path")


def _print(summary: Summary, trace: Trace, sources: tuple[Path, ...], size: int) -> None:
    from rich.console import Console
    from rich.markup import escape

    # Numbers and paths are not to be coloured by rich's guesses. What is not a terminal gets whole lines.
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _NO_LIMIT
    title = str(sources[0]) if len(sources) == 1 else f"{len(sources)} captures"
    console.print(f"[bold]{escape(title)}[/]  {format_size(size)}, {format_duration(summary.span)}{_when(trace)}")
    tables = [_processes(summary), *([_gpus(summary)] if summary.gpus else []), _rows(summary)]
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    sentences = [*summary.quality.sentences(), *_early(summary)]
    for sentence in sentences:
        console.print(f"[yellow]![/] {escape(printable(sentence))}")
    if not sentences:
        console.print("Nothing is known to be missing.")
    for file in trace.imports:
        for line in file.leftovers():
            console.print(f"[dim]{escape(printable(f'{file.source}: {line}'))}[/]")


def _when(trace: Trace) -> str:
    """When the capture began, by the wall clock of the machine that made it."""
    clocks = trace.clocks
    if not len(clocks):
        return ""
    realtime = (int(clocks[0]["realtime"]) - int(clocks[0]["boottime"]) + trace.start) / 1e9
    return datetime.fromtimestamp(realtime).strftime(", recorded %Y-%m-%d %H:%M:%S")


def _table(*columns: str, left: int) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold underline")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold", no_wrap=index >= left)
    return table


def _processes(summary: Summary) -> Table:
    from rich.markup import escape

    from ..collect.cuda import cupti_version_text, version_text

    table = _table("process", "host", "driver", "CUPTI", "pid", "kernels", "API calls", "NVTX", left=4)
    for p, rows in zip(summary.processes, summary.process_counts, strict=True):
        nvtx = rows.get("nvtx_ranges", 0) + rows.get("nvtx_marks", 0)
        counts = (rows.get("kernels", 0), rows.get("api_calls", 0), nvtx)
        versions = (
            _version(p, "driver_version", version_text),
            _version(p, "cupti_version", cupti_version_text),
        )
        names = (escape(printable(p.name)), escape(printable(p.host)))
        table.add_row(*names, *versions, str(p.pid), *(f"{n:,}" for n in counts))
    return table


def _version(process: Process, key: str, text: Callable[[int], str]) -> str:
    version = process.info.get(key)
    return text(version) if isinstance(version, int) and version else "-"


def _gpus(summary: Summary) -> Table:
    from rich.markup import escape

    table = _table("GPU", "UUID", "kernels", "kernel time", "compute", "busy", "utilisation", left=2)
    for g in summary.gpus:
        times = map(format_duration, (g.kernel_ns, g.compute_ns, g.busy_ns))
        # As much of the UUID as tells GPUs apart; --json has all of it.
        table.add_row(escape(printable(g.name)), g.uuid[:_SHORT_UUID], f"{g.kernels:,}", *times, _share(g.utilization))
    return table


def _share(part: float) -> str:
    return "<0.1%" if 0 < part < 0.001 else f"{part:.1%}"


def _rows(summary: Summary) -> Table:
    table = _table("table", "rows", left=1)
    for name, rows in summary.counts.items():
        table.add_row(name, f"{rows:,}")
    return table


def _early(summary: Summary) -> list[str]:
    return [
        f"{e.count:,} of {e.checked:,} {table} seem to start before their launch, "
        f"by {format_duration(e.largest_ns)} at most: the GPU's clock is known no better than that"
        for table, e in summary.early_starts.items()
        if e.count
    ]
