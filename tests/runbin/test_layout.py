"""The single definition of all rows."""

from __future__ import annotations

import json
import re

import pytest

from cutrace.runbin import TABLES, layout


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_the_dtype_has_the_declared_offsets_and_no_padding(table):
    fields = {name: offset for name, (_, offset) in table.dtype.fields.items()}
    assert fields == table.offsets
    assert table.dtype.itemsize == table.row_size


def test_numbers_are_unique_and_leave_room_for_block_kinds():
    numbers = [t.number for t in TABLES.values()]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 16


def test_a_launch_and_its_kernel_take_less_than_64_bytes():
    assert TABLES["kernels"].row_size + TABLES["api_calls"].row_size < 64


def test_the_cpp_header_asserts_every_offset():
    header = layout.cpp_header()
    asserted = set(re.findall(r"offsetof\((\w+), (\w+)\) == (\d+)", header))
    for table in TABLES.values():
        struct = "".join(p.capitalize() for p in table.name.split("_"))
        assert {(struct, f, str(at)) for f, at in table.offsets.items()} <= asserted


def test_the_schema_written_into_captures_is_json_that_names_every_field():
    schema = json.loads(json.dumps(layout.schema()))
    for table in TABLES.values():
        assert [f[0] for f in schema[table.name]["fields"]] == list(table.offsets)
        assert schema[table.name]["row_size"] == table.row_size
