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
from captures import training_steps
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
    assert program.stdout.read() == ""  # only the link is for programs
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_page_shows_the_busiest_process_where_gpus_begin_to_work(tmp_path):
    capture = DATA / "ranks.bin"
    with cutrace.load(capture) as trace:
        shown = first_screen(trace)
        busiest = Counter(trace.kernels["process"].tolist()).most_common(1)[0][0]
        pid = trace.processes[busiest].pid
        first = min(int(rows["start"].min()) for rows in (trace.kernels, trace.memcpys, trace.memsets))
        assert first * 0.999 < int(shown["visStart"]) < first < int(shown["visEnd"]) == trace.end
    (command,) = json.loads(shown["startupCommands"])
    (pattern,) = command["args"]
    assert re.search(pattern, f"python3 {pid}")
    assert re.search(pattern, "GPU 0: ranges and queues")
    assert not re.search(pattern, "memory")
    program, _ = opening(capture, cwd=tmp_path)
    program.kill()
    program.communicate()


def test_the_name_of_the_busiest_process_is_no_pattern():
    with cutrace.load(DATA / "many_streams.bin") as trace:
        shown = first_screen(trace)
        pid = trace.processes[0].pid
    (command,) = json.loads(shown["startupCommands"])
    (pattern,) = command["args"]
    assert re.search(pattern, f"python3 many_streams.py {pid}")
    assert not re.search(pattern, f"python3 many_streams-py {pid}")


def test_a_trace_is_served_as_it_is(tmp_path):
    training_steps(tmp_path / "run.bin", steps=2)
    for name in ("a.pftrace", "a.pftrace.gz"):
        cutrace.convert(tmp_path / "run.bin", tmp_path / name)
        program, address = opening(name, cwd=tmp_path)
        assert fetched(address) == (tmp_path / name).read_bytes()
        assert program.wait(timeout=20) == 0


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
