"""The types of the tables of a trace, from their declarations. ``python tests/table_types.py`` writes them to
src/cutrace/trace/tables.pyi."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill, indent

from cutrace.runbin.layout import TABLES, TYPES, Field, TableLayout

STUB = Path(__file__).parents[1] / "src" / "cutrace" / "trace" / "tables.pyi"
#: The types of columns by the NumPy format of their values.
COLUMNS = {
    "u1": "np.uint8",
    "<u2": "np.uint16",
    "<u4": "np.uint32",
    "<u8": "np.uint64",
    "<i4": "np.int32",
    "<i8": "np.int64",
    "<f8": "np.float64",
    "V16": "np.void",
}
_HEAD = '''\
"""The tables of a trace as attributes, and their columns, for type checkers and editors.

Made from runbin/layout.py by tests/table_types.py: change these files.
"""

# fmt: off

from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

_Value = TypeVar("_Value", bound=np.generic)
_Column: TypeAlias = np.ndarray[tuple[int], np.dtype[_Value]]
_Index: TypeAlias = int | np.integer[Any]
_Choice: TypeAlias = slice | list[int] | list[bool] | np.ndarray[Any, np.dtype[np.integer[Any] | np.bool_]]
'''
_WIDTH = 120


def stub() -> str:
    """The contents of the stub file."""
    parts = [_HEAD]
    parts += map("\n".join, map(_table, TABLES.values()))
    tables = ["class TraceTables:", '    """The tables of a trace."""']
    for table in TABLES.values():
        tables += ["    @property", f"    def {table.name}(self) -> {_class(table)}:", f'        """{table.doc}"""']
    return "\n\n".join([*parts, "\n".join(tables)]) + "\n"


def _class(table: TableLayout) -> str:
    return table.name.title().replace("_", "")


def _table(table: TableLayout) -> Iterator[str]:
    yield f"class {_class(table)}(np.ndarray[tuple[int], np.dtype[np.void]]):"
    yield f'    """{table.doc} Columns:\n'
    for field in table.fields:
        yield fill(_described(field), _WIDTH, initial_indent="    * ", subsequent_indent="      ")
    yield '    """'
    by_type: dict[str, list[str]] = defaultdict(list)
    for field in table.fields:
        by_type[COLUMNS[TYPES[field.type][1]]].append(f'"{field.name}"')
    ignored = "  # type: ignore[override]"
    for kind, names in by_type.items():
        yield f"    @overload{ignored}"
        yield from _overload(fill(", ".join(names), _WIDTH - 12), f"_Column[{kind}]")
        ignored = ""
    for key, result in (("_Choice", _class(table)), ("_Index", "np.void"), ("list[str]", "_Column[np.void]")):
        yield f"    @overload\n    def __getitem__(self, key: {key}, /) -> {result}: ..."


def _described(field: Field) -> str:
    """The name, unit and meaning of a column. References name the table of their ids."""
    unit = f" ({field.unit})" if field.unit else ""
    meaning = field.doc
    if field.type == "string":
        meaning = f"{meaning}; id of a string" if meaning else "id of a string"
    return f"``{field.name}``{unit}: {meaning}".rstrip(": ")


def _overload(names: str, result: str) -> Iterator[str]:
    if "\n" not in names and len(names) < 50:
        yield f"    def __getitem__(self, key: Literal[{names}], /) -> {result}: ..."
    else:
        yield f"    def __getitem__(self, key: Literal[\n{indent(names, ' ' * 8)}\n    ], /) -> {result}: ..."


if __name__ == "__main__":
    STUB.write_text(stub())
