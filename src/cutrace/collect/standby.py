"""Recording a process that already runs: :func:`attach` to one on standby, and :func:`processes` lists them.

The protocol is described in ``native/collector/features/standby/standby.h``.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import socket
import struct
import sys
import time
from collections.abc import Collection
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..arguments import checked
from ..errors import CutraceError
from ..units import Time, parse_duration
from . import environment
from .capture import Recorder, signals_held
from .join import Destination, Recording, output_name
from .options import Options, completed
from .private_folder import existing_folders

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import OptionArguments

_PROTOCOL = 1
# Timeouts (s): of a greeting or a status, of another answer, and until a new socket accepts connections. When the
# process starts or stops a recording, it may wait for the GPU and the disk (patience_ms).
_GREETING = 3.0
_ANSWER = 120.0
_NEW = 1.0
# The pause (s) between two status requests, and the longest wait (s) for the end of the first launching call.
_POLL = 0.05
_LONGEST_FIRST_CALL = 10.0
_SHORTEST = 10**6
# The longest single wait (s). Python handles signals between two waits if a library's thread has received them.
_LONGEST_WAIT = 0.2
_RETRIES = (0.01, 0.1, 0.5, None)
_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, uid, gid


@dataclass(frozen=True)
class StandbyProcess:
    """A process on standby.

    :param pid: its process id; 0 when it runs in a container whose processes are not visible here.
    :param state: ``asleep``, ``recording``, or ``silent`` when it does not answer, because it is stopped or ends.
    :param command: its arguments, empty when unknown.
    :param since: when it went on standby (s, Unix time); None when it is silent.
    :param cuda: whether it has initialised CUDA.
    :param recorded_by: ``attach``, or ``program`` for a recording that the program itself started; None for none.
    :param attached_pid: the process that attached to it.
    :param recording_since: when the attached process started to record (s, Unix time).
    :param rows: rows written by this recording so far.
    :param bytes: bytes written by this recording so far.
    """

    pid: int
    state: Literal["asleep", "recording", "silent"]
    command: tuple[str, ...] = ()
    since: float | None = None
    cuda: bool = False
    recorded_by: str | None = None
    attached_pid: int | None = None
    recording_since: float | None = None
    rows: int = 0
    bytes: int = 0


class Attachment(Recorder):
    """A recording of another process, as a context manager; see :func:`attach`."""

    def __init__(
        self, pid: int, path: str | os.PathLike[str], options: Options
    ) -> None:
        self.pid = pid
        self.path = Path(path)
        self._options = options
        self._to: Destination | None = None
        self._connection: _Connection | None = None

    def start(self) -> None:
        """Start the recording. Raises :class:`CutraceError` when the process is not on standby, is being recorded,
        cannot write beside ``path``, or another tool holds CUPTI in it."""
        if self._to is not None:
            raise CutraceError(
                f"process {self.pid} is recorded already by this object: end that recording first"
            )
        with ExitStack() as undo:
            connection = undo.enter_context(closing(_find(self.pid)))
            to = Destination.of(self.path, completed(self._options))
            undo.callback(to.discard)
            # Without conditions, dumps have no name: the process keeps its own handler of SIGUSR2.
            dump = to.dump if self._options.dump_when else None
            text = self._options.text(
                output=to.directory / f"{self.pid}-1.bin", dump=dump
            )
            try:
                answer = connection.ask("start " + text.replace("\n", ";"))
            except CutraceError as error:
                if str(to.directory) not in str(error):
                    raise
                raise CutraceError(f"{error}{_elsewhere(self.pid)}") from None
            if answer["cuda"] and not answer["cupti"] and answer["notes"]:
                connection.ask("stop")
                raise CutraceError(f"process {self.pid}: {'; '.join(answer['notes'])}")
            undo.pop_all()
        self._to = to
        self._connection = connection
        self.path = to.output

    @checked
    def wait(self, timeout: Time | None = None) -> bool:
        """Wait for the end of the process, at most this long. Returns whether it has ended."""
        if timeout is None:
            return self._wait(math.inf)
        return self._wait(parse_duration(timeout) / 1e9)

    def _wait(self, seconds: float) -> bool:
        if self._to is None or self._connection is None:
            return False
        deadline = time.monotonic() + seconds
        while True:
            left = max(0, deadline - time.monotonic())
            if self._connection.wait(min(_LONGEST_WAIT, left)):
                return True
            with suppress(CutraceError):  # stop() tries to write them again.
                self._to.publish_windows()
            if left <= _LONGEST_WAIT:
                return False

    @checked
    def record_for(self, duration: Time) -> bool:
        """Record for this time: an int of nanoseconds, or a string such as ``"10s"``. Returns whether the process ended
        earlier. Raises :class:`CutraceError` for less than a millisecond.

        The time counts from the end of the first recorded call that launches GPU work, because CUPTI delays this call
        in a process that is new to it. If the program makes no such call in this time, the time counts from the call of
        this method.
        """
        seconds = length_of(duration)
        start = time.monotonic()
        deadline = start + seconds
        latest = deadline + _LONGEST_FIRST_CALL
        worked = False
        with closing(_Progress(self.pid)) as progress:
            while True:
                if not worked and (returned := progress.first_return()) is not None:
                    worked = True
                    deadline = max(start, returned) + seconds
                now = time.monotonic()
                waits_for_call = not worked and progress.in_first_call and now < latest
                if now >= deadline and not waits_for_call:
                    return False
                pause = _LONGEST_WAIT if worked else _POLL
                if self._wait(min(pause, deadline - now) if now < deadline else pause):
                    return True

    @checked
    def dump(self, path: str | os.PathLike[str]) -> bool:
        """Write the rows that a recording of the newest rows (``last``, ``rotate``) holds to ``path``, as a capture.

        Returns False, and writes no file, when nothing is recorded yet. Raises :class:`CutraceError` when the file
        cannot be written or the process has ended; otherwise the recording goes on.
        """
        if self._connection is None:
            raise CutraceError("nothing to dump: there is no recording")
        return bool(
            self._connection.ask(f"dump {_one_line(Path(path).absolute())}")["written"]
        )

    def stop(self) -> Recording:
        """End the recording and write the capture to ``path``; an existing file is replaced in one step. The process
        goes on.

        Returns the result of the recording. If the process was killed, ``trouble`` says so, and the capture has the
        rows that were written before. Raises :class:`CutraceError` when nothing is being recorded, and when the capture
        cannot be written; the message then names the file with the rows.
        """
        with signals_held():
            to = self._to
            connection = self._connection
            if to is None or connection is None:
                raise CutraceError(
                    f"process {self.pid} is not being recorded: start a recording first"
                )
            self._to = self._connection = None
            trouble = []
            notes: list[str] = []
            with closing(connection):
                if not connection.ended:
                    try:
                        notes = connection.ask("stop").get("notes", [])
                    except CutraceError as error:
                        if not connection.ended:
                            trouble.append(str(error))
                if connection.ended == "lost":
                    trouble.append(_after_loss(self.pid))
            recording = to.finish()
            if recording.output is None:
                trouble += notes  # No capture holds the notes.
            else:
                self.path = recording.output
            return replace(
                recording,
                trouble="; ".join(filter(None, (*trouble, recording.trouble))),
            )


@checked
def attach(
    pid: int, path: str | os.PathLike[str], **options: Unpack[OptionArguments]
) -> Attachment:
    """Record a process that runs already to ``path``, as a context manager::

        with cutrace.attach(4711, "run.bin", kinds="kernel,nvtx"):
            time.sleep(10)

    The process must be on standby: started with ``cutrace arm -- command``. It goes on after the recording, and can be
    recorded again. ``path`` may have the ending of another format, as for :func:`cutrace.record`. The options are those
    of :class:`cutrace.collect.Options`. The default of an option is its value in ``cutrace arm``. The process writes
    the capture itself, so it must be able to write into the folder of ``path``.

    Raises :class:`CutraceError` for an invalid option, and on entry the errors of :meth:`Attachment.start`.
    """
    # The caller may change the folder.
    output = output_name(path, pid).absolute()
    return Attachment(pid, output, Options.of(**options))


def processes() -> list[StandbyProcess]:
    """The processes of this user that are on standby. Removes the sockets of processes that have ended."""
    found = []
    for path in _sockets(_folders()):
        try:
            connection = _Connection(path)
        except ConnectionRefusedError:
            with suppress(OSError):
                # A new socket refuses connections for a moment.
                if time.time() - path.stat().st_mtime > _NEW:
                    path.unlink()
            continue
        except OSError:
            continue
        with closing(connection):
            found.append(_described(connection))
    return sorted(found, key=lambda process: process.pid)


def _described(connection: _Connection) -> StandbyProcess:
    pid = connection.pid
    command: tuple[str, ...] = ()
    with suppress(OSError):
        command = tuple(
            os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
        )
    try:
        connection.greet()
        status = connection.ask("status", _GREETING)
    except CutraceError:
        return StandbyProcess(pid, "silent", command)
    recording = status["recording"] or {}
    return StandbyProcess(
        pid,
        "recording" if recording else "asleep",
        command,
        status["since"] / 1e9,
        status["cuda"],
        recording.get("by"),
        recording.get("pid"),
        recording["since"] / 1e9 if "since" in recording else None,
        recording.get("rows", 0),
        recording.get("bytes", 0),
    )


class _Progress:
    """Asks a recorded process whether it has launched GPU work. It uses a separate connection: if a signal interrupts a
    question, the answer must not stay in the connection of the recording."""

    def __init__(self, pid: int) -> None:
        #: Whether the program was inside its first launching call at the last question.
        self.in_first_call = False
        self._connection: _Connection | None = None
        with suppress(CutraceError):  # The time then counts from the start.
            self._connection = _find(pid)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def first_return(self) -> float | None:
        """The end of the first launching call (s of ``time.monotonic``), None if no call has ended."""
        self.in_first_call = False
        recording: dict[str, Any] = {}
        if self._connection is not None:
            with suppress(CutraceError):
                recording = self._connection.ask("status", _GREETING)["recording"] or {}
        if "worked_ns" in recording:
            return time.monotonic() - int(recording["worked_ns"]) / 1e9
        self.in_first_call = bool(recording.get("working"))
        return None


class _Connection:
    """A connection to a process on standby. ``pid`` is the id of the process, as seen from here."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when no process listens, and ConnectionRefusedError when the process has ended."""
        self._path = path
        #: "exit" when the process ended in order, "lost" when it ended in another way, "" before.
        self.ended: Literal["", "exit", "lost"] = ""
        self.pid = self._connect()

    def _connect(self) -> int:
        """Connect, and return the pid of the process."""
        self._received = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_GREETING)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                # An address has 108 bytes, and a path can be longer.
                self._socket.connect(f"/proc/self/fd/{folder}/{self._path.name}")
            finally:
                os.close(folder)
            pid, uid, _ = _CREDENTIALS.unpack(
                self._socket.getsockopt(
                    socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
                )
            )
            if uid != os.geteuid():
                raise PermissionError(f"{self._path} belongs to another user")
        except BaseException:
            self._socket.close()
            raise
        return int(pid)

    def greet(self) -> None:
        """Read the greeting. Raise :class:`CutraceError` if the process sends none or speaks another protocol."""
        for wait in _RETRIES:
            try:
                greeting = self._read(_GREETING)
                break
            except CutraceError:
                if self.ended != "lost" or wait is None:
                    raise
            # If a process has closed all its descriptors, it opens its socket again after this connection.
            time.sleep(wait)
            with suppress(OSError):
                self._socket.close()
                self._connect()
                self.ended = ""
        if greeting.get("protocol") != _PROTOCOL:
            raise CutraceError(
                f"process {self.pid} has the collector of cutrace {greeting.get('cutrace')}, which talks another "
                "language: attach with that version"
            )

    def ask(self, request: str, timeout: float = _ANSWER) -> dict[str, Any]:
        """Send a request and return the answer. Raises :class:`CutraceError` when the process does not answer, and with
        the reason of the process when it refuses."""
        with suppress(OSError):  # Reading reports the error.
            self._socket.settimeout(timeout)
            self._socket.sendall(os.fsencode(request) + b"\n")
        answer = self._read(timeout)
        if "error" in answer:
            raise CutraceError(f"process {self.pid}: {answer['error']}")
        return answer

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process, at most this long. Returns whether it has ended."""
        if not self.ended and select.select([self._socket], [], [], seconds)[0]:
            with suppress(CutraceError):
                self._read(_GREETING)
        return self.ended != ""

    def close(self) -> None:
        self._socket.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        try:
            self._socket.settimeout(timeout)
            while b"\n" not in self._received:
                piece = self._socket.recv(1 << 16)
                if not piece:
                    raise ConnectionResetError
                self._received += piece
        except TimeoutError:
            raise CutraceError(
                f"process {self.pid} does not answer: it is stopped, or has no free descriptor. Try again later."
            ) from None
        except OSError:
            self.ended = self.ended or "lost"
            raise CutraceError(f"process {self.pid} has ended") from None
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "ended" in message:
            self.ended = "exit"
            raise CutraceError(f"process {self.pid} has ended")
        return message


def _find(pid: int) -> _Connection:
    """Connect to a process. Raises :class:`CutraceError`, with advice, when it is not on standby."""
    deadline = time.monotonic() + _GREETING
    # If a process has closed all its descriptors, it opens its socket again.
    while (
        (connection := _reached(pid)) is None
        and _sleeps(pid)
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    if connection is None:
        raise CutraceError(_absence(pid))
    try:
        connection.greet()
    except BaseException:
        connection.close()
        raise
    return connection


def _reached(pid: int) -> _Connection | None:
    for folders in (_folders(), _folders_of(pid)):
        # The pid in the name can be wrong: containers can share /tmp, and they have their own pids.
        for path in sorted(
            _sockets(folders), key=lambda path: not path.name.startswith(f"{pid}-")
        ):
            with suppress(OSError):
                connection = _Connection(path)
                if connection.pid == pid:
                    return connection
                connection.close()
    return None


def length_of(duration: Time) -> float:
    """Return the length of a recording in seconds. Raises :class:`CutraceError` for less than a millisecond."""
    ns = parse_duration(duration)
    if ns < _SHORTEST:
        raise CutraceError(
            f"a recording cannot last {duration!r}: give 1ms or more, such as '10s'"
        )
    return ns / 1e9


def wait_for_end(pid: int, seconds: float) -> bool:
    """Wait for the end of a process, at most this long. Returns whether it has ended."""
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except OSError:  # Linux before 5.3
            process = -1
        else:
            stack.callback(os.close, process)
        while (left := deadline - time.monotonic()) > 0:
            ready = [process] if process >= 0 else []
            if select.select(
                ready, [], [], min(left, _LONGEST_WAIT if ready else _POLL)
            )[0]:
                return True
            if not Path(f"/proc/{pid}").exists():
                return True
    return False


def _after_loss(pid: int) -> str:
    """A sentence on a process whose connection was lost. Waits until the recording of the process has ended."""
    deadline = time.monotonic() + _ANSWER
    while _sleeps(pid) and time.monotonic() < deadline:
        with suppress(CutraceError), closing(_find(pid)) as again:
            again.ask("status")
            return f"process {pid} has closed the connection, which ended the recording"
        # The process opens its socket again after the end of the recording.
        time.sleep(0.05)
    return f"process {pid} was killed, or replaced itself: the capture has what it had written by then"


def _sleeps(pid: int) -> bool:
    """Whether a process still has the thread that answers requests."""
    with suppress(OSError):
        return any(
            name.read_text() == "cutrace-standby\n"
            for name in Path(f"/proc/{pid}/task").glob("*/comm")
        )
    return False


def _absence(pid: int) -> str:
    """The reason why a process cannot be attached to, and advice."""
    import pwd  # Windows lacks pwd, but imports this file.

    process = Path(f"/proc/{pid}")
    try:
        owner = process.stat().st_uid
    except OSError:
        return f"there is no process {pid}: `cutrace ps` lists the processes on standby"
    if owner != os.geteuid():
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            name = f"#{owner}"
        command = f"sudo -u '{name}' cutrace attach {pid}"
        return f"process {pid} belongs to another user: only that user can attach ({command})"
    variables = variables_of(pid)
    if environment.on_standby(variables):
        return (
            f"process {pid} can be attached to after its first CUDA or NVTX call, and it has made none yet: try again "
            "later. If it has, see its first lines on stderr."
        )
    if environment.recorded(variables):
        return (
            f"process {pid} is recorded already, by `cutrace record` or cutrace.arm()"
        )
    return (
        f"process {pid} is not on standby: start it with `cutrace arm -- command`, then `cutrace attach` can record it "
        "at any time"
    )


def variables_of(pid: int) -> dict[str, str]:
    """The environment with which a process was started, empty if this user may not read it."""
    with suppress(OSError):
        pairs = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return {}


def _elsewhere(pid: int) -> str:
    """A sentence on a process that sees other files than this one."""
    with suppress(OSError):
        theirs = Path(f"/proc/{pid}")
        ours = Path("/proc/self")
        if (theirs / "root").samefile(ours / "root") and (
            theirs / "ns/mnt"
        ).readlink() == (ours / "ns/mnt").readlink():
            return ""
    why = "The process sees other files (a container or chroot)"
    return f". {why}: name an output in a folder that both have by one path"


def _folders() -> tuple[Path, ...]:
    """The folders of sockets of this user's processes. Raises :class:`CutraceError` where cutrace does not record."""
    if sys.platform != "linux":
        raise CutraceError(f"cutrace records on Linux only, and this is {sys.platform}")
    return tuple(existing_folders())


def _folders_of(pid: int) -> list[Path]:
    """The folders of a process. It may have another runtime folder, and in a container other files."""
    root = Path(f"/proc/{pid}/root")
    runtime = variables_of(pid).get("XDG_RUNTIME_DIR", "").lstrip("/")
    with suppress(OSError):  # The process belongs to another user.
        return [
            root / runtime / "cutrace",
            *root.glob("run/user/*/cutrace"),
            *root.glob("tmp/cutrace-*"),
        ]
    return []


def _sockets(folders: Collection[Path]) -> list[Path]:
    out: list[Path] = []
    for folder in folders:
        with suppress(OSError):
            out += sorted(
                path for path in folder.iterdir() if re.fullmatch(r"\d+-\d+", path.name)
            )
    return out


def _one_line(path: Path) -> Path:
    if "\n" in str(path):
        raise CutraceError(
            f"the path {str(path)!r} contains a line break: choose another path"
        )
    return path
