"""Import of trace-event JSON of any program, and export of the same events."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutrace
from cutrace import Trace
from cutrace.importers.timeline import MOST_PROCESSES, ImportTimeline
from cutrace.runbin import Reader, Writer
from support import cutrace as run
from support.growth import grows_with, growth

Event = dict[str, Any]


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Trace]:
    def load(*events: Event, **others: Any) -> Trace:
        path = tmp_path / "made.json"
        path.write_text(json.dumps({"traceEvents": events, **others} if others else events))
        return cutrace.load(path)

    return load


def x(**keys: Any) -> Event:
    return {"ph": "X", "pid": 1, "tid": 2, "ts": 10, "dur": 5, "name": "n", "cat": "c"} | keys


def slices(trace: Trace) -> list[tuple[Any, ...]]:
    """The name, start and end (us in the file) of all slices. Slices that never ended have no end."""
    rows = [*trace.host_slices, *trace.unknown("host_slices")]
    offset = trace.processes[0].info["time_offset_ns"]
    return sorted(
        (
            trace.strings[r["name"]],
            (int(r["start"]) - offset) / 1000,
            (int(r["end"]) - offset) / 1000 if r["end"] else None,
        )
        for r in rows
    )


class TestSlices:
    def test_begins_and_ends(self, load: Callable[..., Trace]) -> None:
        trace = load(
            x(ph="B", name="outer", ts=0), x(ph="B", name="inner", ts=1), x(ph="E", ts=2), x(ph="B", name="other",
            ts=1, tid=3),
            x(ph="E", ts=9), x(ph="E", ts=5, tid=3),
        )  # fmt: skip
        assert slices(trace) == [("inner", 1, 2), ("other", 1, 5), ("outer", 0, 9)]
        assert set(trace.host_slices["flags"].tolist()) == {2}

    def test_events_need_not_be_in_order(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ph="E", ts=2), x(ph="B", name="a", ts=1))
        assert slices(trace) == [("a", 1, 2)]

    def test_begins_without_end_and_ends_without_begin(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ph="E", ts=1), x(ph="B", name="open", ts=3))
        assert slices(trace) == [("open", 3, None)]
        (account,) = (a for a in trace.imports[0].accounts if a.left)
        assert (account.what, list(account.left)) == ("E events", ["an end without a start"])

    def test_a_trace_that_begins_in_the_middle_of_a_program_converts_with_status_0(self, tmp_path: Path) -> None:
        path = tmp_path / "middle.json"
        path.write_text(json.dumps([x(ph="E", ts=1), x(ph="e", id=1, ts=2), x(ph="X", dur=3)]))
        done = run("convert", path, "-o", tmp_path / "x.pftrace")
        assert (done.returncode, "could not be used" in done.stderr) == (0, False)
        assert "1 E events left out: an end without a start" in run("info", path).stdout

    def test_asynchronous_slices_go_by_id_and_category(self, load: Callable[..., Trace]) -> None:
        trace = load(
            x(ph="b", id=1, name="a", ts=1), x(ph="b", id=2, name="b", ts=2), x(ph="b", id=1, cat="d", name="c", ts=3),
            x(ph="n", id=2, name="moment", ts=4), x(ph="e", id=1, name="a", ts=5, tid=9),
            x(ph="e", id=2, name="b", ts=6), x(ph="e", id=1, cat="d", name="c", ts=7),
        )  # fmt: skip
        assert slices(trace) == [("a", 1, 5), ("b", 2, 6), ("c", 3, 7)]
        assert set(trace.host_slices["kind"].tolist()) == {5}
        assert trace.strings.take(trace.host_slices["track"]).tolist() == ["1", "2", "1"]
        assert trace.strings[trace.instants["track"][0]] == "2"

    def test_ids_of_a_process_are_its_own(self, load: Callable[..., Trace]) -> None:
        local = {"local": "0x1"}
        trace = load(
            x(ph="b", id2=local, name="a", ts=1), x(ph="b", id2=local, name="a", ts=2, pid=5), x(ph="e", id2=local,
            name="a", ts=3),
            x(ph="e", id2=local, name="a", ts=4, pid=5),
        )  # fmt: skip
        assert slices(trace) == [("a", 1, 3), ("a", 2, 4)]

    def test_asynchronous_slices_of_one_id_need_not_nest(self, load: Callable[..., Trace]) -> None:
        steps = (
            ("b", "a", 1),
            ("b", "b", 2),
            ("b", "b", 3),
            ("e", "a", 4),
            ("e", "b", 5),
            ("e", "b", 6),
        )
        trace = load(*(x(ph=phase, id=1, name=name, ts=time) for phase, name, time in steps))
        assert slices(trace) == [("a", 1, 4), ("b", 2, 6), ("b", 3, 5)]

    def test_ends_without_a_name_end_the_latest_slice(self, load: Callable[..., Trace]) -> None:
        ends = [{k: v for k, v in x(ph="e", id=1, ts=time).items() if k != "name"} for time in (3, 4)]
        trace = load(x(ph="b", id=1, name="a", ts=1), x(ph="b", id=1, name="b", ts=2), *ends)
        assert slices(trace) == [("a", 1, 4), ("b", 2, 3)]

    def test_the_arguments_of_both_events_stay(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ph="B", args={"a": 1}), x(ph="E", ts=11, args={"b": 2}))
        assert json.loads(trace.strings[trace.host_slices["arguments"][0]]) == {
            "a": 1,
            "trace_event": {"end": {"b": 2}},
        }

    def test_an_end_without_arguments_adds_none(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ph="B", args={"a": 1}), x(ph="E", ts=11, args={}))
        assert json.loads(trace.strings[trace.host_slices["arguments"][0]]) == {"a": 1}


class TestOthers:
    def test_counters(self, load: Callable[..., Trace]) -> None:
        trace = load(
            x(ph="C", name="memory", args={"used": 1, "free": 2.5, "note": "x"}), x(ph="C", name="memory", id=7,
            args={"used": 3}),
            x(ph="C", name="none", args={"text": "only"}),
        )  # fmt: skip
        texts = [trace.strings.take(trace.counters[name]).tolist() for name in ("name", "series")]
        assert list(zip(*texts, trace.counters["value"].tolist(), strict=True)) == [
            ("memory", "used", 1.0), ("memory", "free", 2.5), ("memory[7]", "used", 3.0),
        ]  # fmt: skip
        accounts = {a.what: a for a in trace.imports[0].accounts}
        assert list(accounts["C events"].lost) == ["no value is a number"]
        assert accounts["argument note of C events"].seen.count == 1

    def test_instants_have_scopes(self, load: Callable[..., Trace]) -> None:
        trace = load(*(x(ph="i", s=s) for s in "tpgz"), x(ph="I"), x(ph="R", name="mark"))
        assert trace.instants["scope"].tolist() == [0, 1, 2, 0, 0, 0]

    def test_arrows(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ph="s", id=4), x(ph="t", id=4), x(ph="f", id=4, bp="e"), x(ph="s", id="0xffffffffffffffff"))
        rows = trace.flows[["id", "phase", "flags"]].tolist()
        assert rows == [(4, ord("s"), 0), (4, ord("t"), 0), (4, ord("f"), 1), (0, ord("s"), 0)]
        assert trace.strings[trace.flows["text"][3]] == "0xffffffffffffffff"

    def test_phases_that_a_capture_has_nothing_like(self, load: Callable[..., Trace]) -> None:
        trace = load(x(), *(x(ph=ph) for ph in "NODPcvV("))
        left = {a.what: t.count for a in trace.imports[0].accounts for t in a.left.values()}
        assert left == {f"{ph} events": 1 for ph in "NODPcvV("}

    def test_processes_and_threads_of_any_id(self, load: Callable[..., Trace]) -> None:
        pids = [1, "name", None, -1, 2**40, 3_000_000_000]
        trace = load(*(x(pid=pid, tid=pid) for pid in pids))
        told = [p.info.get("source_pid", p.pid) for p in trace.processes]
        assert told == pids
        assert [p.name for p in trace.processes if p.pid not in pids] == [
            "name", "events without a process", "process -1", f"process {2**40}", "process 3000000000"
        ]  # fmt: skip
        assert len({p.pid for p in trace.processes}) == len(pids)
        assert all(0 <= p.pid < 2**31 for p in trace.processes)
        assert len(set(trace.host_slices[["process", "thread"]].tolist())) == len(pids)

    def test_names_of_processes_and_threads(self, load: Callable[..., Trace]) -> None:
        trace = load(
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "first"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "worker"}},
            {"ph": "M", "name": "process_name", "pid": 8, "args": {"name": "silent"}},
            x(),
        )
        assert [p.name for p in trace.processes] == ["first", "silent"]
        assert trace.strings[trace.threads["name"][0]] == "worker"

    def test_a_process_keeps_its_first_1000_metadata_events(self, load: Callable[..., Trace]) -> None:
        labels = [{"ph": "M", "name": "label", "pid": 1, "args": {"number": i}} for i in range(1002)]
        trace = load(*labels, {"ph": "M", "name": "label", "pid": 2, "args": {}}, x())
        kept = trace.processes[0].info["metadata_events"]
        assert [event["args"]["number"] for event in kept] == list(range(1000))
        (account,) = (a for a in trace.imports[0].accounts if a.what == "M events")
        left = {why: tally.count for why, tally in account.left.items()}
        assert (account.seen.count, account.kept.count) == (1003, 1001)
        assert left == {"more than the limit of a process": 2}

    def test_times_near_zero_and_below_are_shifted(self, load: Callable[..., Trace]) -> None:
        trace = load(x(ts=0), x(ts=-5.5))
        offset = trace.processes[0].info["time_offset_ns"]
        assert offset % 10**15 == 0
        assert [int(t) - offset for t in trace.host_slices["start"]] == [0, -5500]
        assert load(x(ts=2e6)).host_slices["start"][0] == 2 * 10**9

    @pytest.mark.parametrize(
        ("event", "table"),
        [(x(dur=0), "host_slices"), (x(ph="B"), "host_slices"), (x(ph="i"), "instants"), (x(ph="s", id=1), "flows"),
         (x(ph="C", args={"v": 1}), "counters")],
    )  # fmt: skip
    def test_times_that_are_beyond_64_bits_after_the_shift_are_lost(
        self, load: Callable[..., Trace], event: Event, table: str
    ) -> None:
        latest = (2**63 - 1 - 10**15) // 1000
        trace = load(x(ts=0, dur=0), *(event | {"ts": ts} for ts in (latest, latest + 1)))
        rows = [*trace.table(table), *trace.unknown(table)]
        time = "start" if table == "host_slices" else "time"
        assert trace.processes[0].info["time_offset_ns"] == 10**15
        assert max(row[time] for row in rows) == 10**15 + latest * 1000
        assert [(why, t.count) for a in trace.imports[0].accounts for why, t in a.lost.items()] == [
            ("the time is beyond 64 bits", 1)
        ]


class TestTruncation:
    @pytest.mark.parametrize("between", ["", "\n", " \r\n\t"])
    def test_several_arrays_in_a_row_are_one_trace(self, tmp_path: Path, between: str) -> None:
        path = tmp_path / "a.json"
        pieces = [
            json.dumps([x(name="a")]),
            json.dumps({"traceEvents": [x(name="b")]}),
            "[]",
            json.dumps([x(name="c")]),
        ]
        path.write_text(between.join(pieces) + "\n}")
        trace = cutrace.load(path)
        assert [name for name, _, _ in slices(trace)] == ["a", "b", "c"]
        assert trace.imports[0].lost == 0

    def test_an_array_without_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.json"
        whole = json.dumps([x(name=str(i)) for i in range(5)])
        for end, kept in ((len(whole) - 1, 5), (len(whole) - 20, 4)):
            path.write_text(whole[:end])
            trace = cutrace.load(path)
            assert trace.count("host_slices") == kept
            assert any("cut off" in note for note in trace.quality.notes)
            assert trace.imports[0].lost == 5 - kept

    def test_damage_in_the_middle(self, tmp_path: Path) -> None:
        path = tmp_path / "damaged.json"
        good = [json.dumps(x(name=str(i))) for i in range(4)]
        path.write_text(f'[{good[0]}, {{"ph":"X","name":"broken, {good[1]}, {good[2]}, {good[3]}]')
        trace = cutrace.load(path)
        assert [name for name, *_ in slices(trace)][-2:] == ["2", "3"]
        (account,) = (a for a in trace.imports[0].accounts if a.what == "events")
        assert account.lost

    def test_damage_of_unknown_extent_says_that_it_is_unknown(self, tmp_path: Path) -> None:
        path = tmp_path / "damaged.json.gz"
        packed = bytearray(gzip.compress(json.dumps([x(name=f"{i * 7919}") for i in range(50_000)]).encode(), mtime=0))
        packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
        path.write_bytes(packed)
        trace = cutrace.load(path)
        assert 1000 < trace.count("host_slices") < 49_000
        told = " ".join(trace.quality.sentences())
        assert "the rest of the file: of unknown size" in told
        assert "an unknown part is missing. Copy or export the file again." in told
        assert all(a.balanced for a in trace.imports[0].accounts)

    def test_an_imported_capture_that_is_cut_between_two_processes(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        path.write_text(json.dumps([x(pid=1), x(pid=2)]))
        whole = tmp_path / "whole.bin"
        cutrace.convert(path, whole)
        with Reader(whole) as reader:
            assert reader.damage == ()
            second = next(block for block in reader.blocks if block.process == 1)
        whole.write_bytes(whole.read_bytes()[: second.offset])
        assert "the capture was joined from 2 files and lacks 1: it was copied in part" in run("info", whole).stdout


EVERYTHING: list[Event] = [
    x(
        tdur=3,
        tts=7,
        cname="good",
        weird={"k": [1, None]},
        args={"x": 1, "y": [1, 2, {"z": None}], "é": "\U0001f600\n"},
    ),
    {"ph": "X", "name": "no duration", "cat": "c", "pid": 1, "tid": 2, "ts": 100},
    {"ph": "X", "name": "no category", "pid": 1, "tid": 2, "ts": 101.001, "dur": 0, "args": {}},
    {"ph": "X", "name": "no thread", "pid": 1, "ts": 102, "dur": 1},
    {"ph": "X", "name": "no process", "ts": 102, "dur": 1},
    x(ph="B", name="outer", ts=0, args={"b": 1}) | {"dur": None},
    x(ph="B", name="inner", ts=0),
    x(ph="B", name="empty", ts=5),
    x(ph="E", name="empty", ts=5),
    x(ph="E", name="inner", ts=10, tts=8),
    x(ph="E", name="outer", ts=10, args={"e": 2}),
    x(ph="B", name="next", ts=10),
    x(ph="E", name="next", ts=12),
    x(ph="B", name="open", ts=13),
    x(ph="i", s="g", ts=1.001, args={"u": "\u00e9"}),
    x(ph="i", s="p", ts=1.002, cname="bad"),
    x(ph="I", s="t", ts=1.003),
    x(ph="C", name="counter", tid=0, ts=2, args={"a": 1, "b": 2.5}),
    x(ph="C", name="counter", tid=0, ts=3, args={"b": 3.5, "a": 2}),
    x(ph="C", name="counter", tid=0, ts=3, args={"a": 2, "b": 3.5}),
    x(ph="b", id="0x10", ts=20, args={"q": 1}),
    x(ph="n", name="step", id="0x10", ts=21),
    x(ph="e", id="0x10", ts=22, tts=9, args={"r": 1}),
    x(ph="b", id=16, ts=20),
    x(ph="e", id=16, ts=29),
    x(ph="b", id2={"local": "0x10"}, pid="P", tid="T one", ts=20),
    x(ph="e", id2={"local": "0x10"}, pid="P", tid="T one", ts=22),
    x(ph="S", name="old", id="5a", ts=30, args={"k": 1}),
    x(ph="T", name="old", id="5a", ts=31, args={"step": "x"}),
    x(ph="F", name="old", id="5a", ts=32),
    x(ph="s", id=7, ts=1),
    x(ph="t", id=7, ts=11),
    x(ph="f", id=7, ts=12, bp="e"),
    x(ph="s", id="0xdeadbeefdeadbeef", ts=1),
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "process"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread"}},
    {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 2, "args": {"sort_index": -5}},
    {"ph": "M", "name": "num_cpus", "pid": 1, "tid": 0, "args": {"number": 8}},
]
EVERYTHING = [{k: v for k, v in e.items() if e["ph"] == "X" or k != "dur"} for e in EVERYTHING]


def round_trip(events: list[Event], folder: Path, **others: Any) -> dict[str, Any]:
    source, written = folder / "source.json", folder / "written.json"
    source.write_text(json.dumps({"traceEvents": events, **others}))
    cutrace.convert(source, written)
    document: dict[str, Any] = json.loads(written.read_text())
    return document


def counted(events: list[Event]) -> Counter[str]:
    def plain(value: Any) -> Any:
        """Make equal whole numbers equal in all spellings."""
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return Counter(json.dumps(plain(e), sort_keys=True) for e in events)


class TestRoundTrip:
    def test_every_kind_of_event_comes_back(self, tmp_path: Path) -> None:
        others = {"displayTimeUnit": "ns", "otherData": {"version": "1", "list": [1, {"a": None}]}, "stackFrames": {}}
        document = round_trip(EVERYTHING, tmp_path, **others)
        assert counted(document["traceEvents"]) == counted(EVERYTHING)
        assert {key: document[key] for key in others} == others

    def test_twice_is_the_same_as_once(self, tmp_path: Path) -> None:
        once = round_trip(EVERYTHING, tmp_path)
        (tmp_path / "source.json").write_text(json.dumps(once))
        cutrace.convert(tmp_path / "source.json", tmp_path / "written.json")
        assert counted(json.loads((tmp_path / "written.json").read_text())["traceEvents"]) == counted(
            once["traceEvents"]
        )

    @pytest.mark.parametrize("seed", range(15))
    def test_any_trees_of_slices(self, tmp_path: Path, seed: int) -> None:
        """Many slices start and end at one moment, and some are empty."""
        rng = random.Random(seed)
        events: list[Event] = []

        def tree(thread: int, start: int, end: int, depth: int) -> None:
            name = f"{thread} {start} {end} {depth}"
            common = {"name": name, "cat": "c", "pid": 1, "tid": thread}
            events.append({"ph": "B", "ts": start, "args": {"depth": depth}, **common})
            at = start
            while depth < 4 and at < end and rng.random() < 0.7:
                inner = sorted((rng.randrange(at, end + 1), rng.randrange(at, end + 1)))
                if inner[1] > inner[0]:
                    tree(thread, *inner, depth + 1)
                at = max(inner[1], at + 1)
            events.append({"ph": "E", "ts": end, "args": {"end": depth}, **common})

        for thread in range(3):
            tree(thread, 0, rng.choice((1, 3, 20)), 0)
            events.append({"ph": "B", "ts": 30, "name": "z", "cat": "c", "pid": 1, "tid": thread})
            events.append({"ph": "E", "ts": 30, "name": "z", "cat": "c", "pid": 1, "tid": thread})
        document = round_trip(events, tmp_path)
        written = [e for e in document["traceEvents"] if e["ph"] != "M"]
        assert counted(written) == counted(events)

    def test_many_counters_at_one_moment(self, tmp_path: Path) -> None:
        """The values of an event are joined across the blocks of a capture."""
        events = [x(ph="C", tid=0, ts=1000 + i // 50, args={"a": i, "b": -i}) for i in range(30_000)]
        events = [{k: v for k, v in e.items() if k != "dur"} for e in events]
        document = round_trip(events, tmp_path)
        assert counted([e for e in document["traceEvents"] if e["ph"] == "C"]) == counted(events)


class TestManyOfAKind:
    def test_more_processes_than_are_told_apart(self, load: Callable[..., Trace]) -> None:
        trace = load(*(x(pid=i, tid=tid) for i in range(MOST_PROCESSES + 50) for tid in (1, 2)))
        assert len(trace.processes) == MOST_PROCESSES + 1
        last = trace.host_slices[trace.host_slices["process"] == MOST_PROCESSES]
        assert len(last) == len(set(last["thread"].tolist())) == 100
        names = {t["thread"]: trace.strings[t["name"]] for t in trace.threads if t["process"] == MOST_PROCESSES}
        assert names[last["thread"][0]] == f"{MOST_PROCESSES}/1"
        assert any("more than" in note for note in trace.quality.notes)

    @growth
    @pytest.mark.parametrize(
        "keys",
        [
            {"cat": "c{}"}, {"pid": "p{}"}, {"tid": "t{}"}, {"ph": "b", "id": "x{}"}, {"ph": "s", "id": "x{}"},
            {"ph": "i", "s": "{}"}, {"ph": "C", "name": "{}", "id": "{}", "args": {"value": 1}}, {"ph": "B"},
            {"ph": "M", "name": "{}"}, {"cat": "kernel", "name": "{}"}, {"cat": "gpu_memcpy", "name": "{}"},
            {"cat": "cuda_runtime", "name": "{}"}, {"cat": "overhead", "name": "{}"}, {"cat": "nvtx", "name": "{}"},
        ],
        ids=str,
    )  # fmt: skip
    def test_time_is_linear(self, load: Callable[..., Trace], keys: Event) -> None:
        """Each event has these properties once."""

        def work(count: int) -> Callable[[], object]:
            events = [x(**{k: v.format(i) if isinstance(v, str) else v for k, v in keys.items()}) for i in range(count)]
            return lambda: load(*events)

        grows_with(8_000, work)


def test_names_cost_no_more_steps_however_many_there_are(
    load: Callable[..., Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: Counter[str] = Counter()

    def counted(kind: type, name: str) -> None:
        whole = getattr(kind, name)

        def step(self: Any, *given: Any, **more: Any) -> Any:
            steps[name] += 1
            return whole(self, *given, **more)

        monkeypatch.setattr(kind, name, step)

    def needed(count: int) -> dict[str, int]:
        steps.clear()
        names = [{"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": str(i)}} for i in range(count)]
        names += [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": str(i)}} for i in range(count)]
        trace = load(x(), *names)
        assert (trace.processes[0].name, len(trace.threads)) == (str(count - 1), count)
        return dict(steps)

    counted(ImportTimeline, "account")
    counted(Writer, "process")
    assert needed(10) == needed(1000)


def test_files_are_found_by_content(tmp_path: Path) -> None:
    path = tmp_path / "any.txt"
    for text in (
        "[]",
        " [ ]",
        json.dumps([x()]),
        "\ufeff" + json.dumps([x()]),
        json.dumps([x(args={"a": {"b": [{}]}})], sort_keys=True),
        '{"traceEvents":[]}',
        '{"displayTimeUnit":"ns","otherData":{},"traceEvents":[]}',
        "[",
    ):
        path.write_text(text)
        assert cutrace.load(path).imports[0].format == "chrome"
    for text in ('{"a": 1}', "[1, 2]", '[{"a": 1}]', "{}", "5"):
        path.write_text(text)
        with pytest.raises(cutrace.CutraceError):
            cutrace.load(path)


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_events_may_be_behind_anything(tmp_path: Path, suffix: str) -> None:
    """Chrome's developer tools write information about the page before the events."""
    text = json.dumps({"metadata": {"source": ["x" * 1000] * 2000}, "traceEvents": [x()]}).encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)

    assert len(cutrace.load(path).host_slices) == 1


def test_top_level_values_that_are_too_large_or_too_deep_are_left_out(tmp_path: Path) -> None:
    largest, larger = (json.dumps("x" * (size - 2)) for size in (1 << 20, (1 << 20) + 1))
    deep = "[" * 257 + "]" * 257
    path = tmp_path / "a.json"
    path.write_text(f'{{"a":{larger},"b":{largest},"c":{deep},"traceEvents":[{json.dumps(x())}],"d":{larger},"e":5}}')
    trace = cutrace.load(path)

    assert trace.processes[0].info["trace_metadata"] == {"b": json.loads(largest), "e": 5}
    left = {a.what: {why: t.count for why, t in a.left.items()} for a in trace.imports[0].accounts if a.left}
    assert left == {f"top-level value {key}": {"larger than 1 MiB or nested too deeply": 1} for key in "acd"}
    assert len(trace.host_slices) == 1
