"""The parts of a batch as tables for SQL: one table for each report, with the rank of each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...queries import QueryTables
from ...trace.arrow import pyarrow
from .model import Part
from .parts import FileOutcome, PartFolder
from .running import missing


def batch_tables(folder: Path) -> QueryTables | None:
    """The tables of a folder that ``cutrace batch`` wrote, None for other paths. Raises :class:`CutraceError` when
    pyarrow is not installed."""
    files: dict[str, FileOutcome] = {}
    names: dict[str, None] = {}
    for path in sorted(folder.glob("*.manifest.json")):
        manifest = _manifest(path)
        names |= dict.fromkeys(manifest.get("reports", ()))
        for file in manifest.get("files", ()):
            files[file["source"]] = FileOutcome(**file)
    schemas = {}
    parts = {}
    for name in names:
        found = PartFolder(folder / name).parts()
        if found:
            parts[name] = found
            schemas[name] = _told(name, found[0]).schema
    if not schemas:
        return None
    outcomes = list(files.values())
    return QueryTables(
        schemas,
        read=lambda name: _table(name, parts[name]),
        notes=partial(missing, outcomes),
    )


def _manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a batch; {} for other files."""
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if isinstance(manifest, dict) and manifest.get("kind") == "cutrace batch manifest":
        return manifest
    return {}


def _table(name: str, parts: Sequence[Part]) -> Any:
    """The rows of all parts of a report."""
    tables = [_told(name, part) for part in parts]
    return pyarrow("SQL").concat_tables(tables)


def _told(name: str, part: Part) -> Any:
    """The rows of a part, after columns that describe its rank. A column of the part with the name of such a column
    gets the name of the report as a prefix."""
    pa = pyarrow("SQL")
    rows = part.table().replace_schema_metadata(None)
    columns = {
        "job": pa.scalar(part.job, pa.string()),
        "rank": pa.scalar(part.rank, pa.int64()),
        "local_rank": pa.scalar(part.local_rank, pa.int64()),
        "host": pa.scalar(part.host or None, pa.string()),
        "label": pa.scalar(part.label, pa.string()),
        "source": pa.scalar(part.source, pa.string()),
        "incomplete": pa.scalar(part.incomplete, pa.bool_()),
    }
    arrays: dict[str, Any] = {}
    count = len(rows)
    for column, value in columns.items():
        arrays[column] = pa.repeat(value, count)
    for column in rows.column_names:
        unused = column
        if column in columns:
            unused = f"{name}_{column}"
        arrays[unused] = rows[column]
    return pa.table(arrays)
