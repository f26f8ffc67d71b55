"""Writing what tests measured: into golden files, or as candidates for somebody to accept.

A run gathers its changes and writes each file once, at its end. A candidate is a golden file of one run, at the place
under the folder of candidates that the golden file has under the golden folder. It is stamped with a digest of what the
golden file said of the same environment, so that a candidate that is older than the golden file is not accepted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..analysis.definitions import METRICS, Metric
from ..errors import CutraceError
from .files import exists, golden_files, line_of_test, read, text, write
from .model import Entry, Module, Observed, Values, from_plain, joined, plain, split

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

    def to_json(self) -> dict[str, Any]:
        """Plain types alone, for JSON and for pytest-xdist."""
        return {
            "nodeid": self.nodeid,
            "path": str(self.path),
            "environment": self.environment,
            "values": _plain(self.observed.values),
            "unstable": _plain(self.observed.unstable),
            "confirmed": self.observed.confirmed,
            "line": self.line,
            "before": self.before,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Change:
        values, unstable = (
            {region: {name: from_plain(value) for name, value in scope.items()} for region, scope in data[key].items()}
            for key in ("values", "unstable")
        )
        return cls(
            data["nodeid"], Path(data["path"]), data["environment"], Observed(values, unstable, data["confirmed"]),
            data["line"], data["before"],
        )  # fmt: skip


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


def write_changes(changes: Iterable[Change], *, known: Mapping[str, Metric] = METRICS) -> tuple[Path, ...]:
    """Put changes into their golden files, and return the files that changed. What files say of other tests and other
    environments stays as it is.

    Raises :class:`CutraceError` for the files that could not be read or written, after all others were.
    """
    written, errors = [], []
    for path, found in _by_path(changes).items():
        try:
            if write(_changed(path, found, known), path, known=known):
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
        module = Module(_module_of(path, found))
        for change in _in_order(found):
            test = split(change.nodeid)[1]
            module.tests[test] = {**module.tests.get(test, {}), change.environment: change.observed}
            if change.before:
                module.against[test] = change.before
        places.append(folder / path.relative_to(root))
        write(module, places[-1])
    return tuple(places)


def accept(
    folder: Path,
    root: Path,
    *,
    select: Sequence[str] = (),
    dry_run: bool = False,
    known: Mapping[str, Metric] = METRICS,
) -> tuple[Accepted, ...]:
    """Put the candidates of a folder into the golden files under ``root``; the candidates stay.

    ``select`` has ids of tests, begins of ids that end before ``::`` or ``[``, or patterns; without any all are taken.
    All candidates are checked before the first file is written. One that is damaged, or that was compared with
    something else than the golden file says now, raises :class:`CutraceError`, and nothing is changed.
    """
    if not folder.is_dir():
        raise CutraceError(f"there is no folder {folder}: name the folder of candidates, such as .cutrace/proposed")
    found: list[tuple[Accepted, Change]] = []
    for place in golden_files(folder):
        candidates = read(place, known=known)
        path = root / place.relative_to(folder)
        module = read(path, module=candidates.path, known=known) if exists(path) else Module(candidates.path)
        # Candidates are in the order of the source, which their golden files keep.
        for at, (test, entry) in enumerate(candidates.tests.items(), 1):
            nodeid = joined(candidates.path, test)
            if select and not any(_selects(word, nodeid) for word in select):
                continue
            old = module.tests.get(test, {})
            for name, observed in entry.items():
                if old.get(name) != observed and digest(old, name) != candidates.against.get(test, ""):
                    raise CutraceError(
                        f"{place}:{line_of_test(place, test)}: the golden file has changed since this candidate of "
                        f"{nodeid} was written ({path}:{line_of_test(path, test)}): run the test again"
                    )
                found.append((Accepted(nodeid, path, old, {**old, **entry}), Change(nodeid, path, name, observed, at)))
    if not found:
        what = f" of {', '.join(select)}" if select else ""
        raise CutraceError(
            f"{folder} holds no candidate{what}: failing and missing tests leave them when pytest --cutrace runs"
        )
    if not dry_run:
        write_changes((change for _, change in found), known=known)
    return tuple({accepted.nodeid: accepted for accepted, _ in found}.values())


def _by_path(changes: Iterable[Change]) -> dict[Path, list[Change]]:
    found: dict[Path, list[Change]] = {}
    for change in changes:
        found.setdefault(change.path, []).append(change)
    return dict(sorted(found.items()))


def _changed(path: Path, changes: Sequence[Change], known: Mapping[str, Metric]) -> Module:
    file = _module_of(path, changes)
    module = read(path, module=file, known=known) if exists(path) else Module(file)
    tests = dict(module.tests)
    for change in changes:
        test = split(change.nodeid)[1]
        tests[test] = {**tests.get(test, {}), change.environment: change.observed}
    ordered = [split(change.nodeid)[1] for change in _in_order(changes)]
    return replace(module, tests={test: tests[test] for test in _inserted(list(module.tests), ordered)})


def _module_of(path: Path, changes: Sequence[Change]) -> str:
    """The test file that all of these changes of one golden file are of."""
    file, *others = dict.fromkeys(split(change.nodeid)[0] for change in changes)
    if others:
        raise CutraceError(
            f"{path} would be the golden file of {file!r} and of {others[0]!r}: give each one of its own"
        )
    return file


def _in_order(changes: Sequence[Change]) -> list[Change]:
    """Changes in the order of the source where it is known, and by name: of parameters numbers count as such."""

    def place(change: Change) -> tuple[Any, ...]:
        words = re.split(r"0*([0-9]+)", change.nodeid)
        # A longer number is a greater one.
        named = [(len(word) if at % 2 else 0, word) for at, word in enumerate(words)]
        return change.line or float("inf"), named, change.nodeid

    return sorted(changes, key=place)


def _inserted(there: list[str], names: Sequence[str]) -> list[str]:
    """The tests of a file with new ones among ``names`` put behind the one before them, so that what was there keeps
    its place; one with none before it goes before the next one that was there."""
    at = {name: place for place, name in enumerate(there)}
    new: dict[int, list[str]] = {}
    following = next((at[name] for name in names if name in at), len(there))
    for name in dict.fromkeys(names):
        if name in at:
            following = at[name] + 1
        else:
            new.setdefault(following, []).append(name)
    result: list[str] = []
    for place in range(len(there) + 1):
        result += new.get(place, [])
        result += there[place : place + 1]
    return result


def _selects(word: str, nodeid: str) -> bool:
    return nodeid == word or nodeid.startswith((f"{word}::", f"{word}[")) or fnmatchcase(nodeid, word)


def _plain(regions: dict[str, Values]) -> dict[str, Any]:
    return {region: {name: plain(value) for name, value in values.items()} for region, values in regions.items()}
