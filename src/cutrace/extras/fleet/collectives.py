"""Collectives across ranks: who arrives last, how long the others wait, and whose clock is wrong.

Calls are matched within groups of ranks (:mod:`.matching`). All ranks of a call end it together, which tells the errors
of clocks (:mod:`.clocks`), which are then removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ...analysis.gpu import communicates
from ...analysis.tables import Column, Table, columns_of
from ...trace.arrow import pyarrow
from ...units import count_of, format_duration
from .bandwidth import bus_bytes, clock_times, merged, slow_times, slowness
from .communicators import (
    POINT_TO_POINT,
    UNKNOWN,
    Kernels,
    asked_of,
    kind_of,
)
from .matching import Job, NumberedCalls, RankGroup
from .model import (
    Bars,
    BatchOptions,
    BatchReport,
    Part,
    PartIdentity,
    Picture,
    RankTrace,
    Result,
    Row,
    share_of,
)
from .stragglers import OUTSTANDING, Measured, Outstanding, by_host, robust_scores
from .timeline import by_job, lines

# Rows of the table of calls, and lines of the picture of transfers.
_CALLS = 1000
_LINES = 6
# The smallest error of a clock (ns) that is said, and the smallest lateness, as a share of the time between calls.
_CLOCK_NS = 100_000
_LATE = 0.01
_FEWEST = 4

_COLUMNS = columns_of(
    "waited: ns, time: ns spare, wait share: 1, calls, ranks: spare, spread: ns spare, transfer: ns spare, "
    "most often last: text, last share: 1, bytes: bytes spare, bus bandwidth: bytes/s spare, group: text, "
    "communicator: text spare, job: text spare, collective: text"
)
_RANK_COLUMNS = columns_of(
    "rank: text, waited: ns, time: ns spare, wait share: 1, calls: spare, last, kept waiting: ns, late: change, "
    "late by itself: change, clock ahead: change spare, clock error: ns spare, host: text spare, group: text spare, "
    "communicator: text spare"
)
_CALL_COLUMNS = columns_of(
    "waited: ns, spread: ns, last rank: text, ranks, after: ns, call, transfer: ns spare, bytes: bytes spare, "
    "bus bandwidth: bytes/s spare, group: text spare, "
    "communicator: text spare, collective: text"
)
_GROUP_COLUMNS = columns_of(
    "waited: ns, time: ns spare, wait share: 1, calls, bytes: bytes, bus bandwidth: bytes/s, ranks, group: text, "
    "communicator: text, job: text spare"
)


def calls(
    rank: RankTrace,
    options: BatchOptions,
    *,
    on_wall_clock: bool = True,
) -> Any:
    """Each communication kernel: its collective (the name), kind, communicator ("" if unknown) and its number of ranks;
    its number in the communicator, or among kernels of the name; its start and end (ns on the wall clock, or on that of
    the trace), and bytes."""
    names = rank.context.kernels
    is_communication = np.array(list(map(communicates, names.names)), bool)
    kernels = Kernels.of(rank, is_communication[names.numbers])
    name_of = names.numbers[kernels.launch].astype(np.int64)
    kinds = np.array(list(map(kind_of, names.names)), object)
    kind_by_name = kinds[name_of].tolist()
    asked = asked_of(
        rank,
        kernels,
        kind_by_name,
    )
    start = kernels.start
    end = kernels.end
    if on_wall_clock:
        start = rank.moved(start)
        end = rank.moved(end)
    pa = pyarrow("batch")
    size = np.array([call.bytes for call in asked], np.int64)
    ranks = np.array([call.ranks for call in asked], np.int64)
    kind = [
        call.kind or named
        for call, named in zip(
            asked,
            kind_by_name,
            strict=True,
        )
    ]
    communicator = [call.communicator for call in asked]
    columns = {
        "collective": pa.array(
            [names.names[number] for number in name_of.tolist()], pa.string()
        ),
        "kind": pa.array(kind, pa.string()),
        "communicator": pa.array(communicator, pa.string()),
        "ranks": pa.array(ranks, mask=ranks <= 0),
        "call": _numbers(
            communicator,
            kind,
            name_of,
            kernels,
        ),
        "start_ns": start,
        "end_ns": end,
        "bytes": pa.array(size, mask=size == UNKNOWN),
    }
    order = ("communicator", "collective", "call", "start_ns")
    return pa.table(columns).sort_by([(name, "ascending") for name in order])


def _numbers(
    communicators: Sequence[str],
    kinds: Sequence[str],
    names: np.ndarray,
    kernels: Kernels,
) -> np.ndarray:
    """The number of each call in its communicator, or among the calls of its name if that is not known. Transfers
    between two ranks are numbered apart."""
    keys: dict[tuple[str, bool, int], int] = {}
    key_of = np.zeros(len(names), np.int64)
    for row, name in enumerate(names.tolist()):
        communicator = communicators[row]
        if communicator:
            name = -1
        key = (communicator, kinds[row] == POINT_TO_POINT, name)
        key_of[row] = keys.setdefault(key, len(keys))
    order = np.lexsort((kernels.end, kernels.start, key_of))
    ordered = key_of[order]
    number = np.zeros(len(names), np.int64)
    # The index of the first call with the same key is subtracted.
    number[order] = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return number


def _reduce(parts: Sequence[Part], options: BatchOptions) -> Result:
    by_name: list[Row] = []
    by_rank: list[Row] = []
    by_call: list[Row] = []
    by_group: list[Row] = []
    sentences: list[str] = []
    ahead: dict[PartIdentity, int] = {}
    transfers: list[Picture] = []
    for job_name, of_job in by_job(parts):
        job = Job.of(of_job)
        for part, error in zip(of_job, job.ahead.tolist(), strict=True):
            ahead[part.identity] = round(error)
        sentences += job.sentences
        if not job.total:
            continue
        arrivals = _Arrivals.of(job)
        titles = _titles(job)
        by_name += _names(
            job_name,
            job,
            arrivals,
            titles,
        )
        by_rank += _ranks(
            job,
            arrivals,
            titles,
        )
        by_call += _longest(
            job,
            arrivals,
            titles,
        )
        by_group += _groups(
            job_name,
            job,
            arrivals,
            titles,
        )
        sentences += _late_sentences(
            job,
            arrivals,
            titles,
        )
        sentences += _slow_sentences(job, arrivals, titles)
        transfers += _transfers(job_name, job, arrivals, titles)
        sentences += _clock_sentences(job)
    pictures = [*transfers, *_pictures(by_rank)]
    by_name.sort(key=_largest(_COLUMNS, "waited"))
    by_rank.sort(key=_largest(_RANK_COLUMNS, "kept waiting"))
    by_call.sort(key=_largest(_CALL_COLUMNS, "waited"))
    by_group.sort(key=_largest(_GROUP_COLUMNS, "waited"))
    longest = by_call[:_CALLS]
    tables = [
        Table(
            "collectives",
            "Collectives",
            _COLUMNS,
            by_name,
        ),
        Table(
            "collective_ranks",
            "Collectives by rank",
            _RANK_COLUMNS,
            by_rank,
        ),
        Table(
            "collective_calls",
            "Calls with the longest waits",
            _CALL_COLUMNS,
            longest,
        ),
        Table(
            "collective_groups",
            "Groups of ranks",
            _GROUP_COLUMNS,
            by_group,
        ),
    ]
    return Result(
        tables,
        sentences,
        pictures,
        ahead=ahead,
    )


def _largest(columns: Sequence[Column], name: str) -> Callable[[Row], float]:
    """The key that sorts rows by a column, descending."""
    at = [column.name for column in columns].index(name)
    return lambda row: -float(row[at] or 0)


def _titles(job: Job) -> list[tuple[str, str]]:
    """The ranks of each group, for people, and its communicator."""
    return [(job.title(group.members), group.key.communicator) for group in job.groups]


@dataclass
class _Member:
    """A part in a group: its calls, how often it came last, and times (ns): its waits, its calls, and the waits of
    others when it was last. ``late`` is its mean lateness, ``by_itself`` as far as it is its own doing; NaN where they
    are not known."""

    part: int
    group: RankGroup
    calls: int = 0
    waits: int = 0
    time: int = 0
    last: int = 0
    caused: int = 0
    late: float = np.nan
    by_itself: float = np.nan


@dataclass
class _Arrivals:
    """Who arrived when at each call, and what it cost, in ns on one clock.

    :meth:`arrive` is called for each member; then the last arrivals are known. :meth:`wait` is called for each member
    next, and :meth:`blame` at the end.
    """

    # By call:
    earliest: np.ndarray
    latest: np.ndarray
    end: np.ndarray
    #: The index of the member that came last.
    last: np.ndarray
    #: The number of ranks that arrived.
    ranks: np.ndarray
    waits: np.ndarray
    time: np.ndarray
    bytes: np.ndarray
    names: np.ndarray
    kinds: np.ndarray
    #: The bytes on the bus, NaN where unknown.
    bus: np.ndarray
    #: By group and part.
    members: dict[tuple[int, int], _Member] = field(default_factory=dict)

    @classmethod
    def none(cls, calls: int) -> _Arrivals:
        """No arrival at any call."""
        never = np.iinfo(np.int64).max
        return cls(
            earliest=np.full(calls, never),
            latest=np.full(calls, -never),
            end=np.full(calls, -never),
            last=np.full(calls, -1),
            ranks=np.zeros(calls, np.int64),
            waits=np.zeros(calls, np.int64),
            time=np.zeros(calls, np.int64),
            bytes=np.full(calls, UNKNOWN),
            names=np.full(calls, "", object),
            kinds=np.full(calls, "", object),
            bus=np.full(calls, np.nan),
        )

    @classmethod
    def of(cls, job: Job) -> _Arrivals:
        arrivals = cls.none(job.total)
        for group, sample in zip(
            job.groups,
            job.samples,
            strict=True,
        ):
            late, by_itself = sample.lateness(job.ahead)
            for row, part in enumerate(sample.members):
                member = _Member(part, group)
                member.late = _habit(late[row])
                member.by_itself = _habit(by_itself[row])
                arrivals.members[group.first, part] = member
        indices = {key: index for index, key in enumerate(arrivals.members)}
        for own in job.each():
            key = (own.group.first, own.part)
            error = int(job.ahead[own.part])
            arrivals.arrive(
                indices[key],
                arrivals.members[key],
                own,
                error,
            )
        for own in job.each():
            key = (own.group.first, own.part)
            error = int(job.ahead[own.part])
            arrivals.wait(
                arrivals.members[key],
                own,
                error,
            )
        arrivals.blame()
        for group in job.groups:
            if len(group.members) < 2:
                continue  # when others arrive is not known
            number = arrivals.of_group(group)
            arrivals.bus[number] = bus_bytes(
                arrivals.kinds[number],
                arrivals.bytes[number],
                group.ranks or len(group.members),
            )
        return arrivals

    def arrive(
        self, index: int, member: _Member, own: NumberedCalls, error: int
    ) -> None:
        calls = own.number
        start = own.calls.start - error
        end = own.calls.end - error
        self.last[calls[start > self.latest[calls]]] = index
        self.latest[calls] = np.maximum(self.latest[calls], start)
        self.earliest[calls] = np.minimum(self.earliest[calls], start)
        self.end[calls] = np.maximum(self.end[calls], end)
        self.ranks[calls] += 1
        self.time[calls] += end - start
        self.bytes[calls] = np.maximum(self.bytes[calls], own.calls.bytes)
        self.names[calls] = own.calls.names
        self.kinds[calls] = own.calls.kinds
        member.time = int((end - start).sum())
        member.calls = len(calls)

    def wait(
        self,
        member: _Member,
        own: NumberedCalls,
        error: int,
    ) -> None:
        """A rank waits until the last one arrives. No wait is longer than the call."""
        calls = own.number
        start = own.calls.start - error
        length = own.calls.end - own.calls.start
        waits = np.minimum(self.latest[calls] - start, length)
        self.waits[calls] += waits
        member.waits = int(waits.sum())

    def blame(self) -> None:
        """Count how often each member was last, and what the others waited then."""
        known = self.ranks > 0
        last = self.last[known]
        counts = np.bincount(last, minlength=len(self.members))
        caused = np.zeros(len(self.members), np.int64)
        np.add.at(
            caused,
            last,
            self.waits[known],
        )
        for index, member in enumerate(self.members.values()):
            member.last = int(counts[index])
            member.caused = int(caused[index])

    def of_group(self, group: RankGroup) -> np.ndarray:
        """The numbers of the calls of a group that ranks arrived at."""
        number = np.arange(group.first, group.first + group.total)
        return number[self.ranks[number] > 0]

    def size(self, number: np.ndarray) -> int | None:
        """The bytes of some calls, None if the size of one is not known."""
        size = self.bytes[number]
        if (size == UNKNOWN).any():
            return None
        return int(size.sum())

    def transfer(self, number: np.ndarray) -> np.ndarray:
        """The time (ns) of some calls from the last arrival to the last end."""
        time: np.ndarray = np.maximum(self.end[number] - self.latest[number], 0)
        return time

    def bandwidth(self, number: np.ndarray) -> float | None:
        """The bus bandwidth (bytes/s) of some calls together, None if it is not known for one."""
        amount = float(self.bus[number].sum())
        if np.isnan(amount):
            return None
        return share_of(amount * 1e9, float(self.transfer(number).sum()))


def _habit(late: np.ndarray) -> float:
    """The mean without the largest number: one late call, such as the one that sets up connections, is no habit."""
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


def _names(
    job_name: str, job: Job, a: _Arrivals, titles: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """The rows of :data:`_COLUMNS`."""
    members = list(a.members.values())
    for group, title in zip(
        job.groups,
        titles,
        strict=True,
    ):
        number = a.of_group(group)
        for name in sorted(set(a.names[number].tolist())):
            here = number[a.names[number] == name]
            waits = int(a.waits[here].sum())
            time = int(a.time[here].sum())
            latest = a.latest[here]
            spread = latest - a.earliest[here]
            transfer = a.transfer(here)
            counts = np.bincount(a.last[here])
            last = int(counts.argmax())
            yield (
                waits,
                time,
                share_of(waits, time),
                len(here),
                int(a.ranks[here].max()),
                float(spread.mean()),
                float(transfer.mean()),
                job.parts[members[last].part].label,
                int(counts[last]) / len(here),
                a.size(here),
                a.bandwidth(here),
                *title,
                job_name,
                name,
            )


def _ranks(
    job: Job,
    a: _Arrivals,
    titles: Sequence[tuple[str, str]],
) -> Iterator[Row]:
    """The rows of :data:`_RANK_COLUMNS`."""
    for group, title in zip(
        job.groups,
        titles,
        strict=True,
    ):
        for index in group.members:
            part = job.parts[index]
            member = a.members[group.first, index]
            yield (
                part.label,
                member.waits,
                member.time,
                share_of(member.waits, member.time),
                member.calls,
                member.last,
                member.caused,
                _rounded(member.late),
                _rounded(member.by_itself),
                int(job.ahead[index]),
                part.clock.error,
                part.host,
                *title,
            )


def _longest(
    job: Job, a: _Arrivals, titles: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """The rows of :data:`_CALL_COLUMNS`."""
    members = list(a.members.values())
    firsts = [group.first for group in job.groups]
    start = int(a.earliest[a.ranks > 0].min())
    for number in np.argsort(-a.waits, kind="stable")[:_CALLS].tolist():
        if not a.ranks[number]:
            continue
        of = (
            int(
                np.searchsorted(
                    firsts,
                    number,
                    "right",
                )
            )
            - 1
        )
        earliest = int(a.earliest[number])
        last = members[int(a.last[number])]
        one = np.array([number])
        yield (
            int(a.waits[number]),
            int(a.latest[number]) - earliest,
            job.parts[last.part].label,
            int(a.ranks[number]),
            earliest - start,
            number - firsts[of] + 1,
            int(a.transfer(one)[0]),
            a.size(one),
            a.bandwidth(one),
            *titles[of],
            str(a.names[number]),
        )


def _groups(
    job_name: str, job: Job, a: _Arrivals, titles: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """The rows of :data:`_GROUP_COLUMNS`."""
    for group, title in zip(
        job.groups,
        titles,
        strict=True,
    ):
        number = a.of_group(group)
        waits = int(a.waits[number].sum())
        time = int(a.time[number].sum())
        yield (
            waits,
            time,
            share_of(waits, time),
            len(number),
            a.size(number),
            a.bandwidth(number),
            len(group.members),
            *title,
            job_name,
        )


def _late_sentences(
    job: Job, a: _Arrivals, titles: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Ranks that come late by themselves, where they stand out among the ranks of groups of one size with calls of the
    same names."""
    alike: defaultdict[tuple[int, tuple[str, ...]], list[_Member]] = defaultdict(list)
    where = {}
    for group, (title, communicator) in zip(
        job.groups,
        titles,
        strict=True,
    ):
        number = a.of_group(group)
        names = tuple(sorted(set(a.names[number].tolist())))
        whole = int(a.end[number].max()) - int(a.earliest[number].min())
        place = ""
        if len(job.groups) > 1:
            place = f" of {title}"
            if titles.count((title, communicator)) < [t for t, _ in titles].count(
                title
            ):
                place += f" (communicator {communicator})"
        where[group.first] = (whole / len(number), place)
        for part in group.members:
            alike[len(group.members), names].append(a.members[group.first, part])
    for members in alike.values():
        if len(members) < _FEWEST:
            continue
        late = np.nan_to_num([member.by_itself for member in members])
        scores = robust_scores(late.tolist())
        everyone: defaultdict[int, list[Measured]] = defaultdict(list)
        outstanding: defaultdict[int, list[Measured]] = defaultdict(list)
        of_label = {}
        for index in np.argsort(-late, kind="stable").tolist():
            member = members[index]
            first = member.group.first
            period, _ = where[first]
            one = Measured.of(job.parts[member.part], float(late[index]))
            of_label[first, one.label] = member
            everyone[first].append(one)
            if scores[index] > OUTSTANDING and late[index] > period * _LATE:
                outstanding[first].append(one)
        findings = []
        for first, some in outstanding.items():
            _, place = where[first]
            for group_of_host in by_host(some, everyone[first]):
                own = [of_label[first, one.label] for one in group_of_host.members]
                sentence = _late_sentence(group_of_host, own, place)
                findings.append((-group_of_host.value, sentence))
        findings.sort()
        for _, sentence in findings:
            yield sentence


def _late_sentence(
    who: Outstanding,
    members: Sequence[_Member],
    place: str,
) -> str:
    lateness = format_duration(round(who.value))
    last = sum(member.last for member in members)
    calls = max(member.calls for member in members)
    does = "it comes"
    verb = "is"
    if len(members) > 1:
        does = "they come"
        verb = "one of them is"
    return (
        f"{who.name}: {does} {lateness} late to a collective{place} on average, and {verb} the last at {last:,} of "
        f"{count_of(calls, 'call')}"
    )


def _slow_sentences(
    job: Job,
    a: _Arrivals,
    titles: Sequence[tuple[str, str]],
) -> Iterator[str]:
    """Times in which transfers took long."""
    known = a.ranks > 0
    start = int(a.earliest[known].min())
    span = int(a.end[known].max()) - start
    found = []
    for index, group in enumerate(job.groups):
        number = a.of_group(group)
        # The last arrival is not known where a rank did not record.
        number = number[a.ranks[number] == len(group.members)]
        if not len(number) or len(group.members) < 2:
            continue
        number = number[np.argsort(a.latest[number], kind="stable")]
        slow = slowness(a.names[number], a.bytes[number], a.transfer(number))
        found += slow_times(index, a.latest[number], a.end[number], slow, span)
    timed = all(part.clock.error is not None for part in job.parts)
    for time in merged(found):
        where = ""
        if len(time.groups) < len(job.groups):
            where = f" of {titles[time.groups[0]][0]}"
        if 1 < len(time.groups) < len(job.groups):
            where = f" of {len(time.groups):,} of {len(job.groups):,} groups"
        when = f"{format_duration(time.start - start)} to {format_duration(time.end - start)} after the first call"
        if timed:
            when = clock_times(time.start, time.end)
        calls = count_of(time.calls, "call")
        yield f"transfers{where} from {when} took {time.ratio:.3g} times as long as usual ({calls})"


def _clock_sentences(job: Job) -> Iterator[str]:
    """Clocks that are wrong, where they stand out. Consecutive ranks of one machine share its clock."""
    if len(job.parts) < _FEWEST:
        return
    described = zip(
        job.parts,
        _wrong_clocks(job),
        strict=True,
    )
    for sentence, group in groupby(described, lambda one: one[1]):
        labels = [part.label for part, _ in group]
        ranks = labels[0]
        if len(labels) > 1:
            ranks = f"{ranks} to {labels[-1]}"
        if sentence:
            yield f"{ranks}: {sentence}"


def _wrong_clocks(job: Job) -> Iterator[str]:
    """Yield for each rank what is said about its clock: nothing, unless it stands out."""
    scores = np.abs(robust_scores(job.ahead.tolist()))
    for index, part in enumerate(job.parts):
        ahead = int(job.ahead[index])
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


def _transfers(
    job_name: str,
    job: Job,
    a: _Arrivals,
    titles: Sequence[tuple[str, str]],
) -> Iterator[Picture]:
    """Yield the bus bandwidth over time of the groups with the longest transfers, or the mean time of their transfers
    if the bytes of some are not known."""
    groups = []
    for group, (title, communicator) in zip(job.groups, titles, strict=True):
        number = a.of_group(group)
        if [name for name, _ in titles].count(title) > 1:
            title += f", {communicator or a.names[number[0]]}"
        # The last arrival is not known where a rank did not record.
        number = number[a.ranks[number] == len(group.members)]
        if len(number) and len(group.members) > 1:
            groups.append((int(a.transfer(number).sum()), title, number))
    groups.sort(key=lambda one: -one[0])
    labels = []
    rates = []
    times = []
    for _, title, number in groups[:_LINES]:
        labels.append(title)
        at = a.latest[number]
        transfer = a.transfer(number)
        rates.append((at, a.bus[number] * 1e9, transfer))
        times.append((at, transfer, np.ones(len(number), np.int64)))
    known = all(np.isfinite(bus).all() for _, bus, _ in rates)
    if known:
        picture = lines(f"Bus bandwidth, job {job_name}", "bytes/s", labels, rates)
    else:
        title = f"Mean time of transfers, job {job_name}"
        picture = lines(title, "ns", labels, times)
    if picture:
        yield picture


def _pictures(by_rank: Sequence[Row]) -> Iterator[Picture]:
    if not by_rank:
        return
    names = [column.name for column in _RANK_COLUMNS]
    for title, name in (
        ("Waits for the last rank, by rank", "waited"),
        ("Waits of others for a rank", "kept waiting"),
    ):
        at = names.index(name)
        sums: defaultdict[str, float] = defaultdict(float)
        for row in by_rank:
            sums[str(row[0])] += float(row[at] or 0)
        yield Bars(
            title,
            "ns",
            list(sums),
            {name: list(sums.values())},
        )


COLLECTIVES = BatchReport(
    "collectives",
    "Collectives: who comes last, how long others wait",
    calls,
    _reduce,
)
