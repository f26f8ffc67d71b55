"""The output of a session: header, footer, reports, and the exit status of ``require``.

It runs in the process with the terminal: with pytest-xdist in the controller, not in a worker. Cases of other processes
arrive as strings on the teardown reports, with the changes of golden files.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Change, joined, propose, split, write_changes
from cutrace.golden.changes import is_written
from cutrace.golden.journal import Journal, taken_up
from cutrace.outputs import unwritable
from cutrace.reports import jsonfile
from cutrace.reports.causes import NAMED, Cause, by_cause, cause_lines
from cutrace.reports.model import Case, SessionReport, State
from cutrace.reports.text import (
    TERMINAL_WRITER,
    Line,
    footer_lines,
    remarks,
    short_footer_lines,
)
from cutrace.units import count_of

from .accounts import (
    CollectedTests,
    SessionAccount,
    account,
    folder_missing,
    shortcomings,
)
from .context import argument, quoted
from .options import Settings

#: The variables of CI systems with the commit and the name of the job.
COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILDKITE_COMMIT", "GIT_COMMIT")
#: The exit statuses of sessions that have an account.
_ENDED_WELL = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)
#: The first pytest release that reads arguments from a file.
_ARGUMENT_FILES = (8, 2)
JOBS = ("GITHUB_JOB", "CI_JOB_NAME", "BUILDKITE_LABEL", "JOB_NAME")


class Reporter:
    """Collects the cases of a session and reports them. ``refusal`` is the reason why tracing is not possible."""

    def __init__(
        self, config: pytest.Config, settings: Settings, header: str, refusal: str
    ) -> None:
        self._config = config
        self._settings = settings
        self._header = header
        self._refusal = refusal
        self._cases: dict[str, Case] = {}
        self._collected: list[str] = []
        #: The facts about collected tests, see :meth:`add_collected`.
        self._renamed: dict[str, str] = {}
        self._deselected: dict[str, bool] = {}
        self._places: dict[str, list[str]] = {}
        self._account = SessionAccount({})
        #: Whether golden files or ``require`` fail the session.
        self._red = False
        #: Whether the session has its account.
        self.finished = False
        self._began = time.time()
        self._written: list[str] = []
        self._proposed = ""
        self._notes: list[str] = []
        #: The number of files of arguments.
        self._selections = 0
        self._journal: Journal | None = None
        #: The changes of an update that was interrupted.
        self._earlier: tuple[Change, ...] = ()
        self._take_up(settings.directory / "journal")

    def _take_up(self, path: Path) -> None:
        """Continue the journal of an interrupted update. Without an update, say that an update can continue it."""
        update = self._settings.update is not None
        if not update and not path.exists():
            return
        commit = _commit(self._config.rootpath)
        earlier = taken_up(path, commit)
        number = count_of(len(earlier.changes), "test")
        if not update:
            if earlier.changes:
                self._notes.append(
                    f"an update was interrupted after {number}: pytest --cutrace-update takes them up"
                )
            return
        self._journal = Journal(path, commit)
        self._earlier = earlier.changes
        if earlier.changes:
            self._notes.append(f"{number} of an interrupted update taken up")
        if earlier.outdated:
            outdated = count_of(earlier.outdated, "test")
            self._notes.append(
                f"{outdated} of an interrupted update left out: the golden values have changed since"
            )
        if earlier.other_commit:
            self._notes.append(
                f"an interrupted update of commit {earlier.other_commit[:12]} left out: this is another commit"
            )

    # Gathering

    def add(self, case: Case, *, in_journal: bool = False) -> None:
        """Add a finished test. A test that runs again replaces its earlier case."""
        self._cases.pop(case.nodeid, None)
        self._cases[case.nodeid] = case
        if self._journal is None or case.change is None or in_journal:
            return
        try:
            self._journal.add(case.change)
        except CutraceError as error:
            self._without_journal(error)

    def _without_journal(self, error: CutraceError) -> None:
        self._notes += str(error).splitlines()
        self._journal = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker the journal. Without a journal, reports that have not arrived in this process are lost when it
        is killed."""
        if self._journal is None:
            return
        try:
            self._journal.begin()
        except CutraceError as error:
            self._without_journal(error)
            return
        node.workerinput["cutrace_journal"] = str(self._journal.path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data: Any = getattr(report, "cutrace", None)
        if report.when == "teardown" and data is not None:
            import pickle

            case = pickle.loads(base64.b64decode(data))
            in_journal: Any = getattr(report, "cutrace_in_journal", False)
            self.add(case, in_journal=in_journal)
        lines: Any = getattr(report, "cutrace_lines", None)
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if lines and terminal is not None and terminal._tw.hasmarkup:
            report.longrepr = _Styled(
                report.longrepr, [(text, style) for text, style in lines]
            )  # type: ignore[assignment]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected = [item.nodeid for item in session.items]

    def add_collected(
        self,
        golden_ids: Mapping[str, str],
        deselected: Mapping[str, bool],
        places: Mapping[str, list[str]],
    ) -> None:
        """Add the facts that a process has collected: the ids in golden files that differ from pytest's, and the facts
        of :class:`CollectedTests`."""
        self._renamed.update(golden_ids)
        self._deselected.update(deselected)
        self._places.update(places)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._collected = list(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", None) or {}
        collected = output.get("cutrace_collected")
        if collected is not None:
            self.add_collected(**collected)

    # Reporting

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Iterator[None]:
        self._red = self._finish(exitstatus)
        yield
        # A hook may have replaced the status, for example of a session without tests.
        if self._red and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _finish(self, exitstatus: int) -> bool:
        """Write golden files and reports. Returns whether the session fails because of golden files or ``require``."""
        self.finished = True
        written = self._write_golden_files()
        facts = list(self._facts(exitstatus))
        red = not written
        if self._settings.require:
            red |= bool(facts)
            facts = [f"--cutrace=require: {fact}" for fact in facts]
        self._notes += facts
        if self._settings.junit and not getattr(self._config.option, "xmlpath", None):
            self._notes.append(
                "--cutrace-report=junit wrote nothing: name a file with --junitxml"
            )
        if self._settings.reports:
            report = replace(
                self._report(),
                commit=_commit(self._config.rootpath),
                job=_first_set(JOBS),
            )
            for kind, destination in self._settings.reports:
                self._write(report, kind, destination)
        return red

    def _write_golden_files(self) -> bool:
        """Write golden files in an update, else candidates. Returns False if golden files could not be updated."""
        changes = self._changes()
        if self._settings.update is None:
            self._propose(changes)
            return True
        earlier = [one for one in self._earlier if one.nodeid not in self._cases]
        changes += earlier
        try:
            write_changes(changes)
            if self._journal is not None:
                self._journal.remove()
        except CutraceError as error:
            self._notes += str(error).splitlines()
            why = "its golden values could not be written"
            for name, case in self._cases.items():
                written = case.change is not None and is_written(case.change)
                if case.state is State.UPDATED and not written:
                    self._cases[name] = replace(
                        case, state=State.UNVERIFIED, reason=why, change=None
                    )
            return False
        return True

    def _changes(self) -> list[Change]:
        """The changes of golden values. The first repetition of a test stands for all repetitions."""
        first: dict[str, str] = {}
        changes: dict[str, Change] = {}
        for nodeid, case in self._cases.items():
            change = case.change
            if change is None:
                continue
            if nodeid <= first.setdefault(change.nodeid, nodeid):
                first[change.nodeid] = nodeid
                changes[change.nodeid] = change
        return list(changes.values())

    def _by_golden_id(self) -> tuple[Case, ...]:
        """The cases by their ids in golden files. If a repetition of a test was not compared, it stands for all
        repetitions."""
        cases: dict[str, Case] = {}
        for nodeid, case in self._cases.items():
            golden_id = self._renamed.get(nodeid, nodeid)
            compared = case.state in (State.GATED, State.UPDATED)
            if golden_id not in cases or not compared:
                if golden_id != nodeid:
                    case = replace(case, nodeid=golden_id)
                cases[golden_id] = case
        return tuple(cases.values())

    def _propose(self, changes: Sequence[Change]) -> None:
        """Write candidates."""
        folder = self._settings.directory / "proposed"
        if not changes:
            return
        try:
            propose(changes, folder, self._settings.golden_root)
            self._proposed = _relative(folder, self._config)
        except CutraceError as error:
            self._notes += str(error).splitlines()

    def _facts(self, exitstatus: int) -> Iterator[str]:
        """Problems of the session that are not problems of one test."""
        passed_all = exitstatus == pytest.ExitCode.OK
        cases = tuple(self._cases.values())
        settings = self._settings
        if settings.require:
            yield from shortcomings(cases, settings, passed_all=passed_all)
        if folder_missing(cases, settings):
            folder = _relative(settings.golden_root, self._config)
            yield f"there is no folder of golden files at {folder}"
        if exitstatus not in _ENDED_WELL:
            return
        tests = frozenset(self._golden_ids(self._collected))
        collected = CollectedTests(tests, self._deselected, self._places)
        self._account = account(self._by_golden_id(), settings, self._config, collected)
        gone = self._account.gone()
        if gone:
            yield gone
        if settings.require:
            yield from self._account.silent()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        verbosity = self._config.get_verbosity("cutrace")
        # A session must not fail without a message.
        if verbosity < -1 and not self._red:
            return
        report = self._report()
        writer = terminalreporter._tw
        width = writer.fullwidth
        if verbosity < 0:
            lines = short_footer_lines(report, width=width)
        else:
            lines = footer_lines(
                report,
                written=self._written,
                proposed=self._proposed,
                width=width,
            )
        lines += cause_lines(
            self._causes(), self._argument, self._selection, named=verbosity >= 0
        )
        if verbosity > 0:
            for case in report.cases:
                for remark in _remarks(case):
                    lines.append((f"  {case.nodeid}: {remark}", ""))
        terminalreporter.ensure_newline()
        terminalreporter.section("cutrace", sep="-")
        for text, style in lines:
            writer.line(text, **TERMINAL_WRITER[style])

    def _causes(self) -> list[Cause]:
        """The causes of the tests that failed."""
        failed = [case for case in self._cases.values() if case.outcome == "failed"]
        return by_cause(failed)

    def _argument(self, nodeid: str) -> str:
        return argument(nodeid, self._config)

    def _selection(self, ids: Sequence[str]) -> str:
        """The arguments with which pytest runs exactly these tests, quoted. Many arguments are written to a file."""
        arguments = self._shortened(ids)
        if len(arguments) > NAMED and pytest.version_tuple >= _ARGUMENT_FILES:
            self._selections += 1
            folder = self._settings.directory / "failed"
            path = folder / f"{self._selections}.txt"
            try:
                folder.mkdir(exist_ok=True)
                path.write_bytes(os.fsencode("\n".join(arguments) + "\n"))
                arguments = [f"@{_relative(path, self._config)}"]
            except OSError as error:
                self._notes.append(str(unwritable(path, error)))
        return quoted(arguments, self._config)

    def _golden_ids(self, ids: Sequence[str]) -> list[str]:
        """The ids of these tests in golden files."""
        return [self._renamed.get(nodeid, nodeid) for nodeid in ids]

    def _shortened(self, ids: Sequence[str]) -> list[str]:
        """These ids as arguments of pytest. A function replaces its ids with parameters if all of them are among the
        ids."""
        selected = self._golden_ids(ids)
        others = {*self._golden_ids(self._collected), *self._deselected}
        divided = {_function(nodeid) for nodeid in others.difference(selected)}
        # Other parameters of a function are unknown if the command line names one.
        known = not any("[" in word for word in self._config.args)
        arguments: dict[str, None] = {}
        for nodeid in selected:
            function = _function(nodeid)
            if known and function not in divided:
                nodeid = function
            arguments[self._argument(nodeid)] = None
        return list(arguments)

    def _report(self) -> SessionReport:
        cases = tuple(self._cases.values())
        notes = [*self._on_tracing(cases), *self._notes]
        return SessionReport(
            cases,
            header=self._header,
            started=datetime.fromtimestamp(self._began)
            .astimezone()
            .isoformat(timespec="seconds"),
            duration_s=round(time.time() - self._began, 3),
            versions={"cutrace": version("cutrace"), "pytest": pytest.__version__},
            notes=tuple(notes),
            account=self._account.line(),
        )

    def _on_tracing(self, cases: Sequence[Case]) -> Iterator[str]:
        """Yield the reason if nothing was traced, unless the states of tests give it."""
        if self._refusal:
            given = [case.reason for case in cases]
            if self._refusal not in given:
                yield f"nothing was traced: {self._refusal}"
            updating = self._settings.update is not None
            if updating and not self._earlier:
                yield "no golden file was written"
            return
        ran = [case for case in cases if case.outcome != "skipped"]
        if not ran:
            if cases:
                yield "nothing was traced: all tests were skipped"
        elif not any(case.values for case in ran):
            yield "no GPU work of tests was seen: start processes of tests with this process's environment"

    def _write(self, report: SessionReport, kind: str, destination: Path) -> None:
        # Paths of artifacts are relative to the session's folder; make them relative to the report's.
        away = Path(os.path.relpath(self._settings.directory, destination.parent))
        cases = []
        for case in report.cases:
            artifacts = {
                name: str(away / path) for name, path in case.artifacts.items()
            }
            cases.append(replace(case, artifacts=artifacts))
        moved = replace(report, cases=tuple(cases))
        try:
            text = jsonfile.rendered(moved, kind, destination.parent)
            jsonfile.write(destination, text)
        except CutraceError as error:
            self._notes.append(str(error))
        else:
            self._written.append(_relative(destination, self._config))


def _remarks(case: Case) -> Iterator[str]:
    """The sentences on a test that ``-v`` shows."""
    yield from case.notes
    yield from case.problems
    yield from remarks(case)


def _first_set(names: Sequence[str]) -> str:
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    return ""


def _commit(root: Path) -> str:
    """The tested commit, from the CI system or git; "" if it is unknown."""
    named = _first_set(COMMITS)
    if named:
        return named
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _relative(path: Path, config: pytest.Config) -> str:
    return os.path.relpath(path, config.invocation_params.dir)


class _Styled:
    """The failure of a comparison with styles for the terminal. It replaces pytest's representation of the same
    string."""

    def __init__(self, plain: Any, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.reprcrash = getattr(plain, "reprcrash", None)

    def toterminal(self, writer: Any) -> None:
        for text, style in self._lines:
            writer.line(text, **TERMINAL_WRITER[style])

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self._lines)


def _function(nodeid: str) -> str:
    """The id of the function of a test."""
    file, test = split(nodeid)
    function, _, _ = test.partition("[")
    return joined(file, function)
