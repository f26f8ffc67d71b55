"""The page of source lines: the hottest lines come first, each with its source code, and no string becomes markup."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.extras.hardware.source_page import html
from cutrace.extras.hardware.sources import SAMPLES, Sources, sources
from reports.page import Page
from support import cutrace as run

EXECUTED, THREADS = "smsp__sass_inst_executed", "smsp__sass_thread_inst_executed"
#: A measured source line: function, offset, file, line, executed instructions, and samples by stall reason.
Measured = tuple[str, int, str, int, float, dict[str, int]]
TEXT = "".join(f"line {number} <b>&\n" for number in range(1, 41))


def capture(path: Path, rows: Iterable[Measured], launches: int = 3) -> Path:
    with Capture(path) as c:
        c.device()
        for function, offset, file, line, executed, stalls in rows:
            place = {"device": 0, "function": function, "offset": offset, "file": file, "line": line}
            for name, value in ((EXECUTED, executed), (THREADS, 32 * executed)):
                if value:
                    c.add(
                        "instruction_metrics", **place, name=name, unit="instructions", value=value, launches=launches
                    )
            for stall, samples in stalls.items():
                c.add("pc_samples", **place, start=1, end=2, samples=samples, not_issued=0, stall=stall)
    return path


def measured(path: Path, *rows: Measured) -> Sources:
    with cutrace.load(capture(path, rows)) as trace:
        return sources(trace)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "src" / "axpy.cu"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


def cells(text: str, number: int, line: int) -> str:
    """The table row of a line, in the source with this number."""
    return next(part for part in text.split("<tr ") if part.startswith(f'id="s{number}-{line}"')).partition("</tr>")[0]


def test_lines_are_summed_over_functions_and_instructions(tmp_path: Path, code: Path) -> None:
    found = measured(
        tmp_path / "run.bin",
        ("_Z4axpyPfi", 0, str(code), 10, 4, {"wait": 1}),
        ("_Z4axpyPfi", 16, str(code), 10, 6, {"wait": 2, "barrier": 5}),
        ("_Z4gemmPf", 0, str(code), 10, 10, {}), ("_Z4gemmPf", 16, "", 0, 7, {"wait": 1}),
    )  # fmt: skip
    file, function = found.files
    assert (file.file, function.function, found.launches) == (str(code), "gemm", 3)
    heat = file.heats[10]
    assert (heat.values[EXECUTED], heat.values[THREADS], heat.functions) == (20, 640, {"axpy", "gemm"})
    assert heat.stalls == {"wait": 3, "barrier": 5}
    assert (function.heats[16].values[EXECUTED], function.heats[16].values[SAMPLES]) == (7, 1)
    assert (found.total.values[SAMPLES], found.total.values[EXECUTED]) == (9, 27)


def test_the_source_with_most_samples_is_first_and_metrics_decide_without_samples(tmp_path: Path) -> None:
    few, many = ("_Z1av", 0, "/a.cu", 1, 100.0, {"wait": 1}), ("_Z1bv", 0, "/b.cu", 1, 1.0, {"wait": 9})
    assert [source.file for source in measured(tmp_path / "1.bin", few, many).files] == ["/b.cu", "/a.cu"]
    few, many = (*few[:5], {}), (*many[:5], {})
    assert [source.file for source in measured(tmp_path / "2.bin", few, many).files] == ["/a.cu", "/b.cu"]


def test_a_line_stands_beside_its_text_with_those_around_it(tmp_path: Path, code: Path) -> None:
    found = measured(
        tmp_path / "run.bin",
        ("_Z4axpyPfi", 0, str(code), 10, 30, {"wait": 3, "selected": 1}), ("_Z4axpyPfi", 16, str(code), 30, 10, {}),
    )  # fmt: skip
    text = html(found, "run.bin")
    hot = cells(text, 0, 10)
    assert "line 10 &lt;b&gt;&amp;" in hot
    assert "30 <small>75.0%</small>" in hot
    assert "wait 75%" in hot
    assert "selected" not in hot
    assert "h6" in hot, "three quarters are six of eight steps"
    assert "class=cold" in cells(text, 0, 6)
    assert 'id="s0-5"' not in text
    assert f"colspan={hot.count('<td')}>11 more<" in text, "lines 15 to 25 are left out"
    assert "<b>" not in text


def test_the_hottest_lines_are_links_to_their_rows(tmp_path: Path, code: Path) -> None:
    rows = [("_Z4axpyPfi", 16 * line, str(code), line, float(line), {}) for line in range(1, 41)]
    page = Page(html(measured(tmp_path / "run.bin", *rows), "run.bin"))
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [f"#s0-{line}" for line in range(40, 20, -1)]
    assert set(links) <= {f"#{attrs['id']}" for tag, attrs in page.tags if tag == "tr" and "id" in attrs}


def test_a_file_that_cannot_be_read_leaves_its_line_numbers(tmp_path: Path) -> None:
    text = html(measured(tmp_path / "run.bin", ("_Z4axpyPfi", 0, "/nowhere/axpy.cu", 12, 5, {})), "run.bin")
    assert "The file cannot be read:" in text
    assert "axpy.cu:12" in text
    assert 'id="s0-11"' not in text


def test_instructions_without_lines_have_offsets_the_hottest_hundred_in_their_order(tmp_path: Path) -> None:
    rows = [("_Z4axpyPfi", 16 * at, "", 0, float(at + 1), {}) for at in range(150)]
    text = html(measured(tmp_path / "run.bin", *rows), "run.bin")
    assert "Only the hottest 100 of 150 instructions are listed." in text
    places = [int(part.partition('"')[0]) for part in text.split('<tr id="s0-')[1:]]
    assert places == [16 * at for at in range(50, 150)]
    assert "+0x950" in text


def test_values_that_are_no_numbers_and_files_without_lines_do_no_harm(tmp_path: Path) -> None:
    rows = [("_Z1av", 0, "/a.cu", 1, value, {}) for value in (float("nan"), float("inf"), -5.0, 7.0)]
    found = measured(tmp_path / "run.bin", *rows, ("_Z1av", 16, "/a.cu", 0, 0, {"wait": 1}))
    assert [(source.file, source.function) for source in found.files] == [("", "a"), ("/a.cu", "")]
    assert found.total.values[EXECUTED] == 2
    assert ">2 <small>100.0%<" in html(found, "")
    nothing = measured(tmp_path / "nothing.bin", ("_Z1av", 0, "/a.cu", 1, 0, {"wait": 0}))
    assert "a.cu:1<" in html(nothing, "")


def test_columns_are_those_that_were_measured(tmp_path: Path, code: Path) -> None:
    counted = html(measured(tmp_path / "1.bin", ("_Z1av", 0, str(code), 1, 5, {})), "run.bin")
    sampled = html(measured(tmp_path / "2.bin", ("_Z1av", 0, str(code), 1, 0, {"wait": 2})), "run.bin")
    assert (">stalled by<" in counted, ">thread inst executed<" in counted) == (False, True)
    assert (">stalled by<" in sampled, ">thread inst executed<" in sampled) == (True, False)
    assert "3 launches or fewer" in counted
    assert "100.0% of inst executed. Functions: a." in counted
    assert "100.0% of the samples. Functions: a." in sampled
    assert "2 samples of warps" in sampled


def test_names_become_no_markup(tmp_path: Path) -> None:
    evil = "</title><script>alert(1)</script>\"'&"
    found = measured(tmp_path / "run.bin", (evil, 0, f"/{evil}.cu", 1, 5, {evil: 4}), (evil, 0, "", 0, 5, {}))
    text = html(found, evil)
    assert [tag for tag, _ in Page(text).tags].count("script") == 1
    assert "alert(1)" in Page(text).words


def test_root_finds_the_longest_end_of_a_path_and_never_leaves_the_folder(tmp_path: Path, code: Path) -> None:
    (tmp_path / "axpy.cu").write_text("outer\n" * 40)
    elsewhere = measured(tmp_path / "1.bin", ("_Z1av", 0, "/build/src/axpy.cu", 1, 5, {}))
    assert "line 1 " in html(elsewhere, "", tmp_path)
    assert "outer" in html(measured(tmp_path / "2.bin", ("_Z1av", 0, "/gone/axpy.cu", 1, 5, {})), "", tmp_path)
    above = measured(tmp_path / "3.bin", ("_Z1av", 0, "../axpy.cu", 1, 5, {}))
    assert "outer" not in html(above, "", code.parent)
    assert "line 1 " in html(above, "", code.parent)


def test_the_command_writes_the_page(tmp_path: Path, code: Path) -> None:
    made = capture(tmp_path / "run.bin", [("_Z4axpyPfi", 0, str(code), 10, 5, {"wait": 1})])
    done = run("view", "--lines", made, "-o", tmp_path / "source.html")
    assert done.returncode == 0, done.stderr
    assert "line 10" in (tmp_path / "source.html").read_text()


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        ([], ["-o", "source.html"], "was measured by line: use `cutrace profile --lines`"),
        ([("_Z1av", 0, "/a.cu", 1, 5, {})], ["-o", "source.txt"], "write a name that ends in .html"),
        ([("_Z1av", 0, "/a.cu", 1, 5, {})], ["-o", "source.html", "--root", "missing"], "missing"),
    ],
)
def test_what_is_wrong_is_a_sentence(tmp_path: Path, rows, options: list[str], sentence: str) -> None:
    done = run("view", "--lines", capture(tmp_path / "run.bin", rows), *options, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("source.*"))


def test_lines_may_be_among_lost_records(tmp_path: Path) -> None:
    whole = capture(tmp_path / "run.bin", []).read_bytes()
    (tmp_path / "run.bin").write_bytes(whole[:-20])
    done = run("view", "--lines", tmp_path / "run.bin", "-o", tmp_path / "source.html")
    assert "`cutrace record --sample pc`. The trace lacks records: " in done.stderr


def test_tables_sort_by_their_values_but_files_stay_in_the_order_of_their_lines(tmp_path: Path, code: Path) -> None:
    rows = [("_Z4axpyPfi", 16, str(code), 10, 1_234_567.0, {}), ("_Z4gemmPf", 16, "", 0, 7.0, {})]
    text = html(measured(tmp_path / "run.bin", *rows), "run.bin")
    hottest, file, function = text.partition("<main>")[2].split("<section>")[1:]
    assert "<div class=figures>" in hottest
    assert "<div class=figures>" in function
    assert "<div class=figures>" not in file
    assert "data-value=1234567.0" in hottest
    assert "<td class=number data-value=16>+0x10</td>" in function
    assert 'document.querySelectorAll(".figures").forEach(sortable)' in text
