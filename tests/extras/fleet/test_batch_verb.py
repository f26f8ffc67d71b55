"""cutrace batch: its output and its exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from captures import Capture
from cutrace.cli import main
from cutrace.extras.fleet import api

pytest.importorskip("pyarrow")
DATA = Path(__file__).parents[2] / "data"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    done = capsys.readouterr()
    return int(ended.value.code or 0), done.out, done.err


def test_a_page_with_pictures_is_beside_the_parts(tmp_path, capsys):
    run(capsys, "batch", "kernels", DATA / "ranks.bin", "-o", tmp_path / "out", "--mode", "sequential", "-q")
    assert "<figure data-chart>" in (tmp_path / "out" / "kernels.html").read_text()


def test_a_batch_prints_its_report_and_says_what_became_of_the_files(tmp_path, capsys):
    more = ("-o", tmp_path / "out", "--mode", "sequential", "--format", "json")
    status, out, err = run(capsys, "batch", "kernels", DATA / "ranks.bin", DATA / "triton.bin", *more)
    assert status == 0
    told = json.loads(out)
    assert (told["kind"], told["report"]) == ("cutrace batch", "kernels")
    assert sum(row["count"] for row in told["reports"][0]["rows"]) > 100
    assert f"cutrace: {tmp_path / 'out' / 'kernels.html'}: 2 done" in err
    bad = tmp_path / "bad.bin"
    bad.write_bytes(b"nothing")
    status, _, err = run(capsys, "batch", "kernels", DATA / "ranks.bin", bad, *more)
    assert status == 1
    assert f"cutrace: {bad}: " in err
    assert "1 unchanged, 1 damaged" in err


@pytest.mark.parametrize("report", ["kernels", "collectives", "overlap"])
def test_tables_fit_a_terminal_of_80_columns(tmp_path, capsys, monkeypatch, report):
    monkeypatch.setattr("cutrace.cli.output.terminal_width", lambda: 80)
    for process in (2793, 2794):
        run(capsys, "slice", DATA / "ranks.bin", "--process", process, "-o", tmp_path / f"rank{process}.bin")
    files = sorted(tmp_path.glob("rank*.bin"))
    _, out, _ = run(capsys, "batch", report, *files, "-o", tmp_path / "out", "--mode", "sequential")
    assert max(map(len, out.splitlines())) <= 80


def test_groups_with_communicators_fit_a_terminal_of_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cutrace.cli.output.terminal_width", lambda: 80)
    _, out, _ = run(capsys, "batch", "collectives", DATA / "groups.bin", "-o", tmp_path / "out", "--mode", "sequential")
    assert "83150842658513139" in out
    assert max(map(len, out.splitlines())) <= 80


def test_unknown_reports_and_missing_folders_are_explained(tmp_path, capsys):
    assert run(capsys, "batch", "colour", DATA / "triton.bin", "-o", tmp_path / "out")[0] == 2
    status, _, err = run(capsys, "batch", "kernels", DATA / "triton.bin", "-o", tmp_path / "no" / "out")
    assert (status, "Create it first" in err) == (2, True)
    status, _, err = run(capsys, "batch", "kernels", DATA / "triton.bin", "-o", "-")
    assert (status, "name a folder" in err) == (2, True)
    assert "kernels" in run(capsys, "batch", "--list-reports")[1]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_a_worker_starts_ends_the_batch(tmp_path, name):
    program = (
        "import signal, sys\n"
        "from multiprocessing import util\n"
        "from cutrace.cli import main\n"
        "spawn = util.spawnv_passfds\n"
        "def interrupted(path, words, *rest):\n"
        "    pid = spawn(path, words, *rest)\n"
        "    if any('spawn_main' in str(word) for word in words):\n"
        f"        signal.raise_signal(signal.{name})\n"
        "    return pid\n"
        "util.spawnv_passfds = interrupted\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", program, "batch", "kernels", DATA / "ranks.bin", "-o", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 128 + getattr(signal, name)
    assert "Traceback" not in done.stderr
    manifest = json.loads((tmp_path / "out" / "kernels.manifest.json").read_text())
    assert "unread" in json.dumps(manifest)


def test_many_sentences_are_left_to_the_page(tmp_path, capsys, monkeypatch):
    def told(*_: object, **__: object) -> api.Batch:
        return api.Batch([], [f"rank {number} is slow" for number in range(20)], [])

    monkeypatch.setattr(api, "batch", told)
    for report, page in (("kernels", "kernels.html"), ("all", "index.html")):
        status, _, err = run(capsys, "batch", report, "a.bin", "-o", tmp_path / "out")
        assert (status, err.count("is slow")) == (0, 12)
        assert f"8 more sentences: see {tmp_path / 'out' / page}" in err


def test_all_reports_are_one_document(tmp_path, capsys):
    more = ("-o", tmp_path / "out", "--mode", "sequential", "--format", "json")
    status, out, _ = run(capsys, "batch", "all", DATA / "ranks.bin", *more)
    told = json.loads(out)
    assert (status, told["report"]) == (0, "all")
    names = [table["name"] for table in told["reports"]]
    assert {"kernels", "collectives", "utilization", "gaps", "overlap", "outliers"} <= set(names)
    assert len(set(names)) == len(names)
    assert "all " in run(capsys, "batch", "--list-reports")[1]


def test_what_is_missing_is_in_json_and_the_exit_status(tmp_path, capsys):
    with Capture(tmp_path / "rank0.bin") as c:
        c.kernel(c.launch("_Z4gemmPf"), 0, 1_000, correlation=1)
        c.loss(1, 50, "kernel")
    more = ("-o", tmp_path / "out", "--mode", "sequential", "--format", "json")
    status, out, err = run(capsys, "batch", "kernels", tmp_path / "rank0.bin", DATA / "triton.bin", *more)
    told = json.loads(out)
    assert status == 1
    assert [file["state"] for file in told["files"]] == ["incomplete"]
    assert any(text.startswith("50 records that CUPTI dropped") for text in told["missing"])
    assert "50 records that CUPTI dropped" in err
    _, out, _ = run(capsys, "batch", "kernels", tmp_path / "rank0.bin", *more[:-1], "markdown")
    assert "\n> 50 records that CUPTI dropped" in out
