"""The test suite of a user, which pytest runs in a separate process on the fake GPU."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cutrace.reports.jsonfile import read_report
from cutrace.reports.model import Case, SessionReport

from .fakedriver import FakeDriver
from .pytest_server import PytestServer

_MODULES = {
    "asyncio": "pytest_asyncio",
    "benchmark": "pytest_benchmark",
    "flakefinder": "pytest_flakefinder",
    "html": "pytest_html",
    "metadata": "pytest_metadata",
    "randomly": "pytest_randomly",
    "repeat": "pytest_repeat",
    "rerunfailures": "pytest_rerunfailures",
    "run-parallel": "pytest_run_parallel.plugin",
    "timeout": "pytest_timeout",
    "xdist": "xdist",
}
#: The start of every inner test file.
PRELUDE = "import os, subprocess, sys, time\nimport fakegpu\nimport pytest\n\n"
#: A conftest that runs each test in a fork, as pytest-forked does, if ``FORKED`` is set.
FORKING = """
    import json
    from _pytest.runner import runtestprotocol

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(item, nextitem):
        if "FORKED" not in os.environ:
            return None
        hook = item.config.hook
        there, here = os.pipe()
        if not os.fork():
            reports = runtestprotocol(item, log=False)
            made = [hook.pytest_report_to_serializable(config=item.config, report=report) for report in reports]
            with open(here, "w") as pipe:
                json.dump(made, pipe)
            os._exit(0)
        os.close(here)
        with open(there) as pipe:
            for data in json.load(pipe):
                report = hook.pytest_report_from_serializable(config=item.config, data=data)
                hook.pytest_runtest_logreport(report=report)
        os.wait()
        return True
"""


@dataclass(frozen=True)
class Outcome:
    """The result of running the suite once: exit status, terminal output, and report."""

    status: int
    output: str
    report: SessionReport | None

    def case(self, name: str) -> Case:
        """The case of the test with this name, such as ``test_a`` or ``TestB.test_c[1]``."""
        assert self.report is not None, self.output
        (found,) = [case for case in self.report.cases if case.name == name]
        return found

    @property
    def cases(self) -> dict[str, Case]:
        assert self.report is not None, self.output
        return {case.name: case for case in self.report.cases}

    @property
    def words(self) -> str:
        """The output without the spaces that align it."""
        return " ".join(self.output.split())

    @property
    def failed(self) -> set[str]:
        return {name for name, case in self.cases.items() if case.outcome == "failed"}


class Suite:
    """The suite in ``folder``. With ``gpu`` it runs on the fake GPU, else on a machine without a driver."""

    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        self.folder = folder
        self.driver = driver

    def write(self, name: str, text: str, *, prelude: bool = True) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((PRELUDE if prelude and name.endswith(".py") else "") + textwrap.dedent(text))
        return path

    def run(
        self,
        *options: str,
        gpu: bool = True,
        cache: bool = False,
        plugins: tuple[str, ...] = (),
        report_name: str = "report.json",
        while_running: Callable[[int], None] = lambda pid: None,
        **variables: str,
    ) -> Outcome:
        """Run pytest. Only cutrace's plugin and ``plugins`` are loaded, which saves time. If a plugin is
        not installed, the test is skipped. With ``cache`` pytest remembers failed tests. ``while_running`` is called
        with the process id."""
        for plugin in plugins:
            pytest.importorskip(_MODULES[plugin])
        report = self.folder / report_name
        report.unlink(missing_ok=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))
        }
        environment.pop("CI", None)
        # Under tox, all suites would share the cache of the tox environment.
        environment.pop("TOX_ENV_DIR", None)
        if gpu:
            environment = self.driver.environment(environment)
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        loaded = [word for plugin in ("cutrace", *plugins) for word in ("-p", plugin)]
        arguments = ["-W", "ignore", *loaded, *options]
        if not cache:
            arguments += ["-p", "no:cacheprovider"]
        if any(option.startswith("--cutrace") for option in options):
            arguments.append(f"--cutrace-report=json:{report}")
        status, output = PytestServer(environment).run(arguments, self.folder, environment, while_running)
        return Outcome(status, output, read_report(report) if report.is_file() else None)

    def golden(self, folder: str = "golden") -> dict[str, str]:
        """The golden files, or the candidates, by path."""
        root = self.folder / folder
        return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.toml"))}
