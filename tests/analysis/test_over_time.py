"""Values over time add up to the values of the whole capture."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import DATA, named
from cutrace.analysis.collection import collect
from cutrace.analysis.gpu import work_span
from cutrace.analysis.statistics.gpus import BUSY, GPUS
from cutrace.analysis.statistics.memory import MEMORY, MEMORY_LEVELS
from cutrace.analysis.statistics.streams import STREAMS


@pytest.fixture(params=[*(path.name for path in sorted(DATA.glob("*.bin"))), "training_steps", "awkward"])
def capture(request, tmp_path) -> Path:
    return named(request.param, tmp_path)


def test_busy_parts_add_up_to_the_busy_time(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, [BUSY, GPUS, STREAMS])
        first, last = work_span(trace)
    want = {(use.process, use.device, None): use.busy for use in stats[GPUS]}
    want |= {(use.process, use.stream.device, use.stream): use.busy for use in stats[STREAMS]}
    assert {(use.process, use.device, use.stream): sum(use.parts) for use in stats[BUSY]} == want
    for use in stats[BUSY]:
        assert 0 <= min(use.parts) <= max(use.parts) <= use.width
        assert use.width * len(use.parts) >= last - first


def test_the_highest_memory_is_the_peak(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, [MEMORY, MEMORY_LEVELS])
    peaks = {(use.process, use.device, use.memory): use.peak for use in stats[MEMORY]}
    assert {(u.process, u.device, u.memory): max(0, *u.highest) for u in stats[MEMORY_LEVELS]} == peaks
    finals = {(use.process, use.device, use.memory): use.net for use in stats[MEMORY]}
    for use in stats[MEMORY_LEVELS]:
        assert use.highest[-1] >= finals[use.process, use.device, use.memory]
