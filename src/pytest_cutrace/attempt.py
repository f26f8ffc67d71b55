"""One attempt at a test: run its body, repeatedly if needed, measure and compare it, and make its case, its capture and
its new golden values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from cutrace import golden
from cutrace.analysis.definitions import METRICS, MetricClass, Metrics, Value
from cutrace.collect import cuda
from cutrace.errors import CutraceError
from cutrace.golden.compare import problems_of
from cutrace.golden.model import WORK, Observed, find_metric, plain
from cutrace.reports import jsonfile
from cutrace.reports.model import Case, State
from cutrace.reports.text import Line, failure_lines

from .bodies import ENDINGS, Body
from .capture import Run
from .expectations import Expectation
from .fixtures import Tracer, checked, counters_of

if TYPE_CHECKING:
    from .session import Session

#: The maximum of runs until two consecutive ones agree and are written.
_MOST_RUNS = 3
#: The same if only gated states differ: caches and pools may need several runs to fill.
_MOST_STATE_RUNS = 5
_STATES = frozenset(name for name, found in METRICS.items() if found.kind is MetricClass.STATE)
#: How often a test is run again before it fails on time.
_CONFIRMATIONS = 2
_FILES = ("run.bin", "trace.pftrace", "metrics.json")
_OFF = "pytest --cutrace records this process; for a test that records itself: @pytest.mark.cutrace(off=True)"
_VANISHED = "the golden values are kept: no GPU work was seen, and only --cutrace-update=all writes that"


class Attempt(Tracer):
    """A running test. It is also the fixture ``gpu_trace`` of the test."""

    active = True

    def __init__(self, session: Session, item: pytest.Item, expected: Expectation) -> None:
        self.session = session
        self.item = item
        self.expected = expected
        self.current: Run | None = None
        #: All runs, those that passed, and those of the latter that are compared.
        self.runs: list[Run] = []
        self.passed_runs: list[Run] = []
        self.judged: list[Run] = []
        self.comparison: golden.Comparison | None = None
        self.state = State.UNTRACED
        self.reason = ""
        self.notes: list[str] = []
        self.user: dict[str, Any] = {}
        #: The failure of the comparison, as styled lines.
        self.styled: list[Line] = []
        #: Whether a report of the call, or of a subtest, failed.
        self.failed = False
        self.outcome = "passed"
        self.duration_s = 0.0
        #: Regions and values of fixtures that were set up before the body.
        self._spanning: list[tuple[str, tuple[str, ...]]] = []
        self._before: dict[str, Any] = {}
        #: The body, set before its first run.
        self.body: Body | None = None

    # The fixture

    @contextlib.contextmanager
    def region(self, name: str, counters: str | Sequence[str] = ()) -> Iterator[None]:
        run, spanning = self.current, (str(name), counters_of(counters))
        counting = self.expected.counters or any(counters for _, counters in self._spanning)
        if spanning[1] and (counting or (run is not None and run.counting is not None)):
            raise CutraceError(
                f"the region {name} requests counters inside a test or region with counters: the GPU counts one range "
                "at a time, so remove the counters from one of them"
            )
        if run is not None:
            region = self.session.captures.enter(run, *spanning)
        else:
            self._spanning.append(spanning)
        try:
            yield
        finally:
            if run is not None:
                self.session.captures.leave(run, region)
            else:
                self._spanning.remove(spanning)

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
            raise CutraceError("the test is not running: use gpu_trace.metrics in the body of a test")
        if not run.regions:
            raise CutraceError(
                "gpu_trace.metrics needs a region that has ended: end a `with gpu_trace.region(...)` before it"
            )
        metrics = self.session.captures.so_far(run)
        if not metrics.gpu_records and (why := self.session.captures.recording.unseen()):
            pytest.skip(f"gpu_trace.metrics: {why}")
        if metrics.problems:
            raise CutraceError(f"the metrics are unreliable: {'; '.join(metrics.problems)}")
        return metrics.values

    # Running

    def begin(self) -> None:
        """Begin the window."""
        self._note(self.session.captures.recording.ready())
        self.current = self.session.captures.begin(self.session.nodeid(self.item), self.expected.counters)
        self.user = {}
        for name, value in self._before.items():
            self.value(name, value)
        for region, counters in self._spanning:
            self.session.captures.enter(self.current, region, counters)

    def end(self) -> Run:
        """End the window, whether or not the body passed."""
        run = self.current
        assert run is not None
        self.current = None
        self.session.captures.end(run, patient=self.expected.any)
        self.runs.append(run)
        return run

    def broken(self, run: Run, error: BaseException) -> None:
        """Measure a body that did not pass, without a comparison."""
        skipped = isinstance(error, pytest.skip.Exception)
        self.judged = [run]
        self._measure(run)
        if isinstance(error, CutraceError) and "recorded already" in str(error):
            self._note(_OFF)
            self.item.add_report_section("call", "cutrace", _OFF)
        worked = run.metrics.gpu_records > 0
        required = self.expected.any and (worked or not skipped)
        self.state = State.UNVERIFIED if required else State.TRACED if worked else State.UNTRACED
        self.reason = "skipped" if skipped else "the test did not pass"

    def passed(self, run: Run) -> None:
        """After the body passed: run it again as requested, compare, and fail the test if the comparison fails."""
        expected = self.expected
        self._measure(run)
        why = self.session.captures.recording.unseen(others=bool(run.parts))
        if why and not run.metrics.gpu_records:
            self.untraced(why)
            return
        if not run.metrics.gpu_records and not expected.any and not run.metrics.values.get("allocations"):
            self.untraced("; ".join(run.metrics.problems) or "no GPU work")
            return
        self.passed_runs, self.judged = [run], [run]
        self._note(why)
        if run.early and cuda.initialised() and (again := self._again()) is not None:
            self.passed_runs, self.judged = [again], [again]
            self._note(
                "CUDA was not in use at the begin of the first run, and counters need it: this is the second run"
            )
        if expected.warmup or expected.repeat:
            while len(self.passed_runs) < expected.warmup + (expected.repeat or 1) and self._again() is not None:
                pass
            self.passed_runs = self.passed_runs[expected.warmup :] or self.passed_runs[-1:]
            self.judged = [*self.passed_runs]
        self._judge()
        self._conclude()
        self._fail_if_it_has_to()

    def untraced(self, reason: str) -> None:
        """Conclude that the test was not traced, for this reason."""
        self.state = State.UNVERIFIED if self.expected.any else State.UNTRACED
        self.reason = reason

    def _measure(self, run: Run) -> None:
        self.session.captures.measure(run, self._more)
        run.metrics = replace(run.metrics, values={**run.metrics.values, **run.user})  # type: ignore[dict-item]

    def _more(self, trace: Any, window: Any) -> dict[str, Value]:
        more: dict[str, Value] = {}
        for values in self.item.ihook.pytest_cutrace_metrics(item=self.item, trace=trace, window=window):
            for name, value in values.items():
                if name in METRICS or "." not in name.strip(".") or not isinstance(value, int):
                    raise CutraceError(
                        f"pytest_cutrace_metrics returned {name}={value!r}: return whole numbers by names with a dot, "
                        "such as mylib.tokens"
                    )
                more[name] = int(value)
        return more

    def _again(self) -> Run | None:
        """Run the body once more. Returns None and adds a note if it cannot be run or does not pass."""
        assert self.body is not None
        if obstacle := self.body.obstacle():
            self._note(f"it is not run again: {obstacle}")
            return None
        self.session.seed(self.item, again=True)
        self.begin()
        try:
            self.body.run()
        except ENDINGS as error:
            self._note(f"another run did not pass: {type(error).__name__}: {error}")
            return None
        finally:
            run = self.end()
        self._measure(run)
        self.passed_runs.append(run)
        return run

    def _note(self, sentence: str) -> None:
        if sentence and sentence not in self.notes:
            self.notes.append(sentence)

    # Judging

    @property
    def updating(self) -> bool:
        return self.session.settings.update is not None and self.session.wants_golden(self)

    @property
    def settled(self) -> list[Run]:
        """The runs that are written: the requested ones, else the last two, else the only one."""
        return self.judged if self.expected.repeat else self.passed_runs[-2:]

    @property
    def proposes(self) -> bool:
        """Whether the test writes a candidate: golden values are missing or differ."""
        comparison = self.comparison
        if self.state is State.MISSING or comparison is None:
            return self.state is State.MISSING
        unverified = golden.Verdict.UNVERIFIED
        rows = [row for row in comparison.rows if row.now is not None or row.verdict is not unverified]
        return any(row.verdict is unverified or (row.failed and row.rule != "limit") for row in rows)

    def _rules(self, runs: Sequence[Run]) -> golden.Rules:
        """The rules for runs; counters that could not be read in one of them are ignored."""
        rules = self.expected.rules
        return replace(rules, ignore=(*rules.ignore, *(name for _, name in _uncounted(runs))))

    def _settle(self) -> None:
        """Run again until two consecutive runs agree, before they are written."""
        while not any(run.metrics.problems for run in self.settled):
            most = _MOST_RUNS
            if len(self.settled) > 1:
                disputed = golden.unsettled([run.metrics for run in self.settled], self._rules(self.settled))
                if not disputed:
                    return
                if all(name.rpartition("/")[2] in _STATES for name in disputed):
                    most = _MOST_STATE_RUNS
            if self.expected.repeat or len(self.passed_runs) >= most or self._again() is None:
                return

    def _judge(self) -> None:
        comparison = self._compared(self.judged)
        if comparison is None:
            return
        failed = [row for row in comparison.rows if row.failed]
        if not (self.expected.warmup or self.expected.repeat or self.updating or comparison.problems):
            # The first run of a process also loads modules and fills caches and pools.
            run = self._again() if any(row.verdict is not golden.Verdict.SLOW for row in failed) else None
            if run is not None and (again := self._compared([run])) is not None:
                self.judged, comparison = [run], again
                self._note("the first run differed too: this is the second run")
        slow = not self.updating and any(row.failed and row.verdict is golden.Verdict.SLOW for row in comparison.rows)
        for _ in range(_CONFIRMATIONS if slow else 0):
            runs = [run for _ in self.judged if (run := self._again()) is not None]
            other = self._compared(runs) if len(runs) == len(self.judged) else None
            if other is None:
                break
            comparison = golden.confirmed(comparison, other)
        self.comparison = comparison

    def _compared(self, runs: list[Run]) -> golden.Comparison | None:
        metrics = [run.metrics for run in runs]
        comparisons: list[golden.Comparison] = []
        entry, rules, lost = self.expected.entry, self._rules(runs), _uncounted(runs)
        if entry is not None:
            environment = self.environment(metrics)
            custom = self.item.ihook.pytest_cutrace_compare(
                item=self.item, entry=entry, runs=metrics, environment=environment, rules=rules
            )
            comparisons.append(custom or golden.compare(entry, metrics, environment=environment, rules=rules))
            comparisons.append(golden.Comparison(tuple(self._lost(lost, entry.get(environment)))))
        if self.expected.limits is not None:
            budget = {name: most for name, most in self.expected.limits.items() if ("", name) not in lost}
            comparisons.append(golden.limits(metrics, budget))
        if not comparisons:
            return None
        return golden.Comparison(
            tuple(row for one in comparisons for row in one.rows),
            tuple(dict.fromkeys(note for one in comparisons for note in one.notes)),
            tuple(dict.fromkeys(problem for one in comparisons for problem in one.problems)),
            any(one.unconfirmed for one in comparisons),
        )

    def _lost(self, lost: Mapping[tuple[str, str], str], known: Observed | None) -> Iterator[golden.Row]:
        """Rows of counters that could not be read."""
        rules = self.expected.rules
        for (region, name), why in lost.items():
            metric = find_metric(name)
            if metric is not None and not rules.ignores(metric):
                old = known.values.get(region, {}).get(name) if known is not None else None
                gated, verdict = rules.gates(metric), golden.Verdict.UNVERIFIED
                yield golden.Row(
                    name, region, old, None, rules.label(metric), verdict, gated, why, gated and rules.strict
                )

    def environment(self, runs: Sequence[Metrics]) -> str:
        """The environment of these runs."""
        return self.session.environment(self.item, max(runs, key=lambda metrics: len(metrics.gpus)))

    def _conclude(self) -> None:
        """Set the state; run again until runs agree if values are to be written."""
        expected, comparison = self.expected, self.comparison
        if self.updating:
            if self._update()[0] is not None:
                self._settle()
                self.judged = self.settled
            if comparison is not None:
                rows = (replace(row, failed=row.failed and row.rule == "limit") for row in comparison.rows)
                self.comparison = comparison = replace(comparison, rows=tuple(rows))
        elif expected.entry is None and self.session.wants_golden(self):
            path = self.session.relative(expected.path)
            self.state = State.MISSING
            self.reason = f"{path} has no values of it" if expected.siblings else f"there is no {path}"
            for why in _uncounted(self.judged).values():
                self._note(f"counters: {why}")
            self._settle()
            return
        self.state, self.reason = State.GATED, ""
        if comparison is None:
            self.state, self.reason = State.TRACED, expected.passed_over
        elif comparison.unconfirmed:
            self.state, self.reason = State.UNCONFIRMED, "recorded from one run that could not be repeated"
        elif comparison.unverified:
            self.state, self.reason = State.UNVERIFIED, comparison.unverified
        if not self.updating and self.proposes:
            self._settle()
        self._check_counters()

    def _check_counters(self) -> bool:
        """Make the test unverified if counters of the compared runs could not be read. Returns whether that is so."""
        why = next(iter(_uncounted(self.judged).values()), "")
        if why:
            self.state, self.reason = State.UNVERIFIED, f"counters: {why}"
        return bool(why)

    def _fail_if_it_has_to(self) -> None:
        expected, comparison = self.expected, self.comparison
        problems = any(run.metrics.problems for run in self.judged)
        if (comparison is not None and any(row.failed for row in comparison.rows)) or (expected.any and problems):
            self.styled = failure_lines(self._case(state=State.GATED))
        elif self.state is State.MISSING and expected.rules.strict:
            again = f"  to write it: pytest --cutrace-update {self.session.nodeid(self.item)}"
            self.styled = [(f"cutrace: {self.reason}, and --cutrace-strict requires one", "bad"), (again, "")]
        if self.styled:
            pytest.fail("\n".join(text for text, _ in self.styled), pytrace=False)

    # The result

    def case(self, *, passed: bool) -> Case:
        """The case of the test after its teardown, which ``passed`` or not. Files that cannot be written become
        notes."""
        good = passed and not self.failed and self.outcome == "passed"
        if not passed:
            self.outcome = "failed"
        if not self.runs and not self.reason:
            self.reason = "skipped" if self.outcome == "skipped" else "it did not run"
        change = None
        try:
            if self.updating and good:
                change, notes = self._update()
                self.notes += notes
                if change is not None and not self._check_counters():
                    self.state, self.reason = State.UPDATED, ""
            elif self.proposes and not self.updating:
                change = self._change()
            case = self._pictured(self._case(artifacts=self._keep(), change=change))
            if "metrics.json" in case.artifacts:
                jsonfile.write(self.session.folder(self.item) / "metrics.json", jsonfile.case_text(case))
        except CutraceError as error:
            self.notes.append(str(error))
            case = self._case(artifacts={})
        except Exception as error:
            # A bug of the plugin must not end the session and must be reported.
            self.untraced(f"cutrace failed: {type(error).__name__}: {error}")
            case = self._case(artifacts={})
        self.session.captures.release(self.runs)
        return case

    def _case(self, **more: Any) -> Case:
        """The case of this attempt. By default, paths of artifacts are relative to the folder where pytest was
        started."""
        metrics = self.judged[-1].metrics if self.judged else Metrics({})
        comparison = self.comparison or golden.Comparison(())
        if "artifacts" not in more and self.session.keeps(failed=True):
            trace = self.session.folder(self.item) / "trace.pftrace"
            more["artifacts"] = {"trace.pftrace": self.session.relative(trace)}
        known = self.expected.entry is not None or self.state is State.UPDATED
        return Case(**{
            "nodeid": self.session.nodeid(self.item),
            "outcome": self.outcome,
            "state": self.state,
            "reason": self.reason,
            "gpu": ", ".join(dict.fromkeys(metrics.gpus)),
            "rows": comparison.rows,
            "values": dict(metrics.values),
            "regions": dict(metrics.regions),
            "user": dict(self.user),
            "problems": problems_of([run.metrics for run in self.judged]),
            "notes": (*comparison.notes, *self.notes),
            "duration_s": self.duration_s,
            "runs": len(self.judged) or 1,
            "golden": self.session.relative(self.expected.path) if known else "",
            "worker": self.session.worker,
            "environment": self.environment([metrics]) if metrics.gpus else "",
            "recorded_on": golden.recorded_on(metrics) if metrics.gpus else "",
            **more,
        })  # fmt: skip

    def _update(self) -> tuple[golden.Change | None, tuple[str, ...]]:
        """The change that this update writes for the test (None: no change), and notes on values that are kept."""
        update, entry, change = self.session.settings.update, self.expected.entry, self._change()
        if change is None or update is None:
            return None, ()
        if update.mode != "all" and _worked((entry or {}).get(change.environment)) and not _worked(change.observed):
            return None, (_VANISHED,)
        rules = self.expected.rules
        new, notes = golden.merged(entry, change.observed, environment=change.environment, update=update, rules=rules)
        return (replace(change, observed=new[change.environment]) if new != entry else None), notes

    def _change(self) -> golden.Change | None:
        """The values of the runs of the test as a change; None if they are unreliable."""
        runs = [run.metrics for run in self.settled]
        if not runs or any(run.problems for run in runs):
            return None
        environment = self.environment(runs)
        if not environment:
            return None
        nodeid = self.session.nodeid(self.item)
        source, line, _ = self.item.location
        # A test that is defined in another file has no line in this one.
        return golden.Change(
            nodeid,
            self.expected.path,
            environment,
            self._observed(runs, environment),
            line + 1 if source == golden.split(nodeid)[0] and line is not None else 0,
            golden.digest(self.expected.entry, environment),
        )

    def _observed(self, runs: Sequence[Metrics], environment: str) -> Observed:
        """The golden values of the runs. Counters that could not be read keep their golden values."""
        new = golden.observed(runs, self._rules(self.settled), confirmed=len(runs) > 1)
        old = (self.expected.entry or {}).get(environment, Observed())
        for region, name in _uncounted(self.settled):
            for before, after in ((old.values, new.values), (old.unstable, new.unstable)):
                if name in before.get(region, {}):
                    after.setdefault(region, {})[name] = before[region][name]
        return new

    def _pictured(self, case: Case) -> Case:
        """The case with its timeline and top kernels, if an HTML page is requested."""
        files = self.judged[-1].files if self.judged else []
        if not files or not any(kind == "html" for kind, _ in self.session.settings.reports):
            return case
        from cutrace.reports.timeline import pictured

        captures = self.session.captures
        with captures.opened(files) as trace:
            return pictured(case, trace, self.judged[-1].window, normalize=captures.normalize)

    def _keep(self) -> dict[str, str]:
        """Write the files of the compared run to the folder of the test. Returns their paths relative to the session's
        folder."""
        folder = self.session.folder(self.item)
        if folder.is_dir():
            for name in _FILES:
                (folder / name).unlink(missing_ok=True)
        failed = self.failed or self.outcome in ("failed", "xfailed") or self.state is State.MISSING
        if not self.judged or not self.session.keeps(failed=failed):
            return {}
        kept = [folder / "metrics.json"]
        if files := self.judged[-1].files:
            from cutrace.collect.join import join
            from cutrace.conversion import convert

            folder.mkdir(parents=True, exist_ok=True)
            capture, trace = folder / "run.bin", folder / "trace.pftrace"
            join(files, capture, moving=False)
            convert(capture, trace)
            kept += [capture, trace]
        return {path.name: str(path.relative_to(self.session.settings.directory)) for path in kept}


def _uncounted(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """The counters that could not be read in one of these runs, by region and name, with the reason."""
    lost = ((region, *counters) for run in runs for region, counters in run.uncounted.items())
    return {(region, name): why for region, names, why in lost for name in names}


def _worked(observed: Observed | None) -> bool:
    """Whether the values have GPU work."""
    return observed is not None and any(observed.values.get("", {}).get(name) for name in WORK)
