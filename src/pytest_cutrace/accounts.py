"""Problems of a session: tests that were not verified, and golden values without a test.

With ``--cutrace=require`` each of them makes pytest exit with status 4; otherwise they are notes in the footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import golden_files, joined, read, split
from cutrace.reports.model import Case, State
from cutrace.reports.values import listed
from cutrace.units import count_of

from .options import Settings

#: Options with which pytest does not collect the whole suite.
_SELECTING = (
    "keyword",
    "markexpr",
    "lf",
    "deselect",
    "ignore",
    "ignore_glob",
    "stepwise",
)
#: The maximum of test names in a sentence; the others are counted.
_LISTED = 3
_STATES = {
    State.UNVERIFIED: "could not be verified",
    State.UNCONFIRMED: "has golden values of one run alone",
    State.MISSING: "has no golden values",
}


def shortcomings(cases: Sequence[Case]) -> Iterator[str]:
    """The problems of the tests of a session that fail it with ``require``."""
    ran = [case for case in cases if case.outcome != "skipped"]
    if ran and not any(case.state in (State.GATED, State.UPDATED) for case in ran):
        yield "nothing was gated"
    passed = [case for case in ran if case.outcome == "passed"]
    for state, problem in _STATES.items():
        tests = [case.nodeid for case in passed if case.state is state]
        if not tests:
            continue
        if len(tests) > 1:
            problem = problem.replace("has ", "have ", 1)
        yield f"{count_of(len(tests), 'test')} {problem}: {listed(tests, _LISTED)}"


def folder_missing(cases: Sequence[Case], settings: Settings) -> bool:
    """Whether the folder of golden files is missing although tests are compared with it. A suite that has only limits
    needs no folder, except with ``require``."""
    if (
        settings.golden_root.is_dir()
        or settings.scope == "marked"
        or settings.update is not None
    ):
        return False
    traced = any(case.values and case.outcome != "skipped" for case in cases)
    gated = any(case.state is State.GATED for case in cases)
    return traced and (settings.require or not gated)


def gone(
    cases: Sequence[Case],
    settings: Settings,
    config: pytest.Config,
    collected: Sequence[str],
) -> list[str]:
    """The ids in golden files that no test has any more; for a module that is gone, its path.

    Only values of this session's environment count, because a test may exist only on other GPUs. A module counts only
    if all of its tests were collected.
    """
    if not settings.golden_root.is_dir() or any(
        getattr(config.option, name, None) for name in _SELECTING
    ):
        return []
    here = {case.environment for case in cases if case.environment}
    tests: dict[str, set[str]] = {}
    for nodeid in collected:
        file, test = split(nodeid)
        tests.setdefault(file, set()).add(test)
    in_part = _files_in_part(config)
    ids = []
    for path in golden_files(settings.golden_root):
        try:
            module = read(path)
        except CutraceError:  # the tests of the module fail with this error
            continue
        source = config.rootpath / module.path
        if not source.exists():
            if _whole(config):
                ids.append(module.path)
        elif module.path in tests and source not in in_part:
            for test, entry in module.tests.items():
                if test not in tests[module.path] and not here.isdisjoint(entry):
                    ids.append(joined(module.path, test))
    return ids


def _files_in_part(config: pytest.Config) -> set[Path]:
    """The test files of which the command line names some tests only."""
    started = config.invocation_params.dir
    files = set()
    for word in config.args:
        if "::" in word:
            file, _ = split(word)
            files.add(started / file)
    return files


def gone_sentence(ids: Sequence[str]) -> str:
    verb = "has" if len(ids) == 1 else "have"
    number = count_of(len(ids), "golden value")
    return f"{number} {verb} no test any more: {listed(ids, _LISTED)} (cutrace golden check)"


def _whole(config: pytest.Config) -> bool:
    """Whether pytest collects the whole suite."""
    sources = pytest.Config.ArgsSource
    if config.args_source is sources.INVOCATION_DIR:
        return config.invocation_params.dir == config.rootpath
    return config.args_source is sources.TESTPATHS
