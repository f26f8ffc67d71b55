"""Candidates: what a test measured where golden files may not be written, kept for somebody to accept.

A candidate is a golden file of one run on one GPU, at the place under the folder of candidates that the golden file
has under the golden folder. Accepting it is an update with what it says, on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..analysis.metrics import METRICS, Metric
from ..errors import CutraceError
from .files import golden_files, read, write
from .model import Golden
from .rules import DEFAULTS, Rules
from .update import Mode, merged


@dataclass(frozen=True)
class Accepted:
    """What became of one candidate: the golden file before (None: there was none) and after, and what was not taken."""

    path: Path
    old: Golden | None
    new: Golden
    notes: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.old != self.new


def propose(candidate: Golden, path: Path, folder: Path, root: Path) -> Path:
    """Write the candidate for the golden file at ``path``, which is under ``root``, into ``folder``; returns where.

    ``candidate`` is what :func:`cutrace.golden.measured` makes of the runs. Raises :class:`CutraceError` when it cannot
    be written, or the golden file is not under ``root``.
    """
    if not path.is_relative_to(root):
        raise CutraceError(f"the golden file {path} is not under {root}: let golden_path name a file in that folder")
    place = folder / path.relative_to(root)
    write(candidate, place)
    return place


def accept(
    folder: Path, root: Path, *, mode: Mode = "all", rules: Rules = DEFAULTS, known: Mapping[str, Metric] = METRICS
) -> tuple[Accepted, ...]:
    """Merge the candidates of a folder into the golden files under ``root``; the candidates stay.

    All of them are read, and compared with what is there, before the first file is written: one that is damaged or
    belongs to another test raises :class:`CutraceError`, and nothing is changed.
    """
    if not folder.is_dir():
        raise CutraceError(f"there is no folder {folder}: name the folder of candidates, such as .cutrace/proposed")
    accepted = []
    for place in golden_files(folder):
        candidate = read(place, known=known)
        path = root / place.relative_to(folder)
        old = read(path, test=candidate.test, known=known) if path.exists() else None
        new, notes = merged(old, candidate, mode=mode, rules=rules, known=known)
        accepted.append(Accepted(path, old, new, notes))
    if not accepted:
        raise CutraceError(
            f"{folder} holds no candidate: failing and missing tests leave them when pytest --cutrace runs"
        )
    for one in accepted:
        if one.changed:
            write(one.new, one.path, known=known)
    return tuple(accepted)
