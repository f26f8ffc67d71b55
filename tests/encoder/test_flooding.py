"""Keys chosen to collide in a hash table take no longer than other keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cutrace._native import Calls, EventScanner, Keys, Levels, Spreads, Submissions
from support.growth import costs_as_much, growth

pytestmark = growth

COUNT = 100_000
MASK = (1 << 64) - 1
RANDOM = np.random.default_rng(3)

#: Numbers of buckets of a std::unordered_map. The map hashes a number to itself, so multiples of these numbers share a
#: bucket.
BUCKETS = (20_753, 42_043, 85_229)


def numbers(count: int = COUNT) -> np.ndarray:
    return RANDOM.integers(0, MASK, count, np.uint64)


def shifted_back(values: np.ndarray) -> np.ndarray:
    """The inverse of ``h ^= h >> 29``."""
    return values ^ values >> np.uint64(29) ^ values >> np.uint64(58)


def multiplied_hash(words: list[np.ndarray], last: np.ndarray) -> list[np.ndarray]:
    """The words and an additional word. With it, ``h = (h ^ word) * FACTOR; h ^= h >> 29`` over all words ends in
    ``last``."""
    factor = np.uint64(0xBF58476D1CE4E5B9)
    state = np.full(len(last), 0x9E3779B97F4A7C15, np.uint64)
    for word in words:
        state = (state ^ word) * factor
        state ^= state >> np.uint64(29)
    return [*words, state ^ shifted_back(last) * np.uint64(pow(int(factor), -1, 1 << 64))]


RISING = np.arange(COUNT, dtype=np.uint64)
CHOSEN = {
    "rising": [RISING],
    **{f"times 2**{bits}": [RISING << np.uint64(bits)] for bits in (8, 16, 24, 32, 40, 48)},
    "times the golden ratio": [RISING * np.uint64(0x9E3779B97F4A7C15)],
    "times its inverse": [RISING * np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64)) << np.uint64(40)],
    "of two ends": [RISING << np.uint64(48) | RISING >> np.uint64(8)],
    "of buckets": [RISING * np.uint64(BUCKETS[0] * BUCKETS[1] * BUCKETS[2])],
    "of one hash": multiplied_hash([], RISING << np.uint64(24)),
    "of one hash, two words": multiplied_hash([numbers()], RISING << np.uint64(24)),
    "of one hash, three words": multiplied_hash([RISING, numbers()], RISING << np.uint64(24)),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_keys(name: str) -> None:
    columns = CHOSEN[name]
    usual = [numbers() for _ in columns]
    costs_as_much(lambda: Keys(len(columns)).ids(columns), lambda: Keys(len(columns)).ids(usual))


def test_spreads() -> None:
    # A key has a group, and the upper 18 bits of a number as a float. For each of these keys, a quarter of the key
    # times the golden ratio is zero above its lower half.
    groups, values_of = [], []
    codes = np.arange(127 << 10, 170 << 10, 4, dtype=np.uint64)
    for group in range(1 << 12):
        quarters = np.uint64(group << 16) | codes >> np.uint64(2)
        found = codes[(quarters * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & np.uint64(0x1FFF) == 0]
        values = ((found[:, None] + np.arange(4, dtype=np.uint64)).astype(np.uint32) << np.uint32(13)).view(np.float32)
        groups.append(np.full(values.size, group, np.uint32))
        values_of.append(values.reshape(-1).astype(np.int64))
    group, chosen = np.concatenate(groups), np.concatenate(values_of)
    usual = (2.0 ** RANDOM.uniform(10, 42, len(group))).astype(np.int64)
    costs_as_much(lambda: Spreads().add(group, chosen), lambda: Spreads().add(group, usual))


@pytest.mark.parametrize("chosen", [1, BUCKETS[2]])
def test_calls(chosen: int) -> None:
    count = COUNT // 2  # there are no more multiples of the number of buckets
    correlations = np.arange(1, count + 1, dtype=np.uint32)
    times, queues = correlations.astype(np.uint64), np.zeros(count, np.uint32)

    def work(threads: np.ndarray) -> Callable[[], object]:
        def run() -> None:
            calls, levels = Calls(16), Levels(0, count, 4, 10)
            calls.add(correlations, times, threads)
            calls.launch([(correlations, times, times, queues)], levels, np.zeros(1, np.uint32), True)
            assert calls.noted == count

        return run

    costs_as_much(work(correlations * np.uint32(chosen)), work(numbers(count).astype(np.uint32)))


@pytest.mark.parametrize("chosen", [1 << 10, 1 << 16, BUCKETS[0]])
def test_submissions_of_many_pieces(chosen: int) -> None:
    most = np.arange(1, 20_700, dtype=np.uint64)

    def work(correlations: np.ndarray) -> Callable[[], object]:
        rows = np.repeat(correlations.astype(np.uint32), 258)
        return lambda: Submissions(0).assign(rows)

    costs_as_much(work(most * np.uint64(chosen)), work(numbers(len(most))))


@pytest.mark.parametrize("process", [0, 1, 0x9E3779B97F4A7C15 - 1 >> 2])
def test_threads(process: int) -> None:
    def work(process: int, threads: np.ndarray) -> Callable[[], object]:
        data = (
            b"[" + b",".join(b'{"ph":"X","pid":%d,"tid":%d}' % (process, thread) for thread in threads.tolist()) + b"]"
        )

        def run() -> None:
            scanner = EventScanner([], [], "")
            scanner.feed(data)
            scanner.finish()
            assert len(scanner.threads()) == COUNT

        return run

    costs_as_much(work(process, np.arange(COUNT)), work(7, np.unique(numbers(COUNT) >> np.uint64(1))))
