"""Run a test again in the way of pytest: set up its function-scoped fixtures again, then run its body.

Fixtures of wider scopes stay, as they do between two tests of a module.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.logging import caplog_handler_key, caplog_records_key

from .neighbours import restart_time_limit

if TYPE_CHECKING:
    from cutrace.reports.added import Project

#: The exceptions with which a further run of a test may end.
ENDINGS = (
    Exception,
    SystemExit,
    pytest.fail.Exception,
    pytest.skip.Exception,
    pytest.xfail.Exception,
)


class Body:
    """The body of a test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item: Any = item

    def obstacle(self) -> str:
        """The reason why the test cannot be run again, "" if it can."""
        if not isinstance(self._item, pytest.Function):
            return f"{type(self._item).__name__} items run once"
        if "subtests" in self._item.fixturenames:
            return "a test with subtests runs once"
        if benchmarked(self._item):
            return "a benchmark decides how often it runs"
        return ""

    def tear_down(self) -> None:
        """Tear down the function-scoped fixtures of the last run, which passed. Raises the exceptions of fixtures."""
        item = self._item
        restart_time_limit(item)
        self._report()
        self._clear_logs("teardown")
        stash = item.stash._storage
        kept = dict(stash)
        # Keep all nodes except the node of the test, because the next item needs the other nodes.
        item.session._setupstate.teardown_exact(item.parent)
        # The teardown of pytest's own fixtures deletes stash entries that pytest's hooks made for the whole test.
        stash.update(kept)

    def _report(self) -> None:
        """Make the report of the last run. Hooks of a suite store it for the teardown of fixtures."""
        item = self._item
        call = pytest.CallInfo.from_call(lambda: None, "call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if not report.failed:
            return
        # A hook has made it a failure. pytest does this to strict tests that are expected to fail.
        if item.get_closest_marker("xfail") is None:
            message = report.longreprtext
            pytest.fail(message, pytrace=False)

    def set_up(self) -> None:
        """Set up the function-scoped fixtures again, for a method in a new instance. Raises the exceptions of
        fixtures."""
        item = self._item
        self._clear_logs("setup")
        self._renew_instance()
        item._initrequest()
        item.session._setupstate.setup(item)

    def run(self) -> None:
        """Run the body again. Raises the exceptions of the body."""
        self._clear_logs("call")
        case = getattr(self._item, "instance", None)
        if not isinstance(case, unittest.TestCase):
            self._item.runtest()
            return
        # Use a separate result, because the item already holds the result of the first run for pytest.
        result = unittest.TestResult()
        case(result)
        for _, trace in (
            *result.errors,
            *result.failures,
            *result.skipped,
            *result.expectedFailures,
        ):
            raise AssertionError(trace.strip().splitlines()[-1])
        if result.unexpectedSuccesses:
            raise AssertionError("an unexpected success")

    def project(self, root: Path) -> Project:
        """The code of the project below ``root``, with the lines of this test."""
        from cutrace.reports.added import Project

        module = Project(Path(root).resolve(), os.path.realpath(self._item.path))
        code = getattr(inspect.unwrap(self._item.obj), "__code__", None)
        # Other plugins make functions, such as the scenarios of pytest-bdd.
        if code is None or not module.owns(os.path.realpath(code.co_filename)):
            return module
        lines = [line for *_, line in code.co_lines() if line]
        return Project(
            module.root,
            os.path.realpath(code.co_filename),
            code.co_firstlineno,
            max(lines),
        )

    def _clear_logs(self, phase: str) -> None:
        """Clear the records of the fixture ``caplog``, as pytest's plugin for logging does before each phase of a
        test."""
        stash = self._item.stash
        handler = stash.get(caplog_handler_key, None)
        if handler is None:
            return
        handler.reset()
        stash[caplog_records_key][phase] = handler.records

    def _renew_instance(self) -> None:
        """Bind the method of a class to a new instance. Items of unittest make an instance themselves. Hypothesis
        refuses to run a method in another instance."""
        item = self._item
        method = item.obj
        if not inspect.ismethod(method) or inspect.isclass(method.__self__):
            return
        if isinstance(method.__self__, unittest.TestCase):
            return
        if getattr(method, "is_hypothesis_test", False):
            return
        instance = item.parent.newinstance()
        item.obj = types.MethodType(method.__func__, instance)
        if "_instance" in vars(item):  # Since pytest 8.2.
            item._instance = instance


def benchmarked(item: pytest.Item) -> bool:
    """Whether a benchmark plugin decides how often the measured code runs."""
    plugins = ("pytest_benchmark", "pytest_codspeed")
    return "benchmark" in getattr(item, "fixturenames", ()) and any(
        name in sys.modules for name in plugins
    )


def unreported(item: pytest.Item) -> BaseException | None:
    """The failure of a method of unittest.TestCase. pytest stores this failure for its report and does not raise it."""
    failures: Any = getattr(item, "_excinfo", None)
    if failures:
        error: BaseException = failures[0].value
        return error
    return None
