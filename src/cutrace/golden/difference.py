"""The differences between two golden files, or between two folders of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..analysis.definitions import Metric
from ..errors import CutraceError
from .compare import Row
from .files import golden_files, read
from .model import (
    Codes,
    Entry,
    Module,
    Observed,
    Stored,
    Verdict,
    absent,
    joined,
    ordered,
)
from .values import changed_parts, compare_values


@dataclass(frozen=True)
class Difference:
    """The differences of one test: rows by environment, and notes on other differences."""

    nodeid: str
    environments: dict[str, tuple[Row, ...]]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.environments or self.notes)


def difference(nodeid: str, old: Entry | None, new: Entry | None) -> Difference:
    """The differences of a test from ``old`` to ``new``; None means that the test is missing."""
    if not old and not new:
        return Difference(nodeid, {})
    if not old:
        return Difference(nodeid, {}, ("is new",))
    if not new:
        return Difference(nodeid, {}, ("is gone",))
    rows: dict[str, tuple[Row, ...]] = {}
    notes = []
    for environment in sorted({*old, *new}):
        before = old.get(environment)
        after = new.get(environment)
        if before is None:
            notes.append(f"{environment} is new")
            continue
        if after is None:
            notes.append(f"{environment} is gone")
            continue
        if after.confirmed and not before.confirmed:
            notes.append(f"{environment} is confirmed")
        if before.confirmed and not after.confirmed:
            notes.append(f"{environment} is not confirmed yet")
        changed = tuple(_rows(before, after))
        if changed:
            rows[environment] = changed
    return Difference(nodeid, rows, tuple(notes))


def differences(a: Path, b: Path) -> tuple[Difference, ...]:
    """The differences, test by test, between two golden files or two folders of them."""
    if a.is_dir() != b.is_dir():
        raise CutraceError(
            f"cannot compare {a} with {b}: name two golden files or two folders of them"
        )
    if not a.is_dir():
        return tuple(_module_differences(read(a), read(b)))
    names: set[Path] = set()
    for root in (a, b):
        names.update(path.relative_to(root) for path in golden_files(root))
    if not names:
        raise CutraceError(f"neither {a} nor {b} holds a golden file")
    found: list[Difference] = []
    for name in sorted(names):
        old = _read_or_empty(a / name)
        new = _read_or_empty(b / name)
        found += _module_differences(old, new)
    return tuple(found)


def _module_differences(old: Module, new: Module) -> Iterator[Difference]:
    """The differences between two golden files, for tests with differences."""
    for test in {**old.tests, **new.tests}:
        nodeid = joined(new.path or old.path, test)
        found = difference(nodeid, old.tests.get(test), new.tests.get(test))
        if found:
            yield found


def _read_or_empty(path: Path) -> Module:
    if path.is_file():
        return read(path)
    return Module("")


def _rows(old: Observed, new: Observed) -> Iterator[Row]:
    for region in {**old.values, **new.values}:
        for metric in ordered((*old.metrics(region), *new.metrics(region))):
            row = _row(metric, region, old, new)
            if row is not None:
                yield row


def _value(observed: Observed, region: str, metric: Metric) -> Stored | None:
    """The stable or the unstable value of a metric."""
    for regions in (observed.values, observed.unstable):
        values = regions.get(region, {})
        if metric.name in values:
            return values[metric.name]
    default: Stored | None = absent(metric)
    return default


def _row(metric: Metric, region: str, before: Observed, after: Observed) -> Row | None:
    """The row of a metric; None if it is equal in both."""
    name = metric.name
    old = _value(before, region, metric)
    new = _value(after, region, metric)
    was_unstable = name in before.unstable.get(region, ())
    is_unstable = name in after.unstable.get(region, ())
    if old == new and was_unstable == is_unstable:
        return None
    verdict = Verdict.CHANGED
    if is_unstable:
        verdict = Verdict.UNSTABLE
    elif old is not None and compare_values(metric, old, new).verdict in (
        Verdict.BETTER,
        Verdict.FAST,
    ):
        verdict = Verdict.BETTER
    detail = ""
    if isinstance(old, dict) and isinstance(new, dict):
        detail = changed_parts(old, new, metric.unit)
    elif isinstance(old, Codes):
        detail = compare_values(metric, old, new).detail
    return Row(
        name, region, old, new, "", verdict, True, detail, verdict is Verdict.CHANGED
    )
