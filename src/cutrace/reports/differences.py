"""What changed from one capture to another, as tables."""

from __future__ import annotations

from ..analysis.tables import Cell, Column, Table
from ..golden.captures import SECTIONS, CaptureComparison, Change
from ..units import count_of

_WORDS = (Column("differs", "text"), Column("details", "text"), Column("name", "text"))
_COUNTS = (Column("count A"), Column("count B"))
_BYTES = (Column("bytes A", "bytes"), Column("bytes B", "bytes"))
_TIMES = (Column("time A", "ns", spare=True), Column("time B", "ns", spare=True), Column("change", "change"))
_MEDIANS = (Column("median A", "ns", spare=True), Column("median B", "ns", spare=True))
_COLUMNS = {
    "kernels": (*_COUNTS, *_TIMES, *_MEDIANS, *_WORDS),
    "api": (*_COUNTS, *_TIMES, *_WORDS),
    "copies": (*_COUNTS, *_BYTES, *_TIMES, *_WORDS),
    "syncs": (*_COUNTS, *_TIMES, *_WORDS),
    "graphs": (*_COUNTS, *_WORDS),
    "memory": (*_BYTES, *_WORDS),
}


def difference_tables(comparison: CaptureComparison, *, everything: bool = False) -> list[Table]:
    """A table for each section in which something differs (or that has anything, with ``everything``)."""
    tables = []
    for section, title in SECTIONS.items():
        rows = [row for row in comparison.rows if row.section == section and (everything or row.aspects)]
        if rows:
            columns = _COLUMNS[section]
            tables.append(Table(section, title, columns, [tuple(_cell(row, c.name) for c in columns) for row in rows]))
    return tables


def verdict(comparison: CaptureComparison) -> str:
    """One line: how much differs, and whether that fails."""
    same = f"{len(comparison.rows) - len(comparison.changes):,} as before"
    failed = sum(row.failed for row in comparison.rows)
    if not comparison.changes:
        return f"no difference, {same}"
    differences = count_of(len(comparison.changes), "difference")
    return f"{differences} ({failed:,} that fail), {same}"


def _cell(row: Change, column: str) -> Cell:
    side = row.before if column.endswith(" A") else row.after
    return {
        "count": side.count,
        "bytes": side.bytes,
        "time": side.time.total,
        "median": side.time.median if side.time.count else None,
        "change": row.time_change,
        "differs": ", ".join(sorted(aspect.value for aspect in row.aspects)),
        "name": row.name,
        "details": "; ".join(row.details),
    }[column.removesuffix(" A").removesuffix(" B")]
