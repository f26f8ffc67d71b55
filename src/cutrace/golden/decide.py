"""Decide the verdict on a test: its state, the rows of its comparison, and the next step.

:func:`decide` makes the whole verdict from the first run of the test and further runs. It decides whether another run
is needed, and which golden values to write. It runs nothing and writes nothing. The caller carries out the decision: it
runs the body again while :attr:`Decision.next` is ``AGAIN``, and calls :func:`after_teardown` when the test has ended.
"""

from __future__ import annotations

import enum
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..analysis.definitions import METRICS, MetricClass, Metrics
from ..units import first_of
from .compare import Comparison, Row, compare, confirmed, kept, limits
from .model import (
    CODE,
    WORK,
    Entry,
    Observed,
    Verdict,
    amount,
    copy_metric,
    find_metric,
    has_work,
)
from .rules import Budget, Rules, Update
from .update import disputed, merged, observed, own_kernels_changed
from .values import LISTED

#: The maximum of runs until two consecutive runs agree and are written.
_MOST_RUNS = 3
#: The same maximum if only gated states differ: caches and pools may need several runs to fill.
_MOST_STATE_RUNS = 5
#: The number of further runs of a test before it fails on time.
_CONFIRMATIONS = 2
_STATES = frozenset(
    name for name, metric in METRICS.items() if metric.kind is MetricClass.STATE
)

#: The reason of a skipped test whose marker allows this.
ALLOWED_SKIP = "skipped, as may_skip allows"
#: The reason of a test that is not traced because its marker says so.
SWITCHED_OFF = "the marker says off=True"

#: Compares runs with a golden entry, with the arguments of :func:`.compare.compare`.
Compare = Callable[..., Comparison]


class State(str, enum.Enum):
    """The result of a test. JSON and the filter of the page use the value."""

    #: Compared with golden values or limits.
    GATED = "gated"
    #: Traced; no comparison was requested.
    TRACED = "traced"
    #: The comparison was not possible.
    UNVERIFIED = "unverified"
    #: Not traced: no GPU work, or an obstacle given by the reason.
    UNTRACED = "untraced"
    #: Traced; its golden values are missing.
    MISSING = "missing"
    #: Its golden values were written.
    UPDATED = "updated"
    #: Traced; its golden values come from one run that could not be repeated, so they are shown but not gated.
    UNCONFIRMED = "unconfirmed"


class Next(enum.Enum):
    """The next step of a test after its last run."""

    #: Run the body again and call :func:`decide` again.
    AGAIN = "again"
    PASS = "pass"
    FAIL = "fail"


@dataclass(frozen=True)
class Expectation:
    """The settings of a test: how it is traced, and the values for its comparison.

    ``repeat`` is None if the plugin decides. ``counters`` are the hardware counters that the test requests or limits.
    ``budgets`` are the limits by region ("" is the whole test). ``path`` is the golden file of the test's module, and
    ``entry`` the entry of the test in it. ``siblings`` says that the file has entries of other tests. ``may_skip`` says
    that a session with ``require`` may skip the test. ``passed_over`` is the reason why golden values are not recorded
    and not compared, "" if there is none.
    """

    rules: Rules
    path: Path
    marked: bool = False
    off: bool = False
    may_skip: bool = False
    warmup: int = 0
    repeat: int | None = None
    counters: tuple[str, ...] = ()
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    entry: Entry | None = None
    siblings: bool = False
    passed_over: str = ""

    @property
    def skip_reason(self) -> str:
        """The reason to show for the test when it is skipped."""
        if self.may_skip:
            return ALLOWED_SKIP
        return "skipped"

    @property
    def any(self) -> bool:
        """Whether the test is to be verified."""
        return self.entry is not None or self.marked or bool(self.budgets)


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a test whose body passed, measured.

    ``uncounted`` are the hardware counters that could not be read, by region and name, with the reason. ``unseen`` is
    the reason why GPU work may be missing, "" if none is known. ``early``: the run started before CUDA was in use, so
    no counters could be read. A further run can read them. ``limited`` are the metrics for limits with allowed calls:
    ``sync_calls`` without the allowed calls, and ``syncs`` by place. It is None if limits judge ``metrics``.
    """

    metrics: Metrics
    environment: str = ""
    uncounted: Mapping[tuple[str, str], str] = field(default_factory=dict)
    unseen: str = ""
    early: bool = False
    limited: Metrics | None = None


@dataclass(frozen=True)
class GateSettings:
    """The settings of a session on which verdicts depend. Paths in sentences are relative to ``folder``."""

    update: Update | None = None
    scope: str = "existing"
    folder: Path = Path()


@dataclass(frozen=True)
class NewValues:
    """Golden values to write for a test: by an update, or else as a candidate.

    ``observed`` is None if an update changes nothing. ``others`` are changed values of other environments. ``notes``
    are sentences on golden values that stay as they are.
    """

    environment: str
    observed: Observed | None
    update: bool
    notes: tuple[str, ...] = ()
    others: Mapping[str, Observed] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The verdict on a test after its runs so far.

    ``judged`` are the runs that are compared and shown. An update in ``new_values`` is written only if the test passes,
    see :func:`after_teardown`. ``first_did_more``: the first run did GPU work that the judged runs did not.
    """

    next: Next
    state: State = State.UNTRACED
    reason: str = ""
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    judged: tuple[MeasuredRun, ...] = ()
    new_values: NewValues | None = None
    first_did_more: bool = False

    @property
    def environment(self) -> str:
        """The environment of the golden values that apply to the judged runs."""
        return _environment(self.judged)


def decide(
    expected: Expectation,
    runs: Sequence[MeasuredRun | None],
    settings: GateSettings,
    compare_entry: Compare = compare,
) -> Decision:
    """The verdict on a test after these runs of its body, in order. The first run passed. A later run that failed or
    was not possible is None.

    ``compare_entry`` replaces the comparison with the golden entry.
    """
    decider = _Decider(expected, runs, settings, compare_entry)
    try:
        return decider.decision()
    except _NeedsRun:
        return Decision(
            Next.AGAIN, notes=tuple(decider.notes), judged=tuple(decider.judged)
        )


def names_code(update: Update | None) -> bool:
    """Whether an update names the machine code of kernels."""
    return update is not None and bool(update.only) and update.takes(METRICS[CODE])


def untraced(expected: Expectation, reason: str) -> Decision:
    """The decision on a test that could not be traced, for this reason."""
    if expected.any:
        return Decision(Next.PASS, State.UNVERIFIED, reason)
    return Decision(Next.PASS, State.UNTRACED, reason)


def not_passed(expected: Expectation, run: MeasuredRun, *, skipped: bool) -> Decision:
    """The decision on a test whose body failed or was skipped: it is measured, not compared."""
    reason = "the test did not pass"
    if skipped:
        reason = expected.skip_reason
    worked = run.metrics.gpu_records > 0
    state = State.UNTRACED
    if expected.any and (worked or not skipped):
        state = State.UNVERIFIED
    elif worked:
        state = State.TRACED
    return Decision(Next.FAIL, state, reason, judged=(run,))


def after_teardown(decision: Decision, *, passed: bool) -> Decision:
    """The final decision. An update is written only if all of the test ``passed``; a candidate always is."""
    new_values = decision.new_values
    if new_values is None or not new_values.update:
        return decision
    if not passed:
        return replace(decision, new_values=None)
    decision = replace(decision, notes=(*decision.notes, *new_values.notes))
    if new_values.observed is None:
        return replace(decision, new_values=None)
    if _uncounted(decision.judged):
        return decision
    return replace(decision, state=State.UPDATED, reason="")


def wants_golden(
    expected: Expectation, runs: Sequence[MeasuredRun], settings: GateSettings
) -> bool:
    """Whether a test should have golden values. This is true if the test has golden values or the marker, or if it does
    GPU work in a module with golden values. With the scope ``all`` and in updates, each test with GPU work should have
    golden values."""
    if expected.passed_over:
        return False
    if expected.entry is not None or expected.marked:
        return True
    if settings.scope == "marked":
        return False
    wide = settings.scope == "all" or settings.update is not None or expected.siblings
    return wide and any(run.metrics.gpu_records for run in runs)


class _NeedsRun(Exception):
    """The verdict depends on another run."""


class _Decider:
    """Makes one decision. It takes one run after another, when the verdict needs it."""

    def __init__(
        self,
        expected: Expectation,
        runs: Sequence[MeasuredRun | None],
        settings: GateSettings,
        compare_entry: Compare,
    ) -> None:
        self._expected = expected
        self._waiting = deque(runs)
        self._settings = settings
        self._compare_entry = compare_entry
        #: The taken runs that passed, without warm-up runs.
        self._passed: list[MeasuredRun] = []
        self.judged: list[MeasuredRun] = []
        self.notes: list[str] = []

    def decision(self) -> Decision:
        first = self._another()
        assert first is not None
        why_not = self._why_untraced(first)
        if why_not:
            return untraced(self._expected, why_not)
        self._note(first.unseen)
        self.judged = [first]

        self._replace_early_run(first)
        self._take_requested_runs()
        new_values = None
        updating = self._updating
        if updating:
            new_values = self._update()
        comparison = self._compared(self.judged)
        if comparison is not None:
            comparison = self._second_chance(comparison)
            comparison = self._confirm_slower_times(comparison)
        self._note_unknown_code()

        if updating:
            state, reason = self._state(comparison)
        elif self._expected.entry is None and self._wants_golden:
            state, reason = self._missing()
            new_values = self._candidate()
        else:
            state, reason = self._state(comparison)
            if comparison is not None and _proposes(comparison):
                new_values = self._candidate()

        following = Next.PASS
        if self._fails(comparison):
            following = Next.FAIL
        return Decision(
            following,
            state,
            reason,
            comparison,
            tuple(self.notes),
            tuple(self.judged),
            new_values,
            _did_more(first, self.judged),
        )

    # Runs

    def _another(self) -> MeasuredRun | None:
        """Take the next run. Returns None if the body did not pass again."""
        if not self._waiting:
            raise _NeedsRun
        run = self._waiting.popleft()
        if run is not None:
            self._passed.append(run)
        return run

    def _why_untraced(self, first: MeasuredRun) -> str:
        """The reason why no run can be judged; "" if a run can be judged."""
        metrics = first.metrics
        if metrics.gpu_records:
            return ""
        if first.unseen:
            return first.unseen
        if self._expected.any or metrics.values.get("allocations"):
            return ""
        return "; ".join(metrics.problems) or "no GPU work"

    def _replace_early_run(self, first: MeasuredRun) -> None:
        """Judge the second run instead of a first run in which counters could not be read yet."""
        if not first.early:
            return
        again = self._another()
        if again is None:
            return
        self._passed = [again]
        self.judged = [again]
        self._note(
            "CUDA was not in use at the start of the first run, and counters need it: this is the second run"
        )

    def _take_requested_runs(self) -> None:
        """Take the runs that the marker or the settings request, and drop the warm-up runs."""
        warmup = self._expected.warmup
        if not (warmup or self._expected.repeat):
            return
        wanted = warmup + (self._expected.repeat or 1)
        while len(self._passed) < wanted and self._another() is not None:
            pass
        self._passed = self._passed[warmup:] or self._passed[-1:]
        self.judged = list(self._passed)

    def _second_chance(self, comparison: Comparison) -> Comparison:
        """Compare the second run if the first run fails, because the first run of a process also loads modules and
        fills caches and pools. Slower times are confirmed by further runs instead."""
        expected = self._expected
        if expected.warmup or expected.repeat or comparison.problems:
            return comparison
        if len(self._passed) > 1:
            return comparison
        if all(row.verdict is Verdict.SLOW for row in comparison.rows if row.failed):
            return comparison
        again = self._another()
        if again is None:
            return comparison
        second = self._compared([again])
        assert second is not None
        self.judged = [again]
        self._note("the first run differed too: this is the second run")
        return second

    def _confirm_slower_times(self, comparison: Comparison) -> Comparison:
        """Fail on a slower time only if further runs are slower too."""
        failing = {row.verdict for row in comparison.rows if row.failed}
        if self._updating or Verdict.SLOW not in failing:
            return comparison
        for _ in range(_CONFIRMATIONS):
            attempts = [self._another() for _ in self.judged]
            runs = [run for run in attempts if run is not None]
            if len(runs) < len(attempts):
                break
            other = self._compared(runs)
            assert other is not None
            comparison = confirmed(comparison, other)
        return comparison

    def _settle(self) -> Observed | None:
        """Take further runs until two consecutive runs agree, because their values will be written. Returns the values,
        None if no two runs agree."""
        while not _have_problems(self._settled):
            most = _MOST_RUNS
            settled = self._settled
            if len(settled) > 1:
                found = observed(_metrics(settled), self._rules(settled))
                names = disputed(found)
                if not names:
                    return found
                if all(name.rpartition("/")[2] in _STATES for name in names):
                    most = _MOST_STATE_RUNS
            if self._expected.repeat or len(self._passed) >= most:
                return None
            if self._another() is None:
                return None
        return None

    @property
    def _settled(self) -> list[MeasuredRun]:
        """The runs whose values are written: the requested runs, else the last two, else the only run."""
        if self._expected.repeat:
            return self.judged
        return self._passed[-2:]

    # Comparison

    def _compared(self, runs: Sequence[MeasuredRun]) -> Comparison | None:
        """Compare runs with the golden entry and with limits; None if the test has neither."""
        expected = self._expected
        entry = expected.entry
        metrics = _metrics(runs)
        uncounted = _uncounted(runs)
        comparisons: list[Comparison] = []
        if entry is not None:
            environment = _environment(runs)
            rules = self._rules(runs)
            compared = self._compare_entry(
                entry, metrics, environment=environment, rules=rules
            )
            golden = entry.get(environment, Observed())
            rows = _uncounted_rows(uncounted, golden, expected.rules)
            comparisons += [compared, Comparison(tuple(rows))]
        limited = [run.limited or run.metrics for run in runs]
        for region, budget in expected.budgets.items():
            counted = dict(budget.limits)
            for name in budget.limits:
                if (region, name) in uncounted:
                    del counted[name]
            comparisons.append(limits(limited, counted, region))
        if not comparisons:
            return None
        joined = _joined(comparisons)
        if self._updating:
            return _limits_only(joined)
        return joined

    def _rules(self, runs: Sequence[MeasuredRun]) -> Rules:
        """The rules for runs. They ignore counters that could not be read in a run, and code unless it is compared."""
        rules = self._expected.rules
        ignored = list(rules.ignore)
        recorded = any(map(_has_code, runs))
        if recorded and not self._wants_code:
            ignored.append(CODE)
        for _, name in _uncounted(runs):
            ignored.append(name)
        return replace(rules, ignore=tuple(ignored))

    @property
    def _wants_code(self) -> bool:
        """Whether machine code is compared and written: if the golden values have code, or if the gate or the update
        names it."""
        if self._expected.rules.gates(METRICS[CODE]) or names_code(
            self._settings.update
        ):
            return True
        entry = self._expected.entry or {}
        return any(CODE in one.metrics("") for one in entry.values())

    def _note_unknown_code(self) -> None:
        """Note the kernels whose machine code is not known."""
        kernels: set[str] = set()
        for run in self.judged:
            if _has_code(run):
                values = kept(run.metrics, "", self._rules([run])) or {}
                if CODE in values:
                    kernels.update(values[CODE].unknown)
        if kernels:
            names = ", ".join(first_of(sorted(kernels), LISTED))
            self._note(
                f"the machine code of {names} is not known, so it is not compared"
            )

    def _fails(self, comparison: Comparison | None) -> bool:
        """Whether the test fails: on a value, or on unreliable numbers of a test that has to be verified."""
        if comparison is not None and any(row.failed for row in comparison.rows):
            return True
        return self._expected.any and _have_problems(self.judged)

    # State

    def _state(self, comparison: Comparison | None) -> tuple[State, str]:
        """The state of a test that lacks no golden values, with the reason."""
        for why in _uncounted(self.judged).values():
            return State.UNVERIFIED, f"counters: {why}"
        if comparison is None:
            return State.TRACED, self._expected.passed_over
        if comparison.unconfirmed:
            return State.UNCONFIRMED, "recorded from one run that could not be repeated"
        if comparison.unverified:
            return State.UNVERIFIED, comparison.unverified
        if not self._gates(comparison):
            return State.UNVERIFIED, _why_nothing_is_gated(comparison)
        return State.GATED, ""

    def _gates(self, comparison: Comparison) -> bool:
        """Whether a value of the test is gated. If the test has golden values, one of them has to be gated, because a
        limit does not replace them. New work fails a test whose golden values have no work."""
        has_golden_values = self._has_golden_values()
        for row in comparison.rows:
            limits_only = row.rule == "limit" and has_golden_values
            if _compares(row) and not limits_only:
                return True
        if comparison.rows or has_golden_values:
            return False
        rules = self._expected.rules
        return any(_gates_work(rules, name) for name in WORK)

    def _has_golden_values(self) -> bool:
        entry = self._expected.entry or {}
        golden = entry.get(_environment(self.judged), Observed())
        return any(golden.values.values()) or any(golden.unstable.values())

    def _missing(self) -> tuple[State, str]:
        """The state of a test that lacks golden values, with the reason."""
        for why in _uncounted(self.judged).values():
            self._note(f"counters: {why}")
        path = os.path.relpath(self._expected.path, self._settings.folder)
        if self._expected.siblings:
            reason = f"{path} has no values of it"
        else:
            reason = f"there is no {path}"
        return State.MISSING, reason

    @property
    def _wants_golden(self) -> bool:
        return wants_golden(self._expected, self.judged, self._settings)

    @property
    def _updating(self) -> bool:
        return self._settings.update is not None and self._wants_golden

    def _note(self, sentence: str) -> None:
        if sentence:
            self.notes.append(sentence)

    # Values to write

    def _update(self) -> NewValues | None:
        """The values that this update writes. If a value changes, further runs must agree with it, and these runs are
        judged."""
        update = self._settings.update
        assert update is not None
        new_values = self._merged(update)
        if new_values is not None and new_values.observed is not None:
            found = self._settle()
            self.judged = self._settled
            new_values = self._merged(update, found)
        return new_values

    def _candidate(self) -> NewValues | None:
        """The values that an update would write. They are proposed as a candidate."""
        new_values = self._merged(Update(), self._settle())
        if new_values is None or new_values.observed is None:
            return None
        return replace(new_values, update=False, notes=(), others={})

    def _merged(
        self, update: Update, found: Observed | None = None
    ) -> NewValues | None:
        """The golden entry, updated with the values of the settled runs; None if they are unreliable. ``found`` has
        these values if they are known. Counters that could not be read keep their golden values."""
        runs = self._settled
        environment = _environment(runs)
        if not environment or _have_problems(runs):
            return None
        several = len(runs) > 1
        new = found or observed(_metrics(runs), self._rules(runs), confirmed=several)
        entry = self._expected.entry
        old = (entry or {}).get(environment, Observed())
        for region, name in _uncounted(runs):
            copy_metric(region, name, old, new)
        if update.mode != "all" and _worked(old) and not _worked(new):
            kept = "the golden values are kept: no GPU work was seen, and only --cutrace-update=all writes that"
            return NewValues(environment, None, update=True, notes=(kept,))
        rules = self._expected.rules
        changed, notes = merged(
            entry, new, environment=environment, update=update, rules=rules
        )
        if changed == entry:
            return NewValues(environment, None, update=True, notes=notes)
        written = changed[environment]
        others = own_kernels_changed(entry or {}, environment, written, rules)
        return NewValues(environment, written, update=True, notes=notes, others=others)


def _environment(runs: Sequence[MeasuredRun]) -> str:
    """The environment of the run that used the most GPUs."""
    return max(runs, key=lambda run: len(run.metrics.gpus)).environment


def _metrics(runs: Sequence[MeasuredRun]) -> list[Metrics]:
    return [run.metrics for run in runs]


def _has_code(run: MeasuredRun) -> bool:
    """Whether a run has the machine code of kernels."""
    return bool(run.metrics.codes)


def _have_problems(runs: Sequence[MeasuredRun]) -> bool:
    return any(run.metrics.problems for run in runs)


def _uncounted(runs: Sequence[MeasuredRun]) -> dict[tuple[str, str], str]:
    """The counters that could not be read in one of these runs, by region and name, with the reason."""
    uncounted: dict[tuple[str, str], str] = {}
    for run in runs:
        uncounted.update(run.uncounted)
    return uncounted


def _uncounted_rows(
    uncounted: Mapping[tuple[str, str], str], golden: Observed, rules: Rules
) -> Iterator[Row]:
    """Rows of counters that could not be read."""
    for (region, name), why in uncounted.items():
        metric = find_metric(name)
        if metric is None or rules.ignores(metric):
            continue
        gated = rules.gates(metric)
        yield Row(
            name,
            region,
            golden=golden.values.get(region, {}).get(name),
            now=None,
            rule=rules.label(metric),
            verdict=Verdict.UNVERIFIED,
            gated=gated,
            detail=why,
        )


def _joined(comparisons: Sequence[Comparison]) -> Comparison:
    """Several comparisons of the same runs as one. Each note and problem is kept once."""
    rows: list[Row] = []
    notes: dict[str, None] = {}
    problems: dict[str, None] = {}
    unconfirmed = False
    for one in comparisons:
        rows += one.rows
        notes.update(dict.fromkeys(one.notes))
        problems.update(dict.fromkeys(one.problems))
        unconfirmed |= one.unconfirmed
    return Comparison(tuple(rows), tuple(notes), tuple(problems), unconfirmed)


def _limits_only(comparison: Comparison) -> Comparison:
    """The comparison of an update. Only limits can fail this comparison, because the update replaces the values that
    differ."""
    rows = []
    for row in comparison.rows:
        if row.rule != "limit":
            row = replace(row, failed=False)
        rows.append(row)
    return replace(comparison, rows=tuple(rows))


def _proposes(comparison: Comparison) -> bool:
    """Whether golden values are missing, differ or are too high, so that measured values are proposed."""
    for row in comparison.rows:
        if row.verdict is Verdict.BETTER and row.gated and row.rule != "limit":
            return True
        if row.metric == CODE and row.verdict is Verdict.UNVERIFIED and row.golden:
            # The code of a kernel is unknown. It would be unknown in another run, too.
            continue
        if row.verdict is Verdict.UNVERIFIED and row.now is not None:
            return True
        if row.verdict is not Verdict.UNVERIFIED and row.failed and row.rule != "limit":
            return True
    return False


def _why_nothing_is_gated(comparison: Comparison) -> str:
    if any(row.verdict is Verdict.UNSTABLE for row in comparison.rows):
        return "nothing is gated: its golden values are unstable"
    return "nothing is gated: the rules gate none of its golden values"


def _compares(row: Row) -> bool:
    """Whether a row gates something. It gates nothing if all its names are ignored."""
    return row.gated and bool(row.golden != {} or row.now)


def _gates_work(rules: Rules, name: str) -> bool:
    """Whether rules gate a kind of work."""
    metric = METRICS[name]
    return rules.gates(metric) and not rules.ignores(metric)


def _did_more(first: MeasuredRun, judged: Sequence[MeasuredRun]) -> bool:
    """Whether the first run did more of a kind of work than any run that is judged."""
    for name in WORK:
        done = amount(first.metrics.values.get(name)) or 0
        others = [amount(run.metrics.values.get(name)) or 0 for run in judged]
        if done > max(others):
            return True
    return False


def _worked(observed: Observed) -> bool:
    return has_work(observed.values.get("", {}))
