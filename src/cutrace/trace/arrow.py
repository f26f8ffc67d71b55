"""Tables for Arrow, pandas and polars: names in place of ids, signed integers for times and sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from .._native import demangle
from ..errors import CutraceError
from ..runbin.layout import NOT_SHOWN, TABLES, TYPES, Field
from .nccl import NcclCall, payload_fields
from .origins import NODE_FIELDS, OUTSIDE
from .strings import StringTable

if TYPE_CHECKING:
    from types import ModuleType

    from .trace import Trace

#: Units of quantities: columns with them are signed integers, so that arithmetic does not wrap.
QUANTITIES = frozenset(("ns", "bytes", "KB/s"))
# Numbers that JSON does not have, as the collector writes them.
_NOT_FINITE = ("nan", "inf", "-inf")


def package(name: str, extra: str, what: str) -> ModuleType:
    """Import an optional package. Raises :class:`CutraceError` with the command that installs it."""
    try:
        return import_module(name)
    except ImportError:
        raise CutraceError(
            f"{what} needs {name}: install it with `pip install 'cutrace[{extra}]'`"
        ) from None


def pyarrow(what: str = "Arrow") -> ModuleType:
    """pyarrow. Raises :class:`CutraceError` when it is not installed."""
    return package("pyarrow", "parquet", what)


def column(field: Field) -> Any:
    """The column of a field, as a field of an Arrow schema, with its unit and description as metadata."""
    pa = pyarrow()
    if field.type == "string":
        kind = pa.dictionary(pa.int32(), pa.string())
    elif field.type == "bytes16":
        kind = pa.binary(16)
    elif field.type == "u64" and field.unit in QUANTITIES:
        kind = pa.int64()
    else:
        kind = pa.from_numpy_dtype(np.dtype(TYPES[field.type][1]))
    metadata = {
        key: text for key, text in (("unit", field.unit), ("doc", field.doc)) if text
    }
    return pa.field(
        field.name, kind, nullable=field.type == "string", metadata=metadata
    )


def array(
    strings: StringTable,
    field: Field,
    column: Any,
    rows: np.ndarray,
    readable: Callable[[str], str] = str,
) -> Any:
    """The values of a field as an Arrow array of the type of ``column``. ``readable`` converts its texts."""
    pa = pyarrow()
    values = np.ascontiguousarray(rows[field.name])
    if field.type == "string":
        ids, inverse = np.unique(values, return_inverse=True)
        return dictionary(
            [readable(strings[i]) for i in ids.tolist()], inverse, ids == 0
        )
    if field.type == "bytes16":
        return pa.FixedSizeBinaryArray.from_buffers(
            column.type, len(values), [None, pa.py_buffer(values.tobytes())]
        )
    return pa.array(values.view(np.int64) if pa.types.is_int64(column.type) else values)


def dictionary(texts: list[str], indices: np.ndarray, nothing: np.ndarray) -> Any:
    """A dictionary array from indices into ``texts``, which may repeat a text. ``nothing`` marks the texts that are
    null."""
    pa = pyarrow()
    codes: dict[str, int] = {}
    code = np.array([codes.setdefault(text, len(codes)) for text in texts], np.int32)
    mask = nothing[indices] if nothing.any() else None
    return pa.DictionaryArray.from_arrays(
        pa.array(code[indices], mask=mask), pa.array(list(codes), pa.string())
    )


def schema(name: str) -> Any:
    """The Arrow schema of :meth:`cutrace.Trace.arrow` for a table."""
    pa = pyarrow()
    fields = []
    layout = TABLES[name]
    for field in layout.fields:
        if layout.shows(field):
            fields.append(column(field))
        referred = layout.referred(field)
        if referred:
            fields += [each for each in schema(referred) if each.name not in NOT_SHOWN]
        if field.name == "end":
            fields.append(
                pa.field(
                    "duration",
                    pa.int64(),
                    metadata={"unit": "ns", "doc": "end less start"},
                )
            )
    if name in NODE_FIELDS:
        doc = "names of the NVTX ranges around the creation of the graph node"
        fields.append(
            pa.field(
                "created_in",
                pa.dictionary(pa.int32(), pa.string()),
                metadata={"doc": doc},
            )
        )
    if name == "nvtx_ranges":
        fields += _nccl_fields()
    return pa.schema(fields, {"cutrace.table": name})


def table(trace: Trace, name: str, *, indexed: bool = False) -> Any:
    """The result of :meth:`cutrace.Trace.arrow`. ``indexed`` makes dictionary columns of all columns of another table,
    which share their indices: a third of the memory of ``kernels``."""
    pa = pyarrow()
    rows = trace.table(name)
    columns = []
    layout = TABLES[name]
    for field in layout.fields:
        if layout.shows(field):
            columns.append(
                array(
                    trace.strings,
                    field,
                    column(field),
                    rows,
                    demangle if name == "launches" else str,
                )
            )
        referred = layout.referred(field)
        if referred:
            columns += _columns_of(table(trace, referred), rows[field.name], indexed)
        if field.name == "end":
            columns.append(pa.array((rows["end"] - rows["start"]).view(np.int64)))
    if name in NODE_FIELDS:
        columns.append(_created_in(trace, name, rows))
    if name == "nvtx_ranges":
        columns += _nccl_columns(trace, rows)
    if indexed:
        return pa.Table.from_arrays(columns, schema(name).names)
    return pa.Table.from_arrays(columns, schema=schema(name))


def _created_in(trace: Trace, name: str, rows: np.ndarray) -> Any:
    """The paths of the ranges in which the graph nodes of rows were created; null outside of graphs."""
    if not trace.origins:
        return dictionary([""], np.zeros(len(rows), np.uint32), np.ones(1, bool))
    path = trace.origins.path_of[trace.origins.of_rows(name, rows)]
    texts = [trace.origins.text(number) for number in range(len(trace.origins.paths))]
    return dictionary(texts, path, np.arange(len(texts)) == OUTSIDE)


def _nccl_fields() -> list[Any]:
    """The columns of what is known about calls of NCCL."""
    pa = pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())
    return [
        pa.field(
            "communicator",
            pa.uint64(),
            metadata={"doc": "communicator of a call of NCCL"},
        ),
        pa.field(
            "rank",
            pa.int64(),
            metadata={"doc": "rank of the caller in the communicator"},
        ),
        pa.field(
            "bytes",
            pa.int64(),
            metadata={"unit": "bytes", "doc": "message size of a call of NCCL"},
        ),
        pa.field("root", pa.int64(), metadata={"doc": "root of a collective"}),
        pa.field(
            "reduction", text, metadata={"doc": "reduction operation of a collective"}
        ),
    ]


def _nccl_columns(trace: Trace, rows: np.ndarray) -> list[Any]:
    pa = pyarrow()
    numbers = trace.nccl.of_rows(rows)
    columns = []
    for field, values in zip(
        _nccl_fields(), zip(*trace.nccl.calls, strict=True), strict=True
    ):
        if pa.types.is_dictionary(field.type):
            columns.append(_texts(list(values), numbers))
        else:
            columns.append(pa.array(values, field.type).take(pa.array(numbers)))
    return columns


def _texts(values: list[str | None], indices: np.ndarray) -> Any:
    """A dictionary array from indices into ``values``."""
    nothing = np.array([value is None for value in values], bool)
    return dictionary([value or "" for value in values], indices, nothing)


def payloads(trace: Trace, name: str) -> Any:
    """The result of :meth:`cutrace.Trace.payloads`."""
    if "arguments" not in {
        field.name for field in TABLES[name].fields
    } or not name.startswith("nvtx_"):
        raise CutraceError(f"{name} has no payloads: give nvtx_ranges or nvtx_marks")
    pa = pyarrow()
    texts = trace.table(name)["arguments"]
    chosen = texts != 0
    found = table(trace, name).filter(pa.array(chosen))
    replaced = {"arguments", *NcclCall._fields}
    found = found.drop_columns(
        [column for column in found.column_names if column in replaced]
    )
    ids, row_text = np.unique(texts[chosen], return_inverse=True)
    payload_of = [
        _flat(payload_fields(trace.strings[number])) for number in ids.tolist()
    ]
    for field in dict.fromkeys(field for payload in payload_of for field in payload):
        values = [payload.get(field) for payload in payload_of]
        found = found.append_column(
            _unused(_text(field), found.column_names), _payload_column(values, row_text)
        )
    return found


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of nested objects under names such as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        for suffix, member in inner.items():
            whole = f"{name}.{suffix}" if suffix else name
            while whole in flat:
                whole += "'"  # a field outside of the object has this name
            flat[whole] = member
    return flat


def _unused(name: str, names: list[str]) -> str:
    """The name, with a number behind it if there is such a name. SQL ignores the case of names."""
    used = {known.lower() for known in names}
    unused = name
    number = 1
    while unused.lower() in used:
        number += 1
        unused = f"{name} {number}"
    return unused


def _payload_column(values: list[Any], indices: np.ndarray) -> Any:
    """The values of a field by index: as numbers if all are, otherwise as strings."""
    pa = pyarrow()
    if any(isinstance(value, float) for value in values):
        values = list(map(_finite_or_float, values))
    kind = _number_type([value for value in values if value is not None])
    if kind == pa.float64():
        values = list(map(_float, values))
    if kind is not None:
        return pa.array(values, kind).take(pa.array(indices))
    return _texts([_payload_text(value) for value in values], indices)


def _finite_or_float(value: Any) -> Any:
    """The value, where the name of a number that is not finite becomes the number."""
    if value in _NOT_FINITE:
        return float(value)
    return value


def _float(value: Any) -> float | None:
    if value is None:
        return None
    return float(value)


def _payload_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value)
    return json.dumps(value)


def _number_type(values: list[Any]) -> Any:
    """The Arrow type that holds all values; None if they are not numbers of one type, or have more than 64 bits."""
    pa = pyarrow()
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pa.bool_()
    if not kinds or not kinds <= {int, float}:
        return None
    whole = [value for value in values if isinstance(value, int)]
    least = min(whole, default=0)
    most = max(whole, default=0)
    if least < -(1 << 63) or most >= 1 << 64:
        return None
    if kinds != {int}:
        return pa.float64()
    if most < 1 << 63:
        return pa.int64()
    if least >= 0:
        return pa.uint64()
    return None


def _columns_of(other: Any, ids: np.ndarray, indexed: bool) -> list[Any]:
    """The columns of the rows of another table with these ids."""
    pa = pyarrow()
    shown = other.drop_columns(NOT_SHOWN.intersection(other.schema.names))
    if indexed:
        indices = pa.array(ids.astype(np.int32))
        return [
            pa.DictionaryArray.from_arrays(indices, _values(column))
            for column in shown.columns
        ]
    return [column.combine_chunks() for column in shown.take(pa.array(ids)).columns]


def _values(column: Any) -> Any:
    """The values of a column without a dictionary of their own."""
    whole = column.combine_chunks()
    if pyarrow().types.is_dictionary(whole.type):
        return whole.dictionary_decode()
    return whole


def processes(trace: Trace) -> Any:
    """The processes of a trace as a ``pyarrow.Table``; ``process`` is their number in the other tables."""
    pa = pyarrow()
    rows = []
    for process in trace.processes:
        row = {
            "process": process.index,
            "pid": process.pid,
            "name": _text(process.name),
            "host": _text(process.host),
            "boot_id": _text(process.boot_id),
            "command": list(map(_text, process.command)),
            "description": json.dumps(process.info),
        }
        rows.append(row)
    types = {
        "process": pa.uint16(),
        "pid": pa.int64(),
        "command": pa.list_(pa.string()),
    }
    names = ("process", "pid", "name", "host", "boot_id", "command", "description")
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    return pa.Table.from_pylist(rows, schema)


def _text(text: str) -> str:
    """Text of a process description; lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def pandas(table: Any) -> Any:
    """An Arrow table as a pandas.DataFrame. Raises :class:`CutraceError` when pandas is not installed."""
    package("pandas", "pandas", "a DataFrame")
    return table.to_pandas()


def polars(table: Any) -> Any:
    """An Arrow table as a polars.DataFrame. Raises :class:`CutraceError` when polars is not installed."""
    return package("polars", "polars", "a polars.DataFrame").from_arrow(table)
