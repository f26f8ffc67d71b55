"""One capture out of the files that the processes of a program wrote.

A capture is a sequence of blocks, so joining is concatenation.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..outputs import append, unwritable

_HEADER_SIZE = 64
_PAYLOAD_SIZE = slice(16, 20)
_LARGEST_DESCRIPTION = 1 << 24


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
    try:
        if any(link.readlink() == target for link in Path("/proc", pid, "fd").iterdir()):
            return int(pid)
    except (OSError, ValueError):
        # It has ended, or is another user's.
        pass
    return None


def recorded(parts: Sequence[Path]) -> set[str]:
    """Who wrote these files: ``<pid>-<instance>`` of each process. One that keeps its newest rows has several files."""
    return {"-".join(part.stem.split("-")[:2]) for part in parts}


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
    """Make ``output`` (mode 0600) out of ``parts``, in the order of their start, replacing it in one step; ``redacted``
    as :func:`cutrace.runbin.redaction.redact` says.

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
    try:
        if moving and len(parts) == 1:
            parts[0].chmod(0o600)
            parts[0].replace(output)
            return
        # mkstemp: mode 0600, and a name that no other recording into the same file has.
        fd, temporary = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        try:
            for part in sorted(parts, key=lambda p: (started(p), p.name)):
                with part.open("rb") as source:
                    append(source.fileno(), fd)
            os.close(fd)
            fd = -1
            Path(temporary).replace(output)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(output, error) from None
    if moving:
        for part in parts:
            part.unlink(missing_ok=True)
