"""cutrace convert: its outputs and messages."""

from __future__ import annotations

import gzip
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from cutrace.plugins import own_exporters
from cutrace.runbin import Writer
from cutrace.units import format_size
from support import cutrace, on_a_terminal, rows, small_capture


def kernels(path: Path) -> list[int]:
    """The durations of the kernels in an uncompressed trace."""
    trace = Trace.FromString(path.read_bytes())
    return [p.gpu_render_stage_event.duration for p in trace.packet if p.HasField("gpu_render_stage_event")]


def convert(*arguments: object, **options) -> str:
    done = cutrace("convert", *arguments, **options)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def test_the_trace_has_the_kernels_and_one_line_says_its_size(tmp_path):
    said = convert(small_capture(tmp_path / "a.bin"), "-o", tmp_path / "a.pftrace")
    assert kernels(tmp_path / "a.pftrace") == [100, 150]
    size = (tmp_path / "a.pftrace").stat().st_size
    assert said == f"cutrace: {tmp_path / 'a.pftrace'}: {format_size(size)}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "a.pftrace"]


def test_the_help_names_all_formats():
    help = " ".join(cutrace("convert", "--help").stdout.split())
    named = help.partition("selects the format: ")[2].partition(". [required]")[0]
    assert sorted(re.split(", | or ", named)) == sorted(exporter.suffixes[0] for exporter in own_exporters())


def test_several_captures_become_one_trace(tmp_path):
    a, b = small_capture(tmp_path / "a.bin", pid=1), small_capture(tmp_path / "b.bin", pid=2)
    convert(a, b, "-o", tmp_path / "ab.pftrace")
    assert kernels(tmp_path / "ab.pftrace") == [100, 150] * 2


def test_a_stretch_of_time_counts_from_the_first_record(tmp_path):
    capture = small_capture(tmp_path / "a.bin")  # the first record is at 50 ns, the kernels are at 100-200 and 150-300
    convert(capture, "-o", tmp_path / "late.pftrace", "--start", "151ns")
    assert kernels(tmp_path / "late.pftrace") == [150]
    convert(capture, "-o", tmp_path / "early.pftrace", "--end", "0.09us")
    assert kernels(tmp_path / "early.pftrace") == [100]


def test_gz_compresses_the_whole_file(tmp_path):
    capture = small_capture(tmp_path / "a.bin")
    convert(capture, "-o", tmp_path / "a.pftrace.gz")
    (tmp_path / "a.pftrace").write_bytes(gzip.decompress((tmp_path / "a.pftrace.gz").read_bytes()))
    assert kernels(tmp_path / "a.pftrace") == [100, 150]


@pytest.mark.parametrize(("method", "field"), [("zstd", "zstd_compressed_packets"), ("deflate", "compressed_packets")])
def test_groups_of_packets_are_compressed_on_request(tmp_path, method, field):
    convert(small_capture(tmp_path / "a.bin"), "-o", tmp_path / "a.pftrace", "--compress", method)
    data = (tmp_path / "a.pftrace").read_bytes()
    known = field in Trace.FromString(data).packet[0].DESCRIPTOR.fields_by_name
    assert not known or any(p.HasField(field) for p in Trace.FromString(data).packet)
    assert b"saxpy" not in data


def test_an_existing_trace_is_replaced_in_one_step(tmp_path):
    (tmp_path / "a.pftrace").write_text("old")
    with (tmp_path / "a.pftrace").open() as old:
        convert(small_capture(tmp_path / "a.bin"), "-o", tmp_path / "a.pftrace")
        assert old.read() == "old"
    assert kernels(tmp_path / "a.pftrace") == [100, 150]


def test_a_torn_capture_is_converted_as_far_as_it_goes_with_a_notice(tmp_path):
    capture = small_capture(tmp_path / "a.bin")
    with Writer(tmp_path / "b.bin", pid=2) as writer:
        writer.rows("kernels", rows("kernels", 50, start=10, end=20))
    capture.write_bytes(capture.read_bytes() + (tmp_path / "b.bin").read_bytes()[:1000])
    said = convert(capture, "-o", tmp_path / "a.pftrace")
    assert kernels(tmp_path / "a.pftrace") == [100, 150]
    assert "torn" in said


def test_a_full_disk_leaves_nothing_and_names_the_trace(tmp_path):
    capture = small_capture(tmp_path / "a.bin")
    limit = f"ulimit -f 0; exec {sys.executable} -m cutrace convert {capture} -o {tmp_path / 'a.pftrace'}"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    refused = f"cannot write {tmp_path / 'a.pftrace'}: File too large. Choose another name or place."
    assert done.stderr == f"cutrace: {refused}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_conversion_that_is_stopped_leaves_nothing(tmp_path, number):
    small_capture(tmp_path / "a.bin")
    stopped = (
        "import os, time, cutrace.cli, cutrace.exporters.perfetto as perfetto\n"
        f"perfetto.write = lambda *a, **k: (os.kill(os.getpid(), {int(number)}), time.sleep(60))\n"
        "cutrace.cli.main(['convert', 'a.bin', '-o', 'a.pftrace'])"
    )
    done = subprocess.run([sys.executable, "-c", stopped], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (128 + number, "")
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_quiet_says_nothing(tmp_path):
    assert convert("-q", small_capture(tmp_path / "a.bin"), "-o", tmp_path / "a.pftrace") == ""


def test_a_terminal_sees_a_progress_bar(tmp_path):
    shown = on_a_terminal("convert", small_capture(tmp_path / "a.bin"), "-o", tmp_path / "a.pftrace", TERM="xterm")
    assert "converting" in shown
    assert "100%" in shown
