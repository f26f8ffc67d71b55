"""What a session has to report: tests that were not verified, and golden values without a test.

With ``--cutrace=require`` each of these facts is a reason to exit with status 4, without it a note of the footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import golden_files, joined, read, split
from cutrace.reports.model import Case, State
from cutrace.reports.values import listed
from cutrace.units import count_of

from .options import Settings

#: Options with which pytest does not collect the whole suite.
_SELECTING = ("keyword", "markexpr", "lf", "deselect", "ignore", "ignore_glob", "stepwise")
#: Names of tests that a sentence lists; the rest is counted.
_LISTED = 3
_STATES = {
    State.UNVERIFIED: "could not be verified",
    State.UNCONFIRMED: "has golden values of one run alone",
    State.MISSING: "has no golden values",
}


def shortcomings(cases: Sequence[Case]) -> Iterator[str]:
    """What the tests of a session lack with which ``require`` fails."""
    ran = [case for case in cases if case.outcome != "skipped"]
    if ran and not any(case.state in (State.GATED, State.UPDATED) for case in ran):
        yield "nothing was gated"
    for state, words in _STATES.items():
        found = [case.nodeid for case in ran if case.state is state and case.outcome == "passed"]
        if found:
            words = words if len(found) == 1 else words.replace("has ", "have ", 1)
            yield f"{count_of(len(found), 'test')} {words}: {listed(found, _LISTED)}"


def folder_missing(cases: Sequence[Case], settings: Settings) -> bool:
    """Whether the folder of golden files is missing although tests are compared with it. A suite that has limits alone
    needs no folder, except with ``require``."""
    if settings.golden_root.is_dir() or settings.scope == "marked" or settings.update is not None:
        return False
    gated = any(case.state is State.GATED for case in cases)
    return any(case.values and case.outcome != "skipped" for case in cases) and (settings.require or not gated)


def gone(cases: Sequence[Case], settings: Settings, config: pytest.Config, collected: Sequence[str]) -> list[str]:
    """The ids in golden files that no test has any more; of a module that is gone, the path of the module.

    Only values that were recorded where this session ran count: a test can exist on other GPUs alone. Of a module all
    tests must have been collected.
    """
    if not settings.golden_root.is_dir() or any(getattr(config.option, name, None) for name in _SELECTING):
        return []
    here = {case.environment for case in cases if case.environment}
    tests: dict[str, set[str]] = {}
    for nodeid in collected:
        file, test = split(nodeid)
        tests.setdefault(file, set()).add(test)
    started = config.invocation_params.dir
    in_part = {started / split(word)[0] for word in config.args if "::" in word}
    found = []
    for path in golden_files(settings.golden_root):
        try:
            module = read(path)
        except CutraceError:  # a test of that module has failed for it, if one ran
            continue
        if not (config.rootpath / module.path).exists():
            found += [module.path] if _whole(config) else []
        elif module.path in tests and config.rootpath / module.path not in in_part:
            lost = (t for t, e in module.tests.items() if t not in tests[module.path] and not here.isdisjoint(e))
            found += [joined(module.path, test) for test in lost]
    return found


def gone_sentence(ids: Sequence[str]) -> str:
    words = "has no test" if len(ids) == 1 else "have no test"
    return f"{count_of(len(ids), 'golden value')} {words} any more: {listed(ids, _LISTED)} (cutrace golden check)"


def _whole(config: pytest.Config) -> bool:
    """Whether pytest collects the whole suite."""
    sources = pytest.Config.ArgsSource
    return config.args_source is sources.TESTPATHS or (
        config.args_source is sources.INVOCATION_DIR and config.invocation_params.dir == config.rootpath
    )
