"""A training program to which a tool attaches ten times: captures are complete, and results are unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import cutrace
from gpu.conftest import CUTRACE, LIMIT, PROGRAMS

TRAINED = [sys.executable, str(PROGRAMS / "trained.py")]
PROFILED = [sys.executable, str(PROGRAMS / "profiled.py")]
GRAPHS = [sys.executable, str(PROGRAMS / "graph_loop.py")]
TIMES = 10


@pytest.fixture
def armed(
    tmp_path: Path, needs: Callable[..., None], request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """Start the training program, or the program of the parameter, under ``cutrace arm``, and wait for its first
    steps."""
    needs("torch")
    with (tmp_path / "stderr").open("w") as stderr:
        command = [*CUTRACE, "arm", "--", *getattr(request, "param", TRAINED)]
        process = subprocess.Popen(
            command, cwd=tmp_path, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            env=os.environ | {"TEARDOWN_CUPTI": "1"},  # torch.profiler releases CUPTI at the end of a session
        )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", (tmp_path / "stderr").read_text()
    yield process
    process.kill()
    process.wait()


#: The length of an attachment, and its last part with complete records (s).
LENGTH, SETTLED = 2.0, 1.8


def launches_of_steps(trace: cutrace.Trace) -> tuple[list[int], list[str]]:
    """Return the number of kernels that each step launched, and a line on each unusual step. The line has the start (ms
    after the start of the recording), the launches by thread, and whether the step counts.

    Only steps of the settled part count. While CUPTI enables one kind after the other, launches wait or are not
    recorded yet. `--for` starts when all kinds are enabled.
    """
    names = trace.strings.take(trace.functions["name"][trace.api_calls["function"]]).astype(str)
    launching = np.sort(trace.api_calls[np.char.find(names, "LaunchKernel") >= 0], order="start")
    ranges = np.sort(trace.nvtx_ranges[trace.strings.take(trace.nvtx_ranges["name"]) == "step"], order="start")
    counts = np.searchsorted(launching["start"], ranges["end"]) - np.searchsorted(launching["start"], ranges["start"])
    counted = ranges["start"] > ranges["end"].max() - int(SETTLED * 1e9)
    began = int(trace.processes[0].info["started"])
    lines = []
    for step, count, counts_too in zip(ranges, counts, counted, strict=True):
        if count != np.bincount(counts).argmax():
            inside = launching[(launching["start"] >= step["start"]) & (launching["start"] < step["end"])]
            threads = Counter(inside["thread"].tolist())
            lines.append(
                f"{(int(step['start']) - began) / 1e6:.1f} ms: {dict(threads)}{', counted' * bool(counts_too)}"
            )
    return sorted(set(counts[counted].tolist())), lines


def is_complete(trace: cutrace.Trace) -> bool:
    """Whether the capture lacks only parts of ranges that were open at its start or at its end."""
    quality = trace.quality
    cut = {loss.reason for loss in quality.losses} <= {"nvtx_unmatched_pop", "nvtx_open"}
    return cut and set(quality.unknown) <= {"nvtx_ranges"} and not quality.damage and not quality.incomplete


def test_ten_attachments_are_complete_and_change_nothing(armed: subprocess.Popen[str], tmp_path: Path) -> None:
    counts, odd = [], []
    for number in range(TIMES):
        path = tmp_path / f"{number}.bin"
        done = subprocess.run(
            [*CUTRACE, "attach", str(armed.pid), "--for", f"{LENGTH}s", "-o", path], capture_output=True, text=True,
            timeout=LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with cutrace.load(path) as trace:
            assert is_complete(trace), done.stderr
            assert trace.processes[0].complete
            assert trace.count("kernels") > 1000
            found, lines = launches_of_steps(trace)
            counts.append(found)
            odd += [f"attachment {number}, {line}" for line in lines]
    print(*odd, sep="\n")  # a failure shows these lines
    assert len(counts[0]) == 1
    assert counts == [counts[0]] * TIMES
    out, _ = armed.communicate("\n", timeout=LIMIT)
    assert armed.returncode == 0
    losses = json.loads(out)
    alone = subprocess.run([*TRAINED, str(len(losses))], capture_output=True, text=True, timeout=4 * LIMIT)
    assert json.loads(alone.stdout.splitlines()[-1]) == losses
    assert (tmp_path / "stderr").read_text() == ""


def test_the_first_attachment_records_for_its_whole_time(armed: subprocess.Popen[str], tmp_path: Path) -> None:
    """`--for` does not count the first launch under CUPTI, which takes up to a second."""
    command = [*CUTRACE, "attach", str(armed.pid), "--for", f"{LENGTH}s"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=LIMIT)
    with cutrace.load(tmp_path / "run.bin") as trace:
        recorded = int(trace.kernels["end"].max() - trace.kernels["start"].min())
    assert recorded > SETTLED * 1e9


def test_the_end_of_the_program_ends_an_attachment(armed: subprocess.Popen[str], tmp_path: Path) -> None:
    attachment = cutrace.attach(armed.pid, tmp_path / "run.bin")
    attachment.start()
    armed.communicate("\n", timeout=LIMIT)
    assert attachment.wait(f"{LIMIT}s")
    assert not attachment.stop().trouble
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert is_complete(trace)
        assert trace.count("kernels") > 0


@pytest.mark.parametrize("armed", [GRAPHS], indirect=True)
def test_graphs_survive_attachments(armed: subprocess.Popen[str], tmp_path: Path) -> None:
    for number in range(4):
        # CUPTI cannot trace graphs as a whole that were instantiated before, so the last one records nodes, too.
        cuda_graph = "graph" if number == 3 else "node"
        with cutrace.attach(armed.pid, tmp_path / f"{number}.bin", cuda_graph=cuda_graph):
            time.sleep(1)
        with cutrace.load(tmp_path / f"{number}.bin") as trace:
            assert is_complete(trace)
            assert np.count_nonzero(trace.launches["graph_node"])
        time.sleep(0.5)  # replays after the end of the recording, of graphs that were created before and during it
    out, _ = armed.communicate("\n", timeout=LIMIT)
    done = json.loads(out)
    assert armed.returncode == 0
    assert done["steps"] > 1000
    assert done["wrong"] == 0


@pytest.mark.parametrize("armed", [PROFILED], indirect=True)
def test_torch_profiler_before_and_after_an_attachment(armed: subprocess.Popen[str], tmp_path: Path) -> None:
    assert armed.stdin is not None
    assert armed.stdout is not None
    for number in range(2):
        armed.stdin.write("profile\n")
        armed.stdin.flush()
        assert int(armed.stdout.readline()) >= 40
        with cutrace.attach(armed.pid, tmp_path / f"{number}.bin"):
            time.sleep(1)
        with cutrace.load(tmp_path / f"{number}.bin") as trace:
            assert is_complete(trace)
            assert trace.count("kernels") > 1000
    armed.communicate(timeout=LIMIT)
    assert armed.returncode == 0
