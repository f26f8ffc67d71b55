"""One attempt at a test: its runs, how they compare with what is expected, and whether that fails the test."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cutrace.analysis.metrics import METRICS, Metrics, Value
from cutrace.errors import CutraceError
from cutrace.golden import Comparison, Golden, Verdict, compare, confirmed, gpu_name, limits, unsettled
from cutrace.reports.model import Case, State, plain
from cutrace.reports.text import failure

from .capture import Run
from .markers import Wishes

if TYPE_CHECKING:
    from .session import Session

#: Runs of which two in a row have to agree before they are written down.
_MOST_RUNS = 3
#: How often a slower time is looked at again.
_CONFIRMATIONS = 2
_OFF = "pytest --cutrace records this process; for a test that records itself: @pytest.mark.cutrace(off=True)"
#: What a second run of a body may end with.
_ENDINGS = (Exception, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)


@dataclass(frozen=True)
class Expectation:
    """What is expected of a test: by its markers, and by its golden file at ``path`` (``golden``: None if there is
    none)."""

    wishes: Wishes
    path: Path
    golden: Golden | None

    @property
    def any(self) -> bool:
        """Whether the test would be verified."""
        return self.golden is not None or self.wishes.marked or self.wishes.limits is not None


class Attempt:
    """A test while it runs. It is the fixture ``cutrace`` of that test, too."""

    active = True

    def __init__(self, session: Session, item: pytest.Item, expected: Expectation) -> None:
        self.session = session
        self.item = item
        self.expected = expected
        self.current: Run | None = None
        #: All runs; those that count are ``judged``.
        self.runs: list[Run] = []
        self.judged: list[Run] = []
        self.comparison: Comparison | None = None
        self.state = State.UNTRACED
        self.reason = ""
        self.notes: list[str] = []
        self.user: dict[str, Any] = {}
        #: Set when a report of the call said so; a subtest's report counts too.
        self.failed = False
        self.outcome = "passed"
        self.duration_s = 0.0

    # What the fixture offers

    def region(self, name: str) -> AbstractContextManager[None]:
        run = self._running("a region")
        return self.session.captures.region(run, str(name))

    def record(self, name: str, value: Any) -> None:
        self.user[str(name)] = plain(value)
        if "." in str(name).strip("."):
            if not isinstance(value, int) or isinstance(value, bool):
                raise CutraceError(f"{name}={value!r}: a name with a dot is an exact metric, which is a whole number")
            self._running("a metric").user[str(name)] = value

    @property
    def metrics(self) -> Mapping[str, Value]:
        run = self._running("cutrace.metrics")
        if not run.regions:
            raise CutraceError("cutrace.metrics is about the last region: end a `with cutrace.region(...)` before it")
        found = self.session.captures.so_far(run)
        if not found.gpu_records and (why := self.session.captures.recording.unseen()):
            pytest.skip(f"cutrace.metrics: {why}")
        if found.problems:
            raise CutraceError(f"the metrics cannot be trusted: {'; '.join(found.problems)}")
        return found.values

    def _running(self, what: str) -> Run:
        if self.current is None:
            raise CutraceError(f"{what} belongs into the body of a test: it is not running")
        return self.current

    # Running

    def begin(self) -> None:
        """The window begins."""
        if note := self.session.captures.recording.ready():
            self.notes.append(note)
        self.user.clear()
        self.current = self.session.captures.begin(self.session.nodeid(self.item))

    def end(self) -> Run:
        """The window is over, however the body ended."""
        run = self.current
        assert run is not None
        self.current = None
        self.session.captures.end(run, patient=self.expected.any)
        self.runs.append(run)
        return run

    def broken(self, run: Run, error: BaseException) -> None:
        """The body did not pass: what it did is measured, and compared with nothing."""
        skipped = isinstance(error, pytest.skip.Exception)
        self.judged = [run]
        self._measure(run)
        if isinstance(error, CutraceError) and "recorded already" in str(error):
            self._note(_OFF)
            self.item.add_report_section("call", "cutrace", _OFF)
        if run.metrics.gpu_records:
            self.state = State.UNVERIFIED if self.expected.any else State.TRACED
        else:
            self.state = State.UNVERIFIED if self.expected.any and not skipped else State.UNTRACED
        self.reason = "skipped" if skipped else "the test did not pass"

    def passed(self, run: Run) -> None:
        """The body passed. Runs it again as often as is wished, compares, and fails the test if it has to."""
        expected, wishes = self.expected, self.expected.wishes
        self._measure(run)
        why = self.session.captures.recording.unseen(others=run.recorded)
        if why and not run.metrics.gpu_records:
            self.state = State.UNVERIFIED if expected.any else State.UNTRACED
            self.reason = why
            return
        if not run.metrics.gpu_records and not expected.any and not run.metrics.values.get("allocations"):
            self.state, self.reason = State.UNTRACED, "; ".join(run.metrics.problems) or "no GPU work"
            return
        self.judged = [run]
        if why:
            self.notes.append(why)
        if wishes.warmup or wishes.repeat:
            self._repeat(wishes.warmup, wishes.repeat or 1)
        if self.session.updates(self):
            self._settle()
        self._judge()
        self._fail_if_it_has_to()

    def untraced(self, reason: str) -> None:
        """Something went wrong with the tracing itself."""
        self.state = State.UNVERIFIED if self.expected.any else State.UNTRACED
        self.reason = reason

    def _measure(self, run: Run) -> Metrics:
        self.session.captures.measure(run, self._more)
        run.metrics = replace(run.metrics, values={**run.metrics.values, **run.user})  # type: ignore[dict-item]
        return run.metrics

    def _more(self, trace: Any, window: Any) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for values in self.item.ihook.pytest_cutrace_metrics(item=self.item, trace=trace, window=window):
            for name, value in values.items():
                if name in METRICS or "." not in name.strip(".") or not isinstance(value, int):
                    raise CutraceError(
                        f"pytest_cutrace_metrics gave {name}={value!r}: give whole numbers by names with a dot, "
                        "such as mylib.tokens"
                    )
                found[name] = value
        return found

    def _again(self) -> Run | None:
        """Run the body once more. None, and a note, if it cannot be run or does not pass."""
        if obstacle := self._obstacle():
            self._note(f"it is not run again: {obstacle}")
            return None
        self.begin()
        failure: BaseException | None = None
        try:
            self.item.runtest()
        except _ENDINGS as error:
            failure = error
        finally:
            run = self.end()
        if failure is not None:
            self._note(f"another run of it did not pass: {type(failure).__name__}: {failure}")
            return None
        self._measure(run)
        return run

    def _obstacle(self) -> str:
        item = self.item
        if not isinstance(item, pytest.Function):
            return f"{type(item).__name__} items run once"
        unittest = sys.modules.get("unittest")
        if item.cls is not None and unittest is not None and issubclass(item.cls, unittest.TestCase):
            return "methods of unittest.TestCase run once"
        if "subtests" in item.fixturenames:
            return "a test with subtests runs once"
        if self.session.settings.whole_item:
            return "with cutrace_window = item a test runs once"
        return ""

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    def _repeat(self, warmup: int, repeat: int) -> None:
        first = self.judged[0]
        runs = [first]
        for _ in range(warmup + repeat - 1):
            run = self._again()
            if run is None:
                break
            runs.append(run)
        self.judged = runs[warmup:] or runs[-1:]

    def _settle(self) -> None:
        """Run until two runs in a row agree, before they are written down."""
        if self.expected.wishes.repeat or any(run.metrics.problems for run in self.judged):
            return
        runs = [*self.judged]
        while len(runs) < _MOST_RUNS:
            run = self._again()
            if run is None or run.metrics.problems:
                break
            runs.append(run)
            if not unsettled([r.metrics for r in runs[-2:]], self.expected.wishes.rules):
                break
        self.judged = runs[-2:]

    # Judging

    def _judge(self) -> None:
        comparison = self._compared(self.judged)
        if comparison is None:
            return
        rows = [row for row in comparison.rows if row.failed]
        automatic = not (self.expected.wishes.warmup or self.expected.wishes.repeat or self.session.updates(self))
        if rows and automatic and not comparison.problems and any(row.verdict is not Verdict.SLOW for row in rows):
            # The first run of a process loads modules and fills caches and pools.
            run = self._again()
            again = self._compared([run]) if run is not None else None
            if run is not None and again is not None:
                self.judged, comparison = [run], again
                self._note("the first run differed too: this is the second one")
        if any(row.failed and row.verdict is Verdict.SLOW for row in comparison.rows):
            comparison = self._confirmed(comparison)
        self.comparison = comparison

    def _confirmed(self, comparison: Comparison) -> Comparison:
        for _ in range(_CONFIRMATIONS):
            again = []
            for _ in self.judged:
                run = self._again()
                if run is None:
                    return comparison
                again.append(run)
            other = self._compared(again)
            if other is not None:
                comparison = confirmed(comparison, other)
        return comparison

    def _compared(self, runs: list[Run]) -> Comparison | None:
        metrics = [run.metrics for run in runs]
        found: list[Comparison] = []
        golden, wishes = self.expected.golden, self.expected.wishes
        if golden is not None:
            given = self.item.ihook.pytest_cutrace_compare(
                item=self.item, golden=golden, runs=metrics, gpu=self.gpu_key(metrics), rules=wishes.rules
            )
            found.append(given or compare(golden, metrics, gpu=self.gpu_key(metrics), rules=wishes.rules))
        if wishes.limits is not None:
            found.append(limits(metrics, wishes.limits))
        if not found:
            return None
        return Comparison(
            tuple(row for one in found for row in one.rows),
            tuple(dict.fromkeys(note for one in found for note in one.notes)),
            tuple(dict.fromkeys(problem for one in found for problem in one.problems)),
        )

    def gpu_key(self, runs: list[Metrics]) -> str:
        """The key of the GPUs that these runs used."""
        run = max(runs, key=lambda metrics: len(metrics.gpus))
        given = self.item.ihook.pytest_cutrace_gpu_key(item=self.item, names=run.gpus, facts=run.facts)
        return str(given) if given else gpu_name(run.gpus)

    def _fail_if_it_has_to(self) -> None:
        if self.session.settings.junit:
            from cutrace.reports.junit import properties

            self.item.user_properties += properties(self.case())
        expected, comparison = self.expected, self.comparison
        updating = self.session.updates(self)
        if expected.golden is None and self.session.wants_golden(self) and not updating:
            self.state = State.MISSING
            self.reason = f"there is no {self.session.shown(expected.path)}"
        else:
            self.state, self.reason = (State.GATED if comparison is not None else State.TRACED), ""
        problems = [problem for run in self.judged for problem in run.metrics.problems]
        failed = comparison is not None and any(
            row.failed for row in comparison.rows if row.rule == "limit" or not updating
        )
        if expected.any and problems:
            failed = True
        if failed:
            pytest.fail(failure(self.case(State.GATED), update=self.session.update_command), pytrace=False)
        if self.state is State.MISSING and expected.wishes.rules.strict:
            pytest.fail(
                f"cutrace: {self.reason}, and --cutrace-strict wants one\n"
                f"  to write it: {self.session.update_command} {self.session.nodeid(self.item)}",
                pytrace=False,
            )

    def case(self, state: State | None = None, artifacts: Mapping[str, str] | None = None) -> Case:
        """What reports show of this attempt. Paths of artifacts are as seen from where pytest was started unless
        given."""
        last = self.judged[-1] if self.judged else None
        metrics = last.metrics if last is not None else Metrics({})
        comparison = self.comparison
        if artifacts is None:
            folder = Path(os.path.relpath(self.session.folder(self.item), self.session.config.invocation_params.dir))
            artifacts = {"trace.pftrace": str(folder / "trace.pftrace")} if self.session.keeps(failed=True) else {}
        return Case(
            nodeid=self.session.nodeid(self.item),
            outcome=self.outcome,
            state=self.state if state is None else state,
            reason=self.reason,
            gpu=", ".join(dict.fromkeys(metrics.gpus)),
            rows=comparison.rows if comparison is not None else (),
            values=dict(metrics.values),
            regions=dict(metrics.regions),
            user=dict(self.user),
            problems=tuple(dict.fromkeys(p for run in self.judged for p in run.metrics.problems)),
            notes=(*(comparison.notes if comparison is not None else ()), *self.notes),
            artifacts=dict(artifacts),
            duration_s=self.duration_s,
            runs=len(self.judged) or 1,
            golden=self.session.shown(self.expected.path) if self.expected.golden is not None else "",
            worker=self.session.worker,
        )
