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
from ...analysis.tables import Cell, Column, Table, columns_of
from ...trace.arrow import pyarrow
from ...units import count_of, format_duration
from .model import Bars, BatchOptions, BatchReport, Part, Picture, RankTrace, Result
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


def calls(rank: RankTrace, options: BatchOptions) -> Any:
    """Each call of a collective: its name, number, begin and end on the wall clock (ns)."""
    names = rank.context.kernels
    collective = np.array(
        [
            communicates(name) and not _POINT_TO_POINT.search(name)
            for name in names.names
        ],
        bool,
    )
    parts: list[np.ndarray] = [np.zeros((3, 0), np.int64)]
    for rows in rank.rows("kernels"):
        number = names.numbers.take(rows["launch"]).astype(np.int64)
        chosen = collective[number]
        times = (rank.moved(rows[field][chosen]) for field in ("start", "end"))
        parts.append(np.stack([number[chosen], *times]))
    number, start, end = np.concatenate(parts, axis=1)
    order = np.lexsort((end, start, number))
    number = number[order]
    start = start[order]
    end = end[order]
    # The index of the first call of the same name is subtracted.
    call = np.arange(len(number)) - np.searchsorted(number, number)
    pa = pyarrow("batch")
    text = pa.DictionaryArray.from_arrays(
        pa.array(number, pa.int32()), pa.array(names.names, pa.string())
    )
    table = pa.table(
        {
            "collective": text.cast(pa.string()),
            "call": call,
            "start_ns": start,
            "end_ns": end,
        }
    )
    return table.sort_by([("collective", "ascending"), ("call", "ascending")])


def _read(part: Part) -> _Calls:
    table = part.table()
    name, start, end = (
        table[column].to_numpy() for column in ("collective", "start_ns", "end_ns")
    )
    edges = [0, *(np.flatnonzero(name[1:] != name[:-1]) + 1).tolist(), len(name)]
    return {name[a]: (start[a:b], end[a:b]) for a, b in pairwise(edges) if a < b}


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
        most: dict[str, np.ndarray] = {}
        # The number of calls, and the first end, of each part.
        own: list[dict[str, tuple[int, int]]] = []
        for part in parts:
            read = _read(part)
            own.append(
                {name: (len(end), int(end[0])) for name, (_, end) in read.items()}
            )
            most |= {
                name: end
                for name, (_, end) in read.items()
                if len(end) > len(most.get(name, ()))
            }
        first = {}
        total = 0
        for name in sorted(most):
            first[name], total = total, total + len(most[name])
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
            missing = len(most[name]) - count
            if missing and part.clock.error is not None:
                shifts[name] = int(np.abs(most[name][: missing + 1] - end).argmin())
            if missing:
                self.sentences.append(
                    f"{part.label}: it has {count:,} calls of {name}, and others {len(most[name]):,}: its first is "
                    f"taken for number {shifts.get(name, 0) + 1:,}"
                )
        return shifts

    def each(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield of each part its index, and the numbers, begins and ends of its calls."""
        for index, part in enumerate(self.parts):
            calls = [np.zeros((3, 0), np.int64)]
            for name, (start, end) in _read(part).items():
                number = (
                    np.arange(len(start))
                    + self.first[name]
                    + self.shifts[index].get(name, 0)
                )
                calls.append(np.stack([number, start - self.base, end - self.base]))
            yield index, *np.concatenate(calls, axis=1)

    def name_of(self, number: int) -> tuple[str, int]:
        """The name and the number among calls of this name."""
        name = max(
            (first, name) for name, first in self.first.items() if first <= number
        )[1]
        return name, number - self.first[name]


@dataclass
class _Clocks:
    """For each part, the error of its clock (ns) and its mean lateness (ns); NaN where unknown."""

    ahead: np.ndarray
    late: np.ndarray


def _clocks(job: _Job) -> _Clocks:
    sample = np.unique(
        np.linspace(0, job.total - 1, min(job.total, _SAMPLE)).astype(np.int64)
    )
    together = np.array(
        [bool(_TOGETHER.search(job.name_of(number)[0])) for number in sample.tolist()],
        bool,
    )
    starts, ends = (np.full((len(job.parts), len(sample)), np.nan) for _ in range(2))
    for index, number, start, end in job.each():
        place = np.minimum(np.searchsorted(sample, number), len(sample) - 1)
        sampled = sample[place] == number
        starts[index, place[sampled]], ends[index, place[sampled]] = (
            start[sampled],
            end[sampled],
        )
    ahead = np.nan_to_num(
        _median(ends[:, together] - _median(ends[:, together], 0), 1)
    ).round()
    starts -= ahead[:, None]
    late = starts - _median(starts, 0)
    # One late call, such as the one that sets up connections, is not the habit of a rank.
    count = (~np.isnan(late)).sum(axis=1)
    most = np.where(
        count > _FEWEST,
        np.nanmax(np.where(np.isnan(late), -np.inf, late), axis=1, initial=-np.inf),
        0.0,
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return _Clocks(
            ahead, (np.nansum(late, axis=1) - most) / (count - (count > _FEWEST))
        )


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """The median, NaN where there are no values, without a warning."""
    if not values.shape[axis]:
        return np.full(values.shape[1 - axis], np.nan)
    ordered = np.sort(values, axis=axis)  # NaN is behind all numbers
    count = (~np.isnan(values)).sum(axis=axis)
    low = np.maximum(count - 1, 0) // 2
    high = np.minimum(count // 2, values.shape[axis] - 1)
    pick = [
        np.take_along_axis(ordered, np.expand_dims(at, axis), axis).squeeze(axis)
        for at in (low, high)
    ]
    middle: np.ndarray = (pick[0] + pick[1]) / 2
    return middle


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    by_name: list[tuple[Cell, ...]] = []
    by_rank: list[tuple[Cell, ...]] = []
    by_call: list[tuple[Cell, ...]] = []
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
    return Result(
        [
            Table("collectives", "Collectives", _COLUMNS, by_name),
            Table("collective_ranks", "Collectives by rank", _RANK_COLUMNS, by_rank),
            Table(
                "collective_calls",
                "Calls with the longest waits",
                _CALL_COLUMNS,
                by_call[:_CALLS],
            ),
        ],
        sentences,
        pictures,
    )


def _largest(
    columns: Sequence[Column], name: str
) -> Callable[[tuple[Cell, ...]], float]:
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
        self, part: int, calls: np.ndarray, start: np.ndarray, end: np.ndarray
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
        self, part: int, calls: np.ndarray, start: np.ndarray, end: np.ndarray
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


def _on_one_clock(
    job: _Job, clocks: _Clocks
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """The calls of each part (:meth:`_Job.each`), without the error of its clock."""
    ahead = clocks.ahead.astype(np.int64)
    for part, calls, start, end in job.each():
        yield part, calls, start - ahead[part], end - ahead[part]


def _share(waits: int, time: int) -> float | None:
    if not time:
        return None
    return waits / time


def _names(job_name: str, job: _Job, a: _Arrivals) -> Iterator[tuple[Cell, ...]]:
    """The rows of :data:`_COLUMNS`."""
    edges = [*job.first.values(), job.total]
    for at, name in enumerate(job.first):
        here = np.arange(edges[at], edges[at + 1])
        here = here[a.ranks[here] > 0]
        waits = int(a.waits[here].sum())
        time = int(a.time[here].sum())
        spread = a.latest[here] - a.earliest[here]
        transfer = np.maximum(a.end[here] - a.latest[here], 0)
        counts = np.bincount(a.last[here], minlength=len(job.parts))
        last = int(counts.argmax())
        yield (
            waits,
            time,
            _share(waits, time),
            len(here),
            int(a.ranks[here].max()),
            float(spread.mean()),
            float(transfer.mean()),
            job.parts[last].label,
            int(counts[last]) / len(here),
            job_name,
            name,
        )


def _ranks(job: _Job, clocks: _Clocks, a: _Arrivals) -> Iterator[tuple[Cell, ...]]:
    """The rows of :data:`_RANK_COLUMNS`."""
    for index, part in enumerate(job.parts):
        waits = int(a.rank_waits[index])
        time = int(a.rank_time[index])
        late = float(clocks.late[index])
        yield (
            part.label,
            waits,
            time,
            _share(waits, time),
            int(a.rank_calls[index]),
            int(a.rank_last[index]),
            int(a.caused[index]),
            round(late) if np.isfinite(late) else None,
            int(clocks.ahead[index]),
            part.clock.error,
        )


def _longest(job: _Job, a: _Arrivals) -> Iterator[tuple[Cell, ...]]:
    begin = int(a.earliest[a.ranks > 0].min())
    for number in np.argsort(-a.waits, kind="stable")[:_CALLS].tolist():
        name, call = job.name_of(number)
        if a.ranks[number]:
            spread = int(a.latest[number] - a.earliest[number])
            last = job.parts[int(a.last[number])].label
            after = int(a.earliest[number]) - begin
            yield (
                int(a.waits[number]),
                spread,
                last,
                int(a.ranks[number]),
                after,
                call + 1,
                name,
            )


def _sentences(job: _Job, clocks: _Clocks, a: _Arrivals) -> Iterator[str]:
    """Ranks that come late, and clocks that are wrong, where they stand out."""
    if len(job.parts) < _FEWEST:
        return
    known = a.ranks > 0
    period = int(a.end[known].max() - a.earliest[known].min()) / job.total
    late = np.nan_to_num(clocks.late)
    scores = robust_scores(late.tolist())
    for index in np.argsort(-late, kind="stable").tolist():
        if scores[index] > OUTSTANDING and late[index] > period * _LATE:
            yield (
                f"{job.parts[index].label}: it comes {format_duration(round(late[index]))} late to a collective on "
                f"average, and is the last at {a.rank_last[index]:,} of {count_of(int(a.rank_calls[index]), 'call')}"
            )
    # Consecutive ranks of one machine share its clock.
    described = zip(job.parts, _wrong_clocks(job, clocks), strict=True)
    for text, group in groupby(described, lambda one: one[1]):
        labels = [part.label for part, _ in group]
        if text:
            yield f"{labels[0]}{f' to {labels[-1]}' if len(labels) > 1 else ''}: {text}"


def _wrong_clocks(job: _Job, clocks: _Clocks) -> Iterator[str]:
    """Yield for each rank what is said about its clock: nothing, unless it stands out."""
    scores = np.abs(robust_scores(clocks.ahead.tolist()))
    for index, part in enumerate(job.parts):
        ahead = int(clocks.ahead[index])
        error = part.clock.error
        if (
            error is None
            or scores[index] <= OUTSTANDING
            or abs(ahead) <= max(_CLOCK_NS, 10 * error)
        ):
            yield ""
        else:
            way = "ahead of" if ahead > 0 else "behind"
            yield f"clock {format_duration(abs(ahead))} {way} those of others, by the ends of collectives"


def _pictures(by_rank: Sequence[tuple[Cell, ...]]) -> Iterator[Picture]:
    labels = [str(row[0]) for row in by_rank]
    names = [column.name for column in _RANK_COLUMNS]
    for title, name in (
        ("Waits for the last rank, by rank", "waited"),
        ("Waits of others for a rank", "kept waiting"),
    ):
        if labels:
            yield Bars(
                title,
                "ns",
                labels,
                {name: [float(row[names.index(name)] or 0) for row in by_rank]},
            )


COLLECTIVES = BatchReport(
    "collectives", "Collectives: who comes last, how long others wait", calls, _reduce
)
