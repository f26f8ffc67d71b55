"""One capture, or a trace of it, out of the files that the processes of a program wrote.

A capture is a sequence of blocks, so joining is concatenation.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CutraceError
from ..outputs import check_output, concatenate, publish, replacing, unwritable

_CAPTURE = ".bin"
#: The file in the folder of a recording with what was sampled, beside those of the processes.
SAMPLES = "samples.bin"
_HEADER_SIZE = 64
_PAYLOAD_SIZE = slice(16, 20)
_LARGEST_DESCRIPTION = 1 << 24


@dataclass(frozen=True)
class Destination:
    """Where a recording goes.

    :param output: what was asked for.
    :param capture: the file with the capture: ``output``, or ``run.bin`` beside ``run.json``.
    :param dump: the capture beside which dumps go: ``run.bin`` for ``run.pftrace`` and ``run.json``.
    :param directory: a new folder beside it that only this user can enter, for the files of the processes.
    """

    output: Path
    capture: Path
    dump: Path
    directory: Path

    @classmethod
    def at(cls, output: str | os.PathLike[str]) -> Destination:
        """Raises :class:`CutraceError` when ``output`` could not be written there."""
        output = capture = dump = Path(output)
        if output.suffix != _CAPTURE:
            capture, dump = _captures(output)
        check_output(dump)
        try:
            directory = Path(tempfile.mkdtemp(prefix=f".{dump.name}.", dir=dump.parent))
        except OSError as error:
            raise unwritable(output, error) from None
        return cls(output, capture, dump, directory)

    def finish(self, *, redacted: bool) -> tuple[int, tuple[int, ...]]:
        """Join the files of the processes, convert the capture if the output has another format, and remove the folder.

        Returns how many processes wrote a file, and the pids of those that were still recording; what they had written
        is in the capture. Raises :class:`CutraceError` when that fails: it says where the capture or the files are.
        """
        parts, running = finished_parts(self.directory)
        place = self.directory
        if parts:
            inside = self.capture == self.output != self.dump
            whole = self.directory / f"whole{_CAPTURE}" if inside else self.dump
            try:
                # A file that is still written to is copied: renamed, it would go on growing.
                join(parts, whole, moving=not running, redacted=redacted)
                place = whole
                if self.output != whole:
                    from ..conversion import convert

                    convert(whole, self.output, capture=True if inside else None)
            except CutraceError as error:
                if not inside and place == whole:
                    self.discard()
                raise CutraceError(f"{error} What was recorded is in {place}.") from None
        self.discard()
        return len(recorded(parts)), running

    def discard(self) -> None:
        """Remove the folder and what is in it."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _captures(output: Path) -> tuple[Path, Path]:
    """The file with the capture, and the capture beside which dumps go, for an output that does not end with ``.bin``.
    An output whose ending no exporter has is a capture."""
    from ..conversion import check_destination
    from ..plugins import EXPORTERS

    endings = [(suffix, e.name) for e in EXPORTERS for suffix in e.suffixes if output.name.lower().endswith(suffix)]
    if not endings:
        return output, output
    check_destination(output)
    suffix, name = max(endings, key=lambda pair: len(pair[0]))
    beside = output.with_name(output.name[: -len(suffix)] + _CAPTURE)
    return (output if name == "perfetto" and not suffix.endswith(".gz") else beside), beside


# Processes that are about to end are given this long to close their files.
_GRACE = 1.0


def finished_parts(directory: Path) -> tuple[list[Path], tuple[int, ...]]:
    """The files of a recording, and the processes that still write to one after a moment's grace."""
    deadline = time.monotonic() + _GRACE
    while True:
        parts = sorted(p for p in directory.glob("*.bin") if p.stat().st_size)
        running = tuple(sorted({pid for part in parts if (pid := writer(part)) is not None}))
        if not running or time.monotonic() > deadline:
            return parts, running
        time.sleep(0.02)


def writer(part: Path) -> int | None:
    """The process that still has its file (``<pid>-<instance>.bin``) open."""
    pid = part.name.partition("-")[0]
    target = part.resolve()
    with suppress(OSError, ValueError):  # it has ended, or is another user's
        if any(link.readlink() == target for link in Path("/proc", pid, "fd").iterdir()):
            return int(pid)
    return None


def recorded(parts: Sequence[Path]) -> set[str]:
    """Who wrote these files: ``<pid>-<instance>`` of each process. One that keeps its newest rows has several files."""
    return {"-".join(part.stem.split("-")[:2]) for part in parts if part.name != SAMPLES}


def started(path: Path) -> int:
    """When the process of a file began to record (ns of BOOTTIME), 0 when the file does not say.

    Only the first block is looked at: the process block, whose JSON carries it.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_HEADER_SIZE)[_PAYLOAD_SIZE], "little")
            description = json.loads(file.read(min(size, _LARGEST_DESCRIPTION)))
        return int(description.get("started", 0))
    except (OSError, ValueError, AttributeError, TypeError):
        return 0


def join(parts: Sequence[Path], output: Path, *, moving: bool, redacted: bool = False) -> None:
    """Make ``output`` out of ``parts``, in the order of their start and samples last, replacing it in one step;
    ``redacted`` as :func:`cutrace.runbin.redaction.redact` says.

    With ``moving`` the parts are used up: a single one is renamed. Without it they are only read, as far as
    they reach now. Raises :class:`CutraceError` when the output cannot be written; the parts are then untouched.
    """
    if redacted:
        from ..runbin.redaction import redact

        # Beside the parts, in a folder that nobody else can enter.
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
        concatenate(sorted(parts, key=lambda p: (p.name == SAMPLES, started(p), p.name)), file)
    if moving:
        for part in parts:
            part.unlink(missing_ok=True)
