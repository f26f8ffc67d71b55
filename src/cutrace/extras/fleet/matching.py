"""The groups of ranks that make the same collective calls, and the number of each call in its group.

A communicator is a group: its ranks make the same calls in the same order. Calls of unknown communicators are those of
all ranks of the job with a kernel of this name. Where these do not fit, ranks whose calls end together are a group.
Calls that fit nowhere are in no group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, permutations

import numpy as np

from ...units import count_of
from .clocks import (
    TOLERANCE_NS,
    Sample,
    clock_errors,
    clock_ids,
    offset_of,
    shift_of,
)
from .communicators import TOGETHER
from .model import INCOMPLETE, Part
from .rank_calls import CallKey, CallReader, OwnCalls, RankCalls

# Calls of a group whose medians over ranks are computed, and numbers in the samples of all groups together.
_SAMPLE = 2048
_NUMBERS = 1 << 23
_FEWEST_SAMPLED = 64
# Calls that do not fit, as a share of those of a group that is still one.
_MISFITS = 0.2
# Ranks whose calls end together are a group if they do so often, and for this share of the calls of one of them.
_FEWEST_TIMES = 3
_SHARE = 0.05
# Groups are not one if their ends are so many times as far apart as those within a group.
_APART = 3
# Longer lists of ranks name the first ones.
_NAMED = 4


#: Indices of parts, ascending.
_Ranks = tuple[int, ...]


@dataclass
class RankGroup:
    """Ranks that make the same calls. ``members`` has for each part the number of its first call, or that of each of
    its calls (-1 for those of no group). There are ``total`` calls, numbered in the job from ``first``. ``ranks`` is
    the number of ranks of the communicator, 0 if unknown."""

    key: CallKey
    members: dict[int, int | np.ndarray]
    total: int
    ranks: int = 0
    first: int = 0

    def numbers(
        self,
        part: int,
        count: int,
    ) -> np.ndarray:
        """The numbers in the job of the calls of a part, -1 for calls of no group."""
        own = self.members[part]
        if isinstance(own, int):
            own = np.arange(own, own + count)
        return np.where(
            own >= 0,
            own + self.first,
            -1,
        )


@dataclass(frozen=True)
class NumberedCalls:
    """The calls of a part (an index) in a group, and their numbers in the job."""

    part: int
    group: RankGroup
    number: np.ndarray
    calls: OwnCalls


@dataclass
class Job:
    """The collectives of one job. ``clocks`` is the number of the clock of each part, ``ahead`` its error (ns).
    ``samples`` has some calls of each group. ``sentences`` are about calls that are matched by time, or not at all."""

    parts: Sequence[Part]
    clocks: np.ndarray
    reader: CallReader
    groups: list[RankGroup] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    ahead: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Job:
        clocks = clock_ids(parts)
        reader = CallReader(parts)
        job = cls(parts, clocks, reader)
        matches = _Matches.of(parts, clocks, reader)
        candidates = matches.groups()
        samples = []
        trusted = []
        for group, sample in candidates:
            samples.append(sample)
            if group.key.communicator:
                trusted.append(sample)
        job.ahead = clock_errors(clocks, trusted or samples)
        for group, sample in candidates:
            refused = set(matches.refused[group.key])
            refused |= _misfits(sample, job.ahead)
            if not refused:
                job.add(group, sample)
            elif group.key.name:
                _EndingTogether(
                    job,
                    group.key,
                    clocks,
                    bool(trusted),
                ).find()
            else:
                job._keep_others(
                    group,
                    sample,
                    refused,
                    matches,
                )
        job.sentences = matches.sentences(job.groups) + job.sentences
        job.ahead = clock_errors(clocks, job.samples)
        return job

    @property
    def total(self) -> int:
        """The number of calls of all groups."""
        return sum(group.total for group in self.groups)

    def each(self) -> Iterator[NumberedCalls]:
        """Yield the calls of each part in each of its groups."""
        of_part = defaultdict(list)
        for group in self.groups:
            for part in group.members:
                of_part[part].append(group)
        for part, groups in of_part.items():
            by_key = self.reader.read(part).by_key
            for group in groups:
                calls = by_key[group.key]
                number = group.numbers(part, len(calls))
                known = number >= 0
                yield NumberedCalls(
                    part,
                    group,
                    number[known],
                    calls.chosen(known),
                )

    def comparable(self, clock: int) -> set[int]:
        """The clocks that groups relate to a clock, which is one of them."""
        reached = {clock}
        before = 0
        while len(reached) > before:
            before = len(reached)
            for sample in self.samples:
                own = set(self.clocks[sample.members].tolist())
                if sample.together.any() and own & reached:
                    reached |= own
        return reached

    def title(self, members: Collection[int]) -> str:
        """The ranks of some parts, for people."""
        if len(members) == len(self.parts):
            return f"all {count_of(len(members), 'rank')}"
        return named_ranks(sorted(self.parts[part].rank for part in members))

    def add(
        self,
        group: RankGroup,
        sample: Sample,
    ) -> None:
        """Add a group. Its calls are numbered behind those of the groups before it."""
        group.first = self.total
        self.groups.append(group)
        self.samples.append(sample)

    def _keep_others(
        self, group: RankGroup, sample: Sample, refused: set[int], matches: _Matches
    ) -> None:
        """Refuse the members of a communicator whose calls do not fit to those of the others."""
        others = {part: at for part, at in group.members.items() if part not in refused}
        counts = matches.counts[group.key]
        if len(others) < 2:
            self.refuse(
                group.key,
                group.members,
                counts,
            )
            return
        self.refuse(
            group.key,
            refused,
            counts,
            others,
        )
        self.add(replace(group, members=others), sample.without(refused))

    def refuse(
        self,
        key: CallKey,
        parts: Collection[int],
        counts: Mapping[int, int],
        others: Collection[int] = (),
    ) -> None:
        """Say that the calls of some parts are in no group."""
        number = sum(counts[part] for part in parts)
        who = self.title(parts)
        if any(self.parts[part].incomplete for part in parts):
            who += INCOMPLETE
        sentence = f"{number:,} calls of {key.what} on {who} cannot be matched"
        if others:
            sentence += f" with those on {self.title(others)}"
        self.sentences.append(f"{sentence}, so nothing is said about them")


def named_ranks(numbers: Sequence[int]) -> str:
    """Ranks for people, from their numbers, which ascend."""
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
    """The members whose calls do not overlap with those of others; all if the calls do not overlap without them."""
    apart = sample.misfits(ahead) > _MISFITS
    misfits = {sample.members[row] for row in np.flatnonzero(apart).tolist()}
    if sample.without(misfits).torn(ahead) > _MISFITS:
        return set(sample.members)
    return misfits


# By number


@dataclass(frozen=True)
class _Reference:
    """A part with as many calls of a key as most others: the ends of its calls (ns), and a mask of those that all ranks
    end together. ``sample`` are the indices of sampled calls."""

    part: int
    ends: np.ndarray
    together: np.ndarray
    ranks: int
    sample: np.ndarray


class _Matches:
    """The calls of all parts by key: the index of the first call of each part among those of the reference."""

    def __init__(
        self,
        parts: Sequence[Part],
        clocks: np.ndarray,
        reader: CallReader,
    ) -> None:
        self.parts = parts
        self.reader = reader
        self.counts: defaultdict[CallKey, dict[int, int]] = defaultdict(dict)
        self.refused: defaultdict[CallKey, list[int]] = defaultdict(list)
        self._clocks = clocks
        # The first part with each number of calls, by that number.
        self._of_count: defaultdict[CallKey, dict[int, _Reference]] = defaultdict(dict)
        self._references: dict[CallKey, _Reference] = {}
        self._shifts: defaultdict[CallKey, dict[int, int]] = defaultdict(dict)
        self._rows: defaultdict[CallKey, list[np.ndarray]] = defaultdict(list)
        # How far a clock was ahead of another one, by the pair.
        self._offsets: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        clocks: np.ndarray,
        reader: CallReader,
    ) -> _Matches:
        matches = cls(parts, clocks, reader)
        for part in range(len(parts)):
            matches._count(part)
        matches._choose_references()
        matches._choose_samples()
        # The others of a host are known when a rank with fewer calls needs them.
        order = sorted(range(len(parts)), key=matches._is_short)
        for part in order:
            matches._match(part)
        return matches

    def _count(self, part: int) -> None:
        """Count the calls of a part. The reference has as many calls as most parts have."""
        for key, calls in self.reader.read(part).by_key.items():
            self.counts[key][part] = len(calls)
            of_count = self._of_count[key]
            if len(calls) not in of_count:
                together = np.isin(calls.kinds.astype(str), TOGETHER)
                of_count[len(calls)] = _Reference(
                    part=part,
                    ends=calls.end,
                    together=together,
                    ranks=calls.ranks,
                    sample=np.zeros(0, np.int64),
                )

    def _choose_references(self) -> None:
        for key, counts in self.counts.items():
            times = Counter(counts.values())
            usual = max(times, key=lambda count: (times[count], count))
            self._references[key] = self._of_count[key][usual]
        self._of_count.clear()

    def _choose_samples(self) -> None:
        members = sum(len(counts) for counts in self.counts.values())
        most = min(max(_NUMBERS // max(3 * members, 1), _FEWEST_SAMPLED), _SAMPLE)
        for key, reference in self._references.items():
            total = len(reference.ends)
            spaced = np.linspace(
                0,
                total - 1,
                min(total, most),
            )
            sample = np.unique(spaced.astype(np.int64))
            self._references[key] = replace(reference, sample=sample)

    def _is_short(self, part: int) -> bool:
        """Whether the part has fewer calls of a key than others."""
        short = []
        for key, counts in self.counts.items():
            missing = len(self._references[key].ends) - counts.get(part, 0)
            short.append(part in counts and missing > 0)
        return any(short)

    def _match(self, part: int) -> None:
        rank = self.reader.read(part)
        for key, calls in rank.by_key.items():
            reference = self._references[key]
            pair = (int(self._clocks[part]), int(self._clocks[reference.part]))
            guess = None
            if self._offsets[pair]:
                guess = int(np.median(self._offsets[pair]))
            elif self.parts[part].clock.error is not None:
                guess = 0
            shift = shift_of(
                calls.end,
                reference.ends,
                guess,
            )
            if shift is None:
                self.refused[key].append(part)
                continue
            if len(calls) == len(reference.ends) and not shift:
                apart = calls.end - reference.ends
                self._offsets[pair].append(int(np.median(apart)))
            self._shifts[key][part] = shift
            own = reference.sample - shift
            there = (own >= 0) & (own < len(calls))
            rows = np.full((3, len(own)), np.nan)
            base = int(reference.ends[0])
            rows[0, there] = calls.start[own[there]] - base
            rows[1, there] = calls.end[own[there]] - base
            rows[2, there] = rank.own_time(key)[own[there]]
            self._rows[key].append(rows)

    def groups(self) -> list[tuple[RankGroup, Sample]]:
        """The group of each key, in the order of keys, and its sample."""
        groups = []
        for key in sorted(self._shifts):
            shifts = self._shifts[key]
            counts = self.counts[key]
            first = min(shifts.values())
            members: dict[int, int | np.ndarray] = {}
            total = 0
            for part, shift in sorted(shifts.items()):
                members[part] = shift - first
                total = max(total, shift - first + counts[part])
            reference = self._references[key]
            rows = dict(
                zip(
                    shifts,
                    self._rows[key],
                    strict=True,
                )
            )
            starts, ends, own = np.stack([rows[part] for part in members], axis=1)
            together = reference.together[reference.sample]
            sample = Sample(
                list(members),
                starts,
                ends,
                own,
                together,
            )
            groups.append(
                (
                    RankGroup(
                        key,
                        members,
                        total,
                        reference.ranks,
                    ),
                    sample,
                )
            )
        return groups

    def sentences(self, groups: Sequence[RankGroup]) -> list[str]:
        """A sentence for each part with fewer calls than others have."""
        sentences = []
        for group in groups:
            most = max(self.counts[group.key].values())
            for part, first in group.members.items():
                count = self.counts[group.key][part]
                if isinstance(first, int) and count < most:
                    sentences.append(
                        f"{self.parts[part].label}: it has {count:,} calls of {group.key.what}, and others {most:,}: "
                        f"its first is taken for number {first + 1:,}"
                    )
        return sentences


# By time


class _EndingTogether:
    """Groups of ranks whose calls of a kernel end together."""

    def __init__(
        self,
        job: Job,
        key: CallKey,
        clocks: np.ndarray,
        known: bool,
    ) -> None:
        self._job = job
        self._key = key
        self._ranks: dict[int, RankCalls] = {}
        for index in range(len(job.parts)):
            rank = job.reader.read(index)
            if key in rank.by_key:
                self._ranks[index] = rank
        self._counts = {}
        for index in self._ranks:
            self._counts[index] = len(self._calls(index))
        self._ahead = job.ahead.astype(np.int64)
        if not known:
            self._ahead = self._offsets(clocks)

    def _calls(self, part: int) -> OwnCalls:
        return self._ranks[part].by_key[self._key]

    def _offsets(self, clocks: np.ndarray) -> np.ndarray:
        """How far the clock of each part is ahead of that of the part with the most calls."""
        offsets = np.zeros(len(clocks), np.int64)
        by_count = sorted(self._counts, key=lambda part: -self._counts[part])
        reference = by_count[0]
        ends = self._calls(reference).end
        known = {clocks[reference]: 0}
        for part in by_count:
            clock = clocks[part]
            if clock not in known:
                known[clock] = offset_of(self._calls(part).end, ends)
            offsets[part] = known[clock]
        return offsets

    def find(self) -> None:
        """Add the groups to the job, or refuse all calls if many are in none."""
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
            self._job.refuse(self._key, self._ranks, self._counts)
            return
        for ranks, clusters in sorted(groups.items()):
            number = np.full(len(members), -1)
            number[clusters] = np.arange(len(clusters))
            numbers: dict[int, int | np.ndarray] = {}
            for part in ranks:
                numbers[part] = number[cluster_of[part]]
            group = RankGroup(self._key, numbers, len(clusters))
            self._job.add(group, self._sample(group))

    def _often(self, members: Sequence[_Ranks]) -> list[_Ranks]:
        """The sets of ranks that end calls together again and again."""
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
        """The smaller groups that seem to be one because they often end at about the same time; else the ranks."""
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
                ends.append(self._calls(part).end[chosen] - self._ahead[part])
            middle = np.median(ends, axis=0)
            middles.append(middle)
            away.append(np.abs(ends - middle).max(axis=0))
        within = np.median(away)
        between = np.median(np.ptp(middles, axis=0))
        if between > _APART * within:
            return smallest
        return [ranks]

    def _clusters(self) -> tuple[dict[int, np.ndarray], list[tuple[int, ...]]]:
        """For each part, the cluster of each of its calls; and the parts of each cluster, which end a call together."""
        part_of = []
        starts = []
        ends = []
        for part in self._ranks:
            calls = self._calls(part)
            part_of.append(np.full(len(calls), part))
            starts.append(calls.start - self._ahead[part])
            ends.append(calls.end - self._ahead[part])
        whole_parts = np.concatenate(part_of)
        whole_ends = np.concatenate(ends)
        whole_starts = np.concatenate(starts)
        order = np.argsort(whole_ends, kind="stable")
        cluster = np.zeros(len(order), np.int64)
        members: list[set[int]] = []
        first_end = 0
        last_end = 0
        columns = (order, whole_parts[order], whole_starts[order], whole_ends[order])
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, part, start, end in rows:
            apart = not members or part in members[-1]
            if apart or start >= first_end or end - last_end > TOLERANCE_NS:
                members.append(set())
                first_end = end
            members[-1].add(part)
            cluster[row] = len(members) - 1
            last_end = end
        edges = np.cumsum([len(one) for one in part_of])[:-1]
        cluster_of = dict(
            zip(
                self._ranks,
                np.split(cluster, edges),
                strict=True,
            )
        )
        return cluster_of, [tuple(sorted(parts)) for parts in members]

    def _sample(self, group: RankGroup) -> Sample:
        spaced = np.linspace(
            0,
            group.total - 1,
            min(group.total, _SAMPLE),
        )
        sample = np.unique(spaced.astype(np.int64))
        shape = (3, len(group.members), len(sample))
        values = np.full(shape, np.nan)
        base = min(int(self._calls(part).end[0]) for part in group.members)
        together = np.zeros(len(sample), bool)
        for row, part in enumerate(group.members):
            calls = self._calls(part)
            number = group.numbers(part, len(calls))
            own = np.flatnonzero(np.isin(number, sample))
            values[0, row] = calls.start[own] - base
            values[1, row] = calls.end[own] - base
            values[2, row] = self._ranks[part].own_time(self._key)[own]
            together |= np.isin(calls.kinds[own].astype(str), TOGETHER)
        starts, ends, own_time = values
        return Sample(
            list(group.members),
            starts,
            ends,
            own_time,
            together,
        )
