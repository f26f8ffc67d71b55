"""SQL over the tables of a trace, by DuckDB. docs/reference/tables.md describes the tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from . import plugins
from .analysis.context import DEFAULTS, CollectorContext
from .analysis.names import normalize_kernel
from .errors import CutraceError, package
from .loading import Clock, StrPath, listed, opened
from .outputs import scratch
from .runbin.layout import TABLES
from .sql_views import STRINGS, VIEWS
from .trace import Trace, arrow

_Value = TypeVar("_Value")
_Source = StrPath | Sequence[StrPath] | Trace

#: Tables with the fields of NVTX payloads as columns, and for each the table that its rows come from.
_PAYLOADS = {"nvtx_range_payloads": "nvtx_ranges", "nvtx_mark_payloads": "nvtx_marks"}
#: By table, the column with names of kernels. The column ``short_name`` follows it.
_NAMING = {
    "kernels": "name",
    "launches": "name",
    "kernel_codes": "name",
    "device_functions": "name",
    "pc_samples": "function",
    "instruction_metrics": "function",
}
#: Functions of DuckDB that read tables by computed names.
_ANY_TABLE = {"query", "query_table"}


@dataclass(frozen=True)
class QueryTables:
    """The tables that a query can name: the Arrow schema of each table, and a function that reads a table by its name.
    ``notes`` returns sentences about missing data. ``views`` are selects by name."""

    schemas: Mapping[str, Any]
    read: Callable[[str], Any]
    notes: Callable[[], Iterable[str]]
    views: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace) -> QueryTables:
        """The tables of a trace."""
        return cls(
            schemas(),
            read=partial(_table, trace),
            notes=lambda: trace.quality.sentences(),
            views=VIEWS,
        )


def schemas() -> dict[str, Any]:
    """The Arrow schema of each table of a trace. Tables of payloads have columns for the fields of payloads instead of
    ``arguments``. Only the trace knows these fields."""
    found = {"processes": arrow.processes_schema()}
    for name in (*TABLES, *_PAYLOADS):
        schema = arrow.schema(_PAYLOADS.get(name, name))
        if name in _NAMING:
            place = schema.get_field_index(_NAMING[name]) + 1
            schema = schema.insert(place, _short_name())
        found[name] = schema
    return found


def view_columns() -> dict[str, list[str]]:
    """The columns of each view. Raises :class:`CutraceError` when DuckDB is not installed."""
    duckdb, pa = _duckdb()
    columns = {}
    with duckdb.connect() as connection:
        for name, schema in schemas().items():
            connection.register(name, schema.empty_table())
        connection.register(STRINGS, pa.table({"value": pa.array([], pa.string())}))
        for name, select in VIEWS.items():
            columns[name] = connection.sql(select).columns
    return columns


@contextmanager
def tables_of(source: _Source, *, clock: Clock = "align") -> Iterator[QueryTables]:
    """Yield the tables of a trace, opened by :func:`cutrace.loading.opened`, or the tables of a folder that an extra
    supports. Raises :class:`CutraceError` when DuckDB is not installed, and the errors of that function."""
    _duckdb()
    folder = _folder(source)
    if folder:
        for find in plugins.of_extras("cutrace_sql_folders"):
            tables = find(folder)
            if tables:
                yield tables
                return
    with opened(source, clock=clock) as trace:
        yield QueryTables.of(trace)


def _folder(source: _Source) -> Path | None:
    """The folder, if the source is one."""
    if isinstance(source, Trace):
        return None
    paths = listed(source)
    if len(paths) != 1:
        return None
    folder = Path(paths[0])
    if folder.is_dir():
        return folder
    return None


def _duckdb() -> tuple[Any, Any]:
    """The modules ``duckdb`` and ``pyarrow``."""
    duckdb = package("duckdb", "SQL")
    return duckdb, package("pyarrow", "SQL")


def _table(trace: Trace, name: str) -> Any:
    """A table of a trace, with the short names of kernels."""
    if name == "processes":
        return arrow.processes(trace)
    if name in _PAYLOADS:
        return arrow.payloads(trace, _PAYLOADS[name])
    if name == STRINGS:
        pa = arrow.pyarrow()
        return pa.table({"value": pa.array(list(trace.strings), pa.string())})
    table = arrow.table(trace, name, indexed=True)
    if name not in _NAMING:
        return table
    column = _NAMING[name]
    rows = trace.table(name)
    place = table.schema.get_field_index(column) + 1
    if name not in ("kernels", "launches"):
        names = trace.strings.take(rows[column], normalize_kernel)
        short = arrow.pyarrow().array(names, arrow.pyarrow().string())
        return table.add_column(place, _short_name().name, short)
    kernels = CollectorContext(trace, DEFAULTS).kernels
    numbers = kernels.numbers[1:]
    if name == "kernels":
        numbers = kernels.numbers[rows["launch"]]
    nothing = np.zeros(len(kernels.names), bool)
    short = arrow.dictionary(kernels.names, numbers, nothing)
    return table.add_column(place, _short_name().name, short)


def _short_name() -> Any:
    pa = arrow.pyarrow()
    doc = "stable name of the kernel, as in the reports of stats and batch"
    kind = pa.dictionary(pa.int32(), pa.string())
    return pa.field("short_name", kind, metadata={"doc": doc})


@contextmanager
def answered(tables: QueryTables, query: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield the Arrow schema of the result of a query, and its record batches. A batch is computed when it is read.

    Only the tables that the query names are read. SQL has no access to files. DuckDB itself writes data into a
    temporary folder when it exceeds its share of the memory. Ctrl-C ends a query. Raises :class:`CutraceError` when
    DuckDB is not installed or the query fails.
    """
    try:
        query.encode()
    except UnicodeEncodeError:
        raise CutraceError("the query is not UTF-8: write it in UTF-8") from None
    duckdb, pa = _duckdb()
    with scratch() as folder, ThreadPoolExecutor(1) as pool:
        config = {
            "enable_external_access": "false",
            "python_enable_replacements": "false",
            "temp_directory": str(folder),
            "lock_configuration": "true",
        }
        connection = duckdb.connect(config=config)
        run = partial(_run, pool, connection)
        try:
            # A query can use a table only if the table's name is one of its words. The other tables can stay empty.
            words = _words(query)
            for name, schema in tables.schemas.items():
                table = schema.empty_table()
                if not words.isdisjoint({name, *_ANY_TABLE}):
                    table = tables.read(name)
                connection.register(name, table)
            _check(duckdb, connection.extract_statements(query))
            relation = _bound(tables, query, run, connection)
            result = run(pa.RecordBatchReader.from_stream, relation)
            names = _distinct(result.schema.names)
            schema = pa.schema(list(map(_field, names, result.schema.types)))
            yield schema, _batches(result, schema, run)
        except (duckdb.Error, pa.ArrowException) as error:
            raise CutraceError(_sentence(str(error), query, tables)) from None
        finally:
            connection.close()


def _bound(
    tables: QueryTables,
    query: str,
    run: Callable[..., Any],
    connection: Any,
) -> Any:
    """The relation of DuckDB for a query. Makes the views that the query names."""
    duckdb, _ = _duckdb()
    while True:
        try:
            return run(connection.sql, query)
        except duckdb.CatalogException as error:  # noqa: PERF203
            if not _make_view(connection, tables, str(error)):
                raise


def _make_view(connection: Any, tables: QueryTables, message: str) -> bool:
    """Make the missing view that an error names, and read its tables. Return False for other errors."""
    absent = re.search(r"Table with name (\w+) does not exist", message)
    if absent is None:
        return False
    for name, select in tables.views.items():
        if name.lower() != absent[1].lower():
            continue
        words = _words(select)
        for table in (*tables.schemas, STRINGS):
            if table in words:
                connection.register(table, tables.read(table))
        connection.execute(f'create view "{name}" as {select}')
        return True
    return False


def _run(
    pool: ThreadPoolExecutor,
    connection: Any,
    function: Callable[..., _Value],
    *arguments: object,
) -> _Value:
    """Call a function of DuckDB in a thread. In the main thread it would keep Python from handling a signal that ends
    the query."""
    future = pool.submit(function, *arguments)
    try:
        return future.result()
    finally:
        # An interruption before the start of the query has no effect.
        while not future.done():
            connection.interrupt()
            wait([future], timeout=0.1)


def _batches(result: Any, schema: Any, run: Callable[..., Any]) -> Iterator[Any]:
    while True:
        batch = run(next, result, None)
        if batch is None:
            return
        yield _cast(batch, schema)


def _check(duckdb: Any, statements: list[Any]) -> None:
    kinds = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in kinds:
        raise CutraceError(
            "a query is one statement that reads: start it with select, with, from, describe or explain"
        )


def _distinct(names: list[str]) -> Iterator[str]:
    """Make names distinct: a repeated name gets a number. SQL ignores the case of names."""
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
    """The field of a result. Sums of integers have 128 bits in DuckDB; Arrow holds them as decimal numbers."""
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


def _sentence(text: str, query: str, tables: QueryTables) -> str:
    """DuckDB's message without the excerpt of the query, and the names that the query can use."""
    message = " ".join(text.partition("\n\nLINE ")[0].split())
    words = _words(query)
    columns = {}
    for name, schema in tables.schemas.items():
        if name in words:
            columns[name] = schema.names
    near = re.search(r'at or near "(\w+)"', message)
    if near:
        word = near[1].lower()
        if any(word in names for names in columns.values()):
            return f'{message}. It is a word of SQL: as a column it needs quotes, "{word}".'
    if not message.endswith(("!", "?", ".")):
        message += "."
    if "Table with name" in message:
        message += f" The tables are {', '.join(tables.schemas)}."
    elif re.search("(Referenced|have a) column", message):
        for name, names in columns.items():
            message += f" {name} has {', '.join(names)}."
    return message
