"""Collectives across ranks: who arrives last, how long the others wait, and whose clock is wrong.

Calls are matched by the name of their kernel and their number. All ranks of a call end it together, so the median
difference of a rank's ends from those of all ranks is the error of its clock, which is then removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.tables import Column, Table, columns_of
from ...trace.arrow import pyarrow
from ...units import count_of, format_duration
from .model import (
    Bars,
    BatchOptions,
    BatchReport,
    Part,
    Picture,
    RankTrace,
    Result,
    Row,
    share_of,
)
from .stragglers import OUTSTANDING, robust_scores
from .timeline import by_job

# Transfers between two ranks. They have other numbers of calls on each rank.
_POINT_TO_POINT = re.compile(r"send_?recv", re.IGNORECASE)
# Collectives that no rank ends before all ranks have begun.
_TOGETHER = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE
)
# Calls whose medians over ranks are computed, and rows of the table of calls.
_SAMPLE = 2048
_CALLS = 1000
# The smallest error of a clock (ns) that is said, and the smallest lateness, as a share of the time between calls.
_CLOCK_NS = 100_000
_LATE = 0.01
_FEWEST = 4

_COLUMNS = columns_of(
    "waited: ns, time: ns spare, wait share: 1, calls, ranks: spare, spread: ns spare, transfer: ns spare, "
    "most often last: text, last share: 1, job: text spare, collective: text"
)
_RANK_COLUMNS = columns_of(
    "rank: text, waited: ns, time: ns spare, wait share: 1, calls: spare, last, kept waiting: ns, late: change, "
    "clock ahead: change spare, clock error: ns spare"
)
_CALL_COLUMNS = columns_of(
    "waited: ns, spread: ns, last rank: text, ranks, after: ns, call, collective: text"
)

#: The begins and the ends (ns) of the calls of each collective, by name.
_Calls = dict[str, tuple[np.ndarray, np.ndarray]]
#: The index of a part, and the numbers, begins and ends of its calls.
_CallsOfPart = tuple[int, np.ndarray, np.ndarray, np.ndarray]


def calls(rank: RankTrace, options: BatchOptions) -> Any:
    """Each call of a collective: its name, number, begin and end on the wall clock (ns)."""
    names = rank.context.kernels
    is_collective = np.array([_is_collective(name) for name in names.names], bool)
    parts: list[np.ndarray] = [np.zeros((3, 0), np.int64)]
    for rows in rank.rows("kernels"):
        number = names.numbers.take(rows["launch"]).astype(np.int64)
        chosen = is_collective[number]
        start = rank.moved(rows["start"][chosen])
        end = rank.moved(rows["end"][chosen])
        parts.append(np.stack([number[chosen], start, end]))
    number, start, end = np.concatenate(parts, axis=1)
    order = np.lexsort((end, start, number))
    number = number[order]
    # The index of the first call of the same name is subtracted.
    call = np.arange(len(number)) - np.searchsorted(number, number)
    pa = pyarrow("batch")
    numbers = pa.array(number, pa.int32())
    text = pa.DictionaryArray.from_arrays(numbers, pa.array(names.names, pa.string()))
    table = pa.table(
        {
            "collective": text.cast(pa.string()),
            "call": call,
            "start_ns": start[order],
            "end_ns": end[order],
        }
    )
    return table.sort_by([("collective", "ascending"), ("call", "ascending")])


def _is_collective(kernel: str) -> bool:
    return communicates(kernel) and not _POINT_TO_POINT.search(kernel)


def _read(part: Part) -> _Calls:
    columns = part.columns()
    names = columns["collective"]
    start = columns["start_ns"]
    end = columns["end_ns"]
    if not len(names):
        return {}
    changes = np.flatnonzero(names[1:] != names[:-1]) + 1
    calls = {}
    for first, last in pairwise([0, *changes.tolist(), len(names)]):
        calls[names[first]] = (start[first:last], end[first:last])
    return calls


@dataclass
class _Job:
    """The collectives of one job. Calls of all names are numbered from ``first[name]``; times count from ``base``."""

    parts: Sequence[Part]
    first: dict[str, int]
    total: int
    base: int
    #: For each part, the number of its first call of a name, where others have more calls.
    shifts: list[dict[str, int]]
    sentences: list[str]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> _Job:
        # The ends of the part with the most calls, by name.
        most: dict[str, np.ndarray] = {}
        # The number of calls, and the first end, of each part.
        own: list[dict[str, tuple[int, int]]] = []
        for part in parts:
            counts = {}
            for name, (_, end) in _read(part).items():
                counts[name] = (len(end), int(end[0]))
                if len(end) > len(most.get(name, ())):
                    most[name] = end
            own.append(counts)
        first = {}
        total = 0
        for name in sorted(most):
            first[name] = total
            total += len(most[name])
        base = min((int(ends[0]) for ends in most.values()), default=0)
        job = cls(parts, first, total, base, [], [])
        for part, counts in zip(parts, own, strict=True):
            job.shifts.append(job._shifted(part, counts, most))
        return job

    def _shifted(
        self,
        part: Part,
        counts: dict[str, tuple[int, int]],
        most: dict[str, np.ndarray],
    ) -> dict[str, int]:
        """A rank with fewer calls began or ended to record at another time: its first call is the nearest one."""
        shifts = {}
        for name, (count, end) in counts.items():
            ends = most[name]
            missing = len(ends) - count
            if not missing:
                continue
            shift = 0
            if part.clock.error is not None:
                shift = int(np.abs(ends[: missing + 1] - end).argmin())
            shifts[name] = shift
            self.sentences.append(
                f"{part.label}: it has {count:,} calls of {name}, and others {len(ends):,}: its first is "
                f"taken for number {shift + 1:,}"
            )
        return shifts

    def each(self) -> Iterator[_CallsOfPart]:
        """Yield of each part its index, and the numbers, begins and ends of its calls."""
        for index, part in enumerate(self.parts):
            shifts = self.shifts[index]
            calls = [np.zeros((3, 0), np.int64)]
            for name, (start, end) in _read(part).items():
                first = self.first[name] + shifts.get(name, 0)
                number = np.arange(first, first + len(start))
                calls.append(np.stack([number, start - self.base, end - self.base]))
            yield index, *np.concatenate(calls, axis=1)

    def name_of(self, number: int) -> tuple[str, int]:
        """The name and the number among calls of this name."""
        before = [name for name, first in self.first.items() if first <= number]
        name = before[-1]
        return name, number - self.first[name]


@dataclass
class _Clocks:
    """For each part, the error of its clock (ns) and its mean lateness (ns); NaN where unknown."""

    ahead: np.ndarray
    late: np.ndarray


def _clocks(job: _Job) -> _Clocks:
    spaced = np.linspace(0, job.total - 1, min(job.total, _SAMPLE))
    sample = np.unique(spaced.astype(np.int64))
    together = np.zeros(len(sample), bool)
    for at, number in enumerate(sample.tolist()):
        name, _ = job.name_of(number)
        together[at] = bool(_TOGETHER.search(name))
    starts = np.full((len(job.parts), len(sample)), np.nan)
    ends = starts.copy()
    for index, number, start, end in job.each():
        place = np.minimum(np.searchsorted(sample, number), len(sample) - 1)
        sampled = sample[place] == number
        starts[index, place[sampled]] = start[sampled]
        ends[index, place[sampled]] = end[sampled]
    differences = ends[:, together] - _median(ends[:, together], 0)
    ahead = np.nan_to_num(_median(differences, 1)).round()
    starts -= ahead[:, None]
    late = starts - _median(starts, 0)
    count = (~np.isnan(late)).sum(axis=1)
    total = np.nansum(late, axis=1)
    # One late call, such as the one that sets up connections, is not the habit of a rank.
    some = count > _FEWEST
    numbers = np.where(np.isnan(late), -np.inf, late)
    largest = numbers.max(axis=1, initial=-np.inf)
    total[some] -= largest[some]
    count[some] -= 1
    with np.errstate(divide="ignore", invalid="ignore"):
        return _Clocks(ahead, total / count)


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """The median, NaN where there are no values, without a warning."""
    if not values.shape[axis]:
        return np.full(values.shape[1 - axis], np.nan)
    ordered = np.sort(values, axis=axis)  # NaN is behind all numbers
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low = np.maximum(count - 1, 0) // 2
    high = np.minimum(count // 2, values.shape[axis] - 1)
    low_values = np.take_along_axis(ordered, low, axis)
    high_values = np.take_along_axis(ordered, high, axis)
    middle: np.ndarray = ((low_values + high_values) / 2).squeeze(axis)
    return middle


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    by_name: list[Row] = []
    by_rank: list[Row] = []
    by_call: list[Row] = []
    sentences: list[str] = []
    for job_name, of_job in by_job(parts):
        job = _Job.of(of_job)
        if not job.total:
            continue
        sentences += job.sentences
        clocks = _clocks(job)
        arrivals = _arrivals(job, clocks)
        by_name += _names(job_name, job, arrivals)
        by_rank += _ranks(job, clocks, arrivals)
        by_call += _longest(job, arrivals)
        sentences += _sentences(job, clocks, arrivals)
    pictures = list(_pictures(by_rank))
    by_name.sort(key=_largest(_COLUMNS, "waited"))
    by_rank.sort(key=_largest(_RANK_COLUMNS, "kept waiting"))
    by_call.sort(key=_largest(_CALL_COLUMNS, "waited"))
    longest = by_call[:_CALLS]
    tables = [
        Table("collectives", "Collectives", _COLUMNS, by_name),
        Table("collective_ranks", "Collectives by rank", _RANK_COLUMNS, by_rank),
        Table(
            "collective_calls",
            "Calls with the longest waits",
            _CALL_COLUMNS,
            longest,
        ),
    ]
    return Result(tables, sentences, pictures)


def _largest(columns: Sequence[Column], name: str) -> Callable[[Row], float]:
    """The key that sorts rows by a column, descending."""
    at = [column.name for column in columns].index(name)
    return lambda row: -float(row[at] or 0)


@dataclass
class _Arrivals:
    """Who arrived when at each call, and what it cost, in ns on one clock.

    :meth:`arrive` is called for each rank; then the last arrivals are known. :meth:`wait` is called for each rank next,
    and :meth:`blame` at the end.
    """

    # By call:
    earliest: np.ndarray
    latest: np.ndarray
    end: np.ndarray
    #: The part that came last.
    last: np.ndarray
    #: The number of ranks that arrived.
    ranks: np.ndarray
    waits: np.ndarray
    time: np.ndarray
    # By part:
    rank_waits: np.ndarray
    rank_time: np.ndarray
    rank_calls: np.ndarray
    #: How often it came last, and the waits of others then.
    rank_last: np.ndarray
    caused: np.ndarray

    @classmethod
    def none(cls, calls: int, parts: int) -> _Arrivals:
        """No arrival of any part at any call."""
        never = np.iinfo(np.int64).max
        return cls(
            earliest=np.full(calls, never),
            latest=np.full(calls, -never),
            end=np.full(calls, -never),
            last=np.full(calls, -1),
            ranks=np.zeros(calls, np.int64),
            waits=np.zeros(calls, np.int64),
            time=np.zeros(calls, np.int64),
            rank_waits=np.zeros(parts, np.int64),
            rank_time=np.zeros(parts, np.int64),
            rank_calls=np.zeros(parts, np.int64),
            rank_last=np.zeros(parts, np.int64),
            caused=np.zeros(parts, np.int64),
        )

    def arrive(
        self,
        part: int,
        calls: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        self.last[calls[start > self.latest[calls]]] = part
        self.latest[calls] = np.maximum(self.latest[calls], start)
        self.earliest[calls] = np.minimum(self.earliest[calls], start)
        self.end[calls] = np.maximum(self.end[calls], end)
        self.ranks[calls] += 1
        self.time[calls] += end - start
        self.rank_time[part] = int((end - start).sum())
        self.rank_calls[part] = len(calls)

    def wait(
        self,
        part: int,
        calls: np.ndarray,
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        """A rank waits until the last one arrives. No wait is longer than the call."""
        waits = np.minimum(self.latest[calls] - start, end - start)
        self.waits[calls] += waits
        self.rank_waits[part] = int(waits.sum())

    def blame(self) -> None:
        """Count how often each rank was last, and what the others waited then."""
        known = self.ranks > 0
        last = self.last[known]
        self.rank_last += np.bincount(last, minlength=len(self.rank_last))
        np.add.at(self.caused, last, self.waits[known])


def _arrivals(job: _Job, clocks: _Clocks) -> _Arrivals:
    arrivals = _Arrivals.none(job.total, len(job.parts))
    for part, calls, start, end in _on_one_clock(job, clocks):
        arrivals.arrive(part, calls, start, end)
    for part, calls, start, end in _on_one_clock(job, clocks):
        arrivals.wait(part, calls, start, end)
    arrivals.blame()
    return arrivals


def _on_one_clock(job: _Job, clocks: _Clocks) -> Iterator[_CallsOfPart]:
    """The calls of each part (:meth:`_Job.each`), without the error of its clock."""
    ahead = clocks.ahead.astype(np.int64)
    for part, calls, start, end in job.each():
        error = ahead[part]
        yield part, calls, start - error, end - error


def _names(job_name: str, job: _Job, a: _Arrivals) -> Iterator[Row]:
    """The rows of :data:`_COLUMNS`."""
    edges = [*job.first.values(), job.total]
    for name, (first, end) in zip(job.first, pairwise(edges), strict=True):
        here = np.arange(first, end)
        here = here[a.ranks[here] > 0]
        waits = int(a.waits[here].sum())
        time = int(a.time[here].sum())
        latest = a.latest[here]
        spread = latest - a.earliest[here]
        transfer = np.maximum(a.end[here] - latest, 0)
        counts = np.bincount(a.last[here], minlength=len(job.parts))
        last = int(counts.argmax())
        yield (
            waits,
            time,
            share_of(waits, time),
            len(here),
            int(a.ranks[here].max()),
            float(spread.mean()),
            float(transfer.mean()),
            job.parts[last].label,
            int(counts[last]) / len(here),
            job_name,
            name,
        )


def _ranks(job: _Job, clocks: _Clocks, a: _Arrivals) -> Iterator[Row]:
    """The rows of :data:`_RANK_COLUMNS`."""
    for index, part in enumerate(job.parts):
        waits = int(a.rank_waits[index])
        time = int(a.rank_time[index])
        late = None
        if np.isfinite(clocks.late[index]):
            late = round(float(clocks.late[index]))
        yield (
            part.label,
            waits,
            time,
            share_of(waits, time),
            int(a.rank_calls[index]),
            int(a.rank_last[index]),
            int(a.caused[index]),
            late,
            int(clocks.ahead[index]),
            part.clock.error,
        )


def _longest(job: _Job, a: _Arrivals) -> Iterator[Row]:
    """The rows of :data:`_CALL_COLUMNS`."""
    begin = int(a.earliest[a.ranks > 0].min())
    for number in np.argsort(-a.waits, kind="stable")[:_CALLS].tolist():
        if not a.ranks[number]:
            continue
        name, call = job.name_of(number)
        earliest = int(a.earliest[number])
        last = int(a.last[number])
        yield (
            int(a.waits[number]),
            int(a.latest[number]) - earliest,
            job.parts[last].label,
            int(a.ranks[number]),
            earliest - begin,
            call + 1,
            name,
        )


def _sentences(job: _Job, clocks: _Clocks, a: _Arrivals) -> Iterator[str]:
    """Ranks that come late, and clocks that are wrong, where they stand out."""
    if len(job.parts) < _FEWEST:
        return
    known = a.ranks > 0
    begin = int(a.earliest[known].min())
    end = int(a.end[known].max())
    period = (end - begin) / job.total
    late = np.nan_to_num(clocks.late)
    scores = robust_scores(late.tolist())
    for index in np.argsort(-late, kind="stable").tolist():
        lateness_of_rank = late[index]
        if scores[index] > OUTSTANDING and lateness_of_rank > period * _LATE:
            label = job.parts[index].label
            lateness = format_duration(round(lateness_of_rank))
            calls = count_of(int(a.rank_calls[index]), "call")
            yield (
                f"{label}: it comes {lateness} late to a collective on average, and is the last at "
                f"{a.rank_last[index]:,} of {calls}"
            )
    # Consecutive ranks of one machine share its clock.
    described = zip(job.parts, _wrong_clocks(job, clocks), strict=True)
    for sentence, group in groupby(described, lambda one: one[1]):
        labels = [part.label for part, _ in group]
        ranks = labels[0]
        if len(labels) > 1:
            ranks = f"{ranks} to {labels[-1]}"
        if sentence:
            yield f"{ranks}: {sentence}"


def _wrong_clocks(job: _Job, clocks: _Clocks) -> Iterator[str]:
    """Yield for each rank what is said about its clock: nothing, unless it stands out."""
    scores = np.abs(robust_scores(clocks.ahead.tolist()))
    for index, part in enumerate(job.parts):
        ahead = int(clocks.ahead[index])
        error = part.clock.error
        stands_out = scores[index] > OUTSTANDING
        if error is None or not stands_out:
            yield ""
            continue
        if abs(ahead) <= max(_CLOCK_NS, 10 * error):
            yield ""
            continue
        way = "behind"
        if ahead > 0:
            way = "ahead of"
        yield f"clock {format_duration(abs(ahead))} {way} those of others, by the ends of collectives"


def _pictures(by_rank: Sequence[Row]) -> Iterator[Picture]:
    if not by_rank:
        return
    labels = [str(row[0]) for row in by_rank]
    names = [column.name for column in _RANK_COLUMNS]
    for title, name in (
        ("Waits for the last rank, by rank", "waited"),
        ("Waits of others for a rank", "kept waiting"),
    ):
        at = names.index(name)
        values = [float(row[at] or 0) for row in by_rank]
        yield Bars(title, "ns", labels, {name: values})


COLLECTIVES = BatchReport(
    "collectives",
    "Collectives: who comes last, how long others wait",
    calls,
    _reduce,
)
