"""The object of the fixture ``gpu_trace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest


class Tracer:
    """The object of ``gpu_trace`` in a test that is not traced. It does nothing."""

    #: Whether this test is being traced.
    active = False

    def __init__(self, reason: str = "it needs pytest --cutrace") -> None:
        self._reason = reason

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Wait for the GPU and measure the region that ended last. Skips a test that is not traced, because it has no
        metrics to assert."""
        pytest.skip(f"gpu_trace.metrics: {self._reason}")

    def region(
        self, name: str, counters: Sequence[str] = ()
    ) -> AbstractContextManager[None]:
        """A part of the test with its own metrics. Regions may be nested; those of the same name are added. A region
        that a fixture enters spans each run of the test's body.

        ``counters`` are hardware counters as in the marker. Only one range is counted at a time.
        """
        if counters:
            counters_of(counters)
        return nullcontext()

    def value(self, name: str, value: Any) -> None:
        """Add a value to the reports. A value with a dot in its name, such as ``mylib.tokens``, is a counter, which
        golden files store too."""
        checked(name, value)


def counters_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """The counters of a region. Raises :class:`CutraceError` for unknown names."""
    from cutrace.golden import parse_counters

    return parse_counters(names)


def checked(name: str, value: Any) -> bool:
    """Whether a value is a counter. Raises :class:`CutraceError` for a counter that is not a 64-bit integer."""
    if "." not in str(name).strip("."):
        return False
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -(2**63) < value < 2**63
    ):
        return True
    from cutrace.errors import CutraceError

    raise CutraceError(
        f"{name}={value!r}: a name with a dot is a counter: write a whole number of 64 bits"
    )
