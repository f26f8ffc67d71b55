"""cutrace sql: ask a trace questions in SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .output import STDOUT, put_tables, say

if TYPE_CHECKING:
    from ..analysis.tables import Cell, Table
    from ..loading import Clock

# Statements about the tables. All their rows are shown unless --limit is given.
_LISTING = re.compile(r"\s*(show|describe|desc|summarize)\b", re.IGNORECASE)


@click.command()
@options.sources(required=False)
@click.argument("query")
@options.form(["table", "csv", "json", "markdown", "parquet"], by_ending=True)
@options.output("File to write to; else stdout.", required=False)
@options.clock
@options.limit()
def sql(
    sources: tuple[Path, ...],
    query: str,
    form: str,
    output: Path | None,
    clock: Clock,
    limit: int | None,
) -> None:
    """Answer QUERY, a select in the SQL of DuckDB, over the tables of FILE, of several as one, or of a folder of batch.

    \b
    cutrace sql run.bin 'select name, sum(duration) from kernels group by 1'

    Times are in ns. `show tables` lists the tables, `describe kernels` the columns of one. The documentation of
    cutrace has examples, on the page Tables and columns.
    """
    from ..outputs import check_output
    from ..queries import answered, tables_of

    if not sources:  # click would report QUERY as the missing FILE.
        raise click.UsageError(
            "Name files and then a query: cutrace sql run.bin 'show tables'"
        )
    file = output
    if output == STDOUT:
        file = None
    if file is not None:
        check_output(file, sources)
    elif form == "parquet":
        raise click.UsageError("Parquet does not go to stdout: name a file with -o")
    if limit is None and _LISTING.match(query):
        limit = 0
    with tables_of(sources, clock=clock) as tables:
        with answered(tables, query) as (schema, batches):
            missing = list(tables.notes())
            if file is not None and form == "parquet":
                _write_parquet(file, schema, batches)
            else:
                put_tables(
                    "cutrace sql",
                    [_table(schema, batches)],
                    form,
                    file,
                    limit=limit,
                    whole=True,
                    missing=missing,
                )
        say(*missing)


def _table(schema: Any, batches: Iterable[Any]) -> Table:
    from ..analysis.tables import Column, Table

    columns = [Column(field.name, _unit(field.type)) for field in schema]
    return Table("result", "Result", tuple(columns), _rows(batches), listing=True)


def _rows(batches: Iterable[Any]) -> Iterator[tuple[Cell, ...]]:
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield tuple(map(_cell, row))


def _unit(kind: Any) -> Any:
    import pyarrow.types as types

    if types.is_integer(kind):
        return ""
    if types.is_floating(kind):
        return "number"
    if types.is_decimal(kind):
        return "number"
    return "text"


def _cell(value: Any) -> Cell:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _write_parquet(output: Path, schema: Any, batches: Iterable[Any]) -> None:
    from pyarrow.parquet import ParquetWriter

    from ..outputs import replacing

    with (
        replacing(output) as temporary,
        temporary.open("wb") as file,
        ParquetWriter(file, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
