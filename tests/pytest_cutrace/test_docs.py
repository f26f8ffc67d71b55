"""The plugin has few options."""

from __future__ import annotations

import pytest

from pytest_cutrace import options


def test_options_and_ini_values() -> None:
    """The options are few, so that a user can know all of them."""
    parser = pytest.Parser(_ispytest=True)
    options.add(parser)
    flags = {name.partition("=")[0] for option in parser.getgroup("cutrace").options for name in option.names()}
    assert len(flags) <= 8
    values = {name for name, *_ in options._INI}
    assert len(values) <= 10
