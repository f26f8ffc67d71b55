"""Other plugins of pytest that repeat a test, run it in threads, or limit its time."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: The name of pytest-repeat's parameter for repetitions, and the start of the name of pytest-flakefinder's parameter.
_REPEAT = "__pytest_repeat_step_number"
_FLAKEFINDER = "__flakefinder_"
_TIMEOUT = pytest.StashKey[Any]()


def without_repetition(item: pytest.Item, nodeid: str) -> str:
    """The id of the test that an item repeats: ``test_a`` for ``test_a[2-3]`` of pytest-repeat and for ``test_a[1]`` of
    pytest-flakefinder."""
    callspec: Any = getattr(item, "callspec", None)
    if callspec is None:
        return nodeid
    parameters = callspec.id
    for name, value in callspec.params.items():
        if name == _REPEAT:  # Its id is the last one.
            parameters = re.sub(rf"(^|-){value + 1}-[0-9]+$", "", parameters)
        elif name.startswith(_FLAKEFINDER):  # Its id is the first one.
            parameters = re.sub(rf"^{value}(-|$)", "", parameters)
    if parameters == callspec.id:
        return nodeid
    function = nodeid.removesuffix(f"[{callspec.id}]")
    if not parameters:
        return function
    return f"{function}[{parameters}]"


def runs_in_threads(item: pytest.Item) -> bool:
    """Whether pytest-run-parallel runs the body several times. It replaces the function for this."""
    function = getattr(item, "obj", None)
    names = getattr(function, "__globals__", {})
    return str(names.get("__name__", "")).startswith("pytest_run_parallel")


class TimeLimits:
    """A pytest plugin that remembers the time limits of pytest-timeout, to restart them."""

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        item.stash[_TIMEOUT] = settings


def restart_time_limit(item: pytest.Item) -> None:
    """Restart the time limit of pytest-timeout for a further run of a test."""
    settings = item.stash.get(_TIMEOUT, None)
    if settings is None:
        return
    hooks: Any = item.ihook
    hooks.pytest_timeout_cancel_timer(item=item)
    hooks.pytest_timeout_set_timer(item=item, settings=settings)
