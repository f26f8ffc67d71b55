"""Import of torch.profiler's files: the rows agree with the JSON, and every event is accounted for."""

from __future__ import annotations

import gzip
import json
import re
import resource
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from cutrace import BadCapture, Trace
from cutrace.runbin import TABLES, Writer
from cutrace.trace.imported import Tally

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("kineto*.json.gz"))

Event = dict[str, Any]


def ns(microseconds: object) -> int:
    return int(Decimal(str(microseconds)) * 1000)


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.name.split(".json")[0])
def pair(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Trace]:
    """A file as JSON with exact numbers, and the trace of this file."""
    with gzip.open(request.param) as file:
        return json.load(file, parse_float=Decimal), cutrace.load(request.param)


def events(document: dict[str, Any], *categories: str, phase: str = "X") -> list[Event]:
    return [e for e in document["traceEvents"] if e["ph"] == phase and e.get("cat") in categories]


def same(found: list[Any], expected: list[Any]) -> None:
    assert Counter(found) == Counter(expected)
    assert expected


def args(event: Event, *names: str, default: int = 0) -> tuple[Any, ...]:
    return tuple(event["args"].get(name, default) for name in names)


def span(event: Event) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def external_ids(trace: Trace) -> dict[int, set[int]]:
    out: dict[int, set[int]] = {}
    for external, correlation, kind in trace.external_correlations[["external", "correlation", "kind"]].tolist():
        assert kind == 0xFFFF
        out.setdefault(correlation, set()).add(external)
    return out


class TestTruth:
    """Each test compares all events of a kind with all rows, in both directions."""

    def test_kernels(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        launches = trace.launches[trace.kernels["launch"]]
        shape = [f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"]
        rows = trace.kernels[["start", "end", "correlation", "stream", "context", "device"]].tolist()
        configurations = launches[["registers", "dynamic_shared", "graph", "graph_node", *shape]].tolist()
        names = trace.strings.take(launches["name"]).tolist()
        same(
            list(zip(rows, configurations, names, strict=True)),
            [
                (
                    (*span(e), *args(e, "correlation", "stream", "context", "device")),
                    (
                        *args(e, "registers per thread", "shared memory", "graph id", "graph node id"),
                        *e["args"]["grid"],
                        *e["args"]["block"],
                    ),
                    e["name"],
                )
                for e in events(document, "kernel")
            ],
        )

    def test_copies(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        kinds = {1: "HtoD", 2: "DtoH", 8: "DtoD"}
        memory = {1: "Pageable", 2: "Pinned", 3: "Device"}
        fields = ["start", "end", "bytes", "correlation", "stream", "context", "device", "source_device"]
        rows = trace.memcpys[[*fields, "kind", "source_memory", "destination_memory"]].tolist()
        same(
            [(*row[:-3], f"Memcpy {kinds[row[-3]]} ({memory[row[-2]]} -> {memory[row[-1]]})") for row in rows],
            [
                (*span(e), *args(e, "bytes", "correlation", "stream", "context", "device", "device"), e["name"])
                for e in events(document, "gpu_memcpy")
            ],
        )

    def test_fills(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        rows = trace.memsets[["start", "end", "bytes", "correlation", "stream", "context", "device", "memory"]].tolist()
        same(
            [(*row[:-1], {3: "Memset (Device)"}[row[-1]]) for row in rows],
            [
                (*span(e), *args(e, "bytes", "correlation", "stream", "context", "device"), e["name"])
                for e in events(document, "gpu_memset")
            ],
        )

    def test_calls(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        functions = trace.functions[trace.api_calls["function"]]
        pids = [p.pid for p in trace.processes]
        rows = trace.api_calls[["start", "end", "correlation", "thread", "process"]].tolist()
        names = trace.strings.take(functions["name"]).tolist()
        of_functions = functions[["domain", "callback", "status"]].tolist()
        same(
            [(*row[:-1], pids[row[-1]], *f, name) for row, f, name in zip(rows, of_functions, names, strict=True)],
            [
                (
                    *span(e), *args(e, "correlation"), e["tid"], e["pid"], {"cuda_driver": 1,
                    "cuda_runtime": 2}[e["cat"]],
                    *args(e, "cbid"), 0, e["name"],
                )
                for e in events(document, "cuda_runtime", "cuda_driver")
            ],
        )  # fmt: skip

    def test_external_ids(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        known = external_ids(trace)
        told: dict[int, set[int]] = {}
        for event in events(document, "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"):
            if "External id" in event["args"]:
                told.setdefault(event["args"]["correlation"], set()).add(event["args"]["External id"])
        assert known == told

    @pytest.mark.parametrize(
        ("category", "kind", "without"),
        [
            ("cpu_op", 1, {"External id", "Ev Idx", "Record function id"}),
            ("user_annotation", 2, {"External id", "Ev Idx", "Record function id"}),
            ("python_function", 3, {"Ev Idx", "Python id", "Python parent id", "Python module id"}),
            ("Trace", 0, set()),
        ],
    )
    def test_slices_of_the_host(
        self, pair: tuple[dict[str, Any], Trace], category: str, kind: int, without: set[str]
    ) -> None:
        document, trace = pair
        rows = trace.host_slices[trace.host_slices["kind"] == kind]
        assert set(trace.strings.take(rows["category"]).tolist()) == {category}
        texts = [trace.strings.take(rows[name]).tolist() for name in ("name", "arguments")]
        numbers = rows[["start", "end", "external"]].tolist()
        same(
            [(*n, name, canonical(a)) for n, name, a in zip(numbers, *texts, strict=True)],
            [
                (
                    *span(e), *args(e, "External id"), e["name"],
                    canonical({k: v for k, v in e["args"].items() if k not in without}),
                )
                for e in events(document, category)
            ],
        )  # fmt: skip

    def test_annotations_on_the_gpu(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        names = trace.strings.take(trace.gpu_slices["name"]).tolist()
        rows = trace.gpu_slices[["start", "end", "device", "stream", "kind"]].tolist()
        same(
            list(zip(rows, names, strict=True)),
            [((*span(e), e["pid"], e["tid"], 1), e["name"]) for e in events(document, "gpu_user_annotation")],
        )

    def test_memory(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        told = [e for e in events(document, "cpu_instant_event", phase="i") if e["name"] == "[memory]"]
        counters = trace.counters
        names = trace.strings.take(counters["name"]).tolist()
        same(
            list(zip(counters[["time", "value", "device"]].tolist(), names, strict=True)),
            [
                (
                    (
                        ns(e["ts"]),
                        float(e["args"][name]),
                        e["args"]["Device Id"] if e["args"]["Device Type"] else 0xFFFF,
                    ),
                    name,
                )
                for e in told
                for name in ("Total Allocated", "Total Reserved")
                if e["args"]["Device Type"] or name == "Total Allocated"  # the host reserves nothing
            ],
        )
        instants = trace.instants
        texts = [trace.strings.take(instants[name]).tolist() for name in ("name", "arguments")]
        moments = zip(instants["time"].tolist(), *texts, strict=True)
        same(
            [(time, canonical(a)) for time, name, a in moments if name == "[memory]"],
            [(ns(e["ts"]), canonical({k: e["args"][k] for k in ("Bytes", "Addr")})) for e in told],
        )

    def test_flows(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        rows = trace.flows[["time", "id", "thread", "phase", "flags"]].tolist()
        same(
            rows,
            [
                (ns(e["ts"]), e["id"], e["tid"], ord(phase), int(e.get("bp") == "e"))
                for phase in "sf"
                for e in events(document, "fwdbwd", phase=phase)
            ],
        )

    def test_devices_and_clocks(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        (told,) = document["deviceProperties"]
        device = trace.devices[0]
        assert trace.strings[device["name"]] == told["name"]
        assert (device["memory"], device["multiprocessors"]) == (told["totalGlobalMem"], told["numSms"])
        assert device["max_warps_per_multiprocessor"] == told["maxThreadsPerMultiprocessor"] // told["warpSize"]
        clocks = trace.clocks
        assert set((clocks["realtime"] - clocks["boottime"]).tolist()) == {document["baseTimeNanoseconds"]}

    def test_processes_and_threads(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        host = next(e["pid"] for e in events(document, "cuda_runtime"))
        process = next(p for p in trace.processes if p.pid == host)
        assert process.name == "python3"
        assert process.info["driver_version"] == document["cuda_driver_version"]
        assert process.info["trace_metadata"]["traceName"] == document["traceName"]
        named = {
            (trace.processes[p].pid, thread): trace.strings[name]
            for thread, name, p in trace.threads[["thread", "name", "process"]].tolist()
        }
        told = [
            e for e in document["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == host
        ]
        # The last name of a thread is valid.
        expected = {(host, e["tid"]): e["args"]["name"] for e in told}
        assert {key: name for key, name in named.items() if key[0] == host} == expected
        assert {p.info.get("source_pid") for p in trace.processes} == {None, "Spans", "Traces", ""}


def canonical(arguments: str | dict[str, Any]) -> str:
    value = (json.loads(arguments) if arguments else {}) if isinstance(arguments, str) else arguments
    return json.dumps(value, sort_keys=True, default=float)


class TestAccount:
    def test_every_event_is_accounted_for(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        expected: dict[str, list[int]] = {}
        for event in document["traceEvents"]:
            category, phase = event.get("cat", ""), event["ph"]
            what = (category if phase == "X" else f"{category} ({phase})") if category else f"{phase} events"
            tally = expected.setdefault(what, [0, 0])
            tally[0] += 1
            tally[1] += ns(event.get("dur", 0))
        (imported,) = trace.imports
        assert (imported.format, imported.lost) == ("kineto", 0)
        assert all(account.balanced for account in imported.accounts)
        found = {a.what: [a.seen.count, a.seen.duration_ns] for a in imported.accounts if " of " not in a.what}
        assert found == expected

    def test_what_is_left_is_named(self, pair: tuple[dict[str, Any], Trace]) -> None:
        document, trace = pair
        accounts = {a.what: a for a in trace.imports[0].accounts}
        kernels = events(document, "kernel")
        assert accounts["argument queued of kernel"].seen == Tally(len(kernels), 0)
        told = Counter(key for e in events(document, "kernel") for key in e["args"])
        kept = {"External id", "device", "context", "stream", "correlation", "registers per thread", "shared memory",
                "grid", "block",
                "graph id", "graph node id", "priority"}  # fmt: skip
        left = {
            name: account.seen.count
            for what, account in accounts.items()
            if (match := re.fullmatch("argument (.*) of kernel", what)) and (name := match[1])
        }
        assert left == {name: count for name, count in told.items() if name not in kept}
        told_last = [line for line in trace.imports[0].leftovers() if line.startswith("arguments of ")]
        counts = ", ".join(f"{name} ({count:,})" for name, count in left.items())
        assert f"arguments of kernel left out: {counts}" in told_last
        assert list(trace.imports[0].leftovers())[-len(told_last) :] == told_last, "events are more important"
        arrows = sum(e.get("cat") == "ac2g" for e in document["traceEvents"])
        assert sum(sum(t.count for t in accounts[f"ac2g ({p})"].left.values()) for p in "sf") == arrows


# Files written by the tests


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Trace]:
    def load(*events: Event | str, **others: Any) -> Trace:
        texts = [e if isinstance(e, str) else json.dumps(e) for e in events]
        head = json.dumps({"schemaVersion": 1, **others})[:-1]
        path = tmp_path / "made.json"
        path.write_text(f'{head}, "traceEvents": [{",".join(texts)}]}}')
        return cutrace.load(path)

    return load


CALL = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 11, "ts": 2e9, "dur": 2,
    "args": {"cbid": 211, "correlation": 5, "External id": 3},
}  # fmt: skip
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2e9 + 3, "dur": 4.125,
    "args": {"device": 0, "context": 1, "stream": 7, "correlation": 5, "grid": [1, 2, 3], "block": [4, 5, 6]},
}  # fmt: skip


def changed(event: Event, **keys: Any) -> Event:
    arguments = event.get("args", {}) | keys.pop("args", {})
    return {key: value for key, value in (event | keys | {"args": arguments}).items() if value is not None}


class TestRecords:
    def test_work_on_a_gpu_is_of_the_profiled_process(self, load: Callable[..., Trace]) -> None:
        trace = load(KERNEL, CALL)
        assert [p.pid for p in trace.processes] == [10]
        assert trace.kernels["correlation"] == trace.api_calls["correlation"] == 5

    @pytest.mark.parametrize("backend", ["xpu", "privateuse1"])
    def test_calls_of_other_backends_launch_work(self, load: Callable[..., Trace], backend: str) -> None:
        of_driver = changed(CALL, cat=f"{backend}_driver", ts=2e9 + 1, dur=0.5, args={"correlation": 6})
        trace = load(KERNEL, changed(CALL, cat=f"{backend}_runtime"), of_driver)
        assert trace.api_calls["correlation"].tolist() == [5, 6]
        assert trace.functions["domain"][trace.api_calls["function"]].tolist() == [2, 1]
        assert not trace.count("host_slices")

    def test_arrows_to_devices_without_tables_are_kept(self, load: Callable[..., Trace]) -> None:
        call = changed(CALL, cat="mtia_runtime", args={"correlation": 9})
        work = {"ph": "X", "cat": "mtia_ccp_events", "name": "dma", "pid": 17, "tid": 3, "ts": 2e9 + 5, "dur": 1}
        arrow = {"cat": "ac2g", "name": "ac2g"}
        start, end = {"ph": "s", "pid": 10, "tid": 11, "ts": 2e9}, {"ph": "f", "bp": "e"}
        of_work = {key: work[key] for key in ("pid", "tid", "ts")}
        of_kernel = {key: KERNEL[key] for key in ("pid", "tid", "ts")}
        trace = load(
            CALL, call, arrow | start | {"id": 9}, arrow | start | {"id": 5}, work, KERNEL,
            arrow | end | of_work | {"id": 9}, arrow | end | of_kernel | {"id": 5},
            # Kineto ends an arrow on each call.
            arrow | end | {"id": 7, "pid": 10, "tid": 11, "ts": 2e9},
        )  # fmt: skip
        assert trace.flows[["id", "phase", "thread", "flags"]].tolist() == [(9, ord("s"), 11, 0), (9, ord("f"), 3, 1)]
        accounts = {account.what: account for account in trace.imports[0].accounts}
        assert (accounts["ac2g (s)"].kept.count, accounts["ac2g (f)"].kept.count) == (1, 1)
        left = [sum(tally.count for tally in accounts[f"ac2g ({phase})"].left.values()) for phase in "sf"]
        assert left == [1, 2]

    def test_correlation_ids_of_more_than_32_bits_are_left_out(self, load: Callable[..., Trace]) -> None:
        large = {"correlation": (1 << 32) + 5}
        trace = load(
            CALL, changed(KERNEL, args=large), changed(CALL, args=large), changed(KERNEL, args={"correlation": -1})
        )
        assert trace.kernels["correlation"].tolist() == [0, 0xFFFFFFFF]
        assert trace.api_calls["correlation"].tolist() == [5, 0]
        assert trace.external_correlations["correlation"].tolist() == [5]
        accounts = {account.what: account for account in trace.imports[0].accounts}
        for what in ("kernel", "cuda_runtime"):
            assert accounts[f"argument correlation of {what}"].left["out of range"].count == 1

    def test_work_is_of_the_process_that_made_calls(self, load: Callable[..., Trace]) -> None:
        trace = load(
            {"ph": "X", "cat": "user_annotation", "name": "a", "pid": 3, "tid": 3, "ts": 1, "dur": 1}, KERNEL, CALL
        )
        assert [trace.processes[p].pid for p in trace.kernels["process"]] == [10]

    @pytest.mark.parametrize(
        ("other", "without"),
        [
            ({"tid": 12}, [5]),
            ({"ts": 2e9 + 10}, [5]),
            ({"pid": 20}, [5]),
            # The work of all processes is of the first process.
            ({"pid": 20, "args": {"correlation": 6}}, [6]),
        ],
    )
    def test_work_has_no_launch_if_ranks_share_ids(
        self, load: Callable[..., Trace], other: dict[str, Any], without: list[int]
    ) -> None:
        call = changed(CALL, args={"correlation": 7})
        # Files with whole microseconds may end a call before the calls inside.
        inner = changed(call, cat="cuda_driver", name="cuLaunchKernel", ts=2e9 + 3, dur=0)
        work = [changed(KERNEL, args={"correlation": id_}) for id_ in (5, 6, 7)]
        trace = load(CALL, changed(CALL, **other), call, inner, *work)
        kept = [0 if id_ in without else id_ for id_ in (5, 6, 7)]
        assert trace.kernels["correlation"].tolist() == kept
        assert sorted(trace.api_calls["correlation"])[-2:] == [7, 7]
        (note,) = trace.quality.sentences()
        assert note.startswith("1 piece of GPU work of process 10 without a launch: ")

    def test_waits(self, load: Callable[..., Trace]) -> None:
        wait = {"ph": "X", "cat": "cuda_sync", "pid": 0, "tid": 7, "ts": 2e9, "dur": 1}
        common = {"stream": 7, "correlation": 9, "device": 0, "context": 1}
        event = {"wait_on_stream": 13, "wait_on_cuda_event_record_corr_id": 8, "wait_on_cuda_event_id": 4}
        trace = load(
            CALL,
            wait | {"name": "Stream Wait Event", "args": common | event},
            wait | {"name": "Event Sync", "args": common | event | {"stream": -1}},
            wait | {"name": "Stream Sync", "args": common},
            wait | {"name": "Context Sync", "args": common | {"stream": -1, "cuda_sync_kind": "Context Sync"}},
        )
        rows = trace.synchronizations[["type", "stream", "event", "event_record"]].tolist()
        assert rows == [(2, 7, 4, 8), (1, 2**32 - 1, 4, 8), (3, 7, 0, 0), (4, 2**32 - 1, 0, 0)]
        # The events that the waits name.
        assert trace.cuda_events[["event", "event_record", "stream", "correlation"]].tolist() == [(4, 8, 13, 8)]

    def test_the_memory_of_a_copy_is_in_its_name(self, load: Callable[..., Trace]) -> None:
        names = {
            "Memcpy HtoD (Pinned -> Device)": (1, 2, 3), "Memcpy DtoH (Device -> Pageable)": (2, 3, 1),
            "Memcpy DtoD (Device -> Device)": (8, 3, 3), "Memcpy Odd (Device -> Elsewhere)": (0, 3, 0),
            "copy": (0, 0, 0),
        }  # fmt: skip
        copies = (
            changed(KERNEL, cat="gpu_memcpy", name=name, ts=2e9 + 10 * at, args={"bytes": size})
            for at, (name, size) in enumerate(zip(names, (5, 6, 7, 8, -1), strict=True))
        )
        trace = load(CALL, *copies)
        columns = ["kind", "source_memory", "destination_memory", "bytes", "source_device", "peer_context"]
        assert trace.memcpys[columns].tolist() == [
            (*kinds, size, 0, 0) for kinds, size in zip(names.values(), (5, 6, 7, 8, 0), strict=True)
        ]
        told = next(a for a in trace.imports[0].accounts if a.what == "names of copies")
        assert told.left["without a known kind of copy or memory"].count == 2

    def test_a_copy_names_the_context_of_the_other_device(self, load: Callable[..., Trace]) -> None:
        arguments = {"fromDevice": 0, "inDevice": 0, "toDevice": 1, "fromContext": 4, "inContext": 4, "toContext": 5}
        copy = changed(KERNEL, cat="gpu_memcpy", name="Memcpy PtoP (Device -> Device)", args=arguments)
        row = load(CALL, copy).memcpys[0]
        names = ("device", "context", "source_device", "destination_device", "peer_context")
        assert tuple(row[list(names)].tolist()) == (0, 4, 0, 1, 5)

    def test_the_memory_of_a_fill_is_in_its_name(self, load: Callable[..., Trace]) -> None:
        fills = (
            changed(KERNEL, cat="gpu_memset", name=name, ts=2e9 + 10 * at, args={"bytes": at})
            for at, name in enumerate(("Memset (Device)", "Memset (Managed)", "Memset (Elsewhere)", "fill"))
        )
        trace = load(CALL, *fills)
        assert trace.memsets[["memory", "bytes"]].tolist() == [(3, 0), (5, 1), (0, 2), (0, 3)]
        told = next(a for a in trace.imports[0].accounts if a.what == "names of memory fills")
        assert told.left["without a known kind of memory"].count == 2

    def test_recordings_of_events_are_slices_and_rows(self, load: Callable[..., Trace]) -> None:
        event = changed(KERNEL, cat="cuda_event", name="Event Record", args={"event_id": 4, "correlation": 8})
        annotation = changed(KERNEL, cat="gpu_user_annotation", name="forward", args={"correlation": 9})
        trace = load(CALL, event, annotation)
        columns = ["event", "event_record", "stream", "context", "correlation"]
        assert trace.cuda_events[columns].tolist() == [(4, 8, 7, 1, 8)]
        assert sorted(trace.gpu_slices[["kind", "correlation"]].tolist()) == [(0, 8), (1, 9)]

    def test_memory_of_the_framework_is_counters_of_its_device(self, load: Callable[..., Trace]) -> None:
        memory = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 11}
        totals = {"Total Allocated": 7, "Total Reserved": 9}
        trace = load(
            CALL,
            memory | {"ts": 2e9, "args": totals | {"Device Type": 1, "Device Id": 2, "Bytes": 5}},
            memory | {"ts": 2e9 + 1, "args": {"Total Allocated": 8, "Device Type": 0, "Device Id": -1}},
        )
        rows = trace.counters
        found = zip(trace.strings.take(rows["name"]), rows["value"].tolist(), rows["device"].tolist(), strict=True)
        assert sorted(found) == [
            ("Total Allocated", 7.0, 2),
            ("Total Allocated", 8.0, 0xFFFF),
            ("Total Reserved", 9.0, 2),
        ]
        assert set(trace.strings.take(rows["unit"])) == {"bytes"}
        assert len(trace.instants) == 2

    def test_external_ids_belong_to_calls_with_a_correlation_id(self, load: Callable[..., Trace]) -> None:
        trace = load(
            CALL,
            changed(CALL, ts=2e9 + 5, args={"correlation": 0, "External id": 4}),
            changed(CALL, ts=2e9 + 9, args={"correlation": 6, "External id": None}),
            changed(KERNEL, args={"correlation": 7, "External id": 8}),
        )
        columns = ["external", "correlation", "kind"]
        assert sorted(trace.external_correlations[columns].tolist()) == [(3, 5, 0xFFFF), (8, 7, 0xFFFF)]

    def test_work_without_arguments_is_on_the_device_and_stream_of_its_line(self, load: Callable[..., Trace]) -> None:
        bare = {key: value for key, value in KERNEL.items() if key != "args"}
        trace = load(CALL, bare | {"pid": 3, "tid": "stream 9"}, bare | {"pid": 3, "tid": "the stream", "ts": 2e9 + 90})
        assert trace.kernels[["device", "stream", "context", "correlation"]].tolist() == [(3, 9, 0, 0), (3, 0, 0, 0)]

    def test_gpus_are_described(self, load: Callable[..., Trace]) -> None:
        gpu = {
            "id": 1, "name": "NVIDIA H100", "totalGlobalMem": 80, "computeMajor": 9, "computeMinor": 0, "numSms": 132,
            "maxThreadsPerMultiprocessor": 2048, "warpSize": 32, "sharedMemPerBlock": -1, "colour": "green",
        }  # fmt: skip
        versions = {"cuda_driver_version": 12080, "cuda_runtime_version": 12040, "cupti_version": 24}
        trace = load(CALL, deviceProperties=[gpu, {"name": "no id"}, {"id": 1 << 16}, 5], **versions)
        (row,) = trace.devices
        fields = ["device", "memory", "compute_major", "compute_minor", "multiprocessors", "warp_size",
                  "max_threads_per_multiprocessor", "max_warps_per_multiprocessor", "shared_per_block"]  # fmt: skip
        assert row[fields].tolist() == (1, 80, 9, 0, 132, 32, 2048, 64, 0)
        assert trace.strings[row["name"]] == "NVIDIA H100"
        left = {a.what: sum(t.count for t in a.left.values()) for a in trace.imports[0].accounts if a.left}
        assert (left["devices"], left["device property colour"], left["device property sharedMemPerBlock"]) == (3, 1, 1)
        info = trace.processes[0].info
        names = ("driver_version", "runtime_version", "cupti_version")
        assert [info[name] for name in names] == [12080, 12040, 24]

    @pytest.mark.parametrize("gpus", [5, [5, {"pid": "gpu"}, {"process": 10}, {"pid": 3, "process": None}]])
    def test_gpus_of_cutrace_that_it_did_not_write_are_left_out(self, load: Callable[..., Trace], gpus: Any) -> None:
        trace = load(CALL, KERNEL, cutrace={"gpus": gpus})
        assert (len(trace.api_calls), len(trace.kernels)) == (1, 1)

    @pytest.mark.parametrize(
        ("base", "wall"),
        [(None, None), (1_700_000_000_000_000_000, 1_700_000_002_000_000_000), (-2_000_000_000, None),
         (-1_999_999_999, 1), (2**63 - 1 - 2_000_000_000, 2**63 - 1), (2**63 - 2_000_000_000, None)],
    )  # fmt: skip
    def test_the_wall_clock_is_that_of_the_file(self, load: Callable[..., Trace], base: int, wall: int) -> None:
        others = {} if base is None else {"baseTimeNanoseconds": base}
        trace = load(changed(CALL, ts=2e6), **others)
        assert trace.clocks["realtime"].tolist() == ([] if wall is None else [wall])

    def test_a_copy_between_devices(self, load: Callable[..., Trace]) -> None:
        arguments = {"fromDevice": 1, "inDevice": 0, "toDevice": 0, "fromContext": 5, "inContext": 4, "toContext": 4}
        copy = changed(KERNEL, cat="gpu_memcpy", name="Memcpy PtoP (Device -> Device)", args=arguments | {"bytes": 8})
        row = load(CALL, copy).memcpys[0]
        names = ("kind", "device", "context", "source_device", "destination_device", "peer_context", "bytes")
        assert tuple(row[list(names)].tolist()) == (10, 0, 4, 1, 0, 5, 8)

    def test_kernels_of_graphs(self, load: Callable[..., Trace]) -> None:
        trace = load(
            CALL, *(changed(KERNEL, args={"graph id": 3, "graph node id": n, "priority": -1}) for n in (7, 8, 7))
        )
        assert trace.launches[trace.kernels["launch"]][["graph", "graph_node"]].tolist() == [(3, 7), (3, 8), (3, 7)]
        assert trace.streams[["stream", "priority"]].tolist() == [(7, -1)]

    def test_names_that_say_too_little(self, load: Callable[..., Trace]) -> None:
        trace = load(CALL, changed(KERNEL, cat="gpu_memcpy", name="copy"), changed(KERNEL, cat="gpu_memset", name=5))
        assert (trace.memcpys["kind"][0], trace.memsets["memory"][0]) == (0, 0)
        assert {"names of copies", "names of memory fills"} <= {a.what for a in trace.imports[0].accounts}

    def test_files_of_old_releases(self, load: Callable[..., Trace]) -> None:
        trace = load(
            changed(CALL, cat="Runtime"), changed(KERNEL, cat="Kernel", tid="stream 9", args={"stream": None,
            "external id": 6}),
            changed(KERNEL, cat="Operator", pid=10, tid=11, args={"external id": 6}),
        )  # fmt: skip
        assert trace.count("api_calls") == trace.count("kernels") == 1
        assert trace.kernels["stream"][0] == 9
        assert (trace.host_slices["kind"][0], trace.host_slices["external"][0]) == (1, 6)

    def test_overheads(self, load: Callable[..., Trace]) -> None:
        overhead = {"ph": "X", "cat": "overhead", "pid": -1, "tid": 3, "ts": 2e9, "dur": 1}
        trace = load(CALL, overhead | {"name": "Buffer Flush"}, overhead | {"name": "Something new"})
        assert trace.overheads[["kind", "thread"]].tolist() == [(1 << 16, 3)]
        assert trace.strings.take(trace.host_slices["name"]).tolist() == ["Something new"]

    def test_process_ids_stand_for_gpus_if_cutrace_wrote_their_owners(self, load: Callable[..., Trace]) -> None:
        owners = [
            5, {"process": 12}, {"pid": "x", "process": 12}, {"pid": 2, "process": None},
            {"pid": 1, "process": 12, "device": 0}, {"pid": -2, "process": "b"},
        ]  # fmt: skip
        overhead = changed(CALL, cat="overhead", name="Buffer Flush")
        kernels = [changed(KERNEL, pid=pid, args={"correlation": n}) for n, pid in enumerate((0, 1, 2, "x", 10))]
        overheads = [changed(overhead, pid=pid, tid=n) for n, pid in enumerate((-1, -2, 1, 10, 12, "b"))]
        trace = load(CALL, *kernels, *overheads, cutrace={"gpus": owners}, deviceProperties=[{"id": 0}, {"id": 1}])
        names = {p.index: p.info.get("source_pid", p.pid) for p in trace.processes}
        of_kernels = {n: names[process] for process, n in trace.kernels[["process", "correlation"]].tolist()}
        of_overheads = {n: names[process] for process, n in trace.overheads[["process", "thread"]].tolist()}
        assert of_kernels == {0: 10, 1: 12, 2: 10, 3: 10, 4: 10}
        assert of_overheads == {0: 10, 1: "b", 2: 12, 3: 10, 4: 12, 5: "b"}
        of_devices = {(names[process], device) for process, device in trace.devices[["process", "device"]].tolist()}
        assert of_devices == {(10, 0), (10, 1), (12, 0), (12, 1)}

    def test_work_without_calls_belongs_to_the_process_that_cutrace_wrote(self, load: Callable[..., Trace]) -> None:
        assert [p.pid for p in load(KERNEL, cutrace={"process": 12}).processes] == [12]
        other = load(KERNEL, CALL, cutrace={"process": 12})
        assert [other.processes[int(process)].pid for process in other.kernels["process"]] == [12]
        assert [p.pid for p in load(KERNEL, cutrace={"process": "a"}).processes] == [0]

    def test_what_is_not_known_is_generic(self, load: Callable[..., Trace]) -> None:
        trace = load(CALL, changed(CALL, cat="mtia_runtime", args={"odd": [1]}), changed(CALL, ph="Q"))
        assert json.loads(trace.strings[trace.host_slices["arguments"][0]])["odd"] == [1]
        assert [a.what for a in trace.imports[0].accounts if a.left and " of " not in a.what] == ["cuda_runtime (Q)"]

    def test_metadata_stays(self, load: Callable[..., Trace]) -> None:
        distributed = {"backend": "nccl", "rank": 3, "world_size": 8}
        process = load(CALL, distributedInfo=distributed, traceName="x").processes[0]
        assert (process.rank, process.world_size) == (3, 8)
        assert process.info["trace_metadata"]["distributedInfo"] == distributed
        assert load(CALL, distributedInfo=distributed | {"world_size": 2}).processes[0].world_size is None

    @pytest.mark.parametrize(
        ("name", "host"),
        [
            ("node_7.lan_10.1700000000123.pt.trace.json", "node_7.lan"),
            ("node7_10.1700000000123.pt.trace.json.gz", "node7"),
            ("node7_11.1700000000123.pt.trace.json", ""),
            ("worker0.1700000000123.pt.trace.json", ""),
        ],
    )
    def test_the_host_is_in_the_name_that_torch_gives(self, tmp_path: Path, name: str, host: str) -> None:
        content = json.dumps({"schemaVersion": 1, "traceEvents": [CALL]}).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        with cutrace.load(tmp_path / name) as trace:
            assert [process.host for process in trace.processes] == [host]

    def test_more_functions_than_a_capture_tells_apart(self, load: Callable[..., Trace]) -> None:
        trace = load(*(changed(CALL, name=f"f{i}") for i in range(66_000)))
        assert trace.count("api_calls") == 65_535
        assert trace.imports[0].lost == 66_000 - 65_535
        names = trace.strings.take(trace.functions["name"][trace.api_calls["function"]])
        assert names[-1] == "f65534"


class TestBadInput:
    @pytest.mark.parametrize(
        ("keys", "why"),
        [
            ('"dur":1', "no time"), ('"ts":NaN,"dur":1', "the time is not a number"),
            ('"ts":[],"dur":1', "the time is not a number"),
            ('"ts":1,"dur":-0.001', "the duration is negative"), ('"ts":1,"dur":"x"', "the duration is not a number"),
            ('"ts":9223372036854775,"dur":9223372036854775', "the time is beyond 64 bits"),
            ('"ts":-9223372036854775,"dur":1', "the time is beyond 64 bits"),
            ('"ts":1e30,"dur":1', "the time is not a number"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("category", ["kernel", "cuda_runtime", "cpu_op", "gpu_memcpy", "overhead", "other"])
    def test_times_that_cannot_be_used(self, load: Callable[..., Trace], keys: str, why: str, category: str) -> None:
        trace = load(CALL, f'{{"ph":"X","cat":"{category}","name":"n","pid":1,"tid":1,{keys}}}')
        assert trace.imports[0].lost == 1
        assert [why for a in trace.imports[0].accounts for why in a.lost] == [why]
        assert len(trace.processes) == 1  # a process without a usable event is not created
        assert all(a.balanced for a in trace.imports[0].accounts)
        assert [loss.reason for loss in trace.named_losses] == ["unreadable"]
        assert sum(trace.count(n) for n in ("kernels", "memcpys", "api_calls", "host_slices", "overheads")) == 1

    def test_streams_with_ids_of_64_bits(self, load: Callable[..., Trace]) -> None:
        """Some devices have addresses as ids of streams."""
        ids = [2**46 + 7, 2**45 + 7, 7, -1, 2**46 + 7]
        trace = load(
            CALL,
            *({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 2e9 + i, "dur": 1,
               "args": {"device": 0, "context": 1, "stream": id_}} for i, id_ in enumerate(ids)),
        )  # fmt: skip
        first, second, third, none, again = trace.kernels["stream"].tolist()
        assert (third, none, again) == (7, 0xFFFFFFFF, first)
        assert len({first, second, third, none}) == 4
        names = {int(r["object"]): trace.strings[r["name"]] for r in trace.resource_names}
        assert names == {first: str(2**46 + 7), second: str(2**45 + 7)}

    @pytest.mark.parametrize(
        ("category", "name"),
        [("kernel", "context"), ("kernel", "graph id"), ("cuda_event", "event_id"), ("cuda_runtime", "cbid"),
         ("kernel", "correlation"), ("cuda_sync", "wait_on_cuda_event_id")],
    )  # fmt: skip
    def test_ids_that_do_not_fit_are_counted(self, load: Callable[..., Trace], category: str, name: str) -> None:
        event = {
            "ph": "X",
            "cat": category,
            "name": "n",
            "pid": 1,
            "tid": 1,
            "ts": 2e9,
            "dur": 1,
            "args": {name: 2**33},
        }
        trace = load(CALL, event)
        (account,) = (a for a in trace.imports[0].accounts if a.what == f"argument {name} of {category}")
        assert {why: tally.count for why, tally in account.left.items()} == {"out of range": 1}
        assert set(trace.launches["graph"].tolist()) <= {0}

    def test_keys_of_inner_objects_are_no_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "viztracer.json"
        inner = {"viztracer_metadata": {"}": "{", "baseTimeNanoseconds": 1}}
        path.write_text(json.dumps({"traceEvents": [CALL | {"cat": "FEE"}], **inner}))
        assert cutrace.load(path).imports[0].format == "chrome"

    @pytest.mark.parametrize(
        "value", ["null", '"x"', "[]", "{}", "-1", "1e300", "18446744073709551615", "-9223372036854775808", "NaN"]
    )
    def test_arguments_of_any_type(self, load: Callable[..., Trace], value: str) -> None:
        names = [
            "External id", "device", "context", "stream", "correlation", "bytes", "grid", "block",
            "registers per thread",
            "shared memory", "graph id", "graph node id", "cbid", "cutrace", "priority", "event_id",
            "Total Allocated", "Device Id",
            "Device Type", "fromDevice", "inDevice", "toDevice", "wait_on_cuda_event_id", "wait_on_stream",
            "wait_on_cuda_event_record_corr_id", "payload", "domain", "color",
        ]  # fmt: skip
        arguments = ",".join(f'"{name}":{value}' for name in names)
        categories = ["kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_sync", "cuda_event", "overhead",
                      "nvtx",
                      "gpu_user_annotation", "cpu_op", "graph_launch"]  # fmt: skip
        made = [
            f'{{"ph":"{phase}","cat":"{c}","name":"[memory]","id":{value},"pid":{value},"tid":{value},"ts":{value},"s":{value},'
            f'"dur":1,"args":{{{arguments}}}}},{{"ph":"{phase}","cat":"{c}","name":"n","pid":1,"tid":{value},"ts":5,"dur":1,'
            f'"args":{{{arguments}}}}}'
            for c in [*categories, "cpu_instant_event"]
            for phase in "XibeBEsC"
        ]  # fmt: skip
        trace = load(
            CALL, *made, deviceProperties=json.loads(value.replace("NaN", "0")), baseTimeNanoseconds=json.loads(value)
        )
        assert all(a.balanced for a in trace.imports[0].accounts)
        for name in cutrace.runbin.TABLES:
            trace.table(name)

    def test_cut_anywhere(self, tmp_path: Path) -> None:
        with gzip.open(FILES[0]) as file:
            data = file.read()
        first = data.index(b'"traceEvents"')
        whole, path = cutrace.load(FILES[0]), tmp_path / "cut.json"
        for at in np.linspace(first + 2000, len(data) - 2, 40).astype(int).tolist():
            path.write_bytes(data[:at])
            trace = cutrace.load(path)
            (imported,) = trace.imports
            assert imported.lost == 1
            assert all(a.balanced for a in imported.accounts)
            assert "cut off" in " ".join(trace.quality.notes)
            kernels = trace.kernels
            assert np.array_equal(kernels["start"], whole.kernels["start"][: len(kernels)])

    def test_a_compressed_file_that_is_cut(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.json.gz"
        path.write_bytes(FILES[0].read_bytes()[:60_000])
        trace = cutrace.load(path)
        assert trace.count("host_slices") > 1000
        assert any("compressed file is damaged" in note for note in trace.quality.notes)

    def test_nothing_that_can_be_used(self, tmp_path: Path) -> None:
        for text in (
            '{"schemaVersion": 1}',
            '{"schemaVersion": 1, "traceEvents": 5}',
            '{"schemaVersion":1,"traceEvents":[1,2]}',
        ):
            path = tmp_path / "no.json"
            path.write_text(text)
            with pytest.raises(BadCapture):
                cutrace.load(path)

    def test_a_file_without_events_is_an_empty_capture(self, load: Callable[..., Trace]) -> None:
        assert load().imports[0].accounts == ()

    def test_a_bomb_takes_no_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.json.gz"
        with gzip.open(path, "wb", 1) as file:
            file.write(
                b'{"schemaVersion":1,"traceEvents":[' + json.dumps(KERNEL).encode() + b',{"ph":"X","args":{"a":"'
            )
            for _ in range(300):
                file.write(bytes([120]) * (1 << 20))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trace = cutrace.load(path)
        assert trace.count("kernels") == 1
        assert trace.imports[0].lost == 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10


def test_rocm_has_a_name_of_its_own_for_shared_memory(load: Callable[..., Trace]) -> None:
    trace = load(KERNEL, deviceProperties=[{"id": 0, "name": "MI300X", "maxSharedMemoryPerMultiProcessor": 65536}])

    assert trace.devices["shared_per_multiprocessor"].tolist() == [65536]
    assert list(trace.imports[0].leftovers()) == []


def test_proton_writes_an_object_for_each_stream(tmp_path: Path) -> None:
    event = {"args": {"call_stack": ["ROOT", "k"]}, "cat": "kernel", "dur": 1.5, "name": "k", "ph": "X"}
    lines = [
        json.dumps({"displayTimeUnit": "us", "traceEvents": [event | {"tid": stream, "ts": ts} for ts in (0.0, 9.0)]})
        for stream in (7, 13, 15)
    ]
    path = tmp_path / "proton.chrome_trace"
    path.write_text("\n".join(lines) + "\n")
    trace = cutrace.load(path)
    assert Counter(trace.kernels["stream"].tolist()) == {7: 2, 13: 2, 15: 2}
    assert trace.imports[0].lost == 0

    path.write_text("\n".join(lines)[:-30])
    trace = cutrace.load(path)
    assert trace.count("kernels") == 5
    assert any("cut off: it ends inside an event" in note for note in trace.quality.notes)


def test_files_are_found_by_content(tmp_path: Path) -> None:
    for text in (
        '{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":1}]}',
        '[{"ph":"X","cat":"cuda_runtime","name":"k","pid":0,"tid":7,"ts":1,"dur":1}]',
        '{"baseTimeNanoseconds": 5, "traceEvents": []}',
        '[{"ph":"X","cat":"Operator","name":"aten::add","ts":1,"dur":1,"args":{"Trace name":"PyTorch Profiler"}}]',
    ):
        path = tmp_path / "name.txt"
        path.write_text(text)
        assert cutrace.load(path).imports[0].format == "kineto"


def test_events_without_a_process_have_one_with_a_name(pair: tuple[dict[str, Any], Trace]) -> None:
    _, trace = pair
    assert [p.name for p in trace.processes] == ["python3", "Traces", "events without a process", "Spans"]


def test_negative_sizes_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    place = {"device": 0, "context": 1, "stream": 7}
    sizes = {"registers per thread": -1, "shared memory": -3}
    kernel = {"cat": "kernel", "name": "k", "args": {**place, **sizes}}
    copy = {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": {**place, "bytes": -5}}
    events = [{"ph": "X", "pid": 0, "tid": 7, "ts": 1000, "dur": 2, **event} for event in (kernel, copy)]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with cutrace.load(path) as trace:
        assert trace.launches[["registers", "dynamic_shared"]].tolist()[1:] == [(0, 0)]
        assert trace.memcpys["bytes"].tolist() == [0]
        left = {account.what: list(account.left) for account in trace.imports[0].accounts if account.left}
        for what in ("registers per thread of kernel", "shared memory of kernel", "bytes of gpu_memcpy"):
            assert left[f"argument {what}"] == ["out of range"]


class TestOfCutrace:
    """JSON that cutrace wrote without the capture."""

    def test_rows_whose_events_become_others_are_in_the_account(self, tmp_path: Path) -> None:
        cutrace.convert(DATA / "nsys-2024.4-unified-memory.sqlite", tmp_path / "x.json")
        with cutrace.load(tmp_path / "x.json") as trace:
            left = trace.imports[0].leftovers()
            assert "72 rows of unified_memory left out: their events became slices and instants" in left
            assert len(trace.instants) == 72

    def test_calls_of_the_os_keep_their_kind(self, tmp_path: Path) -> None:
        rows = np.zeros(1, TABLES["host_slices"].dtype)
        rows["start"], rows["end"], rows["kind"], rows["thread"] = 10**15, 10**15 + 5, 4, 1
        work = np.zeros(1, TABLES["kernels"].dtype)
        work["start"], work["end"] = 10**15, 10**15 + 5
        with Writer(tmp_path / "run.bin", pid=1) as writer:
            rows["name"], rows["category"] = writer.string("poll"), writer.string("OS runtime")
            writer.rows("host_slices", rows)
            writer.rows("kernels", work)
        for suffix in (".json", ".pftrace"):
            path = tmp_path / f"x{suffix}"
            cutrace.convert(tmp_path / "run.bin", path, capture=False)
            with cutrace.load(path) as trace:
                assert trace.host_slices["kind"].tolist() == [4], suffix
