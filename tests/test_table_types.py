"""The types of tables for editors and type checkers."""

from __future__ import annotations

import numpy as np

import cutrace
from cutrace.runbin.layout import TABLES
from support import small_capture
from table_types import COLUMNS, STUB, stub


def test_the_types_are_those_of_the_tables():
    assert STUB.read_text() == stub(), "run `python tests/table_types.py`"


def test_columns_have_their_types(tmp_path):
    types = {format: eval(name, {"np": np}) for format, name in COLUMNS.items()}
    with cutrace.load(small_capture(tmp_path / "run.bin")) as trace:
        for name in TABLES:
            table = getattr(trace, name)
            assert table.ndim == 1
            for field, format in table.dtype.descr:
                assert table[field].dtype.type is types[format.replace("|", "")]
