"""The model of reports: a case for each test, and the session. It can be converted to JSON and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..analysis.definitions import Value
from ..golden.changes import Change
from ..golden.compare import Row
from ..golden.decide import State as State
from ..golden.model import CODE, Verdict, plain, scoped, stored

#: The reason of a case without one.
UNKNOWN = "no reason is known"
#: The reason of an unconfirmed case without one.
CONFIRM = "from one run; `pytest --cutrace-update` again confirms"
#: Fields of a case that are not written to JSON.
_INTERNAL = ("timeline", "change")


#: The label of each state and the heading of a list of such tests, in the order of lists.
STATES: dict[State, tuple[str, str]] = {
    State.UNVERIFIED: ("unverified", "Not verified"),
    State.MISSING: ("no golden", "Without a golden value"),
    State.UNCONFIRMED: ("unconfirmed", "Not confirmed"),
    State.UPDATED: ("updated", "Updated golden values"),
    State.GATED: ("gated", "Gated"),
    State.TRACED: ("traced", "Traced"),
    State.UNTRACED: ("not traced", "Not traced"),
}
#: Verdicts on less work, memory or time.
BETTER = (Verdict.BETTER, Verdict.FAST)
#: Verdicts on a value that differs from the golden one.
DIFFERENT = (Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW, *BETTER)
#: The state of machine code, by verdict.
_CODE_WORDS = {Verdict.SAME: "same", Verdict.CHANGED: "other"}


@dataclass(frozen=True)
class Kernel:
    """The kernels of one stable name in a test: their number and durations (ns)."""

    name: str
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class Style:
    """The common properties of slices: their name, details, and ``kind``, which determines the colour: kernel, copy,
    fill, graph, api, wait, nvtx, mark, region, or rest for omitted slices."""

    name: str
    detail: str
    kind: str


@dataclass(frozen=True)
class Lane:
    """One lane of a timeline: a stream, the API calls or NVTX ranges of a thread, or the regions of the test.

    ``slices`` are (start, duration, style, depth, link), ascending by start. The start (from the start of the timeline)
    and the duration are in ns. The style is an index into :attr:`Timeline.styles`. The depth is the row in the lane.
    The link is a common number of a call and the work that it launched, else 0.
    """

    title: str
    group: str
    slices: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True)
class Timeline:
    """The timeline of a test. ``span_ns`` is the time from the start of its window to the end of the window, or to the
    end of the last slice; ``left_out`` is the number of omitted slices."""

    span_ns: int
    lanes: tuple[Lane, ...]
    styles: tuple[Style, ...]
    left_out: int = 0


@dataclass(frozen=True)
class CallSite:
    """A place in Python code that launched work, ``count`` times, with ``bytes`` in all.

    ``place`` is a string such as ``mylib/ops.py:42 in fused_add``, "" if no Python code made the call. ``test`` is the
    line of the test that led to the place, "" if it is the same line or unknown.
    """

    place: str
    test: str
    count: int
    bytes: int


@dataclass(frozen=True)
class AddedWork:
    """Work of one name that exceeds the golden value of a failed metric, and the places that launched the work of this
    name.

    ``change`` is the difference. The work of ``+ cast_kernel`` is new, so all its sites are new. For ``softmax_kernel 3
    -> 5`` it is unknown which site is new. ``name`` is "" for a metric without parts. ``others`` counts further sites.
    """

    metric: str
    region: str
    name: str
    change: str
    sites: tuple[CallSite, ...]
    others: int = 0


def _is_better(row: Row) -> bool:
    return row.verdict in BETTER and row.gated and not row.failed


def _is_replaced(row: Row) -> bool:
    """Whether an update replaces the value of a row."""
    written = row.gated or row.metric == CODE
    return row.verdict in DIFFERENT and written and row.rule != "limit"


def _is_other_code(row: Row) -> bool:
    return row.metric == CODE and row.verdict is Verdict.CHANGED and not row.failed


@dataclass(frozen=True)
class Case:
    """One test.

    ``rows`` compare it with its golden file or its limits; ``values`` and ``regions`` were measured; ``user`` was
    recorded by the test itself. ``reason`` explains the state; ``problems`` and ``notes`` are sentences. ``artifacts``
    are the paths of files (``run.bin``, ``trace.pftrace``, ``metrics.json``) relative to the folder of the report;
    ``golden`` is the path of the golden file. ``environment`` is the environment of the golden values
    (``sm_90-cuda13``); ``recorded_on`` has driver, CUDA version and clock; ``job`` is the label of the CI job in a
    merged report. ``added`` has the lines of Python that launched added work. ``change`` has the new golden values.
    ``change`` and ``timeline`` are not in report.json. ``first_did_more`` says that the first run did GPU work that the
    judged runs did not. ``codes`` are the machine codes of its kernels (of :class:`.Metrics`), None if none were
    recorded. ``allowed`` has the number of allowed calls in all runs, by the list of allowed places, joined by commas.

    In an updated case only rows of limits fail, because the update wrote the values that differed.
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
    first_did_more: bool = False
    codes: Mapping[str, tuple[str, ...]] | None = None
    added: tuple[AddedWork, ...] = ()
    allowed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state is not State.UPDATED or not self.failed_rows:
            return
        rows = []
        for row in self.rows:
            if row.rule != "limit":
                row = replace(row, failed=False)
            rows.append(row)
        object.__setattr__(self, "rows", tuple(rows))

    @property
    def name(self) -> str:
        """The name of the test without its file: ``TestSoftmax.test_fwd[float16]``."""
        file, _, rest = self.nodeid.partition("::")
        # Parameters may contain "::" too.
        head, bracket, parameters = rest.partition("[")
        return head.replace("::", ".") + bracket + parameters or file

    @property
    def file(self) -> str:
        return self.nodeid.partition("::")[0]

    @property
    def drifted(self) -> bool:
        """Whether a gated metric fails, or the numbers of a gated test are unreliable."""
        if self.failed_rows:
            return True
        return self.state is State.GATED and bool(self.problems)

    @property
    def bad(self) -> bool:
        """Whether the case drifted, or the test failed for another reason."""
        return self.drifted or self.outcome in ("failed", "error")

    @property
    def failed_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.failed)

    @property
    def unstable(self) -> tuple[str, ...]:
        """The metrics whose golden values differed from run to run, so that they are not compared."""
        metrics = []
        for row in self.rows:
            if row.verdict is not Verdict.UNSTABLE:
                continue
            metric = scoped(row.region, row.metric)
            metrics.append(metric)
        return tuple(metrics)

    @property
    def code(self) -> str:
        """``same`` if each kernel ran the code of the golden file, ``other`` if a kernel ran other code, else
        ``unknown``."""
        for row in self.rows:
            if row.metric == CODE:
                return _CODE_WORDS.get(row.verdict, "unknown")
        return "unknown"

    @property
    def other_code(self) -> tuple[Row, ...]:
        """The row of machine code that differs from the golden value and does not fail."""
        if self.state is State.UPDATED:
            return ()
        return tuple(filter(_is_other_code, self.rows))

    @property
    def better(self) -> tuple[Row, ...]:
        """The gated rows that are better than the golden value and do not fail."""
        if self.state is State.UPDATED:
            return ()
        return tuple(filter(_is_better, self.rows))

    @property
    def updated(self) -> tuple[Row, ...]:
        """The rows whose golden value an update replaced."""
        if self.state is not State.UPDATED:
            return ()
        return tuple(filter(_is_replaced, self.rows))

    @property
    def why(self) -> str:
        """The reason, or a default reason."""
        if self.reason:
            return self.reason
        if self.state is State.UNCONFIRMED:
            return CONFIRM
        return UNKNOWN

    @property
    def device(self) -> str:
        """The GPU with the environment: ``NVIDIA A100 (sm_80)``."""
        if self.gpu and self.environment:
            return f"{self.gpu} ({self.environment})"
        return self.gpu or self.environment

    def to_json(self) -> dict[str, Any]:
        """The case as JSON values, without the timeline and the change."""
        values = _plain_fields(self, without=_INTERNAL)
        values["code"] = self.code
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The case from the result of :meth:`to_json`. Unknown keys are ignored."""
        known = _known(cls, data)
        known["state"] = State(known.get("state", State.TRACED))
        _read_list(known, "problems", str)
        _read_list(known, "notes", str)
        _read_list(known, "rows", _row)
        _read_list(known, "kernels", lambda kernel: Kernel(**kernel))
        if known.get("codes"):
            codes = known["codes"].items()
            known["codes"] = {name: tuple(own) for name, own in codes}
        _read_list(known, "added", _added_work)
        return cls(**known)


@dataclass(frozen=True)
class SessionReport:
    """A session: its cases in the order of execution, a header line, its start (ISO 8601), its duration (s), and the
    versions of software (``cutrace``, ``driver``, ``CUDA``, ...). ``commit`` is the id of the tested source, ``job``
    the label of the CI job. ``account`` is the account of the golden values: ``16: 12 compared, 4 skipped``."""

    cases: tuple[Case, ...]
    header: str = ""
    started: str = ""
    duration_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    commit: str = ""
    job: str = ""
    account: str = ""

    @property
    def counts(self) -> dict[State, int]:
        """The number of cases by state, zeros included."""
        numbers = dict.fromkeys(State, 0)
        for case in self.cases:
            numbers[case.state] += 1
        return numbers

    @property
    def drifted(self) -> tuple[Case, ...]:
        return tuple(case for case in self.cases if case.drifted)

    @property
    def better(self) -> tuple[Case, ...]:
        """The cases that are better than the golden values and did not drift."""
        return tuple(case for case in self.cases if case.better and not case.drifted)

    @property
    def other_code(self) -> tuple[Case, ...]:
        """The cases with other machine code that does not fail them."""
        return tuple(case for case in self.cases if case.other_code)

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs with their environments."""
        devices = [case.device for case in self.cases if case.device]
        return tuple(dict.fromkeys(devices))

    def reasons(self, state: State) -> dict[str, int]:
        """The reasons of the cases in a state with their numbers, most frequent first."""
        reasons = Counter(case.why for case in self.cases if case.state is state)
        return dict(reasons.most_common())

    def to_json(self) -> dict[str, Any]:
        out = _plain_fields(self, without=("cases",))
        counts = self.counts.items()
        out["counts"] = {state.value: count for state, count in counts}
        out["drifted"] = len(self.drifted)
        out["better"] = len(self.better)
        out["cases"] = [case.to_json() for case in self.cases]
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionReport:
        known = _known(cls, data)
        _read_list(known, "cases", Case.from_json)
        _read_list(known, "notes", str)
        return cls(**known)


def _plain_fields(one: Case | SessionReport, without: Sequence[str]) -> dict[str, Any]:
    """The fields of an object as JSON values."""
    values = {}
    for field_ in fields(one):
        name = field_.name
        if name not in without:
            values[name] = plain(getattr(one, name))
    return values


def _known(
    cls: type[Case | SessionReport | Row], data: Mapping[str, Any]
) -> dict[str, Any]:
    """The keys of a JSON object that are fields of the class. Other versions may have further keys."""
    return {one.name: data[one.name] for one in fields(cls) if one.name in data}


def _read_list(
    values: dict[str, Any], name: str, read: Callable[[Any], object]
) -> None:
    """Replace the elements of a list by the results of ``read``. A missing list is empty."""
    values[name] = tuple(map(read, values.get(name) or ()))


def _added_work(data: Mapping[str, Any]) -> AddedWork:
    known = dict(data)
    _read_list(known, "sites", lambda site: CallSite(**site))
    return AddedWork(**known)


def _row(data: Mapping[str, Any]) -> Row:
    known = _known(Row, data)
    known["golden"] = stored(data.get("golden"))
    known["now"] = stored(data.get("now"))
    known["verdict"] = Verdict(data["verdict"])
    _read_list(known, "unknown", str)
    return Row(**known)
