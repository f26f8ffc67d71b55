"""Merged captures: times on the true clock, complete contents, and the reported accuracy."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import cutrace
from captures import ORIGIN, Capture, join, training_steps
from contents import EVENTS, contents, rows
from cutrace import loading
from cutrace.cli.options import as_options
from cutrace.conversion import convert
from cutrace.errors import CutraceError
from cutrace.extras.fleet.merging import merge
from cutrace.runbin import Reader
from cutrace.runbin.redaction import redact
from cutrace.slicing import Conditions, cut
from cutrace.trace import Trace, load
from cutrace.trace.alignment import KEPT, MOVED
from pftrace import decode
from support import cutrace as run_cutrace

SECOND = 10**9
WALL = 1_763_000_000 * SECOND
#: The true times at which the kernels of rank 0 run. Each further rank is one microsecond later.
STEPS = [WALL + n * SECOND for n in range(10)]


def rank(
    path: Path, number: int, *, up: int, pid: int = 100, drift: float = 0.0, wall_error: int = 0,
    snapshots: bool = True, **info: Any,
) -> Path:  # fmt: skip
    """A rank on a separate machine that has been ``up`` for this time (ns) when the first kernel runs."""

    def own(true: int) -> int:
        return true - WALL + up + round((true - WALL) * drift) - ORIGIN

    info = {"boot_id": f"boot {number}", "host": f"node{number}"} | info
    with Capture(path, pid=pid, started=own(WALL) + ORIGIN - 5, **info) as c:
        c.device()
        kernel = c.launch(f"_Z4step{number}v")
        for n, true in enumerate(STEPS):
            at = own(true + number * 1000)
            c.push_pop(f"step {n}", at - 6000, at, thread=pid)
            c.api("cudaLaunchKernel", at - 5000, at - 4000, correlation=n + 1, thread=pid)
            c.kernel(kernel, at, at + 200_000, correlation=n + 1)
        for true in STEPS if snapshots else ():
            boottime = own(true) + ORIGIN
            c.add("clocks", boottime=boottime, monotonic=boottime - 5, realtime=true + wall_error, spread=100)
    return path


def starts(trace: Trace, process: int) -> list[int]:
    return sorted(r["start"] for r in rows(trace, "kernels") if r["process"] == process)


def test_machines_are_aligned_by_their_wall_clocks(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=up * SECOND) for n, up in enumerate((1000, 5, 10**6))]
    found = merge(paths, tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        assert [p.alignment.offset for p in trace.processes] == [0, 0, 0]
        for number in range(3):
            assert starts(trace, number) == [s - WALL + 1000 * SECOND + number * 1000 for s in STEPS]
        assert trace.quality.lossless
        assert not trace.quality.incomplete
    assert [r.alignment.offset for r in found] == [0, 995 * SECOND, (1000 - 10**6) * SECOND]
    assert [r.alignment.error for r in found] == [0, 200, 200]


def test_a_drift_is_followed_and_said(tmp_path):
    paths = [rank(tmp_path / "0.bin", 0, up=1000 * SECOND), rank(tmp_path / "1.bin", 1, up=50 * SECOND, drift=40e-6)]
    found = merge(paths, tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        apart = [b - a - 1000 for a, b in zip(starts(trace, 0), starts(trace, 1), strict=True)]
    error = found[1].alignment.error
    assert error is not None
    assert max(map(abs, apart)) <= error < 1000 < 40e-6 * 9 * SECOND
    assert "drifting by -39.998 us a second" in found[1].sentence()


def test_work_stays_inside_the_order_that_it_had(tmp_path):
    paths = [rank(tmp_path / "0.bin", 0, up=1000 * SECOND), rank(tmp_path / "1.bin", 1, up=50 * SECOND, drift=40e-6)]
    merge(paths, tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        ranges = sorted((r for r in rows(trace, "nvtx_ranges") if r["process"] == 1), key=lambda r: r["start"])
        calls = sorted((r for r in rows(trace, "api_calls") if r["process"] == 1), key=lambda r: r["start"])
        for outer, inner in zip(ranges, calls, strict=True):
            assert outer["start"] <= inner["start"] <= inner["end"] <= outer["end"]


def test_nothing_but_times_is_changed_and_nothing_is_lost(tmp_path):
    paths = [training_steps(tmp_path / "0.bin", pid=100), rank(tmp_path / "1.bin", 1, up=5 * SECOND)]
    merge(paths, tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as merged:
        for number, path in enumerate(paths):
            with load(path) as original:
                offset = None
                for table in EVENTS:
                    before = [row | {"process": number} for row in rows(original, table)]
                    after = [row for row in rows(merged, table) if row["process"] == number]
                    assert len(before) == len(after)
                    for a, b in zip(before, after, strict=True):
                        times = {key for key in ("start", "end", "time") if key in a}
                        assert {k: v for k, v in a.items() if k not in times} == {
                            k: v for k, v in b.items() if k not in times
                        }
                        for key in times:
                            offset = b[key] - a[key] if offset is None else offset
                            assert b[key] - a[key] == offset


def test_processes_of_one_boot_share_a_clock_as_it_is(tmp_path):
    one = rank(tmp_path / "0.bin", 0, up=1000 * SECOND)
    # Its wall clock was read a second late. This has no effect on a machine of the same boot.
    other = rank(tmp_path / "1.bin", 1, up=1000 * SECOND, boot_id="boot 0", wall_error=SECOND, pid=200)
    found = merge([one, other], tmp_path / "all.bin")
    assert found[1].alignment.offset == 0
    with load(tmp_path / "all.bin") as trace:
        assert starts(trace, 1) == [s + 1000 for s in starts(trace, 0)]


def test_a_machine_that_booted_later_than_another_recorded_is_no_danger(tmp_path):
    """On the clock of the first machine, the events of the other machine would be before its boot."""
    early = rank(tmp_path / "1.bin", 1, up=1000 * SECOND)
    with Capture(tmp_path / "0.bin", pid=7, boot_id="boot 0") as c:
        c.kernel(c.launch("late"), 5 * SECOND - ORIGIN, 6 * SECOND - ORIGIN)
        c.add("clocks", boottime=5 * SECOND, realtime=WALL + 3600 * SECOND, spread=100)
    merge([tmp_path / "0.bin", early], tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        assert trace.quality.lossless
        assert starts(trace, 0)[0] - starts(trace, 1)[0] == 3600 * SECOND - 1000


def test_a_file_that_does_not_say_when_it_was_is_put_at_the_begin_and_that_is_said(tmp_path):
    paths = [rank(tmp_path / "0.bin", 0, up=1000 * SECOND), rank(tmp_path / "1.bin", 1, up=5 * SECOND, snapshots=False)]
    found = merge(paths, tmp_path / "all.bin")
    assert found[1].alignment.error is None
    assert found[1].sentence().endswith("no clock snapshots to align it; it was moved to the start of the first")
    with load(tmp_path / "all.bin") as trace:
        ranges = rows(trace, "nvtx_ranges")
        assert min(r["start"] for r in ranges if r["process"] == 0) == min(
            r["start"] for r in ranges if r["process"] == 1
        )
        assert trace.quality.notes == (found[1].sentence(),)


def test_clocks_that_cannot_be_are_not_followed(tmp_path):
    odd = rank(tmp_path / "1.bin", 1, up=5 * SECOND, snapshots=False)
    with Capture(tmp_path / "2.bin", pid=9, boot_id="boot 1") as c:
        c.add("clocks", boottime=5, realtime=(1 << 63) - 1)
        c.add("clocks", boottime=(1 << 63) + 5, realtime=3)
    found = merge([rank(tmp_path / "0.bin", 0, up=1000 * SECOND), odd, tmp_path / "2.bin"], tmp_path / "all.bin")
    assert found[1].alignment.error is None
    with load(tmp_path / "all.bin") as trace:
        assert trace.count("kernels") == 20


def test_a_merged_capture_can_be_merged_cut_and_redacted_again(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=(n + 1) * 100 * SECOND) for n in range(3)]
    merge(paths[:2], tmp_path / "two.bin")
    merge([tmp_path / "two.bin", paths[2]], tmp_path / "nested.bin")
    merge(paths, tmp_path / "all.bin")
    redact(tmp_path / "all.bin", tmp_path / "redacted.bin")
    with load(tmp_path / "all.bin") as a, load(tmp_path / "nested.bin") as b, load(tmp_path / "redacted.bin") as c:
        assert [starts(a, n) for n in range(3)] == [starts(b, n) for n in range(3)] == [starts(c, n) for n in range(3)]


def test_blocks_that_are_damaged_stay_damaged(tmp_path):
    first, second = (rank(tmp_path / f"{n}.bin", n, up=100 * SECOND) for n in range(2))
    with load(second) as trace:
        (block,) = trace.block_infos("api_calls")
    data = bytearray(second.read_bytes())
    data[block.offset + 70] ^= 1
    second.write_bytes(data)
    merge([first, second], tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        assert [(d.reason, d.rows) for d in trace.quality.damage] == [("damaged block", 10)]
        assert trace.count("kernels") == 20


@pytest.mark.parametrize("clock", ["align", "keep"])
def test_a_rank_that_was_copied_in_part_stays_damaged(tmp_path, clock):
    paths = [rank(tmp_path / f"{n}.bin", n, up=100 * SECOND) for n in range(2)]
    with load(paths[0]) as trace:
        (block,) = trace.block_infos("kernels")
    paths[0].write_bytes(paths[0].read_bytes()[: block.offset + 200])
    merge(paths, tmp_path / "all.bin", clock=clock)
    with cutrace.load(paths, clock=clock) as joined, load(tmp_path / "all.bin") as trace:
        for one in (joined, trace):
            (damage,) = one.quality.damage
            assert (damage.reason, damage.rows) == ("a block that was written or copied in part", 10)
            assert one.count("kernels") == 10


def test_a_merged_capture_that_is_cut_between_two_ranks_lacks_files(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=100 * SECOND) for n in range(3)]
    first = tmp_path / "first.bin"
    merge(paths[:2], first)
    merge([first, paths[2]], tmp_path / "all.bin")
    with Reader(first) as two, Reader(tmp_path / "all.bin") as three:
        assert two.damage == three.damage == ()
        second = next(block for block in two.blocks if block.process == 1)
        last = next(block for block in three.blocks if block.process == 2)
    (tmp_path / "cut.bin").write_bytes((tmp_path / "all.bin").read_bytes()[: last.offset])
    first.write_bytes(first.read_bytes()[: second.offset])
    merge([first, paths[2]], tmp_path / "again.bin")
    reasons = {}
    for name in ("cut", "again"):
        with load(tmp_path / f"{name}.bin") as trace:
            (reasons[name],) = (damage.reason for damage in trace.damage)
    reason = "the capture was joined from 3 files and lacks 1: it was copied in part"
    assert reasons == dict.fromkeys(("cut", "again"), reason)


# Names


def test_each_process_of_a_file_with_several_ranks_has_its_own_rank(tmp_path):
    both = tmp_path / "both.bin"
    parts = [rank(tmp_path / f"{n}.bin", n, up=SECOND, rank=n + 4) for n in range(2)]
    join(both, parts)
    other = rank(tmp_path / "2.bin", 2, up=SECOND, rank=6)
    found = merge([both, other], tmp_path / "all.bin")
    assert [r.name for r in found] == ["ranks 4 and 5", "rank 6"]
    with load(tmp_path / "all.bin") as trace:
        assert [p.name for p in trace.processes] == ["rank 4 program", "rank 5 program", "rank 6"]


def test_ranks_have_the_names_given_or_told_or_that_of_their_file(tmp_path):
    def names(target: str, paths: list[Path], **how: Any) -> list[str]:
        found = merge(paths, tmp_path / target, **how)
        with load(tmp_path / target) as trace:
            assert [p.name for p in trace.processes] == [r.name for r in found]
        return [r.name for r in found]

    told = [
        rank(tmp_path / "a.bin", 0, up=SECOND, rank=3),
        rank(tmp_path / "b.bin", 1, up=SECOND, environment={"OMPI_COMM_WORLD_RANK": "12"}),
        rank(tmp_path / "c.x.bin", 2, up=SECOND, environment={"RANK": "first"}),
    ]
    assert names("1.bin", told) == ["rank 3", "rank 12", "c"]
    assert names("2.bin", told, number=True) == ["rank 0", "rank 1", "rank 2"]
    assert names("3.bin", told, names=["x", "y", "z"]) == ["x", "y", "z"]


def test_a_file_of_several_processes_names_them_by_both(tmp_path):
    parts = [
        rank(tmp_path / f"p{pid}.bin", 0, up=SECOND, pid=pid, command=[name]) for pid, name in ((1, "run"), (2, "load"))
    ]
    both = join(tmp_path / "both.bin", parts)
    merge([both, rank(tmp_path / "1.bin", 1, up=SECOND)], tmp_path / "all.bin", number=True)
    with load(tmp_path / "all.bin") as trace:
        assert [p.name for p in trace.processes] == ["rank 0 run", "rank 0 load", "rank 1"]


def test_a_merged_process_has_its_rank_once_in_a_timeline(tmp_path):
    parts = []
    for number in (0, 1):
        environment = {"RANK": str(number)}
        parts.append(rank(tmp_path / f"{number}.bin", number, up=SECOND, environment=environment))
    merge(parts, tmp_path / "all.pftrace")
    tracks = decode(tmp_path / "all.pftrace").tracks.values()
    names = [track.process.process_name for track in tracks if track.HasField("process")]
    assert names == ["rank 0", "rank 1"]


# Outputs


def test_the_description_says_where_a_rank_came_from(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=(n + 1) * 100 * SECOND) for n in range(2)]
    merge(paths, tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as trace:
        info = trace.processes[1].info
        assert info["merged"] == {
            "source": "1.bin", "rank": "1", "offset": -100 * SECOND, "drift": 0.0, "at": 200 * SECOND, "error": 200,
            "stepped": False,
        }  # fmt: skip
        assert (info["boot_id"], info["clock_of"]) == ("boot 1", "boot 0")
        assert info["started"] == 100 * SECOND - 5


def test_one_trace_for_perfetto(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=(n + 1) * 100 * SECOND) for n in range(2)]
    merge(paths, tmp_path / "all.pftrace", names=["left", "right"])
    found = sorted(event.start for event in decode(tmp_path / "all.pftrace").gpu)
    assert found == sorted(s - WALL + 100 * SECOND + n * 1000 for n in range(2) for s in STEPS)
    boottime, realtime = 6, 1
    for clocks in decode(tmp_path / "all.pftrace").clocks:
        assert clocks[realtime] - clocks[boottime] == WALL - 100 * SECOND


def test_an_archive_for_perfetto(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=(n + 1) * 100 * SECOND) for n in range(3)]
    merge(paths, tmp_path / "all.tar", names=["rank/0", "rank 0", "ä"])
    with tarfile.open(tmp_path / "all.tar") as archive:
        assert archive.getnames() == ["perfetto_manifest.json", "rank_0.pftrace", "rank_0-2.pftrace", "trace.pftrace"]
        (tmp_path / "out").mkdir()
        for member in archive:
            contents = archive.extractfile(member)
            assert contents is not None
            (tmp_path / "out" / member.name).write_bytes(contents.read())
    text = (tmp_path / "out" / "perfetto_manifest.json").read_text()
    assert "".join(text.split()).startswith('{"perfetto_manifest"'), "Perfetto knows it by its begin"
    manifest = json.loads(text)["perfetto_manifest"]
    assert manifest["version"] == 1
    assert manifest["trace_time"] == {"clock": "BOOTTIME", "file": "rank_0.pftrace"}
    names = [file["machine"]["name"] for file in manifest["files"]]
    assert names == ["rank/0 (node0)", "rank 0 (node1)", "ä (node2)"]
    sync = {"clock": "BOOTTIME", "sync_to": {"file": "rank_0.pftrace", "clock": "BOOTTIME"}, "offset_ns": 0}
    assert [file.get("clocks") for file in manifest["files"]] == [None, sync, sync]
    for number, file in enumerate(manifest["files"]):
        trace = decode(tmp_path / "out" / file["path"])
        assert [e.start for e in trace.gpu] == [s - WALL + 100 * SECOND + number * 1000 for s in STEPS]
        # Perfetto's own alignment by wall clocks gives the same result.
        assert {clocks[1] - clocks[6] for clocks in trace.clocks} == {WALL - 100 * SECOND}


@pytest.mark.parametrize("name", ["all.bin", "all.tar", "all.pftrace"])
def test_what_goes_wrong_leaves_nothing(tmp_path, name):
    good = rank(tmp_path / "0.bin", 0, up=SECOND)
    (tmp_path / "1.bin").write_text("no capture")
    for sources, sentence in (
        ([good, tmp_path / "1.bin"], "1.bin"),
        ([good, tmp_path / "2.bin"], "2.bin"),
        ([], "nothing to merge"),
    ):
        with pytest.raises(CutraceError, match=sentence):
            merge(sources, tmp_path / name)
    with pytest.raises(CutraceError, match="1 name for 2 files"):
        merge([good, good], tmp_path / name, names=["a"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.bin", "1.bin"]


def test_one_recording_is_merged_once(tmp_path):
    good = rank(tmp_path / "0.bin", 0, up=SECOND)
    copy = join(tmp_path / "copy.bin", [good])
    with pytest.raises(CutraceError, match=r"0\.bin and .*copy\.bin hold the same recording"):
        merge([good, copy], tmp_path / "all.bin")


def test_a_source_is_not_overwritten(tmp_path):
    good, other = rank(tmp_path / "0.bin", 0, up=SECOND), rank(tmp_path / "1.bin", 1, up=SECOND)
    before = good.read_bytes()
    with pytest.raises(CutraceError, match="is an input"):
        merge([good, other], good)
    assert good.read_bytes() == before


@pytest.mark.parametrize("name", sorted(path.name for path in (Path(__file__).parents[2] / "data").glob("*.bin")))
def test_a_real_capture_merged_alone_is_itself(tmp_path, name):
    path = Path(__file__).parents[2] / "data" / name
    merge([path], tmp_path / "all.bin")
    with load(tmp_path / "all.bin") as merged, load(path) as original:
        assert contents(merged) == contents(original)
        assert merged.quality == original.quality


def test_an_archive_holds_traces_of_any_size(tmp_path, monkeypatch):
    def huge(trace: Trace, path: Path, request: Any) -> None:
        path.touch()
        os.truncate(path, 9 << 30)

    monkeypatch.setattr("cutrace.extras.fleet.merging.convert", huge)
    monkeypatch.setattr("tarfile.copyfileobj", lambda *_, **__: None)
    merge([rank(tmp_path / "0.bin", 0, up=SECOND)], tmp_path / "all.tar")
    assert b"9663676416" in (tmp_path / "all.tar").read_bytes()


def test_conversion_of_several_aligns_them_as_a_merge_does(tmp_path):
    paths = [rank(tmp_path / "0.bin", 0, up=1000 * SECOND), rank(tmp_path / "1.bin", 1, up=50 * SECOND, drift=40e-6)]
    merge(paths, tmp_path / "merged.bin")
    convert(paths, tmp_path / "converted.bin")
    with load(tmp_path / "merged.bin") as merged, load(tmp_path / "converted.bin") as converted:
        assert starts(merged, 1) == starts(converted, 1)
        assert (merged.start, merged.end) == (converted.start, converted.end)
        assert merged.clocks["boottime"].tolist() == converted.clocks["boottime"].tolist()


def test_blocks_are_found_by_the_times_of_the_trace(tmp_path):
    paths = [rank(tmp_path / "0.bin", 0, up=1000 * SECOND), rank(tmp_path / "1.bin", 1, up=50 * SECOND, drift=40e-6)]
    with cutrace.load(paths) as trace:
        for info in trace.block_infos("kernels"):
            rows, _ = trace.block(info)
            assert (info.first_time, info.last_time) == (rows["start"].min(), rows["end"].max())
        last = starts(trace, 1)[-1]
        assert [rows["start"].max() for rows in trace.blocks("kernels", last, last + 1)].count(last) == 1


def part(whole: Path, path: Path, **conditions: str) -> Path:
    cut(whole, path, Conditions(**conditions))
    return path


@pytest.mark.parametrize("with_whole", [False, True])
def test_parts_of_one_recording_are_not_counted_twice(tmp_path, with_whole):
    whole = rank(tmp_path / "whole.bin", 0, up=1000 * SECOND)
    before = part(whole, tmp_path / "before.bin", end="4s")
    after = part(whole, tmp_path / "after.bin", start="4s")
    paths = [whole, after] if with_whole else [before, after]
    for join_them in (
        lambda: merge(paths, tmp_path / "all.bin"),
        lambda: convert(paths, tmp_path / "all.json"),
        lambda: cutrace.load(paths),
        lambda: cutrace.info(paths),
    ):
        with pytest.raises(CutraceError, match=r"are parts of one recording, of process 100, .*: name one of them"):
            join_them()
    assert {path.name for path in tmp_path.iterdir()} == {"whole.bin", "before.bin", "after.bin"}


def test_recordings_of_one_process_one_after_the_other_are_joined(tmp_path):
    first = rank(tmp_path / "first.bin", 0, up=1000 * SECOND)
    second = rank(tmp_path / "second.bin", 0, up=2000 * SECOND)
    with cutrace.load([first, second]) as trace:
        assert len(trace.kernels) == 2 * len(STEPS)


def chrome_trace(path: Path, start_us: int) -> Path:
    """A trace of another tool with absolute times and without clock snapshots."""
    event = {"ph": "X", "name": "work", "pid": 1, "tid": 1, "ts": start_us, "dur": 10}
    path.write_text(json.dumps({"traceEvents": [event]}))
    return path


def test_copies_of_an_imported_file_are_not_counted_twice(tmp_path):
    first = chrome_trace(tmp_path / "first.json", 10)
    copy = chrome_trace(tmp_path / "copy.json", 10)
    other = chrome_trace(tmp_path / "other.json", 20)
    for paths in ([first, copy], [first, other, copy]):
        with pytest.raises(CutraceError, match=r"first\.json and .*\.json are copies of one file"):
            cutrace.load(paths)
        with pytest.raises(CutraceError, match="name one of them"):
            cutrace.stats(paths)
    with cutrace.load([first, other]) as trace:
        assert len(trace.host_slices) == 2


def test_copies_of_a_trace_with_its_capture_are_counted_once(tmp_path):
    whole = rank(tmp_path / "whole.bin", 0, up=1000 * SECOND)
    cutrace.convert(whole, tmp_path / "a.pftrace")
    shutil.copy(tmp_path / "a.pftrace", tmp_path / "b.pftrace")
    with cutrace.load([tmp_path / "a.pftrace", tmp_path / "b.pftrace"]) as trace:
        assert len(trace.kernels) == len(STEPS)
        assert any(sentence.startswith("a recording twice, counted once: ") for sentence in trace.quality.sentences())


def test_a_file_is_named_once(tmp_path):
    whole = rank(tmp_path / "whole.bin", 0, up=1000 * SECOND)
    (tmp_path / "link.bin").symlink_to(whole)
    for second in (whole, tmp_path / "link.bin"):
        for join_them in (cutrace.load, cutrace.stats, lambda paths: merge(paths, tmp_path / "all.bin")):
            with pytest.raises(CutraceError, match=r"whole\.bin and .*\.bin are one file: name it once"):
                join_them([whole, second])


def slice_starts(trace: Trace) -> list[int]:
    return sorted(trace.host_slices["start"].tolist())


def test_times_without_snapshots_are_not_moved_in_silence(tmp_path):
    paths = [chrome_trace(tmp_path / "a.json", 10_000_000), chrome_trace(tmp_path / "b.json", 10_700_000)]
    with cutrace.load(paths) as trace:
        first, second = slice_starts(trace)
        assert first == second
        assert trace.quality.notes == (MOVED,)
    cut(paths, tmp_path / "part.bin", Conditions(end="1s"))
    for sources in (paths, tmp_path / "part.bin"):
        assert MOVED in cutrace.info(sources).quality.sentences()
    first = rank(tmp_path / "0.bin", 0, up=1000 * SECOND)
    second = rank(tmp_path / "1.bin", 1, up=5 * SECOND, snapshots=False, notes=["a note of the recording"])
    with cutrace.load([first, second]) as trace:
        assert trace.quality.notes == ("a note of the recording", MOVED)


@pytest.mark.parametrize("name", ["all.bin", "all.pftrace", "all.sqlite"])
@pytest.mark.parametrize("verb", [convert, merge, lambda *paths, **how: cut(*paths, Conditions(), **how)])
def test_times_can_be_kept(tmp_path, name, verb):
    paths = [chrome_trace(tmp_path / "a.json", 10_000_000), chrome_trace(tmp_path / "b.json", 10_700_000)]
    verb(paths, tmp_path / name, clock="keep")
    with cutrace.load(tmp_path / name) as trace:
        first, second = slice_starts(trace)
        assert second - first == 700_000_000
        if name != "all.sqlite":
            assert KEPT in trace.quality.notes


def test_machines_with_snapshots_can_keep_their_times(tmp_path):
    paths = [rank(tmp_path / f"{n}.bin", n, up=up * SECOND) for n, up in enumerate((1000, 5))]
    expected = [starts(load(path), 0) for path in paths]
    with cutrace.load(paths, clock="keep") as trace:
        assert [starts(trace, process) for process in (0, 1)] == expected
        assert trace.quality.notes == (KEPT,)
        assert [process.info.get("notes", []) for process in trace.processes] == [[], [KEPT]]


def test_another_clock_is_refused(tmp_path):
    path = rank(tmp_path / "a.bin", 0, up=SECOND)
    with pytest.raises(CutraceError, match=r"clock=.wall. is unknown: choose one of align, keep"):
        cutrace.load(path, clock="wall")


def two_machines(tmp_path: Path) -> Path:
    parts = [rank(tmp_path / f"{n}.bin", n, up=up * SECOND) for n, up in enumerate((1000, 5))]
    return join(tmp_path / "two.bin", parts)


@pytest.mark.parametrize(("clock", "kept"), [("keep", True), ("align", False)])
def test_pages_and_perfetto_show_times_as_they_are_asked_for(tmp_path, clock, kept):
    two = two_machines(tmp_path)
    done = run_cutrace("view", two, "-o", tmp_path / "page.html", "--clock", clock)
    assert done.returncode == 0
    assert ("a file has the times of its own clock" in (tmp_path / "page.html").read_text()) == kept
    nobody = run_cutrace("open", two, "--no-browser", "--port", 9007, "--timeout", "10ms", "--clock", clock)
    assert (as_options(KEPT) in nobody.stderr) == kept


def test_a_batch_with_another_clock_reads_the_files_again(tmp_path):
    pytest.importorskip("pyarrow")
    two = two_machines(tmp_path)
    states = []
    for clock in ("align", "keep", "keep"):
        batch = cutrace.batch("kernels", [two], tmp_path / "out", mode="sequential", clock=clock)
        states.append([file.state for file in batch.files])
    assert states == [["done"], ["done"], ["skipped"]]


@pytest.mark.parametrize("verb", [("why",), ("view", "--lines")])
def test_verbs_of_hardware_metrics_keep_times_too(tmp_path, monkeypatch, verb):
    asked = []
    load_whole = loading._whole

    def noted(paths, redacted, clock):
        asked.append(clock)
        return load_whole(paths, redacted, clock)

    monkeypatch.setattr(loading, "_whole", noted)
    done = run_cutrace(*verb, two_machines(tmp_path), "-o", tmp_path / "page.html", "--clock", "keep")
    assert done.returncode == 2  # nothing was counted
    assert asked == ["keep"]


@pytest.mark.parametrize("verb", ["info", "stats", "sql", "diff"])
def test_verbs_that_open_several_files_say_what_became_of_their_times(tmp_path, verb):
    for name, start in (("a", 10_000_000), ("b", 10_700_000)):
        chrome_trace(tmp_path / f"{name}.json", start)
    words = {
        "info": ["info", "a.json", "b.json"],
        "stats": ["stats", "a.json", "b.json"],
        "sql": ["sql", "a.json", "b.json", "select count(*) from host_slices"],
        "diff": ["diff", "a.json", "a.json", "--with-before", "b.json"],
    }[verb]
    for clock, sentence in (("align", as_options(MOVED)), ("keep", as_options(KEPT))):
        done = run_cutrace(*words, "--clock", clock, cwd=tmp_path)
        assert sentence in done.stdout + done.stderr
