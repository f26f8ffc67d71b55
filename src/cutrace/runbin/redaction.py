"""Captures without what says whose they are: command lines, host names, paths.

A capture is read block by block and written again. What is kept of a process description is a list of keys, not a list
of exceptions, so that what newer versions store is left out too. docs/privacy.md says what stays.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CutraceError
from ..outputs import check_output, unwritable
from .blocks import HEADER_SIZE, pack_header, padded
from .layout import PROCESS_BLOCK, STRINGS_BLOCK
from .reader import Reader

#: Keys of the process description that stay.
KEPT = frozenset(
    ("format", "producer", "pid", "parent_pid", "boot_id", "clock", "clock_of", "started", "ended", "kinds",
     "cupti_version", "driver", "driver_version", "runtime_version", "nvtx", "tables")
)  # fmt: skip
#: Options of the recording that stay: the others are paths.
KEPT_OPTIONS = frozenset(
    ("kinds", "api", "graph", "nvtx", "max_memory", "max_size", "flush_ms", "last_ms", "rotate", "redact", "share")
)

#: What stands for a path.
PATH = b"(path)"

# Tables begin here; what lies below and is not known here cannot be made safe.
_FIRST_TABLE = 16

# An absolute path, or one below a home: two names or more, up to what ends a path in a sentence.
_PATHS = re.compile(
    rb"(?<![\w.~-])(?:~[\w.-]*|file://)?(?:/[^/\s\"'<>|:;,()\[\]]+){2,}/?"
    rb"|(?<![\w.~/-])~[\w.-]*/[^\s\"'<>|:;,()]*"
)


def without_paths(text: bytes) -> bytes:
    """A text with ``(path)`` for each absolute path in it. A text that is a path, blanks in it or not, is one whole."""
    if text.startswith((b"/", b"~/")) and text.count(b"/") > 1 and b"\n" not in text:
        return PATH
    return _PATHS.sub(PATH, text)


def description(info: dict[str, Any]) -> dict[str, Any]:
    """A process description with nothing but what may stay."""
    kept = {key: value for key, value in info.items() if key in KEPT}
    options, notes = info.get("options"), info.get("notes")
    if isinstance(options, dict):
        kept["options"] = {key: value for key, value in options.items() if key in KEPT_OPTIONS}
    if isinstance(notes, list):
        kept["notes"] = [
            without_paths(str(note).encode("utf-8", "replace")).decode("utf-8", "replace") for note in notes
        ]
    return kept | {"redacted": True}


def redact(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """Write the capture ``source`` to ``destination`` (mode 0600, in one step) without command lines, host names, paths
    and whatever else is not known to be harmless. Blocks that are damaged are left out.

    Raises :class:`CutraceError` when the source is no capture or the destination cannot be written.
    """
    source, destination = Path(source), Path(destination)
    check_output(destination)
    if destination.exists() and source.exists() and source.samefile(destination):
        raise CutraceError(f"{destination} is the capture itself: choose another name")
    with Reader(source) as reader:
        try:
            fd, temporary = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    for index in range(len(reader.offsets)):
                        _copy(reader, index, file)
                Path(temporary).replace(destination)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise unwritable(destination, error) from None


def _copy(reader: Reader, index: int, to: BinaryIO) -> None:
    """Write one block as it may be seen."""
    header, payload = reader.headers[index], reader.payload(index)
    kind, rows = int(header["kind"]), int(header["rows"])
    if payload is None:
        return
    if kind == PROCESS_BLOCK:
        payload = _description(payload)
    elif kind == STRINGS_BLOCK:
        strings = reader.strings(index)
        texts = [(number, without_paths(text)) for number, text in strings or ()]
        rows = len(texts)
        pairs = np.array([(number, len(text)) for number, text in texts], "<u4")
        payload = pairs.tobytes() + b"".join(text for _, text in texts)
    elif kind < _FIRST_TABLE:
        return
    fields = {
        name: int(header[name]) for name in ("pid", "sequence", "instance", "first_time", "last_time", "row_size")
    }
    head = pack_header(kind, rows=rows, payload=payload, **fields)
    assert len(head) == HEADER_SIZE
    to.write(head + payload + bytes(padded(len(payload)) - len(payload)))


def _description(payload: bytes) -> bytes:
    try:
        info = json.loads(payload)
    except (ValueError, RecursionError):
        info = None
    return json.dumps(description(info) if isinstance(info, dict) else {"redacted": True}).encode()
