"""The output of a recording, and joining the files of its processes into one capture or a trace of another format.

A capture is a sequence of blocks, so joining is concatenation. Only the first block of each file changes.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..errors import CutraceError
from ..outputs import check_output, concatenate, publish, replacing, unwritable
from .options import Options
from .sampling import SAMPLES, Sampling, start_sampling

_CAPTURE = ".bin"
_WHOLE = ".whole"
_HEADER_SIZE = 64
_PAYLOAD_SIZE = slice(16, 20)
_LARGEST_DESCRIPTION = 1 << 24
# The number of a window at the end of a file's name: see the collector's features/windows.
_WINDOW = re.compile("-w([0-9]{1,18})$")
# The variables in the name of an output: an environment variable, the host, the process.
_PLACEHOLDERS = re.compile(
    r"%(?:q(?P<braces>\{(?P<variable>[^{}]+)\})?|(?P<letter>[hp]))"
)
# The variable for the first number that makes a new file name.
_NUMBER = "%i"


@dataclass(frozen=True)
class Recording:
    """The result of a recording.

    :param status: exit status of the recorded command, or 128 + n when signal n ended it.
    :param output: the output, None when no process wrote anything.
    :param capture: the file with the capture: ``output``, or ``run.bin`` in the same folder.
    :param processes: number of processes that wrote a file.
    :param running: pids of processes that were still recording. The capture has the rows that they wrote so far.
    :param trouble: a sentence about an error of sampling, or about the loss of the process or of the folder, "" for
        none.
    :param windows: the files of the windows, if each window has a file. ``output`` and ``capture`` are then the files
        of the last window.
    """

    status: int
    output: Path | None
    capture: Path
    processes: int
    running: tuple[int, ...]
    trouble: str = ""
    windows: tuple[Recording, ...] = ()


@dataclass(frozen=True)
class Destination:
    """The output of a recording, and the process that samples metrics for it.

    :param output: the output that the user named.
    :param capture: the file with the capture: ``output``, or ``run.bin`` next to ``run.json``.
    :param dump: the path that names dumps: ``run.bin`` for ``run.pftrace`` and ``run.json``.
    :param directory: a new folder for the files of the processes, next to ``dump``; only this user can enter it.
    :param redact: whether the capture is redacted.
    :param published: the files of the windows that are written already, by the name of the file in ``directory``.
    """

    output: Path
    capture: Path
    dump: Path
    directory: Path
    redact: bool
    sampling: Sampling | None
    published: dict[Path, Recording] = field(default_factory=dict)

    @classmethod
    def of(cls, output: Path, options: Options) -> Destination:
        """Make the folder, and start to sample if the options ask for it. Raises :class:`CutraceError` when the output
        cannot be written or counters cannot be sampled."""
        capture, dump = _captures(output)
        check_output(dump, ())
        if is_numbered(output) and options.keeps_newest:
            # The collector names dumps after the output, so the number is chosen now.
            output, directory = _reserved(output)
            capture, dump = _captures(output)
        else:
            directory = _private_folder(dump)
        try:
            return cls(
                output,
                capture,
                dump,
                directory,
                options.redact,
                start_sampling(options, directory),
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def publish_windows(self) -> None:
        """Write each complete window to a file of its own, if the name of the output has a number.

        Raises :class:`CutraceError` when a window cannot be written. Its file stays in the folder.
        """
        if not is_numbered(self.output):
            return
        complete = sorted(self.directory.glob(f"*-w*{_CAPTURE}"), key=_order)
        failures = list(filter(None, map(self._publish, complete)))
        if failures:
            raise failures[0]

    def _publish(self, part: Path) -> CutraceError | None:
        try:
            self.published[part] = self._write([part], ())
        except CutraceError as error:
            return error
        return None

    def finish(self, status: int = 0) -> Recording:
        """End sampling, join the files of the processes, convert the capture if the output has another format, and
        remove the folder. Raises :class:`CutraceError` on failure, with the path of the capture or files."""
        trouble = "" if self.sampling is None else self.sampling.stop()
        parts, running = finished_parts(self.directory)
        nothing = None if self.sampling is None else self.output
        if not self.directory.is_dir():
            nothing = None
            trouble = (
                f"the folder of the recording, {self.directory}, was removed or renamed during the recording. "
                "Record into a folder that no other program changes."
            )
        last = Recording(status, nothing, self.capture, 0, running)
        left: list[Path] = []
        try:
            self.publish_windows()
            windows = list(self.published.values())
            left += filter(Path.exists, parts)
            if windows:
                # A process that was killed between two windows leaves a file without a window.
                left = list(filter(_has_window, left))
            if left:
                last = self._write(left, running)
        except CutraceError:
            if not list(self.directory.glob(f"*{_CAPTURE}")):
                self.discard()
            raise
        self.discard()
        if windows and left:
            windows.append(last)
        elif windows:
            last = windows[-1]
        return replace(
            last,
            status=status,
            processes=len(recorded([*self.published, *left])),
            trouble=trouble,
            windows=tuple(windows),
        )

    def _write(self, parts: Sequence[Path], running: tuple[int, ...]) -> Recording:
        """Join files into the capture, and convert it if the output has another format. Raises :class:`CutraceError`
        on failure, with the path of the capture or files."""
        if not is_numbered(self.output):
            return self._written(parts, running)
        try:
            # Other recordings may end at the same time.
            output, reserved = _reserved(self.output)
        except CutraceError as error:
            raise CutraceError(
                f"{error} The recording is in {self.directory}."
            ) from None
        capture, dump = _captures(output)
        to = replace(self, output=output, capture=capture, dump=dump)
        try:
            return to._written(parts, running)
        finally:
            shutil.rmtree(reserved, ignore_errors=True)

    def _written(self, parts: Sequence[Path], running: tuple[int, ...]) -> Recording:
        """Write the files to the output, whose name has no number any more. Raises the errors of :meth:`_write`."""
        inside = self.capture == self.output != self.dump
        whole = self.dump
        if inside:
            # If the trace of a window cannot be written, its file stays in the folder for the next attempt.
            name = parts[0].stem.removesuffix(_WHOLE)
            whole = self.directory / f"{name}{_WHOLE}{_CAPTURE}"
        kept = self.directory
        try:
            # Copy a file that a process still writes: a renamed file would grow further.
            join(parts, whole, moving=not running, redacted=self.redact)
            kept = whole
            if self.output != whole:
                from ..conversion import convert

                convert(whole, self.output, capture=True if inside else None)
            if inside:
                whole.unlink()  # At the end it is treated as the file of a process.
        except CutraceError as error:
            if not inside and kept == whole:
                _remove(parts)
            raise CutraceError(f"{error} The recording is in {kept}.") from None
        return Recording(0, self.output, self.capture, len(recorded(parts)), running)

    def discard(self) -> None:
        """End sampling at once, and remove the folder and its files."""
        if self.sampling is not None:
            self.sampling.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def output_name(given: str | os.PathLike[str], pid: int | None = None) -> Path:
    """The path of an output: in ``given``, ``%q{NAME}`` stands for an environment variable, ``%h`` for the name of the
    host without its domain, and ``%p`` for the id of the recorded process (by default this process). ``%i`` is not
    replaced.

    Raises :class:`CutraceError` when a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        variable = found["variable"]
        if found["letter"] == "h":
            # An ending such as .local would name a format.
            return platform.node().partition(".")[0]
        if found["letter"] == "p":
            return str(pid or os.getpid())
        if variable is None:
            raise CutraceError(
                f"the output {os.fspath(given)!r} names no environment variable: write %q{{NAME}}"
            )
        if variable not in os.environ:
            raise CutraceError(
                f"the output {os.fspath(given)!r} needs the environment variable {variable}, which is not set: "
                "set it, or choose another name"
            )
        return os.environ[variable]

    return Path(_PLACEHOLDERS.sub(value, os.fspath(given)))


def is_numbered(output: Path) -> bool:
    """Whether the name of an output has a number (``%i``)."""
    return _NUMBER in output.name


def free_output(output: Path) -> Path:
    """The first of ``run-1.bin``, ``run-2.bin``, ... for which neither the file nor its capture exists, and which no
    recording has reserved. If the name has ``%i``, the number replaces it."""
    return next(_free_names(output)).output


@contextmanager
def reserved_output(output: Path) -> Iterator[Path]:
    """Yield :func:`free_output`, which no other recording chooses in the block. Raises :class:`CutraceError` when the
    folder cannot be written."""
    free, folder = _reserved(output)
    try:
        yield free
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reserved(output: Path) -> tuple[Path, Path]:
    """The first free output, and a new private folder that reserves it among recordings until the folder is
    removed. Raises :class:`CutraceError` when there can be no folder."""
    for free in _free_names(output):
        try:
            free.folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(output, error) from None
        if not free.exists:
            return free.output, free.folder
        # Another recording has written its file and removed its folder meanwhile.
        free.folder.rmdir()
    raise AssertionError("there is always a next number")


class _Numbered(NamedTuple):
    """An output with a number, its capture, and the folder that reserves both."""

    output: Path
    capture: Path
    folder: Path

    @property
    def exists(self) -> bool:
        return self.output.exists() or self.capture.exists()


def _free_names(output: Path) -> Iterator[_Numbered]:
    """The outputs for :func:`free_output`, without end."""
    suffix, _ = _format_of(output)
    suffix = suffix or output.suffix
    stem = output.name.removesuffix(suffix)
    if _NUMBER not in stem:
        stem += f"-{_NUMBER}"
    for number in itertools.count(1):
        numbered = stem.replace(_NUMBER, str(number))
        capture = output.with_name(numbered + _CAPTURE)
        folder = capture.with_name(f".{capture.name}.number")
        free = _Numbered(output.with_name(numbered + suffix), capture, folder)
        if not free.exists and not folder.exists():
            yield free


def _private_folder(dump: Path) -> Path:
    """A new folder beside a file; only this user can enter it. Raises :class:`CutraceError` on failure."""
    try:
        return Path(tempfile.mkdtemp(prefix=f".{dump.name}.", dir=dump.parent))
    except OSError as error:
        raise unwritable(dump, error) from None


def _format_of(output: Path) -> tuple[str, str]:
    """The ending of an output and the name of its format; both are "" for a capture."""
    from ..plugins import own_exporters

    endings = [
        (suffix, e.name)
        for e in own_exporters()
        for suffix in e.suffixes
        if output.name.lower().endswith(suffix)
    ]
    suffix, name = max(endings, key=lambda pair: len(pair[0]), default=("", ""))
    return output.name[len(output.name) - len(suffix) :], name


def _captures(output: Path) -> tuple[Path, Path]:
    """``capture`` and ``dump`` of :class:`Destination` for an output. An output without an ending, or with a number as
    its ending, is a capture. Raises :class:`CutraceError` for an ending of no format."""
    ending = output.suffix
    if ending in ("", _CAPTURE) or ending[1:].isdigit():
        return output, output
    from ..conversion import check_destination

    check_destination(output, ())
    suffix, name = _format_of(output)
    suffix = suffix or ending  # The format is of another package.
    beside = output.with_name(output.name.removesuffix(suffix) + _CAPTURE)
    if name == "perfetto":  # The trace embeds the capture.
        return output, beside
    return beside, beside


# The time (s) to wait for ending processes to close their files.
_GRACE = 1.0


def finished_parts(directory: Path) -> tuple[list[Path], tuple[int, ...]]:
    """The files of a recording, and the processes that still write to one after a short wait."""
    deadline = time.monotonic() + _GRACE
    while True:
        parts = sorted(p for p in directory.glob("*.bin") if p.stat().st_size)
        running = tuple(
            sorted({pid for part in parts if (pid := writer(part)) is not None})
        )
        if not running or time.monotonic() > deadline:
            return parts, running
        time.sleep(0.02)


def writer(part: Path) -> int | None:
    """The process that still has its file (``<pid>-<instance>.bin``) open; None when it is closed."""
    pid = part.name.partition("-")[0]
    target = part.resolve()
    # The process has ended, or belongs to another user.
    with suppress(OSError, ValueError):
        if any(_leads_to(link, target) for link in Path("/proc", pid, "fd").iterdir()):
            return int(pid)
    return None


def _leads_to(link: Path, target: Path) -> bool:
    """Whether a link leads to ``target``. The links of a process to its files can disappear at any time."""
    with suppress(OSError):
        return link.readlink() == target
    return False


def recorded(parts: Sequence[Path]) -> set[str]:
    """``<pid>-<instance>`` of each process that wrote these files. A process has several files if it keeps its newest
    rows or records windows."""
    return {
        "-".join(_WINDOW.sub("", part.stem).split("-")[:2])
        for part in parts
        if part.name != SAMPLES
    }


def _order(part: Path) -> tuple[bool, int, str, int]:
    """The sort key of files: the start of the process, then the window. Samples are last."""
    window = _WINDOW.search(part.stem)
    # The newest window has no number yet.
    number = int(window[1]) if window else sys.maxsize
    return (
        part.name == SAMPLES,
        started(part),
        _WINDOW.sub("", part.stem) + part.suffix,
        number,
    )


def _has_window(part: Path) -> bool:
    """Whether a file of a process has a window. A file that cannot be read may have one."""
    from ..runbin import Reader

    try:
        with Reader(part) as reader:
            return any("windows" in process for process in reader.processes)
    except CutraceError:
        return True


def started(path: Path) -> int:
    """The time at which the process of a file started to record (ns of BOOTTIME), 0 if unknown. Reads only the first
    block, the process block."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_HEADER_SIZE)[_PAYLOAD_SIZE], "little")
            description = json.loads(file.read(min(size, _LARGEST_DESCRIPTION)))
        return int(description.get("started", 0))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0


def join(
    parts: Sequence[Path], output: Path, *, moving: bool, redacted: bool = False
) -> None:
    """Join ``parts`` into ``output``, in the order of their start and with samples last; an existing file is replaced
    in one step. ``redacted`` applies :func:`cutrace.runbin.redaction.redact`.

    With ``moving`` the parts are removed, and a single part is renamed. Without it they are only read, up to their
    current end. Raises :class:`CutraceError` when the output cannot be written; the parts then stay.
    """
    if redacted:
        from ..runbin.redaction import redact

        # The temporary file is in the folder of the parts, which only this user can enter.
        whole = parts[0].with_name("joined")
        join(parts, whole, moving=False)
        redact(whole, output)
        whole.unlink()
        if moving:
            _remove(parts)
        return
    if moving and len(parts) == 1 and not output.is_symlink():
        publish(parts[0], output)
        return
    from ..runbin.joining import mark

    offsets = []
    with replacing(output) as temporary, temporary.open("w+b") as file:
        for part in sorted(parts, key=_order):
            offsets.append(file.tell())
            concatenate([part], file)
        mark(file, offsets)
    if moving:
        _remove(parts)


def _remove(parts: Iterable[Path]) -> None:
    for part in parts:
        part.unlink(missing_ok=True)
