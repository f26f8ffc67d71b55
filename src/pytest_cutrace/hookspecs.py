"""The hooks that conftest files and other plugins may implement. They are called only with ``--cutrace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cutrace.analysis.definitions import Metrics
    from cutrace.analysis.marks import Window
    from cutrace.golden import Comparison, Entry, Rules
    from cutrace.reports.model import Case
    from cutrace.trace import Trace


@pytest.hookspec(firstresult=True)
def pytest_cutrace_environment(
    item: pytest.Item, names: Sequence[str], facts: Mapping[str, str]
) -> str | None:
    """The environment of the golden values of a test; None for the default: ``sm_90``, or ``sm_90-cuda13`` with the ini
    value ``cutrace_variant``.

    ``names`` are the names of the devices, ``facts`` their properties (``compute capability``, ``driver``, ``cuda``,
    ...)::

        def pytest_cutrace_environment(names, facts):
            return "sm_" + facts["compute capability"].replace(".", "") + "-" + mylib.BACKEND
    """


@pytest.hookspec(firstresult=True)
def pytest_cutrace_golden_path(item: pytest.Item, root: Path) -> Path | None:
    """The golden file of a test module, a ``.toml`` under ``root`` (the folder of golden files); None for the default.

    A suite whose golden values depend on the build of the library separates them::

        def pytest_cutrace_golden_path(item, root):
            from cutrace.golden import golden_path

            return golden_path(root / mylib.build_flavour(), item.nodeid)
    """


@pytest.hookspec(firstresult=True)
def pytest_cutrace_normalize_kernel(name: str) -> str | None:
    """The stable name of a kernel for golden files; None for the rule of docs/internals/metrics.md.

    ``name`` is CUPTI's name of the kernel, mangled or not::

        def pytest_cutrace_normalize_kernel(name):
            if name.startswith("mylib_generated_"):
                return "mylib_generated"
    """


@pytest.hookspec(firstresult=True)
def pytest_cutrace_compare(
    item: pytest.Item,
    entry: Entry,
    runs: Sequence[Metrics],
    environment: str,
    rules: Rules,
) -> Comparison | None:
    """Compare runs with ``entry``, the golden values of a test. None selects :func:`cutrace.golden.compare`.

    A suite whose kernels come from autotuning omits them::

        def pytest_cutrace_compare(item, entry, runs, environment, rules):
            if item.get_closest_marker("autotuned"):
                from dataclasses import replace
                from cutrace.golden import compare

                result = compare(entry, runs, environment=environment, rules=rules)
                return replace(result, rows=tuple(row for row in result.rows if row.metric != "kernel_launches"))
    """


def pytest_cutrace_metrics(
    item: pytest.Item, trace: Trace, window: Window
) -> Mapping[str, int] | None:
    """Counters of the project, computed from the trace of a test. All implementations are called.

    Names contain a dot. Golden files store the values::

        def pytest_cutrace_metrics(trace, window):
            kernels = trace.kernels
            inside = (kernels["start"] >= window.start) & (kernels["start"] < window.end)
            blocks = trace.launches[kernels[inside]["launch"]]["grid_x"]
            return {"mylib.blocks": int(blocks.sum())}
    """


def pytest_cutrace_result(item: pytest.Item, case: Case) -> None:
    """The result of a test.

    Called once for each test, after its teardown::

        def pytest_cutrace_result(case):
            database.insert(case.nodeid, case.gpu, case.values)
    """
