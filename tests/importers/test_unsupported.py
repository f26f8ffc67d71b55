"""Errors for unsupported files: the kind of the file, and advice."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import captures
import cutrace


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"NVIDIA Tegra Profiler Report 2025@1\n\x0bLocal", "export it with `nsys export --type sqlite`"),
        (b'<?xml version="1.0"?>\n<session version="2" name="a.nvvp">', "open the database that nvprof -o wrote"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"PK\x03\x04\x14\x00", "unpack it first"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04", "7-Zip archive: unpack it first"),
        (b"Rar!\x1a\x07\x01\x00", "RAR archive: unpack it first"),
        (b"run.pftrace".ljust(257, b"\0") + b"ustar\x0000", "TAR archive: unpack it"),
        (gzip.compress(b"run.bin".ljust(257, b"\0") + b"ustar  \0", mtime=0), "TAR archive: unpack it"),
        (
            b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 5/5   #P:8\n",
            r"ftrace, systrace.*ui\.perfetto\.dev",
        ),
        (b"[outside ranges];saxpy 250\n[outside ranges];gemm 10\n", "has folded stacks, without times"),
        (b"main;step;saxpy<float> 250\n", "has folded stacks, without times"),
        (b'[ {"name": 1}, 2\n]', "is JSON without trace events"),
        (b"# My project\n\nHow to build it: `make`.\n", "is text, not a trace: name a capture"),
        ("Größe\tName\r\n".encode(), "is text, not a trace: name a capture"),
        (b"BZh91AY", "unpack it first"),
        (b"\xfd7zXZ\x00\x00", "unpack it first"),
        ('[{"ph": "X"}]'.encode("utf-16"), "is text in UTF-16: convert it to UTF-8"),
        ('[{"ph": "X"}]'.encode("utf-32"), "is text in UTF-32: convert it to UTF-8"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b'{"spans": [{"name": "a"}]}', "is JSON without trace events"),
        (b'[{"name": "a"}]', "is JSON without trace events"),
        (gzip.compress(b'{"nodes": []}', mtime=0), "is JSON without trace events"),
        (b"\x0a\x9d\xb2\x08\x12\x0e/host:metadata\x22", "open the .trace.json.gz"),
        (b"\x0a\x9d\xb2\x88\x08\x08\x02\x12\x0d/device:TPU:0\x1a", "open the .trace.json.gz"),
        (b'{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "--output-format pftrace"),
        (b'{"data":["a"]}\n{"CudaEvent":{"eventClass":3},"Type":80}\n', "`nsys export --type sqlite`"),
        (b"\x89HDF\r\n\x1a\n\x00\x00", "`nsys export --type sqlite`"),
        (b"PAR1\x15\x04\x15", "name the folder with all tables"),
        (b"ARROW1\x00\x00\xff", "name the folder with all tables"),
        (b'{\n  "schema": "1.1.1-chakra.0.0.4", "nodes": []}', "open the trace that torch.profiler wrote"),
        (b'[\n  {\n    "children": [], "frame": {"name": "ROOT"}}]', r'proton\.start\(\.\.\., data="trace"\)'),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:10], "is compressed with gzip, and empty or damaged"),
        (gzip.compress(b"", mtime=0), "is compressed with gzip, and empty or damaged"),
    ],
)
def test_a_file_says_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(cutrace.BadCapture, match=said):
        cutrace.load(path)


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep"])
@pytest.mark.parametrize("content", [b"\x01\x02" * 100, b"text", gzip.compress(b"", mtime=0)])
def test_a_report_of_nsight_systems_is_known_by_its_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(cutrace.BadCapture, match="export it with `nsys export --type sqlite`"):
        cutrace.load(tmp_path / name)


def test_what_is_nothing_known_is_no_capture(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x01\x02" * 100)
    with pytest.raises(cutrace.BadCapture, match=r"is not a run\.bin capture"):
        cutrace.load(tmp_path / "a.bin")


def test_a_folder_of_parquet_files_of_cutrace_says_what_to_open(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cutrace.convert(captures.training_steps(tmp_path / "run.bin", steps=1), tmp_path / "run.parquet")
    with pytest.raises(cutrace.BadCapture, match="open the capture that it was made from"):
        cutrace.load(tmp_path / "run.parquet")
