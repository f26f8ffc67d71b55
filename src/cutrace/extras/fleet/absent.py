"""Sentences about ranks of a job that are absent, have no GPU work, started several times, started late or ended
early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...units import format_duration
from .jobs import starts
from .model import INCOMPLETE, Part
from .stragglers import Measured, listed, standing_out

# The smallest time between the end of a rank and the end of the others, as a share of the time of the job. The same
# holds for starts.
_EARLY = 0.05


def absences(parts: Sequence[Part]) -> list[str]:
    """Return sentences about ranks that no file holds, that have no GPU work, that started several times, that started
    late, or that ended early. Files whose rank is not stated are left out: they may be anything, such as runs one
    after the other."""
    jobs: dict[str, _Job] = {}
    for part in parts:
        jobs.setdefault(part.job, _Job()).add(part)
    sentences: list[str] = []
    for name, job in jobs.items():
        where = ""
        if len(jobs) > 1:
            where = f"{name}: "
        sentences += [where + sentence for sentence in job.sentences()]
    return sentences


@dataclass
class _Job:
    """The parts of a job with a stated rank, by rank. ``sizes`` are the numbers of ranks that all files of the job
    state, 0 for a file that states none. ``working`` are the ranks with GPU work."""

    ranks: dict[int, list[Part]] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    working: set[int] = field(default_factory=set)

    def add(self, part: Part) -> None:
        self.sizes.add(part.world)
        if not part.told:
            return
        self.ranks.setdefault(part.rank, []).append(part)
        if part.worked:
            self.working.add(part.rank)

    def sentences(self) -> Iterator[str]:
        # Files that state different numbers of ranks belong to several jobs.
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
            what = f"in {count} consecutive recordings, as after a restart: all are counted"
            yield from _say(ranks, "", what)
        what = "in several recordings, with equal times or without times: give each job a folder, if there are several"
        yield from _say(mixed, "", what)

    def _partly_there(self) -> Iterator[str]:
        """Yield sentences on ranks that ended their GPU work before the others, or started it after them."""
        labels = []
        ends = []
        for rank, parts in sorted(self.ranks.items()):
            times = []
            for part in parts:
                times += [time - part.ahead for time in part.times or ()]
            if times:
                labels.append((self._label(rank), parts[0].host))
                ends.append((min(times), max(times)))
        if not ends:
            return
        first, last = np.array(ends).T
        begin = first.min()
        whole = int(last.max() - begin)
        stays = _Stays(labels, last - first, whole)
        # apart() compares with a share of the median, so `whole` is added to all times to keep the median away from 0.
        for who, apart in stays.apart(last - begin + whole, low=True):
            yield f"{who} ended {format_duration(apart)} before the others"
        for who, apart in stays.apart(first - begin + whole, low=False):
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
class _Stays:
    """Labels and hosts of ranks, the time (ns) that each rank had GPU work, and the length of the job (ns)."""

    labels: list[tuple[str, str]]
    length: np.ndarray
    whole: int

    def apart(self, times: np.ndarray, *, low: bool) -> Iterator[tuple[str, int]]:
        """Yield the ranks with a time that stands out, and its distance (ns) from the time of the others. Ranks that
        worked as long as the others are omitted, because their clock is wrong or they were recorded at another time."""
        values = []
        for (label, host), time in zip(self.labels, times.tolist(), strict=True):
            values.append(Measured(label, host, "", time))
        for group, _, usual in standing_out(values, low=low):
            apart = abs(group.value - usual)
            own = np.array([one in group.members for one in values])
            shorter = np.median(self.length[~own]) - self.length[own].mean()
            if apart <= _EARLY * self.whole or shorter <= apart / 2:
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
    """Yield a sentence that states ``what`` about the ranks; nothing without ranks."""
    if not ranks:
        return
    names = list(map(str, sorted(ranks)))
    subject = "ranks"
    verb = "are"
    if len(names) == 1:
        subject = "rank"
        verb = "is"
    yield f"{subject} {listed(names)} {whole}{verb} {what}"
