"""cutrace stats: reports for people and programs."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from captures import Capture, training_steps
from cutrace.analysis.reports import statistics
from cutrace.runbin import Writer
from support import cutrace, on_a_terminal, rows, small_capture

DATA = Path(__file__).parents[1] / "data"


def stats(*arguments) -> str:
    done = cutrace("stats", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_usual_reports_are_shown(tmp_path):
    shown = stats(training_steps(tmp_path / "a.bin"))
    for title in ("GPUs", "Streams", "Kernels", "API calls", "Copies and fills by time", "NVTX ranges on the GPU"):
        assert title in shown
    assert "kernel::gemm" in shown
    assert "Unified memory" not in shown


def test_reports_are_chosen_by_name_in_that_order(tmp_path):
    path = small_capture(tmp_path / "a.bin")
    found = json.loads(stats(path, "--format", "json", "--report", "cuda_api_sum", "--report", "cuda_gpu_kern_sum"))
    assert [r["name"] for r in found["reports"]] == ["cuda_api_sum", "cuda_gpu_kern_sum"]
    (kernel,) = found["reports"][1]["rows"]
    assert kernel == {
        "share": 1.0, "total_ns": 250, "count": 2, "mean_ns": 125.0, "median_ns": 125.0, "min_ns": 100, "max_ns": 150,
        "stddev_ns": 35.35533905932738, "name": "saxpy",
    }  # fmt: skip


def test_an_option_that_no_named_report_uses_is_an_error(tmp_path):
    path, api, idle = small_capture(tmp_path / "a.bin"), ("--report", "cuda_api_sum"), ("--report", "idle_sum")
    for option in (("--short", "5us"), ("--names", "full"), ("--kernel-wait", "1us")):
        done = cutrace("stats", path, *api, *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"cuda_api_sum does not use {option[0]}: leave it out, or ask for one of " in done.stderr
        stats(path, *option)
    assert stats(path, *api, *idle, "--kernel-wait", "1us")
    assert "does not use --short: leave it out, or ask for one of launch_sum, short_kern_sum" in (
        cutrace("stats", path, *api, *idle, "--short", "1us").stderr
    )


def test_all_reports_are_listed():
    lines = stats("--list-reports").splitlines()
    assert [line.split()[0] for line in lines] == list(statistics())


def test_csv_markdown_and_output(tmp_path):
    path, out = training_steps(tmp_path / "a.bin"), tmp_path / "out.csv"
    assert stats(path, "--report", "cuda_gpu_kern_sum", "-o", out) == ""
    found = list(csv.DictReader(io.StringIO(out.read_text())))
    assert {row["name"] for row in found} == {"kernel::gemm", "add"}
    assert sum(int(row["count"]) for row in found) == 20 * 8 * 2
    assert stats(path, "--report", "cuda_gpu_kern_sum", "--format", "markdown").startswith("### Kernels\n\n| share |")


def test_the_ending_of_the_output_decides_the_format(tmp_path):
    path = small_capture(tmp_path / "a.bin")
    for name, begin in {"a.JSON": "{", "a.md": "###", "a.txt": "GPU busy", "a": "GPU busy"}.items():
        assert stats(path, "-o", tmp_path / name) == ""
        assert (tmp_path / name).read_text().startswith(begin)
    assert stats(path, "-o", tmp_path / "b.csv", "--format", "table") == ""
    assert (tmp_path / "b.csv").read_text().startswith("GPU busy")
    done = cutrace("stats", path, "-o", tmp_path / "a.parquet")
    assert done.returncode == 2
    assert "name a file that ends in .csv or .json or .md, or give --format" in done.stderr
    assert not (tmp_path / "a.parquet").exists()


def test_limit_and_sort(tmp_path):
    path = DATA / "torch_step.bin"
    arguments = (path, "--report", "cuda_gpu_kern_sum", "--format", "json", "--sort")
    by_count = json.loads(stats(*arguments, "count"))["reports"][0]["rows"]
    assert [row["count"] for row in by_count] == sorted((row["count"] for row in by_count), reverse=True)
    assert len(json.loads(stats(*arguments, "name", "--limit", 3))["reports"][0]["rows"]) == 3
    assert "more: --limit 0 shows all" in stats(path, "--report", "cuda_gpu_trace")
    assert len(stats(path, "--report", "cuda_gpu_trace", "--limit", 0).splitlines()) == 2 + 166 + 18


def test_kernels_by_their_full_names(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.kernel(c.launch("_Z4axpyIfEvPT_"), 10, 20)
        c.kernel(c.launch("_Z4axpyIdEvPT_"), 30, 40)
    arguments = (tmp_path / "a.bin", "--report", "cuda_gpu_kern_sum", "--format", "json")
    assert [r["name"] for r in json.loads(stats(*arguments))["reports"][0]["rows"]] == ["axpy"]
    full = {r["name"] for r in json.loads(stats(*arguments, "--names", "full"))["reports"][0]["rows"]}
    assert full == {"void axpy<float>(float*)", "void axpy<double>(double*)"}


def test_what_is_short_and_what_is_a_kernel_wait_can_be_said(tmp_path):
    path = small_capture(tmp_path / "a.bin")
    shown = json.loads(stats(path, "--report", "short_kern_sum", "--short", "120ns", "--format", "json"))
    assert [(r["short"], r["count"]) for r in shown["reports"][0]["rows"]] == [(1, 2)]
    with Capture(tmp_path / "b.bin") as c:
        for start in (100, 250):
            c.kernel(c.launch("k"), start, start + 100)
    for wait, expected in (("50ns", 0), ("51ns", 50), ("99999999999999999999s", 50)):
        shown = json.loads(stats(tmp_path / "b.bin", "--report", "idle_sum", "--kernel-wait", wait, "--format", "json"))
        assert shown["reports"][0]["rows"][0]["kernel_ns"] == expected


def test_several_captures_are_counted_as_one(tmp_path):
    a, b = small_capture(tmp_path / "a.bin", pid=1), small_capture(tmp_path / "b.bin", pid=2, offset=1000)
    found = json.loads(stats(a, b, "--format", "json", "--report", "gpu_sum", "--report", "cuda_gpu_kern_sum"))
    assert [row["process"] for row in found["reports"][0]["rows"]] == ["train (1)", "train (2)"]
    assert found["reports"][1]["rows"][0]["count"] == 4


def test_what_is_missing_is_said_on_stderr(tmp_path):
    with Writer(tmp_path / "a.bin", pid=1) as writer:
        writer.rows("losses", rows("losses", 1, time=5, count=7, reason=1))
        writer.rows("kernels", rows("kernels", 2, start=[0, 5], end=[0, 9]))
    done = cutrace("stats", tmp_path / "a.bin")
    assert done.returncode == 0
    assert "cutrace: 7 records that CUPTI dropped" in done.stderr
    assert "cutrace: 1 row of kernels without known times: sums and timelines leave them out" in done.stderr


def test_what_is_missing_is_in_markdown_and_in_files(tmp_path):
    path, out = tmp_path / "a.bin", tmp_path / "out.md"
    with Capture(path) as c:
        c.kernel(c.launch("k"), 10, 20)
        c.loss(1, 7)
    lost = "7 records that CUPTI dropped because it had no buffer\n"
    kernels = ("stats", path, "--report", "cuda_gpu_kern_sum")
    shown = cutrace(*kernels, "--format", "markdown").stdout
    assert shown.endswith(f"|\n\n> {lost}")
    assert cutrace(*kernels, "-o", out).stdout == ""
    assert out.read_text() == shown
    cutrace(*kernels, "-o", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text().endswith(f"\n\n{lost}")
    for form in ("table", "csv"):
        assert lost not in cutrace(*kernels, "--format", form).stdout


def test_a_range_that_never_ended_is_not_said_to_be_left_out(tmp_path):
    with Capture(tmp_path / "a.bin") as c:
        c.push_pop("step", 10, None)
        c.push_pop("broken", 50, 20)
        c.push_pop("done", 10, 20)
    done = cutrace("stats", tmp_path / "a.bin")
    assert "cutrace: 1 row of nvtx_ranges without known times: sums and timelines leave them out\n" in done.stderr
    assert (
        "cutrace: 1 row of nvtx_ranges that never ended: they last to the end of their process, and sums leave out "
        "their own time\n"
    ) in done.stderr


def test_a_capture_with_nothing_in_it_says_so(tmp_path):
    with Capture(tmp_path / "a.bin"):
        pass
    done = cutrace("stats", tmp_path / "a.bin")
    assert (done.returncode, done.stdout) == (0, "")
    assert "the trace has no records to count" in done.stderr


def test_a_name_cannot_steer_the_terminal(tmp_path):
    with Capture(tmp_path / "a.bin", command=["\x1b[31mevil"]) as c:
        c.kernel(c.launch("k\x1b]0;owned\x07"), 10, 20)
        c.push_pop("r\x1b[2J", 10, 20)
    for form in ("table", "markdown"):
        assert not {"\x1b", "\x07"} & set(stats(tmp_path / "a.bin", "--format", form))


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=200)
    command = [sys.executable, "-m", "cutrace", "stats", path, "--report", "cuda_gpu_trace", "--format", "csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"start_ns,")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        *[("torch_step", columns) for columns in (80, 120, 160)],
        *[(name, 80) for name in ("profiled", "groups", "jax")],
        *[(name, columns) for name in ("sampled", "ranks") for columns in (60, 80)],
    ],
)
def test_lines_fit_the_terminal(name, columns):
    shown = on_a_terminal("stats", DATA / f"{name}.bin", COLUMNS=str(columns), TERM="dumb")
    lines = [line for line in shown.splitlines() if not line.startswith("cutrace: ")]
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_the_first_lines_are_wrapped_between_words(columns):
    whole = cutrace("stats", DATA / "ranks.bin").stdout.partition("\n\n")[0]
    shown = on_a_terminal("stats", DATA / "ranks.bin", COLUMNS=str(columns), TERM="dumb")
    lines = shown.splitlines()
    first = lines[: lines.index("")]
    assert [word for word in " ".join(first).split() if "nccl" not in word] == [
        word for word in whole.split() if "nccl" not in word
    ]


BOLD, DIM, RED, YELLOW = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m"


def test_titles_and_heads_have_styles_on_a_terminal_alone(tmp_path):
    path = training_steps(tmp_path / "a.bin")
    shown = on_a_terminal("stats", path, "--report", "cuda_gpu_kern_sum", TERM="xterm")
    lines = shown.splitlines()
    assert lines[0].startswith(f"{BOLD}Kernels")
    assert lines[1].startswith(f"  {DIM}")
    assert "\x1b" not in lines[2]
    for environ in ({"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}):
        assert "\x1b" not in on_a_terminal("stats", path, **environ)
    assert "\x1b" not in stats(path)
    on_a_terminal("stats", path, "-o", tmp_path / "out.txt", TERM="xterm")
    assert "\x1b" not in (tmp_path / "out.txt").read_text()


def test_what_fails_is_marked_in_a_diff(tmp_path):
    captures = training_steps(tmp_path / "a.bin", steps=3), training_steps(tmp_path / "b.bin", steps=4)
    for fail_on, status, style in (("counts", 1, RED), ("memory", 0, YELLOW)):
        shown = on_a_terminal("diff", *captures, "--fail-on", fail_on, TERM="xterm", status=status)
        assert next(line for line in shown.splitlines() if "kernel::gemm" in line).startswith(f"  {style}")
    assert "\x1b" not in on_a_terminal("diff", *captures, NO_COLOR="1", TERM="xterm", status=1)
    assert "\x1b" not in cutrace("diff", *captures).stdout


def test_times_of_tables_can_be_given_to_start_and_end(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=3)

    def starts(trace):
        shown = cutrace("stats", trace, "--report", "cuda_gpu_trace", "--limit", 0).stdout
        return [line.split()[0] for line in shown.splitlines() if line.lstrip().startswith("@")]

    all_starts = starts(path)
    for verb in ("slice", "convert"):
        target = tmp_path / f"{verb}.bin"
        done = cutrace(verb, path, "-o", target, "--start", all_starts[2], "--end", all_starts[5])
        assert done.returncode == 0, done.stderr
        kept = starts(target)
        assert [start for start in kept if start >= all_starts[2]] == all_starts[2:5]


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        (["stats"], "Rows of a table; 0 for all (20 for people, all for programs)."),
        (["sql"], "Rows of a table; 0 for all (20 for people, all for programs)."),
        (["report", "compare"], "Rows of a table; 0 for all. [default: 50;"),
    ],
)
def test_the_help_says_how_many_rows_there_are(verb, says):
    shown = " ".join(cutrace(*verb, "--help").stdout.split())
    assert says in shown


def test_steps_are_chosen_by_name_and_losses_are_told(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=4)
    shown = stats(path, "--report", "step_sum", "--report", "step_trace", "--name", "step *")
    assert "Where steps spent their time (step_sum)" in shown
    assert shown.index("synchronisation") < shown.index("wall clock") < shown.index("GPU behind")
    with Capture(tmp_path / "b.bin") as c:
        c.push_pop("step 0", 0, 100)
        c.push_pop("step 1", 200, None)
        c.loss(1, 42, "kernel")
    done = cutrace("stats", tmp_path / "b.bin", "--report", "step_sum", "--name", "step *")
    assert done.returncode == 0
    lost = "42 records that CUPTI dropped because it had no buffer (kernel)"
    assert lost in done.stderr
    assert "1 row of nvtx_ranges that never ended" in done.stderr
    done = cutrace("stats", tmp_path / "b.bin", "--format", "json")
    assert lost in json.loads(done.stdout)["missing"]


def test_steps_fit_a_terminal_of_80_columns():
    shown = on_a_terminal(
        "stats", DATA / "torch_step.bin", "--report", "step_trace", "--name", "step *", COLUMNS="80", TERM="dumb"
    )
    lines = shown.splitlines()
    assert lines[1].split()[-2:] == ["launch", "host"]
    assert max(map(len, lines)) <= 80


def test_steps_of_an_unknown_name_or_of_none_are_an_error(tmp_path):
    path = training_steps(tmp_path / "a.bin", steps=4)
    for name, sentence in (
        (("--name", "iteration"), "cutrace: no range is named iteration: there are layer 0, layer 1, "),
        (("--name", "/(/"), "cutrace: /(/ is not a regular expression: "),
        ((), "cutrace: step_sum needs --name, the name of the ranges that are steps, such as --name 'step *'"),
    ):
        done = cutrace("stats", path, "--report", "step_sum", *name)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(sentence)
        assert "Traceback" not in done.stderr


def test_it_opens_with_what_took_the_time(tmp_path):
    lines = cutrace("stats", small_capture(tmp_path / "a.bin")).stdout.splitlines()
    assert lines[:5] == [
        "GPU busy        100.0% of 200ns on GPU 0 NVIDIA H200",
        "most time       250ns in 2 launches, 100.0% of all kernels: saxpy",
        "missing         nothing is known to be missing",
        "",
        "GPUs (gpu_sum)",
    ]
    lines = cutrace("stats", DATA / "torch_step.bin").stdout.splitlines()
    assert [line[:16].strip() for line in lines[:6]] == ["GPU busy", "most time", "idle", "copies", "missing", ""]
    assert lines[2] == "idle            2.936s of stream 7, the busiest; >99.9% waited for the host"
    assert "missing" not in cutrace("stats", DATA / "torch_step.bin", "--report", "gpu_sum").stdout
