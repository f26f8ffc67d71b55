"""SQLite databases that nobody else knows: what is wrong with them."""

from __future__ import annotations

from ..errors import BadCapture
from .base import Import, Source
from .tables_sqlite import MAGIC, SqliteTables


class Database:
    """Asked last; says why a database cannot be read."""

    name = "database"
    description = "SQLite database of another tool"

    def recognizes(self, source: Source) -> bool:
        return source.head.startswith(MAGIC)

    def read(self, source: Source, out: Import) -> None:
        if source.packed:
            raise BadCapture(f"{source.path} is a compressed database: unpack it first.")
        with SqliteTables(source.path) as tables:
            if tables.damage or not tables.names:
                raise BadCapture(f"{source.path} is a database without a table that can be read. Export it again.")
        raise BadCapture(f"{source.path} is a database that neither Nsight Systems nor nvprof made.")


DATABASE = Database()
