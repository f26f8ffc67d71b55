"""Each flow has its own id in a Perfetto trace, because viewers join flows with equal ids."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import cutrace
from captures import ORIGIN, Capture, join
from cutrace.exporters.perfetto import flows
from pftrace import Step, decode


def step(c: Capture, time: int, phase: str, **arrow: int | str) -> None:
    """A step of a flow, with a slice around it."""
    arrow = {"name": "arrow", "category": "test", "thread": time} | arrow
    c.add("host_slices", start=ORIGIN + time, end=ORIGIN + time + 1, name="around", thread=arrow["thread"])
    c.add("flows", time=ORIGIN + time, phase=ord(phase), **arrow)


def steps(path: Path) -> list[Step]:
    cutrace.convert(path, path.with_suffix(".pftrace"))
    return decode(path.with_suffix(".pftrace")).steps


def drawn(path: Path) -> list[list[int]]:
    """The times of each flow."""
    found = defaultdict(list)
    for s in steps(path):
        found[s.id, s.name, s.categories].append(s.time - ORIGIN)
    return sorted(sorted(times) for times in found.values())


def test_an_id_that_is_used_again_is_another_arrow(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for time, phase in ((10, "s"), (20, "t"), (30, "f"), (40, "s"), (50, "f"), (60, "f"), (70, "s"), (80, "f")):
            step(c, time, phase, id=7)
    assert drawn(tmp_path / "run.bin") == [[10, 20, 30], [40, 50, 60], [70, 80]]


def test_steps_may_come_in_any_order(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for time, phase in ((50, "f"), (10, "s"), (20, "f")):
            step(c, time, phase, id=7)
        c.flush()
        step(c, 40, "s", id=7)
    assert drawn(tmp_path / "run.bin") == [[10, 20], [40, 50]]


def test_names_categories_and_kinds_of_ids_tell_arrows_apart(tmp_path: Path) -> None:
    others: list[dict[str, int | str]] = [{"id": 7}, {"id": 7, "name": "b"}, {"id": 7, "category": "b"}, {"text": "7"}]
    with Capture(tmp_path / "run.bin") as c:
        for begin in (100, 200):
            for i, arrow in enumerate(others):
                step(c, begin + i, "s", **arrow)
                step(c, begin + 50 + i, "f", **arrow)
    assert drawn(tmp_path / "run.bin") == [[begin + i, begin + 50 + i] for begin in (100, 200) for i in range(4)]


def test_an_end_in_another_process_is_of_the_arrow_that_began_last(tmp_path: Path) -> None:
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for pid, path in enumerate(paths, 100):
        with Capture(path, pid=pid) as c:
            for time in (10, 40, 70):
                step(c, time + 5 * (pid - 100), "sf"[pid - 100], id=7)
    assert drawn(join(tmp_path / "run.bin", paths)) == [[10, 15], [40, 45], [70, 75]]


def test_processes_that_use_the_same_ids_do_not_end_the_arrows_of_others(tmp_path: Path) -> None:
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for pid, path in enumerate(paths, 100):
        with Capture(path, pid=pid) as c:
            step(c, 10 + pid - 100, "s", id=7)
            step(c, 50 + pid - 100, "f", id=7)
    assert drawn(join(tmp_path / "run.bin", paths)) == [[10, 50], [11, 51]]


def test_an_end_without_a_begin_has_the_id_of_the_source(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for time, phase, number in ((10, "f", 7), (20, "s", 7), (30, "s", 7), (40, "f", 8), (50, "f", 7)):
            step(c, time, phase, id=number)
    ids = {s.time - ORIGIN: s.id for s in steps(tmp_path / "run.bin")}
    assert (ids[10], ids[20], ids[40]) == (7, 7, 8)
    assert ids[30] == ids[50] != 7


def test_of_too_many_arrows_none_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "MOST", 2)
    with Capture(tmp_path / "run.bin") as c:
        for time in (10, 20, 30):
            step(c, time, "s", id=7)
    assert drawn(tmp_path / "run.bin") == [[10, 20, 30]]
    monkeypatch.setattr(flows, "MOST", 3)
    assert drawn(tmp_path / "run.bin") == [[10], [20], [30]]
