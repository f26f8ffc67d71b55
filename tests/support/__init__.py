"""Helpers for tests of several packages."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np

from cutrace.cli import main
from cutrace.runbin import TABLES, Writer

from .program_server import server_for

#: Prepended to a Python program. `capture(...)` writes the files of a recorded process.
_PREAMBLE = """
import os, sys
from cutrace.runbin import Writer
options = dict(line.split("=", 1) for line in os.environ["CUTRACE_OPTIONS"].splitlines())
def capture(instance=1, started=0, **info):
    path = os.path.join(options["directory"], f"{os.getpid()}-{instance:x}.bin")
    Writer(path, pid=os.getpid(), instance=instance, started=started, **info).close()
    return path
"""


def recorded(program: str) -> list[str]:
    """The command of a Python program that behaves like a recorded process. It can call ``capture(instance,
    started)``."""
    return [sys.executable, "-c", _PREAMBLE + program]


def cutrace(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None, **options):
    """Run the command line. Returns its status, stdout and stderr as strings. A verb that only reads and writes files
    runs in this process, which is ten times as fast, unless ``env``, ``cwd`` or options of a process are given. With
    ``env`` or ``cwd`` it runs in a fork of a process that has imported cutrace, if its start needs no other variables
    than that of this process."""
    words = list(map(str, arguments))
    if words[:1] and words[0] in _FILES and env is None and cwd is None and not options:
        return _run_here(words)
    variables = {**os.environ, **(env or {})}
    if not options and sys.platform == "linux" and _starts_alike(variables):
        return _run_in_fork(words, variables, cwd or Path.cwd())
    return subprocess.run(
        [sys.executable, "-m", "cutrace", *words],
        capture_output=True,
        text=True,
        env=variables,
        cwd=cwd,
        timeout=120,
        **options,
    )


def _starts_alike(variables: dict[str, str]) -> bool:
    """Whether a process with these variables starts like this one, or like this one on the fake GPU."""
    changed = set()
    for name, value in variables.items():
        if name.startswith(("LANG", "LC_", "LD_", "PYTHON")) and os.environ.get(name) != value:
            changed.add(name)
    return not changed or changed == {"LD_LIBRARY_PATH", "PYTHONPATH"}


def _run_in_fork(words: list[str], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        status = server_for(variables).run(["cutrace", *words], folder, variables, out, err)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(io.TextIOWrapper(file, "utf-8").read())
    return subprocess.CompletedProcess(words, status, *texts)


def refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    """Check that a command rejected its arguments or its input with status 2 and one sentence."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cutrace: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr


def on_a_terminal(*arguments: object, status: int = 0, cwd: Path | None = None, **environ: str) -> str:
    """Run the command line on a terminal. Returns its output."""
    import pty  # Windows lacks it

    control, terminal = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")} | environ
    assert _starts_alike(variables)
    shown = b""

    def read(_: int) -> None:
        nonlocal shown
        output.close()
        with suppress(OSError):  # reading a terminal fails after its last writer has closed it
            while piece := os.read(control, 1 << 16):
                shown += piece

    with os.fdopen(terminal, "wb", 0) as output:
        command = ["cutrace", *map(str, arguments)]
        assert server_for(variables).run(command, cwd or Path.cwd(), variables, output, output, read) == status
    os.close(control)
    return shown.decode()


_FILES = frozenset(
    "convert diff golden info merge report slice sql stats view why".split()  # noqa: SIM905
)


def _run_here(words: list[str]) -> subprocess.CompletedProcess[str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True) for _ in range(2))
    before = {
        number: signal.getsignal(number) for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    }
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    texts = [stream.buffer.getvalue().decode().replace("\r\n", "\n") for stream in (out, err)]
    return subprocess.CompletedProcess(words, status, *texts)


def rows(table: str, count: int, /, **values) -> np.ndarray:
    """Rows of a table. Fields without a given value are 0."""
    out = np.zeros(count, TABLES[table].dtype)
    for name, value in values.items():
        out[name] = value
    return out


def small_capture(path: Path, *, pid: int = 100, offset: int = 0, **info) -> Path:
    """Write a capture of one process with two kernels on one GPU, at 100-200 and 150-300 ns, and with their
    launches."""
    with Writer(path, pid=pid, command=["./train"], ended=1, **info) as writer:
        launch = writer.intern_one("launches", name="saxpy", grid_x=4, block_x=128)
        call = writer.intern_one("functions", name="cudaLaunchKernel", domain=2, callback=211)
        name, pci = writer.string("NVIDIA H200"), writer.string("0000:01:00.0")
        writer.rows("devices", rows("devices", 1, uuid=np.void(bytes(range(1, 17))), name=name, pci=pci))
        start, end = np.array([100, 150]) + offset, np.array([200, 300]) + offset
        writer.rows("kernels", rows("kernels", 2, start=start, end=end, correlation=[1, 2], launch=launch, stream=7))
        writer.rows(
            "api_calls", rows("api_calls", 2, start=start - 50, end=start - 45, correlation=[1, 2], function=call)
        )
    return path
