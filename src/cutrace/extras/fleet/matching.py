"""The groups of ranks that make the same collective calls, and the number of each call in its group.

The ranks of a communicator are a group: they make the same calls in the same order. If the communicator of a call is
unknown, all ranks of the job with a kernel of this name are a group. If such calls do not match, the ranks that end
calls together are a group. The remaining calls are in no group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, permutations

import numpy as np

from ...units import count_of
from .clocks import (
    NO_SAMPLE,
    TOLERANCE_NS,
    Sample,
    clock_errors,
    clock_ids,
    drifts,
    offset_of,
    shift_of,
)
from .communicators import TOGETHER
from .model import INCOMPLETE, Part, Records
from .rank_calls import CallKey, CallReader, RankCalls

# The largest number of sampled calls of a group.
_SAMPLE = 2048
# The largest total of numbers in the samples of all groups.
_NUMBERS = 1 << 23
# The smallest number of sampled calls of a group, even beyond that total.
_FEWEST_SAMPLED = 64
# The largest share of calls in a group that do not match.
_MISFITS = 0.2
# Ranks are a group if they end at least this many calls together. These are also at least this share of the calls of
# one rank.
_FEWEST_TIMES = 3
_SHARE = 0.05
# Two groups are separate if their ends are this many times as far apart as the ends within a group.
_APART = 3
# The number of ranks that a longer list names.
_NAMED = 4


#: Indices of parts, ascending.
_Ranks = tuple[int, ...]


@dataclass
class RankGroup:
    """Ranks that make the same calls. ``members`` has for each part the number of its first call, or the number of each
    of its calls, -1 for calls of no group. There are ``total`` calls, numbered from 0. ``sample`` has some of them.
    ``ranks`` is the number of ranks of the communicator, 0 if unknown."""

    key: CallKey
    members: dict[int, int | np.ndarray]
    total: int
    sample: Sample
    ranks: int = 0

    def numbers(self, part: int, count: int) -> np.ndarray:
        """The numbers of the calls of a part, -1 for calls of no group."""
        own = self.members[part]
        if isinstance(own, int):
            return np.arange(own, own + count)
        return own


@dataclass
class Job:
    """The collectives of one job. ``clocks`` has the number of the clock of each part, and ``ahead`` its error (ns).
    ``sentences`` are about calls that are matched by time, or unmatched."""

    parts: Sequence[Part]
    clocks: np.ndarray
    reader: CallReader
    groups: list[RankGroup] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    ahead: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Job:
        job = cls(parts, clock_ids(parts), CallReader(parts))
        matched = _matched(job)
        groups = [calls.group() for calls in matched]
        known = [group for group in groups if group.key.communicator]
        job.ahead = _clock_errors(job, known or groups)
        for calls, group in zip(matched, groups, strict=True):
            refused = calls.refused | _misfits(group.sample, job.ahead)
            drifting = {}
            if refused:
                drifting = drifts(job.clocks, group.sample)
            alone = len(calls.counts) == 1 < len(parts)
            if drifting:
                rest = group.sample.without(drifting)
                refused = calls.refused | set(drifting) | _misfits(rest, job.ahead)
                job._keep_others(calls, group, refused, _of_drift(drifting))
            elif alone and group.key.name:
                job.refuse(calls, group.members)
            elif not refused:
                job.groups.append(group)
                job.sentences += calls.sentences(group.members)
            elif group.key.name:
                _EndingTogether(job, calls, bool(known)).find()
            else:
                job._keep_others(calls, group, refused)
        job.ahead = _clock_errors(job, job.groups)
        return job

    def each(self) -> Iterator[tuple[int, int, np.ndarray, Records]]:
        """Yield (group, part, numbers, calls) for each group and each of its parts. ``group`` is the index of the
        group. ``calls`` are the calls of the part on the common clock, and ``numbers`` are their numbers in the
        group."""
        of_part = defaultdict(list)
        for index, group in enumerate(self.groups):
            for part in group.members:
                of_part[part].append(index)
        for part, indices in of_part.items():
            by_key = self.reader.read(part).by_key
            error = int(self.ahead[part])
            for index in indices:
                group = self.groups[index]
                every = by_key[group.key]
                number = group.numbers(part, len(every))
                known = number >= 0
                calls = every[known]
                calls.start_ns -= error
                calls.end_ns -= error
                yield index, part, number[known], calls

    def comparable(self, clock: int) -> set[int]:
        """A clock, and all clocks that groups connect with it, directly or through others."""
        reached = {clock}
        before = 0
        while len(reached) > before:
            before = len(reached)
            for group in self.groups:
                sample = group.sample
                own = set(self.clocks[sample.members].tolist())
                if sample.together.any() and own & reached:
                    reached |= own
        return reached

    def title(self, members: Collection[int]) -> str:
        """The names of the ranks of some parts in a sentence."""
        if len(members) == len(self.parts):
            return f"all {count_of(len(members), 'rank')}"
        return named_ranks(sorted({self.parts[part].rank for part in members}))

    def _keep_others(
        self,
        calls: _MatchedCalls,
        group: RankGroup,
        refused: Collection[int],
        why: str = "",
    ) -> None:
        """Refuse the members of a group with calls that do not match the calls of the others. ``why`` is the known
        reason."""
        others = dict(group.members)
        for part in refused:
            others.pop(part, None)
        if len(others) < 2:
            self.refuse(calls, group.members, why=why)
            return
        self.refuse(calls, refused, others, why)
        sample = group.sample.without(refused)
        self.groups.append(replace(group, members=others, sample=sample))
        self.sentences += calls.sentences(others)

    def refuse(
        self,
        calls: _MatchedCalls,
        parts: Collection[int],
        others: Collection[int] = (),
        why: str = "",
    ) -> None:
        """Add a sentence that the calls of some parts are in no group, with the known reason ``why``."""
        number = sum(calls.counts[part] for part in parts)
        who = self.title(parts)
        if any(self.parts[part].incomplete for part in parts):
            who += INCOMPLETE
        sentence = (
            f"{count_of(number, 'call')} of {calls.key.what} on {who} cannot be matched"
        )
        if others:
            sentence += f" with those on {self.title(others)}"
        self.sentences.append(f"{sentence}, so nothing is said about them{why}")


def _clock_errors(job: Job, groups: Sequence[RankGroup]) -> np.ndarray:
    samples = [group.sample for group in groups]
    return clock_errors(job.clocks, samples)


def _of_drift(drifting: Mapping[int, float]) -> str:
    """The end of a sentence on members with a clock that drifts."""
    largest = max(drifting.values(), key=abs)
    return (
        f": their clock drifts by {largest * 1e6:+,.3g} us a second from the others. Keep the clocks of all machines "
        "synchronised while you record, by NTP or PTP"
    )


def named_ranks(numbers: Sequence[int]) -> str:
    """The names of ranks in a sentence. ``numbers`` are ascending."""
    steps = set(np.diff(numbers).tolist())
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) == 2:
        return f"ranks {numbers[0]} and {numbers[1]}"
    if steps == {1}:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    if len(numbers) <= _NAMED + 1:
        first = ", ".join(map(str, numbers[:-1]))
        return f"ranks {first} and {numbers[-1]}"
    first = ", ".join(map(str, numbers[:_NAMED]))
    if len(steps) == 1:
        return f"ranks {first}, ... {numbers[-1]}"
    return f"ranks {first} and {len(numbers) - _NAMED:,} more"


def _misfits(sample: Sample, ahead: np.ndarray) -> set[int]:
    """The members with calls that do not overlap with the calls of the others. All members, if the remaining calls do
    not overlap either."""
    apart = sample.misfits(ahead) > _MISFITS
    misfits = {sample.members[row] for row in np.flatnonzero(apart).tolist()}
    if sample.without(misfits).torn(ahead) > _MISFITS:
        return set(sample.members)
    return misfits


# By number


@dataclass(frozen=True)
class _Reference:
    """A part with the most frequent number of calls: the ends of its calls (ns), and a mask of the calls that all ranks
    end together."""

    part: int
    ends: np.ndarray
    together: np.ndarray
    ranks: int


class _MatchedCalls:
    """The calls with a key: the number of calls of each part, and the index of its first call among the calls of a
    reference. ``refused`` are the parts with calls that do not match the reference."""

    reference: _Reference
    # The calls of the sample, by index in the reference.
    _sampled: np.ndarray

    def __init__(self, job: Job, key: CallKey) -> None:
        self.key = key
        self.counts: dict[int, int] = {}
        self.refused: set[int] = set()
        self._job = job
        # The first part with each number of calls.
        self._references: dict[int, _Reference] = {}
        # The index of the first call, and the times, of each part.
        self._first: dict[int, int] = {}
        self._times: dict[int, np.ndarray] = {}

    def count(self, part: int, calls: Records) -> None:
        count = len(calls)
        self.counts[part] = count
        if count not in self._references:
            ends = calls.end_ns.copy()
            together = _end_together(calls)
            reference = _Reference(
                part,
                ends,
                together,
                int(calls.ranks[0]),
            )
            self._references[count] = reference

    def choose_reference(self, most: int) -> None:
        """Choose the reference, and at most ``most`` of its calls as a sample."""
        times = Counter(self.counts.values())
        usual = max(times, key=lambda count: (times[count], count))
        self.reference = self._references[usual]
        self._sampled = _spaced(usual, most)
        self._references.clear()

    def match(
        self,
        part: int,
        rank: RankCalls,
        offsets: list[int],
    ) -> None:
        """Match the calls of a part. ``offsets`` are measured differences (ns) between its clock and the clock of the
        reference."""
        calls = rank.by_key[self.key]
        ends = self.reference.ends
        guess = None
        if offsets:
            guess = int(np.median(offsets))
        elif self._job.parts[part].clock.error is not None:
            guess = 0
        first = shift_of(calls.end_ns, ends, guess)
        if first is None:
            self.refused.add(part)
            return
        if len(calls) == len(ends) and not first:
            apart = np.median(calls.end_ns - ends)
            offsets.append(int(apart))
        self._first[part] = first
        own = self._sampled - first
        there = (own >= 0) & (own < len(calls))
        known = rank.times(self.key, int(ends[0]))
        times = np.full((3, len(own)), np.nan)
        times[:, there] = known[:, own[there]]
        self._times[part] = times

    def group(self) -> RankGroup:
        earliest = min(self._first.values())
        members: dict[int, int | np.ndarray] = {}
        times = []
        total = 0
        for part, first in sorted(self._first.items()):
            number = first - earliest
            members[part] = number
            times.append(self._times[part])
            total = max(total, number + self.counts[part])
        reference = self.reference
        together = reference.together[self._sampled]
        sample = Sample(list(members), np.stack(times, axis=1), together)
        return RankGroup(
            self.key,
            members,
            total,
            sample,
            reference.ranks,
        )

    def sentences(self, parts: Collection[int]) -> Iterator[str]:
        """Yield a sentence for each of these parts with fewer calls than others of them."""
        most = max(self.counts[part] for part in parts)
        earliest = min(self._first.values())
        for part in sorted(parts):
            count = self.counts[part]
            if count == most:
                continue
            yield (
                f"{self._job.parts[part].label}: it has {count_of(count, 'call')} of {self.key.what}, and others have "
                f"{most:,}: "
                f"its first call counts as number {self._first[part] - earliest + 1:,}"
            )


def _matched(job: Job) -> list[_MatchedCalls]:
    """The calls of all parts, by key and in the order of keys."""
    by_key: dict[CallKey, _MatchedCalls] = {}
    every = range(len(job.parts))
    for part in every:
        for key, calls in job.reader.read(part).by_key.items():
            if key not in by_key:
                by_key[key] = _MatchedCalls(job, key)
            by_key[key].count(part, calls)
    members = sum(len(matched.counts) for matched in by_key.values())
    most = max(_NUMBERS // max(3 * members, 1), _FEWEST_SAMPLED)
    # Ranks with fewer calls come last, because they need the clock offsets of the other ranks of their host.
    short = set()
    for matched in by_key.values():
        matched.choose_reference(min(most, _SAMPLE))
        usual = len(matched.reference.ends)
        short |= {part for part, count in matched.counts.items() if count < usual}
    # The measured offsets (ns) of each pair of clocks.
    offsets: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for part in sorted(every, key=short.__contains__):
        rank = job.reader.read(part)
        for key in rank.by_key:
            matched = by_key[key]
            clocks = job.clocks[[part, matched.reference.part]].tolist()
            matched.match(part, rank, offsets[tuple(clocks)])
    return [matched for _, matched in sorted(by_key.items())]


# By time


class _EndingTogether:
    """Finds groups of ranks that end the calls of a kernel together. ``known`` is True if the clock errors of the job
    are known."""

    def __init__(
        self,
        job: Job,
        matched: _MatchedCalls,
        known: bool,
    ) -> None:
        self._job = job
        self._matched = matched
        self._key = matched.key
        self._counts = matched.counts
        self._ranks = {part: job.reader.read(part) for part in matched.counts}
        self._ahead = job.ahead.astype(np.int64)
        if not known:
            self._ahead = self._offsets(job.clocks)

    def _calls(self, part: int) -> Records:
        return self._ranks[part].by_key[self._key]

    def _offsets(self, clocks: np.ndarray) -> np.ndarray:
        """The time (ns) that the clock of each part is ahead of the clock of the part with the most calls."""
        offsets = np.zeros(len(clocks), np.int64)
        by_count = sorted(self._counts, key=lambda part: -self._counts[part])
        reference = by_count[0]
        ends = self._calls(reference).end_ns
        known = {clocks[reference]: 0}
        for part in by_count:
            clock = clocks[part]
            if clock not in known:
                known[clock] = offset_of(self._calls(part).end_ns, ends)
            offsets[part] = known[clock]
        return offsets

    def find(self) -> None:
        """Add the groups to the job, or refuse all calls if too many are in no group."""
        cluster_of, members = self._clusters()
        often = self._often(members)
        split = {
            ranks: self._split(ranks, often, cluster_of, members) for ranks in often
        }
        groups: defaultdict[_Ranks, list[int]] = defaultdict(list)
        matched = 0
        for cluster, ranks in enumerate(members):
            for one in split.get(ranks, ()):
                groups[one].append(cluster)
                matched += len(one)
        if matched < (1 - _MISFITS) * sum(self._counts.values()):
            self._job.refuse(self._matched, self._ranks)
            return
        for ranks, clusters in sorted(groups.items()):
            number = np.full(len(members), -1)
            number[clusters] = np.arange(len(clusters))
            numbers: dict[int, int | np.ndarray] = {}
            for part in ranks:
                numbers[part] = number[cluster_of[part]]
            group = RankGroup(
                self._key,
                numbers,
                len(clusters),
                NO_SAMPLE,
            )
            group.sample = self._sample(group)
            self._job.groups.append(group)

    def _often(self, members: Sequence[_Ranks]) -> list[_Ranks]:
        """The sets of ranks that often end calls together."""
        often = []
        for ranks, count in Counter(members).items():
            least = min(self._counts[part] for part in ranks)
            if len(ranks) > 1 and count >= max(_FEWEST_TIMES, _SHARE * least):
                often.append(ranks)
        return sorted(often)

    def _split(
        self,
        ranks: _Ranks,
        often: Sequence[_Ranks],
        cluster_of: Mapping[int, np.ndarray],
        members: Sequence[_Ranks],
    ) -> list[_Ranks]:
        """Split a set of ranks into smaller groups. Calls of such a group often end at about the same time. Return the
        set alone if it has no such groups."""
        inside = [one for one in often if set(one) < set(ranks)]
        larger = set()
        for one, other in permutations(inside, 2):
            if set(other) < set(one):
                larger.add(one)
        smallest = sorted(set(inside) - larger)
        if sorted(chain.from_iterable(smallest)) != list(ranks):
            return [ranks]
        here = np.flatnonzero([of == ranks for of in members])
        middles = []
        away = []
        for one in smallest:
            ends = []
            for part in one:
                chosen = np.isin(cluster_of[part], here)
                own = self._calls(part).end_ns[chosen]
                ends.append(own - self._ahead[part])
            middle = np.median(ends, axis=0)
            middles.append(middle)
            away.append(np.abs(ends - middle).max(axis=0))
        within = np.median(away)
        between = np.median(np.ptp(middles, axis=0))
        if between > _APART * within:
            return smallest
        return [ranks]

    def _clusters(self) -> tuple[dict[int, np.ndarray], list[tuple[int, ...]]]:
        """Cluster calls that end together. Returns the cluster of each call by part, and the parts of each cluster."""
        columns = []
        for part in self._ranks:
            calls = self._calls(part)
            own = (
                np.full(len(calls), part),
                calls.start_ns - self._ahead[part],
                calls.end_ns - self._ahead[part],
            )
            columns.append(np.stack(own))
        rows = np.concatenate(columns, axis=1)
        order = np.argsort(rows[2], kind="stable")
        cluster = np.zeros(len(order), np.int64)
        members: list[set[int]] = []
        first_end = 0
        last_end = 0
        for row, (part, start, end) in zip(
            order.tolist(), rows.T[order].tolist(), strict=True
        ):
            apart = not members or part in members[-1]
            if apart or start >= first_end or end - last_end > TOLERANCE_NS:
                members.append(set())
                first_end = end
            members[-1].add(part)
            cluster[row] = len(members) - 1
            last_end = end
        edges = np.cumsum(list(self._counts.values()))[:-1]
        of_parts = np.split(cluster, edges)
        cluster_of = dict(zip(self._ranks, of_parts, strict=True))
        return cluster_of, [tuple(sorted(parts)) for parts in members]

    def _sample(self, group: RankGroup) -> Sample:
        sample = _spaced(group.total, _SAMPLE)
        times = np.full((3, len(group.members), len(sample)), np.nan)
        base = min(int(self._calls(part).end_ns[0]) for part in group.members)
        together = np.zeros(len(sample), bool)
        for row, part in enumerate(group.members):
            calls = self._calls(part)
            own = np.flatnonzero(np.isin(group.numbers(part, len(calls)), sample))
            known = self._ranks[part].times(self._key, base)
            times[:, row] = known[:, own]
            together |= _end_together(calls[own])
        return Sample(list(group.members), times, together)


def _spaced(total: int, most: int) -> np.ndarray:
    """The indices of at most ``most`` of ``total`` calls, evenly spaced."""
    spaced = np.linspace(0, total - 1, min(total, most))
    return np.unique(spaced.astype(np.int64))


def _end_together(calls: Records) -> np.ndarray:
    """A mask of the calls that all ranks end together."""
    return np.isin(calls.kind.astype(str), TOGETHER)
