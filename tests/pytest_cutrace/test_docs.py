"""docs/pytest.md names every option, ini value, marker, fixture and hook, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cutrace import hookspecs, options

DOCS = (Path(__file__).parents[2] / "docs" / "pytest.md").read_text()


def test_options_and_ini_values() -> None:
    parser = pytest.Parser(_ispytest=True)
    options.add(parser)
    flags = {name.partition("=")[0] for option in parser.getgroup("cutrace").options for name in option.names()}
    told = set(re.findall(r"^\| `(--cutrace[a-z-]*)", DOCS, re.MULTILINE))
    assert told == flags
    values = {f"cutrace_{name}" for name, *_ in options._VALUES}
    values |= {"cutrace", "cutrace_update", "cutrace_strict", "cutrace_report"}
    twins = {flag.removeprefix("--").replace("-", "_") for flag in flags}
    assert twins == values, "each option has an ini twin"
    assert set(re.findall(r"^\| `(\w*cutrace_\w+|verbosity_cutrace)` \|", DOCS, re.MULTILINE)) == {
        name for name, *_ in options._INI
    }


def test_hooks() -> None:
    known = {name for name in vars(hookspecs) if name.startswith("pytest_cutrace_")}
    assert set(re.findall(r"^\| `(pytest_cutrace_\w+)\(", DOCS, re.MULTILINE)) == known
