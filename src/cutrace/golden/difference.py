"""What changed from one golden file, or tree of them, to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..analysis.metrics import METRICS, Metric
from ..errors import CutraceError
from .compare import Row, compare_sections
from .files import golden_files, read
from .model import Golden, Section
from .rules import DEFAULTS, Rules


@dataclass(frozen=True)
class Difference:
    """What changed in one golden file: the rows of each section, and sentences on what has no row."""

    name: str
    sections: dict[str, tuple[Row, ...]]
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.sections or self.notes)


def difference(
    name: str, old: Golden | None, new: Golden | None, *, rules: Rules = DEFAULTS, known: Mapping[str, Metric] = METRICS
) -> Difference:
    """What changed from ``old`` to ``new``; None is a file that is not there."""
    if old is None or new is None:
        return Difference(name, {}, () if old is new else ("is new",) if old is None else ("is gone",))
    sections: dict[str, tuple[Row, ...]] = {}
    notes = [] if old.test == new.test else [f"is of the test {new.test}, was of {old.test}"]
    for gpu in ("", *sorted({*old.gpus, *new.gpus})):
        title = f"gpu.{gpu}" if gpu else "common"
        before, after = (one.gpus.get(gpu) if gpu else one.common for one in (old, new))
        if before is None or after is None:
            notes.append(f"[{title}] is {'new' if before is None else 'gone'}")
            continue
        rows = compare_sections(before, after, rules, known)
        if rows:
            sections[title] = tuple(rows)
        notes += _facts(title, before, after)
    return Difference(name, sections, tuple(notes))


def differences(a: Path, b: Path, known: Mapping[str, Metric] = METRICS) -> tuple[Difference, ...]:
    """What changed from one golden file to another, or from one folder of them to another, file by file."""
    if a.is_dir() != b.is_dir():
        raise CutraceError(f"cannot compare {a} with {b}: name two golden files or two folders of them")
    if not a.is_dir():
        found = difference(str(b), read(a, known=known), read(b, known=known), known=known)
        return (found,) if found else ()
    names = sorted({path.relative_to(root) for root in (a, b) for path in golden_files(root)})
    if not names:
        raise CutraceError(f"neither {a} nor {b} holds a golden file")

    def at(path: Path) -> Golden | None:
        return read(path, known=known) if path.is_file() else None

    found_all = (difference(str(name), at(a / name), at(b / name), known=known) for name in names)
    return tuple(found for found in found_all if found)


def _facts(title: str, old: Section, new: Section) -> list[str]:
    notes = []
    if old.recorded != new.recorded:
        notes.append(f"[{title}] recorded: {old.recorded or 'nothing'} -> {new.recorded or 'nothing'}")
    if old.unstable != new.unstable:
        lists = (", ".join(names) or "none" for names in (old.unstable, new.unstable))
        notes.append(f"[{title}] unstable: {' -> '.join(lists)}")
    return notes
