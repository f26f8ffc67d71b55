"""Fields of extended NVTX payloads as arguments of ranges and marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import captures
import cutrace
from captures import ORIGIN, Capture
from cutrace import slicing
from pftrace import decode

ALL_REDUCE = {"NCCL communicator ID": 2**64 - 7, "Message size [bytes]": 4096, "Reduction operation": "Sum"}
#: Fields with the names of other arguments of NVTX events.
CLASHES = {"depth": 7, "domain": "own", "payload": [1, 2], "ratio": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ranges of every kind with arguments, one of them with work on a stream, and ranges without arguments."""
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        c.add("nvtx_ranges", start=ORIGIN, end=ORIGIN + 900, name="plain", thread=100)
        c.add(
            "nvtx_ranges", start=ORIGIN + 100, end=ORIGIN + 500, name="ncclAllReduce", domain="NCCL", thread=100,
            depth=1, arguments=json.dumps(ALL_REDUCE),
        )  # fmt: skip
        c.add(
            "nvtx_ranges", start=ORIGIN + 600, end=ORIGIN + 700, name="started", thread=100, end_thread=101, kind=1,
            range_id=3, arguments=json.dumps(CLASHES),
        )  # fmt: skip
        c.add("nvtx_ranges", start=ORIGIN + 650, end=0, name="open", thread=102, flags=1, arguments='{"n":1}')
        c.add("nvtx_marks", time=ORIGIN + 50, name="mark", thread=100, arguments='{"payload":3}')
        c.add("nvtx_marks", time=ORIGIN + 60, name="number", thread=100, payload=3, payload_type=2)
        c.api("cudaLaunchKernel", 200, 300, thread=100, correlation=7)
        c.kernel(c.launch("k"), 400, 450, stream=7, correlation=7)
    return path


@pytest.mark.parametrize("metrics", [False, True])
def test_slices_of_a_pftrace_have_them(run: Path, tmp_path: Path, metrics: bool) -> None:
    if metrics:  # metrics of a range are arguments, too
        later = tmp_path / "later.bin"
        with Capture(later) as c:
            c.add("kernel_metrics", start=ORIGIN + 100, end=ORIGIN + 500, name="m", value=2.5, range="ncclAllReduce")
        captures.join(tmp_path / "both.bin", [run, later])
        run = tmp_path / "both.bin"
    cutrace.convert(run, tmp_path / "x.pftrace")
    trace = decode(tmp_path / "x.pftrace")
    slices = trace.slices
    ranges = [s.args for s in (*slices, *trace.derived) if s.name == "ncclAllReduce"]
    assert len(ranges) == 2  # on the thread and on the stream
    for args in ranges:
        assert args.items() >= ALL_REDUCE.items()
    assert sum("m" in args for args in ranges) == metrics
    by_name = {s.name: s.args for s in slices}
    assert by_name["started"]["ratio"] == 0.5
    assert by_name["open"]["n"] == 1
    assert "arguments" not in by_name["plain"]


def test_instants_of_a_pftrace_have_them(run: Path, tmp_path: Path) -> None:
    cutrace.convert(run, tmp_path / "x.pftrace")
    marks = {i.name: i.args for i in decode(tmp_path / "x.pftrace").slices if i.instant}
    assert marks["mark"] == {"payload": 3}
    assert marks["number"] == {"payload": 3}


def events(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("cat") == "nvtx" and "args" in event:
            found[event["name"]] = event["args"]
    return found


def test_events_of_json_have_them(run: Path, tmp_path: Path) -> None:
    cutrace.convert(run, tmp_path / "x.json")
    found = events(tmp_path / "x.json")
    assert found["ncclAllReduce"].items() >= ALL_REDUCE.items()
    assert found["started"].items() >= {"depth (field)": 7, "domain (field)": "own", "payload": [1, 2]}.items()
    assert found["mark"]["payload (field)"] == 3
    assert (found["number"]["payload"], found["number"]["payload type"]) == (3, 2)


def test_a_database_has_them_as_nsys_has(run: Path, tmp_path: Path) -> None:
    cutrace.convert(run, tmp_path / "x.sqlite", capture=False)
    with cutrace.load(tmp_path / "x.sqlite") as trace:
        texts = {trace.strings[r["name"]]: trace.strings[r["arguments"]] for r in trace.nvtx_ranges}
    assert json.loads(texts["ncclAllReduce"]) == ALL_REDUCE


def test_a_slice_keeps_them(run: Path, tmp_path: Path) -> None:
    slicing.cut(run, tmp_path / "part.bin", slicing.Conditions(nvtx=("ncclAllReduce",)))
    with cutrace.load(tmp_path / "part.bin") as trace:
        row = trace.nvtx_ranges[trace.nvtx_ranges["domain"] != 0][0]
        assert json.loads(trace.strings[row["arguments"]]) == ALL_REDUCE
