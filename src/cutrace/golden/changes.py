"""Write measured values to golden files, or as candidates to be accepted.

A run collects its changes and writes each file once, at its end. A candidate is a golden file of one run, with the same
relative path in the folder of candidates as in the golden folder. It has a digest of the golden values in the same
environment. If the golden file has changed since, the candidate is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import CutraceError
from ..patterns import matcher
from .files import existing, golden_files, line_of_test, read, text, write
from .model import Entry, Module, Observed, function_of, joined, split
from .stale import source_order, undefined

_DIGITS = 16
#: The name of the folder of candidates in the folder of a session.
_CANDIDATES = "proposed"


@dataclass(frozen=True)
class Change:
    """New values of a test in one environment for the golden file at ``path``. ``line`` is the line of the test in its
    ``source``, 0 if unknown. ``before`` is the :func:`digest` of the current golden values. ``others`` are changed
    values of other environments."""

    nodeid: str
    path: Path
    environment: str
    observed: Observed
    line: int = 0
    before: str = ""
    source: Path | None = None
    others: Mapping[str, Observed] = field(default_factory=dict)


@dataclass(frozen=True)
class Accepted:
    """An accepted candidate: the test, its golden file, and the entry before and after."""

    nodeid: str
    path: Path
    old: Entry
    new: Entry

    @property
    def changed(self) -> bool:
        return self.old != self.new


def digest(entry: Entry | None, environment: str) -> str:
    """A digest of the golden values of a test in an environment, "" if there are none."""
    observed = (entry or {}).get(environment)
    if observed is None:
        return ""
    content = text(Module("", {"": {environment: observed}}))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[
        :_DIGITS
    ]


def write_changes(changes: Iterable[Change]) -> tuple[Path, ...]:
    """Write changes to their golden files and return the files that changed. Values of other tests and other
    environments are kept.

    Raises :class:`CutraceError` for files that cannot be read or written, after all others are written.
    """
    written = []
    errors = []
    for path, part in _by_path(changes).items():
        try:
            file = _module_of(path, part)
            before = existing(path, file)
            after = _changed(before, part)
            if text(after) != text(before):  # Otherwise comments in the file are kept.
                write(after, path)
                written.append(path)
        except CutraceError as error:  # noqa: PERF203
            errors.append(str(error))
    if errors:
        raise CutraceError("; ".join(errors))
    return tuple(written)


def is_written(change: Change) -> bool:
    """Whether a golden file has the values of a change."""
    file, test = split(change.nodeid)
    name = change.environment
    try:
        entry = existing(change.path, file).tests.get(test)
        return digest(entry, name) == digest({name: change.observed}, name)
    except CutraceError:
        return False


def propose(changes: Iterable[Change], folder: Path, root: Path) -> tuple[Path, ...]:
    """Write changes as candidates to ``folder``, and return the files. The folder must have no candidates yet."""
    files = []
    for path, part in _by_path(changes).items():
        if not path.is_relative_to(root):
            raise CutraceError(
                f"the golden file {path} is not under {root}: return a file in that folder from "
                "pytest_cutrace_golden_path"
            )
        module = _changed(Module(_module_of(path, part)), part)
        for change in part:
            if change.before:
                _, test = split(change.nodeid)
                module.against[test] = change.before
        file = folder / path.relative_to(root)
        write(module, file)
        files.append(file)
    return tuple(files)


def accept(
    folder: Path,
    root: Path,
    *,
    select: Sequence[str] = (),
    dry_run: bool = False,
    tests: Path | None = None,
) -> tuple[Accepted, ...]:
    """Copy the candidates of a folder to the golden files under ``root``. The candidates stay.

    New tests are inserted in the order of their source. Sources are searched in the folder ``tests``.

    ``select`` has ids of tests, prefixes of ids that end before ``::`` or ``[``, or patterns; if it is empty, all
    candidates are accepted. All candidates are checked before the first file is written. A candidate that is damaged,
    or older than the golden values, raises :class:`CutraceError`. Then nothing is changed.
    """
    if not folder.is_dir():
        raise CutraceError(
            f"there is no folder {folder}: name the folder of candidates, such as .cutrace/proposed"
        )
    accepted: dict[str, Accepted] = {}
    changes: list[Change] = []
    for file in golden_files(folder):
        candidates = read(file)
        _refuse_outer(folder, file, candidates.path)
        path = root / file.relative_to(folder)
        module = existing(path, candidates.path)
        # Candidates are in the order of the source, and golden files keep this order.
        lines = dict(zip(candidates.tests, itertools.count(1)))
        source = None
        if tests is not None and (tests / candidates.path).is_file():
            source = tests / candidates.path
            lines = source_order(source, candidates.tests)
        for test, entry in candidates.tests.items():
            nodeid = joined(candidates.path, test)
            if select and not _selected(nodeid, select):
                continue
            old = module.tests.get(test, {})
            against = candidates.against.get(test, "")
            for name, observed in entry.items():
                if old.get(name) != observed and digest(old, name) != against:
                    if not path.exists():
                        raise CutraceError(
                            f"{file} is a candidate for {path}, which does not exist: name the folder of golden files "
                            "with --golden-dir"
                        )
                    raise CutraceError(
                        f"{file}:{line_of_test(file, test)}: the golden file has changed since this candidate of "
                        f"{nodeid} was written ({path}:{line_of_test(path, test)}): run the test again"
                    )
                accepted[nodeid] = Accepted(nodeid, path, old, {**old, **entry})
                line = lines.get(test, 0)
                changes.append(
                    Change(nodeid, path, name, observed, line, source=source)
                )
    if not accepted:
        what = ""
        if select:
            what = f" of {', '.join(select)}"
        raise CutraceError(
            f"{folder} holds no candidate{what}: run pytest --cutrace, which writes them for failing and missing tests"
        )
    if not dry_run:
        write_changes(changes)
    return tuple(accepted.values())


def _refuse_outer(folder: Path, file: Path, module: str) -> None:
    """Refuse a folder around the folder of candidates, because the paths of golden files would begin in it."""
    for outer in file.parents:
        if outer == folder:
            return
        if outer.name == _CANDIDATES and f"/{_CANDIDATES}/" not in f"/{module}":
            raise CutraceError(
                f"{folder} is not the folder of candidates: name {outer}"
            )


def _selected(nodeid: str, words: Iterable[str]) -> bool:
    """Whether one of these words selects a test: its id, the start of it, or a pattern."""
    for word in words:
        if nodeid == word or nodeid.startswith((f"{word}::", f"{word}[")):
            return True
        if matcher(word)(nodeid):
            return True
    return False


def _by_path(changes: Iterable[Change]) -> dict[Path, list[Change]]:
    by_path: dict[Path, list[Change]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    return dict(sorted(by_path.items()))


def _changed(module: Module, changes: Sequence[Change]) -> Module:
    """A golden file with these changes, in the order of the source if it is known, else by name."""
    tests = dict(module.tests)
    lines: dict[str, int] = {}
    source = changes[0].source
    if source is not None:
        lines.update(source_order(source, tests))
    for change in changes:
        _, test = split(change.nodeid)
        lines.setdefault(test, change.line)
        entry = dict(tests.get(test, {}))
        entry[change.environment] = change.observed
        entry.update(change.others)
        tests[test] = entry
    names = sorted(lines, key=lambda test: _position(test, lines[test]))
    order = _inserted(list(module.tests), names)
    ordered_tests = {test: tests[test] for test in order}
    marks = _marks(module, ordered_tests, source)
    return replace(module, tests=ordered_tests, marks=marks)


def _marks(
    before: Module, tests: Mapping[str, Entry], source: Path | None
) -> dict[str, str]:
    """The marks of a golden file with the new content ``tests``. New and changed tests get a mark.

    git moves an added test down over equal lines. It stops at the mark of the next test, because each mark is unique. A
    renamed test keeps its mark, so that another branch can rename the next test without a conflict. A new test counts
    as renamed if it is in the place of a test that its source no longer defines.
    """
    marks = dict(before.marks)
    known = set(map(function_of, before.tests))
    functions = dict.fromkeys(map(function_of, tests))
    new = functions.keys() - known
    gone: set[str] = set()
    if new and known and source is not None:
        gone = undefined(source, known)
    for _, run in itertools.groupby(functions, (new | gone).__contains__):
        neighbours = list(run)
        added = [name for name in neighbours if name in new]
        lost = [name for name in neighbours if name in marks and name in gone]
        for name, old_name in zip(added, lost, strict=False):
            marks[name] = marks.pop(old_name)
    for test, entry in tests.items():
        if entry != before.tests.get(test):
            function = function_of(test)
            marks.setdefault(function, _new_mark(function))
    return marks


def _new_mark(function: str) -> str:
    """A mark that is the same in all branches."""
    checksum = zlib.crc32(function.encode("utf-8", "surrogatepass"))
    return f"{checksum & 0xFFFF:04x}"


def _position(test: str, line: int) -> tuple[Any, ...]:
    """The sort key of tests: the line in the source, else the name."""
    natural: list[tuple[int, str]] = []
    for part in re.split(r"0*([0-9]+)", test):
        # Numbers sort by value. Without leading zeros, a longer number is greater.
        number = len(natural) % 2
        natural.append((number * len(part), part))
    return line or math.inf, natural, test


def _module_of(path: Path, changes: Sequence[Change]) -> str:
    """The test file of all changes of a golden file."""
    first, _ = split(changes[0].nodeid)
    for change in changes:
        file, _ = split(change.nodeid)
        if file != first:
            raise CutraceError(
                f"{path} would be the golden file of {first!r} and of {file!r}: give each its own golden file"
            )
    return first


def _inserted(tests: Sequence[str], names: Sequence[str]) -> list[str]:
    """The tests of a file, with the new tests of ``names`` inserted. A new test is inserted after its predecessor in
    ``names``. Without a predecessor, it is inserted before the first of ``names`` in the file. The order of the other
    tests does not change."""
    # New tests have the place of their predecessor, and sort after it.
    places = {name: (at, 0) for at, name in enumerate(tests)}
    at = len(tests)
    for name in names:
        if name in places:
            at = places[name][0] - 1
            break
    for name in names:
        at, _ = places.setdefault(name, (at, 1))
    return sorted(places, key=lambda name: places[name])
