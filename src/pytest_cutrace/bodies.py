"""Running the body of a test once more."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

#: What a second run of a body may end with.
ENDINGS = (Exception, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)


class Body:
    """The body of a test that is about to run for the first time. ``whole_item``: its fixtures belong to its window."""

    def __init__(self, item: pytest.Item, *, whole_item: bool) -> None:
        self._item = item
        self._whole_item = whole_item
        instance = getattr(item, "instance", None)
        self._case = instance if isinstance(instance, unittest.TestCase) else None
        #: What fixtures have put on the instance.
        self._given = dict(vars(instance)) if self._case is not None else {}

    def obstacle(self) -> str:
        """Why the body cannot be run again, "" if it can."""
        if not isinstance(self._item, pytest.Function):
            return f"{type(self._item).__name__} items run once"
        if "subtests" in self._item.fixturenames:
            return "a test with subtests runs once"
        return "with cutrace_window = item a test runs once" if self._whole_item else ""

    def run(self) -> None:
        """Run it again, a method of unittest.TestCase with setUp and tearDown in an instance of its own. Raises what
        the body raises."""
        if self._case is None:
            self._item.runtest()
            return
        case = type(self._case)(self._case._testMethodName)
        vars(case).update({name: value for name, value in self._given.items() if name not in vars(case)})
        # pytest has the result of the first run.
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
