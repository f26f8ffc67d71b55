"""Runs pytest in forks of a process that has already imported it. An inner session then starts in a fifth of the time.

The program reads requests from a socket until it is closed. Its argument is the number of the socket. A request is JSON
(the arguments, the folder, the variables) and two files: one for the output, and one for the process id and the exit
status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

#: Modules that sessions import, directly or by importing others.
_MODULES = (
    "cutrace.analysis.call_sites", "cutrace.analysis.metrics", "cutrace.collect.capture", "cutrace.collect.checks",
    "cutrace.conversion", "cutrace.exporters.perfetto", "cutrace.extras.fleet", "cutrace.extras.hardware.counting",
    "cutrace.extras.nsys", "cutrace.extras.pages", "cutrace.interpreter", "cutrace.reports.added",
    "cutrace.reports.allowed", "cutrace.reports.html", "cutrace.reports.markdown", "cutrace.trace", "doctest",
    "email.parser", "faulthandler", "filecmp", "numpy.ma", "pdb", "pytest_cutrace.session", "sysconfig",
)  # fmt: skip


class PytestServer:
    """A process in ``environment`` with forks that run pytest."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(number)], env=environment, pass_fds=[number]
            )

    def run(
        self, arguments: list[str], folder: Path, environment: dict[str, str], while_running: Callable[[int], None]
    ) -> tuple[int, str]:
        """Run pytest, and call ``while_running`` with its process id. Returns the exit status and the output."""
        ours, theirs = socket.socketpair()
        ours.settimeout(120)
        with ours, tempfile.TemporaryFile() as output:
            with theirs:
                request = json.dumps([arguments, str(folder), environment]).encode()
                socket.send_fds(self._requests, [request], [output.fileno(), theirs.fileno()])
            with ours.makefile() as answers:
                pid = int(answers.readline())
                try:
                    while_running(pid)
                    status = int(answers.readline())
                except BaseException:
                    os.kill(pid, signal.SIGKILL)
                    raise
            output.seek(0)
            return status, output.read().decode(errors="replace")


def _serve(requests: socket.socket) -> None:
    """Serve requests. Returns in a fork for each request; the fork then runs pytest."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    output, answers = files
    if pid := os.fork():
        os.write(answers, b"%d\n" % pid)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(answers)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    arguments, folder, environment = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder  # as with python -m pytest
    sys.argv = ["pytest", *arguments]


if __name__ == "__main__":
    from _pytest.config import get_config

    get_config()  # imports pytest's own plugins
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    import pytest

    sys.exit(pytest.main())
