"""Part files: the partial results of ranks, as Parquet files in a folder for each job and rank.

A part names its source, so the folder shows which files are finished.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import numpy as np

from ...errors import CutraceError, package
from ...loading import Clock, load
from ...outputs import unwritable
from ...runbin.layout import GPU_WORK
from ...trace import Quality, Trace
from ...trace.alignment import Alignment
from ...trace.process import Process, recording_of
from ...units import printable
from .jobs import joined, labeled
from .model import BatchOptions, BatchReport, Part, RankTrace, removed
from .remote import local

#: The JSON object in a part that describes its origin.
About = dict[str, Any]

_METADATA = b"cutrace.batch"
_RANK = re.compile(r"rank[-_.]?(\d{1,9})(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """One file to map for all ``reports``. ``number`` is its index among the files. ``job`` is the name of its job, ""
    to use the name in the file. ``stamp`` is its size and its modification time when the batch started. ``clock`` is as
    in :func:`cutrace.load`."""

    reports: tuple[BatchReport, ...]
    source: str
    number: int
    job: str
    options: BatchOptions
    stamp: tuple[int, int]
    clock: Clock = "align"

    def identity(self, report: BatchReport) -> About:
        """The values that the description of a part of this file must have for another use of the part."""
        name = ""
        if "name" in report.needs:
            name = self.options.name
        return {
            "report": report.name,
            "source": self.source,
            "stamp": list(self.stamp),
            "cutrace": own_version(),
            "name": name,
            "given_job": self.job,
            "given_clock": self.clock,
        }


#: The states of files that were read, the best first.
_STATES = ("done", "incomplete", "damaged")


@dataclass(frozen=True)
class FileOutcome:
    """The outcome of a file. ``state`` is ``done``, ``skipped`` (its parts were there), ``incomplete`` (records are
    missing), ``duplicate`` (another file has the same recording, so it is not counted), ``damaged`` (a part could
    not be read), ``failed`` (each worker that read it died) or ``unread`` (the batch ended before). ``notes`` are
    sentences, also for a complete file. ``retried`` is True if a worker died. ``lost`` counts missing records by
    meaning."""

    source: str
    state: str
    notes: Sequence[str] = ()
    retried: bool = False
    bad: bool = False
    lost: Sequence[tuple[str, int]] = ()

    @classmethod
    def of(cls, source: str, quality: Quality) -> FileOutcome:
        """The outcome of a file that was read."""
        state = "done"
        unreadable = replace(quality, unknown={}, losses=(), notes=())
        if list(unreadable.sentences()):
            state = "damaged"
        elif quality.lacks_records:
            state = "incomplete"
        lost = Counter[str]()
        for loss in quality.losses:
            lost[loss.meaning] += loss.count
        return cls(
            source,
            state,
            tuple(quality.sentences()),
            bad=state != "done",
            lost=tuple(lost.items()),
        )


@dataclass(frozen=True)
class MappedPart:
    """The part of a rank for a report: the description of its origin, and the whole file as Parquet."""

    report: str
    about: About
    content: bytes

    @classmethod
    def of(
        cls,
        report: str,
        table: Any,
        about: About,
    ) -> MappedPart:
        pa = package("pyarrow", "batch")
        parquet = package("pyarrow.parquet", "batch")
        text = json.dumps(about)
        metadata = table.schema.metadata or {}
        metadata = metadata | {_METADATA: text.encode()}
        sink = pa.BufferOutputStream()
        parquet.write_table(
            table.replace_schema_metadata(metadata),
            sink,
            compression="zstd",
            write_page_checksum=True,
        )
        # The round trip through JSON gives the types that a reader of the file gets.
        return cls(report, json.loads(text), sink.getvalue().to_pybytes())


@dataclass(frozen=True)
class Mapped:
    """The outcome of a file, and its parts for all reports. A file with an error has no parts."""

    outcome: FileOutcome
    parts: tuple[MappedPart, ...] = ()


def map_file(task: Task) -> Mapped:
    """Map all ranks of a file, in a worker. For an unusable file, the result describes the error, and nothing is
    raised."""
    try:
        with local(task.source) as path, load(path, clock=task.clock) as trace:
            ranks = _ranks(trace, task)
            collects = [report.collects for report in task.reports]
            every = tuple(chain.from_iterable(collects))
            tables = []
            for about, processes in ranks:
                rank = RankTrace(trace, processes, every)
                about |= _presence(rank, task)
                # Reports may share a mapper.
                tables_of: dict[Any, Any] = {}
                for report in task.reports:
                    if report.map not in tables_of:
                        tables_of[report.map] = report.map(rank, task.options)
                    tables.append((report, about, processes, tables_of[report.map]))
            # Damage inside blocks is known only after they are read.
            quality = trace.quality
            outcome = FileOutcome.of(task.source, quality)
            origin: About = {
                "parts": len(ranks),
                "recordings": _recordings(trace, path),
                "outcome": asdict(outcome),
            }
            parts = []
            for report, about, processes, table in tables:
                of_rank = about | {"incomplete": quality.of(processes).lacks_records}
                whole = task.identity(report) | origin | {"rank": of_rank}
                parts.append(MappedPart.of(report.name, table, whole))
            return Mapped(outcome, tuple(parts))
    except (CutraceError, OSError) as error:
        return Mapped(FileOutcome(task.source, "damaged", (str(error),), bad=True))


def _presence(rank: RankTrace, task: Task) -> About:
    """The statements of a file about a rank, as fields of :class:`Part`."""
    infos = rank.trace.infos_by_process(GPU_WORK)
    members = []
    times = []
    worked = False
    for process in rank.processes:
        members.append(rank.trace.processes[process])
        worked |= bool(infos[process])
        for info in chain.from_iterable(infos[process].values()):
            times += [info.first_time, info.last_time]
    clock = rank.clock
    if task.clock == "keep":
        clock = Alignment(error=None)
    span = None
    known = [time for time in times if time]
    if known and clock.error is not None:
        ends = np.array([min(known), max(known)])
        span = rank.moved(ends).tolist()
    ranks = [member for member in members if member.rank is not None]
    jobs = [member.job for member in members]
    return {
        "clock": asdict(clock),
        "job_told": bool(task.job) or any(jobs),
        "worked": worked,
        "host": printable(_shared(ranks or members, "host") or ""),
        "boot": _shared(ranks or members, "boot_id") or "",
        "local_rank": _shared(ranks, "local_rank"),
        "times": span,
    }


def _shared(members: Sequence[Process], name: str) -> Any:
    """The value of an attribute that all members have, None if their values differ."""
    values = {getattr(member, name) for member in members}
    if len(values) == 1:
        return values.pop()
    return None


def _digest(source: str) -> str:
    """A digest of the contents of a file."""
    digest = blake2b(digest_size=16)
    with Path(source).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _recordings(trace: Trace, source: str) -> list[str]:
    """Keys of the recordings in a file; files with a common key hold the same recording. Copies of a capture share its
    instance and pid, as for merge. Slices share a process and its start. A file that states no process has a digest of
    its contents."""
    keys = []
    for process, (instance, pid) in zip(trace.processes, trace.recordings, strict=True):
        keys.append(f"{instance:x} {pid}")
        recording = recording_of(pid, process.info)
        if recording is not None:
            keys.append(" ".join(map(str, recording)))
        elif trace.imports and Path(source).is_file():
            keys.append(_digest(source))
    return list(dict.fromkeys(keys))


def _ranks(trace: Trace, task: Task) -> list[tuple[About, tuple[int, ...]]]:
    """Return the known properties of each rank in a trace (fields of :class:`Part`), and its processes."""
    folder = printable(Path(task.source).parent.name) or "0"
    told = _told_ranks(trace, task)
    numbers = _numbers(trace, task, told)
    groups: dict[tuple[str, int], list[int]] = {}
    without_work = []
    for process in trace.processes:
        index = process.index
        rank, _ = told.get(index, (numbers.get(index), 0))
        if rank is None:
            without_work.append(index)
            continue
        job = task.job or process.job or folder
        groups.setdefault((job, rank), []).append(index)
    if not groups:
        groups[task.job or folder, _number_of_file(task)] = []
    # Processes without GPU work and without a rank, such as launchers, belong to the first rank.
    groups[min(groups)] += without_work
    ranks: list[tuple[About, tuple[int, ...]]] = []
    for (job, rank), processes in sorted(groups.items()):
        worlds = {told[process][1] for process in processes if process in told}
        world = 0
        if len(worlds) == 1:
            (world,) = worlds
        # Several processes that state no rank are numbered, whatever the name of the file.
        told_by_name = len(groups) == 1 and rank == _named_rank(task)
        about = {
            "job": job,
            "rank": rank,
            "told": bool(worlds) or told_by_name,
            "world": world,
        }
        ranks.append((about, tuple(sorted(processes))))
    return ranks


def _told_ranks(trace: Trace, task: Task) -> dict[int, tuple[int, int]]:
    """The rank and the number of ranks (0 if unknown) of each process that states them, by process. They come from the
    environment, else from the calls of NCCL."""
    told = {}
    of_nccl = {}
    for process in trace.processes:
        rank = process.rank
        if rank is not None:
            told[process.index] = (rank, process.world_size or 0)
            continue
        world = trace.nccl.world(process.index)
        if world:
            of_nccl[process.index] = world
    if _is_one_world(list(of_nccl.values()), task) and not told:
        return of_nccl
    return told


def _is_one_world(worlds: Sequence[tuple[int, int]], task: Task) -> bool:
    """Whether ranks from NCCL can be the ranks of one job, without a contradiction to the file name."""
    ranks = [rank for rank, _ in worlds]
    sizes = {size for _, size in worlds}
    named = _named_rank(task)
    if named is not None and ranks != [named]:
        return False
    return len(sizes) == 1 and len(set(ranks)) == len(ranks)


def _numbers(trace: Trace, task: Task, told: Collection[int]) -> dict[int, int]:
    """The rank of each process with GPU work and without a stated rank, by process. Several such processes are numbered
    in the order of their GPUs. A single one has the number of its file."""
    # The first device of each process.
    devices = dict(sorted(trace.contexts[["process", "device"]].tolist(), reverse=True))
    unknown = []
    for process, infos in enumerate(trace.infos_by_process(GPU_WORK)):
        if infos and process not in told:
            unknown.append(process)
    if len(unknown) == 1:
        return {unknown[0]: _number_of_file(task)}
    unknown.sort(
        key=lambda process: (devices.get(process, 0), trace.processes[process].pid)
    )
    return {process: number for number, process in enumerate(unknown)}


def _number_of_file(task: Task) -> int:
    """The rank in the file name, else the index of the file."""
    named = _named_rank(task)
    if named is None:
        return task.number
    return named


def _named_rank(task: Task) -> int | None:
    """The rank in the file name."""
    named = _RANK.search(Path(task.source).name)
    if named is None:
        return None
    return int(named[1])


class PartFolder:
    """The parts of a report in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The descriptions of the parts of each source, by path.
        self._sources: dict[str, dict[Path, About]] = {}
        for path in sorted(folder.glob("job=*/rank=*/*.parquet")):
            about = _read(path)
            if about:
                self._known(path, about)

    def __len__(self) -> int:
        """The number of sources."""
        return len(self._sources)

    def done(self, identity: About) -> FileOutcome | None:
        """Return the outcome of a file that was mapped before. None if a part of it is missing."""
        wanted = identity.items()
        of_source = self._sources.get(identity["source"], {})
        own = [about for about in of_source.values() if wanted <= about.items()]
        if own and len(own) == own[0]["parts"]:
            return FileOutcome(**own[0]["outcome"])
        return None

    def add(self, source: str, parts: Iterable[MappedPart]) -> None:
        """Replace the parts of a file. Raises :class:`CutraceError` if they cannot be written."""
        self._remove(source)
        stem, _, _ = Path(source).name.partition(".")
        checksum = crc32(os.fsencode(source))
        name = f"{printable(stem[:80])}-{checksum:08x}.parquet"
        for part in parts:
            of_rank = part.about["rank"]
            folder = self._folder_of(of_rank["job"], of_rank["rank"])
            path = folder / name
            # Creating a temporary folder would take longer than writing the part.
            temporary = folder / f".{name}.new"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                temporary.write_bytes(part.content)
                temporary.replace(path)
            except OSError as error:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise unwritable(path, error) from None
            self._known(path, part.about)

    def duplicates(self, sources: Sequence[str]) -> dict[str, str]:
        """Map each source that repeats the recording of another source to the other source. Whole files count before
        those that lack records, else the first file counts."""
        recordings = {}
        lacks = {}
        for source, of_source in self._sources.items():
            about = next(iter(of_source.values()))
            recordings[source] = about["recordings"]
            lacks[source] = _STATES.index(about["outcome"]["state"])
        read = [source for source in sources if source in recordings]
        holders: dict[str, str] = {}
        repeated = {}
        for source in sorted(read, key=lacks.__getitem__):
            own = recordings[source]
            known = [holders[recording] for recording in own if recording in holders]
            if known:
                repeated[source] = known[0]
                continue
            for recording in own:
                holders[recording] = source
        return repeated

    def keep(self, sources: set[str]) -> None:
        """Remove the parts of other sources."""
        for source in self._sources.keys() - sources:
            self._remove(source)

    def parts(self) -> list[Part]:
        """Return all parts, in the order of job, rank and source."""
        found = []
        every = chain.from_iterable(of.items() for of in self._sources.values())
        for path, about in every:
            of_rank = about["rank"]
            clock = Alignment(**of_rank["clock"])
            fields = of_rank | {"clock": clock, "source": about["source"]}
            found.append(Part(path=path, label="", **fields))
        found = [self._placed(part) for part in joined(found)]
        found.sort(key=lambda part: (part.job, part.rank, part.source, str(part.path)))
        return labeled(found)

    def _placed(self, part: Part) -> Part:
        """The part with its path in the folder of its job."""
        path = self._folder_of(part.job, part.rank) / part.path.name
        if path == part.path:
            return part
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.path.replace(path)
        except FileNotFoundError:
            raise removed(part.path) from None
        except OSError as error:
            raise unwritable(path, error) from None
        of_source = self._sources[part.source]
        of_source[path] = of_source.pop(part.path)
        _remove_empty(part.path.parent)
        return replace(part, path=path)

    def _folder_of(self, job: str, rank: int) -> Path:
        of_job = self._folder / f"job={quote(job, safe='')}"
        return of_job / f"rank={rank}"

    def _known(self, path: Path, about: About) -> None:
        of_source = self._sources.setdefault(about["source"], {})
        of_source[path] = about

    def _remove(self, source: str) -> None:
        for path in self._sources.pop(source, {}):
            path.unlink(missing_ok=True)
            _remove_empty(path.parent)


def _remove_empty(folder: Path) -> None:
    """Remove the folder of a rank and the folder of its job. Folders that contain other parts stay."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


@cache
def own_version() -> str:
    """The version of cutrace in this process."""
    return version("cutrace")


def _read(path: Path) -> About:
    """Return the description of a part's origin; {} for other files and for damaged parts."""
    pa = package("pyarrow", "batch")
    parquet = package("pyarrow.parquet", "batch")
    try:
        with path.open("rb") as file:
            metadata = parquet.read_schema(file).metadata or {}
            about = json.loads(metadata[_METADATA])
    except (OSError, KeyError, ValueError, pa.ArrowException):
        return {}
    if isinstance(about, dict) and "outcome" in about:
        return about
    return {}
