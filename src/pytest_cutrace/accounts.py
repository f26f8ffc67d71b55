"""The account of a session: the outcome for each golden value that it should compare.

With ``--cutrace=require`` pytest exits with status 4 if a value was not compared, unless the user gave a reason for it.
Otherwise values without a test are notes in the footer.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import golden_files, joined, read, split
from cutrace.golden.decide import ALLOWED_SKIP, SWITCHED_OFF
from cutrace.reports.model import Case, State
from cutrace.units import count_of, first_names

from .context import id_folders, module_place
from .options import Settings, on_command_line

#: The maximum of test names in a sentence. Other tests are counted.
_LISTED = 3
_STATES = {
    State.UNVERIFIED: "could not be verified",
    State.UNCONFIRMED: "has golden values of one run alone",
    State.MISSING: "has no golden values",
}


class Fate(enum.Enum):
    """The outcome for a golden entry. The value is the word in the footer."""

    COMPARED = "compared"
    FAILED = "failed before"
    #: The footer shows the reason together with the state of the test.
    UNVERIFIED = "not verified"
    SKIPPED = "skipped"
    MAY_SKIP = "skipped as allowed"
    EXPECTED_TO_FAIL = "expected to fail"
    OFF = "switched off"
    OUT_OF_SCOPE = "out of scope"
    NOT_RUN = "not run"
    NOT_SELECTED = "not selected"
    DESELECTED = "deselected by addopts"
    NOT_COLLECTED = "not collected"
    GONE = "without a test"


#: Sentences about entries that fail a session with ``require``: one entry, several.
_SILENT = {
    Fate.SKIPPED: (
        "test with golden values was skipped",
        "tests with golden values were skipped",
    ),
    Fate.EXPECTED_TO_FAIL: (
        "test with golden values is expected to fail",
        "tests with golden values are expected to fail",
    ),
    Fate.OFF: (
        "test with golden values is switched off",
        "tests with golden values are switched off",
    ),
    Fate.OUT_OF_SCOPE: (
        "test with golden values is out of scope",
        "tests with golden values are out of scope",
    ),
    Fate.NOT_RUN: (
        "test with golden values did not run",
        "tests with golden values did not run",
    ),
    Fate.DESELECTED: (
        "golden value was deselected by addopts",
        "golden values were deselected by addopts",
    ),
    Fate.NOT_COLLECTED: (
        "golden value was not collected",
        "golden values were not collected",
    ),
}


class CollectedTests(NamedTuple):
    """The ids of the collected tests, and of the deselected tests with whether addopts deselects them and the command
    line does not. ``places`` has the golden files that the tests of each module use, see :func:`place_of`."""

    tests: frozenset[str]
    deselected: Mapping[str, bool]
    places: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class SessionAccount:
    """By fate, the ids of the golden entries of this environment that the user selected. A module that is gone has one
    id, its path. ``damaged`` has an error for each golden file that cannot be read."""

    ids: Mapping[Fate, Sequence[str]]
    damaged: Sequence[str] = ()

    def line(self) -> str:
        """The numbers of all entries; "" if there are none."""
        numbers = []
        total = 0
        for fate in Fate:
            count = len(self.ids.get(fate, ()))
            total += count
            if count:
                numbers.append(f"{count:,} {fate.value}")
        if not total:
            return ""
        return f"{total:,}: {', '.join(numbers)}"

    def gone(self) -> str:
        """The sentence about values without a test, "" if there are none."""
        ids = self.ids.get(Fate.GONE, ())
        if not ids:
            return ""
        number = f"{count_of(len(ids), 'golden value')} have"
        if len(ids) == 1:
            number = "1 golden value has"
        return f"{number} no test any more: {first_names(ids, _LISTED)} (cutrace golden check)"

    def silent(self) -> Iterator[str]:
        """The sentences about values that were not compared without a reason that the user gave."""
        yield from self.damaged
        for fate, (one, several) in _SILENT.items():
            ids = self.ids.get(fate, ())
            problem = several
            if len(ids) == 1:
                problem = one
            if ids:
                yield f"{len(ids):,} {problem}: {first_names(ids, _LISTED)}"


def shortcomings(
    cases: Sequence[Case], settings: Settings, *, passed_all: bool
) -> Iterator[str]:
    """The problems of tests that fail a session with ``require``. ``passed_all``: no test failed for pytest."""
    ran = [case for case in cases if case.outcome != "skipped"]
    if ran and not any(case.state in (State.GATED, State.UPDATED) for case in ran):
        yield "nothing was gated"
    passed = [case for case in ran if case.outcome in ("passed", "xpassed")]
    hidden = [case.nodeid for case in ran if _has_failed(case)]
    if hidden and passed_all:
        number = count_of(len(hidden), "test")
        yield f"{number} passed although cutrace failed it: {first_names(hidden, _LISTED)}"
    for state, problem in _STATES.items():
        tests = [case.nodeid for case in passed if case.state is state]
        if not tests:
            continue
        if len(tests) > 1:
            problem = problem.replace("has ", "have ", 1)
        number = count_of(len(tests), "test")
        yield f"{number} {problem}: {first_names(tests, _LISTED)}"
    if settings.scope == "marked":
        return
    # The reason of a test is the reason why it has no golden values.
    ungated = [
        case.nodeid for case in passed if case.state is State.TRACED and not case.reason
    ]
    if ungated:
        yield (
            f"{count_of(len(ungated), 'test')} did GPU work without golden values: {first_names(ungated, _LISTED)}; "
            "record them with --cutrace-update, or exclude them with cutrace(off=True) or cutrace_scope = marked"
        )


def _has_failed(case: Case) -> bool:
    """Whether cutrace failed a test that was not expected to fail. A hook may hide the failure."""
    if case.state is not State.GATED:
        return False
    if case.outcome == "xfailed":
        return False
    if case.problems:
        return True
    return any(row.failed for row in case.rows)


def folder_missing(cases: Sequence[Case], settings: Settings) -> bool:
    """Whether the folder of golden files is missing although tests need it. A suite with limits alone needs no folder,
    except with ``require``."""
    if (
        settings.golden_root.is_dir()
        or settings.scope == "marked"
        or settings.update is not None
    ):
        return False
    ran = [case for case in cases if case.outcome != "skipped"]
    traced = any(case.values for case in ran)
    gated = any(case.state is State.GATED for case in cases)
    return traced and (settings.require or not gated)


def account(
    cases: Sequence[Case],
    settings: Settings,
    config: pytest.Config,
    collected: CollectedTests,
) -> SessionAccount:
    """The account of the golden entries that the session should have compared.

    Only values of this session's environment count, because other tests may exist only on other GPUs. If no test used a
    GPU, no environment is known, and all values count. If tests of a module were collected, only the golden files that
    they use count for the module.
    """
    ids: dict[Fate, list[str]] = {}
    if not settings.golden_root.is_dir():
        return SessionAccount(ids)
    environments = {case.environment for case in cases if case.environment}
    judge = _Judge(cases, config, collected)
    root = os.path.realpath(settings.golden_root)
    damaged = []
    for path in golden_files(settings.golden_root):
        try:
            module = read(path)
        except CutraceError as error:
            source = path.relative_to(settings.golden_root).with_suffix(".py")
            if judge.selects(str(source)):
                damaged.append(str(error))
            continue
        entries = []
        for test, entry in module.tests.items():
            if not environments or environments.intersection(entry):
                entries.append(test)
        if not entries:
            continue
        used = collected.places.get(module.path)
        if used is not None and place_of(path, root) not in used:
            continue
        if judge.is_gone(module.path):
            if judge.selects(module.path):
                ids.setdefault(Fate.GONE, []).append(module.path)
            continue
        for test in entries:
            nodeid = joined(module.path, test)
            if judge.selects(module.path, nodeid):
                fate = judge.fate(module.path, nodeid)
                ids.setdefault(fate, []).append(nodeid)
    return SessionAccount(ids, damaged)


def place_of(path: Path, root: str) -> str:
    """The path of a golden file from the folder of golden files, which has the real path ``root``. It is the same in
    workers on other machines."""
    return os.path.relpath(os.path.realpath(path), root)


class _Judge:
    """Finds the fate of golden entries."""

    def __init__(
        self,
        cases: Sequence[Case],
        config: pytest.Config,
        collected: CollectedTests,
    ) -> None:
        self._cases = {case.nodeid: case for case in cases}
        self._collected = collected
        # pytest may give tests of two files outside of the rootdir the same id.
        known = (*collected.tests, *self._cases)
        self._modules = {split(nodeid)[0] for nodeid in known}
        self._folders = id_folders(config)
        self._selected = functools.cache(self._selected_in)
        chosen = on_command_line(config)
        started = config.invocation_params.dir
        #: Whether pytest collects only the tests that failed last.
        self._failed_last = bool(getattr(chosen, "lf", False))
        #: Patterns of the files and folders that the command line leaves out.
        self._ignored = []
        for word in chosen.ignore_glob or ():
            self._ignored.append(os.path.normpath(started / word))
        for word in chosen.ignore or ():
            path = os.path.normpath(started / word)
            self._ignored.append(glob.escape(path))
        #: The files, folders and tests of the command line: the path, and the rest of the id ("" for files and
        #: folders).
        self._words: list[tuple[Path, str]] = []
        for word in chosen.file_or_dir or ["."]:
            file, _, test = word.partition("::")
            # Links are not resolved, because ids contain the names of links.
            path = Path(os.path.normpath(started / file))
            if config.option.pyargs:
                path = module_place(file) or path
            self._words.append((path, test))

    def selects(self, module: str, nodeid: str = "") -> bool:
        """Whether the command line selects a module, or a test of it."""
        names = self._selected(module)
        if "" in names:
            return True
        _, test = split(nodeid)
        return any(_is_part(test, name) for name in names)

    def _selected_in(self, module: str) -> set[str]:
        """The tests of a module that the command line names, "" for all of them."""
        names = set()
        for place in self._places(module):
            for path, name in self._words:
                if place == path or (not name and place.is_relative_to(path)):
                    names.add(name)
        return names

    def _places(self, module: str) -> Iterator[Path]:
        """The paths that a module may have."""
        for folder in self._folders:
            yield Path(os.path.normpath(folder / module))

    def is_gone(self, module: str) -> bool:
        if module in self._modules:
            return False
        return not any(place.exists() for place in self._places(module))

    def _leaves_out(self, module: str) -> bool:
        """Whether the command line leaves out a module, or a folder of it, by --ignore or --ignore-glob."""
        for place in self._places(module):
            for path in (place, *place.parents):
                for pattern in self._ignored:
                    if fnmatch.fnmatch(str(path), pattern):
                        return True
        return False

    def fate(self, module: str, nodeid: str) -> Fate:
        case = self._cases.get(nodeid)
        if case is not None:
            return self._fate_of(case)
        by_addopts = self._collected.deselected.get(nodeid)
        if by_addopts:
            return Fate.DESELECTED
        if by_addopts is not None:
            return Fate.NOT_SELECTED
        if nodeid in self._collected.tests:
            return Fate.NOT_RUN
        if self._failed_last or self._leaves_out(module):
            return Fate.NOT_SELECTED
        if module in self._modules:
            return Fate.GONE
        return Fate.NOT_COLLECTED

    def _fate_of(self, case: Case) -> Fate:
        if case.outcome in ("skipped", "xfailed") and case.reason == ALLOWED_SKIP:
            return Fate.MAY_SKIP
        if case.outcome == "xfailed":
            return Fate.EXPECTED_TO_FAIL
        if case.state in (State.GATED, State.UPDATED):
            return Fate.COMPARED
        if case.outcome == "skipped":
            return Fate.SKIPPED
        if case.outcome not in ("passed", "xpassed"):
            return Fate.FAILED
        if case.state is State.UNTRACED:
            if case.reason != SWITCHED_OFF:
                return Fate.NOT_RUN
            return Fate.OFF
        if case.state is State.TRACED:
            return Fate.OUT_OF_SCOPE
        return Fate.UNVERIFIED


def _is_part(test: str, name: str) -> bool:
    """Whether a test has this name (with or without parameters), or is in the class of this name."""
    if test == name:
        return True
    starts = (f"{name}::", f"{name}[")
    return test.startswith(starts)
