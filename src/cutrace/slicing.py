"""Cutting a part out of traces by times and by names of ranges, tests, kernels, processes and GPUs.

This module looks up the names in a trace. :mod:`.trace.selection` selects the rows for the matches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
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
from .arguments import check, checked, types_of
from .conversion import check_destination
from .conversion import write as convert
from .errors import CutraceError, did_you_mean
from .exporters.base import Request
from .exporters.csvfile import table_of
from .loading import Clock, Source, StrPath, listed, opened, selected
from .patterns import Patterns, any_matcher, in_another_case, matcher, several
from .runbin.layout import TABLES
from .trace import Trace
from .trace.ranges import RangesBy, are_ranges, domains_of
from .trace.rows import LATEST
from .trace.selection import (
    FACTS,
    INTERNED,
    Selection,
    Stretch,
    cut_note,
    refuse_empty,
    since_begin,
    united,
    window,
    window_text,
)
from .trace.writing import write as write_capture
from .units import Time, first_names

_EVENTS = TABLES.keys() - FACTS - INTERNED
_STREAM_NAME = 1
_NUMBER = re.compile("[0-9]{1,10}")

_listing = partial(first_names, most=5)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a cut. A row must meet all conditions. A condition is one string or a list of strings; a row
    must meet one of the strings. Raises :class:`CutraceError` for other values.

    * ``start``, ``end``: times from the start of the trace, such as ``"1.5s"``; an int or ``"@N"`` is nanoseconds as in
      tables
    * ``nvtx``: names of ranges; ``index`` selects some of them in each process: ``"all"``, ``N`` (0 is the first, -1
      the last), or ``"N:M"`` (M excluded); ``ranges="own"`` leaves out adopted work
    * ``test``: ids of tests
    * ``process``: pids, indices or names
    * ``gpu``: ordinals, UUIDs, starts of UUIDs, or names; ``stream``: ids or names
    * ``kernel``: names, mangled, demangled or normalised
    * ``tables``: tables to keep; ``without``: tables to leave out

    A name is exact, a pattern with ``*``, ``?`` or ``[...]``, or ``/a regular expression/``.
    """

    start: Time | None = None
    end: Time | None = None
    nvtx: Patterns = ()
    index: int | str = "all"
    ranges: RangesBy = "adopted"
    test: Patterns = ()
    process: Patterns = ()
    gpu: Patterns = ()
    stream: Patterns = ()
    kernel: Patterns = ()
    tables: Patterns = ()
    without: Patterns = ()

    def __post_init__(self) -> None:
        types = types_of(Conditions)
        check(types, vars(self))
        for name, of_field in types.items():
            if of_field == Patterns:
                object.__setattr__(self, name, several(getattr(self, name)))


@dataclass(frozen=True)
class Cut:
    """The result of :func:`cutrace.slice`: ``rows`` of ``total`` events, and ``sentences`` that describe the
    conditions. A CSV file has the events of its table only. With a condition on ranges, ``coverage`` is the sentence on
    the share of the whole trace's GPU time in ranges. ``missing`` are sentences on the losses of the whole trace.
    """

    rows: int
    total: int
    sentences: tuple[str, ...]
    coverage: str | None = None
    missing: tuple[str, ...] = ()


@checked
def cut(
    source: Source,
    destination: StrPath,
    conditions: Conditions,
    *,
    clock: Clock = "align",
    request: Request | None = None,
) -> Cut:
    """Write the part of a trace, or of several as one, that meets the conditions: to a capture (``.bin``), or to
    another format of :func:`cutrace.convert`, by ``request``. ``clock`` is as in :func:`cutrace.load`.

    The trace is read in blocks. Memory grows by a few bytes for each API call if calls decide. Raises
    :class:`CutraceError` when a name is not in the trace, a source cannot be used or the destination cannot be
    written; nothing is then left at the destination.
    """
    destination = Path(destination)
    request = request or Request()
    exporter = check_destination(
        destination, listed(source), request.format, request.table
    )
    with opened(source, clock=clock) as trace:
        selection, sentences = resolve(trace, conditions)
        notes: tuple[str, ...] = ()
        if sentences:
            notes = (cut_note(sentences),)
        written = _EVENTS
        if exporter.name == "csv":
            written = {table_of(destination, request.table).name}
        total = _count(trace, written)
        covered = None
        if conditions.nvtx:
            options = StatsOptions(ranges=conditions.ranges)
            covered = coverage(RANGE_SHARES.of(trace, options))
        if exporter.name == "capture":
            # For other formats, the temporary file is the result here.
            rows = write_capture(trace, destination, selection, notes=notes)
        else:
            with selected(trace, selection, notes) as part:
                rows = _count(part, written)
                # A damaged block may have had the selected rows.
                if not rows and not trace.damage:
                    refuse_empty(trace)
                convert(part, destination, request)
        # Damage inside blocks is known after they were read.
        missing = tuple(trace.told_losses.sentences())
        return Cut(rows, total, sentences, covered, missing)


def _count(trace: Trace, tables: Iterable[str]) -> int:
    return sum(map(trace.count, tables))


def resolve(trace: Trace, conditions: Conditions) -> tuple[Selection, tuple[str, ...]]:
    """Return the selection of the conditions in this trace, and sentences that describe it. Raises
    :class:`CutraceError` for names that are not in the trace."""
    c = conditions
    sentences: list[str] = []
    selection = window(trace, c.start, c.end) or Selection()
    if selection.start is not None or selection.end is not None:
        sentences.append(window_text(trace, selection))
    if c.process:
        processes = _processes(trace, c.process, sentences)
        selection = replace(selection, processes=processes)
    if c.test:
        stretches = _tests(trace, c.test, sentences)
        selection = replace(selection, stretches=stretches)
    if c.nvtx:
        created = _created(trace, c)
        ranges = _ranges(trace, c, created is not None, sentences)
        stretches = _both(selection.stretches, ranges)
        selection = replace(
            selection, stretches=stretches, created=created, ranges=c.ranges
        )
    elif c.index != "all" or c.ranges == "own":
        raise CutraceError(
            "an index and `ranges='own'` are about NVTX ranges: name the range with `nvtx=`"
        )
    if c.gpu:
        selection = replace(selection, devices=_devices(trace, c.gpu))
        sentences.append(f"GPU {_listing(c.gpu)}")
    if c.stream:
        selection = replace(selection, streams=_streams(trace, c.stream))
        sentences.append(f"stream {_listing(c.stream)}")
    if c.kernel:
        selection = replace(selection, kernels=_kernels(trace, c.kernel))
        sentences.append(f"kernels {_listing(c.kernel)}")
    if c.tables or c.without:
        selection = replace(selection, tables=_tables(c))
        if c.tables:
            sentences.append(f"tables {_listing(c.tables)}")
        else:
            sentences.append(f"without {_listing(c.without)}")
    return selection, tuple(sentences)


# Names


def missing_name(
    what: str,
    patterns: Sequence[str],
    known: Iterable[str],
    trace: Trace | None = None,
) -> NoReturn:
    """Raise an error for an unknown name, with the names that exist in the trace, or without one in the command."""
    names = list(dict.fromkeys(filter(None, known)))
    others = "it has none."
    if names:
        others = f"there is {_listing(names)}."
    word = patterns[0]
    containing = [name for name in names if word and word in name]
    if containing:
        others = f"did you mean '*{word}*', which matches {_listing(containing)}?"
    in_case = in_another_case(patterns[0], names)
    if in_case:
        hint = f"upper and lower case differ, and there is {_listing(in_case)}."
    else:
        hint = did_you_mean(word, names, others)
    asked = _listing([pattern or "''" for pattern in patterns])
    if trace is None:
        raise CutraceError(f"the command has no {what} {asked}: {hint}")
    absent = f"the trace has no {what} {asked}: {hint}"
    raise CutraceError(trace.quality.doubt(absent))


# Ranges and tests


def _tests(
    trace: Trace, patterns: Sequence[str], sentences: list[str]
) -> tuple[Stretch, ...]:
    runs = windows(trace)
    matches = any_matcher(patterns)
    chosen = [w for w in runs if matches(w.name)]
    if not chosen:
        missing_name("test", patterns, (w.name for w in runs), trace)
    names = list(dict.fromkeys(w.name for w in chosen))
    noun = "test" if len(names) == 1 else "tests"
    sentences.append(f"{noun} {_listing(names)}")
    owner = owners(trace)
    # Add a nanosecond, to include the mark of the end.
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
    """Return the mask of the paths of graph nodes with a range of these names, None if there is none. Nodes are not
    selected by their creation if an index, a thread or a test is given, because these select launches."""
    if not trace.origins or c.index != "all" or c.ranges == "own" or c.test:
        return None
    matches = any_matcher(c.nvtx)
    mask = np.zeros(len(trace.origins.paths), bool)
    for number, path in enumerate(trace.origins.paths):
        for name in path:
            # The name of a range in a domain has the domain's name and a colon before it.
            within_domain = name.partition(":")[2]
            if matches(name) or matches(within_domain):
                mask[number] = True
                break
    if mask.any():
        return mask
    return None


def _ranges(
    trace: Trace, c: Conditions, created: bool, sentences: list[str]
) -> tuple[Stretch, ...]:
    """Return the stretches of the chosen ranges: NVTX ranges, and annotations of other tools in their place. Raises an
    error if there are none, unless graph nodes were ``created`` in such ranges."""
    matches = any_matcher(c.nvtx)
    verdicts: dict[int, bool] = {}
    matching: list[Stretch] = []
    for table in ("nvtx_ranges", "host_slices"):
        for info in trace.block_infos(table):
            for rows in trace.block(info):
                rows = rows[are_ranges(table, rows)]
                names = np.unique(rows["name"]).tolist()
                for name in names:
                    if name not in verdicts:
                        verdicts[name] = matches(trace.strings[name])
                wanted = [name for name in names if verdicts[name]]
                chosen_rows = rows[np.isin(rows["name"], wanted)]
                domains = domains_of(table, chosen_rows)
                matching += _stretches(trace, chosen_rows, domains)
    if not matching and not created:
        known = (trace.strings[name] for name in verdicts)
        missing_name("NVTX range", c.nvtx, known, trace)
    matching.sort(key=lambda r: (r.process, r.start, -r.end))
    which = _index(c.index)
    chosen: list[Stretch] = []
    most = 0
    for _, group in groupby(matching, lambda r: r.process):
        of_process = list(group)
        most = max(most, len(of_process))
        chosen += of_process[which]
    if not chosen and not created:
        absent = (
            f"index {c.index} selects none of the NVTX ranges {_listing(c.nvtx)}: "
            f"a process has {most} at most, from 0"
        )
        raise CutraceError(trace.quality.doubt(absent))
    index = str(c.index)
    if index == "all":
        index = f"{len(chosen)} of {len(matching)}"
    sentence = f"NVTX range {_listing(c.nvtx)} [{index}]"
    if len(chosen) == 1:
        start = since_begin(trace, chosen[0].start)
        end = since_begin(trace, chosen[0].end)
        sentence += f", {start} to {end}"
    if c.ranges == "own":
        sentence += ", work of their own thread"
    if created:
        sentence += ", and graph nodes created in it"
    sentences.append(sentence)
    return tuple(chosen)


def _stretches(trace: Trace, rows: np.ndarray, domains: np.ndarray) -> list[Stretch]:
    # A range without an end lasts to the end of the trace.
    ends = np.where(rows["end"] == 0, trace.end + 1, rows["end"])
    known = (rows["start"] > 0) & (rows["start"] <= ends) & (ends <= LATEST)
    columns = [
        column[known].tolist()
        for column in (rows["process"], rows["start"], ends, rows["thread"], domains)
    ]
    return list(map(Stretch, *columns))


def _index(given: int | str) -> slice:
    text = str(given)
    if text == "all":
        return slice(None)
    first, colon, after = text.partition(":")
    try:
        if colon:
            start = int(first) if first else None
            end = int(after) if after else None
            return slice(start, end)
        number = int(text)
    except ValueError:
        raise CutraceError(
            f"{text!r} is not an index: write a number from 0, -1 for the last, 2:5 or all"
        ) from None
    # The slice from -1 to 0 would be empty, so the last index ends at the end of the list.
    return slice(number, number + 1 or None)


def _both(
    first: tuple[Stretch, ...] | None, second: tuple[Stretch, ...]
) -> tuple[Stretch, ...]:
    """Intersect stretches of both kinds."""
    if first is None:
        return second
    spans: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for stretch in second:
        key = (stretch.process, stretch.thread, stretch.domain)
        of_nest = spans.setdefault(key, [])
        of_nest.append((stretch.start, stretch.end))
    both = []
    for (process, thread, domain), overlapping in spans.items():
        disjoint = united(overlapping)
        ends = [end for _, end in disjoint]
        for stretch in first:
            if stretch.process != process:
                continue
            for start, end in disjoint[bisect_right(ends, stretch.start) :]:
                if start >= stretch.end:
                    break
                first_time = max(stretch.start, start)
                last_time = min(stretch.end, end)
                both.append(Stretch(process, first_time, last_time, thread, domain))
    return tuple(both)


# Processes, GPUs, streams, kernels, tables


_Id = TypeVar("_Id")


def _named(
    trace: Trace,
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
            missing_name(what, [pattern], known, trace)
        chosen |= ids
    return frozenset(chosen)


def _processes(
    trace: Trace, patterns: Sequence[str], sentences: list[str]
) -> frozenset[int]:
    def find(pattern: str) -> set[int]:
        matches = matcher(pattern)
        by_pid: set[int] = set()
        by_index: set[int] = set()
        by_name: set[int] = set()
        for process in trace.processes:
            if pattern == str(process.pid):
                by_pid.add(process.index)
            if pattern == str(process.index):
                by_index.add(process.index)
            if matches(process.name):
                by_name.add(process.index)
        return (by_pid or by_index) | by_name

    known: list[str] = []
    for process in trace.processes:
        known += (process.name, str(process.pid))
    chosen = _named(trace, "process", patterns, find, known)
    # Leave out names of processes: they are private, and this sentence is kept in notes.
    pids = [str(p.pid) for p in trace.processes if p.index in chosen]
    sentences.append(f"processes {_listing(pids)}")
    return chosen


def _by_number(trace: Trace, pattern: str) -> set[tuple[int, int]]:
    """Return a number for each process, because a trace may lack descriptions of its GPUs and streams. Numbers have 32
    bits."""
    if _NUMBER.fullmatch(pattern) is None:
        return set()
    number = int(pattern)
    if number >= 1 << 32:
        return set()
    return {(p.index, number) for p in trace.processes}


def _devices(trace: Trace, patterns: Sequence[str]) -> frozenset[tuple[int, int]]:
    names_of: list[tuple[tuple[int, int], str, str]] = []
    known: list[str] = []
    labels = {ordinal: str(ordinal) for ordinal in trace.contexts["device"].tolist()}
    for device, row in trace.device_rows.items():
        uuid = uuid_text(bytes(row["uuid"]))
        name = trace.strings[row["name"]]
        names_of.append((device, uuid, name))
        labels[device[1]] = f"{device[1]} ({name})"
        known += (uuid, name)

    def find(pattern: str) -> set[tuple[int, int]]:
        by_number = _by_number(trace, pattern)
        if by_number and labels and int(pattern) not in labels:
            missing_name("GPU", [pattern], labels.values(), trace)
        if by_number:
            return by_number
        matches = matcher(pattern)
        can_start_uuid = len(pattern) > len("GPU-")
        found = set()
        for device, uuid, name in names_of:
            starts_uuid = can_start_uuid and uuid.startswith(pattern)
            if starts_uuid or matches(name) or matches(uuid):
                found.add(device)
        return found

    return _named(trace, "GPU", patterns, find, known)


def _streams(trace: Trace, patterns: Sequence[str]) -> frozenset[tuple[int, int]]:
    rows = trace.resource_names
    rows = rows[rows["kind"] == _STREAM_NAME]
    names: list[str] = []
    named_streams: list[tuple[tuple[int, int], str]] = []
    for process, stream, name_id in rows[["process", "object", "name"]].tolist():
        name = trace.strings[name_id]
        names.append(name)
        named_streams.append(((process, stream), name))

    def find(pattern: str) -> set[tuple[int, int]]:
        by_number = _by_number(trace, pattern)
        if by_number:
            return by_number
        matches = matcher(pattern)
        return {stream for stream, name in named_streams if matches(name)}

    ids = np.unique(trace.streams["stream"]).tolist()
    return _named(trace, "stream", patterns, find, [*names, *map(str, ids)])


def _kernels(trace: Trace, patterns: Sequence[str]) -> np.ndarray:
    """Return for each launch configuration whether its kernel has one of these names."""
    matches = any_matcher(patterns)
    ids = trace.launches["name"]
    mangled = {i: trace.strings[i] for i in np.unique(ids[1:]).tolist()}
    matching = []
    for i, name in mangled.items():
        if matches(name) or matches(normalize_kernel(name)) or matches(demangle(name)):
            matching.append(i)
    if not matching:
        known = map(normalize_kernel, mangled.values())
        missing_name("kernel", patterns, known, trace)
    chosen = np.isin(ids, matching)
    chosen[0] = False
    return chosen


def _tables(c: Conditions) -> frozenset[str]:
    for name in (*c.tables, *c.without):
        if name not in _EVENTS:
            others = f"it can be {', '.join(sorted(_EVENTS))}."
            hint = did_you_mean(name, _EVENTS, others, most=1)
            raise CutraceError(
                f"there is no table {name!r} that can be kept or left out: {hint}"
            )
    kept = set(c.tables) or _EVENTS
    return frozenset(kept - set(c.without))
