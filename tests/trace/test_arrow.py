"""Tables in the formats of other packages: Trace.arrow(), df() and pl()."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import captures
import cutrace
from cutrace.runbin import TABLES
from cutrace.runbin.layout import REFERRED
from support import small_capture

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def trace(tmp_path):
    with cutrace.load(small_capture(tmp_path / "run.bin")) as trace:
        yield trace


def test_kernels_have_names_launch_configurations_and_durations(trace):
    kernels = trace.arrow("kernels").to_pydict()
    assert kernels["name"] == ["saxpy", "saxpy"]
    assert kernels["duration"] == [100, 150]
    assert (kernels["grid_x"], kernels["block_x"]) == ([4, 4], [128, 128])
    assert "launch" not in kernels


def test_api_calls_have_the_name_of_their_function(trace):
    calls = trace.arrow("api_calls").to_pydict()
    assert calls["name"] == ["cudaLaunchKernel"] * 2
    assert calls["duration"] == [5, 5]


def test_every_table_has_its_rows_and_columns_with_signed_times_and_sizes(tmp_path):
    with cutrace.load(captures.awkward(tmp_path / "run.bin")) as trace:
        for name, table in TABLES.items():
            found = trace.arrow(name)
            rows = trace.table(name)
            if name in REFERRED.values():
                rows = rows[1:]
            assert found.num_rows == len(rows)
            for field in table.fields:
                if not table.shows(field):
                    continue
                column = found.column(field.name)
                if field.unit in ("ns", "bytes") and field.type == "u64":
                    assert column.type == pa.int64()
                if field.type == "string":
                    texts = [trace.strings[i] if i else None for i in rows[field.name].tolist()]
                    if name != "launches":
                        assert column.to_pylist() == texts
                elif field.type not in ("bytes16", "f64"):
                    assert column.to_pylist() == rows[field.name].tolist()


def test_names_of_kernels_are_demangled_and_an_unknown_launch_has_none(tmp_path):
    with cutrace.load(captures.awkward(tmp_path / "run.bin")) as trace:
        names = trace.arrow("kernels").column("name").to_pylist()
        ids = trace.launches["name"][trace.kernels["launch"]].tolist()
    assert "node()" in names
    assert [name is None for name in names] == [number == 0 for number in ids]


def test_a_table_that_does_not_exist_is_named(trace):
    for method in (trace.arrow, trace.df, trace.pl):
        with pytest.raises(cutrace.CutraceError, match="no table 'kernel'"):
            method("kernel")


def test_a_data_frame_has_the_columns_of_the_arrow_table(trace):
    pytest.importorskip("pandas")
    frame = trace.df("kernels")
    assert list(frame.columns) == trace.arrow("kernels").column_names
    assert frame["start"].dtype == np.int64
    assert (frame["end"] - frame["start"]).tolist() == frame["duration"].tolist()


def test_polars_gets_the_arrow_table(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda table: table.column_names))
    assert trace.pl("kernels") == trace.arrow("kernels").column_names


@pytest.mark.parametrize(("package", "method"), [("pandas", "df"), ("polars", "pl"), ("pyarrow", "arrow")])
def test_a_missing_package_is_named_with_what_installs_it(trace, monkeypatch, package, method):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(cutrace.CutraceError, match=rf"{package}: install it with `pip install {package}`"):
        getattr(trace, method)("kernels")


def test_a_trace_says_what_is_in_it_also_in_a_notebook(tmp_path, trace):
    assert repr(trace) == f"<Trace of {tmp_path}/run.bin: 1 process, 2 kernels, 2 API calls>"
    page = trace._repr_html_()
    assert "<td>kernels</td><td>2</td>" in page
    assert "memcpys" not in page


def test_a_name_cannot_write_into_a_notebook(tmp_path):
    with cutrace.load(small_capture(tmp_path / "<script>.bin")) as trace:
        assert "<script>" not in trace._repr_html_()
