"""NVTX counters and payloads, from the program to the reports and traces. Needs no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from pftrace import decode

nvtx = pytest.importorskip("nvtx")
if not hasattr(nvtx, "Counter"):
    pytest.skip("counters need nvtx 0.2.16", allow_module_level=True)

PROGRAM = """
import numpy as np
import nvtx

domain = nvtx.get_domain("model")
with nvtx.annotate("number", payload=7, domain="model"):
    pass
with nvtx.annotate("array", payload=np.array([1, 2, 3], dtype=np.int64), domain="model"):
    pass
memory = np.dtype([("used", np.int64), ("free", np.int64)])
tokens = domain.get_counter("tokens", "int64", semantics=nvtx.CounterSemantics(unit="tokens"))
loss = domain.get_counter("loss", "float64")
bytes = domain.get_counter("memory", memory, semantics=nvtx.CounterSemantics(unit="bytes"))
for step in range(5):
    tokens.sample(step * 100)
    loss.sample(1 / (step + 1))
    bytes.sample(np.array((step, 10 - step), dtype=memory))
loss.sample_no_value(nvtx.CounterNoValueReason.UNAVAILABLE)
loss.sample(0.5)
"""

#: The values by counter and series. "loss" has a time without a value before its last value.
VALUES = {
    "tokens": [0, 100, 200, 300, 400],
    "loss": [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 0.5],
    "memory used": [0, 1, 2, 3, 4],
    "memory free": [10, 9, 8, 7, 6],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvtx")
    command = [sys.executable, "-m", "cutrace", "record", "-o", "run.bin", "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "run.bin"


def test_counters_are_a_table(recorded: Path) -> None:
    with cutrace.load(recorded) as trace:
        assert not len(trace.losses)
        rows = trace.counters
        names = trace.strings.take(rows["name"])
        series = trace.strings.take(rows["series"])
        units = dict(zip(names, trace.strings.take(rows["unit"]), strict=True))
        found: dict[str, list[float]] = {}
        for name, one, value in zip(names, series, rows["value"].tolist(), strict=True):
            if value == value:
                found.setdefault(f"{name} {one}".strip(), []).append(value)
        assert set(trace.strings.take(rows["category"])) == {"nvtx.model"}
        assert trace.start <= rows["time"].min()
        assert rows["time"].max() <= trace.end
    assert found == VALUES
    assert units == {"tokens": "tokens", "loss": "", "memory": "bytes"}


def test_counters_are_a_report(recorded: Path) -> None:
    table = cutrace.stats(recorded, "counter_sum")
    at = [table.place(name) for name in ("counter", "unit", "samples", "min", "max")]
    assert sorted(tuple(row[i] for i in at if i is not None) for row in table.rows) == [
        ("loss", "", 6, 1 / 5, 1), ("memory free", "bytes", 5, 6, 10), ("memory used", "bytes", 5, 0, 4),
        ("tokens", "tokens", 5, 0, 400),
    ]  # fmt: skip


def test_counters_are_counter_tracks_in_perfetto(recorded: Path, tmp_path: Path) -> None:
    cutrace.convert(recorded, tmp_path / "x.pftrace")
    found: dict[str, list[float]] = {}
    for sample in sorted(decode(tmp_path / "x.pftrace").counters, key=lambda sample: sample.time):
        if sample.value == sample.value:
            found.setdefault(sample.track.name.replace(",", ""), []).append(sample.value)
    assert found == VALUES


def test_counters_are_counter_events_in_chrome_json(recorded: Path, tmp_path: Path) -> None:
    cutrace.convert(recorded, tmp_path / "x.json")
    found: dict[str, list[float]] = {}
    for event in json.loads((tmp_path / "x.json").read_text())["traceEvents"]:
        for series, value in event["args"].items() if event["ph"] == "C" else ():
            if value is not None:
                name = f"{event['name']} {series}" if series != "value" else event["name"]
                found.setdefault(name, []).append(value)
    assert found == VALUES


def test_payload_fields_are_columns(recorded: Path) -> None:
    pytest.importorskip("pyarrow")
    with cutrace.load(recorded) as trace:
        ranges = trace.payloads("nvtx_ranges").to_pydict()
        plain = trace.arrow("nvtx_ranges").to_pydict()
    assert plain["payload"] == [7, 0]
    assert plain["communicator"] == [None, None]
    assert ranges["name"] == ["array"]
    assert ranges["size"] == [3]
    assert ranges["data"] == ["[1, 2, 3]"]


def test_queries_read_both(recorded: Path) -> None:
    pytest.importorskip("duckdb")
    counted = cutrace.sql(recorded, "select name, max(value) as most from counters where name = 'tokens' group by name")
    assert counted.to_pylist() == [{"name": "tokens", "most": 400}]
    fields = cutrace.sql(recorded, "select name, size from nvtx_range_payloads")
    assert fields.to_pylist() == [{"name": "array", "size": 3}]
    assert cutrace.sql(recorded, "select count(*) as marks from nvtx_mark_payloads").to_pylist() == [{"marks": 0}]
