"""Collectives across ranks: the last rank to arrive, the waits of the others, and the errors of clocks.

Calls are matched within groups of ranks (:mod:`.matching`). All ranks of a call end it together. This shows the errors
of their clocks (:mod:`.clocks`), which are then removed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...analysis.tables import columns_of
from ...trace.arrow import pyarrow
from ...units import count_of, format_duration
from .bandwidth import bus_bytes, clock_times, merged, slow_times, slowness
from .communicators import (
    POINT_TO_POINT,
    UNKNOWN,
    CommunicationKernels,
    asked_of,
    kernels_of,
    kind_of,
)
from .matching import Job, RankGroup
from .model import (
    COLUMN_DOCS,
    Bars,
    BatchOptions,
    BatchReport,
    BatchTable,
    Part,
    PartIdentity,
    Picture,
    RankTrace,
    Records,
    Result,
    Row,
    descending,
    share_of,
)
from .stragglers import OUTSTANDING, Measured, Outstanding, by_host, robust_scores
from .time_sums import ascending
from .timeline import TimeRatios, by_job

# The largest number of rows of the table of calls.
_CALLS = 1000
# The largest number of lines of the chart of transfers.
_LINES = 6
# The smallest error of a clock (ns) that gets a sentence.
_CLOCK_NS = 100_000
# The smallest lateness that gets a sentence, as a share of the time between calls.
_LATE = 0.01
_FEWEST = 4

_DOCS = COLUMN_DOCS | {
    "waited": "sum of the waits of all ranks, each from its arrival to the arrival of the last rank",
    "time": "sum of the times of all ranks in the calls",
    "wait share": "waited / time",
    "calls": "number of calls",
    "spread": "time from the first arrival to the last one",
    "transfer": "time from the last arrival to the last end",
    "bytes": "sum of the sizes as NCCL counts them, if all are known",
    "bus bandwidth": "bytes on the bus / transfer as in nccl-tests, if all sizes are known",
    "group": "ranks of the group",
    "communicator": "communicator of the group; empty if it is unknown",
    "collective": "stable name of the kernel",
}
_NAME_TABLE = BatchTable(
    "collectives",
    "Collectives",
    columns_of(
        "waited: ns, time: ns spare, wait share: 1, calls, ranks: spare, spread: ns spare, transfer: ns spare, "
        "most often last: text, last share: 1, bytes: bytes spare, bus bandwidth: bytes/s spare, group: text, "
        "communicator: text spare, job: text spare, collective: text",
        _DOCS
        | {
            "ranks": "largest number of ranks in a call",
            "spread": "mean time from the first arrival to the last one",
            "transfer": "mean time from the last arrival to the last end",
            "most often last": "rank that arrived last most often",
            "last share": "fraction of the calls in which it arrived last",
        },
    ),
    "One row per group of ranks and kernel, the longest waits first.",
)
_RANK_TABLE = BatchTable(
    "collective_ranks",
    "Collectives by rank",
    columns_of(
        "rank: text, waited: ns, time: ns spare, wait share: 1, calls: spare, last, kept waiting: ns, late: change, "
        "late by itself: change, clock ahead: change spare, clock error: ns spare, host: text spare, "
        "group: text spare, communicator: text spare",
        _DOCS
        | {
            "waited": "sum of the waits of the rank, each from its arrival to the arrival of the last rank",
            "time": "sum of the times of the rank in the calls",
            "last": "number of calls in which it arrived last",
            "kept waiting": "sum of the waits of the others in these calls",
            "late": "mean time from the median arrival to the arrival of the rank, without its latest arrival",
            "late by itself": "part of late that the rank spent after the previous call, outside communication kernels",
            "clock ahead": "time that its clock is ahead of the clock of the median rank, from the ends of calls",
            "clock error": "error of the clock snapshots in its file, if it has any",
        },
    ),
    "One row per rank and group, the longest waits of others first.",
)
_CALL_TABLE = BatchTable(
    "collective_calls",
    "Calls with the longest waits",
    columns_of(
        "waited: ns, spread: ns, last rank: text, ranks, after: ns, call, transfer: ns spare, bytes: bytes spare, "
        "bus bandwidth: bytes/s spare, group: text spare, "
        "communicator: text spare, collective: text",
        _DOCS
        | {
            "last rank": "rank that arrived last",
            "ranks": "number of ranks in the call",
            "after": "time from the first call of the job to this call",
            "call": "number of the call in its group, from 1",
            "bytes": "size as NCCL counts it, if it is known",
        },
    ),
    f"One row per call, the longest waits first, at most {_CALLS:,}.",
)
_GROUP_TABLE = BatchTable(
    "collective_groups",
    "Groups of ranks",
    columns_of(
        "waited: ns, time: ns spare, wait share: 1, calls, bytes: bytes spare, bus bandwidth: bytes/s spare, ranks, "
        "group: text, communicator: text, job: text spare",
        _DOCS | {"ranks": "number of ranks in the group"},
    ),
    "One row per group of ranks, the longest waits first.",
)


_NEVER = np.iinfo(np.int64).max
#: The fields of a call and their initial values. Times are ns on one clock: the first and the last arrival, the last
#: end, and the transfer. ``waits`` and ``time`` are sums over all ranks. ``last`` is the index of the member that came
#: last, and ``ranks`` the number of ranks that arrived. ``bytes`` is :data:`UNKNOWN` if unknown. ``bus`` is the number
#: of bytes on the bus, NaN if unknown.
_NOTHING = {
    "number": 0,
    "earliest": _NEVER,
    "latest": -_NEVER,
    "end": -_NEVER,
    "transfer": 0,
    "waits": 0,
    "time": 0,
    "last": -1,
    "ranks": 0,
    "bytes": UNKNOWN,
    "name": "",
    "kind": "",
    "bus": np.nan,
}
_TYPES = {int: np.int64, float: np.float64, str: object}
_ARRIVALS = np.dtype([(name, _TYPES[type(value)]) for name, value in _NOTHING.items()])


def calls(rank: RankTrace, options: BatchOptions, *, on_wall_clock: bool = True) -> Any:
    """Map a rank to a table with a row for each communication kernel. ``collective`` is its name, ``kind`` the kind of
    call, and ``communicator`` is "" if unknown. ``ranks`` is the number of ranks of the communicator. ``call`` is the
    number of the call in its communicator, or among the kernels with its name. Start and end are ns on the wall clock,
    or on the clock of the trace."""
    context = rank.context.kernels
    kernels = kernels_of(rank)
    number = context.numbers[kernels.launch].astype(np.int64)
    names = [context.names[name] for name in number.tolist()]
    asked = asked_of(rank, kernels, list(map(kind_of, names)))
    start = kernels.start
    end = kernels.end
    if on_wall_clock:
        start = rank.moved(start)
        end = rank.moved(end)
    pa = pyarrow("batch")
    columns = {
        "collective": pa.array(names, pa.string()),
        "kind": pa.array(asked.kind, pa.string()),
        "communicator": pa.array(asked.communicator, pa.string()),
        "ranks": pa.array(asked.ranks, mask=asked.ranks <= 0),
        "call": _numbers(asked, number, kernels),
        "start_ns": start,
        "end_ns": end,
        "bytes": pa.array(asked.bytes, mask=asked.bytes == UNKNOWN),
    }
    table = pa.table(columns)
    return ascending(
        table,
        "communicator",
        "collective",
        "call",
        "start_ns",
    )


def _numbers(asked: Records, names: np.ndarray, kernels: Records) -> np.ndarray:
    """The number of each call in its communicator. If the communicator is unknown, calls of the same name are numbered.
    Transfers between two ranks have separate numbers."""
    known = asked.communicator != ""
    own_names = np.where(known, -1, names)
    apart = asked.kind == POINT_TO_POINT
    keys: dict[tuple[str, bool, int], int] = {}
    key_of = np.zeros(len(names), np.int64)
    for row, key in enumerate(zip(asked.communicator, apart, own_names, strict=True)):
        key_of[row] = keys.setdefault(key, len(keys))
    order = np.lexsort((kernels.end, kernels.start, key_of))
    ordered = key_of[order]
    number = np.zeros(len(names), np.int64)
    # Numbers start at 0 for each key, so the index of the first call with the key is subtracted.
    number[order] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return number


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    by_name: list[Row] = []
    by_rank: list[Row] = []
    by_call: list[Row] = []
    by_group: list[Row] = []
    sentences: list[str] = []
    pictures: list[Picture] = []
    ahead: dict[PartIdentity, int] = {}
    members: list[_Member] = []
    for job_name, of_job in by_job(parts):
        job = Job.of(of_job)
        for part, error in zip(of_job, job.ahead.tolist(), strict=True):
            ahead[part.identity] = round(error)
        sentences += job.sentences
        if not job.groups:
            continue
        groups = _arrivals(job)
        first = min(int(group.calls.earliest.min()) for group in groups)
        for group in groups:
            for member in group.members.values():
                members.append(member)
                by_rank.append(member.row)
            by_group.append(
                (*_sums(group.calls), len(group.members), *group.title, job_name)
            )
            by_name += _by_name(group, job_name)
        by_call += _longest(groups, first)
        sentences += _late_sentences(groups)
        sentences += _slow_sentences(groups, first)
        sentences += _clock_sentences(job)
        pictures += _transfers(groups, job_name)
    pictures += _by_rank(members)
    tables = [
        _NAME_TABLE.of(by_name).sorted("waited"),
        _RANK_TABLE.of(by_rank).sorted("kept waiting"),
        _CALL_TABLE.of(descending(by_call)[:_CALLS]),
        _GROUP_TABLE.of(by_group).sorted("waited"),
    ]
    return Result(
        tables,
        sentences,
        pictures,
        ahead=ahead,
    )


# Who came when


@dataclass
class _Member:
    """A rank in a group. ``index`` is its index in the group, and ``ahead`` is the error of its clock. ``calls`` counts
    its calls, and ``last`` the calls that it joined last. ``waits`` is the sum of its waits, ``time`` the sum of its
    calls, and ``caused`` the sum of the waits of the others in the calls that it joined last. ``late`` is its mean
    lateness, and ``by_itself`` the part that it causes itself; NaN if unknown. All times are ns."""

    part: Part
    group: _GroupCalls
    index: int
    ahead: int
    late: float
    by_itself: float
    calls: int = 0
    waits: int = 0
    time: int = 0
    last: int = 0
    caused: int = 0

    @property
    def row(self) -> Row:
        """The row of :data:`_RANK_TABLE`."""
        return (
            self.part.label,
            self.waits,
            self.time,
            share_of(self.waits, self.time),
            self.calls,
            self.last,
            self.caused,
            _rounded(self.late),
            _rounded(self.by_itself),
            self.ahead,
            self.part.clock.error,
            self.part.host,
            *self.group.title,
        )


@dataclass
class _GroupCalls:
    """The calls of a group that any rank recorded, as records of :data:`_ARRIVALS`, ascending by number. The keys of
    ``members`` are indices of parts. ``title`` has the ranks, for people, and the communicator. ``place`` names the
    group in a sentence; it is empty if there is only one group.

    :meth:`arrive` is called for each member and finds the last arrivals. Then :meth:`wait` is called for each member,
    and :meth:`end` once.
    """

    group: RankGroup
    title: tuple[str, str]
    place: str
    calls: Records
    members: dict[int, _Member] = field(default_factory=dict)

    def arrive(
        self,
        part: int,
        number: np.ndarray,
        calls: np.recarray,
    ) -> None:
        member = self.members[part]
        length = calls.end_ns - calls.start_ns
        member.time = int(length.sum())
        member.calls = len(calls)
        own = self.calls[number]
        own.last[calls.start_ns > own.latest] = member.index
        own.latest = np.maximum(own.latest, calls.start_ns)
        own.earliest = np.minimum(own.earliest, calls.start_ns)
        own.end = np.maximum(own.end, calls.end_ns)
        own.ranks += 1
        own.time += length
        own.bytes = np.maximum(own.bytes, calls.bytes)
        own.name = calls.collective
        own.kind = calls.kind
        self.calls[number] = own

    def wait(
        self,
        part: int,
        number: np.ndarray,
        calls: np.recarray,
    ) -> None:
        """Add the waits of a rank for the last arrival. No wait is longer than the call."""
        late = self.calls.latest[number] - calls.start_ns
        waits = np.minimum(late, calls.end_ns - calls.start_ns)
        self.calls.waits[number] += waits
        self.members[part].waits = int(waits.sum())

    def end(self) -> None:
        """Count the calls that each member joined last, and the waits of the others in them."""
        calls = self.calls[self.calls.ranks > 0]
        calls.transfer = np.maximum(calls.end - calls.latest, 0)
        size = len(self.members)
        # In a group of one, the arrival of the others is unknown.
        if size > 1:
            calls.bus = bus_bytes(calls.kind, calls.bytes, self.group.ranks or size)
        counts = np.bincount(calls.last, minlength=size)
        caused = np.zeros(size, np.int64)
        np.add.at(caused, calls.last, calls.waits)
        for row, member in enumerate(self.members.values()):
            member.last = int(counts[row])
            member.caused = int(caused[row])
        self.calls = calls

    @property
    def complete(self) -> Records:
        """The calls that all ranks recorded, in the order of their last arrival."""
        size = len(self.members)
        calls = self.calls[(self.calls.ranks == size) & (size > 1)]
        return calls[np.argsort(calls.latest, kind="stable")]


def _arrivals(job: Job) -> list[_GroupCalls]:
    """The calls of each group, with the arrivals of its ranks."""
    titles = [
        (job.title(group.members), group.key.communicator) for group in job.groups
    ]
    same_title = Counter(titles)
    same_ranks = Counter(ranks for ranks, _ in titles)
    groups = []
    for group, title in zip(job.groups, titles, strict=True):
        ranks, communicator = title
        place = ""
        if len(titles) > 1:
            place = f" of {ranks}"
        if same_ranks[ranks] > same_title[title]:
            place += f" (communicator {communicator})"
        found = _GroupCalls(
            group,
            title,
            place,
            _none(group.total),
        )
        groups.append(found)
        late, by_itself = group.sample.lateness(job.ahead)
        for row, part in enumerate(group.sample.members):
            habits = (_habit(late[row]), _habit(by_itself[row]))
            found.members[part] = _Member(
                job.parts[part],
                found,
                row,
                int(job.ahead[part]),
                *habits,
            )
    for index, part, number, calls in job.each():
        groups[index].arrive(part, number, calls)
    for index, part, number, calls in job.each():
        groups[index].wait(part, number, calls)
    for found in groups:
        found.end()
    return groups


def _none(count: int) -> Records:
    """Records of calls with initial values."""
    calls: Records = np.recarray(count, _ARRIVALS)
    calls[:] = tuple(_NOTHING.values())
    calls.number = np.arange(count)
    return calls


def _habit(late: np.ndarray) -> float:
    """The mean without the largest number, because a single late call may be the call that sets up connections."""
    known = np.sort(late[~np.isnan(late)])
    if len(known) > _FEWEST:
        known = known[:-1]
    if not len(known):
        return float("nan")
    return float(known.mean())


def _rounded(time: float) -> int | None:
    if np.isnan(time):
        return None
    return round(time)


# Tables


def _sums(
    calls: Records,
) -> tuple[int, int, float | None, int, int | None, float | None]:
    """The waits (ns) and the time (ns) of some calls, the share of the waits in the time, the number of calls, their
    bytes, and the bus bandwidth (bytes/s). A call of unknown size makes the last two None."""
    waits = int(calls.waits.sum())
    time = int(calls.time.sum())
    size = None
    if (calls.bytes != UNKNOWN).all():
        size = int(calls.bytes.sum())
    bandwidth = None
    if not np.isnan(calls.bus).any():
        bandwidth = share_of(float(calls.bus.sum()) * 1e9, float(calls.transfer.sum()))
    return waits, time, share_of(waits, time), len(calls), size, bandwidth


def _by_name(group: _GroupCalls, job_name: str) -> Iterator[Row]:
    """The rows of :data:`_NAME_TABLE`."""
    members = list(group.members.values())
    for name in sorted(set(group.calls.name)):
        calls = group.calls[group.calls.name == name]
        *sums, size, bandwidth = _sums(calls)
        spread = float((calls.latest - calls.earliest).mean())
        transfer = float(calls.transfer.mean())
        counts = np.bincount(calls.last)
        last = int(counts.argmax())
        share = int(counts[last]) / len(calls)
        most_often = (members[last].part.label, share)
        ranks = int(calls.ranks.max())
        yield (
            *sums,
            ranks,
            spread,
            transfer,
            *most_often,
            size,
            bandwidth,
            *group.title,
            job_name,
            name,
        )


def _longest(groups: Sequence[_GroupCalls], first: int) -> Iterator[Row]:
    """The rows of :data:`_CALL_TABLE`. ``first`` (ns) is the start of the first call."""
    edges = np.cumsum([0, *(len(group.calls) for group in groups)])
    waits = np.concatenate([group.calls.waits for group in groups])
    for row in np.argsort(-waits, kind="stable")[:_CALLS].tolist():
        at = int(np.searchsorted(edges, row, "right")) - 1
        group = groups[at]
        one = group.calls[row - edges[at] :][:1]
        call = one[0]
        *_, size, bandwidth = _sums(one)
        last = list(group.members.values())[call.last].part.label
        spread = int(call.latest - call.earliest)
        after = int(call.earliest) - first
        times = (after, int(call.number) + 1, int(call.transfer))
        yield (
            int(call.waits),
            spread,
            last,
            int(call.ranks),
            *times,
            size,
            bandwidth,
            *group.title,
            call.name,
        )


# Sentences


def _late_sentences(groups: Sequence[_GroupCalls]) -> Iterator[str]:
    """Yield sentences on ranks that cause their own lateness. A rank is compared with the ranks of all groups that have
    the same size and make calls of the same names."""
    alike: defaultdict[tuple[int, tuple[str, ...]], list[_GroupCalls]] = defaultdict(
        list
    )
    for group in groups:
        names = tuple(sorted(set(group.calls.name)))
        alike[len(group.members), names].append(group)
    for some in alike.values():
        late = [member.by_itself for group in some for member in group.members.values()]
        if len(late) < _FEWEST:
            continue
        scores = iter(robust_scores(np.nan_to_num(late)))
        findings = []
        for group in some:
            start = int(group.calls.earliest.min())
            span = int(group.calls.end.max()) - start
            least = span / len(group.calls) * _LATE
            of_label = {}
            outstanding = []
            everyone = []
            for member in group.members.values():
                by_itself = float(np.nan_to_num(member.by_itself))
                one = Measured.of(member.part, by_itself)
                of_label[one.label] = member
                everyone.append(one)
                if next(scores) > OUTSTANDING and one.value > least:
                    outstanding.append(one)
            for who in by_host(outstanding, everyone):
                own = [of_label[one.label] for one in who.members]
                findings.append((-who.value, _late_sentence(who, own, group.place)))
        for _, sentence in sorted(findings):
            yield sentence


def _late_sentence(who: Outstanding, members: Sequence[_Member], place: str) -> str:
    lateness = format_duration(round(who.value))
    last = sum(member.last for member in members)
    calls = count_of(max(member.calls for member in members), "call")
    how = f"late to a collective{place} on average, and"
    if len(members) > 1:
        return f"{who.name}: they come {lateness} {how} one of them is the last at {last:,} of {calls}"
    return f"{who.name}: it comes {lateness} {how} is the last at {last:,} of {calls}"


def _slow_sentences(groups: Sequence[_GroupCalls], first: int) -> Iterator[str]:
    """Yield sentences on periods of slow transfers. ``first`` is the start of the first call (ns)."""
    span = max(int(group.calls.end.max()) for group in groups) - first
    found = []
    timed = True
    for index, group in enumerate(groups):
        timed &= all(
            member.part.clock.error is not None for member in group.members.values()
        )
        calls = group.complete
        if len(calls):
            slow = slowness(calls.name, calls.bytes, calls.transfer)
            found += slow_times(
                index,
                calls.latest,
                calls.end,
                slow,
                span,
            )
    for time in merged(found):
        where = ""
        if len(time.groups) < len(groups):
            where = f" of {groups[time.groups[0]].title[0]}"
        if 1 < len(time.groups) < len(groups):
            where = f" of {len(time.groups):,} of {len(groups):,} groups"
        when = f"{format_duration(time.start - first)} to {format_duration(time.end - first)} after the first call"
        if timed:
            when = clock_times(time.start, time.end)
        calls_in_it = count_of(time.calls, "call")
        yield f"transfers{where} from {when} took {time.ratio:.3g} times as long as usual ({calls_in_it})"


def _clock_sentences(job: Job) -> Iterator[str]:
    """Yield sentences on clocks with an error that stands out. Consecutive ranks of one machine share its clock."""
    if len(job.parts) < _FEWEST:
        return
    several = len({part.host for part in job.parts}) > 1
    wrong: list[tuple[str, str, list[str]]] = []
    for part, error, score in zip(
        job.parts, job.ahead.tolist(), robust_scores(job.ahead), strict=True
    ):
        sentence = ""
        known = part.clock.error
        if (
            known is not None
            and abs(score) > OUTSTANDING
            and abs(error) > max(_CLOCK_NS, 10 * known)
        ):
            way = "behind"
            if error > 0:
                way = "ahead of"
            sentence = f"clock {format_duration(round(abs(error)))} {way} the other clocks, by the ends of collectives"
        if not wrong or wrong[-1][:2] != (sentence, part.host):
            wrong.append((sentence, part.host, []))
        wrong[-1][2].append(part.label)
    for sentence, host, labels in wrong:
        ranks = labels[0]
        if len(labels) > 1:
            ranks = f"{ranks} to {labels[-1]}"
        if several and host:
            ranks += f" on {host}"
        if sentence:
            yield f"{ranks}: {sentence}"


# Pictures


def _transfers(groups: Sequence[_GroupCalls], job_name: str) -> Iterator[Picture]:
    """Yield line charts for the groups with the longest transfers: their bus bandwidth over time, or the mean time of
    their transfers if some sizes are unknown."""
    titles = Counter(group.title[0] for group in groups)
    drawn = []
    for group in groups:
        title, communicator = group.title
        if titles[title] > 1:
            title += f", {communicator or group.calls.name[0]}"
        calls = group.complete
        if len(calls):
            drawn.append((title, calls))
    drawn.sort(key=lambda one: -int(one[1].transfer.sum()))
    rates = TimeRatios()
    times = TimeRatios()
    for title, calls in drawn[:_LINES]:
        rates.add(title, calls.latest, calls.bus * 1e9, calls.transfer)
        times.add(title, calls.latest, calls.transfer, np.ones(len(calls)))
    if all(np.isfinite(calls.bus).all() for _, calls in drawn[:_LINES]):
        yield from rates.lines(f"Bus bandwidth, job {job_name}", "bytes/s")
    else:
        yield from times.lines(f"Mean time of transfers, job {job_name}", "ns")


def _by_rank(members: Sequence[_Member]) -> Iterator[Picture]:
    if not members:
        return
    waited = Counter[str]()
    caused = Counter[str]()
    for member in sorted(members, key=lambda member: member.part.identity):
        waited[member.part.label] += member.waits
        caused[member.part.label] += member.caused
    labels = list(waited)
    yield Bars(
        "Waits for the last rank, by rank",
        "ns",
        labels,
        {"waited": list(waited.values())},
    )
    yield Bars(
        "Waits of others for a rank",
        "ns",
        labels,
        {"kept waiting": list(caused.values())},
    )


COLLECTIVES = BatchReport(
    "collectives",
    "Collectives: who comes last, how long others wait",
    calls,
    _reduce,
    collects=(CommunicationKernels,),
    tables=(_NAME_TABLE, _RANK_TABLE, _CALL_TABLE, _GROUP_TABLE),
)
