"""Recordings of the windows that a PyTorch program opens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cutrace
from gpu.conftest import CUTRACE, LIMIT, PROGRAMS

WINDOWS, KERNELS = 5, 200


@pytest.mark.parametrize(("capture_range", "words"), [("profiler", []), ("nvtx:step", ["nvtx"])])
def test_each_window_has_what_was_launched_in_it(
    tmp_path: Path, needs: Callable[..., None], capture_range: str, words: list[str]
) -> None:
    needs("torch")
    program = [sys.executable, str(PROGRAMS / "windowed.py"), str(WINDOWS), str(KERNELS), *words]
    done = subprocess.run(
        [*CUTRACE, "record", "--capture-range", capture_range, "--", *program],
        cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert float(done.stdout) == WINDOWS * (KERNELS - 2)
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.quality.lossless, [*trace.quality.sentences()]
        (process,) = trace.processes
        assert len(process.windows) == WINDOWS
        names = trace.strings.take(trace.launches["name"][trace.kernels["launch"]]).astype(str)
        adding = ["CUDAFunctorOnSelf_add" in name or "CUDAFunctor_add" in name for name in names]
        spinning = ["spin_kernel" in name for name in names]
        calls = set(trace.api_calls["correlation"].tolist())
        assert set(trace.kernels["correlation"].tolist()) <= calls
        for window in process.windows:
            inside = (trace.kernels["start"] >= window.start) & (trace.kernels["start"] <= window.read)
            # Subtractions, which are additions of a negative number, are outside the windows.
            assert int((inside & adding).sum()) == KERNELS
            assert int((inside & spinning).sum()) == 1
            (last,) = trace.kernels[inside & spinning]
            assert window.end < last["end"] <= window.read


@pytest.mark.parametrize("how", ["record", "arm"])
def test_each_window_of_a_server_is_a_file(tmp_path: Path, needs: Callable[..., None], how: str) -> None:
    """Threads that handle requests open and close the windows."""
    needs("torch")
    command = [sys.executable, str(PROGRAMS / "served.py"), str(WINDOWS), str(KERNELS)]
    if how == "arm":
        command.append("arm")
    else:
        command = [*CUTRACE, "record", "--capture-range", "profiler", "-o", "run-%i.bin", "--", *command]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted(f"run-{number}.bin" for number in range(1, WINDOWS + 1))
    for name in files:
        with cutrace.load(tmp_path / name) as trace:
            assert trace.quality.lossless, [*trace.quality.sentences()]
            (process,) = trace.processes
            assert len(process.windows) == 1
            names = trace.strings.take(trace.launches["name"][trace.kernels["launch"]]).astype(str)
            adding = ["CUDAFunctorOnSelf_add" in name or "CUDAFunctor_add" in name for name in names]
            assert sum(adding) == KERNELS
