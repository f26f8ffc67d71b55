"""Cutting a part out of traces by times and by names of ranges, tests, kernels, processes and GPUs.

This module looks up the names in a trace; :mod:`.trace.selection` decides which rows are kept with a match.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, starmap
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from ._native import demangle
from .analysis.context import StatsOptions
from .analysis.coverage import coverage
from .analysis.names import normalize_kernel
from .analysis.statistics.nvtx import RANGE_SHARES
from .analysis.summary import uuid_text
from .analysis.windows import owners, windows
from .conversion import check_destination
from .conversion import write as convert
from .errors import CutraceError, did_you_mean
from .exporters.base import Request
from .loading import Clock, StrPath, listed, opened, selected
from .patterns import any_matcher, matcher
from .runbin.layout import TABLES
from .trace import Trace
from .trace.ranges import RangesBy, are_ranges
from .trace.rows import LATEST
from .trace.selection import FACTS, INTERNED, Selection, Stretch, united, window
from .trace.writing import write as write_capture
from .units import format_duration

_EVENTS = TABLES.keys() - FACTS - INTERNED
_STREAM_NAME = 1
_MAX_LISTED = 5


@dataclass(frozen=True)
class Conditions:
    """What to cut out. A row must meet all conditions; of several values of one condition, one is enough.

    * ``start``, ``end``: times from the start of the trace, such as ``"1.5s"``; an int or ``"@N"`` is nanoseconds as in
      tables
    * ``nvtx``: names of ranges; ``index`` selects some of them in each process: ``"all"``, ``"N"`` from 0 (from the
      end: from -1), or ``"N:M"``, without M; ``ranges="own"`` leaves out adopted work
    * ``test``: ids of tests
    * ``process``: pids, indices or names
    * ``gpu``: ordinals, UUIDs or their begins, names; ``stream``: ids or names
    * ``kernel``: names, mangled, demangled or normalised
    * ``tables``: those to keep; ``without``: those to leave out

    A name is exact, a pattern with ``*``, ``?`` or ``[...]``, or ``/a regular expression/``.
    """

    start: int | str | None = None
    end: int | str | None = None
    nvtx: Sequence[str] = ()
    index: str = "all"
    ranges: RangesBy = "adopted"
    test: Sequence[str] = ()
    process: Sequence[str] = ()
    gpu: Sequence[str] = ()
    stream: Sequence[str] = ()
    kernel: Sequence[str] = ()
    tables: Sequence[str] = ()
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Cut:
    """The result of :func:`cut`: ``rows`` of ``total`` events, and ``sentences`` that describe the conditions. With a
    condition on ranges, ``coverage`` says how much of the GPU time of the whole trace has a range."""

    rows: int
    total: int
    sentences: tuple[str, ...]
    coverage: str | None = None


def cut(
    source: StrPath | Sequence[StrPath],
    destination: StrPath,
    conditions: Conditions,
    *,
    clock: Clock = "align",
    request: Request | None = None,
) -> Cut:
    """Write the part of a trace, or of several as one, that meets the conditions: to a capture (``.bin``), or to any
    other format of :func:`cutrace.convert`, as ``request`` says. ``clock`` is as in :func:`cutrace.load`.

    The trace is read in blocks. Memory grows by a few bytes for each API call if calls decide. Raises
    :class:`CutraceError` when a name is not in the trace, a source cannot be used or the destination cannot be
    written; nothing is then left at the destination.
    """
    destination = Path(destination)
    exporter = check_destination(
        destination, listed(source), request.format if request else None
    )
    with opened(source, clock=clock) as trace:
        selection, sentences = resolve(trace, conditions)
        notes: tuple[str, ...]
        if sentences:
            notes = (f"cut out of a longer recording: {'; '.join(sentences)}",)
        else:
            notes = ()
        total = _events(trace)
        covered = None
        if conditions.nvtx:
            options = StatsOptions(ranges=conditions.ranges)
            covered = coverage(RANGE_SHARES.of(trace, options))
        if exporter.name == "capture":
            # The temporary file of other formats is the result here.
            rows = write_capture(trace, destination, selection, notes=notes)
            return Cut(rows, total, sentences, covered)
        with selected(trace, selection, notes) as part:
            convert(part, destination, request)
            return Cut(_events(part), total, sentences, covered)


def _events(trace: Trace) -> int:
    return sum(trace.count(name) for name in _EVENTS)


def resolve(trace: Trace, conditions: Conditions) -> tuple[Selection, tuple[str, ...]]:
    """Return the selection of the conditions in this trace, and sentences that describe it. Raises
    :class:`CutraceError` for names that are not in the trace."""
    c = conditions
    sentences = []
    times = window(trace, c.start, c.end) or Selection()
    start = times.start
    end = times.end
    if start is not None or end is not None:
        begin = "its begin" if start is None else _since_begin(trace, start)
        sentences.append(
            f"from {begin} to {'its end' if end is None else _since_begin(trace, end)}"
        )
    processes = _processes(trace, c.process) if c.process else None
    if processes is not None:
        names = _listing(
            f"{p.name} ({p.pid})" for p in trace.processes if p.index in processes
        )
        sentences.append(f"processes {names}")
    stretches = created = None
    if c.test:
        stretches = _tests(trace, c.test, sentences)
    if c.nvtx:
        created = _created(trace, c)
        stretches = _both(stretches, _ranges(trace, c, created is not None, sentences))
    elif c.index != "all" or c.ranges == "own":
        raise CutraceError(
            "an index and --ranges own are about NVTX ranges: name the range with --nvtx"
        )
    devices = _devices(trace, c.gpu) if c.gpu else None
    streams = _streams(trace, c.stream) if c.stream else None
    sentences += [
        f"{what} {_listing(patterns)}"
        for what, patterns in (("GPU", c.gpu), ("stream", c.stream))
        if patterns
    ]
    kernels = _kernels(trace, c.kernel, sentences) if c.kernel else None
    tables = _tables(c, sentences)
    ranges = c.ranges if c.nvtx else None
    selection = Selection(
        start, end, processes, stretches, created, ranges, devices, streams, kernels, tables,
    )  # fmt: skip
    return selection, tuple(sentences)


# Times


def _since_begin(trace: Trace, time: int) -> str:
    sign = "-" if time < trace.start else ""
    return sign + format_duration(abs(time - trace.start))


# Names


def _missing(what: str, patterns: Sequence[str], known: Iterable[str]) -> NoReturn:
    """Raise an error for an unknown name, with the names that exist."""
    names = list(dict.fromkeys(filter(None, known)))
    others = f"there is {_listing(names)}." if names else "it has none."
    hint = did_you_mean(patterns[0], names, others)
    raise CutraceError(f"the trace has no {what} {_listing(patterns)}: {hint}")


def _listing(names: Iterable[str]) -> str:
    every = list(names)
    shown = ", ".join(every[:_MAX_LISTED])
    if len(every) > _MAX_LISTED:
        shown += f" and {len(every) - _MAX_LISTED} more"
    return shown


# Ranges and tests


def _tests(
    trace: Trace, patterns: Sequence[str], sentences: list[str]
) -> tuple[Stretch, ...]:
    runs = windows(trace)
    matches = any_matcher(patterns)
    chosen = [w for w in runs if matches(w.name)]
    if not chosen:
        _missing("test", patterns, (w.name for w in runs))
    names = list(dict.fromkeys(w.name for w in chosen))
    sentences.append(f"{'test' if len(names) == 1 else 'tests'} {_listing(names)}")
    owner = owners(trace)
    # One nanosecond more includes the mark of the end.
    stretches = []
    for window_of_test in chosen:
        tester = window_of_test.process
        for process, tested in owner.items():
            if process == tester or tested in (tester, None):
                stretches.append(
                    Stretch(process, window_of_test.start, window_of_test.end + 1)
                )
    return tuple(stretches)


def _created(trace: Trace, c: Conditions) -> np.ndarray | None:
    """Return the mask of the paths of graph nodes with a range of these names, None if there is none. An index, a
    thread and a test choose launches, so nodes are not selected by their creation then."""
    if not trace.origins or c.index != "all" or c.ranges == "own" or c.test:
        return None
    matches = any_matcher(c.nvtx)
    # Names of ranges of a domain follow its name and a colon.
    mask = [
        any(matches(n) or matches(n.partition(":")[2]) for n in path)
        for path in trace.origins.paths
    ]
    if any(mask):
        return np.array(mask)
    return None


def _ranges(
    trace: Trace, c: Conditions, created: bool, sentences: list[str]
) -> tuple[Stretch, ...]:
    """Return the stretches of the chosen ranges: NVTX ranges, and annotations of other tools that stand for them. None
    is an error, unless graph nodes were ``created`` in such ranges."""
    matches = any_matcher(c.nvtx)
    verdicts: dict[int, bool] = {}
    matching: list[Stretch] = []
    for table in ("nvtx_ranges", "host_slices"):
        for info in trace.block_infos(table):
            for rows in trace.block(info):
                rows = rows[are_ranges(table, rows)]
                names = np.unique(rows["name"]).tolist()
                verdicts |= {
                    name: matches(trace.strings[name])
                    for name in names
                    if name not in verdicts
                }
                matching += _stretches(
                    trace,
                    rows[np.isin(rows["name"], [n for n in names if verdicts[n]])],
                )
    if not matching and not created:
        _missing("NVTX range", c.nvtx, (trace.strings[name] for name in verdicts))
    matching.sort(key=lambda r: (r.process, r.start, -r.end))
    by_process = [list(ranges) for _, ranges in groupby(matching, lambda r: r.process)]
    which = _index(c.index)
    chosen = [r for ranges in by_process for r in ranges[which]]
    if not chosen and not created:
        most = max(map(len, by_process))
        raise CutraceError(
            f"index {c.index} selects none of the NVTX ranges {_listing(c.nvtx)}: a process has {most} at most, from 0"
        )
    where = ""
    if len(chosen) == 1:
        where = f", {_since_begin(trace, chosen[0].start)} to {_since_begin(trace, chosen[0].end)}"
    count = f"{len(chosen)} of {len(matching)}" if c.index == "all" else f"{c.index}"
    thread = ", work of their own thread" if c.ranges == "own" else ""
    nodes = ", and graph nodes created in it" if created else ""
    sentences.append(f"NVTX range {_listing(c.nvtx)} [{count}]{where}{thread}{nodes}")
    return tuple(chosen)


def _stretches(trace: Trace, rows: np.ndarray) -> list[Stretch]:
    # A range without an end lasts to the end of the trace.
    ends = np.where(rows["end"] == 0, trace.end + 1, rows["end"])
    columns = (rows["process"], rows["start"], ends, rows["thread"])
    stretches = starmap(
        Stretch, zip(*(column.tolist() for column in columns), strict=True)
    )
    return [r for r in stretches if 0 < r.start <= r.end <= LATEST]


def _index(text: str) -> slice:
    if text == "all":
        return slice(None)
    parts = text.split(":", 1)
    try:
        numbers = [int(part) if part or len(parts) == 1 else None for part in parts]
    except ValueError:
        raise CutraceError(
            f"{text!r} is not an index: write a number from 0, -1 for the last, 2:5 or all"
        ) from None
    if len(numbers) == 2:
        return slice(*numbers)
    number = int(text)
    # From -1 to 0 would be empty: the last ends with the list.
    return slice(number, number + 1 or None)


def _both(
    first: tuple[Stretch, ...] | None, second: tuple[Stretch, ...]
) -> tuple[Stretch, ...]:
    """Intersect stretches of both kinds."""
    if first is None:
        return second
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for stretch in second:
        spans.setdefault((stretch.process, stretch.thread), []).append(
            (stretch.start, stretch.end)
        )
    both = []
    for (process, thread), overlapping in spans.items():
        disjoint = united(overlapping)
        ends = [end for _, end in disjoint]
        for stretch in first:
            if stretch.process != process:
                continue
            for start, end in disjoint[bisect_right(ends, stretch.start) :]:
                if start >= stretch.end:
                    break
                both.append(
                    Stretch(
                        process,
                        max(stretch.start, start),
                        min(stretch.end, end),
                        thread,
                    )
                )
    return tuple(both)


# Processes, GPUs, streams, kernels, tables


_Id = TypeVar("_Id")


def _named(
    what: str,
    patterns: Sequence[str],
    find: Callable[[str], set[_Id]],
    known: Iterable[str],
) -> frozenset[_Id]:
    """Return the union of ``find`` over the patterns; ``known`` are the existing names, for the error."""
    chosen: set[_Id] = set()
    for pattern in patterns:
        ids = find(pattern)
        if not ids:
            _missing(what, [pattern], known)
        chosen |= ids
    return frozenset(chosen)


def _processes(trace: Trace, patterns: Sequence[str]) -> frozenset[int]:
    def find(pattern: str) -> set[int]:
        matches = matcher(pattern)
        by_number = {p.index for p in trace.processes if pattern == str(p.pid)}
        if not by_number:
            by_number = {p.index for p in trace.processes if pattern == str(p.index)}
        by_name = {p.index for p in trace.processes if matches(p.name)}
        return by_number | by_name

    known: list[str] = []
    for process in trace.processes:
        known += (process.name, str(process.pid))
    return _named("process", patterns, find, known)


def _by_number(trace: Trace, pattern: str) -> set[tuple[int, int]]:
    """Return a number in every process: a trace need not describe its GPUs and streams."""
    if not pattern.isdigit():
        return set()
    return {(p.index, int(pattern)) for p in trace.processes}


def _devices(trace: Trace, patterns: Sequence[str]) -> frozenset[tuple[int, int]]:
    names_of: list[tuple[tuple[int, int], str, str]] = []
    known: list[str] = []
    for row in trace.devices:
        device = (int(row["process"]), int(row["device"]))
        uuid = uuid_text(bytes(row["uuid"]))
        name = trace.strings[int(row["name"])]
        names_of.append((device, uuid, name))
        known += (uuid, name)

    def find(pattern: str) -> set[tuple[int, int]]:
        by_number = _by_number(trace, pattern)
        if by_number:
            return by_number
        matches = matcher(pattern)
        is_start_of_uuid = len(pattern) > len("GPU-")
        found = set()
        for device, uuid, name in names_of:
            if (
                matches(name)
                or matches(uuid)
                or (is_start_of_uuid and uuid.startswith(pattern))
            ):
                found.add(device)
        return found

    return _named("GPU", patterns, find, known)


def _streams(trace: Trace, patterns: Sequence[str]) -> frozenset[tuple[int, int]]:
    rows = trace.resource_names
    rows = rows[rows["kind"] == _STREAM_NAME]
    names = [trace.strings[name] for name in rows["name"].tolist()]
    streams = list(zip(rows["process"].tolist(), rows["object"].tolist(), strict=True))

    def find(pattern: str) -> set[tuple[int, int]]:
        by_number = _by_number(trace, pattern)
        if by_number:
            return by_number
        matches = matcher(pattern)
        return {
            stream for stream, name in zip(streams, names, strict=True) if matches(name)
        }

    ids = np.unique(trace.streams["stream"]).tolist()
    return _named("stream", patterns, find, [*names, *map(str, ids)])


def _kernels(trace: Trace, patterns: Sequence[str], sentences: list[str]) -> np.ndarray:
    """Return for each launch configuration whether its kernel has one of these names."""
    matches = any_matcher(patterns)
    ids = trace.launches["name"]
    mangled = {i: trace.strings[i] for i in np.unique(ids[1:]).tolist()}
    matching = []
    for i, name in mangled.items():
        if matches(name) or matches(normalize_kernel(name)) or matches(demangle(name)):
            matching.append(i)
    if not matching:
        _missing("kernel", patterns, map(normalize_kernel, mangled.values()))
    sentences.append(f"kernels {_listing(patterns)}")
    chosen = np.isin(ids, matching)
    chosen[0] = False
    return chosen


def _tables(c: Conditions, sentences: list[str]) -> frozenset[str] | None:
    for name in (*c.tables, *c.without):
        if name not in _EVENTS:
            hint = did_you_mean(
                name, _EVENTS, f"it can be {', '.join(sorted(_EVENTS))}.", most=1
            )
            raise CutraceError(
                f"there is no table {name!r} that can be kept or left out: {hint}"
            )
    if not c.tables and not c.without:
        return None
    kept = (set(c.tables) or _EVENTS) - set(c.without)
    sentences.append(
        f"tables {_listing(c.tables)}" if c.tables else f"without {_listing(c.without)}"
    )
    return frozenset(kept)
