"""Writing what tests measured: into golden files, or as candidates for somebody to accept.

A run gathers its changes and writes each file once, at its end. A candidate is a golden file of one run. It has the
same relative path in the folder of candidates as the golden file in the golden folder. It is stamped with a digest of
what the golden file said of the same environment: a candidate that is older than the golden file is not accepted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import CutraceError
from .files import existing, golden_files, line_of_test, read, text, write
from .model import Entry, Module, Observed, joined, split

_DIGITS = 16


@dataclass(frozen=True)
class Change:
    """What the golden file at ``path`` is to say of a test in one environment. ``line`` is that of the test in its
    source, 0 where that is not known; ``before`` the :func:`digest` of what the golden file said."""

    nodeid: str
    path: Path
    environment: str
    observed: Observed
    line: int = 0
    before: str = ""


@dataclass(frozen=True)
class Accepted:
    """What becomes of one candidate: the test, its golden file, and the entry before and after."""

    nodeid: str
    path: Path
    old: Entry
    new: Entry

    @property
    def changed(self) -> bool:
        return self.old != self.new


def digest(entry: Entry | None, environment: str) -> str:
    """A stamp of what a golden file says of a test in an environment, "" if it says nothing."""
    observed = (entry or {}).get(environment)
    if observed is None:
        return ""
    said = text(Module("", {"": {environment: observed}}))
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def write_changes(changes: Iterable[Change]) -> tuple[Path, ...]:
    """Put changes into their golden files, and return the files that changed. What files say of other tests and other
    environments stays as it is.

    Raises :class:`CutraceError` for the files that could not be read or written, after all others were.
    """
    written, errors = [], []
    for path, found in _by_path(changes).items():
        try:
            file = _module_of(path, found)
            before = existing(path, file)
            if write(_changed(before or Module(file), found), path, before):
                written.append(path)
        except CutraceError as error:  # noqa: PERF203
            errors.append(str(error))
    if errors:
        raise CutraceError("\n".join(errors))
    return tuple(written)


def propose(changes: Iterable[Change], folder: Path, root: Path) -> tuple[Path, ...]:
    """Write changes as candidates into ``folder``, which has none yet; returns the files."""
    places = []
    for path, found in _by_path(changes).items():
        if not path.is_relative_to(root):
            raise CutraceError(
                f"the golden file {path} is not under {root}: let pytest_cutrace_golden_path name a file in that folder"
            )
        module = _changed(Module(_module_of(path, found)), found)
        module.against.update({split(change.nodeid)[1]: change.before for change in found if change.before})
        places.append(folder / path.relative_to(root))
        write(module, places[-1])
    return tuple(places)


def accept(folder: Path, root: Path, *, select: Sequence[str] = (), dry_run: bool = False) -> tuple[Accepted, ...]:
    """Put the candidates of a folder into the golden files under ``root``; the candidates stay.

    ``select`` has ids of tests, begins of ids that end before ``::`` or ``[``, or patterns; without any all are taken.
    All candidates are checked before the first file is written. One that is damaged, or that was compared with
    something else than the golden file says now, raises :class:`CutraceError`, and nothing is changed.
    """
    if not folder.is_dir():
        raise CutraceError(f"there is no folder {folder}: name the folder of candidates, such as .cutrace/proposed")
    accepted: dict[str, Accepted] = {}
    changes: list[Change] = []
    for place in golden_files(folder):
        candidates = read(place)
        path = root / place.relative_to(folder)
        module = existing(path, candidates.path) or Module(candidates.path)
        # Candidates are in the order of the source, which their golden files keep.
        for at, (test, entry) in enumerate(candidates.tests.items(), 1):
            nodeid = joined(candidates.path, test)
            if select and not any(
                nodeid == word or nodeid.startswith((f"{word}::", f"{word}[")) or fnmatchcase(nodeid, word)
                for word in select
            ):
                continue
            old = module.tests.get(test, {})
            for name, observed in entry.items():
                if old.get(name) != observed and digest(old, name) != candidates.against.get(test, ""):
                    raise CutraceError(
                        f"{place}:{line_of_test(place, test)}: the golden file has changed since this candidate of "
                        f"{nodeid} was written ({path}:{line_of_test(path, test)}): run the test again"
                    )
                accepted[nodeid] = Accepted(nodeid, path, old, {**old, **entry})
                changes.append(Change(nodeid, path, name, observed, at))
    if not accepted:
        what = f" of {', '.join(select)}" if select else ""
        raise CutraceError(
            f"{folder} holds no candidate{what}: failing and missing tests leave them when pytest --cutrace runs"
        )
    if not dry_run:
        write_changes(changes)
    return tuple(accepted.values())


def _by_path(changes: Iterable[Change]) -> dict[Path, list[Change]]:
    found: dict[Path, list[Change]] = {}
    for change in changes:
        found.setdefault(change.path, []).append(change)
    return dict(sorted(found.items()))


def _changed(module: Module, changes: Sequence[Change]) -> Module:
    """A golden file with these changes in it, in the order of the source where it is known, else by name."""

    def place(change: Change) -> tuple[Any, ...]:
        words = re.split(r"0*([0-9]+)", change.nodeid)
        # Numbers count by their value: a longer one is greater.
        named = [(len(word) if at % 2 else 0, word) for at, word in enumerate(words)]
        return change.line or float("inf"), named, change.nodeid

    tests, names = dict(module.tests), []
    for change in sorted(changes, key=place):
        names.append(split(change.nodeid)[1])
        tests[names[-1]] = {**tests.get(names[-1], {}), change.environment: change.observed}
    return replace(module, tests={test: tests[test] for test in _inserted(list(module.tests), names)})


def _module_of(path: Path, changes: Sequence[Change]) -> str:
    """The test file that all of these changes of one golden file are of."""
    file, *others = dict.fromkeys(split(change.nodeid)[0] for change in changes)
    if others:
        raise CutraceError(
            f"{path} would be the golden file of {file!r} and of {others[0]!r}: give each one of its own"
        )
    return file


def _inserted(there: list[str], names: Sequence[str]) -> list[str]:
    """The tests of a file with the new ones among ``names``. A new test goes behind the one before it, or, if there is
    none, before the next one of the file. Tests of the file keep their places."""
    at = {name: place for place, name in enumerate(there)}
    new: dict[int, list[str]] = {}
    following = next((at[name] for name in names if name in at), len(there))
    for name in dict.fromkeys(names):
        if name in at:
            following = at[name] + 1
        else:
            new.setdefault(following, []).append(name)
    return [test for place in range(len(there) + 1) for test in (*new.get(place, ()), *there[place : place + 1])]
