"""Run the body of a test again."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

#: The exceptions with which a further run of a body may end.
ENDINGS = (
    Exception,
    pytest.fail.Exception,
    pytest.skip.Exception,
    pytest.xfail.Exception,
)


class Body:
    """The body of a test, made before its first run. ``whole_item``: the window of the test includes its fixtures."""

    def __init__(self, item: pytest.Item, *, whole_item: bool) -> None:
        self._item = item
        self._whole_item = whole_item
        instance = getattr(item, "instance", None)
        self._case: unittest.TestCase | None = None
        #: The attributes that fixtures have set on the instance.
        self._attributes: dict[str, Any] = {}
        if isinstance(instance, unittest.TestCase):
            self._case = instance
            self._attributes = dict(vars(instance))

    def obstacle(self) -> str:
        """The reason why the body cannot be run again, "" if it can."""
        if not isinstance(self._item, pytest.Function):
            return f"{type(self._item).__name__} items run once"
        if "subtests" in self._item.fixturenames:
            return "a test with subtests runs once"
        if self._whole_item:
            return "with cutrace_window = item a test runs once"
        return ""

    def run(self) -> None:
        """Run the body again; a method of unittest.TestCase runs in a new instance with setUp and tearDown. Raises the
        exception of the body."""
        if self._case is None:
            self._item.runtest()
            return
        case = type(self._case)(self._case._testMethodName)
        for name, value in self._attributes.items():
            vars(case).setdefault(name, value)
        # A separate result, because pytest uses that of the first run.
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


def unreported(item: pytest.Item) -> BaseException | None:
    """The failure of a method of unittest.TestCase, which pytest stores for its report and does not raise."""
    failures: Any = getattr(item, "_excinfo", None)
    if failures:
        error: BaseException = failures[0].value
        return error
    return None
