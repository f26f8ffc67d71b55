"""Runs pytest and the command line in forks of a process that has already imported them. They then start in a fifth of
the time.

The program reads requests from a socket until it is closed. Its argument is the number of the socket. A request is JSON
(the module and its arguments, the folder, the umask, the variables) and three files: one for stdout, one for stderr,
and one for the process id and the exit status.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

#: Modules that sessions and verbs import, directly or by importing others.
_MODULES = (
    "cutrace.analysis.call_sites", "cutrace.analysis.metrics", "cutrace.api", "cutrace.cli.arm", "cutrace.cli.convert",
    "cutrace.cli.slice", "cutrace.cli.stats", "cutrace.collect.capture", "cutrace.collect.checks", "cutrace.conversion",
    "cutrace.exporters.perfetto", "cutrace.extras.fleet", "cutrace.extras.hardware.counting", "cutrace.extras.nsys",
    "cutrace.extras.pages", "cutrace.interpreter", "cutrace.reports.added", "cutrace.reports.allowed",
    "cutrace.reports.html", "cutrace.reports.markdown", "cutrace.trace", "doctest", "email.parser", "faulthandler",
    "filecmp", "numpy.ma", "pdb", "pytest_cutrace.session", "sysconfig",
)  # fmt: skip


class ProgramServer:
    """A process in ``environment`` with forks that run modules."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(number)], env=environment, pass_fds=[number]
            )

    def run(
        self,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        output: IO[bytes],
        errors: IO[bytes],
        while_running: Callable[[int], None] = lambda pid: None,
    ) -> int:
        """Run the module ``command[0]`` with arguments, as ``python -m`` does, and call ``while_running`` with its
        process id. Returns the exit status."""
        ours, theirs = socket.socketpair()
        ours.settimeout(120)
        with ours:
            with theirs:
                os.umask(mask := os.umask(0))
                request = json.dumps([command, str(folder), mask, environment]).encode()
                files = [output.fileno(), errors.fileno(), theirs.fileno()]
                socket.send_fds(self._requests, [request], files)
            with ours.makefile() as answers:
                pid = int(answers.readline())
                try:
                    while_running(pid)
                    return int(answers.readline())
                except BaseException:
                    os.kill(pid, signal.SIGKILL)
                    raise


def _serve(requests: socket.socket) -> None:
    """Serve requests. Returns in a fork for each request; the fork then runs the module."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    output, errors, answers = files
    if pid := os.fork():
        os.write(answers, b"%d\n" % pid)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(answers)
    for number, file in ((1, output), (2, errors)):
        os.dup2(file, number)
        os.close(file)
    command, folder, mask, environment = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(folder)
    os.umask(mask)
    sys.path[0] = folder  # as with python -m
    sys.argv = command


@functools.cache
def server_for(libraries: str, modules: str) -> ProgramServer:
    """The server for these search paths. Python and the loader read the paths when a process starts."""
    search = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": modules, "PYTHONDONTWRITEBYTECODE": "1"}
    # NumPy must start no threads, because a fork would lack them.
    return ProgramServer({**os.environ, **search, "OPENBLAS_NUM_THREADS": "1"})


if __name__ == "__main__":
    from _pytest.config import get_config

    get_config()  # imports pytest's own plugins
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
