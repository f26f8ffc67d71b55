"""The entry point of cutrace's pytest plugin. pytest loads it in every run.

It imports only pytest; everything else is imported with ``--cutrace``. See docs/internals/gate.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import hookspecs, options
from .fixtures import Tracer

if TYPE_CHECKING:
    from .session import Session

#: The oldest supported release of pytest.
_OLDEST = (8, 0)
_SESSION: pytest.StashKey[Session] = pytest.StashKey()


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    config: Any = pluginmanager.get_plugin("pytestconfig")
    options.add(parser, options.arguments(config))
    if config is not None:
        config.stash[options.PARSER] = parser


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Arm before the first conftest is imported, because the conftest may initialise CUDA."""
    if options.wanted(early_config):
        _start(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for line in options.MARKERS:
        config.addinivalue_line("markers", line)
    if options.wanted(config):
        _start(config).configured()
    elif "CUTRACE_OPTIONS" in os.environ:
        from .flight import recorder

        flight = recorder()
        if flight is not None:
            config.pluginmanager.register(flight, "cutrace-flight")


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()
        del config.stash[_SESSION]
        if session.ended_early and sys.exc_info()[0] is None:
            raise pytest.UsageError(
                "--cutrace=require: nothing was gated: pytest ended before it collected tests"
            )


def _start(config: pytest.Config) -> Session:
    if pytest.version_tuple < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise pytest.UsageError(
            f"--cutrace needs pytest {oldest} or later, this is {pytest.__version__}: upgrade pytest"
        )
    if _SESSION not in config.stash:
        from .session import Session

        config.stash[_SESSION] = Session(config)
    return config.stash[_SESSION]


@pytest.fixture
def gpu_trace(request: pytest.FixtureRequest) -> Tracer:
    """The trace of a test: ``region(name)``, ``value(name, value)``, ``metrics`` of the last region.

    Without ``--cutrace`` regions and values do nothing, and ``metrics`` skips the test.
    """
    session = request.config.stash.get(_SESSION, None)
    if session is None:
        return Tracer()
    return session.tracer(request.node)


@pytest.fixture
def cutrace_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of this test's trace and metrics; its ``tmp_path`` without ``--cutrace``."""
    session = request.config.stash.get(_SESSION, None)
    if session is None:
        tmp_path: Any = request.getfixturevalue("tmp_path")
        return Path(tmp_path)
    folder = session.context.folder(request.node)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
