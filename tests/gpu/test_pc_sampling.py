"""cutrace record --sample pc on a GPU: the hot lines of known kernels, and the records of the kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import cutrace
from cutrace.extras.hardware.sources import sampled_lines

SOURCE = Path(__file__).parents[2] / "benchmarks" / "native" / "hot_loops.cu"
LAUNCHES = 300


@pytest.fixture(scope="module")
def hot_loops(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    """The compiled hot_loops.cu, with line information. ``programs`` skips the test without a compiler."""
    program = tmp_path_factory.mktemp("hot") / "hot_loops"
    options = ["-O2", "-std=c++17", f"-arch={os.environ.get('CUDA_ARCH', 'native')}", "-lineinfo"]
    subprocess.run([shutil.which("nvcc") or "nvcc", *options, "-o", program, SOURCE], check=True, timeout=300)
    return program


@pytest.mark.parametrize("which", ["loads", "chain", "barrier"])
def test_the_hot_line_and_its_reason_are_found_beside_all_kernels(record, hot_loops, which):
    number, reason = next(
        (number, mark[1])
        for number, line in enumerate(SOURCE.open(), 1)
        if (mark := re.search(rf"// hot: {which} (\w+)", line))
    )
    recorded = record([hot_loops, which, str(LAUNCHES)], "--sample", "pc")
    assert recorded.status == 0, recorded.stderr
    with cutrace.load(recorded.path) as trace:
        assert len(trace.kernels) == LAUNCHES + LAUNCHES // 10 + 1
        hottest = sampled_lines(trace)[0]
        assert (Path(hottest.place.file).name, hottest.place.line) == (SOURCE.name, number)
        assert hottest.stall == reason
        assert not trace.named_losses


def test_a_recording_inside_a_program_samples_the_context_that_is_there(python):
    pytest.importorskip("torch")
    recorded = python(
        "import torch, cutrace\n"
        "x = torch.rand(2048, 2048, device='cuda'); y = x @ x; torch.cuda.synchronize()\n"
        "with cutrace.record('run.bin', sample='pc'):\n"
        "    for _ in range(300): y = x @ x\n"
        "    torch.cuda.synchronize()\n"
        "y = x @ x; torch.cuda.synchronize(); print(float(y.sum()) > 0)\n"
    )
    assert recorded.stdout.strip() == "True", recorded.stderr
    with cutrace.load(recorded.path) as trace:
        assert len(trace.kernels) == 300
        assert sum(line.samples for line in sampled_lines(trace)) > 1000
