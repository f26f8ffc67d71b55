"""The object of the fixture ``gpu_trace``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cutrace.golden import Budget


@dataclass(frozen=True)
class RequestedRegion:
    """A region that a test requests. ``place`` is the file and line of the request."""

    name: str
    counters: tuple[str, ...] = ()
    budget: Budget | None = None
    place: str = ""


class Tracer:
    """The object of ``gpu_trace`` in a test that is not traced. It does nothing."""

    #: Whether this test is being traced.
    active = False

    def __init__(self, reason: str = "it needs pytest --cutrace") -> None:
        self._reason = reason
        #: Whether the test has requested a region with limits.
        self.limited = False

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Wait for the GPU and measure the region that ended last. Skips a test that is not traced, because it has no
        metrics to assert."""
        pytest.skip(f"gpu_trace.metrics: {self._reason}")

    def region(
        self, name: str, counters: str | Sequence[str] = (), **limits: Any
    ) -> AbstractContextManager[None]:
        """A part of the test with its own metrics. Regions may be nested. The metrics of regions with the same name are
        added. A region that a fixture enters spans each run of the test's body.

        ``counters`` are hardware counters as in the marker. Only one range is counted at a time. ``limits`` are limits
        as in ``gpu_limit``, for all regions of this name together: ``sync_calls=0, peak_memory="64 MiB"``. Raises
        :class:`CutraceError` for an empty name, unknown names and values that are no limits.
        """
        __tracebackhide__ = True
        requested_region(name, counters, limits)
        self.limited |= bool(limits)
        return nullcontext()

    def value(self, name: str, value: Any) -> None:
        """Add a value to the reports. A value with a dot in its name, such as ``mylib.tokens``, is a counter. Golden
        files store counters, too."""
        checked(name, value)


def requested_region(
    name: str, counters: str | Sequence[str], limits: Mapping[str, Any]
) -> RequestedRegion:
    """The region that a call of ``region()`` requests. A limit on a hardware counter requests the counter.

    Raises :class:`CutraceError` with the place of the call for an empty name, unknown names, and values that are no
    limits.
    """
    __tracebackhide__ = True
    name = str(name)
    if name and not counters and not limits:
        return RequestedRegion(name)
    from cutrace.errors import CutraceError
    from cutrace.golden import is_counter, parse_budget, parse_counters

    caller = sys._getframe(2)
    file = caller.f_code.co_filename
    place = f"{file}:{caller.f_lineno}"
    if not name:
        # The empty name stands for the whole test.
        raise CutraceError(f"{place}: the region has no name: give it one")
    try:
        counted = parse_counters(counters)
        budget = None
        if limits:
            budget = parse_budget(limits)
    except CutraceError as error:
        raise CutraceError(f"{place}: {error}") from None
    if budget is not None:
        needed = filter(is_counter, budget.limits)
        counted = tuple(dict.fromkeys((*counted, *needed)))
    return RequestedRegion(name, counted, budget, place)


def checked(name: str, value: Any) -> bool:
    """Whether a value is a counter. Raises :class:`CutraceError` for a counter that is not a 64-bit integer."""
    if "." not in str(name).strip("."):
        return False
    if is_whole(value) and not isinstance(value, bool):
        return True
    from cutrace.errors import CutraceError

    raise CutraceError(
        f"{name}={value!r}: a name with a dot is a counter: write a whole number of 64 bits"
    )


def is_whole(value: Any) -> bool:
    """Whether golden files can store a value: a whole number of 64 bits, also one of NumPy."""
    return isinstance(value, Integral) and -(2**63) < int(value) < 2**63
