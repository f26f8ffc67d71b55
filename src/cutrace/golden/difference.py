"""The differences between two golden files, or between two folders of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CutraceError
from .compare import Row, changes
from .files import golden_files, read
from .model import Entry, Module, Observed, Verdict, absent, amount, joined, ordered


@dataclass(frozen=True)
class Difference:
    """The differences of one test: rows by environment, and notes on what has no row."""

    nodeid: str
    environments: dict[str, tuple[Row, ...]]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.environments or self.notes)


def difference(nodeid: str, old: Entry | None, new: Entry | None) -> Difference:
    """The differences of a test from ``old`` to ``new``; None means that the test is missing."""
    if not old or not new:
        return Difference(nodeid, {}, () if not old and not new else ("is new",) if not old else ("is gone",))
    rows: dict[str, tuple[Row, ...]] = {}
    notes = []
    for environment in sorted({*old, *new}):
        before, after = old.get(environment), new.get(environment)
        if before is None or after is None:
            notes.append(f"{environment} is {'new' if before is None else 'gone'}")
            continue
        if before.confirmed != after.confirmed:
            notes.append(f"{environment} is {'confirmed' if after.confirmed else 'not confirmed yet'}")
        if changed := tuple(_rows(before, after)):
            rows[environment] = changed
    return Difference(nodeid, rows, tuple(notes))


def differences(a: Path, b: Path) -> tuple[Difference, ...]:
    """The differences, test by test, between two golden files or two folders of them."""
    if a.is_dir() != b.is_dir():
        raise CutraceError(f"cannot compare {a} with {b}: name two golden files or two folders of them")
    if a.is_dir():
        names = sorted({path.relative_to(root) for root in (a, b) for path in golden_files(root)})
        if not names:
            raise CutraceError(f"neither {a} nor {b} holds a golden file")
        pairs = [[read(path) if path.is_file() else Module("") for path in (a / name, b / name)] for name in names]
    else:
        pairs = [[read(a), read(b)]]
    results = [
        difference(joined(new.path or old.path, test), old.tests.get(test), new.tests.get(test))
        for old, new in pairs
        for test in dict.fromkeys((*old.tests, *new.tests))
    ]
    return tuple(filter(None, results))


def _rows(old: Observed, new: Observed) -> Iterator[Row]:
    for region in dict.fromkeys((*old.values, *new.values)):
        scopes = [one.values.get(region, {}) for one in (old, new)]
        unstable = [one.unstable.get(region, {}) for one in (old, new)]
        for metric in ordered(name for values in (*scopes, *unstable) for name in values):
            name = metric.name
            values = [s.get(name, u.get(name, absent(metric))) for s, u in zip(scopes, unstable, strict=True)]
            a, b = values
            if a == b and (name in unstable[0]) == (name in unstable[1]):
                continue
            less = (amount(b) or 0) < (amount(a) or 0)
            verdict = Verdict.UNSTABLE if name in unstable[1] else Verdict.BETTER if less else Verdict.CHANGED
            detail = changes(a, b, metric.unit) if isinstance(a, dict) and isinstance(b, dict) else ""
            yield Row(name, region, a, b, "", verdict, True, detail, verdict is Verdict.CHANGED)
