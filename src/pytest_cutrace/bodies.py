"""Running the body of a test once more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import unittest

#: What a second run of a body may end with.
ENDINGS = (Exception, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)


class Body:
    """The body of a test that is about to run for the first time. ``whole_item``: its fixtures belong to its window."""

    def __init__(self, item: pytest.Item, *, whole_item: bool) -> None:
        self._item = item
        self._whole_item = whole_item
        self._case = _case(item)
        #: What fixtures have put on the instance.
        self._given = dict(vars(self._case)) if self._case is not None else {}

    def obstacle(self) -> str:
        """Why the body cannot be run again, "" if it can."""
        if not isinstance(self._item, pytest.Function):
            return f"{type(self._item).__name__} items run once"
        if "subtests" in self._item.fixturenames:
            return "a test with subtests runs once"
        if self._whole_item:
            return "with cutrace_window = item a test runs once"
        return ""

    def run(self) -> None:
        """Run it again. Raises what the body raises."""
        if self._case is None:
            self._item.runtest()
        else:
            self._run_case(self._case)

    def _run_case(self, first: unittest.TestCase) -> None:
        """Run a method of unittest.TestCase with its setUp and tearDown, in an instance of its own. Its result is not
        pytest's, which has the one of the first run."""
        import unittest

        case = type(first)(first._testMethodName)
        for name, value in self._given.items():
            if name not in vars(case):
                setattr(case, name, value)
        result = unittest.TestResult()
        case(result)
        for _, trace in (*result.errors, *result.failures, *result.skipped, *result.expectedFailures):
            raise AssertionError(trace.strip().splitlines()[-1])
        if result.unexpectedSuccesses:
            raise AssertionError("an unexpected success")


def unreported(item: pytest.Item) -> BaseException | None:
    """The failure of a method of unittest.TestCase, which pytest keeps for its report and does not raise."""
    found: Any = getattr(item, "_excinfo", None)
    return found[0].value if found else None


def _case(item: pytest.Item) -> unittest.TestCase | None:
    unittest = sys.modules.get("unittest")
    instance = getattr(item, "instance", None)
    return instance if unittest is not None and isinstance(instance, unittest.TestCase) else None
