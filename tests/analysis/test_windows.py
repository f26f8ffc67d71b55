"""Windows: marks of tests and regions are paired in any order of events between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cutrace
from captures import ORIGIN, Capture, join
from cutrace import CutraceError
from cutrace.analysis.marks import ALL_PROCESSES, KINDS, Window, begin, end, shortened
from cutrace.analysis.windows import owners, whole, windows
from cutrace.runbin import Writer


def record(path: Path, *marks: tuple[int, str], thread: int = 100, **info: object) -> Path:
    """A capture of one process with these marks from cutrace.mark(), and an API call at 1,000."""
    with Capture(path, **info) as c:
        c.api("cudaLaunchKernel", 999, 1_000)
        for time, text in marks:
            c.mark(text, time, thread=thread, source=1)
    return path


def found(path: Path) -> list[tuple[str, int, int, bool]]:
    with cutrace.load(path) as trace:
        return [(w.name, w.start - ORIGIN, w.end - ORIGIN, w.complete) for w in windows(trace)]


def regions(window: Window) -> list[tuple[str, int, int, bool]]:
    return [(r.name, r.start - ORIGIN, r.end - ORIGIN, r.complete) for r in window.regions]


def only(path: Path) -> Window:
    with cutrace.load(path) as trace:
        (window,) = windows(trace)
        return window


def test_tests_come_in_the_order_of_their_begin(tmp_path):
    path = record(
        tmp_path / "a.bin",
        (30, begin("test", "b")),
        (40, end("test", "b")),
        (10, begin("test", "a")),
        (20, end("test", "a")),
        (50, begin("test", "a")),
        (60, end("test", "a")),
    )
    assert found(path) == [("a", 10, 20, True), ("b", 30, 40, True), ("a", 50, 60, True)]


@given(st.text(st.characters(exclude_categories=[]), max_size=40), st.sampled_from(KINDS))
def test_any_name_survives_as_text_of_c(tmp_path_factory, name, kind):
    for text in (begin(kind, name), end(kind, name)):
        assert b"\0" not in text.encode("utf-8")
    path = tmp_path_factory.mktemp("names") / "a.bin"
    record(path, (1, begin("test", name)), (2, begin("region", name)), (3, end("region", name)), (4, end("test", name)))
    window = only(path)
    assert window.name == window.regions[0].name == name


def test_long_names_are_shortened_and_stay_apart():
    long, longer = "x" * 5_000 + "a", "x" * 5_000 + "b"
    assert shortened("t[1]") == "t[1]"
    assert shortened(long) != shortened(longer)
    assert shortened(shortened(long)) == shortened(long)
    assert max(len(begin("region", c * 10_000).encode()) for c in "x\0\\ü漢\udfff") < 4_096


def test_names_with_newlines_and_colons_are_not_mixed_up(tmp_path):
    names = ["t[a\nb]", "t[a", "b]", "cutrace end test: t", "t[ü λ 漢字]", ""]
    marks = [m for i, n in enumerate(names) for m in ((10 * i + 1, begin("test", n)), (10 * i + 2, end("test", n)))]
    assert [name for name, *_ in found(record(tmp_path / "a.bin", *marks))] == names


def test_a_mark_of_another_kind_is_refused_in_words():
    with pytest.raises(CutraceError, match=r"'step'.*test, region, tool"):
        begin("step", "a")


def test_marks_of_the_program_cut_nothing(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.mark(begin("test", "a"), 10)  # NVTX, not cutrace.mark()
        c.mark("cutrace begin something", 20, source=1)
        c.mark("loss 0.5", 30, source=1)
    assert found(tmp_path / "a.bin") == []


def test_a_test_without_an_end_ends_with_the_next_one_or_the_capture(tmp_path):
    path = record(
        tmp_path / "a.bin",
        (10, begin("test", "crashed")),
        (20, begin("test", "fine")),
        (30, end("test", "fine")),
        (40, begin("test", "killed")),
    )
    assert found(path) == [("crashed", 10, 20, False), ("fine", 20, 30, True), ("killed", 40, 1_001, False)]


def test_a_test_whose_begin_was_lost_begins_with_the_mark_before_it(tmp_path):
    path = record(tmp_path / "a.bin", (10, begin("test", "a")), (20, end("test", "a")), (40, end("test", "b")))
    assert found(path) == [("a", 10, 20, True), ("b", 20, 40, False)]


def test_a_test_that_runs_tests_encloses_them(tmp_path):
    path = record(
        tmp_path / "a.bin",
        (10, begin("test", "outer")),
        (20, begin("test", "inner")),
        (30, end("test", "inner")),
        (40, end("test", "outer")),
    )
    assert found(path) == [("outer", 10, 40, True), ("inner", 20, 30, True)]


def test_regions_nest_and_repeat(tmp_path):
    window = only(
        record(
            tmp_path / "a.bin",
            (1, begin("region", "before")),
            (2, end("region", "before")),
            (10, begin("test", "a")),
            (20, begin("region", "forward")),
            (25, begin("region", "forward")),
            (26, begin("region", "norm")),
            (27, end("region", "norm")),
            (28, end("region", "forward")),
            (30, end("region", "forward")),
            (40, begin("region", "forward")),
            (50, end("region", "forward")),
            (60, end("test", "a")),
        )
    )
    assert regions(window) == [
        ("forward", 20, 30, True),
        ("forward", 25, 28, True),
        ("norm", 26, 27, True),
        ("forward", 40, 50, True),
    ]


def test_regions_that_are_not_ended_in_their_test_are_cut_and_say_so(tmp_path):
    window = only(
        record(
            tmp_path / "a.bin",
            (10, begin("test", "a")),
            (20, begin("region", "late")),
            (30, begin("region", "never")),
            (40, end("region", "not begun")),
            (60, end("test", "a")),
            (70, end("region", "late")),
        )
    )
    assert sorted(regions(window)) == [
        ("late", 20, 60, False),
        ("never", 30, 60, False),
        ("not begun", 30, 40, False),
    ]


def test_regions_of_threads_pair_by_thread(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.mark(begin("test", "a"), 10, source=1)
        for thread, first, last in ((1, 20, 50), (2, 30, 40), (3, 35, 60)):
            c.mark(begin("region", "step"), first, thread=thread, source=1)
            c.mark(end("region", "step"), last, thread=thread, source=1)
        # The region starts in one thread and ends in another, as tasks of an event loop may.
        c.mark(begin("region", "task"), 70, thread=1, source=1)
        c.mark(end("region", "task"), 80, thread=2, source=1)
        c.mark(end("test", "a"), 90, source=1)
    window = only(tmp_path / "a.bin")
    assert [(r.start - ORIGIN, r.end - ORIGIN, r.thread, r.complete) for r in window.regions] == [
        (20, 50, 1, True), (30, 40, 2, True), (35, 60, 3, True), (70, 80, 1, True),
    ]  # fmt: skip


def test_what_the_tool_did_is_known_to_the_test_and_to_the_regions_around_it(tmp_path):
    window = only(
        record(
            tmp_path / "a.bin",
            (10, begin("test", "a")),
            (20, begin("region", "forward")),
            (30, begin("tool", "")),
            (40, end("tool", "")),
            (50, end("region", "forward")),
            (60, begin("region", "backward")),
            (70, end("region", "backward")),
            (80, end("test", "a")),
        )
    )
    assert window.tool == ((ORIGIN + 30, ORIGIN + 40),)
    assert [r.tool for r in window.regions] == [window.tool, ()]


def test_segments_of_one_process_make_one(tmp_path):
    marks = [[(10, begin("test", "a")), (20, begin("region", "r"))], [(30, end("region", "r")), (40, end("test", "a"))]]
    parts = [tmp_path / "1.bin", tmp_path / "2.bin"]
    before: Writer | None = None
    for part, texts in zip(parts, marks, strict=True):
        with Capture(part, instance=7) as c:
            if before:  # a later segment continues the blocks and ids of the previous one
                c.writer._sequence = before._sequence
                c.writer._string_ids = dict(before._string_ids)
            before = c.writer
            for time, text in texts:
                c.mark(text, time, source=1)
    path = join(tmp_path / "a.bin", parts)
    assert found(path) == [("a", 10, 40, True)]
    assert regions(only(path)) == [("r", 20, 30, True)]


def test_the_whole_capture_is_a_window_of_all_processes(tmp_path):
    parts = [
        record(tmp_path / "1.bin", (10, begin("region", "a")), (20, end("region", "a"))),
        record(tmp_path / "2.bin", (15, begin("region", "b")), (1_000, end("region", "b")), pid=200),
    ]
    with cutrace.load(join(tmp_path / "a.bin", parts)) as trace:
        window = whole(trace)
    assert (window.start - ORIGIN, window.end - ORIGIN, window.process) == (10, 1_001, ALL_PROCESSES)
    assert [(r.name, r.process) for r in window.regions] == [("a", 0), ("b", 1)]


def test_an_empty_capture_has_a_whole_window_and_no_tests(tmp_path):
    with Capture(tmp_path / "a.bin"):
        pass
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert windows(trace) == ()
        assert whole(trace).complete


def test_children_belong_to_the_process_with_tests_that_they_descend_from(tmp_path):
    test = [(10, begin("test", "t")), (900, end("test", "t"))]
    parts = [
        record(tmp_path / "1.bin", *test, pid=1),
        record(tmp_path / "2.bin", *test, pid=2, parent_pid=99),
        record(tmp_path / "3.bin", pid=3, parent_pid=1),  # child of the first
        record(tmp_path / "4.bin", pid=4, parent_pid=3),  # and its child
        record(tmp_path / "5.bin", pid=5, parent_pid=98),  # started through a shell, so the parent is unknown
        record(tmp_path / "6.bin", pid=6, parent_pid=6),  # nonsense
    ]
    with cutrace.load(join(tmp_path / "a.bin", parts)) as trace:
        assert owners(trace) == {0: 0, 1: 1, 2: 0, 3: 0, 4: None, 5: None}


def test_regions_in_children_are_regions_of_the_test(tmp_path):
    parts = [
        record(tmp_path / "1.bin", (10, begin("test", "a")), (90, end("test", "a")), pid=1),
        record(tmp_path / "2.bin", (20, begin("region", "r")), (30, end("region", "r")), pid=2, parent_pid=1),
    ]
    assert regions(only(join(tmp_path / "a.bin", parts))) == [("r", 20, 30, True)]
