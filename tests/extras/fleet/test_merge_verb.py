"""`cutrace merge`: its output and its errors."""

from __future__ import annotations

from pathlib import Path

import cutrace
from captures import ORIGIN, Capture
from support import cutrace as run


def machine(path: Path, number: int) -> None:
    with Capture(path, pid=100, boot_id=f"boot {number}", host=f"node{number}") as c:
        c.kernel(c.launch("k"), 1000, 2000)
        c.add("clocks", boottime=ORIGIN, realtime=2 * ORIGIN + number * 1_500_000_001, spread=250)


def test_each_file_is_named_and_its_alignment_said(tmp_path):
    for number in range(2):
        machine(tmp_path / f"{number}.bin", number)
    done = run("merge", "0.bin", "1.bin", "-o", "all.bin", "--ranks", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    said = done.stderr.splitlines()
    assert said[0] == "cutrace: rank 0 (node0): on the clock of the result"
    assert said[1] == "cutrace: rank 1 (node1): moved by +1.500000001 s, to within 500 ns"
    assert said[2].startswith("cutrace: all.bin: ")
    with cutrace.load(tmp_path / "all.bin") as trace:
        assert [p.name for p in trace.processes] == ["rank 0", "rank 1"]
        first, second = trace.kernels["start"].tolist()
        assert second - first == 1_500_000_001


def test_names_are_given_in_the_order_of_the_files(tmp_path):
    for number in range(2):
        machine(tmp_path / f"{number}.bin", number)
    done = run("merge", "-q", "1.bin", "0.bin", "-o", "all.bin", "--name", "b", "--name", "a", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with cutrace.load(tmp_path / "all.bin") as trace:
        assert [(p.name, p.host) for p in trace.processes] == [("b", "node1"), ("a", "node0")]


def test_records_that_a_file_lacks_are_said(tmp_path):
    machine(tmp_path / "0.bin", 0)
    machine(tmp_path / "1.bin", 1)
    with Capture(tmp_path / "2.bin", pid=7) as c:
        c.kernel(c.launch("k"), 1000, 2000)
        c.writer.losses([("memory_limit", 12, "kernels")])
    for name in ("all.bin", "all.pftrace", "all.tar"):
        whole = run("merge", "0.bin", "1.bin", "-o", name, cwd=tmp_path)
        lossy = run("merge", "0.bin", "2.bin", "-o", name, cwd=tmp_path)
        lost = "cutrace: 12 records dropped because the collector's memory limit was reached (kernels)"
        assert "dropped" not in whole.stderr
        assert lossy.stderr.splitlines()[-1] == lost


def test_a_block_that_is_damaged_is_said(tmp_path):
    machine(tmp_path / "0.bin", 0)
    machine(tmp_path / "1.bin", 1)
    with cutrace.load(tmp_path / "1.bin") as trace:
        (block,) = trace.block_infos("kernels")
    data = bytearray((tmp_path / "1.bin").read_bytes())
    data[block.offset + 70] ^= 1
    (tmp_path / "1.bin").write_bytes(data)
    done = run("merge", "0.bin", "1.bin", "-o", "all.bin", cwd=tmp_path)
    assert "damaged block" in done.stderr.splitlines()[-1]


def test_a_capture_has_no_packets_to_compress(tmp_path):
    machine(tmp_path / "0.bin", 0)
    done = run("merge", "0.bin", "-o", "all.bin", "--compress", "zstd", cwd=tmp_path)
    assert done.returncode == 2
    assert "has no packets to compress" in done.stderr
