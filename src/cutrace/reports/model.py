"""What reports show: one case a test, and the session around them. Plain data that goes through JSON and back."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..analysis.definitions import Value
from ..golden.changes import Change
from ..golden.compare import Row
from ..golden.model import Verdict, plain, stored

#: The reason of a case that has none.
UNKNOWN = "no reason is known"
#: The same for an unconfirmed one.
CONFIRM = "recorded from one run; run `pytest --cutrace-update` again to confirm"
#: Fields of a case that reports as JSON leave out.
_INTERNAL = ("timeline", "change")


class State(str, enum.Enum):
    """What became of a test. The value is what JSON and the filter of the page say."""

    #: Compared with its golden values or with limits.
    GATED = "gated"
    #: Traced, and nothing to compare with was asked for.
    TRACED = "traced"
    #: It should have been compared, and could not be.
    UNVERIFIED = "unverified"
    #: Not traced: it did no GPU work, or something was in the way.
    UNTRACED = "untraced"
    #: Traced; its golden file is missing.
    MISSING = "missing"
    #: Its golden values were written.
    UPDATED = "updated"
    #: Traced; its golden values come from one run that could not be repeated: shown, not gated.
    UNCONFIRMED = "unconfirmed"


#: What people read for each state, and the heading of a list of such tests, in the order of lists of tests.
STATES: dict[State, tuple[str, str]] = {
    State.UNVERIFIED: ("unverified", "Not verified"),
    State.MISSING: ("no golden", "Without a golden value"),
    State.UNCONFIRMED: ("unconfirmed", "Not confirmed"),
    State.UPDATED: ("updated", "Updated golden values"),
    State.GATED: ("gated", "Gated"),
    State.TRACED: ("traced", "Traced"),
    State.UNTRACED: ("not traced", "Not traced"),
}
#: Verdicts on doing less, or taking less.
BETTER = (Verdict.BETTER, Verdict.FAST)
#: Verdicts on a value that differs from the golden one.
DIFFERENT = (Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW, *BETTER)


@dataclass(frozen=True)
class Kernel:
    """All kernels of one stable name in a test: how many, and their durations in ns."""

    name: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


#: What a slice of a timeline can be; pages colour by it. ``rest`` stands for slices that were left out.
SLICE_KINDS = ("kernel", "copy", "fill", "graph", "api", "wait", "nvtx", "mark", "region", "rest")


@dataclass(frozen=True)
class Style:
    """What slices have in common: their name, what else is known of them, and one of :data:`SLICE_KINDS`."""

    name: str
    detail: str
    kind: str


@dataclass(frozen=True)
class Lane:
    """One lane of a timeline: a stream, the API calls or NVTX ranges of a thread, the regions of the test.

    ``slices`` are (start, duration, style, depth, link), ascending by start: ns from the begin of the timeline, an
    index of :attr:`Timeline.styles`, the row in the lane, and a number that a call shares with what it launched, else
    0.
    """

    title: str
    group: str
    slices: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True)
class Timeline:
    """A picture of a test: ``span_ns`` from the begin of its window to its end or that of the last slice; ``left_out``
    counts the slices that are not in it one by one."""

    span_ns: int
    lanes: tuple[Lane, ...]
    styles: tuple[Style, ...]
    left_out: int = 0


@dataclass(frozen=True)
class Case:
    """One test. ``rows`` compare it with its golden file or its limits; ``values`` and ``regions`` are what was
    measured; ``user`` what the test recorded itself; ``problems`` and ``notes`` are sentences; ``reason`` says why the
    state is what it is; ``artifacts`` are files (``run.bin``, ``trace.pftrace``, ``metrics.json``), by path as seen
    from the folder of the report; ``golden`` is the path of the golden file.

    ``environment`` is what golden values are kept by (``sm_90-cuda13``); ``recorded_on`` names driver, CUDA and clock;
    ``job`` is the label of the CI job in a merged report. ``change`` is what the golden file is to say. It and the
    timeline are not in report.json.

    The values that differed from golden ones are what an update wrote: rows of an updated case never fail, except for
    limits.
    """

    nodeid: str
    outcome: str = "passed"
    state: State = State.TRACED
    reason: str = ""
    gpu: str = ""
    rows: tuple[Row, ...] = ()
    values: dict[str, Value] = field(default_factory=dict)
    regions: dict[str, dict[str, Value]] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    artifacts: dict[str, str] = field(default_factory=dict)
    duration_s: float = 0.0
    runs: int = 1
    golden: str = ""
    worker: str = ""
    kernels: tuple[Kernel, ...] = ()
    timeline: Timeline | None = None
    environment: str = ""
    recorded_on: str = ""
    job: str = ""
    change: Change | None = None

    def __post_init__(self) -> None:
        if self.state is State.UPDATED and any(row.failed for row in self.rows):
            rows = tuple(replace(row, failed=row.failed and row.rule == "limit") for row in self.rows)
            object.__setattr__(self, "rows", rows)

    @property
    def name(self) -> str:
        """The test without its file: ``TestSoftmax.test_fwd[float16]``."""
        file, _, rest = self.nodeid.partition("::")
        # Only what stands before the parameters divides names.
        head, bracket, parameters = rest.partition("[")
        return head.replace("::", ".") + bracket + parameters or file

    @property
    def file(self) -> str:
        return self.nodeid.partition("::")[0]

    @property
    def drifted(self) -> bool:
        """A gated metric is not what it should be, or the numbers of a gated test cannot be trusted."""
        return bool(self.failed_rows) or (self.state is State.GATED and bool(self.problems))

    @property
    def bad(self) -> bool:
        """It drifted, or the test failed for another reason."""
        return self.drifted or self.outcome in ("failed", "error")

    @property
    def failed_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)

    @property
    def better(self) -> tuple[Row, ...]:
        """The gated rows that did less than the golden value and do not fail."""
        if self.state is State.UPDATED:
            return ()
        return tuple(row for row in self.rows if row.verdict in BETTER and row.gated and not row.failed)

    @property
    def updated(self) -> tuple[Row, ...]:
        """The rows whose golden value an update replaced."""
        if self.state is not State.UPDATED:
            return ()
        return tuple(row for row in self.rows if row.verdict in DIFFERENT and row.gated and row.rule != "limit")

    @property
    def why(self) -> str:
        """The reason, or what stands for it."""
        return self.reason or (CONFIRM if self.state is State.UNCONFIRMED else UNKNOWN)

    @property
    def device(self) -> str:
        """The GPU with the environment: ``NVIDIA A100 (sm_80)``."""
        return f"{self.gpu} ({self.environment})" if self.gpu and self.environment else self.gpu or self.environment

    def to_json(self) -> dict[str, Any]:
        """Plain types alone, without the timeline and the change."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in _INTERNAL}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The case of :meth:`to_json`. Unknown keys, of another version, are left aside."""
        known = _known(cls, data)
        for name in ("problems", "notes"):
            known[name] = tuple(known.get(name) or ())
        known["state"] = State(known.get("state", State.TRACED))
        known["rows"] = tuple(map(_row, known.get("rows") or ()))
        known["kernels"] = tuple(Kernel(**kernel) for kernel in known.get("kernels") or ())
        return cls(**known)


@dataclass(frozen=True)
class Report:
    """A session: its cases in the order of running, a line on how it was run, when it began (ISO 8601), how long it
    took, and the versions of what took part (``cutrace``, ``driver``, ``CUDA``, ...). ``commit`` is the id of the
    source that was tested, ``job`` a label of the CI job."""

    cases: tuple[Case, ...]
    header: str = ""
    started: str = ""
    duration_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    commit: str = ""
    job: str = ""

    @property
    def counts(self) -> dict[State, int]:
        """How many cases are in each state, zeros included."""
        found = Counter(case.state for case in self.cases)
        return {state: found[state] for state in State}

    @property
    def drifted(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.drifted)

    @property
    def better(self) -> tuple[Case, ...]:
        """The cases in which something did less than the golden value and nothing failed."""
        return tuple(case for case in self.cases if case.better and not case.drifted)

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs with their environments."""
        return tuple(dict.fromkeys(case.device for case in self.cases if case.device))

    def reasons(self, state: State) -> dict[str, int]:
        """Why cases are in a state, the most frequent reason first."""
        found = Counter(case.why for case in self.cases if case.state is state)
        return dict(found.most_common())

    def to_json(self) -> dict[str, Any]:
        out = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "cases"}
        out["counts"] = {state.value: count for state, count in self.counts.items()}
        out["drifted"] = len(self.drifted)
        out["better"] = len(self.better)
        out["cases"] = [case.to_json() for case in self.cases]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        known = _known(cls, data)
        cases = tuple(map(Case.from_json, known.get("cases") or ()))
        return cls(**{**known, "cases": cases, "notes": tuple(known.get("notes") or ())})


def _known(cls: type[Case | Report | Row], data: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a JSON object that are fields; others come from another version."""
    return {one.name: data[one.name] for one in fields(cls) if one.name in data}


def _row(data: Mapping[str, Any]) -> Row:
    values = {name: stored(data.get(name)) for name in ("golden", "now")}
    return Row(**{**_known(Row, data), **values, "verdict": Verdict(data["verdict"])})
