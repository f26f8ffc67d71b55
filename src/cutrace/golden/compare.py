"""Comparing what was measured with a golden file: one row a metric, and whether that fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..analysis.metrics import METRICS, Gate, Metric, Metrics
from ..units import count_of, format_size
from . import statistics
from .model import KINDS, TOTALS, WORK, Golden, Interval, Section, Stored, Values, Verdict, gpu_name, metric, scoped
from .rules import DEFAULTS, MEMORY_FLOOR, Rules, parse_limits

_FAILING = frozenset({Verdict.CHANGED, Verdict.WORSE, Verdict.SLOW})
#: Names that a detail lists; the rest is counted.
_LISTED = 6


@dataclass(frozen=True)
class Row:
    """A metric, of the whole window or of a region: its golden value, the one now (ns, bytes or counts), the rule, how
    they compare, whether this class of metrics is gated, and whether the row fails."""

    metric: str
    region: str
    golden: Stored | None
    now: Stored | None
    rule: str
    verdict: Verdict
    gated: bool
    detail: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Comparison:
    """All rows of a test; sentences to read before them; and why the numbers cannot be trusted, if they cannot."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """A gated metric changed, or what was measured is not complete: that is never a pass."""
        return bool(self.problems) or any(row.failed for row in self.rows)


def compare(
    golden: Golden, runs: Sequence[Metrics], *, gpu: str, rules: Rules = DEFAULTS, known: Mapping[str, Metric] = METRICS
) -> Comparison:
    """Compare one run or more with what the golden file says for a GPU.

    An exact metric is as its worst run is, memory as its highest, and times are taken together. ``known`` are the
    metrics there are, besides those of projects, which have a dot in their names.
    """
    expected = golden.on(gpu)
    nothing = _works(expected.metrics) and not any(_works(run.values) for run in runs)
    judge = _Judge(rules, known, nothing=nothing)
    rows: list[Row] = []
    for region in dict.fromkeys(("", *expected.regions, *(name for run in runs for name in run.regions))):
        old = expected.regions.get(region) if region else expected.metrics
        unstable = {name for name in expected.unstable if name.startswith(f"{region}/" if region else "")}
        entered = [scope(run, region) for run in runs]
        # A region that only some runs entered has no metrics in the others.
        values = [values or {} for values in entered] if any(values is not None for values in entered) else []
        rows += judge.scope(region, old, values, unstable)
    problems = tuple(dict.fromkeys(problem for run in runs for problem in run.problems))
    return Comparison(tuple(rows), tuple(_notes(golden, runs, gpu)), problems)


def compare_sections(old: Section, new: Section, rules: Rules, known: Mapping[str, Metric] = METRICS) -> list[Row]:
    """The rows in which two sections of golden files differ, times as their intervals."""
    judge = _Judge(rules, known, nothing=False)
    rows: list[Row] = []
    for region in dict.fromkeys(("", *old.regions, *new.regions)):
        before = old.regions.get(region) if region else old.metrics
        after = new.regions.get(region) if region else new.metrics
        rows += judge.scope(region, before, [] if after is None else [after], set())
    differing = (row for row in rows if row.golden != row.now)
    return [row if row.now is not None else replace(row, detail="gone") for row in differing]


def limits(runs: Sequence[Metrics], budget: Mapping[str, object], known: Mapping[str, Metric] = METRICS) -> Comparison:
    """Hold one run or more to upper limits, which need no golden file: see :func:`~cutrace.golden.rules.parse_limits`.

    The highest of the runs counts; of times, the median.
    """
    rows = []
    for name, limit in parse_limits(budget, known).items():
        values = [value for run in runs if isinstance(value := run.values.get(name, _absent(name)), int | float)]
        if not values:
            rows.append(Row(name, "", limit, None, "limit", Verdict.WORSE, True, "not measured", True))
            continue
        now = statistics.interval(values).median if known[name].gate is Gate.TIME else max(values)
        over = now > limit
        verdict = Verdict.WORSE if over else Verdict.SAME
        rows.append(Row(name, "", limit, now, "limit", verdict, True, "over the limit" if over else "", over))
    return Comparison(tuple(rows), (), tuple(dict.fromkeys(problem for run in runs for problem in run.problems)))


def confirmed(first: Comparison, *again: Comparison) -> Comparison:
    """The first comparison, in which a slower time fails only if every later one, of another run, agrees."""

    def settled(row: Row) -> Row:
        others = [r for c in again for r in c.rows if (r.metric, r.region) == (row.metric, row.region)]
        if row.verdict is not Verdict.SLOW or all(other.verdict is Verdict.SLOW for other in others):
            return row
        return replace(row, verdict=Verdict.AMBIGUOUS, failed=False, detail="not confirmed by another run")

    return replace(first, rows=tuple(settled(row) for row in first.rows))


def recorded_on(run: Metrics) -> str:
    """On what a run was measured, as golden files say it: ``sm_90, driver 580.159, CUDA 13.0, 1980 MHz``."""
    facts = run.facts
    words = [
        f"sm_{facts['compute capability'].replace('.', '')}" if facts.get("compute capability") else "",
        f"driver {facts['driver']}" if facts.get("driver") else "",
        f"CUDA {facts['cuda']}" if facts.get("cuda") else "",
        facts.get("clock", ""),
    ]
    return ", ".join(word for word in words if word)


def without(values: Mapping[str, Stored], ignore: Sequence[str]) -> Values:
    """The metrics without the kernels whose names match a pattern, in the list and in the total."""
    kernels = values.get("kernels")
    if not ignore or not isinstance(kernels, dict):
        return dict(values)
    kept = {name: count for name, count in kernels.items() if not any(fnmatchcase(name, p) for p in ignore)}
    left: Values = {**values, "kernels": kept}
    total = values.get("kernel_launches")
    if isinstance(total, int):
        left["kernel_launches"] = total - (sum(kernels.values()) - sum(kept.values()))
    return left


def scope(run: Metrics, region: str) -> Mapping[str, Stored] | None:
    """The metrics of a region of a run, those of the whole window for "", or None if the region was not entered."""
    return run.regions.get(region) if region else run.values


def memory_verdict(old: int, new: int, share: float) -> Verdict:
    """Whether a level of memory differs by more than a share of the old one and more than 1 MiB."""
    if abs(new - old) <= max(share * abs(old), MEMORY_FLOOR):
        return Verdict.SAME
    return Verdict.WORSE if new > old else Verdict.BETTER


class _Judge:
    """Makes rows by one set of rules. ``nothing``: the golden file has GPU work and there was none now."""

    def __init__(self, rules: Rules, known: Mapping[str, Metric], *, nothing: bool) -> None:
        self.rules = rules
        self.known = known
        self.nothing = nothing

    def scope(
        self, region: str, old: Mapping[str, Stored] | None, runs: Sequence[Mapping[str, Stored]], unstable: set[str]
    ) -> Iterator[Row]:
        before = None if old is None else without(old, self.rules.ignore)
        after = [without(run, self.rules.ignore) for run in runs]
        names = ordered({*(before or ()), *(name for run in after for name in run)}, self.known)
        rows = {}
        for name in names:
            found = metric(name, self.known)
            if found is not None and found.gate is not Gate.INFO:
                row = self._row(found, region, before, after, scoped(region, name) in unstable)
                if row is not None:
                    rows[name] = row
        yield from _folded(rows).values()

    def _row(
        self, found: Metric, region: str, old: Values | None, runs: Sequence[Values], unstable: bool
    ) -> Row | None:
        name, gate = found.name, found.gate
        golden = None if old is None else old.get(name, _absent(name) if "memcpy_count" in old else None)
        values = [value for run in runs if (value := run.get(name, _absent(name))) is not None]
        now: Stored | None
        detail = ""
        if gate is Gate.EXACT:
            now = values[0] if values else None
            if golden is None:
                verdict = Verdict.NEW
            elif now is None or len(values) < len(runs):
                now, verdict = None, Verdict.CHANGED
                detail = "not measured" if runs else "the region was not entered"
            else:
                now, verdict, detail = self._worst(name, golden, values)
                if verdict is Verdict.BETTER and self.nothing and not region:
                    verdict, detail = Verdict.CHANGED, "no GPU work was seen" if name in WORK else detail
        else:
            now = _joined(found, values)
            if now is None:
                return None
            verdict = Verdict.NEW if golden is None else self.loose(found, golden, now)
        if golden is None and unstable:
            verdict = Verdict.UNSTABLE
        gated = gate in self.rules.gate
        stern = self.rules.strict and (verdict is Verdict.NEW or (verdict is Verdict.BETTER and gate is Gate.EXACT))
        failed = gated and (verdict in _FAILING or stern)
        return Row(name, region, golden, now, self.rules.words(found), verdict, gated, detail, failed)

    def loose(self, found: Metric, golden: Stored, now: Stored) -> Verdict:
        """The verdict on memory or a time."""
        share = self.rules.tolerance_of(found)
        if isinstance(golden, Interval) and isinstance(now, Interval):
            return statistics.change(golden, now, share)
        assert isinstance(golden, int)
        assert isinstance(now, int)
        return memory_verdict(golden, now, share)

    def _worst(self, name: str, golden: Stored, values: Sequence[Stored]) -> tuple[Stored, Verdict, str]:
        share = self.rules.tolerance.get(name, 0.0)
        judged = [(value, *_exact(name, golden, value, share)) for value in values]
        worst = next(one for v in (Verdict.CHANGED, Verdict.BETTER, Verdict.SAME) for one in judged if one[1] is v)
        alike = sum(verdict is worst[1] for _, verdict, _ in judged)
        if alike < len(values):
            # A metric that is right in some runs only is worth another look than one that always changed.
            often = f"in {alike} of {count_of(len(values), 'run')}"
            return worst[0], worst[1], f"{worst[2]} ({often})" if worst[2] else often
        return worst


def ordered(names: Iterable[str], known: Mapping[str, Metric]) -> list[str]:
    """Metrics in the order of tables and files, then those of projects by name."""
    place = {name: at for at, name in enumerate(known)}
    return sorted(names, key=lambda name: (place.get(name, len(place)), name))


def _exact(name: str, golden: Stored, now: Stored, share: float) -> tuple[Verdict, str]:
    if golden == now:
        return Verdict.SAME, ""
    if isinstance(golden, dict) and isinstance(now, dict):
        more = any(count > golden.get(key, 0) for key, count in now.items())
        return Verdict.CHANGED if more else Verdict.BETTER, _changes(golden, now)
    if isinstance(golden, int | float) and isinstance(now, int | float):
        # Fewer frees are no improvement: they are what a leak looks like.
        if now < golden and not name.endswith("frees"):
            return Verdict.BETTER, ""
        return Verdict.SAME if golden < now <= golden * (1 + share) else Verdict.CHANGED, ""
    return Verdict.CHANGED, "of another kind"


def _changes(golden: Mapping[str, int], now: Mapping[str, int]) -> str:
    words = []
    for name in sorted({*golden, *now}, key=lambda name: (now.get(name, 0) <= golden.get(name, 0), name)):
        before, after = golden.get(name, 0), now.get(name, 0)
        if before == after:
            continue
        sign, by = "+-"[after < before], abs(after - before)
        what = f" x{by} ({'gone' if after == 0 else 'new'})" if not (before and after) else f" x{by}" if by > 1 else ""
        words.append(f"{sign} {name}{what}")
    more = [f"and {len(words) - _LISTED} more"] if len(words) > _LISTED else []
    return ", ".join(words[:_LISTED] + more)


def _folded(rows: dict[str, Row]) -> dict[str, Row]:
    """Without what says a thing twice: a list by name, or a kind of copies, becomes the detail of its changed total."""
    for total, listed in TOTALS.items():
        parts = [rows[name] for name in (listed, *_kinds(listed)) if name in rows and _differs(rows[name])]
        if total not in rows or not _differs(rows[total]) or not parts:
            continue
        worst = Verdict.CHANGED if any(r.verdict is Verdict.CHANGED for r in (rows[total], *parts)) else None
        rows[total] = replace(
            rows[total],
            verdict=worst or rows[total].verdict,
            failed=rows[total].failed or any(part.failed for part in parts),
            detail=", ".join(dict.fromkeys(word for r in parts if (word := _detail(listed, r)))) or rows[total].detail,
        )
        for part in parts:
            del rows[part.metric]
    return rows


def _kinds(listed: str) -> list[str]:
    return [name for name in KINDS if name.endswith(f"_{listed}")] if listed in ("count", "bytes") else []


def _detail(listed: str, row: Row) -> str:
    golden, now = row.golden, row.now
    if row.metric == listed or not isinstance(golden, int) or not isinstance(now, int):
        return row.detail
    direction = row.metric.split("_")[1]
    if listed == "count":
        return _changes({direction: golden}, {direction: now})
    return f"{direction} {format_size(golden)} -> {format_size(now)}"


def _differs(row: Row) -> bool:
    return row.verdict in (Verdict.CHANGED, Verdict.BETTER)


def _joined(found: Metric, values: Sequence[Stored]) -> Stored | None:
    """Several runs of memory or a time as one value."""
    kept = [value for value in values if isinstance(value, Interval)]
    if kept:
        return kept[0]
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return None
    return statistics.interval(numbers) if found.gate is Gate.TIME else round(max(numbers))


def _absent(name: str) -> int | None:
    """What a metric is that was not written down: kinds of copies that did not occur are left out."""
    return 0 if name in KINDS else None


def _works(values: Mapping[str, Stored]) -> bool:
    return any(values.get(name) for name in WORK)


def _notes(golden: Golden, runs: Sequence[Metrics], gpu: str) -> Iterator[str]:
    if golden.gpus and gpu not in golden.gpus:
        yield (
            f"the golden file has no values for {gpu or 'no GPU'}, only for {', '.join(sorted(golden.gpus))}: "
            "only what holds on every GPU was compared"
        )
    now = recorded_on(runs[0]) if runs else ""
    own = golden.gpus.get(gpu)
    if own is not None and own.recorded and now and own.recorded != now:
        yield f"recorded with {own.recorded}; now {now}"
    names = sorted({name for run in runs for name in run.gpus})
    if len(names) > 1:
        yield f"the work ran on {', '.join(names)}: compared as {gpu or gpu_name(names)}"
