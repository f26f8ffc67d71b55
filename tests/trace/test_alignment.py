"""Clocks of machines are aligned by their snapshots, including drift, and the accuracy is known."""

from __future__ import annotations

import numpy as np
import pytest

from cutrace.runbin import TABLES
from cutrace.trace.alignment import Alignment, aligned, lead

SECOND = 10**9
WALL = 1_763_000_000 * SECOND


def snapshots(boottime: list[int], realtime: list[int], spread: int = 100) -> np.ndarray:
    rows = np.zeros(len(boottime), TABLES["clocks"].dtype)
    rows["boottime"], rows["realtime"], rows["spread"] = boottime, realtime, spread
    return rows


class Machine:
    """A machine that booted ``booted`` ns of true time ago. Its BOOTTIME is wrong by ``drift``."""

    def __init__(self, booted: int, drift: float = 0.0) -> None:
        self.booted, self.drift = booted, drift

    def boottime(self, true: int) -> int:
        return true - self.booted + round((true - WALL) * self.drift)

    def snapshots(self, count: int, every: int = 2 * SECOND, noise: int = 0) -> np.ndarray:
        rng = np.random.default_rng(1)
        true = [WALL + n * every for n in range(count)]
        return snapshots([self.boottime(t) for t in true], [t + int(rng.integers(-noise, noise + 1)) for t in true])


def test_a_lead_is_exact_to_the_nanosecond_though_a_float_is_not():
    found = lead(
        snapshots([12_345_678_901, 14_345_678_901], [WALL + 12_345_678_901 + 7] * 1 + [WALL + 14_345_678_901 + 7])
    )
    assert found is not None
    assert (found.offset, found.drift, found.error, found.stepped) == (WALL + 7, 0.0, 100, False)


def test_without_snapshots_nothing_is_known():
    assert lead(snapshots([], [])) is None


def test_noise_is_no_drift():
    found = lead(Machine(WALL - 1000 * SECOND).snapshots(30, noise=200))
    assert found is not None
    assert found.drift == 0.0
    assert abs(found.offset - (WALL - 1000 * SECOND)) <= 200
    assert found.error <= 400 + 100


@pytest.mark.parametrize("drift", [20e-6, -35e-6])
def test_a_drift_is_found_and_followed(drift):
    own, reference = Machine(WALL - 5000 * SECOND, drift), Machine(WALL - 40 * SECOND)
    a, b = lead(own.snapshots(20, noise=50)), lead(reference.snapshots(20, noise=50))
    assert a is not None
    assert b is not None
    alignment = aligned(a, b)
    true = [WALL + n * SECOND for n in range(40)]
    moved = alignment.moved(np.array([own.boottime(t) for t in true], np.uint64))
    wrong = moved.astype(np.int64) - np.array([reference.boottime(t) for t in true])
    assert np.abs(wrong).max() <= (alignment.error or 0) <= 500
    assert a.drift == pytest.approx(-drift, rel=0.01)


def test_the_reference_may_drift_too():
    own, reference = Machine(WALL - 5000 * SECOND), Machine(WALL - 40 * SECOND, 30e-6)
    a, b = lead(own.snapshots(20)), lead(reference.snapshots(20))
    assert a is not None
    assert b is not None
    alignment = aligned(a, b)
    for t in (WALL, WALL + 20 * SECOND, WALL + 60 * SECOND):
        assert abs(alignment.moment(own.boottime(t)) - reference.boottime(t)) < 10


def test_a_clock_that_was_set_is_no_drift_and_is_said():
    machine = Machine(WALL - 1000 * SECOND).snapshots(10)
    machine["realtime"][7:] += 3600 * SECOND
    found = lead(machine)
    assert found is not None
    assert (found.offset, found.drift, found.stepped) == (WALL - 1000 * SECOND, 0.0, True)
    assert found.error > 3599 * SECOND


def test_a_moment_and_an_array_are_moved_alike_and_in_order():
    alignment = Alignment(offset=-12_345, drift=37e-6, at=5 * SECOND, error=1)
    times = np.sort(np.random.default_rng(2).integers(1, 10**15, 1000).astype(np.uint64))
    moved = alignment.moved(times)
    assert moved.tolist() == [alignment.moment(t) for t in times.tolist()]
    assert (np.diff(moved.astype(np.int64)) >= 0).all()


def test_times_that_are_not_known_stay_so():
    times = np.array([0, 1 << 63, (1 << 64) - 1, 5], np.uint64)
    assert Alignment(offset=100).moved(times).tolist() == [0, 1 << 63, (1 << 64) - 1, 105]
