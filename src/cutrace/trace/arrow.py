"""Tables for Arrow, pandas and polars: names in place of ids, signed integers for times and sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._native import demangle
from ..errors import CutraceError, package
from ..runbin.layout import NOT_SHOWN, REFERRED, TABLES, TYPES, Field
from .nccl import NcclCall, payload_fields
from .origins import NODE_FIELDS, OUTSIDE
from .quality import losses_of_the_file
from .strings import StringTable

if TYPE_CHECKING:
    from types import ModuleType

    from pandas import DataFrame

    from .trace import Trace

#: Units of quantities: columns with them are signed integers, so that arithmetic does not wrap.
QUANTITIES = frozenset(("ns", "bytes", "KB/s"))
# The collector's names of the floats that JSON lacks.
_NOT_FINITE = ("nan", "inf", "-inf")


def pyarrow(what: str = "Arrow") -> ModuleType:
    """pyarrow. Raises :class:`CutraceError` when it is not installed."""
    return package("pyarrow", what)


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
    metadata = {}
    if field.unit:
        metadata["unit"] = field.unit
    if field.doc:
        metadata["doc"] = field.doc
    can_be_null = field.type == "string"
    return pa.field(field.name, kind, nullable=can_be_null, metadata=metadata)


def array(
    strings: StringTable,
    field: Field,
    column: Any,
    rows: np.ndarray,
    readable: Callable[[str], str] = str,
) -> Any:
    """The values of a field as an Arrow array of the type of ``column``. ``readable`` converts its strings."""
    pa = pyarrow()
    values = np.ascontiguousarray(rows[field.name])
    if field.type == "string":
        ids, inverse = np.unique(values, return_inverse=True)
        texts = [readable(strings[number]) for number in ids.tolist()]
        return dictionary(texts, inverse, ids == 0)
    if field.type == "bytes16":
        buffers = [None, pa.py_buffer(values.tobytes())]
        return pa.FixedSizeBinaryArray.from_buffers(column.type, len(values), buffers)
    if pa.types.is_int64(column.type):
        values = values.view(np.int64)
    return pa.array(values)


def dictionary(
    texts: list[str],
    indices: np.ndarray,
    nothing: np.ndarray,
) -> Any:
    """A dictionary array from indices into ``texts``. ``texts`` may repeat a string. ``nothing`` marks the strings that
    are null."""
    pa = pyarrow()
    known: dict[str, int] = {}
    codes = [known.setdefault(text, len(known)) for text in texts]
    coded = np.array(codes, np.int32)[indices]
    mask = None
    if nothing.any():
        mask = nothing[indices]
    values = pa.array(list(known), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(coded, mask=mask), values)


def _extra(
    name: str,
    kind: Any,
    doc: str,
    **metadata: str,
) -> Any:
    """A column that is not a field of the table, as a field of an Arrow schema."""
    return pyarrow().field(name, kind, metadata={**metadata, "doc": doc})


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
            fields.append(_extra("duration", pa.int64(), "end less start", unit="ns"))
    if name in NODE_FIELDS:
        text = pa.dictionary(pa.int32(), pa.string())
        doc = "names of the NVTX ranges around the creation of the graph node"
        fields.append(_extra("created_in", text, doc))
    if name == "nvtx_ranges":
        fields += _nccl_fields()
    return pa.schema(fields, {"cutrace.table": name})


def table(
    trace: Trace,
    name: str,
    *,
    indexed: bool = False,
) -> Any:
    """The result of :meth:`cutrace.Trace.arrow`. ``indexed`` makes dictionary columns of all columns of another table,
    which share their indices: a third of the memory of ``kernels``."""
    whole = _with_row_0(trace, name, indexed)
    if name in REFERRED.values():
        return whole.slice(1)
    if name == "losses":
        more = losses_of_the_file(trace)
        added = pyarrow().Table.from_pylist(more, whole.schema)
        whole = pyarrow().concat_tables([whole, added]).unify_dictionaries()
    return whole


def _with_row_0(trace: Trace, name: str, indexed: bool = False) -> Any:
    """The rows of :meth:`cutrace.Trace.table`. Row 0 of a table that others refer to means "unknown"."""
    pa = pyarrow()
    rows = trace.table(name)
    columns = []
    layout = TABLES[name]
    readable = demangle if name == "launches" else str
    for field in layout.fields:
        if layout.shows(field):
            described = column(field)
            columns.append(array(trace.strings, field, described, rows, readable))
        referred = layout.referred(field)
        if referred:
            other = _with_row_0(trace, referred)
            columns += _columns_of(other, rows[field.name], indexed)
        if field.name == "end":
            durations = rows["end"] - rows["start"]
            columns.append(pa.array(durations.view(np.int64)))
    if name in NODE_FIELDS:
        columns.append(_created_in(trace, name, rows))
    if name == "nvtx_ranges":
        columns += _nccl_columns(trace, rows)
    if indexed:
        return pa.Table.from_arrays(columns, schema(name).names)
    return pa.Table.from_arrays(columns, schema=schema(name))


def _created_in(trace: Trace, name: str, rows: np.ndarray) -> Any:
    """The paths of the ranges in which the graph nodes of rows were created; null outside of graphs."""
    origins = trace.origins
    if not origins:
        nothing = np.ones(1, bool)
        return dictionary([""], np.zeros(len(rows), np.uint32), nothing)
    path = origins.path_of[origins.of_rows(name, rows)]
    texts = list(map(origins.text, range(len(origins.paths))))
    return dictionary(texts, path, np.arange(len(texts)) == OUTSIDE)


def _nccl_fields() -> list[Any]:
    """The columns about calls of NCCL."""
    pa = pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())
    number = pa.int64()
    return [
        _extra("communicator", pa.uint64(), "communicator of a call of NCCL"),
        _extra("rank", number, "rank of the caller in the communicator"),
        _extra("bytes", number, "message size of a call of NCCL", unit="bytes"),
        _extra("root", number, "root of a collective"),
        _extra("reduction", text, "reduction operation of a collective"),
    ]


def _nccl_columns(trace: Trace, rows: np.ndarray) -> list[Any]:
    pa = pyarrow()
    numbers = trace.nccl.of_rows(rows)
    columns = []
    values_of_fields = zip(*trace.nccl.calls, strict=True)
    for field, values in zip(_nccl_fields(), values_of_fields, strict=True):
        if pa.types.is_dictionary(field.type):
            columns.append(_texts(list(values), numbers))
        else:
            of_calls = pa.array(values, field.type)
            columns.append(of_calls.take(pa.array(numbers)))
    return columns


def _texts(values: list[str | None], indices: np.ndarray) -> Any:
    """A dictionary array from indices into ``values``."""
    nothing = np.array([value is None for value in values], bool)
    return dictionary([value or "" for value in values], indices, nothing)


def payloads(trace: Trace, name: str) -> Any:
    """The result of :meth:`cutrace.Trace.payloads`."""
    if "arguments" not in TABLES[name].offsets or not name.startswith("nvtx_"):
        raise CutraceError(f"{name} has no payloads: give nvtx_ranges or nvtx_marks")
    pa = pyarrow()
    texts = trace.table(name)["arguments"]
    chosen = texts != 0
    found = table(trace, name).filter(pa.array(chosen))
    replaced = {"arguments", *NcclCall._fields}
    found = found.drop_columns(replaced.intersection(found.column_names))
    ids, row_text = np.unique(texts[chosen], return_inverse=True)
    payload_of = []
    fields: dict[str, None] = {}
    for number in ids.tolist():
        payload = _flat(payload_fields(trace.strings[number]))
        payload_of.append(payload)
        fields |= dict.fromkeys(payload)
    for field in fields:
        column_name = _unused(_text(field), found.column_names)
        values = [payload.get(field) for payload in payload_of]
        found = found.append_column(column_name, _payload_column(values, row_text))
    return found


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of nested objects under names such as ``outer.inner``."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        for suffix, member in inner.items():
            whole = name
            if suffix:
                whole += f".{suffix}"
            while whole in flat:
                whole += "'"  # another field has this name
            flat[whole] = member
    return flat


def _unused(name: str, names: list[str]) -> str:
    """A name that is not used yet: the given name, followed by a number if it is used. SQL ignores the case of
    names."""
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
    if kind is None:
        return _texts(list(map(_payload_text, values)), indices)
    if kind == pa.float64():
        values = list(map(_float, values))
    return pa.array(values, kind).take(pa.array(indices))


def _finite_or_float(value: Any) -> Any:
    """The value; a float in place of the name of a number that is not finite."""
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


def _columns_of(
    other: Any,
    ids: np.ndarray,
    indexed: bool,
) -> list[Any]:
    """The columns of another table, for the rows with these ids."""
    pa = pyarrow()
    shown = other.drop_columns(NOT_SHOWN.intersection(other.schema.names))
    if not indexed:
        taken = shown.take(pa.array(ids))
        return [column.combine_chunks() for column in taken.columns]
    indices = pa.array(ids.astype(np.int32))
    columns = []
    for column in shown.columns:
        values = _values(column)
        columns.append(pa.DictionaryArray.from_arrays(indices, values))
    return columns


def _values(column: Any) -> Any:
    """The values of a column, without a dictionary."""
    whole = column.combine_chunks()
    if pyarrow().types.is_dictionary(whole.type):
        return whole.dictionary_decode()
    return whole


def processes_schema() -> Any:
    """The Arrow schema of :func:`processes`."""
    pa = pyarrow()
    text = pa.string()
    number = pa.int64()
    return pa.schema(
        [
            _extra("process", pa.uint16(), "index of the process, as in other tables"),
            _extra("pid", number, "process id"),
            _extra("name", text, "name of the program, or of the imported process"),
            _extra("rank", number, "number among the processes of the program"),
            _extra("local_rank", number, "number among the processes of the machine"),
            _extra("world_size", number, "number of processes of the program"),
            _extra("job", text, "name of the job"),
            _extra("host", text, "name of the host"),
            _extra("boot_id", text, "id of the boot of the machine"),
            _extra("command", pa.list_(text), "arguments of the command"),
            _extra(
                "complete",
                pa.bool_(),
                "whether its capture was closed in order; a killed process may lack its last rows",
            ),
            _extra(
                "description",
                text,
                "description of the process in the capture, as a JSON object",
            ),
        ]
    )


def processes(trace: Trace) -> Any:
    """The processes of a trace as a ``pyarrow.Table``; ``process`` is their number in the other tables."""
    rows = []
    for process in trace.processes:
        row = {
            "process": process.index,
            "pid": process.pid,
            "name": _text(process.name),
            "rank": process.rank,
            "local_rank": process.local_rank,
            "world_size": process.world_size,
            "job": _text(process.job) or None,
            "host": _text(process.host),
            "boot_id": _text(process.boot_id),
            "command": list(map(_text, process.command)),
            "complete": process.complete,
            "description": json.dumps(process.info),
        }
        rows.append(row)
    return pyarrow().Table.from_pylist(rows, processes_schema())


def _text(text: str) -> str:
    """A string of a process description. Lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode()


def pandas(table: Any) -> DataFrame:
    """An Arrow table as a pandas.DataFrame. Raises :class:`CutraceError` when pandas is not installed."""
    package("pandas", "a DataFrame")
    return table.to_pandas()


def polars(table: Any) -> Any:
    """An Arrow table as a polars.DataFrame. Raises :class:`CutraceError` when polars is not installed."""
    return package("polars", "a polars.DataFrame").from_arrow(table)
