"""Where a recording goes, and joining the files of its processes into one capture or a trace of another format.

A capture is a sequence of blocks, so joining is concatenation.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CutraceError
from ..outputs import check_output, concatenate, publish, replacing, unwritable
from .options import Options
from .sampling import SAMPLES, Sampling, start_sampling

_CAPTURE = ".bin"
_HEADER_SIZE = 64
_PAYLOAD_SIZE = slice(16, 20)
_LARGEST_DESCRIPTION = 1 << 24
# The number of a window at the end of a file's name: see the collector's features/windows.
_WINDOW = re.compile("-w([0-9]{1,18})$")


@dataclass(frozen=True)
class Recording:
    """The result of a recording.

    :param status: exit status of the recorded command as a shell gives it: 128 + n when signal n ended it.
    :param output: the output, None when no process wrote anything.
    :param capture: the file with the capture: ``output``, or ``run.bin`` in the same folder.
    :param processes: number of processes that wrote a file.
    :param running: pids of processes that were still recording; the capture holds what they wrote so far.
    :param trouble: a sentence about an error of sampling, or about the loss of the process, "" for none.
    """

    status: int
    output: Path | None
    capture: Path
    processes: int
    running: tuple[int, ...]
    trouble: str = ""


@dataclass(frozen=True)
class Destination:
    """Where a recording goes, and the process that samples metrics for it.

    :param output: the output that the user named.
    :param capture: the file with the capture: ``output``, or ``run.bin`` next to ``run.json``.
    :param dump: the path that names dumps: ``run.bin`` for ``run.pftrace`` and ``run.json``.
    :param directory: a new folder for the files of the processes, next to ``dump``; only this user can enter it.
    :param redact: whether the capture is redacted.
    """

    output: Path
    capture: Path
    dump: Path
    directory: Path
    redact: bool
    sampling: Sampling | None

    @classmethod
    def at(cls, output: str | os.PathLike[str], options: Options) -> Destination:
        """Make the folder, and start to sample if the options ask for it. Raises :class:`CutraceError` when ``output``
        cannot be written or counters cannot be sampled."""
        output = capture = dump = Path(output)
        if output.suffix != _CAPTURE:
            capture, dump = _captures(output)
        check_output(dump, ())
        try:
            directory = Path(tempfile.mkdtemp(prefix=f".{dump.name}.", dir=dump.parent))
        except OSError as error:
            raise unwritable(output, error) from None
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

    def finish(self, status: int = 0) -> Recording:
        """End sampling, join the files of the processes, convert the capture if the output has another format, and
        remove the folder. Raises :class:`CutraceError` on failure, with the path of the capture or files."""
        trouble = "" if self.sampling is None else self.sampling.stop()
        parts, running = finished_parts(self.directory)
        kept = self.directory
        if parts:
            inside = self.capture == self.output != self.dump
            whole = self.directory / f"whole{_CAPTURE}" if inside else self.dump
            try:
                # A file that a process still writes is copied: a renamed file would go on growing.
                join(parts, whole, moving=not running, redacted=self.redact)
                kept = whole
                if self.output != whole:
                    from ..conversion import convert

                    convert(whole, self.output, capture=True if inside else None)
            except CutraceError as error:
                if not inside and kept == whole:
                    self.discard()
                raise CutraceError(f"{error} The recording is in {kept}.") from None
        self.discard()
        processes = len(recorded(parts))
        wrote = processes or self.sampling is not None
        return Recording(
            status,
            self.output if wrote else None,
            self.capture,
            processes,
            running,
            trouble,
        )

    def discard(self) -> None:
        """End sampling at once, and remove the folder and its files."""
        if self.sampling is not None:
            self.sampling.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def free_output(output: Path) -> Path:
    """The first of ``run-1.bin``, ``run-2.bin``, ... that does not exist, nor a capture beside it."""
    suffix, _ = _format_of(output)
    suffix = suffix or output.suffix
    stem = output.name.removesuffix(suffix)
    for number in itertools.count(1):
        name = output.with_name(f"{stem}-{number}{suffix}")
        if (
            not name.exists()
            and not name.with_name(f"{stem}-{number}{_CAPTURE}").exists()
        ):
            return name
    raise AssertionError("there is always a next number")


def _format_of(output: Path) -> tuple[str, str]:
    """The ending of an output and the name of its format, each "" for a capture."""
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
    """``capture`` and ``dump`` of :class:`Destination` for an output that does not end with ``.bin``. An output with an
    unknown ending is a capture."""
    from ..conversion import check_destination

    suffix, name = _format_of(output)
    if not suffix:
        return output, output
    check_destination(output, ())
    beside = output.with_name(output.name.removesuffix(suffix) + _CAPTURE)
    if name == "perfetto":  # the trace carries the capture
        return output, beside
    return beside, beside


# How long (s) to wait for ending processes to close their files.
_GRACE = 1.0


def finished_parts(directory: Path) -> tuple[list[Path], tuple[int, ...]]:
    """The files of a recording, and the processes that still write one after a short wait."""
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
    with suppress(
        OSError, ValueError
    ):  # the process has ended, or belongs to another user
        if any(
            link.readlink() == target for link in Path("/proc", pid, "fd").iterdir()
        ):
            return int(pid)
    return None


def recorded(parts: Sequence[Path]) -> set[str]:
    """``<pid>-<instance>`` of each process that wrote these files. One that keeps its newest rows, or records windows,
    has several files."""
    return {
        "-".join(_WINDOW.sub("", part.stem).split("-")[:2])
        for part in parts
        if part.name != SAMPLES
    }


def _order(part: Path) -> tuple[bool, int, str, int]:
    """Sorts files by the start of their process, and those of a process by their window. Samples are last."""
    window = _WINDOW.search(part.stem)
    # What has no number yet is the newest window.
    number = int(window[1]) if window else sys.maxsize
    return (
        part.name == SAMPLES,
        started(part),
        _WINDOW.sub("", part.stem) + part.suffix,
        number,
    )


def started(path: Path) -> int:
    """When the process of a file began to record (ns of BOOTTIME), 0 when unknown. Reads only the first block, the
    process block."""
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

    With ``moving`` the parts are removed, or a single one is renamed. Without it they are only read, up to their
    current end. Raises :class:`CutraceError` when the output cannot be written; the parts then stay.
    """
    if redacted:
        from ..runbin.redaction import redact

        # In the folder of the parts, which only this user can enter.
        whole = parts[0].with_name("joined")
        join(parts, whole, moving=False)
        redact(whole, output)
        whole.unlink()
        for part in parts if moving else ():
            part.unlink(missing_ok=True)
        return
    if moving and len(parts) == 1 and not output.is_symlink():
        publish(parts[0], output)
        return
    with replacing(output) as temporary, temporary.open("wb") as file:
        concatenate(sorted(parts, key=_order), file)
    if moving:
        for part in parts:
            part.unlink(missing_ok=True)
