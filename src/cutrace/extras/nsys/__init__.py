"""Files of Nsight Systems and nvprof, and databases with the tables of Nsight Systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import hookimpl

if TYPE_CHECKING:
    from ...exporters.base import Exporter
    from ...importers.base import Importer


@hookimpl
def cutrace_importers() -> list[Importer]:
    from .nsys import ARROW, SQLITE
    from .nvprof import NVPROF

    return [SQLITE, ARROW, NVPROF]


@hookimpl
def cutrace_exporters() -> list[Exporter]:
    from ...exporters.base import Exporter

    return [
        Exporter(
            "sqlite",
            "a database with the tables of Nsight Systems",
            (".sqlite", ".sqlite3", ".db"),
            "cutrace.extras.nsys.sqlite:write",
        )
    ]
