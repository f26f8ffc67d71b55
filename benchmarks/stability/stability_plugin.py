"""The pytest plugin of golden_stability.py. It selects and shuffles tests, adds GPU work to some of them, and notes
outcomes.

The JSON file GOLDEN_STABILITY_PLAN has its instructions:

``library``   the key of :data:`LIBRARIES` that adds the work
``only``      node ids of the tests that run, or null for all
``shuffle``   the seed of the order in which the tests run, or null for the order of the source
``add``       the kind of work that is added to each test of ``to``, or ""
``to``        node ids
``outcomes``  the file that gets ``{node id: [outcome, seconds, end of the error]}``
"""

from __future__ import annotations

import json
import os
import random
import unittest
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: The name of the kernel that is added.
KERNEL = "golden_stability_kernel"
#: A file name in the root of the suite. Its lines add the work. The file exists only in memory.
PLANTED = "golden_stability_planted.py"
_LINES = 1000
_BYTES = 1 << 20

Additions = dict[str, Callable[[], None]]


def planted_line(nodeid: str) -> int:
    """Return the line of :data:`PLANTED` that adds the work of a test."""
    return 1 + zlib.crc32(nodeid.encode()) % _LINES


def planted(add: Callable[[], None], root: Path, nodeid: str) -> Callable[[], None]:
    """Return a function that adds the work of a test. Its code is in the test's line of :data:`PLANTED`, so the work
    seems to come from the suite."""
    source = "\n" * (planted_line(nodeid) - 1) + "def planted(): add()\n"
    variables = {"add": add}
    exec(compile(source, str(root / PLANTED), "exec"), variables)
    return variables["planted"]


def cupy_additions() -> Additions:
    """Return functions that add work through CuPy, without its memory pool. Compiles and loads the kernel."""
    import cupy

    runtime = cupy.cuda.runtime
    null = cupy.cuda.Stream.null
    function = cupy.RawKernel(f'extern "C" __global__ void {KERNEL}() {{}}', KERNEL).kernel
    place = runtime.malloc(256)

    def kernel() -> None:
        function((1,), (32,), (), stream=null)

    def copy() -> None:
        runtime.memcpyAsync(place + 128, place, 64, runtime.memcpyDeviceToDevice, 0)

    kernel()
    copy()
    runtime.deviceSynchronize()
    return {
        "kernel": kernel,
        "copy": copy,
        "synchronisation": runtime.deviceSynchronize,
        "allocation": lambda: runtime.free(runtime.malloc(_BYTES)),
    }


def fakegpu_additions() -> Additions:
    """Return functions that add work on the fake GPU of tests/support."""
    import fakegpu

    return {
        "kernel": lambda: fakegpu.launch(KERNEL),
        "copy": lambda: fakegpu.copy("DtoD", 64),
        "synchronisation": fakegpu.synchronize,
        "allocation": lambda: fakegpu.free(fakegpu.malloc(_BYTES)),
    }


#: The functions that add work through a library, by kind.
LIBRARIES: dict[str, Callable[[], Additions]] = {"cupy": cupy_additions, "fakegpu": fakegpu_additions}


def pytest_configure(config: pytest.Config) -> None:
    plan = json.loads(Path(os.environ["GOLDEN_STABILITY_PLAN"]).read_text())
    config.pluginmanager.register(Selection(plan), "stability-selection")
    if plan["add"]:
        config.pluginmanager.register(Adder(plan), "stability-adder")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(plan["outcomes"])), "stability-outcomes")


class Selection:
    """Removes tests that are not in the plan, and shuffles the rest test by test."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._only = None if plan["only"] is None else set(plan["only"])
        self._seed = plan["shuffle"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._only is not None:
            out = [item for item in items if item.nodeid not in self._only]
            config.hook.pytest_deselected(items=out)
            items[:] = [item for item in items if item.nodeid in self._only]
        if self._seed is not None:
            random.Random(self._seed).shuffle(items)


class Adder:
    """Adds work at the end of a test's body, each time the body runs.

    It wraps the function itself, not pytest's hooks for the call. So the work is inside the traced window, and part of
    every run of the body.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._library = LIBRARIES[plan["library"]]
        self._kind = plan["add"]
        self._tests = set(plan["to"])
        self._add: Callable[[], None] | None = None
        self._planted: Callable[[], None] | None = None
        self._current = ""
        original = unittest.TestCase._callTestMethod  # type: ignore[attr-defined]

        def call(case: unittest.TestCase, method: Callable[[], Any]) -> Any:
            result = original(case, method)
            self._body_ended()
            return result

        unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._current = item.nodeid
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.nodeid not in self._tests:
            return
        if self._add is None:
            self._add = self._library()[self._kind]
        self._planted = planted(self._add, item.config.rootpath, item.nodeid)
        session: Any = item.config.pluginmanager.get_plugin("cutrace-session")
        if session is not None:
            # Usually only the first failure with a cause names lines. Here every failure counts as the first.
            session.context.first_failures.clear()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Iterator[None]:
        result = yield
        self._body_ended()
        return result

    def _body_ended(self) -> None:
        if self._current in self._tests and self._planted is not None:
            self._planted()


class Outcomes:
    """Writes the outcome of each test, even without cutrace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, list[Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = self._outcomes.setdefault(report.nodeid, ["passed", 0.0, ""])
        found[1] += report.duration
        if report.failed:
            found[0], found[2] = "failed", report.longreprtext[-500:]
            if report.longreprtext.startswith("cutrace:"):
                found[2] = report.longreprtext[:500]
        elif report.skipped and found[0] == "passed":
            found[0] = "skipped"

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._outcomes))
