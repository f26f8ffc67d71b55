"""cutrace record end to end, on programs that use real NVTX and end in every possible way."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cutrace import load
from support import cutrace


def record(folder: Path, program: str, *options: str):
    command = [sys.executable, "-c", "import nvtx, os, sys, subprocess\n" + program]
    return cutrace("record", *options, "--", *command, cwd=folder)


def ranges(path: Path) -> list[str]:
    with load(path) as trace:
        return sorted(trace.strings.take(trace.nvtx_ranges["name"]).tolist())


def test_ranges_and_marks_are_recorded(tmp_path):
    done = record(tmp_path, "with nvtx.annotate('outer'):\n  with nvtx.annotate('inner'): nvtx.mark('here')")
    assert done.returncode == 0
    assert done.stderr.startswith("cutrace: run.bin: 1 process, 0 kernels, 2 NVTX ranges, 1 NVTX mark, ")
    with load(tmp_path / "run.bin") as trace:
        outer, inner = trace.nvtx_ranges[trace.nvtx_ranges["depth"].argsort()]
        assert [trace.strings[int(r["name"])] for r in (outer, inner)] == ["outer", "inner"]
        assert outer["start"] <= inner["start"] <= trace.nvtx_marks["time"][0] <= inner["end"] <= outer["end"]
        assert trace.processes[0].complete
        assert trace.quality.lossless


def test_children_are_recorded_too(tmp_path):
    program = (
        "if len(sys.argv) == 1:\n"
        "    with nvtx.annotate('parent'): pass\n"
        "    for i in range(3): subprocess.run([sys.executable, '-c', CHILD % i], check=True)\n"
    )
    child = "CHILD = 'import nvtx\\nwith nvtx.annotate(\"child %d\"): pass'\n"
    done = record(tmp_path, child + program)
    assert "4 processes" in done.stderr
    assert ranges(tmp_path / "run.bin") == ["child 0", "child 1", "child 2", "parent"]


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(4)", 4),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), 9)", 137),
        ("os.abort()", 134),
        ("raise OSError", 1),
    ],
)
def test_however_a_program_ends_its_capture_can_be_read(tmp_path, end, status):
    # More events than the collector keeps before it writes, so that the capture of a killed program has some.
    program = f"import time\nfor i in range(1000):\n  with nvtx.annotate('work'): pass\ntime.sleep(1)\n{end}"
    done = record(tmp_path, program)
    assert done.returncode == status
    assert len(ranges(tmp_path / "run.bin")) == 1000


def test_a_forked_child_does_not_hang_and_does_not_write_into_its_parents_capture(tmp_path):
    program = (
        "with nvtx.annotate('parent'): pass\n"
        "child = os.fork()\n"
        "with nvtx.annotate('child' if child == 0 else 'later'): pass\n"
        "if child: os.waitpid(child, 0)\n"
    )
    assert record(tmp_path, program).returncode == 0
    with load(tmp_path / "run.bin") as trace:
        found = {(int(r["process"]), trace.strings[int(r["name"])]) for r in trace.nvtx_ranges}
    parent = next(p for p, name in found if name == "parent")
    assert (parent, "later") in found
    assert (parent, "child") not in found


def test_without_nvtx_nothing_is_recorded_here(tmp_path):
    done = record(tmp_path, "nvtx.mark('x')", "--no-nvtx")
    assert "nothing was recorded" in done.stderr


def test_options_reach_the_collector_and_the_capture(tmp_path):
    record(tmp_path, "nvtx.mark('x')", "--kinds", "nvtx,kernel", "--api", "all", "--max-memory", "32MiB")
    info = json.loads(cutrace("info", "--format", "json", tmp_path / "run.bin").stdout)
    assert info["rows"]["nvtx_marks"] == 1
    with load(tmp_path / "run.bin") as trace:
        options = trace.processes[0].info["options"]
    assert (options["kinds"], options["api"], options["max_memory"]) == ("nvtx,kernel", "all", str(32 << 20))


def test_a_size_limit_is_kept_and_what_it_cost_is_said(tmp_path):
    program = "for i in range(100_000):\n  with nvtx.annotate('work'): pass"
    done = record(tmp_path, program, "--max-size", "1MB")
    assert (tmp_path / "run.bin").stat().st_size <= 1_000_000
    assert "size limit" in done.stderr
