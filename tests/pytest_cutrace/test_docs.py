"""docs/pytest.md names every option, ini value, marker, fixture and hook, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_cutrace import hookspecs, options

DOCS = (Path(__file__).parents[2] / "docs" / "pytest.md").read_text()


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


def test_the_first_page_teaches_twelve_words() -> None:
    first, everything, _ = DOCS.partition("Everything below is for when you need it.")
    assert everything
    assert re.findall(r"\*\*(.+?)\*\*", first) == [
        "limit", "metric", "trace", "settled run", "update", "golden values", "marker", "region", "`--cutrace=require`",
        "environment", "unverified", "candidates",
    ]  # fmt: skip
    options_of_first_page = set(re.findall(r"--cutrace[a-z-]*", first))
    assert options_of_first_page == {"--cutrace", "--cutrace-update"}
