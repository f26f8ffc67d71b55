"""Ranks of a job that are absent, without GPU work, started several times, or at work for a part of its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...units import format_duration
from .jobs import starts
from .model import INCOMPLETE, Part
from .stragglers import Measured, listed, standing_out

# A rank ended early by this share of the time of its job.
_EARLY = 0.05


def absences(parts: Sequence[Part]) -> list[str]:
    """Sentences about ranks that no file holds, those without GPU work, those that started several times, and those
    that started late or ended early. Nothing is said of a job unless each of its files tells its rank."""
    jobs: dict[str, _Job] = {}
    for part in parts:
        jobs.setdefault(part.job, _Job()).add(part)
    sentences: list[str] = []
    for name, job in jobs.items():
        if job.untold:
            continue
        where = ""
        if len(jobs) > 1:
            where = f"{name}: "
        sentences += [where + sentence for sentence in job.sentences()]
    return sentences


@dataclass
class _Job:
    """The parts of a job by rank, the numbers of ranks that they tell, and the ranks with GPU work. ``untold`` if a
    file does not tell its rank."""

    ranks: dict[int, list[Part]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    working: set[int] = field(default_factory=set)
    untold: bool = False

    def add(self, part: Part) -> None:
        self.ranks.setdefault(part.rank, []).append(part)
        self.sizes.add(part.world)
        self.untold |= not part.told
        if part.worked:
            self.working.add(part.rank)

    def sentences(self) -> Iterator[str]:
        # Ranks that do not agree are of several jobs.
        if len(self.sizes) == 1:
            (size,) = self.sizes
            absent = set(range(size)) - self.ranks.keys()
            yield from _say(absent, f"of {size:,} ", "absent")
        if self.working:
            idle = self.ranks.keys() - self.working
            yield from _say(idle, "", "without GPU work")
        yield from self._started_again()
        yield from self._partly_there()

    def _started_again(self) -> Iterator[str]:
        again: dict[int, set[int]] = {}
        mixed = set()
        for rank, parts in self.ranks.items():
            if len(parts) == 1:
                continue
            if starts(parts):
                again.setdefault(len(parts), set()).add(rank)
            else:
                mixed.add(rank)
        for count, ranks in sorted(again.items()):
            what = f"in {count} recordings, one after the other, as after a restart: all count"
            yield from _say(ranks, "", what)
        what = "in several recordings, of the same or an unknown time: if these are several jobs, give each a folder"
        yield from _say(mixed, "", what)

    def _partly_there(self) -> Iterator[str]:
        """Ranks whose GPU work ended before that of the others, or started after it."""
        stays = []
        for rank, parts in sorted(self.ranks.items()):
            stay = _Stay(self._label(rank), parts[0].host)
            for part in parts:
                stay.add(part)
            if stay.last:
                stays.append(stay)
        for who, apart in _apart(stays, "last", low=True):
            yield f"{who} ended {format_duration(apart)} before the others"
        for who, apart in _apart(stays, "first", low=False):
            yield f"{who} started {format_duration(apart)} after the others"

    def _label(self, rank: int) -> str:
        label = f"rank {rank}"
        if len(self.sizes) == 1:
            (size,) = self.sizes
            if size:
                label += f" of {size:,}"
        if any(part.incomplete for part in self.ranks[rank]):
            label += INCOMPLETE
        return label


@dataclass
class _Stay:
    """A rank, its host, and the first and last time (ns) of its GPU work; 0 if not known."""

    label: str
    host: str
    first: int = 0
    last: int = 0

    @property
    def length(self) -> int:
        return self.last - self.first

    def add(self, part: Part) -> None:
        if part.times is None:
            return
        first, last = (time - part.ahead for time in part.times)
        self.first = min(self.first or first, first)
        self.last = max(self.last, last)


def _apart(
    stays: Sequence[_Stay],
    name: Literal["first", "last"],
    *,
    low: bool,
) -> Iterator[tuple[str, int]]:
    """Yield who stands out by a time, and how far (ns) it is from the others. Who worked as long as the others does not
    count: its clock is wrong, or it was recorded at another time."""
    if not stays:
        return
    begin = min(stay.first for stay in stays)
    end = max(stay.last for stay in stays)
    whole = end - begin
    values = []
    lengths = {}
    for stay in stays:
        # A rank stands out by a share of the median, so no time may be next to 0.
        time = getattr(stay, name) - begin + whole
        one = Measured(
            label=stay.label,
            host=stay.host,
            job="",
            value=time,
        )
        values.append(one)
        lengths[stay.label] = stay.length
    for group, _, usual in standing_out(values, low=low):
        apart = abs(group.value - usual)
        if apart <= _EARLY * whole:
            continue
        others = lengths.copy()
        own = [others.pop(one.label) for one in group.members]
        usual_length = np.median(list(others.values()))
        shorter = usual_length - np.mean(own)
        if shorter <= apart / 2:
            continue
        who = group.name
        if "," in who:
            who += ","
        yield who, round(apart)


def _say(
    ranks: set[int],
    whole: str,
    what: str,
) -> Iterator[str]:
    """Yield what is so of ranks, if there are any."""
    if not ranks:
        return
    names = list(map(str, sorted(ranks)))
    subject = "ranks"
    verb = "are"
    if len(names) == 1:
        subject = "rank"
        verb = "is"
    yield f"{subject} {listed(names)} {whole}{verb} {what}"
