"""NVTX payloads: the known fields of NCCL's calls, and all fields as columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import captures
import cutrace
from captures import ORIGIN, Capture
from cutrace.trace.nccl import NO_CALL, NcclCall

#: Communicators. Their ids are 64 bits wide.
WORLD, PAIR, SHARED = 2**64 - 7, 11, 12


def nccl(capture: Capture, name: str, fields: dict[str, Any] | str, thread: int = 100, domain: str = "NCCL") -> None:
    text = fields if isinstance(fields, str) else json.dumps(fields)
    capture.add(
        "nvtx_ranges", start=ORIGIN + 10, end=ORIGIN + 20, name=name, domain=domain, thread=thread, end_thread=thread,
        arguments=text,
    )  # fmt: skip


def made(communicator: int, rank: int) -> dict[str, int]:
    return {"NCCL communicator ID": communicator, "No. of ranks": 4, "Rank": rank, "CUDA device": 0}


def message(communicator: int, size: int, **more: Any) -> dict[str, Any]:
    return {"NCCL communicator ID": communicator, "Message size [bytes]": size, **more}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two processes. The second has two ranks of a communicator in two threads, and uses another communicator twice in
    one thread."""
    with Capture(tmp_path / "0.bin", pid=100) as c:
        nccl(c, "ncclAllReduce", message(WORLD, 4096, **{"Reduction operation": "Sum"}))
        nccl(c, "ncclBroadcast", message(PAIR, 8, Root=1))
        nccl(c, "ncclCommInitRank", made(WORLD, 3))
        nccl(c, "ncclCommDestroy", made(PAIR, 0))
        nccl(c, "ncclSend", {"Bytes": 64, "Peer rank": 2})
        nccl(c, "ncclAllGather", message(99, 5))
        nccl(c, "ncclGroupStart", "")
        nccl(c, "mine", message(WORLD, 1), domain="mine")
    with Capture(tmp_path / "1.bin", pid=200) as c:
        nccl(c, "ncclCommInitRank", made(WORLD, 0), thread=201)
        nccl(c, "ncclCommInitRank", made(WORLD, 1), thread=202)
        nccl(c, "ncclReduceScatter", message(WORLD, 16), thread=201)
        nccl(c, "ncclReduceScatter", message(WORLD, 16), thread=202)
        nccl(c, "ncclReduceScatter", message(WORLD, 16), thread=203)
        nccl(c, "ncclCommInitRank", made(SHARED, 0), thread=201)
        nccl(c, "ncclCommInitRank", made(SHARED, 1), thread=201)
        nccl(c, "ncclAllReduce", message(SHARED, 32), thread=201)
    captures.join(tmp_path / "run.bin", [tmp_path / "0.bin", tmp_path / "1.bin"])
    return tmp_path / "run.bin"


@pytest.fixture
def trace(job: Path) -> Iterator[cutrace.Trace]:
    with cutrace.load(job) as trace:
        yield trace


def calls(trace: cutrace.Trace) -> list[NcclCall]:
    return [trace.nccl.calls[number] for number in trace.nccl.of_rows(trace.nvtx_ranges).tolist()]


def test_calls_have_what_their_payload_and_their_communicator_tell(trace: cutrace.Trace) -> None:
    assert calls(trace)[:8] == [
        NcclCall(WORLD, 3, 4096, None, "Sum"),
        NcclCall(PAIR, 0, 8, 1),
        NcclCall(WORLD, 3),
        NcclCall(PAIR, 0),
        NcclCall(bytes=64),
        NcclCall(99, None, 5),
        NO_CALL,
        NO_CALL,
    ]


def test_a_rank_is_known_by_process_or_thread_and_never_guessed(trace: cutrace.Trace) -> None:
    found = [(call.communicator, call.rank) for call in calls(trace)[8:]]
    scattered = [(WORLD, 0), (WORLD, 1), (WORLD, None)]
    assert found == [(WORLD, 0), (WORLD, 1), *scattered, (SHARED, 0), (SHARED, 1), (SHARED, None)]


@pytest.mark.parametrize(
    "payload",
    [
        "not JSON", "[1]", "[" * 100_000, '{"Root": -1, "Rank": true, "Message size [bytes]": 1e3}',
        '{"NCCL communicator ID": 18446744073709551616, "Message size [bytes]": "4"}',
    ],
)  # fmt: skip
def test_odd_payloads_tell_nothing(tmp_path: Path, payload: str) -> None:
    with Capture(tmp_path / "run.bin") as c:
        nccl(c, "ncclAllReduce", payload)
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert calls(trace) == [NO_CALL]


def test_a_reduction_is_a_text_that_can_be_written(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        nccl(c, "ncclAllReduce", {"Reduction operation": "\ud800"})
        nccl(c, "ncclAllReduce", {"Reduction operation": 7})
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert [call.reduction for call in calls(trace)] == ["?", "7"]


def test_a_trace_without_nccl_has_no_calls(tmp_path: Path) -> None:
    with cutrace.load(captures.awkward(tmp_path / "run.bin")) as trace:
        assert trace.nccl.calls == [NO_CALL]
        assert not trace.nccl.of_rows(trace.nvtx_ranges).any()


def test_tables_have_columns_of_them(trace: cutrace.Trace) -> None:
    pytest.importorskip("pyarrow")
    rows = trace.arrow("nvtx_ranges").to_pylist()
    fields = ("communicator", "rank", "bytes", "root", "reduction")
    assert [tuple(row[field] for field in fields) for row in rows] == [tuple(call) for call in calls(trace)]


def test_a_report_sums_messages_by_communicator_and_rank(trace: cutrace.Trace) -> None:
    table = cutrace.stats(trace, "nccl_sum")
    at = [table.place(name) for name in ("name", "communicator", "rank", "root", "reduction", "total", "count")]
    found = [tuple(row[i] for i in at if i is not None) for row in table.rows]
    assert found[:2] == [
        ("ncclAllReduce", str(WORLD), 3, None, "Sum", 4096, 1),
        ("ncclSend", "", None, None, None, 64, 1),
    ]
    assert sorted(found[2:], key=str) == sorted(
        [
            ("ncclBroadcast", str(PAIR), 0, 1, None, 8, 1),
            ("ncclAllGather", "99", None, None, None, 5, 1),
            ("ncclAllReduce", str(SHARED), None, None, None, 32, 1),
            *(("ncclReduceScatter", str(WORLD), rank, None, None, 16, 1) for rank in (0, 1, None)),
        ],
        key=str,
    )


PAYLOADS = [
    {"n": 1, "ratio": 1, "id": 2**64 - 1, "on": True, "list": [1, 2], "at": {"x": 1, "y": {"z": 2}}, "mixed": 1},
    {"n": -5, "ratio": 0.5, "id": 3, "on": False, "label": "a", "at": {"x": None}, "mixed": "one", "huge": 2**70},
    {"n": 3, "ratio": "-inf", "Name": "own", "process": 5, "wide": 2**63, "vast": 2**64, "empty": None},
    {"at.x": 7, "at": {"x": 8}, "\ud800": "\udfff", "": 9},
]


def test_payload_fields_are_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with Capture(tmp_path / "run.bin") as c:
        for payload in PAYLOADS:
            nccl(c, "range", payload, domain="mine")
        nccl(c, "plain", "", domain="mine")
        nccl(c, "not an object", "7", domain="mine")
        c.add("nvtx_marks", time=ORIGIN, name="mark", arguments='{"n":7}')
    with cutrace.load(tmp_path / "run.bin") as trace:
        table = trace.payloads("nvtx_ranges")
        marks = trace.payloads("nvtx_marks").to_pydict()
        with pytest.raises(cutrace.CutraceError, match="give nvtx_ranges or nvtx_marks"):
            trace.payloads("kernels")
    columns = table.to_pydict()
    assert columns["name"] == ["range"] * 4 + ["not an object"]
    assert columns["at.x"] == [1, None, None, 7, None]
    assert columns["at.x'"] == [None, None, None, 8, None]
    assert columns["?"] == [None, None, None, "?", None]
    assert columns[""] == [None, None, None, 9, None]
    columns = {name: [*values[:3], *values[4:]] for name, values in columns.items()}
    assert columns["n"] == [1, -5, 3, None]
    assert columns["ratio"] == [1.0, 0.5, float("-inf"), None]
    assert columns["id"] == [2**64 - 1, 3, None, None]
    assert columns["wide"] == [None, None, 2**63, None]
    assert columns["on"] == [True, False, None, None]
    assert columns["list"] == ["[1, 2]", None, None, None]
    assert columns["at.y.z"] == [2, None, None, None]
    assert columns["mixed"] == ["1", "one", None, None]
    assert columns["huge"] == [None, str(2**70), None, None]
    assert columns["vast"] == [None, None, str(2**64), None]
    assert columns["label"] == [None, "a", None, None]
    assert columns["empty"] == [None] * 4
    # The table already has columns with these names, so the fields are renamed.
    assert columns["Name 2"] == [None, None, "own", None]
    assert columns["process 2"] == [None, None, 5, None]
    assert "arguments" not in columns
    assert table.schema.field("id").type == table.schema.field("wide").type == pa.uint64()
    assert table.schema.field("n").type == pa.int64()
    assert marks["n"] == [7]


def test_queries_read_payloads_of_any_names(job: Path) -> None:
    pytest.importorskip("duckdb")
    query = """select "Rank" as rank, "NCCL communicator ID" as communicator from nvtx_range_payloads
        where name = 'ncclCommDestroy'"""
    assert cutrace.sql(job, query).to_pylist() == [{"rank": 0, "communicator": PAIR}]
    with pytest.raises(cutrace.CutraceError, match="nvtx_range_payloads"):
        cutrace.sql(job, "select 1 from nowhere")


def test_a_table_without_payloads_is_empty(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with cutrace.load(captures.replays(tmp_path / "run.bin")) as trace:
        assert trace.payloads().num_rows == 0


def test_a_world_is_told_where_all_communicators_of_several_ranks_agree(tmp_path: Path) -> None:
    def world(*made_of: dict[str, int]) -> tuple[int, int] | None:
        with Capture(tmp_path / "one.bin") as c:
            for fields in made_of:
                nccl(c, "ncclCommInitRank", fields)
        with cutrace.load(tmp_path / "one.bin") as trace:
            return trace.nccl.world(0)

    alone = {"NCCL communicator ID": 20, "No. of ranks": 1, "Rank": 0}
    assert world(made(WORLD, 3), made(PAIR, 3), alone) == (3, 4)
    assert world(made(WORLD, 3), made(PAIR, 2)) is None
    assert world(made(WORLD, 1), made(WORLD, 2)) is None
    assert world(made(WORLD, 1), {"NCCL communicator ID": PAIR, "No. of ranks": 2, "Rank": 1}) is None
    assert world(made(WORLD, 4)) is None
    assert world(alone) is None
    assert world() is None


def test_each_process_has_its_own_world(job: Path) -> None:
    with cutrace.load(job) as trace:
        assert [trace.nccl.world(0), trace.nccl.world(1)] == [None, None]
