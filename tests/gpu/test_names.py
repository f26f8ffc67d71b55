"""Names of kernels of unloaded modules, with each libcupti in CUTRACE_TEST_CUPTIS (paths, separated by colons)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).parent / "programs" / "reused_handles.py"
CUPTIS = [path for path in os.environ.get("CUTRACE_TEST_CUPTIS", "").split(":") if path] or [None]

Record = Callable[..., Any]


def names(recorded: Any) -> list[str]:
    kernels = recorded.trace.kernels
    in_order: list[str] = recorded.kernel_names(kernels[np.argsort(kernels["start"], kind="stable")]).tolist()
    return in_order


@pytest.mark.parametrize("cupti", CUPTIS)
def test_kernels_of_unloaded_modules_have_their_own_names(
    record: Record, needs: Callable[..., None], cupti: str | None
) -> None:
    needs("cupy", "cuda.bindings")
    # The collector uses the libcupti that the process has loaded.
    python = ["env", f"LD_PRELOAD={cupti}", sys.executable] if cupti else [sys.executable]
    dropped = record([*python, PROGRAM], name="dropped.bin")
    kept = record([*python, PROGRAM, "--keep"], name="kept.bin")
    for recorded in (dropped, kept):
        assert [name for name in names(recorded) if name.startswith("own_")] == recorded.report["launched"]
        assert not len(recorded.trace.losses)
    assert sorted(names(dropped)) == sorted(names(kept))
