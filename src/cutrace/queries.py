"""SQL over the tables of a trace, by DuckDB. docs/sql.md describes the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import CutraceError
from .outputs import scratch
from .runbin.layout import TABLES
from .trace import Trace, arrow

#: The tables with the fields of NVTX payloads as columns, and the tables of their rows.
_PAYLOADS = {"nvtx_range_payloads": "nvtx_ranges", "nvtx_mark_payloads": "nvtx_marks"}
#: Functions of DuckDB that read tables by computed names.
_ANY_TABLE = {"query", "query_table"}


@contextmanager
def answered(trace: Trace, query: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield the Arrow schema of the result of a query, and its record batches, which are computed as they are read.

    Only the tables that the query names are read. SQL has no access to files: DuckDB writes what exceeds its share of
    the memory into a temporary folder. Raises :class:`CutraceError` when DuckDB is not installed or the query fails.
    """
    try:
        query.encode()
    except UnicodeEncodeError:
        raise CutraceError("the query is not UTF-8: write it in UTF-8") from None
    duckdb = arrow.package("duckdb", "sql", "SQL")
    pa = arrow.package("pyarrow", "sql", "SQL")
    with scratch() as folder:
        config = {
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "temp_directory": str(folder),
            "lock_configuration": "true",
        }
        connection = duckdb.connect(config=config)
        try:
            # A query cannot name more than its words, so the other tables can stay empty.
            words = _words(query)
            for name in (*TABLES, *_PAYLOADS):
                if words.isdisjoint({name, *_ANY_TABLE}):
                    table = arrow.schema(_PAYLOADS.get(name, name)).empty_table()
                elif name in _PAYLOADS:
                    table = arrow.payloads(trace, _PAYLOADS[name])
                else:
                    table = arrow.table(trace, name, indexed=True)
                connection.register(name, table)
            connection.register("processes", arrow.processes(trace))
            _check(duckdb, connection.extract_statements(query))
            result = pa.RecordBatchReader.from_stream(connection.sql(query))
            names = _distinct(result.schema.names)
            schema = pa.schema(list(map(_field, names, result.schema.types)))
            yield schema, (_cast(batch, schema) for batch in result)
        except (duckdb.Error, pa.ArrowException) as error:
            raise CutraceError(_sentence(str(error), query)) from None
        except RuntimeError as error:
            if "interrupted" in str(error):  # how DuckDB passes a signal on
                raise KeyboardInterrupt from None
            raise
        finally:
            connection.close()


def _check(duckdb: Any, statements: list[Any]) -> None:
    kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in kinds:
        raise CutraceError(
            "a query is one statement that reads: begin it with select, with, from, describe or explain"
        )


def _distinct(names: list[str]) -> Iterator[str]:
    """The names, with a number after those that occurred before. SQL ignores the case of names."""
    known: set[str] = set()
    for name in names:
        number = 1
        distinct = name
        while distinct.lower() in known:
            number += 1
            distinct = f"{name}_{number}"
        known.add(distinct.lower())
        yield distinct


def _field(name: str, kind: Any) -> Any:
    """The field of a result. Sums of integers have 128 bits in DuckDB, which Arrow has as a decimal number."""
    pa = arrow.pyarrow()
    if kind == pa.decimal128(38, 0):
        kind = pa.int64()
    return pa.field(name, kind)


def _cast(batch: Any, schema: Any) -> Any:
    pa = arrow.pyarrow()
    columns = []
    try:
        for column, field in zip(batch.columns, schema, strict=True):
            columns.append(column.cast(field.type))
    except pa.ArrowInvalid:
        raise CutraceError(
            f"{field.name} has values beyond 64 bits: convert them in the query with {field.name}::double"
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _words(query: str) -> set[str]:
    return set(re.findall(r"\w+", query.lower()))


def _sentence(text: str, query: str) -> str:
    """The message of DuckDB without its drawing of the query, and the names that the query can use."""
    message = " ".join(text.partition("\n\nLINE ")[0].split())
    words = _words(query)
    columns = {name: arrow.schema(name).names for name in TABLES if name in words}
    near = re.search(r'at or near "(\w+)"', message)
    if near:
        word = near[1].lower()
        if any(word in names for names in columns.values()):
            return f'{message}. It is a word of SQL: as a column it needs quotes, "{word}".'
    if not message.endswith(("!", "?", ".")):
        message += "."
    if "Table with name" in message:
        tables = ", ".join([*TABLES, *_PAYLOADS])
        message += f" The tables are processes, {tables}."
    elif re.search("(Referenced|have a) column", message):
        for name, names in columns.items():
            message += f" {name} has {', '.join(names)}."
    return message
