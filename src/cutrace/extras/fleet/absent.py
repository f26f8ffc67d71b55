"""Ranks of a job that are absent, or without GPU work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .model import Part

# Longer lists name the first ones.
_NAMED = 8


def absences(parts: Sequence[Part]) -> list[str]:
    """Sentences about ranks that no file holds, and about those without GPU work. Nothing is said of a job unless each
    of its files tells its rank."""
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
        # Ranks that do not agree are of several jobs.
        if len(job.sizes) == 1:
            (size,) = job.sizes
            absent = set(range(size)) - job.ranks
            _say(sentences, where, absent, f"of {size:,} ", "absent")
        if job.working:
            idle = job.ranks - job.working
            _say(sentences, where, idle, "", "without GPU work")
    return sentences


@dataclass
class _Job:
    """The ranks that the files of a job hold, those with GPU work, and the numbers of ranks that they tell. ``untold``
    if a file does not tell its rank."""

    ranks: set[int] = field(default_factory=set)
    working: set[int] = field(default_factory=set)
    sizes: set[int] = field(default_factory=set)
    untold: bool = False

    def add(self, part: Part) -> None:
        self.ranks.add(part.rank)
        self.sizes.add(part.world)
        self.untold |= not part.told
        if part.worked:
            self.working.add(part.rank)


def _say(
    sentences: list[str], where: str, ranks: set[int], whole: str, what: str
) -> None:
    numbers = list(map(str, sorted(ranks)))
    if not numbers:
        return
    if len(numbers) == 1:
        sentences.append(f"{where}rank {numbers[0]} {whole}is {what}")
        return
    if len(numbers) > _NAMED:
        more = f"{len(numbers) - _NAMED:,} more"
        numbers = [*numbers[:_NAMED], more]
    names = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    sentences.append(f"{where}ranks {names} {whole}are {what}")
