"""docs/internals/gate.md names every option, ini value, marker, fixture and hook, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cutrace import hookspecs, options

DOCS = (Path(__file__).parents[2] / "docs" / "internals" / "gate.md").read_text()


def test_options_and_ini_values() -> None:
    """They are few, so that a user can know them."""
    parser = pytest.Parser(_ispytest=True)
    options.add(parser)
    flags = {name.partition("=")[0] for option in parser.getgroup("cutrace").options for name in option.names()}
    told = set(re.findall(r"^\| `(--cutrace[a-z-]*)", DOCS, re.MULTILINE))
    assert told == flags
    assert len(flags) <= 8
    values = {name for name, *_ in options._INI}
    assert set(re.findall(r"^\| `(cutrace\w*|verbosity_cutrace)` \|", DOCS, re.MULTILINE)) == values
    assert len(values) <= 10


def test_hooks() -> None:
    known = {name for name in vars(hookspecs) if name.startswith("pytest_cutrace_")}
    assert set(re.findall(r"^\| `(pytest_cutrace_\w+)\(", DOCS, re.MULTILINE)) == known
