"""`cutrace slice`: its output and its errors."""

from __future__ import annotations

import pytest

import cutrace
from captures import Capture, training_steps
from support import cutrace as run


def test_a_slice_is_written_and_described(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    done = run("slice", "run.bin", "-o", "s.bin", "--nvtx", "step *", "--index", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    with cutrace.load(tmp_path / "s.bin") as trace:
        assert trace.count("kernels") == 16
    first, last = (
        done.stderr.index("cutrace: s.bin: "),
        done.stderr.index(" rows: NVTX range step * [1], 72.6 us to 143.6"),
    )
    assert first < last


def test_the_share_of_ranges_is_that_of_the_whole_trace(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    done = run("slice", "run.bin", "-o", "s.bin", "--nvtx", "step 1", cwd=tmp_path)
    assert "cutrace: in the whole trace, GPU time by range: " in done.stderr


def test_a_table_as_text_has_the_rows_that_are_said(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    done = run("slice", "run.bin", "-o", "kernels.csv", "--nvtx", "step 1", cwd=tmp_path)
    lines = (tmp_path / "kernels.csv").read_text().splitlines()
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert f"{len(lines) - 1} of {trace.count('kernels')} rows" in done.stderr
    assert 0 < len(lines) - 1 < trace.count("kernels")


def test_a_table_without_selected_rows_is_an_error(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    done = run(
        "slice", "run.bin", "-o", "s.csv", "--table", "memcpys", "--tables", "kernels", cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert "nothing is selected" in done.stderr
    assert not (tmp_path / "s.csv").exists()


@pytest.mark.parametrize("name", ["s.bin", "s.folded", "kernels.csv"])
def test_losses_are_told_unless_quiet(tmp_path, name):
    with Capture(tmp_path / "run.bin") as c:
        c.kernel(c.launch("k"), 10, 20)
        c.loss(1, 777)
    done = run("slice", "run.bin", "-o", name, cwd=tmp_path)
    assert done.stderr.splitlines()[1:] == ["cutrace: 777 records that CUPTI dropped because it had no buffer"]
    assert run("slice", "run.bin", "-o", name, "-q", cwd=tmp_path).stderr == ""


def test_a_flame_graph_of_a_slice_says_how_much_of_its_time_has_a_range(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    done = run("slice", "run.bin", "-o", "s.folded", "--end", "50us", cwd=tmp_path)
    assert "cutrace: GPU time by range: " in done.stderr


def test_conditions_may_be_repeated_and_tables_listed(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    options = [
        "--nvtx",
        "step 0",
        "--nvtx",
        "step 2",
        "--tables",
        "kernels",
        "--tables",
        "nvtx_ranges,",
        "--stream",
        "7",
        "-q",
    ]
    done = run("slice", "run.bin", "-o", "s.bin", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with cutrace.load(tmp_path / "s.bin") as trace:
        assert trace.count("kernels") == 16
        assert not trace.count("api_calls")
        assert {name for name in trace.strings.take(trace.nvtx_ranges["name"]) if "step" in name} == {
            "step 0",
            "step 2",
        }


def test_a_slice_can_be_a_trace_for_perfetto(tmp_path):
    training_steps(tmp_path / "run.bin", steps=3)
    assert (
        run("slice", "run.bin", "-o", "s.pftrace", "--end", "50us", "--compress", "zstd", cwd=tmp_path).returncode == 0
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.bin", "s.pftrace"]


def test_an_empty_slice_is_an_error(tmp_path):
    training_steps(tmp_path / "run.bin", steps=1)
    done = run("slice", "run.bin", "-o", "s.bin", "--stream", "99", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("cutrace: nothing is selected: ")
    assert [path.name for path in tmp_path.iterdir()] == ["run.bin"]


def test_conversion_writes_captures_too(tmp_path):
    training_steps(tmp_path / "run.bin", steps=2)
    assert run("convert", "run.bin", "-o", "again.bin", "--end", "60us", cwd=tmp_path).returncode == 0
    with cutrace.load(tmp_path / "again.bin") as again, cutrace.load(tmp_path / "run.bin") as trace:
        kernels = trace.kernels[trace.kernels["start"] < trace.start + 60_000]
        assert again.kernels["start"].tolist() == kernels["start"].tolist()
