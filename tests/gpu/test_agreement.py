"""cutrace and torch.profiler on the same deterministic work, each in a separate process.

Counts must be equal. Durations of one kernel differ from run to run, so medians over fifty runs are compared. They may
differ by a tenth, because the GPU's clocks are not fixed, and by 32 ns, which is the resolution of the GPU's timer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from cutrace._native import demangle

SCRIPT = Path(__file__).parent / "deterministic.py"
RELATIVE, ABSOLUTE = 0.10, 2 * 32.0

#: Durations (ns) by category ("kernel", "gpu_memcpy", "gpu_memset") and name
Durations = dict[tuple[str, str], list[float]]

_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD"}


def from_torch(path: Path) -> Durations:
    found: Durations = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        category = event.get("cat")
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            # "Memcpy HtoD (Pinned -> Device)", "Memset (Device)"
            name = event["name"] if category == "kernel" else event["name"].partition(" (")[0]
            found[category, name].append(event["dur"] * 1000)
    return dict(found)


def from_cutrace(recorded: Any) -> Durations:
    """The durations of the work that was launched inside the range "measured"."""
    trace = recorded.trace
    ranges = trace.nvtx_ranges
    (measured,) = ranges[trace.strings.take(ranges["name"]) == "measured"]
    found: Durations = defaultdict(list)

    def add(category: str, rows: np.ndarray, names: list[str]) -> None:
        calls = recorded.launching_calls(rows)
        inside = (calls["start"] >= measured["start"]) & (calls["end"] <= measured["end"])
        durations = (rows["end"] - rows["start"]).astype(float)
        for name, duration, chosen in zip(names, durations.tolist(), inside.tolist(), strict=True):
            if chosen:
                found[category, name].append(duration)

    kernels = trace.kernels
    mangled = trace.strings.take(trace.launches["name"][kernels["launch"]])
    add("kernel", kernels, [demangle(name) for name in mangled])
    add("gpu_memcpy", trace.memcpys, [f"Memcpy {_COPIES.get(int(k), k)}" for k in trace.memcpys["kind"]])
    add("gpu_memset", trace.memsets, ["Memset"] * len(trace.memsets))
    return dict(found)


@pytest.fixture
def both(record: Callable[..., Any], needs: Callable[..., None], tmp_path: Path) -> tuple[Durations, Durations]:
    needs("torch")
    recorded = record([sys.executable, SCRIPT])
    assert recorded.status == 0, recorded.stderr
    path = tmp_path / "torch.json"
    subprocess.run([sys.executable, SCRIPT, path], check=True, timeout=120, capture_output=True)
    return from_cutrace(recorded), from_torch(path)


def test_counts_and_durations_agree_with_torch_profiler(both: tuple[Durations, Durations]) -> None:
    ours, theirs = both
    assert {key: len(of) for key, of in ours.items()} == {key: len(of) for key, of in theirs.items()}
    kinds = {category for category, _ in ours}
    assert kinds == {"kernel", "gpu_memcpy", "gpu_memset"}
    medians = {key: (median(ours[key]), median(theirs[key])) for key in ours}
    apart = {key: pair for key, pair in medians.items() if abs(pair[0] - pair[1]) > RELATIVE * pair[1] + ABSOLUTE}
    assert not apart, f"medians (ns) of cutrace and torch.profiler: {apart}"
