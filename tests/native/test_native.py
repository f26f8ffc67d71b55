"""Builds the native tests with CMake and runs each with ctest; CUTRACE_SANITIZE chooses sanitizers for both.

``CUTRACE_SANITIZE=address,undefined pytest tests/native`` or ``CUTRACE_SANITIZE=thread``. Without CMake, a C++20
compiler or the CUDA headers there is nothing to build, and these tests are skipped; ``tox -e native`` has it all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900)


def missing() -> str | None:
    if shutil.which("cmake") is None or shutil.which("ctest") is None:
        return "needs cmake"
    if run(sys.executable, ROOT / "cmake" / "find_headers.py").returncode:
        return "needs the CUDA, CUPTI and NVTX headers"
    if run(sys.executable, "-m", "nanobind", "--cmake_dir").returncode:
        return "needs nanobind"
    return None


def test_the_native_tests_pass(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    configured = run(
        "cmake", "-S", ROOT, "-B", tmp_path, "-DCUTRACE_TESTS=ON", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DCUTRACE_SANITIZE={os.environ.get('CUTRACE_SANITIZE', '')}",
    )  # fmt: skip
    assert configured.returncode == 0, configured.stdout + configured.stderr
    targets = [program.stem for program in Path(__file__).parent.glob("test_*.cpp")]
    built = run("cmake", "--build", tmp_path, "--parallel", "2", "--target", *targets)
    assert built.returncode == 0, built.stdout[-8000:] + built.stderr[-8000:]
    tested = run("ctest", "--test-dir", tmp_path, "--output-on-failure")
    assert tested.returncode == 0, tested.stdout[-8000:] + tested.stderr[-8000:]
