"""Part files: the partial results of ranks, as Parquet files in a folder for each job and rank.

A part names its source, so the folder itself tells which files are done.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

from ...errors import CutraceError
from ...loading import Clock, load
from ...outputs import replacing, size_of, unwritable
from ...trace import Trace
from ...trace.alignment import Alignment
from ...trace.arrow import package
from ...trace.quality import GPU_WORK, Quality
from ...units import printable
from .model import BatchOptions, BatchReport, Part, RankTrace, removed, short

_METADATA = b"cutrace.batch"
_RANK = re.compile(r"rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """One file to map. ``number`` is its index among the files, ``job`` the name of its job ("" for the one of the
    file), ``stamp`` its size and time of change when the batch began. ``clock`` is as in :func:`cutrace.load`."""

    report: BatchReport
    source: str
    number: int
    job: str
    options: BatchOptions
    stamp: tuple[int, int]
    clock: Clock = "align"

    def identity(self) -> dict[str, Any]:
        """What a part of this file must say of its origin to be used again."""
        about = {
            "report": self.report.name,
            "source": self.source,
            "stamp": list(self.stamp),
        }
        return about | {
            "cutrace": version("cutrace"),
            "name": self.options.name,
            "given_job": self.job,
            "given_clock": self.clock,
        }


@dataclass(frozen=True)
class Mapped:
    """The parts of a file by job and rank, as Parquet. ``damage`` are sentences about what could not be read."""

    parts: tuple[tuple[str, int, bytes], ...] = ()
    damage: tuple[str, ...] = ()


def stamp(source: Path) -> tuple[int, int]:
    """Return the size (bytes) and the time of change (ns) of a file or folder; zeros if there is none."""
    try:
        return size_of(source), source.stat().st_mtime_ns
    except OSError:
        return 0, 0


def map_file(task: Task) -> Mapped:
    """Map all ranks of a file. This runs in a worker. A file that cannot be used is described, not raised."""
    try:
        with load(task.source, clock=task.clock) as trace:
            ranks = [
                (job, number, RankTrace(trace, processes))
                for job, number, processes in _ranks(trace, task)
            ]
            tables = []
            for job, number, rank in ranks:
                kept = Alignment(error=None)
                clock = kept if task.clock == "keep" else rank.clock
                table = task.report.map(rank, task.options)
                tables.append((job, number, clock, table))
            # Damage inside of blocks is known once they are read.
            damage = tuple(Quality({}, (), trace.damage, (), ()).sentences())
            about = task.identity() | {"parts": len(tables), "damage": damage}
            return Mapped(
                tuple(
                    (
                        job,
                        rank,
                        _parquet(
                            table,
                            about | {"job": job, "rank": rank, "clock": asdict(clock)},
                        ),
                    )
                    for job, rank, clock, table in tables
                ),
                damage,
            )
    except (CutraceError, OSError) as error:
        return Mapped(damage=(str(error),))


def _ranks(trace: Trace, task: Task) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return job, rank and processes of each rank in a trace."""
    path = Path(task.source)
    folder = printable(path.parent.name) or "0"
    named = _RANK.search(path.name)
    own = int(named[1]) if named else task.number
    work = [
        process
        for process, infos in enumerate(trace.infos_by_process(GPU_WORK))
        if infos
    ]
    # Processes of one file that do not tell their ranks are numbered by GPU; one alone is the rank of its file.
    devices = dict(sorted(trace.contexts[["process", "device"]].tolist(), reverse=True))
    unknown = [process for process in work if trace.processes[process].rank is None]
    unknown.sort(
        key=lambda process: (devices.get(process, 0), trace.processes[process].pid)
    )
    if len(unknown) == 1:
        numbers = {unknown[0]: own}
    else:
        numbers = {process: index for index, process in enumerate(unknown)}
    groups: dict[tuple[str, int], list[int]] = {}
    for process in trace.processes:
        rank = process.rank if process.rank is not None else numbers.get(process.index)
        if rank is not None:
            groups.setdefault((task.job or process.job or folder, rank), []).append(
                process.index
            )
    without_work = [
        p.index for p in trace.processes if p.rank is None and p.index not in numbers
    ]
    if not groups:
        groups[task.job or folder, own] = []
    # What a process without GPU work and without a rank did, such as a launcher, counts for the first rank.
    first = min(groups)
    groups[first] = sorted([*groups[first], *without_work])
    return [
        (job, rank, tuple(processes))
        for (job, rank), processes in sorted(groups.items())
    ]


def _parquet(table: Any, about: dict[str, Any]) -> bytes:
    pa = package("pyarrow", "parquet", "batch")
    parquet = package("pyarrow.parquet", "parquet", "batch")
    sink = pa.BufferOutputStream()
    metadata = (table.schema.metadata or {}) | {_METADATA: json.dumps(about).encode()}
    parquet.write_table(
        table.replace_schema_metadata(metadata),
        sink,
        compression="zstd",
        write_page_checksum=True,
    )
    content: bytes = sink.getvalue().to_pybytes()
    return content


class PartFolder:
    """The parts of a report in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._about = {
            path: about
            for path in sorted(folder.glob("job=*/rank=*/*.parquet"))
            if (about := _read(path))
        }

    def done(self, identity: dict[str, Any]) -> tuple[str, ...] | None:
        """Return the damage of a file that was mapped before, None if all of its parts are not there."""
        own = [
            about for about in self._about.values() if identity.items() <= about.items()
        ]
        if own and len(own) == own[0]["parts"]:
            return tuple(own[0]["damage"])
        return None

    def add(self, task: Task, mapped: Mapped) -> None:
        """Replace the parts of a file. Raises :class:`CutraceError` if they cannot be written."""
        self._remove(
            [
                path
                for path, about in self._about.items()
                if about["source"] == task.source
            ]
        )
        stem = f"{printable(Path(task.source).name.partition('.')[0][:80])}-{crc32(os.fsencode(task.source)):08x}"
        for job, rank, content in mapped.parts:
            path = (
                self._folder
                / f"job={quote(job, safe='')}"
                / f"rank={rank}"
                / f"{stem}.parquet"
            )
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(path, error) from None
            with replacing(path) as temporary:
                temporary.write_bytes(content)
            about = _read(path)
            if not about:
                raise removed(path)
            self._about[path] = about

    def keep(self, sources: set[str]) -> None:
        """Remove the parts of other sources."""
        self._remove(
            [
                path
                for path, about in self._about.items()
                if about["source"] not in sources
            ]
        )

    def parts(self) -> list[Part]:
        """Return all parts, in the order of job, rank and source."""
        parts = sorted(
            (about["job"], about["rank"], about["source"], str(path), about["clock"])
            for path, about in self._about.items()
        )
        labels = _labels([(job, rank, source) for job, rank, source, *_ in parts])
        return [
            Part(Path(path), label, job, rank, source, Alignment(**clock))
            for label, (job, rank, source, path, clock) in zip(
                labels, parts, strict=True
            )
        ]

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            del self._about[path]
            path.unlink(missing_ok=True)
            # Folders with other parts stay.
            with suppress(OSError):
                path.parent.rmdir()
                path.parent.parent.rmdir()


def _read(path: Path) -> dict[str, Any]:
    """Return what a part says of its origin; {} for other files, and for parts that are damaged."""
    pa = package("pyarrow", "parquet", "batch")
    parquet = package("pyarrow.parquet", "parquet", "batch")
    try:
        with path.open("rb") as file:
            about = json.loads((parquet.read_schema(file).metadata or {})[_METADATA])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return {}
    if isinstance(about, dict):
        return about
    return {}


def _labels(ranks: Sequence[tuple[str, int, str]]) -> Iterator[str]:
    """Yield a name for each rank: with its job if there are several, and its file if that does not suffice."""
    jobs = len({job for job, *_ in ranks})
    numbers = [(job, rank) for job, rank, _ in ranks]
    several = len(set(numbers)) < len(numbers)
    sources = list(dict.fromkeys(source for *_, source in ranks))
    files = dict(zip(sources, short(sources), strict=True))
    for job, rank, source in ranks:
        yield f"{f'{job} ' if jobs > 1 else ''}rank {rank}{f' ({files[source]})' if several else ''}"
