"""Redacted captures: the removed and the kept contents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import Capture, awkward, training_steps
from cutrace.collect.options import Options
from cutrace.runbin import TABLES, Reader
from cutrace.runbin.redaction import KEPT, description, redact, without_paths


def private_capture(path: Path) -> Path:
    with Capture(
        path, pid=7, host="lab-machine-7", command=["python", "/home/alice/train.py", "--token=hunter2"],
        executable="/home/alice/env/bin/python", cupti_path="/home/alice/env/lib/libcupti.so.13",
        options={"output": "/home/alice/run.bin", "api": "launch", "cupti": "/opt/x/y"},
        notes=["CUPTI is held by /opt/secret-tool/lib/libtool.so; end it"], variables={"TOKEN": "hunter2"},
    ) as c:  # fmt: skip
        k = c.launch("_Z4axpyPf")
        c.kernel(k, 100, 200)
        c.mark("reading /home/alice/data/set one", 50)
        c.push_pop("forward", 10, 300)
        c.add("jit", start=1, end=2, cache_path="/home/alice/.nv/ComputeCache")
        c.add("allocations", time=5, source="/home/alice/my lib/liballoc.so")
        c.loss(8, 3, "/home/alice/run.bin")
    return path


@pytest.fixture
def redacted(tmp_path: Path) -> Path:
    redact(private_capture(tmp_path / "private.bin"), tmp_path / "public.bin")
    return tmp_path / "public.bin"


@pytest.mark.parametrize(
    "word", [b"alice", b"lab-machine-7", b"hunter2", b"TOKEN", b"secret-tool", b"train.py", b"my lib"]
)
def test_nothing_that_says_whose_it_is_is_left(redacted: Path, word: bytes) -> None:
    assert word in private_capture(redacted.with_name("again.bin")).read_bytes()
    assert word not in redacted.read_bytes()


def test_what_was_measured_is_as_it_was(tmp_path: Path) -> None:
    redact(training_steps(tmp_path / "a.bin", steps=2, layers=2), tmp_path / "b.bin")
    with cutrace.load(tmp_path / "a.bin") as before, cutrace.load(tmp_path / "b.bin") as after:
        for name in TABLES:
            np.testing.assert_array_equal(before.table(name), after.table(name))
        assert list(before.strings) == list(after.strings)
        assert after.quality == before.quality


SOURCE = Path(__file__).parents[2] / "src" / "cutrace"
#: The options of a recording by their treatment in a redacted capture. Each has a value as the collector records it.
#: Add a new option here, and decide whether its value may contain a path.
DECIDED = {
    "kept": {
        "kinds": "kernel,nvtx", "api": "launch", "graph": "node", "nvtx": "1", "sync": "0", "max_memory": "67108864",
        "max_size": "1073741824", "last_ms": "30000", "rotate": "1", "dump_when": "nvtx:step > 3x median",
        "dump_limit": "10", "dump_pause_ms": "60000", "buffer_size": "65536", "annotate": "mylib.train:step",
        "stacks": "sync,launch:1/100", "stacks_min_ns": "20000", "capture_range": "nvtx:step",
        "capture_range_end": "repeat:3", "share": "1", "device_buffers": "4", "flush_ms": "50", "patience_ms": "20000",
        "code": "1", "sample": "pc=4096", "finalize": "1", "standby": "1", "redact": "1", "file_mode": "640",
    },
    "left out": {
        "directory": "/home/alice/out", "output": "/home/alice/run.bin", "dump": "/home/alice/run.bin",
        "cupti": "/home/alice/lib/libcupti.so", "annotator": "/home/alice/cutrace/collect/annotate.py",
    },
}  # fmt: skip


def test_each_option_is_kept_or_left_out_by_decision() -> None:
    source = (SOURCE / "native/collector/core/options.cpp").read_text()
    of_collector = set(re.findall(r'key == "(\w+)"', source))
    declared = {row.key for row in Options.declared().values() if row.key}
    assert DECIDED["kept"].keys() | DECIDED["left out"].keys() == of_collector | declared
    told = description({"options": DECIDED["kept"] | DECIDED["left out"]})
    assert told["options"] == DECIDED["kept"]
    names_alone = dict.fromkeys(DECIDED["left out"], "alice.bin")
    assert description({"options": names_alone})["options"] == {}


def test_an_option_with_a_path_in_its_value_is_left_out() -> None:
    options = {"dump_when": "nvtx:read /home/alice/data > 1s", "annotate": "C:\\alice\\a.py", "newer": ["a"]}
    assert description({"options": options})["options"] == {}


def test_processes_are_told_apart_by_their_numbers(redacted: Path) -> None:
    with cutrace.load(redacted) as trace:
        assert [(p.pid, p.name, p.host, p.command) for p in trace.processes] == [(7, "process 7", "", ())]
        assert trace.processes[0].complete


def test_names_of_kernels_and_ranges_stay_and_paths_in_texts_do_not(redacted: Path) -> None:
    with cutrace.load(redacted) as trace:
        texts = set(trace.strings)
    assert {"_Z4axpyPf", "forward", "reading (path) one", "(path)"} <= texts


def test_a_description_keeps_nothing_that_is_not_known_to_be_harmless() -> None:
    told = description({"pid": 1, "options": {"kinds": "nvtx", "dump": "/a/b"}, "of_a_newer_version": "secret"})
    assert told == {"pid": 1, "options": {"kinds": "nvtx"}, "redacted": True}
    assert not {"host", "command", "executable", "cupti_path", "notes"} & KEPT


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("/home/alice/a b/c", "(path)"),
        ("open /home/alice/x.txt: denied", "open (path): denied"),
        ("~/data/x", "(path)"),
        ("see file:///srv/x/y", "see (path)"),
        ("'/srv/x/y'", "'(path)'"),
        ("tests/gpu/test_a.py::test_b[a/b]", "tests/gpu/test_a.py::test_b[a/b]"),
        ("forward/attention", "forward/attention"),
        ("3 GB / s", "3 GB / s"),
        ("_ZN7cutlass6KernelE", "_ZN7cutlass6KernelE"),
        ("void f<int, 4>(float*)", "void f<int, 4>(float*)"),
        ('["/home/alice/a b", "step"]', '["(path)", "step"]'),
        ('["forward","a/b"]', '["forward","a/b"]'),
        ('["/home/alice/a b"', '["(path)"'),
        ('["/home/alice/a b, and "c"', '["(path)"c"'),
        ('["/home/alice/a b', '["(path) b'),
        ("open '/home/o.n/my dir/x y' again", "open '(path)' again"),
        ("compile -I/home/alice/include -O3", "compile -I(path) -O3"),
        ("gemm-B/C/D", "gemm-B/C/D"),
        ("get https://alice:pass@lab7/data now", "get (path) now"),
        ("s3://bucket/alice/x", "(path)"),
        ("customer/net.py(12): forward", "(path)(12): forward"),
        ("customer/net.py:12 in forward", "(path):12 in forward"),
        ("customer/net.pyx(12)", "customer/net.pyx(12)"),
        ('["/home/alice/a", 3]', '["(path)", 3]'),
        ("/home/alice/train.py(12): step", "(path)(12): step"),
        ("/home/alice/my lib/train.py(12): step", "(path)(12): step"),
        ("/home/alice/my lib/train.py:12 in step", "(path):12 in step"),
        ("/home/alice/train.py:12", "(path):12"),
        ("C:\\Users\\alice\\my lib\\train.py(7): step", "(path)(7): step"),
        ("C:\\Users\\alice\\x.txt", "(path)"),
        ("D:/data/alice/x.txt", "(path)"),
        ("open C:\\Program Files\\x\\y.txt: denied", "open (path): denied"),
        ("open 'D:/data/alice/x y/z.txt' again", "open '(path)' again"),
        ("see file:///C:/Users/alice/x", "see (path)"),
        ("\\\\server\\share\\x y.txt", "(path)"),
        ("copy \\\\server\\share\\x to it", "copy (path) to it"),
        ("a\\b", "a\\b"),
        ("ratio a:/b", "ratio (path)"),
        ("step:/b", "step:/b"),
        ('{"host": "lab7", "n": 1}', '{"host": "(hidden)", "n": 1}'),
        ('{"Cmd-Line": ["python", "x"], "n": 2}', '{"Cmd-Line": ["(hidden)", "(hidden)"], "n": 2}'),
        ('{"env": {"HOME": "x"}, "at": "C:\\\\Users\\\\alice"}', '{"env": {"HOME": "(hidden)"}, "at": "(path)"}'),
        ('{"/home/alice/a": 1, "/home/alice/b": 2}', '{"(path)": 1, "(path) 2": 2}'),
        (
            '{"hosts": ["lab7"], "user.name": "a", "api_key": "b"}',
            '{"hosts": ["(hidden)"], "user.name": "(hidden)", "api_key": "(hidden)"}',
        ),
        (' [{"AUTH_TOKEN": "a"}]', '[{"AUTH_TOKEN": "(hidden)"}]'),
        ('{"graph_node": "a", "address": "b"}', '{"graph_node": "a", "address": "b"}'),
        ('{"shape":[1,2],"op":"add"}', '{"shape":[1,2],"op":"add"}'),
        ('{"host": 3, "user": ""}', '{"host": 3, "user": ""}'),
        ("{not json /home/alice/x}", "{not json (path)"),
        ("", ""),
    ],
)
def test_paths_in_texts(text: str, kept: str) -> None:
    assert without_paths(text.encode()) == kept.encode()


def test_no_value_of_a_repeated_key_is_kept() -> None:
    text = b'{"p": "/home/alice/x", "p": "ok", "in": [{"q": "/home/alice/y", "q": "/home/alice/z"}]}'
    assert without_paths(text) == b'{"p": "ok", "in": [{"q": "(path)"}]}'


def test_redacting_again_changes_nothing(redacted: Path, tmp_path: Path) -> None:
    redact(redacted, tmp_path / "twice.bin")
    assert (tmp_path / "twice.bin").read_bytes() == redacted.read_bytes()


def test_damaged_blocks_are_left_out(tmp_path: Path) -> None:
    data = bytearray(private_capture(tmp_path / "a.bin").read_bytes())
    with Reader(tmp_path / "a.bin") as reader:
        data[int(reader.offsets[0]) + 80] ^= 1  # damage in the process description
    (tmp_path / "a.bin").write_bytes(data)
    redact(tmp_path / "a.bin", tmp_path / "b.bin")
    assert b"alice" not in (tmp_path / "b.bin").read_bytes()
    with cutrace.load(tmp_path / "b.bin") as trace:
        assert len(trace.kernels) == 1


@pytest.mark.parametrize("table", [None, "kernels"])
def test_a_redacted_capture_has_the_damage_of_its_source(table: str | None, tmp_path: Path) -> None:
    path = private_capture(tmp_path / "a.bin")
    with Reader(path) as reader:
        block = next(block for block in reader.blocks if block.table == table)
    data = bytearray(path.read_bytes())
    data[block.offset + 70] ^= 1
    path.write_bytes(data)
    redact(path, tmp_path / "b.bin")
    with cutrace.load(path) as whole, cutrace.load(tmp_path / "b.bin") as redacted:
        of_source = [(damage.reason, damage.rows) for damage in whole.quality.damage]
        of_copy = [(damage.reason, damage.rows) for damage in redacted.quality.damage]
    assert of_copy == of_source == [("damaged block", block.rows)]


@pytest.mark.parametrize(
    ("front", "cut", "behind"),
    [(b"", 0, b"/home/alice" * 20), (b"/home/alice" * 20, 0, b""), (b"", 10, b""), (b"", 10, b"/home/alice" * 20)],
)
def test_parts_of_a_file_that_are_no_blocks_stay_damage(front: bytes, cut: int, behind: bytes, tmp_path: Path) -> None:
    path = private_capture(tmp_path / "a.bin")
    data = path.read_bytes()
    path.write_bytes(front + data[: len(data) - cut] + behind)
    redact(path, tmp_path / "b.bin")
    assert b"alice" not in (tmp_path / "b.bin").read_bytes()
    with cutrace.load(path) as whole, cutrace.load(tmp_path / "b.bin") as redacted:
        of_source = [(damage.reason, damage.rows) for damage in whole.quality.damage]
        of_copy = [(damage.reason, damage.rows) for damage in redacted.quality.damage]
        assert redacted.quality.lacks_records
    assert of_copy == of_source != []


def test_a_capture_is_not_redacted_onto_itself(tmp_path: Path) -> None:
    path = awkward(tmp_path / "a.bin")
    with pytest.raises(cutrace.CutraceError, match="is an input"):
        redact(path, path)
    assert json.dumps(path.stat().st_size)


def test_five_functions_of_one_file_stay_five(tmp_path: Path) -> None:
    with Capture(tmp_path / "a.bin") as c:
        for line in range(5):
            c.push_pop(f"/home/alice/train.py({line}): f{line}", line, line + 1)
    redact(tmp_path / "a.bin", tmp_path / "b.bin")
    with cutrace.load(tmp_path / "b.bin") as trace:
        names = {trace.strings[name] for name in trace.nvtx_ranges["name"].tolist()}
    assert names == {f"(path)({line}): f{line}" for line in range(5)}


def test_notes_of_slices_and_merged_files_say_no_host_and_no_name(tmp_path: Path) -> None:
    for number, name in enumerate(("a.bin", "b.bin")):
        with Capture(tmp_path / name, pid=100 + number, boot_id=name, host="lab-7", command=["secret.py"]) as c:
            c.kernel(c.launch("k"), 10, 20)
    cutrace.merge([tmp_path / "a.bin", tmp_path / "b.bin"], tmp_path / "m.bin", names=["customer", "secret"])
    conditions = cutrace.Conditions(process=["customer", "secret"])
    cutrace.slice(tmp_path / "m.bin", tmp_path / "s.bin", conditions)
    cutrace.slice(tmp_path / "a.bin", tmp_path / "t.bin", cutrace.Conditions(process=["secret.py"]))
    for source in ("s.bin", "t.bin"):
        redact(tmp_path / source, tmp_path / "out.bin")
        data = (tmp_path / "out.bin").read_bytes()
        for word in (b"lab-7", b"customer", b"secret"):
            assert word not in data
    redact(tmp_path / "s.bin", tmp_path / "out.bin")
    with cutrace.load(tmp_path / "out.bin") as trace:
        assert "cut out of a longer recording: processes 100, 101" in trace.notes
        assert any(note.startswith("(hidden) ((hidden)): there are no clock snapshots") for note in trace.notes)


def test_imported_arguments_say_no_host_and_no_command(tmp_path: Path) -> None:
    arguments = {"host": "lab-machine-7", "cmd": "python train.py", "shape": [2, 3], "file": "/home/alice/x.py"}
    event = {"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": 10, "dur": 10, "args": arguments}
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [event]}))
    cutrace.redact(tmp_path / "a.json", tmp_path / "b.bin")
    data = (tmp_path / "b.bin").read_bytes()
    for word in (b"lab-machine-7", b"train.py", b"alice"):
        assert word not in data
    assert b"[2, 3]" in data or b"[2,3]" in data
