"""`cutrace open`: the served file, and the end of the server."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs

import pytest

import cutrace
from captures import ORIGIN, Capture, training_steps
from cutrace.exporters.perfetto.first_screen import first_screen
from pftrace import decode
from support import cutrace as run

DATA = Path(__file__).parents[1] / "data"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def opening(*arguments: object, cwd: Path, port: int | None = None) -> tuple[subprocess.Popen[str], str]:
    """A running `cutrace open` and the address of the file in the link that it printed."""
    command = [
        sys.executable,
        "-m",
        "cutrace",
        "open",
        "--no-browser",
        "--port",
        str(port or free_port()),
        *map(str, arguments),
    ]
    program = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert program.stdout is not None
    link = program.stdout.readline().strip()
    return program, parse_qs(link.partition("?")[2])["url"][0]


def fetched(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read()


def test_a_capture_is_converted_served_once_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    training_steps(tmp_path / "run.bin", steps=2)
    program, address = opening("run.bin", cwd=tmp_path)
    (tmp_path / "got.pftrace").write_bytes(fetched(address))
    assert program.wait(timeout=20) == 0
    with cutrace.load(tmp_path / "run.bin") as trace:
        assert len(decode(tmp_path / "got.pftrace").gpu) == sum(map(trace.count, ("kernels", "memcpys", "memsets")))
    assert address.endswith("/run.pftrace")
    assert program.stdout is not None
    assert program.stdout.read() == ""  # programs need only the link
    assert list((tmp_path / "tmp").iterdir()) == []


def expanded(shown: dict[str, str]) -> re.Pattern[str]:
    """A pattern for the paths of the tracks that the page expands."""
    (command,) = json.loads(shown["startupCommands"])
    pattern, what = command["args"]
    assert (command["id"], what) == ("dev.perfetto.ExpandTracksByRegex", "path")
    return re.compile(pattern)


def shown_of(file: Path) -> dict[str, str]:
    """The first view of the page when it opens the link to a file."""
    said: list[str] = []
    with pytest.raises(cutrace.CutraceError, match="nobody fetched"):
        cutrace.open(file, browser=False, port=free_port(), timeout="1ms", say=said.append)
    given = parse_qs(said[0].partition("?")[2])
    return {name: given[name][0] for name in ("startupCommands", "visStart", "visEnd") if name in given}


def test_the_page_expands_the_busiest_process_alone():
    with cutrace.load(DATA / "ranks.bin") as trace:
        paths = expanded(first_screen(trace))
        process = Counter(trace.kernels["process"].tolist()).most_common(1)[0][0]
        pids = [owner.pid for owner in trace.processes]
    busiest = f"python3 {pids.pop(process)}"
    for path in (busiest, f"{busiest} > GPU", f"{busiest} > GPU > CUDA", f"{busiest} > GPU 0: ranges and queues"):
        assert paths.search(path)
    for path in (f"{busiest} > memory", "GPU", f"python3 {pids[0]}", f"python3 {pids[0]} > GPU 0: ranges and queues"):
        assert not paths.search(path)


def test_the_name_of_the_busiest_process_is_no_pattern():
    with cutrace.load(DATA / "many_streams.bin") as trace:
        paths = expanded(first_screen(trace))
        pid = trace.processes[0].pid
    assert paths.search(f"python3 many_streams.py {pid}")
    assert not paths.search(f"python3 many_streams-py {pid}")


def test_the_page_shows_a_process_without_the_folders_of_its_name():
    with cutrace.load(DATA / "jax.trace.json.gz") as trace:
        assert trace.processes[0].name == "/host:CPU"
        assert expanded(first_screen(trace)).search(f"host:CPU {trace.processes[0].pid}")


@pytest.mark.parametrize(
    ("starts", "window"),
    [
        ([100, 200, 300], (100, 310)),  # equal pauses
        ([0, 5000, 5020, 5040], (5000, 5050)),  # the first row long before the others
        ([0, 20, 40, 5000], (0, 50)),  # the last row long after the others
        ([0, 5000, 9000], (5000, 9010)),  # each of the other parts has less than half of the rows
    ],
)
def test_the_window_is_where_the_gpu_is_busy(tmp_path, starts, window):
    with Capture(tmp_path / "run.bin") as capture:
        capture.api("cudaFree", 0, 10_000)
        for start in starts:
            capture.kernel(capture.launch("k"), start, start + 10)
    with cutrace.load(capture.path) as trace:
        shown = first_screen(trace)
        margin = round((window[1] - window[0]) * 0.03)
        expected = (max(window[0] - margin, 0), min(window[1] + margin, 10_000))
        assert (int(shown["visStart"]) - ORIGIN, int(shown["visEnd"]) - ORIGIN) == expected


@pytest.mark.parametrize(("most", "first"), [(4, 20_000), (3, 0)])
def test_more_rows_than_are_read_give_the_window_of_their_blocks(tmp_path, monkeypatch, most, first):
    with Capture(tmp_path / "run.bin") as capture:
        capture.api("cudaFree", 0, 30_000)
        for starts in ([0], [5000, 20_000, 20_020]):
            for start in starts:
                capture.kernel(capture.launch("k"), start, start + 10)
            capture.flush()
    monkeypatch.setattr("cutrace.exporters.perfetto.first_screen._MOST_ROWS", most)
    with cutrace.load(capture.path) as trace:
        read = []
        block = trace.block
        monkeypatch.setattr(trace, "block", lambda info: read.append(info) or block(info))
        shown = first_screen(trace)
    margin = round((20_030 - first) * 0.03)
    assert int(shown["visStart"]) - ORIGIN == max(first - margin, 0)
    assert int(shown["visEnd"]) - ORIGIN == 20_030 + margin
    assert len(read) == (2 if most == 4 else 0)


def test_without_gpu_work_the_whole_trace_is_shown(tmp_path):
    with Capture(tmp_path / "run.bin") as capture:
        capture.api("cudaFree", 1, 2)
    with cutrace.load(capture.path) as trace:
        shown = first_screen(trace)
    assert list(shown) == ["startupCommands"]
    assert expanded(shown).search("program 100")


def test_a_trace_is_served_as_it_is(tmp_path):
    training_steps(tmp_path / "run.bin", steps=2)
    for name in ("a.pftrace", "a.pftrace.gz"):
        cutrace.convert(tmp_path / "run.bin", tmp_path / name)
        program, address = opening(name, cwd=tmp_path)
        assert fetched(address) == (tmp_path / name).read_bytes()
        assert program.wait(timeout=20) == 0


@pytest.mark.parametrize("options", [{}, {"compress": "zstd"}, {"capture": False}])
def test_a_trace_is_shown_as_its_capture_would_be(tmp_path, options):
    capture = DATA / "torch_step.bin"
    cutrace.convert(capture, tmp_path / "a.pftrace", **options)
    with cutrace.load(capture) as trace:
        expected = first_screen(trace)
    assert len(expected) == 3
    assert shown_of(tmp_path / "a.pftrace") == expected


def test_what_cutrace_cannot_read_is_served_all_the_same(tmp_path):
    (tmp_path / "broken.pftrace").write_bytes(b"\x0a\xff")
    assert shown_of(tmp_path / "broken.pftrace") == {}


def test_a_large_trace_is_read_for_its_capture_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("cutrace.api._MOST_READ", 0)
    training_steps(tmp_path / "run.bin", steps=1)
    cutrace.convert(tmp_path / "run.bin", tmp_path / "ours.pftrace")
    cutrace.convert(tmp_path / "run.bin", tmp_path / "other.pftrace", capture=False)
    assert len(shown_of(tmp_path / "ours.pftrace")) == 3
    assert shown_of(tmp_path / "other.pftrace") == {}


def test_it_says_that_nobody_came(tmp_path):
    training_steps(tmp_path / "run.bin", steps=1)
    done = run("open", "run.bin", "--no-browser", "--port", free_port(), "--timeout", "200ms", cwd=tmp_path)
    assert done.returncode == 2
    assert "cutrace: nobody fetched the trace in 200.00 ms: open the link in a browser here" in done.stderr


def test_ctrl_c_ends_it(tmp_path):
    training_steps(tmp_path / "run.bin", steps=1)
    program, _ = opening("run.bin", cwd=tmp_path)
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=20) == 130


def test_a_taken_port_is_one_sentence(tmp_path):
    training_steps(tmp_path / "run.bin", steps=1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run("open", "run.bin", "--no-browser", "--port", port, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"cutrace: port {port} of this machine is in use, by another `cutrace open` or a trace_processor: end that, or "
        "choose another port with --port\n"
    )


def test_what_is_no_trace_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a trace")
    for name in ("notes.txt", "none.bin"):
        done = run("open", name, "--no-browser", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert name in done.stderr


@pytest.mark.parametrize("starts", [True, False])
def test_the_browser_gets_the_link(tmp_path, starts):
    """Python's webbrowser reads BROWSER first."""
    training_steps(tmp_path / "run.bin", steps=1)
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/link\n')
    script.chmod(0o755 if starts else 0o644)
    port = free_port()
    env = os.environ | {"BROWSER": str(script), "PATH": "/nonexistent"}
    command = [sys.executable, "-m", "cutrace", "open", "run.bin", "--port", str(port), "--timeout", "2s"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert "cutrace: opening https://ui.perfetto.dev/#!/?url=http://127.0.0.1:" in done.stderr
    if starts:
        assert (tmp_path / "link").read_text().strip() in done.stderr
    else:
        assert "no browser could be started: open the link yourself" in done.stderr
