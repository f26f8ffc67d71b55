"""Answers to why kernels are slow: the findings of :mod:`.rules` on each kernel, and tables of its figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from operator import attrgetter

from ...analysis.tables import Cell, Table, columns_of
from ...errors import CutraceError
from ...patterns import Patterns, any_matcher, several
from ...trace import Trace
from ...units import first_names
from . import rules
from .facts import Facts, kernel_facts
from .roofline import Roofline, every_roofline
from .rules import Finding, KernelRule
from .sources import SAMPLES, line_metrics, sampled_lines

#: The largest number of lines of source of a kernel.
_LINES = 5
#: The largest number of kernels in a note.
_NAMED = 5

_BYTES = "dram__bytes_{}.sum"
_REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"


@dataclass(frozen=True)
class Answer:
    """The answer on one kernel: its ``facts``, the ``findings`` with the limiter first, the rules that were
    ``not_asked`` because metrics are missing, and ``tables`` of figures."""

    facts: Facts
    findings: tuple[Finding, ...]
    not_asked: tuple[KernelRule, ...]
    tables: tuple[Table, ...]

    @property
    def limiter(self) -> str:
        """The name of the rule that found the limiter, "" if the metrics do not determine it."""
        if self.limiting is None:
            return ""
        return self.limiting.rule

    @property
    def limiting(self) -> Finding | None:
        """The finding that names the limiter."""
        for finding in self.findings:
            if finding.rule in rules.LIMITERS:
                return finding
        return None


@dataclass(frozen=True)
class KernelChange:
    """A kernel ``before`` and ``after`` a change: the ``gone`` and the ``new`` causes, and its ``values`` in both
    captures."""

    before: Answer
    after: Answer
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    values: Table

    @property
    def time(self) -> float | None:
        """The relative change of the mean time of a launch: -0.5 means half the time. None if it is unknown."""
        return _change(self.before.facts.time, self.after.facts.time)


@dataclass(frozen=True)
class Why:
    """The ``answers`` and ``rooflines`` of a capture, or the ``changes`` between two captures. ``notes`` describe
    missing data."""

    answers: tuple[Answer, ...] = ()
    rooflines: tuple[Roofline, ...] = ()
    changes: tuple[KernelChange, ...] = ()
    notes: tuple[str, ...] = ()


def explained(trace: Trace, kernel: Patterns | None = None) -> Why:
    """The answers and rooflines of a trace. ``kernel`` are patterns of names. Raises :class:`CutraceError` as
    :func:`answers`."""
    found = answers(trace, kernel)
    names = {answer.facts.kernel for answer in found}
    roofs = []
    for roof in every_roofline(trace):
        points = [point for point in roof.points if point.kernel in names]
        if points:
            roofs.append(replace(roof, points=tuple(points)))
    return Why(tuple(found), tuple(roofs), (), tuple(trace.quality.sentences()))


def compared(before: Why, after: Why) -> Why:
    """The changes of the kernels in both captures, longest time before the change first. Kernels are matched by stable
    name, and kernels with the same name by symbol and launch configuration. Raises :class:`CutraceError` if no kernel
    is in both."""
    pairs = _pairs(before.answers, after.answers)
    if not pairs:
        raise CutraceError(
            "no kernel has metrics in both captures: profile the same kernels, or choose others with `kernel=`"
        )
    changes = tuple(starmap(_changed, pairs))
    notes = []
    for side, every, paired in zip(
        ("before", "after"), (before, after), zip(*pairs, strict=True), strict=True
    ):
        notes += [f"{side}: {note}" for note in every.notes]
        both = set(map(id, paired))
        alone = {}
        for answer in every.answers:
            if id(answer) not in both:
                alone[answer.facts.kernel] = True
        if alone:
            notes.append(f"only {side}: {first_names(list(alone), _NAMED)}")
    return Why((), (), changes, tuple(notes))


def _pairs(
    before: Sequence[Answer], after: Sequence[Answer]
) -> list[tuple[Answer, Answer]]:
    """Pairs of the same kernel in both captures. Kernels with the same symbol and configuration are paired first, then
    kernels with the same symbol, the same configuration, or only the same stable name. Several candidates are paired in
    the order of time."""
    left = list(after)
    chosen: dict[int, Answer] = {}
    for identity in _IDENTITIES:
        for number, one in enumerate(before):
            if number in chosen:
                continue
            for other in left:
                if identity(one.facts) == identity(other.facts):
                    chosen[number] = other
                    left.remove(other)
                    break
    return [(before[number], chosen[number]) for number in sorted(chosen)]


#: The properties that paired kernels share, the closest match first.
_IDENTITIES: tuple[Callable[[Facts], object], ...] = (
    attrgetter("kernel", "symbol", "shape"),
    attrgetter("kernel", "symbol"),
    attrgetter("kernel", "shape"),
    attrgetter("kernel"),
)


def _changed(before: Answer, after: Answer) -> KernelChange:
    gone = _causes_of(before, without=after)
    new = _causes_of(after, without=before)
    columns = columns_of("metric: text, before: number, after: number, change: 1")
    rows: list[tuple[Cell, ...]] = []
    for metric, value in before.facts.values.items():
        now = after.facts.values.get(metric)
        if now is not None:
            rows.append((metric, value, now, _change(value, now)))
    values = Table("values", "Values", columns, rows)
    return KernelChange(before, after, gone, new, values)


def _causes_of(answer: Answer, without: Answer) -> tuple[Finding, ...]:
    """The causes that the other answer certainly lacks."""
    known = rules.LIMITERS | {finding.rule for finding in without.findings}
    # A rule that was not asked may apply there.
    known |= {rule.name for rule in without.not_asked}
    return tuple(finding for finding in answer.findings if finding.rule not in known)


def _change(before: float, after: float) -> float | None:
    if not before:
        return None
    return after / before - 1


def answers(trace: Trace, kernel: Patterns | None = None) -> list[Answer]:
    """An answer for each kernel with metrics and a matching name, longest time first. Raises
    :class:`CutraceError` if there is none."""
    every = kernel_facts(trace)
    if not every:
        where = first_names([str(source) for source in trace.sources], _NAMED)
        absent = f"there are no hardware metrics of kernels in {where}: record them with `cutrace profile -- COMMAND`"
        raise CutraceError(trace.quality.doubt(absent))
    if kernel is not None:
        patterns = several(kernel)
        matches = any_matcher(patterns)
        chosen = []
        for facts in every:
            names = (facts.kernel, facts.symbol, facts.full_name)
            if any(map(matches, names)):
                chosen.append(facts)
    else:
        chosen = every
    if not chosen:
        known = sorted({facts.kernel for facts in every})
        asked = [pattern or "''" for pattern in patterns]
        absent = f"no kernel with metrics matches {first_names(asked, _NAMED)}: there are {first_names(known, _NAMED)}"
        raise CutraceError(trace.quality.doubt(absent))
    lines = _lines_by_function(trace)
    return [_answer(facts, lines.get(facts.symbol, [])) for facts in chosen]


def _answer(facts: Facts, lines: Sequence[tuple[Cell, ...]]) -> Answer:
    tables = [table for table in _tables(facts) if table.rows]
    if lines:
        columns = columns_of("share: 1, of: text, line: text")
        tables.append(Table("lines", "Lines of source", columns, lines))
    return Answer(
        facts=facts,
        findings=tuple(rules.findings(facts)),
        not_asked=tuple(rules.not_asked(facts)),
        tables=tuple(tables),
    )


def suffices(names: Sequence[str]) -> bool:
    """Whether these metrics are enough to determine the limiter of a kernel."""
    return rules.COMPUTE in names and rules.MEMORY in names


# Tables


def _tables(facts: Facts) -> Iterator[Table]:
    yield _compute(facts)
    yield _memory(facts)
    yield _occupancy(facts)
    yield _stalls(facts)


def _part(value: float | None) -> float | None:
    """Convert a percentage to a share."""
    if value is None:
        return None
    return value / 100


def _compute(facts: Facts) -> Table:
    """The busy time of the units of the multiprocessors, while they have a warp."""
    values = facts.values
    rows: list[tuple[Cell, ...]] = []
    if rules.COMPUTE in values:
        rows.append(("all, of the whole time", values[rules.COMPUTE] / 100, None))
    issue = values.get(rules.ISSUE)
    if issue is not None:
        instructions = values.get("sm__inst_executed.avg.per_cycle_active")
        rows.append(("issue slots", issue, instructions))
    pipes = {}
    for pipe in rules.PIPES:
        busy = rules.busy_pipe(facts, pipe)
        if busy is not None:
            pipes[pipe] = busy / 100
    busiest = sorted(pipes, key=lambda pipe: -pipes[pipe])
    rows += [(f"{pipe} pipe", pipes[pipe], None) for pipe in busiest]
    columns = columns_of("unit: text, of peak: 1, instructions a cycle: number")
    return Table("compute", "Compute", columns, rows)


def _memory(facts: Facts) -> Table:
    """Bytes, throughput, hit rate and efficiency of each memory level."""
    values = facts.values
    units = rules.memory_units(facts)
    read = values.get(_BYTES.format("read"))
    write = values.get(_BYTES.format("write"))
    whole = values.get("dram__bytes.sum")
    if read is not None and write is not None:
        whole = read + write
    # The rates belong to the counted run. Its clocks and caches may differ from the first run.
    time = values.get("gpu__time_duration.sum")

    def rate(count: float | None) -> float | None:
        if count is None or not time:
            return None
        return count * 1e9 / time

    l2 = values.get("lts__t_bytes.sum")
    l1 = values.get("l1tex__t_bytes.sum")
    l2_hits = _part(values.get("lts__t_sector_hit_rate.pct"))
    l1_hits = _part(values.get(rules.L1_HITS))
    rows: list[tuple[Cell, ...]] = [
        ("DRAM", whole, rate(whole), _part(units.get("DRAM")), None, None),
        ("DRAM reads", read, rate(read), None, None, None),
        ("DRAM writes", write, rate(write), None, None, None),
        ("L2", l2, rate(l2), _part(units.get("L2")), l2_hits, None),
        ("L1", l1, rate(l1), _part(units.get("L1")), l1_hits, None),
    ]
    names = {"ld": "loads", "st": "stores"}
    for op, name in names.items():
        sectors = values.get(rules.SECTORS.format(op))
        each = _ratio(sectors, values.get(_REQUESTS.format(op)))
        moved = None
        if sectors is not None:
            moved = sectors * rules.SECTOR
        rows.append((f"global {name}", moved, rate(moved), None, None, each))
    for op, name in names.items():
        accesses = values.get(rules.WAVEFRONTS.format(op), 0)
        conflicts = values.get(rules.CONFLICTS.format(op), 0)
        each = _ratio(accesses, accesses - conflicts)
        rows.append((f"shared {name}", None, None, None, None, each))
    nothing = (None,) * 5
    known = [row for row in rows if row[1:] != nothing]
    columns = columns_of(
        "memory: text, moved: bytes, rate: bytes/s, of peak: 1, hits: 1, per access: number"
    )
    return Table("memory", "Memory", columns, known)


def _ratio(count: float | None, of: float | None) -> float | None:
    if count is None or of is None or of <= 0:
        return None
    return count / of


def _occupancy(facts: Facts) -> Table:
    room = facts.room
    achieved = _part(facts.values.get(rules.WARPS))
    columns = columns_of(
        "achieved: 1, theoretical: 1, waves: number, blocks that fit: spare, limited by: text"
    )
    rows: list[tuple[Cell, ...]] = []
    if room is not None:
        rows.append(
            (achieved, room.percent / 100, room.waves, room.blocks, room.limiter)
        )
    elif achieved is not None:
        rows.append((achieved, None, None, None, ""))
    return Table("occupancy", "Occupancy", columns, rows)


def _stalls(facts: Facts) -> Table:
    """The time between two instructions of a warp, by stall reason."""
    columns = columns_of("share: 1, cycles: number, reason: text, waits for: text")
    rows: list[tuple[Cell, ...]] = []
    if rules.LATENCY in facts.values:
        cycles = facts.values[rules.LATENCY]
        left = 1.0
        for reason, share in rules.stall_shares(facts).items():
            if share >= _LEAST_STALL:
                left -= share
                waits_for = rules.STALLS[reason].waits_for
                rows.append((share, share * cycles, reason, waits_for))
        if rows:
            # The rest is the issue of the instruction, which takes one cycle, and reasons that are rare or uncounted.
            # Counts of different passes may add up to more than the whole.
            left = max(left, 0.0)
            rows.append((left, left * cycles, "", "issue, and all other reasons"))
    return Table("stalls", "Stalls", columns, rows)


#: Stall reasons with a smaller share have no row.
_LEAST_STALL = 0.03


def _lines_by_function(trace: Trace) -> dict[str, list[tuple[Cell, ...]]]:
    """For each function, the lines with the most instructions and the lines with the most samples, with their share of
    the function's sum."""
    lines: defaultdict[tuple[str, str], list[tuple[float, str, str]]] = defaultdict(
        list
    )
    for use in line_metrics(trace, str):
        place = use.place
        row = (use.value, use.metric, place.text)
        lines[place.function, use.metric].append(row)
    for line in sampled_lines(trace, str):
        place = line.place
        what = "samples"
        if line.stall:
            what = f"samples, mostly {line.stall}"
        lines[place.function, SAMPLES].append((line.samples, what, place.text))
    hottest: defaultdict[str, list[tuple[Cell, ...]]] = defaultdict(list)
    for (function, _), rows in lines.items():
        whole = sum(value for value, _, _ in rows) or 1
        for value, what, text in rows[:_LINES]:
            hottest[function].append((value / whole, what, text))
    return hottest
