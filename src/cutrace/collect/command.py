"""Running a command under the collector, and joining the files of its processes into one capture."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CutraceError
from . import environment
from .join import Destination, Recording, output_name, recorded, writer
from .options import Options

# Signals that a terminal or another program may send to a recording.
_FORWARDED = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)  # Other systems lack some signals.
}
#: Signals that do not end a recording. SIGQUIT (Ctrl-\\) ends a recording whose command has ended.
HELD = _FORWARDED - {getattr(signal, "SIGQUIT", None)}
# Windows has no SIGCHLD and records nothing.
_OF_CHILDREN = getattr(signal, "SIGCHLD", signal.SIGINT)
_SIGNALS = _FORWARDED | {_OF_CHILDREN}
_SI_KERNEL = 0x80
#: Seconds between two checks for the end of the command. They are needed because another thread may receive SIGCHLD.
_LONGEST_WAIT = 0.2


def record_command(
    command: Sequence[str],
    output: str | os.PathLike[str],
    options: Options,
) -> Recording:
    """Run ``command`` and its children under the collector, and write their capture to ``output``, or a trace if
    ``output`` has the ending of another format. ``run.pftrace`` embeds the capture; for other formats the capture is
    ``run.bin`` in the same folder.

    The command gets this process's environment with the injection variables added. Signals to this
    process are forwarded to the command. Signals after its end are dropped, except for SIGQUIT. If only the newest rows
    are kept, SIGUSR2 goes to the recorded processes instead, and each writes a dump. Call this function from the main
    thread.

    Raises :class:`CutraceError` before the command runs when it is not found, the output cannot be written or counters
    cannot be sampled. Raises it after the command when the files cannot be joined or converted; the message then names
    the files.
    """
    with recording_of(command, output, options) as recording:
        return recording


@contextmanager
def recording_of(
    command: Sequence[str],
    output: str | os.PathLike[str],
    options: Options,
) -> Iterator[Recording]:
    """Do the same as :func:`record_command`, and yield the recording. Signals in the block are dropped, except for
    SIGQUIT."""
    executable = find_command(command[0])
    # Until the command starts, a signal ends the recording.
    to = Destination.of(output_name(output), options)
    # A signal that arrives after the command's end must not end the recording before its capture is complete. Programs
    # such as timeout send a signal twice, and users press Ctrl-C twice.
    with collected(HELD) as early:
        try:
            environ = {
                **os.environ,
                **environment.injection(options, to.directory, to.dump),
            }
            status = _run(
                executable,
                command,
                environ,
                to.directory if options.keeps_newest else None,
                to.publish_windows,
                early,
            )
        except BaseException:
            # The files of processes are the only copy of their data.
            if recorded(list(to.directory.glob("*.bin"))):
                to.finish()
            else:
                to.discard()
            raise
        yield to.finish(status)


def run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command to its end and forward signals to it. Returns its exit status in the notation of a shell. Raises
    :class:`CutraceError` when it cannot be run."""
    return _run(find_command(command[0]), command, environ)


def find_command(name: str) -> str:
    """The path of a command, searched as a shell does. Raises :class:`CutraceError` when there is none."""
    path = shutil.which(name)
    if path:
        return path
    file = Path(name)
    if name and file.is_dir():
        raise CutraceError(
            f"command cannot be executed: {name} is a folder. Name a program."
        )
    if os.sep in name and file.exists():
        raise CutraceError(
            f"command cannot be executed: {name}. Make it executable, or name its interpreter."
        )
    if file.is_file():
        raise CutraceError(
            f"command not found: {name}. To run the file in this folder, write ./{name} or name its interpreter."
        )
    raise CutraceError(
        f"command not found: {name or 'its name is empty'}. Check its name and PATH."
    )


def _ask_for_dumps(directory: Path) -> None:
    """Send SIGUSR2 to the processes that write to a folder, if they catch the signal. It would end other processes. A
    process without an open file there has the pid of another one: of an ended process, or of one in a container."""
    for pid in set(filter(None, map(writer, directory.glob("*.bin")))):
        with suppress(OSError):  # the process has ended
            caught = re.search(
                r"^SigCgt:\s*([0-9a-f]+)",
                Path(f"/proc/{pid}/status").read_text(),
                re.MULTILINE,
            )
            if caught and int(caught[1], 16) >> (signal.SIGUSR2 - 1) & 1:
                os.kill(pid, signal.SIGUSR2)


@contextmanager
def signals_blocked(signals: Iterable[int]) -> Iterator[Iterable[int]]:
    """Block signals in this thread, and in threads and processes that it starts. Yields the signals that were
    blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(
    executable: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    dumping: Path | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    early: Sequence[int] = (),
) -> int:
    """Run a command to its end and forward signals to it. Returns the status as a shell gives it.

    :param dumping: the folder of a recording whose processes dump on SIGUSR2.
    :param meanwhile: called several times a second. When it raises :class:`CutraceError`, the command runs on.
    :param early: signals that were collected before. If there are any, the command does not start.
    """
    # Threads of libraries such as NumPy do not block signals, so they receive some of them.
    with (
        signals_blocked(_SIGNALS) as before,
        collected(_FORWARDED) as taken,
        _children_waited_for(),
        _ticks(),
    ):
        too_early = [*early, *taken]
        if too_early:
            raise SystemExit(128 + too_early[0])
        try:
            # The command must not inherit the signals that are blocked here or ignored by Python.
            defaults = [signal.SIGPIPE, signal.SIGXFSZ]
            pid = os.posix_spawn(
                executable,
                list(command),
                environ,
                setsigmask=before,
                setsigdef=defaults,
            )
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                reason = "it is not a program for this machine and does not begin with #!. Name its interpreter."
            else:
                reason = f"{error.strerror}. Check that it runs without cutrace."
            raise CutraceError(f"cannot run {command[0]}: {reason}") from None
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                if code >= 0:
                    return code
                return 128 - code
            received = signal.sigwaitinfo(_SIGNALS)
            if not _was_sent_to_both(received, pid):
                taken.append(received.si_signo)
            while taken:
                _pass_on(taken.pop(0), pid, dumping)
            # The files are written again at the end of the recording.
            with suppress(CutraceError):
                meanwhile()


@contextmanager
def _children_waited_for() -> Iterator[None]:
    """Keep the status of an ended child until it is waited for, even if the caller ignores SIGCHLD. The kernel discards
    the status of children while SIGCHLD is ignored. Only the main thread can change this."""
    ignored = signal.getsignal(_OF_CHILDREN) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    # The command gets the default action as well: it could end before a later change.
    signal.signal(_OF_CHILDREN, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(_OF_CHILDREN, signal.SIG_IGN)


@contextmanager
def _ticks() -> Iterator[None]:
    """Send this thread a signal several times a second, in place of a time limit. Python's sigtimedwait returns a
    random signal if it is interrupted (Ctrl-Z) and its time limit has passed."""
    waiting = threading.get_ident()
    over = threading.Event()

    def tick() -> None:
        while not over.wait(_LONGEST_WAIT):
            signal.pthread_kill(waiting, _OF_CHILDREN)

    clock = threading.Thread(target=tick, daemon=True)
    clock.start()
    try:
        yield
    finally:
        over.set()
        clock.join()


def _was_sent_to_both(received: signal.struct_siginfo, pid: int) -> bool:
    """Whether the command got a signal as well. The terminal sends the signals of keys (Ctrl-C) to the group in the
    foreground, which a command such as timeout leaves, and SIGHUP to the leader of the session."""
    if received.si_code != _SI_KERNEL or received.si_signo == signal.SIGHUP:
        return False
    return os.getpgid(pid) == os.getpgrp()


def _pass_on(number: int, pid: int, dumping: Path | None) -> None:
    if number == signal.SIGUSR2 and dumping is not None:
        _ask_for_dumps(dumping)
    elif number != signal.SIGCHLD:
        # The command runs as another user, for example with sudo.
        with suppress(PermissionError):
            os.kill(pid, number)


@contextmanager
def collected(signals: Iterable[int]) -> Iterator[list[int]]:
    """Append signals to a list, which it yields. Signals that are ignored or handled in C stay as they are. Outside of
    the main thread no signal is collected, because only the main thread can set handlers."""
    taken: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(
                    number, lambda number, _: taken.append(number)
                )
    try:
        yield taken
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
