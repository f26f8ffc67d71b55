"""One attempt at a test: run and measure its body, carry out the decision, and make its case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cutrace import golden
from cutrace.analysis.definitions import METRICS, Metrics, Value
from cutrace.collect import cuda
from cutrace.errors import CutraceError
from cutrace.golden.compare import problems_of
from cutrace.golden.decide import (
    ALLOWED_SKIP,
    Decision,
    Expectation,
    MeasuredRun,
    Next,
    State,
    after_teardown,
    decide,
    not_passed,
    untraced,
)
from cutrace.golden.model import plain
from cutrace.reports import jsonfile
from cutrace.reports.causes import NAMED, cause_of, repeated_failure
from cutrace.reports.model import AddedWork, Case
from cutrace.reports.text import Line, failure_lines
from cutrace.reports.text import plain as plain_lines

from .bodies import ENDINGS, Body
from .capture import Captures, Run
from .context import SessionContext, argument
from .fixtures import RequestedRegion, Tracer, checked, is_whole, requested_region

#: The maximum of tests in notes on their threads.
_NAMED_TESTS = 3
_FILES = ("run.bin", "trace.pftrace", "metrics.json")
#: The calls with Python stacks in the run that finds lines.
_WITH_STACKS = "sync,alloc,copy,launch"
#: The calls with Python stacks in runs with limits that allow some calls.
_WAITS = "sync"
_OFF = "pytest --cutrace records this process; for a test that records itself: @pytest.mark.cutrace(off=True)"


class Attempt(Tracer):
    """A running test. It is also the fixture ``gpu_trace`` of the test."""

    active = True

    def __init__(
        self,
        context: SessionContext,
        captures: Captures,
        item: pytest.Item,
        expected: Expectation,
    ) -> None:
        self.context = context
        self.captures = captures
        self.item = item
        self.expected = expected
        #: The body, set before its first run.
        self.body: Body | None = None
        #: The run whose window is open.
        self.current: Run | None = None
        self.runs: list[Run] = []
        self.decision = Decision(Next.PASS)
        self.notes: list[str] = []
        self.user: dict[str, Any] = {}
        #: The failure of the comparison, as styled lines.
        self.styled: list[Line] = []
        #: Whether the failure is shown only in the footer, in the block of its cause.
        self.summed_up = False
        #: Whether the report of the call or of a subtest is a failure.
        self.failed = False
        #: Whether a part of the test, such as a subtest, was skipped.
        self.skipped = False
        #: The cause of the failure of the comparison, and the lines of Python that launched added work.
        self._cause = ""
        self.added: tuple[AddedWork, ...] = ()
        #: Whether the last further run passed, if there was one.
        self._repeatable = True
        self.outcome = "passed"
        self.duration_s = 0.0
        #: The comparisons by the identities of their runs.
        self._comparisons: dict[tuple[int, ...], golden.Comparison] = {}
        #: The regions and values of fixtures that were set up before the body.
        self._spanning: list[RequestedRegion] = []
        self._before: dict[str, Any] = {}
        #: The calls whose stacks the next run records, whether stacks are being recorded, and the reason if they are
        #: not.
        self._calls_with_stacks = ""
        self._has_stacks = False
        self._why_no_stacks = ""

    # The fixture

    def region(
        self, name: str, counters: str | Sequence[str] = (), **limits: Any
    ) -> AbstractContextManager[None]:
        __tracebackhide__ = True
        region = requested_region(name, counters, limits)
        self._check_counters_of(region)
        if region.budget is not None:
            self._expect(region, region.budget)
        return self._inside(region)

    @contextlib.contextmanager
    def _inside(self, region: RequestedRegion) -> Iterator[None]:
        run = self.current
        if run is None:
            self._spanning.append(region)
            try:
                yield
            finally:
                self._spanning.remove(region)
            return
        entered = self.captures.enter(run, region.name, region.counters)
        try:
            yield
        finally:
            self.captures.leave(run, entered)

    def _check_counters_of(self, region: RequestedRegion) -> None:
        """Refuse a region with counters inside a range that is counted."""
        __tracebackhide__ = True
        if not region.counters:
            return
        counted = bool(self.expected.counters)
        for outer in self._spanning:
            counted |= bool(outer.counters)
        if self.current is not None:
            counted |= self.current.counting is not None
        if counted:
            raise CutraceError(
                f"{region.place}: the region {region.name} requests counters inside a test or region with counters: "
                "the GPU counts one range at a time, so remove the counters from one of them"
            )

    def _expect(self, region: RequestedRegion, budget: golden.Budget) -> None:
        """Expect the limits of a region. All regions of the same name share these limits."""
        __tracebackhide__ = True
        known = self.expected.budgets
        if known.get(region.name, budget) != budget:
            raise CutraceError(
                f"{region.place}: the region {region.name} has other limits already, and regions of one name add up: "
                "give this one the same limits or another name"
            )
        budgets = {**known, region.name: budget}
        self.expected = replace(self.expected, budgets=budgets)
        runs = self.current is not None
        if budget.allowed and runs and not self._has_stacks:
            self._record_stacks(_WAITS)

    def value(self, name: str, value: Any) -> None:
        counter = checked(name, value)
        self.user[str(name)] = plain(value)
        if self.current is None:
            self._before[str(name)] = value
        elif counter:
            self.current.user[str(name)] = int(value)

    @property
    def metrics(self) -> Mapping[str, Value]:
        run = self.current
        if run is None:
            raise CutraceError(
                "the test is not running: use gpu_trace.metrics in the body of a test"
            )
        if not run.regions:
            raise CutraceError(
                "gpu_trace.metrics needs a region that has ended: end a `with gpu_trace.region(...)` before it"
            )
        metrics = self.captures.so_far(run)
        if not metrics.gpu_records:
            why = self.captures.recording.unseen()
            if why:
                pytest.skip(f"gpu_trace.metrics: {why}")
        if metrics.problems:
            raise CutraceError(
                f"the metrics are unreliable: {'; '.join(metrics.problems)}"
            )
        return metrics.values

    # Running

    def expect(self, expected: Expectation) -> None:
        """Replace the expectation before the body runs. The limits of regions that fixtures have entered stay."""
        budgets = {**self.expected.budgets, **expected.budgets}
        self.expected = replace(expected, budgets=budgets)

    def begin(self) -> None:
        """Begin the window."""
        self._note(self.captures.recording.ready())
        if self._calls_with_stacks:
            self._record_stacks(self._calls_with_stacks)
        elif self._allows:
            self._record_stacks(_WAITS)
        nodeid = self.context.nodeid(self.item)
        self.current = self.captures.begin(nodeid, self.expected.counters)
        self.current.normalize = self._stable_name
        self.user = {}
        for name, value in self._before.items():
            self.value(name, value)
        for region in self._spanning:
            self.captures.enter(self.current, region.name, region.counters)

    def end(self) -> Run:
        """End the window, whether or not the body passed."""
        run = self.current
        assert run is not None
        self.current = None
        self.captures.end(run, patient=self.expected.any)
        if self._has_stacks:
            self._record_stacks("")
        self.runs.append(run)
        return run

    @property
    def _allows(self) -> bool:
        """Whether a limit of the test allows synchronising calls by place."""
        budgets = self.expected.budgets.values()
        return any(budget.allowed for budget in budgets)

    def _record_stacks(self, calls: str) -> None:
        """Record the Python stacks of these calls from now on ("" for no calls)."""
        self._why_no_stacks = self.captures.recording.stacks(calls)
        self._has_stacks = bool(calls)

    def not_passed(self, run: Run, error: BaseException | None) -> None:
        """Measure a run whose body did not pass, without a comparison."""
        # A plugin that retries tests reports them without pytest's hook.
        self.outcome = "failed"
        measured = self._measure(run)
        if isinstance(error, CutraceError) and "recorded already" in str(error):
            self._note(_OFF)
            self.item.add_report_section("call", "cutrace", _OFF)
        self.decision = not_passed(
            self.expected, measured, skipped=isinstance(error, pytest.skip.Exception)
        )

    def passed(self, run: Run) -> None:
        """After the body passed: run it again while the decision asks for it, and fail the test if it says so."""
        first = self._measure(run)
        first = replace(
            first, unseen=self.captures.recording.unseen(others=bool(run.parts))
        )
        run.measured = first
        runs: list[MeasuredRun | None] = [first]
        self._decide(runs)
        while self.decision.next is Next.AGAIN:
            # This decision stays if a teardown ends the test.
            self.decision = not_passed(self.expected, first, skipped=False)
            runs.append(self._again())
            self._decide(runs)
        if self.decision.next is Next.FAIL:
            self.styled = self._failure()
            self.outcome = "failed"
            message = "\n".join(plain_lines(self.styled))
            raise pytest.fail.Exception(message, pytrace=False)

    def untraced(self, reason: str) -> None:
        """Conclude that the test was not traced, for this reason."""
        self.decision = replace(
            untraced(self.expected, reason), judged=self.decision.judged
        )

    def _decide(self, runs: Sequence[MeasuredRun | None]) -> None:
        self.decision = decide(self.expected, runs, self.context.gate, self._compare)
        for note in self.decision.notes:
            self._note(note)

    def _compare(
        self,
        entry: golden.Entry,
        runs: Sequence[Metrics],
        environment: str,
        rules: golden.Rules,
    ) -> golden.Comparison:
        # Each decision judges all runs from the first run on.
        judged = tuple(map(id, runs))
        if judged not in self._comparisons:
            custom = self.item.ihook.pytest_cutrace_compare(
                item=self.item,
                entry=entry,
                runs=runs,
                environment=environment,
                rules=rules,
            )
            self._comparisons[judged] = custom or golden.compare(
                entry, runs, environment=environment, rules=rules
            )
        return self._comparisons[judged]

    def _again(self) -> MeasuredRun | None:
        """Run the test again, with its function-scoped fixtures set up again. Returns None and adds a note if it cannot
        be run or does not pass. An error of a teardown is raised as an error of the test."""
        properties = self.item.user_properties
        recorded = len(properties)
        try:
            measured = self._measured_again()
        finally:
            # The fixtures and the body have recorded the same properties before.
            del properties[recorded:]
        self._repeatable = measured is not None
        return measured

    def _measured_again(self) -> MeasuredRun | None:
        assert self.body is not None
        obstacle = self.body.obstacle()
        if obstacle:
            self._note(f"it is not run again: {obstacle}")
            return None
        self.body.tear_down()
        try:
            self.context.seed_setup(self.item)
            self.body.set_up()
        except ENDINGS as error:
            self._note(f"another run did not pass: {type(error).__name__}: {error}")
            return None
        self.context.seed(self.item, again=True)
        self.begin()
        try:
            self.body.run()
        except ENDINGS as error:
            self._note(f"another run did not pass: {type(error).__name__}: {error}")
            return None
        finally:
            run = self.end()
        return self._measure(run)

    def _measure(self, run: Run) -> MeasuredRun:
        metrics = self.captures.measure(run, partial(self._more, run))
        values: dict[str, Any] = {**metrics.values, **run.user}
        run.metrics = replace(metrics, values=values)
        uncounted = {}
        for region, (names, why) in run.uncounted.items():
            for name in names:
                uncounted[region, name] = why
        run.measured = MeasuredRun(
            run.metrics,
            self.context.environment(self.item, run.metrics),
            uncounted,
            early=run.early and cuda.initialised(),
        )
        if run.waits:
            from cutrace.reports.allowed import without_allowed

            limited = without_allowed(run.metrics, run.waits)
            run.measured = replace(run.measured, limited=limited)
        return run.measured

    def _more(self, run: Run, trace: Any, window: Any) -> dict[str, Value]:
        """The counters that hooks compute from the trace. Also finds the calls that are not allowed."""
        run.waits = self._waits(trace, window)
        more: dict[str, Value] = {}
        for values in self.item.ihook.pytest_cutrace_metrics(
            item=self.item, trace=trace, window=window
        ):
            for name, value in values.items():
                if name in METRICS or "." not in name.strip(".") or not is_whole(value):
                    raise CutraceError(
                        f"pytest_cutrace_metrics returned {name}={value!r}: return whole numbers of 64 bits by names "
                        "with a dot, such as mylib.tokens"
                    )
                more[name] = int(value)
        return more

    def _waits(self, trace: Any, window: Any) -> dict[str, dict[str, int]]:
        """The synchronising calls that count for limits with allowed places, by region and place."""
        if not self._allows:
            return {}
        from cutrace.reports.allowed import waits_that_count

        assert self.body is not None
        project = self.body.project(self.context.config.rootpath)
        return waits_that_count(trace, window, self.expected.budgets, project)

    def _stable_name(self, kernel: str) -> str:
        """The name of a kernel in golden files. The hook may be in a conftest that is only for some tests."""
        custom = self.item.ihook.pytest_cutrace_normalize_kernel(name=kernel)
        if custom is not None:
            return str(custom)
        from cutrace.analysis.names import normalize_kernel

        return normalize_kernel(kernel)

    def _note(self, sentence: str) -> None:
        if sentence and sentence not in self.notes:
            self.notes.append(sentence)

    def _failure(self) -> list[Line]:
        """The lines with which the test fails."""
        case = self._case(state=State.GATED)
        self._cause = cause_of(case)
        failures = self.context.failures[self._cause]
        first = next(iter(failures), case.nodeid)
        if first != case.nodeid:
            self.summed_up = len(failures) >= NAMED
            return repeated_failure(case, argument(first, self.context.config))
        self._tell_of_left_threads()
        self.added = self._added(case)
        case = self._case(state=State.GATED)
        if self.context.keeps(case.nodeid, self._cause, failed=True):
            trace = self.context.folder(self.item) / "trace.pftrace"
            shown = {"trace.pftrace": self.context.relative(trace)}
            case = replace(case, artifacts=shown)
        return failure_lines(case, self.context.arguments(self.item))

    def _tell_of_left_threads(self) -> None:
        """Add notes on the work of the judged run that threads of earlier tests launched."""
        run = self._shown_run()
        if run is None or not run.left_threads or not run.files:
            return
        from cutrace.analysis.metrics import work_by_thread

        with self.captures.opened(run.files) as trace:
            by_test = work_by_thread(trace, run.window, run.left_threads)
        for test, count in by_test.most_common(_NAMED_TESTS):
            self._note(
                f"threads that started in {test} launched {count:,} of {run.metrics.gpu_records:,} kernels, copies and "
                "fills"
            )

    def _added(self, case: Case) -> tuple[AddedWork, ...]:
        """The lines of Python that launched the failing work. Finds them by another run, with Python stacks."""
        from cutrace.reports.added import StackedRun, increases_of
        from cutrace.reports.allowed import without_places

        rows = without_places(case.failed_rows, self.expected.budgets)
        increases = increases_of(rows)
        if not increases or case.problems or not self._repeatable:
            return ()
        # The running recording also records the stacks, so that CUDA does not change.
        self._calls_with_stacks = _WITH_STACKS
        try:
            again = self._again()
        except ENDINGS as error:  # The error is from a teardown after a failure.
            self._note(f"another run did not pass: {type(error).__name__}: {error}")
            again = None
        run = self.runs[-1]
        if again is None or not run.files:
            return ()
        assert self.body is not None
        project = self.body.project(self.context.config.rootpath)
        with self.captures.opened(run.files) as trace:
            if trace.python_stacks is None and self._why_no_stacks:
                self._note(f"no line is named: {self._why_no_stacks}")
                return ()
            stacked = StackedRun(trace, run.window, again.metrics, self._stable_name)
            added = [stacked.added(increase, project) for increase in increases]
        if None in added:
            self._note("the run that names lines did other work: not all are named")
        return tuple(filter(None, added))

    # The result

    def case(self, *, passed: bool) -> Case:
        """The case of the test after its teardown. ``passed`` says whether the teardown passed. Files that cannot be
        written become notes."""
        if self.skipped:
            # A test with a skipped subtest does less work.
            self.decision = replace(self.decision, new_values=None)
        self.decision = after_teardown(
            self.decision,
            passed=passed and not self.failed and self.outcome == "passed",
        )
        for note in self.decision.notes:
            self._note(note)
        if not passed:
            self.outcome = "failed"
        if not self.runs and not self.decision.reason:
            reason = "it did not run"
            if self.outcome in ("skipped", "xfailed"):
                reason = self.expected.skip_reason
            self.decision = replace(self.decision, reason=reason)
        elif not self.runs:
            # The body may have requested limits.
            self.untraced(self.decision.reason)
        if self.skipped:
            self._skip_partly()
        if self.outcome == "xfailed" and self.expected.may_skip:
            self.decision = replace(self.decision, reason=ALLOWED_SKIP)
        try:
            case = self._case(change=self._change())
            artifacts = self._keep(self._cause or cause_of(case))
            if artifacts:
                case = replace(case, artifacts=artifacts)
            case = self._pictured(case)
            if "metrics.json" in case.artifacts:
                jsonfile.write(
                    self.context.folder(self.item) / "metrics.json",
                    jsonfile.case_text(case),
                )
        except CutraceError as error:
            self.notes.append(str(error))
            case = self._case()
        except Exception as error:
            # A bug of the plugin must not end the session, but must be reported.
            self.untraced(f"cutrace failed: {type(error).__name__}: {error}")
            case = self._case()
        self.captures.release(self.runs)
        if self._cause and self.outcome == "failed":
            # Tests that are expected to fail show no block to refer to.
            self.context.failures[self._cause][case.nodeid] = None
        return case

    def _skip_partly(self) -> None:
        """Gate nothing in a test with a skipped subtest, because the test would seem to do less work."""
        if self.outcome != "passed" or self.expected.may_skip:
            return
        if self.decision.state is State.GATED:
            self.decision = replace(
                self.decision,
                state=State.UNVERIFIED,
                reason="a subtest was skipped",
            )

    def _case(self, **more: Any) -> Case:
        """The case of this attempt, without artifacts."""
        decision = self.decision
        judged = [run.metrics for run in decision.judged]
        metrics = Metrics({})
        if judged:
            metrics = judged[-1]
        comparison = decision.comparison or golden.Comparison(())
        values: dict[str, Any] = {
            "nodeid": self.context.nodeid(self.item),
            "outcome": self.outcome,
            "state": decision.state,
            "reason": decision.reason,
            "gpu": ", ".join(dict.fromkeys(metrics.gpus)),
            "rows": comparison.rows,
            "values": dict(metrics.values),
            "regions": dict(metrics.regions),
            "user": dict(self.user),
            "problems": problems_of(judged),
            "notes": (*comparison.notes, *self.notes),
            "duration_s": self.duration_s,
            "runs": len(judged) or 1,
            "first_did_more": decision.first_did_more,
            "codes": metrics.codes,
            "added": self.added,
            "worker": self.context.worker,
        }
        if decision.comparison is not None and self._allows:
            from cutrace.reports.allowed import allowed_calls

            allowed = allowed_calls(
                self.expected.budgets,
                decision.judged[-1],
                [run.measured for run in self.runs],
                self._why_no_stacks,
            )
            values["notes"] += allowed.notes
            values["allowed"] = allowed.by_list
        if metrics.gpus:
            values["environment"] = decision.environment
            values["recorded_on"] = golden.recorded_on(metrics)
        if self.expected.entry is not None or decision.state is State.UPDATED:
            values["golden"] = self.context.relative(self.expected.path)
        return Case(**{**values, **more})

    def _change(self) -> golden.Change | None:
        """The new golden values of the decision, with the place where they are written."""
        new_values = self.decision.new_values
        if new_values is None or new_values.observed is None:
            return None
        nodeid = self.context.golden_id(self.item)
        file, _ = golden.split(nodeid)
        source, line, _ = self.item.location
        number = 0
        # A test that is defined in another file has no line in this one.
        if source == file and line is not None:
            number = line + 1
        return golden.Change(
            nodeid,
            self.expected.path,
            new_values.environment,
            new_values.observed,
            number,
            golden.digest(self.expected.entry, new_values.environment),
            self.context.config.rootpath / file,
            new_values.others,
        )

    def _shown_run(self) -> Run | None:
        """The run that reports show: the last judged run."""
        for run in self.runs:
            if self.decision.judged and run.measured is self.decision.judged[-1]:
                return run
        return None

    def _pictured(self, case: Case) -> Case:
        """The case with its timeline and top kernels, if an HTML page is requested."""
        run = self._shown_run()
        kinds = {kind for kind, _ in self.context.settings.reports}
        if run is None or not run.files or "html" not in kinds:
            return case
        from cutrace.reports.timeline import pictured

        with self.captures.opened(run.files) as trace:
            return pictured(case, trace, run.window, normalize=self._stable_name)

    def _remove_earlier_files(self) -> None:
        """Remove the files of the test that an earlier session wrote."""
        if not self.context.artifacts.is_dir():
            return  # Most sessions keep no files, and the path of each test takes time.
        folder = self.context.folder(self.item)
        if folder.is_dir():
            for name in _FILES:
                (folder / name).unlink(missing_ok=True)

    def _keep(self, cause: str) -> dict[str, str]:
        """Write the files of the compared run to the folder of the test, unless enough tests with this cause have
        files. Returns the paths relative to the session's folder."""
        self._remove_earlier_files()
        run = self._shown_run()
        failed = (
            self.failed
            or self.outcome in ("failed", "xfailed")
            or self.decision.state is State.MISSING
        )
        nodeid = self.context.nodeid(self.item)
        if run is None or not self.context.keeps(nodeid, cause, failed=failed):
            return {}
        folder = self.context.folder(self.item)
        kept = [folder / "metrics.json"]
        if run.files:
            from cutrace.collect.join import join
            from cutrace.conversion import convert

            folder.mkdir(parents=True, exist_ok=True)
            capture = folder / "run.bin"
            trace = folder / "trace.pftrace"
            join(run.files, capture, moving=False)
            convert(capture, trace)
            kept += [capture, trace]
        return {
            path.name: str(path.relative_to(self.context.settings.directory))
            for path in kept
        }
