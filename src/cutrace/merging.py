"""Traces of many ranks and machines on one timeline, in one file.

Captures are copied block by block; only times change, and what processes say of themselves. Machines are aligned by
:mod:`.trace.alignment`.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .conversion import check_destination
from .conversion import write as convert
from .errors import CutraceError
from .exporters.base import Request
from .loading import StrPath, as_capture
from .outputs import check_output, create, scratch, unwritable
from .runbin.blocks import pack_header, padded
from .runbin.layout import PROCESS_BLOCK, STRINGS_BLOCK, TABLES, schema
from .runbin.reader import Reader
from .trace import load as load_capture
from .trace.alignment import Alignment, Lead, aligned, lead
from .trace.process import clock_of
from .trace.rows import joined
from .units import format_duration

Progress = Callable[[int, int], None]

_CAPTURE, _ARCHIVE = ".bin", ".tar"
_MANIFEST = "perfetto_manifest.json"
#: Environment variables by which launchers tell a process its rank, where a description has them.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "FLUX_TASK_RANK")
_TIMES = ("start", "end", "time")
_MOST_NAME = 90
# Clocks of machines lie no 146 years (ns) apart: snapshots that say so are wrong.
_FARTHEST = 1 << 62
_LATEST = (1 << 64) - 1


@dataclass(frozen=True)
class Rank:
    """One of the merged files: its name in the result, where it came from, and how its clock was aligned."""

    name: str
    source: str
    host: str
    processes: int
    alignment: Alignment
    stepped: bool

    def sentence(self) -> str:
        """How it was aligned, for people."""
        a = self.alignment
        where = f"{self.name} ({self.host})" if self.host else self.name
        if a.error is None:
            return f"{where}: no clock snapshots relate it to the first; it was put where that begins"
        if a == Alignment():
            return f"{where}: on the clock of the result"
        drift = f", drifting by {a.drift * 1e6:+.3f} us a second" if a.drift else ""
        stepped = "; its wall clock was set while it was recorded" if self.stepped else ""
        return f"{where}: moved by {a.offset / 1e9:+,.9f} s{drift}, to within {format_duration(a.error)}{stepped}"


@dataclass(frozen=True)
class _Input:
    """A source, open: the boot that each of its processes counts from, and the names of these."""

    source: Path
    reader: Reader
    boots: list[str]
    names: list[str]


def merge(
    sources: Sequence[StrPath],
    destination: StrPath,
    *,
    names: Sequence[str] = (),
    number: bool = False,
    request: Request | None = None,
    progress: Progress | None = None,
) -> tuple[Rank, ...]:
    """Merge captures, or whatever :func:`cutrace.load` reads, on the clock of the first one.

    ``destination`` is a capture (``.bin``), an archive for Perfetto with a trace for each source (``.tar``), or
    anything that :func:`cutrace.convert` writes. ``names`` are those of the ranks, one a source; without them it is the
    rank that the source tells, or, with ``number``, its place among the sources. Returns how each was aligned. Raises
    :class:`CutraceError` when a source cannot be used, two are one recording, or the destination cannot be written.
    """
    paths, destination = [Path(source) for source in sources], Path(destination)
    if not paths:
        raise CutraceError("there is nothing to merge: name two files or more")
    if names and len(names) != len(paths):
        raise CutraceError(f"{len(names)} names for {len(paths)} files: give each file one")
    if destination.name.endswith(_ARCHIVE):
        check_output(destination)
    else:
        check_destination(destination, paths)
    for path in paths:
        if destination.exists() and path.exists() and path.samefile(destination):
            raise CutraceError(f"{destination} is one of the files to merge: choose another name")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(_folder_for(destination)))
        inputs = []
        for path in paths:
            capture = as_capture(path, opened)
            reader = opened.enter_context(Reader(capture))
            with load_capture(capture) as trace:
                process_names = [process.name for process in trace.processes]
            inputs.append(_Input(path, reader, [clock_of(info) for info in reader.processes], process_names))
        _check_different(inputs)
        alignments, leads = _alignments(inputs)
        ranks = _ranks(inputs, names, number, alignments, leads)
        reference = next(boot for boot, a in alignments.items() if a == Alignment())
        total, done = sum(len(i.reader.offsets) for i in inputs), 0

        def advance() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total)

        try:
            if destination.name.endswith(_ARCHIVE):
                _write_archive(folder, inputs, ranks, alignments, reference, request, advance).replace(destination)
                return ranks
            whole = folder / "whole.bin"
            with os.fdopen(create(whole), "wb") as file:
                for each, rank in zip(inputs, ranks, strict=True):
                    _copy(each, rank, alignments, reference, file, advance)
            if destination.name.endswith(_CAPTURE):
                load_capture(whole).close()
                whole.replace(destination)
                return ranks
        except OSError as error:
            raise unwritable(destination, error) from None
        with load_capture(whole) as trace:
            convert(trace, destination, request)
    return ranks


def _folder_for(destination: Path) -> AbstractContextManager[str | Path]:
    """A folder to work in: beside what is renamed into place, else with other temporary files."""
    if destination.name.endswith((_CAPTURE, _ARCHIVE)):
        try:
            return tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent)
        except OSError as error:
            raise unwritable(destination, error) from None
    return scratch()


def _check_different(inputs: Sequence[_Input]) -> None:
    seen: dict[tuple[int, int], Path] = {}
    for each in inputs:
        headers = each.reader.headers
        for key in set(zip(headers["instance"].tolist(), headers["pid"].tolist(), strict=True)):
            if seen.setdefault(key, each.source) is not each.source:
                raise CutraceError(f"{seen[key]} and {each.source} hold the same recording: merge it once")


# Alignment


def _alignments(inputs: Sequence[_Input]) -> tuple[dict[str, Alignment], dict[str, Lead | None]]:
    """For each boot of a machine, how its clock becomes the first one's, and what its snapshots tell."""
    snapshots: dict[str, list[np.ndarray]] = {}
    begins: dict[str, int] = {}
    timed = [t.number for t in TABLES.values() if t.start_field]
    for each in inputs:
        for boot in each.boots:
            snapshots.setdefault(boot, [])
        headers = each.reader.headers
        for index in each.reader.indices(TABLES["clocks"].number).tolist():
            snapshots[each.boots[int(each.reader.process_of[index])]].append(each.reader.read(index))
        for index in np.flatnonzero(np.isin(headers["kind"], timed) & (headers["first_time"] > 0)).tolist():
            boot, first = each.boots[int(each.reader.process_of[index])], int(headers["first_time"][index])
            begins[boot] = min(begins.get(boot, first), first)
    leads = {boot: lead(joined(TABLES["clocks"], rows)) for boot, rows in snapshots.items()}
    found = _toward(next(iter(leads)), leads, begins)
    if any(boot in begins and a.moment(begins[boot]) <= 0 for boot, a in found.items()):
        # The first machine booted when another had recorded already: count from the boot of the earliest.
        booted = {boot: known.ns for boot, known in leads.items() if known is not None}
        found = _toward(min(booted, key=lambda boot: booted[boot]), leads, begins) if booted else found
    return found, leads


def _toward(reference: str, leads: dict[str, Lead | None], begins: dict[str, int]) -> dict[str, Alignment]:
    target = leads[reference]

    def one(boot: str) -> Alignment:
        own = leads[boot]
        if boot == reference:
            return Alignment()
        if own is not None and target is not None:
            found = aligned(own, target)
            if abs(found.offset) < _FARTHEST:
                return found
        offset = begins.get(reference, 0) - begins.get(boot, 0)
        return Alignment(offset if abs(offset) < _FARTHEST else 0, error=None)

    return {boot: one(boot) for boot in leads}


# Names


def _ranks(
    inputs: Sequence[_Input],
    names: Sequence[str],
    number: bool,
    alignments: dict[str, Alignment],
    leads: dict[str, Lead | None],
) -> tuple[Rank, ...]:
    ranks = []
    for place, each in enumerate(inputs):
        infos, boot = each.reader.processes, each.boots[0]
        told = next((rank for info in infos if (rank := _rank_of(info)) is not None), None)
        if names:
            name = names[place]
        elif number:
            name = f"rank {place}"
        else:
            name = each.source.name.split(".")[0] if told is None else f"rank {told}"
        known = leads[boot]
        hosts = dict.fromkeys(str(info.get("host", "")) for info in infos)
        ranks.append(
            Rank(
                name,
                each.source.name,
                ", ".join(host for host in hosts if host),
                len(infos),
                alignments[boot],
                known is not None and known.stepped,
            )
        )
    return tuple(ranks)


def _rank_of(info: dict[str, Any]) -> int | None:
    """The rank that a description tells."""
    rank = info.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool):
        return rank
    environment = info.get("environment")
    values = environment if isinstance(environment, dict) else {}
    texts = (values.get(name) for name in _RANK_VARIABLES)
    return next((int(text) for text in texts if isinstance(text, str) and text.isascii() and text.isdigit()), None)


# Copying


def _copy(
    each: _Input,
    rank: Rank,
    alignments: dict[str, Alignment],
    reference: str,
    to: BinaryIO,
    advance: Callable[[], None],
) -> None:
    """Append a capture, its times on the clock of the reference."""
    reader = each.reader
    numbers = {table.number: table for table in TABLES.values()}
    for index in range(len(reader.offsets)):
        header, process = reader.headers[index], int(reader.process_of[index])
        kind, alignment = int(header["kind"]), alignments[each.boots[process]]
        first, last, row_size = int(header["first_time"]), int(header["last_time"]), int(header["row_size"])
        count = int(header["rows"])
        payload: bytes | None
        if kind in numbers:
            rows = _moved(reader.read(index), alignment)
            # Not what the header says when it is damaged, and then left out: the number that is missing tells.
            payload = rows.tobytes() if len(rows) == count else None
            row_size = numbers[kind].row_size
            first, last = (alignment.moment(time) if time else 0 for time in (first, last))
        elif kind in (PROCESS_BLOCK, STRINGS_BLOCK):
            payload = reader.payload(index)
            if kind == PROCESS_BLOCK and payload is not None:
                payload = _described(payload, each, process, rank, alignment, reference)
        else:
            payload = None
        if payload is not None:
            head = pack_header(
                kind, row_size=row_size, rows=count, payload=payload, pid=int(header["pid"]),
                sequence=int(header["sequence"]), instance=int(header["instance"]),
                first_time=min(max(first, 0), _LATEST), last_time=min(max(last, 0), _LATEST),
            )  # fmt: skip
            to.write(head + payload + bytes(padded(len(payload)) - len(payload)))
        advance()


def _moved(rows: np.ndarray, alignment: Alignment) -> np.ndarray:
    fields = [name for name in (*_TIMES, "boottime") if name in (rows.dtype.names or ())]
    if not fields or (not alignment.offset and not alignment.drift):
        return rows
    rows = rows.copy()
    for name in fields:
        rows[name] = alignment.moved(rows[name])
    return rows


def _described(
    payload: bytes, each: _Input, process: int, rank: Rank, alignment: Alignment, reference: str
) -> bytes | None:
    """A process block, with its name, and on which clock its times are now."""
    try:
        info = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(info, dict):
        return None
    for key in ("started", "ended"):
        if type(info.get(key)) is int:
            info[key] = alignment.moment(info[key])
    if "tables" in info:
        info |= {"tables": schema(), "name": _process_name(each, process, rank), "clock_of": reference}
        info["merged"] = {"source": rank.source, "rank": rank.name, **asdict(alignment)}
        if alignment.error is None or rank.stepped:
            notes = info.get("notes")
            info["notes"] = [*(notes if isinstance(notes, list) else []), rank.sentence()]
    return json.dumps(info).encode()


def _process_name(each: _Input, process: int, rank: Rank) -> str:
    """The rank's name, and that of the process where the rank has several."""
    return rank.name if rank.processes == 1 else f"{rank.name} {each.names[process]}"


# An archive for Perfetto


def _write_archive(
    folder: Path,
    inputs: Sequence[_Input],
    ranks: Sequence[Rank],
    alignments: dict[str, Alignment],
    reference: str,
    request: Request | None,
    advance: Callable[[], None],
) -> Path:
    """A TAR with a trace for each rank, and a manifest that says how they go together."""
    archive = folder / "whole.tar"
    members = _members(ranks)
    manifest = json.dumps(_manifest(ranks, members), indent=1).encode()
    with (
        os.fdopen(create(archive), "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        head = tarfile.TarInfo(_MANIFEST)
        head.size, head.mode = len(manifest), 0o600
        tar.addfile(head, io.BytesIO(manifest))
        for each, rank, member in zip(inputs, ranks, members, strict=True):
            capture, trace = folder / "one.bin", folder / "one.pftrace"
            with capture.open("wb") as one:
                _copy(each, rank, alignments, reference, one, advance)
            with load_capture(capture) as opened:
                convert(opened, trace, request)
            head = tarfile.TarInfo(member)
            head.size, head.mode = trace.stat().st_size, 0o600
            with trace.open("rb") as part:
                tar.addfile(head, part)
            capture.unlink()
            trace.unlink()
    return archive


def _members(ranks: Sequence[Rank]) -> list[str]:
    """The names of the traces in the archive, each once, of characters that every tool takes."""
    names: list[str] = []
    for rank in ranks:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "_", rank.name).strip("._")[:_MOST_NAME] or "trace"
        name, more = f"{plain}.pftrace", 2
        while name in names:
            name, more = f"{plain}-{more}.pftrace", more + 1
        names.append(name)
    return names


def _manifest(ranks: Sequence[Rank], members: Sequence[str]) -> dict[str, Any]:
    """Perfetto's description of an archive. The traces are on one clock already; Perfetto has to be told, since each is
    of a machine of its own, so that equal pids are not one process."""
    files: list[dict[str, Any]] = []
    for member, name in zip(members, _machines(ranks), strict=True):
        entry: dict[str, Any] = {"path": member, "machine": {"name": name}}
        if files:
            entry["clocks"] = {
                "clock": "BOOTTIME",
                "sync_to": {"file": members[0], "clock": "BOOTTIME"},
                "offset_ns": 0,
            }
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


def _machines(ranks: Sequence[Rank]) -> list[str]:
    """A name for each rank's machine, each once: files of one machine would share their processes."""
    names: list[str] = []
    for rank in ranks:
        name = base = f"{rank.name} ({rank.host})" if rank.host else rank.name
        more = 2
        while name in names:
            name, more = f"{base} #{more}", more + 1
        names.append(name)
    return names
