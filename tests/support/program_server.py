"""Runs pytest, its workers and the command line in forks of a process that has already imported them. They then start
in a fifth of the time.

The program reads requests from a socket until it is closed. Its argument is the number of the socket. A request is JSON
(the module and its arguments, the folder, the umask, the variables) and four files: one for stdin, one for stdout, one
for stderr, and one for the process id and the exit status. In place of the module, ``-c`` and a program can stand.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

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
        with Path(os.devnull).open("rb") as nothing:
            files = [nothing.fileno(), output.fileno(), errors.fileno()]
            fork = _Fork(self._requests, command, folder, environment, files)
        with fork.answers:
            try:
                while_running(fork.pid)
                return fork.wait()
            except BaseException:
                fork.kill()
                raise


class _Fork:
    """A program that a server runs with ``files`` as stdin, stdout and stderr."""

    def __init__(
        self, requests: socket.socket, command: list[str], folder: Path, environment: dict[str, str], files: list[int]
    ) -> None:
        self.answers, theirs = socket.socketpair()
        with theirs:
            os.umask(mask := os.umask(0))
            request = json.dumps([command, str(folder), mask, environment]).encode()
            socket.send_fds(requests, [request], [*files, theirs.fileno()])
        self.answers.settimeout(120)
        self._lines = self.answers.makefile()
        self.pid = int(self._lines.readline())
        self._status: int | None = None

    def wait(self) -> int:
        if self._status is None:
            self._status = int(self._lines.readline())
        return self._status

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _serve(requests: socket.socket) -> None:
    """Serve requests. Returns in a fork for each request; the fork then runs the program."""
    from_forks, to_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready = select.select([requests, from_forks], [], [])[0]
        request, files, _, _ = socket.recv_fds(ready[0], 1 << 20, 4)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    requests.close()
    from_forks.close()
    *standard, answers = files
    if pid := os.fork():
        for file in standard:
            os.close(file)  # a pipe has to end with the program
        os.write(answers, b"%d\n" % pid)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(answers)
    for number, file in enumerate(standard):
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
    _fork_workers(to_server)


def _fork_workers(server: socket.socket) -> None:
    """Let pytest-xdist get its workers from the server."""
    try:
        from execnet import gateway_io
    except ImportError:
        return

    class Worker(gateway_io.Popen2IOMaster):  # type: ignore[misc]
        def __init__(self, execmodel: Any) -> None:
            stdin, to_program = os.pipe()
            from_program, stdout = os.pipe()
            # The plugin compares the parent of a worker with the controller.
            parent = f"import os; os.getppid = lambda: {os.getpid()}\n"
            command = ["-c", parent + gateway_io.popen_bootstrapline]
            self.popen = _Fork(server, command, Path.cwd(), dict(os.environ), [stdin, stdout, 2])
            os.close(stdin)
            os.close(stdout)
            pipes = os.fdopen(to_program, "wb", 0), os.fdopen(from_program, "rb")
            gateway_io.Popen2IO.__init__(self, *pipes, execmodel=execmodel)

    def create_io(spec: Any, execmodel: Any) -> Any:
        return Worker(execmodel) if spec.popen and not spec.python else created(spec, execmodel)

    created, gateway_io.create_io = gateway_io.create_io, create_io


def server_for(environment: dict[str, str]) -> ProgramServer:
    """The server for the search paths of an environment. Python and the loader read them when a process starts."""
    return _server(environment.get("LD_LIBRARY_PATH", ""), environment.get("PYTHONPATH", ""))


@functools.cache
def _server(libraries: str, modules: str) -> ProgramServer:
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
    if sys.argv[0] == "-c":
        program = sys.argv.pop()
        exec(program, vars(sys.modules["__main__"]))
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
