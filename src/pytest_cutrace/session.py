"""The session: which tests are expected to do what, and pytest's hooks around each of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.names import normalize_kernel
from cutrace.errors import CutraceError
from cutrace.golden import golden_path, read
from cutrace.outputs import unwritable
from cutrace.reports.model import Case, State

from . import options
from .attempt import Attempt, Expectation
from .capture import Captures
from .extras import extras
from .fixtures import Tracer, Untraced
from .markers import wishes
from .recording import Recording, refusal
from .report import Reporter
from .results import conclude

_EXPECTED = pytest.StashKey[Expectation]()
#: The variable with the process id of a session that hands its tests to workers.
_CONTROLLER = "CUTRACE_PYTEST_CONTROLLER"
_ATTEMPT = pytest.StashKey[Attempt]()


class Session:
    """The part of the plugin that exists with ``--cutrace`` only. A controller of pytest-xdist records nothing."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.settings = settings = options.read(config)
        self.update_command = "pytest --cutrace --cutrace-update"
        self.recording: Recording | None = None
        self._wrong: dict[pytest.Item, str] = {}
        try:
            _prepare(settings.directory)
            self.refusal = refusal()
            if _only_controls(config):
                # Its children know by this that they are workers, before pytest-xdist has told them.
                os.environ[_CONTROLLER] = str(os.getpid())
            else:
                self._record()
        except CutraceError as error:
            raise pytest.UsageError(f"cutrace: {error}") from None
        if settings.require and self.refusal:
            self.close()
            raise pytest.UsageError(f"--cutrace=require: nothing can be traced: {self.refusal}")

    def configured(self) -> None:
        """The session is about to begin: now it is known for certain whether this is a worker."""
        if self.recording is None and self.worker:
            os.environ.pop(_CONTROLLER, None)
            self._record()

    def _record(self) -> None:
        if not _known(self.config).collectonly:
            self.recording = Recording(self.settings.directory, self.refusal)
            self.refusal = self.recording.refusal
            self.captures = Captures(self.recording, self._normalize)

    def reporter(self) -> Reporter:
        """What tells the user about this session, for the process that has the terminal."""
        notes = self.recording.notes if self.recording is not None else ()
        words = [f"nothing can be traced: {self.refusal}"] if self.refusal else [self._mode(), *notes]
        return Reporter(self.config, self.settings, "; ".join(words), lambda: self.refusal)

    def _mode(self) -> str:
        golden = self.shown(self.settings.golden_root)
        updated = f" are updated ({self.settings.update})" if self.settings.update is not None else ""
        return f"golden files in {golden}{updated}, traces in {self.shown(self.settings.directory)}"

    def close(self) -> None:
        """End the recording and leave the environment as it was."""
        if os.environ.get(_CONTROLLER) == str(os.getpid()):
            del os.environ[_CONTROLLER]
        if self.recording is not None:
            self.recording.close()

    # Facts

    @property
    def worker(self) -> str:
        """The name of this worker of pytest-xdist, "" in a session without."""
        return str(getattr(self.config, "workerinput", {}).get("workerid", ""))

    def nodeid(self, item: pytest.Item) -> str:
        """The id of a test, without the group that pytest-xdist adds to it."""
        nodeid = item.nodeid
        if getattr(self.config.option, "loadgroup", False) and self.worker and "@" in nodeid.rpartition("]")[2]:
            nodeid = nodeid.rpartition("@")[0]
        return nodeid

    def folder(self, item: pytest.Item) -> Path:
        """Where the artifacts of a test are."""
        path = golden_path(self.settings.directory / "tests", self.nodeid(item)).with_suffix("")
        return path

    def shown(self, path: Path) -> str:
        """A path as people like to read it."""
        return os.path.relpath(path, self.config.invocation_params.dir)

    def keeps(self, *, failed: bool) -> bool:
        return self.settings.keep == "all" or (self.settings.keep == "failed" and failed)

    def updates(self, attempt: Attempt) -> bool:
        """Whether the golden file of a test is to be written."""
        return self.settings.update is not None and self.wants_golden(attempt)

    def wants_golden(self, attempt: Attempt) -> bool:
        """Whether a test should have a golden file: it has one, or the marker, or the session wants them of all tests
        that do GPU work, as updates do."""
        expected = attempt.expected
        if expected.golden is not None or expected.wishes.marked:
            return True
        wide = self.settings.scope == "all" or (self.settings.scope == "existing" and self.settings.update is not None)
        return wide and any(run.metrics.gpu_records for run in attempt.judged)

    def tracer(self, item: pytest.Item) -> Tracer:
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is not None:
            return attempt
        return Untraced(self.refusal or "this test is not traced")

    def _normalize(self, name: str) -> str:
        given = self.config.hook.pytest_cutrace_normalize_kernel(name=name)
        return normalize_kernel(name) if given is None else str(given)

    # Collection

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        problems = {item: problem for item in items if (problem := self._expect(item))}
        if problems and not self.worker:
            raise pytest.UsageError("\n".join(dict.fromkeys(problems.values())))
        # A worker of pytest-xdist has no way to end the session with a message: the tests fail instead.
        self._wrong = problems

    def _expect(self, item: pytest.Item) -> str:
        """Find out what is expected of a test; returns what is wrong with its markers or its golden file."""
        try:
            item.stash[_EXPECTED] = self._expectation(item)
        except (CutraceError, pytest.UsageError) as error:
            return str(error)
        return ""

    def _expectation(self, item: pytest.Item) -> Expectation:
        found = wishes(item, self.settings.rules, self.settings.repeat)
        root = self.settings.golden_root
        nodeid = self.nodeid(item)
        given = item.ihook.pytest_cutrace_golden_path(item=item, root=root)
        path = golden_path(root, nodeid) if given is None else Path(given)
        looked_for = not found.off and (found.marked or self.settings.scope != "marked")
        golden = read(path, test=nodeid) if looked_for and path.is_file() else None
        return Expectation(found, path, golden)

    # Running

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        if item in self._wrong:
            pytest.fail(self._wrong[item], pytrace=False)
        attempt = self._attempt(item)
        if attempt is not None and self.settings.whole_item:
            with contextlib.suppress(CutraceError):  # it is tried again when the body begins
                attempt.begin()
        yield

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is None or not attempt.session.captures.recording.here:
            return (yield)
        if attempt.current is None:
            try:
                attempt.begin()
            except CutraceError as error:
                attempt.untraced(str(error))
                return (yield)
        try:
            result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as error:
            if attempt.session.captures.recording.here:
                try:
                    attempt.broken(attempt.end(), error)
                except CutraceError as trouble:  # it must not hide why the test failed
                    attempt.notes.append(str(trouble))
            raise
        if attempt.session.captures.recording.here:
            try:
                attempt.passed(attempt.end())
            except CutraceError as error:
                attempt.untraced(str(error))
                if attempt.expected.any:
                    pytest.fail(f"cutrace: {error}", pytrace=False)
        return result

    def _attempt(self, item: pytest.Item) -> Attempt | None:
        """A new attempt at a test; None where it is not to be traced."""
        expected = item.stash.get(_EXPECTED, None)
        if expected is None:
            expected = item.stash[_EXPECTED] = self._expectation(item)
        if self.recording is None or self.recording.refusal:
            return None
        if expected.wishes.off:
            self.recording.pause()
            return None
        attempt = item.stash[_ATTEMPT] = Attempt(self, item, expected)
        return attempt

    # Results

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None, pytest.TestReport, pytest.TestReport]:  # type: ignore[type-arg]
        report: Any = yield
        attempt = item.stash.get(_ATTEMPT, None)
        if attempt is not None and report.when != "teardown":
            attempt.failed |= report.failed
            attempt.outcome = _outcome(report)
            attempt.duration_s = report.duration
        if report.when == "teardown":
            case = self._case(item, attempt, report)
            if attempt is not None:
                del item.stash[_ATTEMPT]
            item.ihook.pytest_cutrace_result(item=item, case=case)
            report.cutrace = case.to_json()
            if self.config.pluginmanager.hasplugin("html"):
                report.extras = [*getattr(report, "extras", ()), *extras(case)]
        return report  # type: ignore[no-any-return]

    def _case(self, item: pytest.Item, attempt: Attempt | None, report: pytest.TestReport) -> Case:
        if attempt is not None:
            return conclude(self, attempt, passed=report.passed)
        expected = item.stash.get(_EXPECTED, None)
        if expected is None:
            return Case(self.nodeid(item), state=State.UNVERIFIED, reason=self._wrong[item], worker=self.worker)
        if expected.wishes.off:
            return Case(self.nodeid(item), state=State.UNTRACED, reason="the marker says off=True", worker=self.worker)
        state = State.UNVERIFIED if expected.any else State.UNTRACED
        return Case(self.nodeid(item), state=state, reason=self.refusal, worker=self.worker)


def _outcome(report: pytest.TestReport) -> str:
    expected_to_fail = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected_to_fail else "skipped"
    return "xpassed" if report.passed and expected_to_fail else report.outcome


def _known(config: pytest.Config) -> Any:
    return getattr(config, "known_args_namespace", config.option)


def _only_controls(config: pytest.Config) -> bool:
    """Whether this process hands its tests to workers of pytest-xdist."""
    if hasattr(config, "workerinput") or os.environ.get(_CONTROLLER) == str(os.getppid()):
        return False
    known = _known(config)
    distributed = getattr(known, "dist", "no") != "no" and getattr(known, "tx", None)
    return bool(getattr(known, "numprocesses", None) or distributed)


def _prepare(directory: Path) -> None:
    """Make the folder of a session, which version control is to leave alone."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        ignore = directory / ".gitignore"
        if not ignore.exists():
            ignore.write_text("# Made by pytest --cutrace.\n*\n")
    except OSError as error:
        raise unwritable(directory, error) from None
