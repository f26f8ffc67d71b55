"""The jobs of parts, and their names in reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...units import printable
from .model import INCOMPLETE, Part, short

#: Folders with ranks that worked at the same time, or perhaps did.
_Folders = list["_Folder"]


def joined(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with their jobs. Neighbouring folders are one job, named after their parent folder, under these
    conditions. Each file states its rank and the same number of ranks, and no file states a job. No rank is in two
    folders. The GPU work of the folders overlaps in time. If times are unknown, all ranks have to be present."""
    by_path: dict[Path, _Folder] = {}
    for part in parts:
        path = Path(part.source).parent
        by_path.setdefault(path, _Folder(path)).add(part)
    around: defaultdict[tuple[Path, int], _Folders] = defaultdict(list)
    for path, folder in by_path.items():
        if len(folder.worlds) == 1 and 0 not in folder.worlds:
            around[path.parent, max(folder.worlds)].append(folder)
    names: dict[Path, str] = {}
    for (parent, world), folders in around.items():
        for together in _at_one_time(folders):
            if not _is_one_job(together, world):
                continue
            name = printable(parent.name) or "0"
            if name in names.values():
                name = f"{name} ({printable(together[0].path.name)})"
            for folder in together:
                names[folder.path] = name
    moved = []
    for part in parts:
        job = names.get(Path(part.source).parent, part.job)
        moved.append(replace(part, job=job))
    return moved


@dataclass
class _Folder:
    """The files of a folder. ``ranks`` are their ranks. ``worlds`` are the numbers of ranks that they state, 0 for a
    file without this number or with a job. ``first`` and ``last`` are the times of the first and last GPU work (ns), 0
    if unknown."""

    path: Path
    ranks: set[int] = field(default_factory=set)
    worlds: set[int] = field(default_factory=set)
    first: int = 0
    last: int = 0

    def add(self, part: Part) -> None:
        self.ranks.add(part.rank)
        world = part.world
        if part.job_told or not part.told:
            world = 0
        self.worlds.add(world)
        if part.times:
            first, last = part.times
            self.first = min(self.first or first, first)
            self.last = max(self.last, last)


def _at_one_time(folders: Sequence[_Folder]) -> Iterator[_Folders]:
    """Yield lists of folders with work that overlaps in time. The folders without times come first."""
    together: _Folders = []
    reached = 0
    # Unknown times are 0, so they come first.
    for folder in sorted(folders, key=lambda folder: folder.first):
        if folder.first > reached:
            yield together
            together = []
        together.append(folder)
        reached = max(reached, folder.last)
    yield together


def _is_one_job(folders: Sequence[_Folder], world: int) -> bool:
    ranks: set[int] = set()
    timed = True
    for folder in folders:
        if not ranks.isdisjoint(folder.ranks):
            return False
        ranks |= folder.ranks
        timed &= bool(folder.last)
    return len(folders) > 1 and (timed or len(ranks) == world)


def labeled(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with labels. A label has the job if there are several, and the file if the rank is in several
    files. It also states whether records are missing, because sentences about slow ranks use the label."""
    jobs = {part.job for part in parts}
    sources = list(dict.fromkeys(part.source for part in parts))
    files = dict(zip(sources, short(sources), strict=True))
    of_ranks: defaultdict[tuple[str, int], list[Part]] = defaultdict(list)
    for part in parts:
        of_ranks[part.job, part.rank].append(part)
    named = []
    for part in parts:
        label = f"rank {part.rank}"
        if len(jobs) > 1:
            label = f"{part.job} {label}"
        same = of_ranks[part.job, part.rank]
        if len(same) > 1:
            file = files[part.source]
            number = starts(same).get(part.path)
            if number is not None:
                file = f"start {number} of {len(same)}, {file}"
            label += f" ({file})"
        if part.incomplete:
            label += INCOMPLETE
        named.append(replace(part, label=label))
    return named


def starts(parts: Sequence[Part]) -> dict[Path, int]:
    """The number (from 1) of each start of a rank with several starts, by path of the part. Empty if the parts overlap
    in time, or a time is unknown."""
    timed = []
    for part in parts:
        if not part.times:
            return {}
        timed.append((part.times, part.path))
    timed.sort()
    numbers = {}
    reached = -1
    for number, ((first, last), path) in enumerate(timed, 1):
        if first <= reached:
            return {}
        reached = last
        numbers[path] = number
    return numbers
