"""Values over time add up to those of the whole capture."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import DATA, named
from cutrace.analysis.collectors import collect
from cutrace.analysis.gpu import work_span


@pytest.fixture(params=[*(path.name for path in sorted(DATA.glob("*.bin"))), "training_steps", "awkward"])
def capture(request, tmp_path) -> Path:
    return named(request.param, tmp_path)


def test_busy_parts_add_up_to_the_busy_time(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, ["busy", "gpus", "streams"])
        first, last = work_span(trace)
    want = {(use.process, use.device, None): use.busy for use in stats.gpus}
    want |= {(use.process, use.stream.device, use.stream): use.busy for use in stats.streams}
    assert {(use.process, use.device, use.stream): sum(use.parts) for use in stats.busy} == want
    for use in stats.busy:
        assert 0 <= min(use.parts) <= max(use.parts) <= use.width
        assert use.width * len(use.parts) >= last - first


def test_the_highest_memory_is_the_peak(capture):
    with cutrace.load(capture) as trace:
        stats = collect(trace, ["memory", "memory_levels"])
    peaks = {(use.process, use.device, use.memory): use.peak for use in stats.memory}
    assert {(u.process, u.device, u.memory): max(0, *u.highest) for u in stats.memory_levels} == peaks
    finals = {(use.process, use.device, use.memory): use.net for use in stats.memory}
    for use in stats.memory_levels:
        assert use.highest[-1] >= finals[use.process, use.device, use.memory]
