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
