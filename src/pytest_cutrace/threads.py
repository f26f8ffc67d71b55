"""Threads that tests leave running, by the test in whose body they started."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class LeftThreads:
    """The Python threads that runs of tests started and left running."""

    def __init__(self) -> None:
        self._before: set[int] = set()
        self._tests: dict[int, str] = {}

    def begin(self) -> Mapping[int, str]:
        """The threads that earlier runs left running, by native id with the id of the test. Call it before a run."""
        self._before = _running()
        # The system may have given the id of an ended thread to another thread.
        for thread in self._tests.keys() - self._before:
            del self._tests[thread]
        return dict(self._tests)

    def end(self, test: str) -> None:
        """Remember the threads that a run of a test started. Call it after the run."""
        for thread in _running() - self._before:
            self._tests[thread] = test


def _running() -> set[int]:
    """The native ids of the running Python threads."""
    ids = (thread.native_id for thread in threading.enumerate())
    return set(filter(None, ids))
