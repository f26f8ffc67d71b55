"""Rows come in order of time, each once, for any blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutrace
from captures import Capture
from cutrace.trace import ordered
from cutrace.trace.ordered import NEVER, BlockOrder, Limits, Ordered


@dataclass(frozen=True)
class Source:
    """A block with rows that start at these times. The time in its header may be later than its first row."""

    starts: tuple[int, ...]
    error: int = 0

    @property
    def first_time(self) -> int:
        return min(self.starts, default=0) + self.error

    @property
    def payload_size(self) -> int:
        return len(self.starts)


def read(source: Source) -> tuple[np.ndarray, None] | None:
    return (np.array(source.starts, np.uint64), None) if source.starts else None


def taken(blocks: BlockOrder[Source, None]) -> list[list[int]]:
    """The starts of the rows that each window takes."""
    windows, begin = [], 0
    while begin < NEVER:
        until = blocks.fill()
        assert until >= begin
        rows = [start for b in blocks.live for start in b.starts.tolist() if b.taken <= start < until]
        windows.append(sorted(rows))
        blocks.advance(until)
        begin = until
    return windows


STARTS = st.lists(st.integers(1, 40), max_size=8).map(tuple)
LIMITS = st.builds(
    Limits, st.integers(0, 20), st.integers(1, 4), kept_bytes=st.integers(0, 20), kept_blocks=st.integers(0, 4)
)


@given(st.lists(st.builds(Source, STARTS, st.sampled_from([0, 0, 0, 10])), max_size=12), LIMITS)
def test_each_pass_is_in_the_order_of_time_and_each_row_is_taken_once(sources: list[Source], limits: Limits) -> None:
    found: Counter[int] = Counter()
    blocks: BlockOrder[Source, None] | None = BlockOrder(sources, read, limits, apart=True)
    while blocks:
        windows = taken(blocks)
        rows = [row for window in windows for row in window]
        assert rows == sorted(rows)
        found.update(rows)
        blocks = blocks.left_over()
    assert found == Counter(start for source in sources for start in source.starts)


def test_more_blocks_that_start_at_one_time_than_fit_into_memory() -> None:
    sources = [Source((5, 5, 9)) for _ in range(10)]
    blocks: BlockOrder[Source, None] | None = BlockOrder(
        sources, read, Limits(1, 2, kept_bytes=4, kept_blocks=1), apart=True
    )
    found: Counter[int] = Counter()
    while blocks:
        for window in taken(blocks):
            found.update(window)
            assert len(blocks.live) <= 1
        blocks = blocks.left_over()
    assert found == {5: 20, 9: 10}


@pytest.mark.parametrize("kept", [1, 200, 1 << 20])
def test_rows_of_several_tables_come_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    random = np.random.default_rng(5)
    with Capture(tmp_path / "a.bin") as c:
        launch = c.launch("k")
        for block in range(20):
            for start in (random.integers(0, 400, 10) + 50 * block).tolist():
                c.kernel(launch, start, start + 5)
                c.memset(start, start + 1, 64)
            c.flush()
    monkeypatch.setattr(ordered, "KEPT_BYTES", kept)
    with cutrace.load(tmp_path / "a.bin") as trace:
        tables = {name: trace.block_infos(name) for name in ("kernels", "memsets")}
        windows = list(Ordered(trace, tables, window_bytes=1).windows())
        for name in tables:
            starts = [start for window in windows for start in window[name]["start"].tolist()]
            assert starts == sorted(trace.table(name)["start"].tolist())
        edges = [max((int(max(t["start"], default=0)) for t in window.values()), default=0) for window in windows]
        assert edges == sorted(edges)
    assert len(windows) > 5
