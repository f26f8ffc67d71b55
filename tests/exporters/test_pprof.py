"""Profiles for pprof, read by a simple reader of protobuf's wire format."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import cutrace
from captures import DATA, ORIGIN, Capture, python_calls
from cutrace.analysis.flame import flame

FILES = ["torch_step.bin", "cuda_graph_whole.bin", "ranks.bin", "kineto-torch2.11-h200-transformer.json.gz"]
#: Characters that lines of collapsed stacks must not contain.
PLAIN = str.maketrans({";": ":", "\n": " ", "\r": " "})


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an index, and the index after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def message(data: bytes) -> dict[int, list]:
    """The values of a message by field number: numbers and bytes."""
    fields: dict[int, list] = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
            assert len(value) == len(data[at - len(value) : at])
        else:
            assert tag & 7 == 0
        fields[tag >> 3].append(value)
    assert at == len(data)
    return fields


@dataclass
class Profile:
    types: list[tuple[str, str]]
    samples: list[tuple[tuple[tuple[str, str, int], ...], list[int]]]
    comments: list[str]
    default: str
    duration: int
    start: int


def read(path: Path) -> Profile:
    """Read a profile, with the checks of pprof's CheckValid:
    https://github.com/google/pprof/blob/main/profile/profile.go. The frames of a sample are function, file and line,
    outermost first."""
    profile = message(gzip.decompress(path.read_bytes()))
    assert set(profile) <= {1, 2, 4, 5, 6, 9, 10, 13, 14}
    strings = [text.decode() for text in profile[6]]
    assert strings[0] == ""
    assert len(set(strings)) == len(strings)
    functions = {}
    for function in map(message, profile[5]):
        ((number,), (name,), (system_name,), (file,)) = (function[field] for field in (1, 2, 3, 4))
        assert number
        assert number not in functions
        assert name == system_name
        functions[number] = (strings[name], strings[file])
    locations = {}
    for location in map(message, profile[4]):
        ((number,), (line,)) = location[1], location[4]
        assert number
        assert number not in locations
        at = message(line)
        locations[number] = (*functions[at[1][0]], at[2][0])
    types = [(strings[kind[1][0]], strings[kind[2][0]]) for kind in map(message, profile[1])]
    samples = []
    for sample in map(message, profile[2]):
        assert len(sample[2]) == len(types)
        samples.append((tuple(locations[number] for number in reversed(sample[1])), sample[2]))
    comments = [strings[number] for number in profile[13]]
    start = profile[9][0] if profile[9] else 0
    return Profile(types, samples, comments, strings[profile[14][0]], profile[10][0], start)


def converted(source: Path, destination: Path, **how: object) -> Profile:
    cutrace.convert(source, destination, **how)
    return read(destination)


@pytest.mark.parametrize("name", FILES)
def test_samples_are_those_of_collapsed_stacks(name, tmp_path):
    found = converted(DATA / name, tmp_path / "a.pb.gz")
    cutrace.convert(DATA / name, tmp_path / "a.folded")
    stacks = dict(line.rsplit(" ", 1) for line in (tmp_path / "a.folded").read_text("utf-8").splitlines())
    times: Counter[str] = Counter()
    for frames, (gpu_ns, _) in found.samples:
        assert all(place[1:] == ("", 0) for place in frames)
        times[";".join(function.translate(PLAIN) for function, _, _ in frames)] += gpu_ns
    assert +times == {stack: int(time) for stack, time in stacks.items()}
    with cutrace.load(DATA / name) as trace:
        root = flame(trace)
        assert found.duration == trace.end - trace.start
    assert sum(operations for _, (_, operations) in found.samples) == root.operations > 0
    assert found.types == [("gpu_time", "nanoseconds"), ("operations", "count")]
    assert found.default == "gpu_time"


def test_work_without_time_is_counted(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 0, 100)
        kernel = c.launch("_Z4axpyPf")
        c.api("cudaLaunchKernel", 10, 20, correlation=1)
        c.kernel(kernel, 50, 50, correlation=1)
        c.memcpy(60, 90, 64)
        c.clocks()
    found = converted(tmp_path / "a.bin", tmp_path / "a.pb.gz")
    assert {tuple(place[0] for place in frames): values for frames, values in found.samples} == {
        ("step", "axpy"): [0, 1],
        ("[CUDA memcpy Host-to-Device]",): [30, 1],
    }
    assert found.start == ORIGIN + 1_700_000_000_000_000_000


def test_python_frames_have_their_function_file_and_line(tmp_path):
    found = converted(python_calls(tmp_path / "a.bin"), tmp_path / "a.pb.gz", by="stack")
    assert {frames: values for frames, values in found.samples if len(frames) == 4} == {
        (("main", "train.py", 10), ("step", "train.py", 42), ("fused_add", "ops.py", 7), ("add", "", 0)): [80, 2]
    }
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert sum(gpu_ns for _, (gpu_ns, _) in found.samples) == flame(trace, by="stack").gpu_ns


def test_what_is_missing_is_a_comment(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 0, 100)
        c.api("cudaLaunchKernel", 10, 20, correlation=1)
        c.kernel(c.launch("_Z4axpyPf"), 50, 60, correlation=1)
        c.loss(1, 42, "kernel")
    found = converted(tmp_path / "a.bin", tmp_path / "a.pb.gz")
    assert found.comments[0].startswith("GPU time by range: 100 % in ranges of the launching thread")
    assert found.comments[1:] == ["42 records that CUPTI dropped because it had no buffer (kernel)"]


def test_equal_traces_are_equal_files_and_an_empty_one_is_a_profile(tmp_path):
    for name in ("a.pb.gz", "b.pb.gz"):
        cutrace.convert(DATA / "torch_step.bin", tmp_path / name)
    assert (tmp_path / "a.pb.gz").read_bytes() == (tmp_path / "b.pb.gz").read_bytes()
    with Capture(tmp_path / "a.bin") as c:
        c.mark("nothing", 5)
    assert converted(tmp_path / "a.bin", tmp_path / "c.pb.gz").samples == []
