"""Which exporter writes a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import plugins
from ..errors import CutraceError
from .base import Exporter

#: cutrace's own exporters.
BUILT_IN = (
    Exporter(
        "perfetto",
        "a trace for ui.perfetto.dev",
        (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"),
        "cutrace.exporters.perfetto:write",
    ),
    Exporter("parquet", "a folder of Parquet files", (".parquet",), "cutrace.exporters.parquet:write", folder=True),
    Exporter(
        "sqlite",
        "a database with the tables of Nsight Systems",
        (".sqlite", ".sqlite3", ".db"),
        "cutrace.exporters.sqlite:write",
    ),
    Exporter("csv", "one table as text", (".csv", ".csv.gz"), "cutrace.exporters.csvfile:write"),
    Exporter("chrome", "trace-event JSON", (".json", ".json.gz"), "cutrace.exporters.chrome:write"),
    Exporter("capture", "a capture, as `cutrace record` makes one", (".bin",), "cutrace.exporters.capture:write"),
)


def known() -> list[Exporter]:
    """All exporters: cutrace's own, then those of plugins."""
    return [*BUILT_IN, *plugins.exporters()]


def find(path: Path) -> Exporter:
    """The exporter that the name of an output asks for: of those whose ending it has, the one with the longest, and
    cutrace's own before others. Raises :class:`CutraceError` when there is none."""
    # Plugins are looked for in all packages that are installed, which takes longer than a small conversion.
    found = _fitting(path, BUILT_IN) or _fitting(path, plugins.exporters())
    if found is None:
        endings = ", ".join(dict.fromkeys(e.suffixes[0] for e in known()))
        raise CutraceError(f"cannot tell the format of {path}: let its name end with one of {endings}")
    return found


def _fitting(path: Path, exporters: Sequence[Exporter]) -> Exporter | None:
    fitting = [(len(suffix), e) for e in exporters for suffix in e.suffixes if path.name.endswith(suffix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
