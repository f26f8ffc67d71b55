"""The test suite of a user with every state that a report shows. `write` writes its files; `SESSIONS` are run in order.

Two sessions record the golden files. Then the code changes, and the last session shows all states.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

OPS = """
import os

import fakegpu

CHANGED = bool(os.environ.get("CHANGED"))
WEIGHTS = []


def softmax(size):
    if CHANGED:
        fakegpu.launch("cast_fp32_kernel", grid=size, duration_ns=4_000)
    fakegpu.launch("softmax_fwd_kernel", grid=size, duration_ns=18_000)


def load_weights():
    if not WEIGHTS:
        WEIGHTS.append(fakegpu.copy("HtoD", 4096))


def forward():
    fakegpu.launch("gemm_kernel", grid=64, duration_ns=52_000)
    fakegpu.launch("gelu_kernel", grid=64, duration_ns=9_000)
    if CHANGED:
        fakegpu.copy("DtoH", 4)
        fakegpu.synchronize("cudaStreamSynchronize", stream=7)


def backward():
    for _ in range(2):
        fakegpu.launch("gemm_kernel", grid=64, duration_ns=52_000)


def scale(factor):
    for _ in range(1 if CHANGED else 3):
        fakegpu.launch("scale_kernel", duration_ns=3_000)
"""
TESTS = {
    "test_softmax.py": """
import pytest
from ops import softmax

@pytest.mark.parametrize("shape", ["1024x512", "1024x4096", "8192x512", "8192x4096"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_fwd(dtype, shape):
    softmax(int(shape.partition("x")[0]))
""",
    "test_model.py": """
import fakegpu, pytest
from ops import CHANGED, backward, forward, load_weights, scale

def test_step(gpu_trace):
    with gpu_trace.region("forward"):
        forward()
    with gpu_trace.region("backward"):
        backward()

def test_scale():
    scale(2)

def test_weights():
    load_weights()
    backward()

CALLS = []

def test_cache():
    CALLS.append(1)
    for _ in CALLS:
        fakegpu.launch("probe_kernel")

def test_subtests(subtests):
    with subtests.test("one"):
        backward()

def test_optional():
    if CHANGED:
        pytest.skip("needs the extra `fast`")
    backward()

if CHANGED:
    def test_dropout():
        fakegpu.launch("dropout_kernel", duration_ns=6_000)

def test_tokenizer():
    assert "a b".split() == ["a", "b"]

def test_loss():
    backward()
    assert not CHANGED, "loss is nan"
""",
    "test_budget.py": """
import fakegpu, pytest
from ops import CHANGED

@pytest.mark.gpu_limit(peak_memory="64 MiB")
def test_memory():
    fakegpu.free(fakegpu.malloc((96 if CHANGED else 32) << 20))

def test_decode(gpu_trace):
    with gpu_trace.region("decode", sync_calls=0):
        for _ in range(4):
            fakegpu.launch("decode_kernel", duration_ns=2_000)
            if CHANGED:
                fakegpu.synchronize("cudaStreamSynchronize", stream=7)
""",
    "test_gemm.py": """
import os

import fakegpu

def test_gemm():
    fakegpu.launch("sm80_gemm" if os.environ.get("ON") == "sm_80" else "sm90_gemm", duration_ns=44_000)
""",
}
CONFTEST = """
import os

import fakegpu

if os.environ.get("ON") == "sm_80":
    fakegpu.describe("NVIDIA FAKE", (8, 0))
"""
#: The arguments of pytest and the variables of each session.
SESSIONS: list[tuple[list[str], dict[str, str]]] = [
    (["--cutrace-update", "test_gemm.py"], {"ON": "sm_80"}),
    (["--cutrace-update", "--deselect=test_gemm.py::test_gemm"], {}),
    (["--cutrace", "--cutrace-report=json,markdown,html"], {"CHANGED": "1"}),
]


def write(folder: Path, more: Mapping[str, str] = {}) -> None:
    """Write the files of the suite."""
    files = {"ops.py": OPS, "conftest.py": CONFTEST, "pytest.ini": "[pytest]\npythonpath = .\n", **TESTS, **more}
    for name, text in files.items():
        (folder / name).write_text(text.lstrip())
