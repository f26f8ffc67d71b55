"""Comparisons of processor times. Other work on the machine changes these times, so `tox -e growth` runs the tests."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

#: The marker of tests that compare processor times.
growth = pytest.mark.growth


def processor_time(work: Callable[[], object]) -> float:
    """The processor time of ``work`` (s): the lowest of three runs."""
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def costs_as_much(chosen: Callable[[], object], usual: Callable[[], object]) -> None:
    """Check that ``chosen`` takes at most five times as long as ``usual``."""
    usually, most = processor_time(usual), processor_time(chosen)
    assert most <= 5 * usually, f"{most:.4f} s, usually {usually:.4f} s"


def grows_with(size: int, work: Callable[[int], Callable[[], object]]) -> None:
    """Check that the function from ``work`` takes at most nine times as long for four times the size."""
    # With quadratic growth it would take 16 times as long.
    small = processor_time(work(size))
    large = processor_time(work(4 * size))
    assert large < 9 * small + 0.05, f"{small:.3f} s, four times that: {large:.3f} s"
