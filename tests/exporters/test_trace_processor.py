"""Perfetto's own engine reads converted traces: no errors or losses, and all slices as deep as they are."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import cutrace
import pftrace
from captures import DATA, Capture
from random_captures import random_capture
from support.traceprocessor import query

#: Slices of the host with those around them, the number of events of GPUs, and errors and losses.
_CONTENTS = """
select 'slice' as kind, hex(s.name) as name, s.ts, s.dur, s.depth, hex(parent.name) as parent, parent.ts as parent_ts
from slice s left join slice parent on s.parent_id = parent.id left join gpu_slice g on s.id = g.id where g.id is null
union all select 'work', '', count(*), 0, 0, '', 0 from gpu_slice
union all select 'problem', hex(name), value, 0, 0, '', 0 from stats
where severity in ('error', 'data_loss') and value > 0
"""
_SEEDS = range(200)
_SHARES = 20


def expected(trace: Path) -> tuple[Counter[tuple[Any, ...]], int]:
    """By hand: the slices and instants with name, begin, duration, depth, name and begin of the slice around each; and
    the number of events of GPUs."""
    found = pftrace.decode(trace)
    slices: Counter[tuple[Any, ...]] = Counter()
    for each in (*found.slices, *found.derived):
        duration = -1
        if each.end is not None:
            duration = each.end - each.start
        parent = ("", 0)
        if each.around:
            parent = (each.around[-1].name, each.around[-1].start)
        slices[(each.name, each.start, duration, len(each.around), *parent)] += 1
    return slices, len(found.gpu)


def read(trace: Path) -> tuple[Counter[tuple[Any, ...]], int]:
    """The same from Perfetto's engine, which must count no errors and losses."""
    slices: Counter[tuple[Any, ...]] = Counter()
    work = 0
    for row in query(trace, _CONTENTS):
        name = bytes.fromhex(row["name"]).decode()
        assert row["kind"] != "problem", f"{name}: {row['ts']}"
        if row["kind"] == "work":
            work = int(row["ts"])
            continue
        parent = ("", 0)
        if row["parent_ts"] != "[NULL]":
            parent = (bytes.fromhex(row["parent"]).decode(), int(row["parent_ts"]))
        slices[(name, int(row["ts"]), int(row["dur"]), int(row["depth"]), *parent)] += 1
    return slices, work


def check(capture: Path) -> Path:
    """Convert a capture and compare both. Returns the trace."""
    trace = capture.with_suffix(".pftrace")
    cutrace.convert(capture, trace)
    assert read(trace) == expected(trace)
    return trace


@pytest.mark.parametrize("path", sorted(DATA.glob("*.bin")), ids=lambda path: path.name)
def test_captures(path: Path, tmp_path: Path) -> None:
    check(Path(shutil.copy(path, tmp_path)))


@pytest.mark.parametrize("share", range(_SHARES))
def test_random_captures(share: int, tmp_path: Path) -> None:
    for seed in _SEEDS[share::_SHARES]:
        check(random_capture(tmp_path / f"{seed}.bin", Random(seed)))


def test_more_slices_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for depth in range(1_300):
            c.push_pop(f"range {depth}", depth, 5_000 - depth, depth=depth)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as slices, max(depth) as depth from slice where name glob 'range *'")
    assert (int(row["slices"]), int(row["depth"])) == (1_300, 499)
    (row,) = query(trace, "select count(*) as said from slice where name glob '800 slices*'")
    assert int(row["said"]) == 1


def test_more_slices_that_never_end_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for number in range(1_300):
            c.push_pop(f"range {number}", number, None)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as slices from slice where dur = -1 and name glob 'range *'")
    assert int(row["slices"]) == 1_300


def test_more_moments_at_one_time_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.push_pop("range", 5, 20)
        for number in range(1_300):
            c.mark(f"mark {number}", 10)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as marks from slice where name glob 'mark *'")
    assert int(row["marks"]) == 1_300
