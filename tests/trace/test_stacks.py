"""Python stacks of API calls, as a trace returns them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import captures
import cutrace
from captures import Capture
from contents import contents, everything
from cutrace import Trace, slicing
from cutrace.runbin import TABLES
from cutrace.trace.stacks import short_files
from cutrace.trace.writing import write

MAIN, STEP, OPS = ("train.py", 10, "main"), ("train.py", 42, "step"), ("ops.py", 7, "fused_add")


def paths(trace: Trace) -> list[list[str]]:
    """The frames of the stacks of calls, outermost first."""
    found = []
    for stack in trace.call_stacks["stack"].tolist():
        path = []
        while stack:
            frame = trace.frames[trace.stacks["frame"][stack]]
            path.append(f"{trace.strings[frame['file']]}:{frame['line']} {trace.strings[frame['function']]}")
            stack = trace.stacks["parent"][stack]
        found.append(path[::-1])
    return found


def test_calls_and_work_find_their_stacks(tmp_path):
    # Blocks are not in the order of calls, because several threads write them.
    expected = {}
    with Capture(tmp_path / "run.bin") as c:
        for first in (500, 1, 250):
            for correlation in range(first, first + 300, 3):
                c.add("call_stacks", correlation=correlation, stack=c.stack(MAIN, ("a.py", correlation, "f")))
                expected[correlation] = correlation
            c.flush()
        c.add("call_stacks", correlation=4, stack=c.stack(MAIN, STEP))
        c.add("call_stacks", correlation=0, stack=c.stack(STEP))
        c.add("call_stacks", correlation=5, stack=60_000)
    expected[4] = STEP[1]  # the last stack counts
    with cutrace.load(tmp_path / "run.bin") as trace:
        stacks = trace.python_stacks
        asked = np.random.default_rng(0).permutation(1000).astype(np.uint32)
        frames = stacks.innermost(stacks.of(0, asked))
        lines = dict(zip(asked.tolist(), trace.frames["line"][frames].tolist(), strict=True))
        assert {correlation: line for correlation, line in lines.items() if line} == expected
        assert stacks.of(0, asked[:0]).tolist() == []
        assert stacks.of(0, np.array([0, 5, 100_000], np.uint32)).tolist() == [0, 0, 0]


def test_rows_of_several_processes_find_their_own_stacks(tmp_path):
    path = captures.join(tmp_path / "run.bin", [stacked(tmp_path / f"{pid}.bin", pid) for pid in (100, 200)])
    with cutrace.load(path) as trace:
        stacks = trace.python_stacks
        found = stacks.of_rows(trace.api_calls).tolist()
        assert [stacks.text(stack) for stack in found] == [
            "100.py:3 in only here < train.py:10 in main",
            "ops.py:7 in fused_add < train.py:42 in step < train.py:10 in main",
            "",
            "200.py:3 in only here < train.py:10 in main",
            "ops.py:7 in fused_add < train.py:42 in step < train.py:10 in main",
            "",
        ]
        # The second call of each pair has equal frames with other ids.
        assert found[1] != found[4]
        assert stacks.alike[found].tolist() == [found[0], found[1], 0, found[3], found[1], 0]


def test_a_capture_without_stacks_has_no_service(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        c.api("cudaFree", 1, 2, correlation=1)
        c.stack(MAIN)
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert trace.python_stacks is None


def test_the_text_of_a_stack_is_bounded(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        frames = [("a.py", line, "f" * 1000) for line in range(1, 31)]
        c.api("cudaFree", 1, 2, correlation=1, stack=c.stack(*frames))
    with cutrace.load(tmp_path / "run.bin") as trace:
        text = trace.python_stacks.text(int(trace.call_stacks["stack"][0]), 3)
        assert text.startswith("a.py:30 in fff")
        assert text.endswith("... < (27 more)")
        assert len(text) < 600


def test_what_a_frame_lacks_is_left_out(tmp_path):
    frames = [("", 3, "f"), ("a.py", 0, "f"), ("a.py", 3, "")]
    with Capture(tmp_path / "run.bin") as c:
        for correlation, frame in enumerate(frames, 1):
            c.api("cudaFree", 1, 2, correlation=correlation, stack=c.stack(frame))
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert [trace.python_stacks.place(frame) for frame in (0, 1, 2, 3)] == [
            "(unknown)", "(unknown file):3 in f", "a.py in f", "a.py:3",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "short"),
    [
        (["/a/ops.py", "/b/train.py"], ["ops.py", "train.py"]),
        (["/a/x/ops.py", "/b/x/ops.py", "/b/y/ops.py"], ["a/x/ops.py", "b/x/ops.py", "y/ops.py"]),
        (["ops.py", "/ops.py", "x/ops.py"], ["ops.py", "/ops.py", "x/ops.py"]),
        (["<string>", "/"], ["<string>", "/"]),
        (["/a" + "/x" * 99, "/b" + "/x" * 99], ["/a" + "/x" * 99, "/b" + "/x" * 99]),
    ],
)
def test_files_are_named_by_their_shortest_end(files, short):
    assert [short_files(files)[file] for file in files] == short


def written(path: Path, frames: list[tuple[int, int]], stacks: list[tuple[int, int, int]], calls: list[int]) -> Trace:
    """A trace of raw rows: frames (id, line), stacks (id, parent, frame), and the stack of each call."""
    with Capture(path) as c:
        for number, line in frames:
            c.add("frames", id=number, file="a.py", function="f", line=line)
        for number, parent, frame in stacks:
            c.add("stacks", id=number, parent=parent, frame=frame)
        for correlation, stack in enumerate(calls, 1):
            c.add("call_stacks", correlation=correlation, stack=stack)
    return cutrace.load(path)


def test_stacks_share_the_frames_of_their_callers(tmp_path):
    with Capture(tmp_path / "run.bin") as c:
        for correlation, frames in enumerate(((MAIN, STEP, OPS), (MAIN, STEP), (MAIN, STEP, OPS)), 1):
            c.api("cudaLaunchKernel", correlation, correlation + 1, correlation=correlation, stack=c.stack(*frames))
    with cutrace.load(tmp_path / "run.bin") as trace:
        step = ["train.py:10 main", "train.py:42 step"]
        assert paths(trace) == [[*step, "ops.py:7 fused_add"], step, [*step, "ops.py:7 fused_add"]]
        assert (len(trace.frames), len(trace.stacks)) == (4, 4)  # including the rows with id 0


def test_stacks_of_processes_stay_apart(tmp_path):
    parts = []
    for pid, frames in ((100, (MAIN, STEP)), (200, (STEP, OPS))):
        parts.append(tmp_path / f"{pid}.bin")
        with Capture(parts[-1], pid=pid) as c:
            c.api("cudaLaunchKernel", 1, 2, correlation=1, stack=c.stack(*frames))
    with cutrace.load(captures.join(tmp_path / "run.bin", parts)) as trace:
        assert paths(trace) == [["train.py:10 main", "train.py:42 step"], ["train.py:42 step", "ops.py:7 fused_add"]]
        assert trace.frames["process"].tolist() == [0, 0, 0, 1, 1]
        assert trace.stacks["process"].tolist() == [0, 0, 0, 1, 1]


def test_equal_stacks_with_several_ids_are_one(tmp_path):
    # A collector may write a stack again, under a new id or under the same one.
    stacks = [(1, 0, 1), (2, 1, 2), (11, 0, 1), (12, 11, 12), (2, 11, 2)]
    with written(tmp_path / "run.bin", [(1, 5), (2, 6), (12, 6)], stacks, [2, 12]) as trace:
        assert paths(trace) == [["a.py:5 f", "a.py:6 f"]] * 2
        assert len(set(trace.call_stacks["stack"].tolist())) == 1
        assert len(trace.stacks) == 3


def test_files_of_a_cut_recording_share_their_ids(tmp_path):
    # Each file has the rows to which it refers, with the ids of the recording.
    for number in (1, 2):
        with Capture(tmp_path / f"{number}.bin", instance=7) as c:
            c.writer._sequence = 100 * number
            c.add("frames", id=1, file="a.py", function="f", line=5)
            c.add("stacks", id=1, parent=0, frame=1)
            c.add("frames", id=1 + number, file="a.py", function="f", line=5 + number)
            c.add("stacks", id=1 + number, parent=1, frame=1 + number)
            c.add("call_stacks", correlation=number, stack=1 + number)
    with cutrace.load(captures.join(tmp_path / "run.bin", [tmp_path / "1.bin", tmp_path / "2.bin"])) as trace:
        assert len(trace.processes) == 1
        assert paths(trace) == [["a.py:5 f", "a.py:6 f"], ["a.py:5 f", "a.py:7 f"]]
        assert len(trace.stacks) == 4


def test_merged_captures_keep_their_stacks(tmp_path):
    parts = [stacked(tmp_path / f"{pid}.bin", pid) for pid in (100, 200)]
    cutrace.merge(parts, tmp_path / "job.bin")
    with cutrace.load(tmp_path / "job.bin") as job, cutrace.load(parts) as together:
        assert paths(job) == paths(together)
        assert job.stacks["process"].tolist() == together.stacks["process"].tolist()


def test_a_stack_ends_at_a_caller_that_the_file_lacks(tmp_path):
    with written(tmp_path / "run.bin", [(1, 5), (2, 6)], [(3, 9, 2), (4, 3, 1)], [4, 7]) as trace:
        assert paths(trace) == [["a.py:6 f", "a.py:5 f"], []]


def test_a_stack_that_calls_itself_ends(tmp_path):
    stacks = [(1, 1, 1), (2, 3, 1), (3, 2, 2), (4, 3, 1)]
    with written(tmp_path / "run.bin", [(1, 5), (2, 6)], stacks, [1, 2, 3, 4]) as trace:
        assert paths(trace) == [
            ["a.py:5 f"],
            ["a.py:5 f"],
            ["a.py:5 f", "a.py:6 f"],
            ["a.py:5 f", "a.py:6 f", "a.py:5 f"],
        ]


def test_stacks_may_be_deep(tmp_path):
    count = 5_000
    with Capture(tmp_path / "run.bin") as c:
        frames = np.zeros(2, TABLES["frames"].dtype)
        frames["id"], frames["line"] = (1, 2), (1, 2)
        c.writer.rows("frames", frames)
        rows = np.zeros(count, TABLES["stacks"].dtype)
        rows["id"] = np.arange(count) + 1
        rows["parent"], rows["frame"] = rows["id"] - 1, rows["id"] % 2 + 1
        c.writer.rows("stacks", rows)
        c.api("cudaLaunchKernel", 1, 2, correlation=1)
        c.add("call_stacks", correlation=1, stack=count)
    with cutrace.load(tmp_path / "run.bin") as trace:
        write(trace, tmp_path / "copy.bin")
        assert len(paths(trace)[0]) == count
        with cutrace.load(tmp_path / "copy.bin") as copy:
            assert paths(copy) == paths(trace)


def test_a_part_has_the_stacks_of_its_calls_only(tmp_path):
    parts = []
    for pid in (100, 200):
        parts.append(tmp_path / f"{pid}.bin")
        with Capture(parts[-1], pid=pid) as c:
            c.api("cudaLaunchKernel", 10, 20, correlation=1, stack=c.stack(MAIN, STEP, OPS))
            c.api("cudaLaunchKernel", 30, 40, correlation=2, stack=c.stack(MAIN, OPS))
    whole = captures.join(tmp_path / "run.bin", parts)
    conditions = slicing.Conditions(start=f"@{captures.ORIGIN + 25}", process=["200"])
    slicing.cut(whole, tmp_path / "part.bin", conditions)
    with cutrace.load(tmp_path / "part.bin") as part:
        assert paths(part) == [["train.py:10 main", "ops.py:7 fused_add"]]
        assert (len(part.frames), len(part.stacks)) == (3, 3)


def test_a_copy_and_its_parts_have_equal_stacks(tmp_path):
    path = captures.join(tmp_path / "run.bin", [stacked(tmp_path / f"{pid}.bin", pid) for pid in (100, 200)])
    with cutrace.load(path) as trace:
        write(trace, tmp_path / "copy.bin")
        for copy in ("copy.bin", "run.sqlite"):
            if copy != "copy.bin":
                cutrace.convert(path, tmp_path / copy)
            with cutrace.load(tmp_path / copy) as other:
                assert contents(other)["call_stacks"] == contents(trace)["call_stacks"]
                for table in ("frames", "stacks"):
                    assert everything(other)[table] == everything(trace)[table], copy


def stacked(path: Path, pid: int) -> Path:
    with Capture(path, pid=pid) as c:
        c.api("cudaLaunchKernel", 10, 20, correlation=1, stack=c.stack(MAIN, (f"{pid}.py", 3, "only here")))
        c.api("cudaLaunchKernel", 30, 40, correlation=2, stack=c.stack(MAIN, STEP, OPS))
        c.api("cudaFree", 50, 60, correlation=3)
    return path


def test_tables_show_the_innermost_frame_of_a_stack(tmp_path):
    path = stacked(tmp_path / "run.bin", 100)
    with cutrace.load(path) as trace:
        calls = trace.arrow("call_stacks").to_pylist()
        assert [call["function"] for call in calls] == ["only here", "fused_add"]
        assert list(calls[0]) == ["correlation", "stack", "file", "function", "line", "thread", "process"]
        callers = {row["id"]: row for row in trace.arrow("stacks").to_pylist()}
        outer = callers[callers[calls[1]["stack"]]["parent"]]
        assert (outer["file"], outer["line"], outer["function"]) == STEP[:1] + STEP[1:]
    cutrace.convert(path, tmp_path / "call_stacks.csv")
    lines = (tmp_path / "call_stacks.csv").read_text().splitlines()
    assert lines[:2] == ["correlation,stack,file,function,line,thread,process", "1,2,100.py,only here,3,100,0"]
    cutrace.convert(path, tmp_path / "stacks.csv")
    assert (tmp_path / "stacks.csv").read_text().splitlines()[:3] == [
        "id,parent,file,function,line,process", "1,0,train.py,main,10,0", "2,1,100.py,only here,3,0"
    ]  # fmt: skip
