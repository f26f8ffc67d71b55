"""Running a command under the collector and making one capture of what its processes wrote."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CutraceError
from . import environment
from .join import Destination, recorded
from .options import Options
from .sampling import Sampling

# What a terminal or another program may send to a recording, and what ends the wait for the command.
_FORWARDED = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # not all are there where nothing can be recorded
}
_SIGNALS = _FORWARDED | {signal.SIGCHLD}
_SI_KERNEL = 0x80


@dataclass(frozen=True)
class Recording:
    """What came of recording a command.

    :param status: exit status of the command as a shell gives it: 128 + n when signal n ended it.
    :param output: what was asked for, None when no process wrote anything.
    :param capture: the file with the capture: ``output``, or ``run.bin`` beside it.
    :param processes: number of processes that wrote a file.
    :param running: pids of processes that were still recording; what they had written is in the capture.
    :param trouble: what went wrong with sampling, "" for nothing.
    """

    status: int
    output: Path | None
    capture: Path
    processes: int
    running: tuple[int, ...]
    trouble: str = ""


def record_command(
    command: Sequence[str],
    output: str | os.PathLike[str],
    options: Options,
    *,
    variables: Mapping[str, str] | None = None,
) -> Recording:
    """Run ``command`` under the collector, its children included, and leave its capture at ``output``; where that ends
    as a trace of another format does, the trace. ``run.pftrace`` carries the capture; other formats have it beside
    them, as ``run.bin``.

    The command gets this process's environment with ``variables`` and the injection variables added. Signals sent
    to this process go to the command; where only the newest rows are kept, SIGUSR2 goes to the processes that are
    recorded and asks each for a dump. Call it from the main thread.

    Raises :class:`CutraceError` before anything runs when the command is not found, the output cannot be written or
    counters that are asked for cannot be sampled, and afterwards when the files could not be joined or converted: it
    then says where they are.
    """
    executable = find_command(command[0])
    to = Destination.at(output)
    sampling = None
    try:
        environ = {**os.environ, **(variables or {}), **environment.injection(options, to.directory, to.dump)}
        if options.sample is not None:
            sampling = Sampling(options, to.directory)
        status = _run(executable, command, environ, to.directory if options.keeps_newest else None)
    except BaseException:
        if sampling is not None:
            sampling.kill()
        to.discard()
        raise
    trouble = "" if sampling is None else sampling.stop()
    processes, running = to.finish(redacted=options.redact)
    wrote = processes or sampling is not None
    return Recording(status, to.output if wrote else None, to.capture, processes, running, trouble)


def run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command to its end, with the signals that arrive here passed on. Returns the status as a shell gives it.
    Raises :class:`CutraceError` when it cannot be run."""
    return _run(find_command(command[0]), command, environ, None)


def find_command(name: str) -> str:
    """The path of a command, found as a shell would find it."""
    if path := shutil.which(name):
        return path
    file = Path(name)
    if name and file.is_dir():
        raise CutraceError(f"command cannot be executed: {name} is a folder. Name a program.")
    if os.sep in name and file.exists():
        raise CutraceError(f"command cannot be executed: {name}. Make it executable, or name its interpreter.")
    if file.is_file():
        raise CutraceError(
            f"command not found: {name}. For the file in this folder write ./{name}, or its interpreter."
        )
    raise CutraceError(f"command not found: {name or 'its name is empty'}. Look at its name and at PATH.")


def _ask_for_dumps(directory: Path) -> None:
    """Send SIGUSR2 to the processes that write into a folder, but for those that it would end."""
    for who in recorded(list(directory.glob("*.bin"))):
        pid = who.partition("-")[0]
        with suppress(OSError, ValueError):  # it has ended
            caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path("/proc", pid, "status").read_text(), re.MULTILINE)
            if caught and int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1:
                os.kill(int(pid), signal.SIGUSR2)


def _run(executable: str, command: Sequence[str], environ: Mapping[str, str], dumping: Path | None) -> int:
    """Run a command to its end, with the signals that arrive here passed on. Returns the status a shell would give.

    :param dumping: the folder of a recording that SIGUSR2 dumps.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        try:
            # Signals that are blocked here, or that Python ignores, must not be so in the command.
            pid = os.posix_spawn(
                executable, list(command), environ, setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                reason = "it is neither a program for this machine nor begins with #!. Name its interpreter."
            else:
                reason = f"{error.strerror}. See whether it runs without cutrace."
            raise CutraceError(f"cannot run {command[0]}: {reason}") from None
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            received = signal.sigwaitinfo(_SIGNALS)
            # What the terminal sends (Ctrl-C) reaches the command without our help.
            if received.si_signo == signal.SIGUSR2 and dumping is not None:
                _ask_for_dumps(dumping)
            elif received.si_signo != signal.SIGCHLD and received.si_code != _SI_KERNEL:
                os.kill(pid, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
