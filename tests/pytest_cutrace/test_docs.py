"""The options of the plugin are few, and docs/internals/gate.md names every hook."""

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
    assert len(flags) <= 8
    values = {name for name, *_ in options._INI}
    assert len(values) <= 10


def test_hooks() -> None:
    known = {name for name in vars(hookspecs) if name.startswith("pytest_cutrace_")}
    assert set(re.findall(r"^\| `(pytest_cutrace_\w+)\(", DOCS, re.MULTILINE)) == known
