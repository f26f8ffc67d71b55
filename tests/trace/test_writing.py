"""Traces written as captures keep their contents exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures import ORIGIN, Capture, awkward, join, training_steps
from contents import contents
from cutrace.errors import CutraceError
from cutrace.runbin import LOSS_REASONS
from cutrace.runbin.layout import PROCESS_BLOCK
from cutrace.trace import load
from cutrace.trace.selection import Selection
from cutrace.trace.writing import write

DATA = Path(__file__).parents[1] / "data"


def kept(process):
    """The description of a process, without the keys that describe only the file of the collector."""
    return {key: value for key, value in process.info.items() if key not in ("tables", "from_start")}


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("*.bin")))
def test_a_real_capture_written_again_is_equal(tmp_path, name):
    with load(DATA / name) as trace:
        events = write(trace, tmp_path / "out.bin")
        with load(tmp_path / "out.bin") as again:
            assert contents(again) == contents(trace)
            assert again.quality == trace.quality
            assert [kept(p) for p in again.processes] == [kept(p) for p in trace.processes]
            assert 0 < events < sum(trace.count(table) for table in contents(trace))


def test_what_is_unpleasant_is_written_as_it_was(tmp_path):
    awkward(tmp_path / "a.bin")
    with load(tmp_path / "a.bin") as trace:
        write(trace, tmp_path / "out.bin")
        with load(tmp_path / "out.bin") as again:
            assert contents(again) == contents(trace)
            assert len(again.unknown("kernels")) == 3
            assert again.quality.losses == trace.quality.losses


def test_times_of_other_machines_are_written_on_the_clock_of_the_trace(tmp_path):
    parts = []
    for number, lead in enumerate((10**18, 2 * 10**18)):
        with Capture(tmp_path / f"{number}.bin", pid=number + 1, boot_id=f"boot {number}") as c:
            c.kernel(c.launch("k"), 100, 200)
            c.add("clocks", boottime=10**12, realtime=10**12 + lead)
        parts.append(c.path)
    join(tmp_path / "a.bin", parts)
    with load(tmp_path / "a.bin") as trace:
        assert trace.processes[1].alignment.offset == 10**18
        write(trace, tmp_path / "out.bin")
        write(trace, tmp_path / "second.bin", Selection(processes=frozenset({1})))
        with load(tmp_path / "out.bin") as again:
            assert contents(again) == contents(trace)
        with load(tmp_path / "second.bin") as second:
            assert second.kernels["start"].tolist() == [ORIGIN + 100 + 10**18]


def test_texts_and_configurations_that_nothing_refers_to_are_left_out(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        for number in range(1000):
            c.launch(f"unused {number}")
        c.kernel(c.launch("used"), 100, 200)
    with load(tmp_path / "a.bin") as trace:
        write(trace, tmp_path / "out.bin")
    with load(tmp_path / "out.bin") as again:
        assert list(again.strings) == ["", "used"]
        assert len(again.launches) == 2
    assert (tmp_path / "out.bin").stat().st_size < (tmp_path / "a.bin").stat().st_size / 2


def test_what_could_not_be_read_is_not_forgotten(tmp_path):
    training_steps(tmp_path / "a.bin", steps=2)
    data = bytearray((tmp_path / "a.bin").read_bytes())
    with load(tmp_path / "a.bin") as trace:
        (block,) = trace.block_infos("nvtx_ranges")
    data[block.offset + 100] ^= 0xFF
    (tmp_path / "a.bin").write_bytes(data)
    with load(tmp_path / "a.bin") as trace:
        write(trace, tmp_path / "out.bin")
    with load(tmp_path / "out.bin") as again:
        (loss,) = again.quality.losses
        assert (loss.reason, loss.detail, loss.count) == ("unreadable", "damaged block", block.rows)
    assert "unreadable" in {name for name, _ in LOSS_REASONS.values()}


def test_a_capture_that_was_not_closed_in_order_is_still_none(tmp_path):
    training_steps(tmp_path / "a.bin", steps=1)
    with load(tmp_path / "a.bin") as trace:
        last = int(trace._reader.offsets[trace._reader.indices(PROCESS_BLOCK)].max())
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes()[:last])
    with load(tmp_path / "a.bin") as trace:
        assert trace.quality.incomplete == (0,)
        write(trace, tmp_path / "out.bin")
    with load(tmp_path / "out.bin") as again:
        assert again.quality.incomplete == (0,)


@pytest.mark.parametrize("name", ["triton.bin", "processes.bin"])
def test_a_file_that_is_cut_between_two_blocks_is_not_lossless(tmp_path, name):
    with load(DATA / name) as trace:
        ended = [process.info["ended"] for process in trace.processes]
        write(trace, tmp_path / "out.bin")
    data = (tmp_path / "out.bin").read_bytes()
    with load(tmp_path / "out.bin") as whole:
        offsets = whole._reader.offsets.tolist()
        assert [process.info["ended"] for process in whole.processes] == ended
    for offset in offsets[1:]:
        (tmp_path / "cut.bin").write_bytes(data[:offset])
        with load(tmp_path / "cut.bin") as cut:
            assert 0 in cut.told_losses.incomplete, offset


def test_notes_are_added_to_what_a_process_says(tmp_path):
    with Capture(tmp_path / "a.bin", notes=["CUPTI is held by another tool"]) as c:
        c.mark("here", 5)
    with load(tmp_path / "a.bin") as trace:
        write(trace, tmp_path / "out.bin", notes=("cut",))
    with load(tmp_path / "out.bin") as again:
        assert again.quality.notes == ("CUPTI is held by another tool", "cut")


def test_a_place_that_cannot_be_written_is_said_and_nothing_is_left(tmp_path):
    training_steps(tmp_path / "a.bin", steps=1)
    with load(tmp_path / "a.bin") as trace, pytest.raises(CutraceError, match="does not exist"):
        write(trace, tmp_path / "none" / "out.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_the_file_replaces_an_older_one_in_one_step(tmp_path):
    training_steps(tmp_path / "a.bin", steps=1)
    (tmp_path / "out.bin").write_text("older")
    with load(tmp_path / "a.bin") as trace:
        seen = []
        write(trace, tmp_path / "out.bin", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "out.bin"]
