"""What the user sees of a session: the header, the footer, reports, and the exit status that ``require`` asks for.

It lives where the terminal is: in the controller of pytest-xdist, not in its workers. Cases come to it as plain data on
the reports of teardowns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import check
from cutrace.reports import jsonfile
from cutrace.reports.model import Case, Report, State
from cutrace.reports.text import footer, top
from cutrace.units import count_of

from .options import Settings

#: Options with which pytest does not collect the whole suite.
_SELECTING = ("keyword", "markexpr", "lf", "deselect", "ignore", "ignore_glob", "stepwise")


class Reporter:
    """Gathers the cases of a session and reports them. ``refusal`` is why nothing can be traced."""

    def __init__(self, config: pytest.Config, settings: Settings, header: str, refusal: Callable[[], str]) -> None:
        self._config = config
        self._settings = settings
        self._header = header
        self._refusal = refusal
        self._cases: dict[str, Case] = {}
        self._collected: list[str] = []
        self._partly = False
        self._ended_well = False
        self._began = time.time()
        self._written: list[str] = []
        self._notes: list[str] = []

    def pytest_report_header(self) -> str:
        return f"cutrace: {self._header}"

    # Gathering

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data: Any = getattr(report, "cutrace", None)
        if report.when == "teardown" and data is not None:
            case = Case.from_json(data)
            # A test that is run again counts once, as it ended.
            self._cases.pop(case.nodeid, None)
            self._cases[case.nodeid] = case

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._partly |= bool(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = [item.nodeid for item in session.items]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._collected = list(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._partly |= bool(error) or bool(getattr(node, "workeroutput", {}).get("cutrace_partly"))

    # Reporting

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if getattr(self._config.option, "collectonly", False):
            return
        self._ended_well = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        report = self._report()
        for kind, destination in self._settings.reports:
            self._write(report, kind, destination)
        if self._settings.require and exitstatus == pytest.ExitCode.OK and (why := self._emptiness()):
            self._notes.append(f"--cutrace=require: {why}")
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if getattr(self._config.option, "collectonly", False):
            return
        verbosity = self._config.get_verbosity("cutrace")
        if verbosity < -1:
            return
        report = self._report()
        proposed = self._settings.directory / "proposed"
        lines = footer(report, written=self._written, proposed=_shown(proposed, self._config))
        if verbosity < 0:
            lines = lines[:1]
        terminalreporter.ensure_newline()
        terminalreporter.section("cutrace", sep="-")
        for line in (*lines, *top(report, self._settings.top)):
            terminalreporter.write_line(line)
        if verbosity > 0:
            for case in report.cases:
                for note in (*case.notes, *case.problems):
                    terminalreporter.write_line(f"  {case.nodeid}: {note}")

    def _report(self) -> Report:
        notes = list(self._notes)
        cases = tuple(self._cases.values())
        if refusal := self._refusal():
            notes.insert(0, f"nothing was traced: {refusal}")
        elif cases and not any(case.values for case in cases):
            notes.insert(0, "no test did GPU work that was seen: is it done in processes without this environment?")
        notes += self._stale()
        return Report(
            cases,
            header=self._header,
            started=datetime.fromtimestamp(self._began).astimezone().isoformat(timespec="seconds"),
            duration_s=round(time.time() - self._began, 3),
            versions={"cutrace": version("cutrace"), "pytest": pytest.__version__},
            notes=tuple(notes),
        )

    def _emptiness(self) -> str:
        """Why this session must not count as a success."""
        unverified = [c for c in self._cases.values() if c.state is State.UNVERIFIED and c.outcome == "passed"]
        if unverified:
            return f"{count_of(len(unverified), 'test')} could not be verified"
        if self._cases and not any(case.values for case in self._cases.values()):
            return "no GPU work was traced"
        return ""

    def _stale(self) -> list[str]:
        """What is said of golden files without a test: only where the whole suite was collected."""
        config, root = self._config, self._settings.golden_root
        sources = pytest.Config.ArgsSource
        whole = config.args_source is sources.TESTPATHS or (
            config.args_source is sources.INVOCATION_DIR and config.invocation_params.dir == config.rootpath
        )
        selected = any(getattr(config.option, name, None) for name in _SELECTING)
        if not whole or selected or self._partly or not self._ended_well or not self._collected or not root.is_dir():
            return []
        stale = check(root, config.rootpath, self._collected).stale
        if not stale:
            return []
        return [f"{count_of(len(stale), 'golden file')} without a test: see `cutrace golden check`"]

    def _write(self, report: Report, kind: str, destination: Path) -> None:
        # Artifacts are as seen from the session's folder; the report may be elsewhere.
        away = Path(os.path.relpath(self._settings.directory, destination.parent))
        cases = tuple(
            replace(c, artifacts={name: str(away / path) for name, path in c.artifacts.items()}) for c in report.cases
        )
        try:
            jsonfile.write(destination, _RENDERERS[kind](replace(report, cases=cases)))
        except CutraceError as error:
            self._notes.append(str(error))
        else:
            self._written.append(_shown(destination, self._config))


def _json(report: Report) -> str:
    return jsonfile.report_text(report)


def _markdown(report: Report) -> str:
    from cutrace.reports.markdown import markdown

    return markdown(report)


def _html(report: Report) -> str:
    from cutrace.reports.html import html

    return html(report)


_RENDERERS = {"json": _json, "markdown": _markdown, "html": _html}


def _shown(path: Path, config: pytest.Config) -> str:
    return os.path.relpath(path, config.invocation_params.dir)
