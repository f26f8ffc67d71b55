"""The session: the expectations of its tests, and pytest's hooks around each test."""

from __future__ import annotations

import base64
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from os import getpid  # Tests patch os.getpid.
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.definitions import METRICS
from cutrace.errors import CutraceError
from cutrace.golden import golden_files, split
from cutrace.golden.decide import SWITCHED_OFF, Expectation, State, names_code
from cutrace.golden.files import may_have_code
from cutrace.golden.journal import append
from cutrace.golden.model import CODE
from cutrace.outputs import unwritable
from cutrace.reports.model import Case

from . import options
from .accounts import place_of
from .attempt import Attempt
from .bodies import Body, unreported
from .capture import Captures
from .context import SessionContext
from .expectations import GoldenFiles, expectation, golden_file, markers_of
from .fixtures import Tracer
from .neighbours import TimeLimits, runs_in_threads
from .options import deselected_by_addopts, known
from .recording import SessionRecording, refusal
from .report import Reporter

_EXPECTED = pytest.StashKey[Expectation]()
#: The markers of a test when its expectation was made.
_MARKERS = pytest.StashKey[tuple[pytest.Mark, ...]]()
#: The .gitignore of a session's folder.
_IGNORE = "# Made by pytest --cutrace.\n*\n"
_ATTEMPT = pytest.StashKey[Attempt]()
#: The tracer of a test that is not traced.
_TRACER = pytest.StashKey[Tracer]()
_OUTCOME = pytest.StashKey[str]()
#: The reason why a test is not traced although the session is.
_OBSTACLE = pytest.StashKey[str]()


class Session:
    """The part of the plugin that is loaded with ``--cutrace``. A controller of pytest-xdist ends its recording when it
    is configured."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = settings = options.read(config)
        self.context = SessionContext(config, settings)
        self.recording: SessionRecording | None = None
        self._golden_files: GoldenFiles = {}
        #: The golden files that the tests of each module use.
        self._used: dict[str, set[Path]] = {}
        #: For each deselected test, whether addopts deselects it and the command line does not.
        self._deselected: dict[str, bool] = {}
        self._wrong: dict[pytest.Item, str] = {}
        self._reporter: Reporter | None = None
        self._pid = getpid()
        try:
            if not self._collects_only:
                _prepare(settings.directory)
            self.refusal = refusal()
            if not self._collects_only:
                self._record()
        except CutraceError as error:
            self.close()
            raise pytest.UsageError(f"cutrace: {error}") from None
        if settings.require and self.refusal and not self._collects_only:
            self.close()
            raise pytest.UsageError(
                f"--cutrace=require: nothing can be traced: {self.refusal}"
            )

    def configured(self) -> None:
        """Start the session. From here on it is known whether this process runs tests or is a controller of
        pytest-xdist."""
        if _controls(self.config):
            self._end_recording()
        plugins = self.config.pluginmanager
        plugins.register(self, "cutrace-session")
        plugins.register(TimeLimits(), "cutrace-time-limits")
        if self.context.seeds is not None:
            # Register the seeds after the session, so that seeding is outside of windows.
            plugins.register(self.context.seeds, "cutrace-seeds")
        if not self.context.worker and not self._collects_only:
            self._reporter = Reporter(
                self.config, self.settings, self._header(), self.refusal
            )
            plugins.register(self._reporter, "cutrace-reporter")
            directory = self.settings.directory
            if _made(directory):
                # Candidates belong to one session only.
                shutil.rmtree(directory / "proposed", ignore_errors=True)

    def _record(self) -> None:
        settings = self.settings
        code = _records_code(settings)
        self.recording = SessionRecording(settings.directory, self.refusal, code=code)
        self.refusal = self.recording.refusal
        self.captures = Captures(self.recording)

    @property
    def _collects_only(self) -> bool:
        return bool(known(self.config).collectonly)

    def pytest_report_header(self) -> str:
        return f"cutrace: {self._header()}"

    def _header(self) -> str:
        """The line about this session in pytest's header."""
        if self.refusal:
            return f"nothing can be traced: {self.refusal}"
        golden = f"golden files in {self.context.relative(self.settings.golden_root)}"
        update = self.settings.update
        if update is not None:
            replaced = ", ".join([update.mode, *sorted(update.only)])
            golden += f" are updated ({replaced})"
        traces = f"traces in {self.context.relative(self.settings.directory)}"
        parts = [f"{golden}, {traces}"]
        if self.recording is not None:
            parts += self.recording.notes
        return "; ".join(parts)

    @property
    def ended_early(self) -> bool:
        """Whether the session should have gated tests and ended before its account."""
        reporter = self._reporter
        return self.settings.require and reporter is not None and not reporter.finished

    def close(self) -> None:
        """End the recording and restore the environment."""
        if self.context.seeds is not None:
            self.context.seeds.close()
        self._end_recording()

    def _end_recording(self) -> None:
        if self.recording is not None:
            if self.recording.here:
                self.captures.end_counters()
            self.recording.close()
            self.recording = None

    # Facts

    def tracer(self, item: pytest.Item) -> Tracer:
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is not None:
            return attempt
        obstacle = item.stash.get(_OBSTACLE, "")
        reason = self.refusal or obstacle or "this test is not traced"
        return item.stash.setdefault(_TRACER, Tracer(reason))

    # Collection

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        yield
        # Other hooks have added their markers.
        for item in items:
            try:
                self._expect(item)
            except (CutraceError, pytest.UsageError) as error:  # noqa: PERF203
                self._wrong[item] = str(error)
        # A worker of pytest-xdist cannot end the session with a message, so its tests fail instead.
        if self._wrong and not self.context.worker:
            raise pytest.UsageError("\n".join(dict.fromkeys(self._wrong.values())))

    def _expect(self, item: pytest.Item) -> Expectation:
        item.stash[_MARKERS] = markers_of(item)
        golden_id = self.context.golden_id(item)
        expected = expectation(item, golden_id, self.settings, self._golden_files)
        self._use(golden_id, expected.path)
        item.stash[_EXPECTED] = expected
        return expected

    def _use(self, golden_id: str, path: Path) -> None:
        module, _ = split(golden_id)
        paths = self._used.setdefault(module, set())
        paths.add(path)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        by_addopts = deselected_by_addopts(self.config, items)
        for item in items:
            golden_id = self.context.golden_id(item)
            self._deselected[golden_id] = item in by_addopts
            path = golden_file(item, golden_id, self.settings)
            self._use(golden_id, path)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        golden_ids = {}
        for item in session.items:
            golden_id = self.context.golden_id(item)
            for nodeid in (item.nodeid, self.context.nodeid(item)):
                if golden_id != nodeid:
                    golden_ids[nodeid] = golden_id
        root = os.path.realpath(self.settings.golden_root)
        places = {}
        for module, paths in self._used.items():
            places[module] = [place_of(path, root) for path in paths]
        collected: dict[str, Any] = {
            "golden_ids": golden_ids,
            "deselected": self._deselected,
            "places": places,
        }
        if self.context.worker:
            self.config.workeroutput["cutrace_collected"] = collected  # type: ignore[attr-defined]
        elif self._reporter is not None:
            self._reporter.add_collected(**collected)

    # Running

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        if item not in self._wrong:
            self._attempt(item)
        try:
            yield
        finally:
            self._follow_markers(item)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        if item in self._wrong:
            pytest.fail(self._wrong[item], pytrace=False)
        attempt = item.stash.get(_ATTEMPT, None)
        self.context.seed(item)
        if attempt is None or not self._ready(attempt):
            return (yield)

        result = None
        error: BaseException | None = None
        try:
            result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as raised:
            error = raised
        try:
            if self.captures.recording.here:
                self._conclude(attempt, unreported(item) if error is None else error)
            if error is not None:
                raise error
        finally:
            del error  # Its traceback refers to this frame.
        return result

    def _conclude(self, attempt: Attempt, error: BaseException | None) -> None:
        """Measure and compare after the body has run, with an error or without."""
        try:
            run = attempt.end()
            # A subtest may have failed without an error of the body.
            if error is None and not attempt.failed:
                attempt.passed(run)
            else:
                attempt.not_passed(run, error)
        except CutraceError as problem:
            if error is not None:
                # Report the failure of the test instead of this error.
                attempt.notes.append(str(problem))
                return
            attempt.untraced(str(problem))
            if attempt.expected.any:
                pytest.fail(f"cutrace: {problem}", pytrace=False)

    def _ready(self, attempt: Attempt) -> bool:
        """Start the window of a test. Returns False if the test cannot be traced."""
        obstacle = self._obstacle(attempt.item)
        if obstacle:
            attempt.untraced(obstacle)
            return False
        attempt.body = Body(attempt.item)
        try:
            attempt.begin()
        except CutraceError as error:
            attempt.untraced(str(error))
            return False
        return True

    def _attempt(self, item: pytest.Item) -> Attempt | None:
        """A new attempt at a test; None if it is not traced."""
        expected = item.stash.get(_EXPECTED, None) or self._expect(item)
        if self.recording is None or self.recording.refusal:
            return None
        if expected.off:
            self.captures.end_counters()
            self.recording.pause()
            return None
        obstacle = self._obstacle(item)
        if obstacle:
            item.stash[_OBSTACLE] = obstacle
            return None
        if self._expects_work(expected):
            # A fixture may restore sys.modules and remove what was loaded after it was set up.
            self.captures.load()
        attempt = Attempt(self.context, self.captures, item, expected)
        item.stash[_ATTEMPT] = attempt
        return attempt

    def _expects_work(self, expected: Expectation) -> bool:
        """Whether a test probably uses the GPU. Sessions without such tests do not wait for NumPy."""
        updating = self.settings.update is not None
        loaded = sys.modules.get("numpy") is not None
        return expected.any or updating or loaded

    def _follow_markers(self, item: pytest.Item) -> None:
        """Make the expectation of a test again if its fixtures have added markers."""
        if item in self._wrong or markers_of(item) == item.stash[_MARKERS]:
            return
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is not None:
            del item.stash[_ATTEMPT]
        try:
            expected = self._expect(item)
        except (CutraceError, pytest.UsageError) as error:
            self._wrong[item] = str(error)
            del item.stash[_EXPECTED]
            return
        if attempt is not None and not expected.off:
            attempt.expect(expected)
            item.stash[_ATTEMPT] = attempt
        else:
            self._attempt(item)

    def _obstacle(self, item: pytest.Item) -> str:
        """The reason why the GPU work of a test cannot be distinguished from other work, "" if it can."""
        if not self.captures.recording.here:
            return "it ran in a fork of the traced process"
        if runs_in_threads(item):
            return "pytest-run-parallel runs it several times at once"
        return ""

    # Results

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None, pytest.TestReport, pytest.TestReport]:  # type: ignore[type-arg]
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is not None and attempt.styled and _shows_no_traceback(call):
            item.repr_failure = functools.partial(_without_traceback, item)  # type: ignore[method-assign]
        try:
            report: Any = yield
        finally:
            vars(item).pop("repr_failure", None)
        if report.when != "teardown":
            item.stash[_OUTCOME] = _outcome(report)
        if attempt is not None and report.when != "teardown":
            attempt.failed |= report.failed
            attempt.skipped |= report.skipped
            attempt.outcome = _outcome(report)
            attempt.duration_s = report.duration
            if attempt.styled and report.failed:
                report.cutrace_lines = attempt.styled
                if attempt.summed_up:
                    # Leave the failure out of FAILURES. pytest's debugger does the same with failures that it has
                    # shown.
                    report._pdbshown = True
        if report.when == "teardown":
            case = self._case(item, attempt, report)
            if attempt is not None:
                del item.stash[_ATTEMPT]
            item.ihook.pytest_cutrace_result(item=item, case=case)
            self._attach(case, report)
        return report  # type: ignore[no-any-return]

    def _attach(self, case: Case, report: Any) -> None:
        """Attach the case to the last report of a test, for the terminal, JUnit files and HTML pages."""
        if self._reporter is not None and getpid() == self._pid:
            self._reporter.add(case)
        else:
            import pickle

            # Encode the case as a string, because plugins that write or send reports may support only strings.
            report.cutrace = base64.b64encode(pickle.dumps(case)).decode()
            report.cutrace_in_journal = self._in_journal(case)
        if self.settings.junit:
            from cutrace.reports.junit import properties

            report.user_properties = [*report.user_properties, *properties(case)]
        if self.config.pluginmanager.hasplugin("html"):
            from .extras import extras

            report.extras = [*getattr(report, "extras", ()), *extras(case)]

    def _in_journal(self, case: Case) -> bool:
        """Write the change of a case to the journal of the session, if this is a worker of pytest-xdist. Returns False
        if that is impossible, as on another machine."""
        path = getattr(self.config, "workerinput", {}).get("cutrace_journal")
        if path is None or case.change is None:
            return False
        try:
            append(Path(path), case.change)
        except (OSError, CutraceError):  # The controller tries it, too.
            return False
        return True

    def _case(
        self, item: pytest.Item, attempt: Attempt | None, report: pytest.TestReport
    ) -> Case:
        if attempt is not None:
            return attempt.case(passed=report.passed)
        state = State.UNTRACED
        reason = self.refusal or item.stash.get(_OBSTACLE, "")
        outcome = item.stash.get(_OUTCOME, "passed")
        expected = item.stash.get(_EXPECTED, None)
        if expected is None:
            state = State.UNVERIFIED
            reason = self._wrong[item]
        elif expected.off:
            reason = SWITCHED_OFF
        elif not self.refusal and outcome in ("skipped", "xfailed"):
            reason = expected.skip_reason
        elif expected.any or self.tracer(item).limited:
            state = State.UNVERIFIED
        return Case(
            self.context.nodeid(item),
            outcome=outcome,
            state=state,
            reason=reason,
            worker=self.context.worker,
        )


def _records_code(settings: options.Settings) -> bool:
    """Whether the session records machine code, which takes time. It does if the gate or the update names code, or if a
    golden file has code."""
    if settings.rules.gates(METRICS[CODE]) or names_code(settings.update):
        return True
    return any(map(may_have_code, golden_files(settings.golden_root)))


def _shows_no_traceback(call: pytest.CallInfo[None]) -> bool:
    """Whether the body failed with only a message."""
    error = getattr(call.excinfo, "value", None)
    return (
        call.when == "call"
        and isinstance(error, pytest.fail.Exception)
        and not error.pytrace
    )


def _without_traceback(
    item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
) -> Any:
    """The representation of a failure without its traceback, at the line of the test. pytest would filter each entry of
    the traceback. This takes longer than the rest of the report."""
    shown: Any = excinfo.getrepr(style="value", tbfilter=False)
    path, line, _ = item.reportinfo()
    if shown.reprcrash is not None:
        shown.reprcrash.path = str(path)
        shown.reprcrash.lineno = (line or 0) + 1
    return shown


def _outcome(report: pytest.TestReport) -> str:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.skipped:
        if expected_to_fail:
            return "xfailed"
        return "skipped"
    if report.passed and expected_to_fail:
        return "xpassed"
    return report.outcome


def _controls(config: pytest.Config) -> bool:
    """Whether this process distributes its tests to workers, after pytest-xdist has set its options."""
    options: Any = config.option
    balanced = getattr(options, "distload", False)
    distributes = balanced or getattr(options, "dist", "no") != "no"
    has_workers = bool(getattr(options, "tx", None))
    return distributes and has_workers and not hasattr(config, "workerinput")


def _prepare(directory: Path) -> None:
    """Make the folder of a session. If it has no files of others, git ignores it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not any(directory.iterdir()):
            (directory / ".gitignore").write_text(_IGNORE)
    except OSError as error:
        problem = unwritable(directory, error)
        raise CutraceError(f"{problem} --cutrace-dir names it.") from None


def _made(directory: Path) -> bool:
    """Whether a session made this folder."""
    try:
        return (directory / ".gitignore").read_text(errors="replace") == _IGNORE
    except OSError:
        return False
