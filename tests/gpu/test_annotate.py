"""Ranges around the modules of PyTorch programs that do not use NVTX."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Record = Callable[..., Any]
Needs = Callable[..., None]
PROGRAM = Path(__file__).parent / "programs" / "annotated.py"
ANNOTATE = ("--annotate", "torch.nn.Module.__call__", "--annotate", "__main__:step")
INNER = ("norm", "attention", "attention/qkv", "attention/out", "mlp", "mlp/0", "mlp/1", "mlp/2")
LAYERS = [f"Transformer/layers.{i}" for i in range(2)]
MODULES = ["Transformer", *(path for layer in LAYERS for path in (layer, *(f"{layer}/{inner}" for inner in INNER)))]


def paths(trace: Any) -> list[str]:
    """The path of each range, in the order of their starts on the main thread."""
    rows = trace.nvtx_ranges[np.argsort(trace.nvtx_ranges["start"], kind="stable")]
    out: list[str] = []
    for row in rows[rows["thread"] == rows["thread"][0]]:
        around = out and "/".join(out[-1].split("/")[: int(row["depth"])])
        out.append("/".join(filter(None, (around, trace.strings[int(row["name"])]))))
    return out


@pytest.mark.parametrize("mode", ["eager", "graph", "compile"])
def test_modules_have_ranges_and_the_program_does_not_notice(mode: str, record: Record, needs: Needs) -> None:
    needs("torch")
    limit = 400 if mode == "compile" else 120
    plain = record([sys.executable, PROGRAM, mode], name="plain.bin", limit=limit)
    recorded = record([sys.executable, PROGRAM, mode], *ANNOTATE, limit=limit)
    recorded.assert_lossless()
    trace = recorded.trace
    assert ("no call of" in recorded.stderr) == (mode == "graph"), "step() is not called there"
    assert recorded.report["compiled"] == plain.report["compiled"], "what torch.compile did"
    # Triton may select other kernels in the second run.
    same = recorded.report["sums"] == pytest.approx(plain.report["sums"], rel=1e-4, abs=1e-2)
    assert same if mode == "compile" else recorded.report == plain.report
    if mode != "compile":  # Triton measures kernels in the first run
        assert recorded.kernel_counts() == plain.kernel_counts()

    found = Counter(paths(trace))
    if mode == "eager":
        assert found == {"step": 5, **{f"step/{path}": 5 for path in MODULES}}
        calls = recorded.launching_calls(trace.kernels)
        layers = trace.nvtx_ranges[trace.strings.take(trace.nvtx_ranges["name"]) == "layers.0"]
        inside = [np.count_nonzero((calls["start"] > r["start"]) & (calls["end"] < r["end"])) for r in layers]
        assert len(set(inside)) == 1
        assert inside[0] >= 8
    elif mode == "graph":
        assert found == dict.fromkeys(MODULES, 2), "one call to warm up, one that is captured"
    else:
        assert {path: found[path] for path in ("step", "step/Transformer", *(f"step/{layer}" for layer in LAYERS))} == {
            "step": 5, "step/Transformer": 5, **{f"step/{layer}": 5 for layer in LAYERS},
        }  # fmt: skip


@pytest.mark.parametrize("mode", ["graph", "compile"])
def test_nodes_of_graphs_know_their_module(mode: str, record: Record, needs: Needs) -> None:
    needs("torch")
    recorded = record([sys.executable, PROGRAM, mode], *ANNOTATE, limit=400)
    trace = recorded.trace
    nodes = trace.launches["graph_node"][trace.kernels["launch"]]
    assert np.any(nodes)
    origins = {
        int(row["graph_node"]): json.loads(trace.strings[int(row["ranges"])] or "[]") for row in trace.graph_nodes
    }
    around = ["Transformer"] if mode == "graph" else ["step", "Transformer"]
    for node in np.unique(nodes[nodes != 0]).tolist():
        assert origins[node][: len(around)] == around
        assert origins[node][len(around)].startswith("layers.")
