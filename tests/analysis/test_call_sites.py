"""The metrics count exactly the work with call sites."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.analysis.call_sites import WITH_SITES, counted_work
from cutrace.analysis.definitions import COPY_KINDS
from cutrace.analysis.marks import begin, end
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import whole, windows

DATA = Path(__file__).parents[1] / "data"
BREAKDOWNS = {"kernel_launches": "kernels", "sync_calls": "syncs"}


@pytest.mark.parametrize("name", ["cuda_graph.bin", "cuda_graph_whole.bin", "cpp_streams.bin", "torch_step.bin"])
def test_real_captures_agree_with_their_metrics(name: str) -> None:
    with cutrace.load(DATA / name) as trace:
        window = whole(trace)
        metrics = measure(trace, window)
        for region, values in {"": metrics.values, **metrics.regions}.items():
            for metric in WITH_SITES:
                work = counted_work(trace, window, metric, region=region)
                if metric == "graph_launches" and name == "cuda_graph_whole.bin":
                    continue
                if metric in ("memcpy_bytes", "memset_bytes"):
                    assert work.size.sum() == values[metric]
                elif metric in values and "memory" not in metric:
                    assert len(work) == values[metric], metric
                for part, count in values.get(BREAKDOWNS.get(metric, ""), {}).items():
                    assert len(work.named(part)) == count
            copies = counted_work(trace, window, "memcpy_count", region=region)
            for kind in COPY_KINDS:
                assert len(copies.named(kind)) == values.get(f"memcpy_{kind}_count", 0)


def test_work_has_the_stack_of_its_call(tmp_path: Path) -> None:
    """A driver call inside a runtime call has the same correlation id."""
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        c.device()
        c.mark(begin("test", "t"), 100, source=1)
        for number in (1, 2):
            at = 200 * number
            c.api("cudaLaunchKernel", at, at + 50, correlation=number)
            c.api("cuLaunchKernel", at + 10, at + 40, correlation=number)
            c.kernel(c.launch(f"k{number}"), at + 60, at + 70, correlation=number)
        c.mark(end("test", "t"), 1_000, source=1)
        c.add("call_stacks", correlation=1, stack=c.stack(("a.py", 1, "f")))
    with cutrace.load(path) as trace:
        (window,) = windows(trace)
        work = counted_work(trace, window, "kernel_launches", normalize=str.upper)
        assert work.name.tolist() == ["K1", "K2"]
        assert [trace.python_stacks.text(stack) for stack in work.stack.tolist()] == ["a.py:1 in f", ""]
