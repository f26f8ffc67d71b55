"""What a session has to report: tests that were not verified, and golden values without a test.

With ``--cutrace=require`` each of these facts is a reason to exit with status 4, without it a note of the footer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Entry, golden_files, joined, read, split
from cutrace.reports.model import Case, State
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
            yield f"{count_of(len(found), 'test')} {_plural(words, len(found))}: {_listed(found)}"


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
    in_part = {config.rootpath / _relative(word, config) for word in config.args if "::" in word}
    found = []
    for path in golden_files(settings.golden_root):
        try:
            module = read(path)
        except CutraceError:  # a test of that module has failed for it, if one ran
            continue
        if not (config.rootpath / module.path).exists():
            found += [module.path] if _whole(config) else []
        elif module.path in tests and config.rootpath / module.path not in in_part:
            there = tests[module.path]
            found += [joined(module.path, t) for t, e in module.tests.items() if t not in there and _seen(e, here)]
    return found


def gone_sentence(ids: Sequence[str]) -> str:
    words = "has no test" if len(ids) == 1 else "have no test"
    return f"{count_of(len(ids), 'golden value')} {words} any more: {_listed(ids)} (cutrace golden check)"


def _seen(entry: Entry, here: set[str]) -> bool:
    return not here.isdisjoint(entry)


def _whole(config: pytest.Config) -> bool:
    """Whether pytest collects the whole suite."""
    sources = pytest.Config.ArgsSource
    return config.args_source is sources.TESTPATHS or (
        config.args_source is sources.INVOCATION_DIR and config.invocation_params.dir == config.rootpath
    )


def _relative(word: str, config: pytest.Config) -> Path:
    return config.invocation_params.dir / word.partition("::")[0]


def _plural(words: str, count: int) -> str:
    return words.replace("has ", "have ", 1) if count != 1 else words


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
