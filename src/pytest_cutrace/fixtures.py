"""What the fixture ``gpu_trace`` gives to a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest


class Tracer:
    """The trace of the test that asked for it; this one, of a test that is not traced, does nothing."""

    #: Whether this test is being traced.
    active = False

    def __init__(self, reason: str = "it needs pytest --cutrace") -> None:
        self._reason = reason

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the region that ended last: waits for the GPU, then measures. Skips the test where it is not
        traced, since an assertion about nothing would mean nothing."""
        pytest.skip(f"gpu_trace.metrics: {self._reason}")

    def region(self, name: str, counters: Sequence[str] = ()) -> AbstractContextManager[None]:
        """A part of the test with metrics of its own. Regions nest; those of one name add up. One that a fixture
        enters before the test spans each run of the test's body.

        ``counters`` are counters of the hardware, as the marker takes them. Only one range is counted at a time.
        """
        if counters:
            counters_of(counters)
        return nullcontext()

    def value(self, name: str, value: Any) -> None:
        """Put a value of the test's own into the reports. One with a dot in its name, such as ``mylib.tokens``, is a
        counter, which golden files hold too."""
        checked(name, value)


def counters_of(words: str | Sequence[str]) -> tuple[str, ...]:
    """The counters that a region asks for. Raises an error for names that the hardware has none of, traced or not."""
    from cutrace.golden import parse_counters

    return parse_counters(words)


def checked(name: str, value: Any) -> bool:
    """Whether a value is a counter. Raises an error for one that is no whole number of 64 bits, traced or not."""
    if "." not in str(name).strip("."):
        return False
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) < value < 2**63:
        return True
    from cutrace.errors import CutraceError

    raise CutraceError(f"{name}={value!r}: a name with a dot is a counter: give a whole number of 64 bits")
