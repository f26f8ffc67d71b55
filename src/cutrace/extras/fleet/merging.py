"""Traces of many ranks and machines on one timeline, in one file.

Captures are copied block by block. Only times and process descriptions change. :mod:`.trace.alignment` aligns the
clocks of machines.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...arguments import checked
from ...conversion import check_destination, check_request
from ...conversion import write as convert
from ...errors import CutraceError
from ...exporters.base import Request
from ...loading import Clock, StrPath, join, listed
from ...outputs import check_output, replacing, scratch, unwritable
from ...runbin.copying import Changes, copy, with_note
from ...runbin.layout import TableLayout
from ...runbin.reader import Reader
from ...trace import Process, Trace
from ...trace import load as load_capture
from ...trace.alignment import Alignment
from ...units import count_of, format_duration
from .matching import named_ranks
from .trace_clocks import clock_errors_of

_ARCHIVE = ".tar"
_MANIFEST = "perfetto_manifest.json"
_MAX_NAME = 90


@dataclass(frozen=True)
class Rank:
    """One merged file: its name in the result, its source, and the alignment of its clock. ``ahead`` is the time (ns)
    that its clock was ahead according to collectives. This error is removed."""

    name: str
    source: str
    host: str
    processes: int
    alignment: Alignment
    ahead: int = 0

    @property
    def where(self) -> str:
        """The name of the rank, and its host if the file states it."""
        if self.host:
            return f"{self.name} ({self.host})"
        return self.name

    def sentence(self) -> str:
        where = self.where
        alignment = self.alignment
        if alignment.error is None and self.ahead:
            return f"{where}: there are no clock snapshots to align it; it was moved by the ends of collectives"
        if alignment.error is None:
            return f"{where}: there are no clock snapshots to align it; it was moved to the start of the first"
        if alignment == Alignment():
            return f"{where}: on the clock of the result"
        sentence = f"{where}: moved by {alignment.offset / 1e9:+,.9f} s"
        if alignment.drift:
            sentence += f", drifting by {alignment.drift * 1e6:+.3f} us a second"
        sentence += f", to within {format_duration(alignment.error)}"
        if alignment.stepped:
            sentence += "; its wall clock was set while it was recorded"
        if self.ahead:
            way = "ahead" if self.ahead > 0 else "behind"
            sentence += f"; its clock was {format_duration(abs(self.ahead))} {way}, by the ends of collectives"
        return sentence


@checked
def merge(
    sources: StrPath | Sequence[StrPath],
    destination: StrPath,
    *,
    names: Sequence[str] = (),
    number: bool = False,
    clock: Clock = "align",
    request: Request | None = None,
) -> tuple[Rank, ...]:
    """Merge captures, or other files that :func:`cutrace.load` reads. The result has the clock of the first one. If
    times on it would be negative, the result has the clock of the machine that booted first.

    ``destination`` is a capture (``.bin``), an archive for Perfetto with a trace for each source (``.tar``), or any
    format of :func:`cutrace.convert`. ``names`` has the name of the rank in each source. Without ``names``, a rank is
    named after the rank in its source or, with ``number``, after the index of its source. With ``clock="keep"`` no time
    is moved. ``request.say`` gets sentences about records that the sources lack. Returns how each source was aligned.

    Raises :class:`CutraceError` when a source cannot be used, two sources are one recording, or the destination cannot
    be written.
    """
    paths = list(map(Path, listed(sources)))
    destination = Path(destination)
    if not paths:
        raise CutraceError("there is nothing to merge: name two files or more")
    if names and len(names) != len(paths):
        raise CutraceError(
            f"{count_of(len(names), 'name')} for {count_of(len(paths), 'file')}: give each file one"
        )
    if "" in names:
        raise CutraceError("the name of a rank is empty: give each file a name")
    request = request or Request()
    say = request.say
    # Each conversion would print the share of its GPU time in ranges.
    request = replace(request, say=Request().say)
    of_archive = destination.suffix.lower() == _ARCHIVE and not request.format
    of_capture = False
    if of_archive:
        check_output(destination, paths)
    else:
        exporter = check_destination(destination, paths, request.format, request.table)
        check_request(exporter, request)
        of_capture = exporter.name == "capture"
    with scratch() as folder, _joined(paths, folder / "joined.bin", clock) as joined:
        ranks = _ranks(joined, names, number)
        changes = _RankChanges(joined, ranks, named=bool(names) or number)
        if of_archive:
            with replacing(destination) as temporary:
                _write_archive(
                    temporary,
                    folder,
                    joined,
                    ranks,
                    changes,
                    request,
                )
        elif of_capture:
            with replacing(destination) as temporary:
                joined.copy(changes, temporary)
        else:
            whole = folder / "whole.bin"
            joined.copy(changes, whole)
            with load_capture(whole) as trace:
                convert(trace, destination, request)
        for sentence in joined.lacking():
            say(sentence)
    return ranks


@dataclass(frozen=True)
class _Joined:
    """All sources as one trace. ``rank_of`` has the index of the source of each process. ``aligned`` are the processes
    of the trace, with the better alignments from collectives. ``ahead`` is the clock error (ns) by process, from
    collectives."""

    trace: Trace
    reader: Reader
    sources: tuple[str, ...]
    rank_of: tuple[int, ...]
    aligned: tuple[Process, ...]
    ahead: dict[int, int]

    def processes(self, rank: int) -> list[Process]:
        return [
            process
            for process, of in zip(self.aligned, self.rank_of, strict=True)
            if of == rank
        ]

    def lacking(self) -> Iterator[str]:
        """Sentences about missing data of the sources. Damage inside blocks is known after the blocks were copied."""
        quality = replace(self.trace.quality, damage=self.reader.damage)
        return quality.sentences()

    def copy(
        self,
        changes: Changes,
        path: Path,
        rank: int | None = None,
    ) -> None:
        """Write all processes, or the processes of one rank, to a capture. Raises :class:`CutraceError` if it cannot be
        written."""
        blocks = np.arange(len(self.reader.offsets))
        if rank is not None:
            blocks = blocks[np.array(self.rank_of)[self.reader.process_of] == rank]
        try:
            with path.open("wb") as file:
                copy(self.reader, blocks.tolist(), changes, file)
        except OSError as error:
            raise unwritable(path, error) from None


@contextmanager
def _joined(paths: Sequence[Path], whole: Path, clock: Clock) -> Iterator[_Joined]:
    """Yield the sources as one trace. Raises :class:`CutraceError` when two of them hold the same recording."""
    recordings = join(paths, whole, clock=clock)
    seen: dict[tuple[int, int], Path] = {}
    for path, own in zip(paths, recordings, strict=True):
        for recording in own:
            if recording in seen:
                raise CutraceError(
                    f"{seen[recording]} and {path} hold the same recording: merge it once"
                )
            seen[recording] = path
    rank_of = tuple(index for index, own in enumerate(recordings) for _ in own)
    with load_capture(whole) as trace, Reader(whole) as reader:
        ahead = {}
        if clock != "keep":
            ahead = _clear_errors(trace)
        aligned = []
        for process in trace.processes:
            alignment = process.alignment
            offset = alignment.offset - ahead.get(process.index, 0)
            moved = replace(alignment, offset=offset)
            aligned.append(replace(process, alignment=moved))
        yield _Joined(
            trace=trace,
            reader=reader,
            sources=tuple(path.name for path in paths),
            rank_of=rank_of,
            aligned=tuple(aligned),
            ahead=ahead,
        )


def _clear_errors(trace: Trace) -> dict[int, int]:
    """The time (ns) that the clock of each process is ahead, from the ends of collectives. Errors within the accuracy
    of clock readings are left out."""
    clear = {}
    for process, ahead in clock_errors_of(trace).items():
        error = trace.processes[process].alignment.error
        if error is None or abs(ahead) > error:
            clear[process] = ahead
    return clear


# Names


def _ranks(joined: _Joined, names: Sequence[str], number: bool) -> tuple[Rank, ...]:
    ranks = []
    for index, source in enumerate(joined.sources):
        processes = joined.processes(index)
        recorded = [process.rank for process in processes if process.rank is not None]
        if names:
            name = names[index]
        elif number:
            name = f"rank {index}"
        elif recorded:
            name = named_ranks(sorted(set(recorded)))
        else:
            name = source.split(".")[0]
        hosts = dict.fromkeys(process.host for process in processes if process.host)
        first = processes[0]
        rank = Rank(
            name=name,
            source=source,
            host=", ".join(hosts),
            processes=len(processes),
            alignment=first.alignment,
            ahead=joined.ahead.get(first.index, 0),
        )
        ranks.append(rank)
    return tuple(ranks)


# Copying


class _RankChanges(Changes):
    """Changes to blocks: times on the clock of the trace, and process descriptions with their rank. ``named`` is True
    if the caller named the ranks. Otherwise a process has the rank that it states."""

    def __init__(self, joined: _Joined, ranks: Sequence[Rank], *, named: bool) -> None:
        self._joined = joined
        self._ranks = ranks
        self._named = named

    def rows(self, process: int, table: TableLayout, rows: np.ndarray) -> np.ndarray:
        return self._joined.aligned[process].alignment.moved_rows(rows)

    def description(self, process: int, info: dict[str, Any]) -> dict[str, Any]:
        described = self._joined.aligned[process]
        rank = self._ranks[self._joined.rank_of[process]]
        for key in ("started", "ended"):
            if type(info.get(key)) is int:
                info[key] = described.alignment.moment(info[key])
        if "windows" in info:
            info["windows"] = described.times_of_windows
        if "tables" in info:
            info["name"] = rank.name
            if described.rank is not None and not self._named:
                info["name"] = f"rank {described.rank}"
            # If a file has several processes, they keep their names, too.
            if rank.processes > 1:
                info["name"] += f" {described.name}"
            info["clock_of"] = self._joined.trace.clock
            info["merged"] = {
                "source": rank.source,
                "rank": rank.name,
                **asdict(described.alignment),
            }
            if described.alignment.error is None or rank.alignment.stepped:
                return with_note(info, rank.sentence())
        return info


# An archive for Perfetto


def _write_archive(
    archive: Path,
    folder: Path,
    joined: _Joined,
    ranks: Sequence[Rank],
    changes: Changes,
    request: Request,
) -> None:
    """Write a TAR with a trace for each rank, and a manifest that describes their clocks and machines."""
    members = _members(ranks)

    def add(name: str, path: Path) -> None:
        head = tarfile.TarInfo(name)
        head.size = path.stat().st_size
        with path.open("rb") as part:
            tar.addfile(head, part)
        path.unlink()

    capture = folder / "one.bin"
    trace = folder / "one.pftrace"
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps(_manifest(ranks, members), indent=1))
    # The PAX format, because members may be larger than 8 GiB.
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        add(_MANIFEST, manifest)
        for number, member in enumerate(members):
            joined.copy(changes, capture, number)
            with load_capture(capture) as opened:
                convert(opened, trace, request)
            add(member, trace)


def _members(ranks: Sequence[Rank]) -> list[str]:
    """Return the names of the traces in the archive. They are unique and have no special characters."""
    plain = []
    for rank in ranks:
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", rank.name).strip("._")
        plain.append(name[:_MAX_NAME] or "trace")
    return [f"{name}.pftrace" for name in _different(plain, "{}-{}")]


def _different(names: Iterable[str], again: str) -> list[str]:
    """Make names unique. The format string ``again`` gets a repeated name and a number from 2."""
    unique: dict[str, None] = {}
    for name in names:
        spelling = name
        number = 1
        while spelling in unique:
            number += 1
            spelling = again.format(name, number)
        unique[spelling] = None
    return list(unique)


def _manifest(ranks: Sequence[Rank], members: Sequence[str]) -> dict[str, Any]:
    """Return Perfetto's description of the archive. Each trace is a separate machine, so that equal pids do not
    collide. All traces use one clock."""
    files: list[dict[str, Any]] = []
    # Perfetto merges the processes of files with one machine.
    machines = _different([rank.where for rank in ranks], "{} #{}")
    for member, name in zip(members, machines, strict=True):
        entry: dict[str, Any] = {"path": member, "machine": {"name": name}}
        if files:
            first = {"file": members[0], "clock": "BOOTTIME"}
            entry["clocks"] = {"clock": "BOOTTIME", "sync_to": first, "offset_ns": 0}
        files.append(entry)
    attributes: dict[str, int | str] = {}
    for rank, member in zip(ranks, members, strict=True):
        key = f"cutrace.{member.removesuffix('.pftrace')}"
        attributes[f"{key}.source"] = rank.source
        attributes[f"{key}.alignment"] = rank.sentence()
    return {
        "perfetto_manifest": {
            "version": 1,
            "trace_time": {"clock": "BOOTTIME", "file": members[0]},
            "files": files,
            "attributes": attributes,
        }
    }
