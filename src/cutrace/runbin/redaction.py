"""Redacted captures: copies without command lines, host names and paths.

A capture is copied block by block. Only tables, fields and keys that are on a list are copied, so additions of newer
versions are left out. Options of the recording are copied unless they contain a path. docs/internals/privacy.md lists
the contents that stay.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ..outputs import check_output, replacing
from .copying import Changes, copy
from .layout import STRINGS_BLOCK, TABLES
from .reader import Reader

#: Keys of the process description that are kept.
KEPT = frozenset(
    (
        "format",
        "producer",
        "pid",
        "parent_pid",
        "boot_id",
        "clock",
        "clock_of",
        "started",
        "ended",
        "kinds",
        "windows",
        "cupti_version",
        "driver",
        "driver_version",
        "runtime_version",
        "nvtx",
        "counted_only",
        "tables",
    )
)

#: Options of the recording with a path as value, even if the path has no folder.
PATH_OPTIONS = frozenset(
    (
        "directory",
        "output",
        "dump",
        "cupti",
        "annotator",
    )
)

#: The replacement of a path.
PATH = b"(path)"

#: The replacement of other strings that identify a user.
HIDDEN = "(hidden)"

#: Keys of arguments whose strings are replaced. They are in lower case, without ``_``, ``-``, ``.``, spaces, and the
#: ``s`` of a plural.
PRIVATE_KEYS = frozenset(
    ("host", "node", "nodename", "machine", "machinename", "server", "user", "login", "email", "cmd", "cmdline",
     "command", "commandarg", "argv", "executable", "env", "environment", "credential", "authorization")
)  # fmt: skip
#: Endings of keys whose strings are replaced, such as ``token`` in ``auth_token``.
PRIVATE_ENDS = (
    "hostname", "username", "commandline", "token", "password", "passwd", "secret", "apikey", "accesskey",
)  # fmt: skip

_PATHS = re.compile(
    # A URL.
    rb"(?<![\w.+-])(?!file:)[A-Za-z][\w.+-]*://[^\s\"'<>|;,()\[\]]*"
    # A path in quotes, up to the same quote.
    rb"|(?<=([\"']))(?:~[\w.-]*/|(?:file://)?/[^/\r\n\"']+/)[^\r\n]*?(?=\1)"
    # An absolute path of two names or more, or a path below a home folder. Punctuation of the sentence ends it. It may
    # follow an option of one letter, such as -I.
    rb"|(?:(?<![\w.~-])|(?<=\s-[A-Za-z])|(?<=^-[A-Za-z]))(?:~[\w.-]*|file://)?(?:/[^/\s\"'<>|:;,()\[\]]+){2,}/?"
    rb"|(?<![\w.~/-])~[\w.-]*/[^\s\"'<>|:;,()]*"
    # C:\name, C:/name and \\server\name. A space ends the last name only.
    rb"|(?:(?<!\w)(?:file:/+)?[A-Za-z]:[\\/]+|(?<![\w\\])\\\\+(?=[\w.$-]+\\))"
    rb"(?:[^\\/\"'<>|:;,*?\r\n]+[\\/]+)*[^\\/\s\"'<>|:;,()\[\]]*"
    # The relative path of a Python file, followed by a line number.
    rb"|(?<![\w./\\~-])(?:[\w.-]+[\\/])+[\w.-]+\.py(?=\(\d+\)|:\d+)"
)
# A slash of a path, not of a fraction such as 1/100.
_SLASH = re.compile(r"(?<![0-9])/|/(?![0-9])|\\")
_BEGINS_AS_PATH = re.compile(rb"~?/|[A-Za-z]:[\\/]|\\\\[\w.$-]+\\")
# The line and the function after the file name of a Python function: "(12): step", ":12 in step", ":12".
_LINE = re.compile(rb"(?:\(\d+\)(?:: [^/\\]*)?|:\d+(?: in [^/\\]*)?)$")


def without_paths(text: bytes) -> bytes:
    """Replace each absolute path and each URL in a string with ``(path)``.

    A string of one line that starts with a path is one path, with its spaces, up to a line number and a function at its
    end. In JSON arrays and objects, the paths in each string and key are replaced. Strings under one of
    :data:`PRIVATE_KEYS` become ``(hidden)``.
    """
    stripped = text.lstrip()
    if stripped.startswith((b"[", b"{")):
        with suppress(ValueError, RecursionError):
            # These are the ranges of a graph node, or arguments.
            repeated: list[str] = []
            values = json.loads(text, object_pairs_hook=partial(_object, repeated))
            kept = _redacted_value(values)
            if kept == values and not repeated:
                return text
            return json.dumps(kept).encode()
    slashes = text.count(b"/")
    backslashes = text.count(b"\\")
    names = slashes + backslashes
    if _BEGINS_AS_PATH.match(text) and names > 1 and b"\n" not in text:
        line = _LINE.search(text)
        if line:
            return PATH + line[0]
        return PATH
    return _PATHS.sub(PATH, text)


def _object(repeated: list[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. The last value of a key counts. Keys with several values are added to ``repeated``."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        known = key in values
        if known:
            repeated.append(key)
        values[key] = value
    return values


def _without_paths(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    redacted = without_paths(encoded)
    return redacted.decode("utf-8", "replace")


def _redacted_value(value: Any, private: bool = False) -> Any:
    """A JSON value with its strings redacted: hidden where they are under a ``private`` key."""
    if isinstance(value, str):
        if private and value:
            return HIDDEN
        return _without_paths(value)
    if isinstance(value, list):
        return [_redacted_value(item, private) for item in value]
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for key, item in value.items():
            name = _without_paths(key)
            if name in kept:  # Several keys were paths.
                name = f"{name} {len(kept) + 1}"
            is_private = private or _is_private(key)
            kept[name] = _redacted_value(item, is_private)
        return kept
    return value


def _has_path(value: object) -> bool:
    """Whether the value of an option of the recording may have a path. A collector with the option ``redact`` has the
    same rule."""
    if not isinstance(value, str):
        return True
    return bool(_SLASH.search(value))


def _without_path_options(options: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for key, value in options.items():
        if key in PATH_OPTIONS:
            continue
        if _has_path(value):
            continue
        kept[key] = value
    return kept


def _is_private(key: str) -> bool:
    lower = key.lower()
    plain = re.sub("[_ .-]", "", lower)
    singular = plain.removesuffix("s")
    if singular in PRIVATE_KEYS:
        return True
    return singular.endswith(PRIVATE_ENDS)


def description(info: dict[str, Any]) -> dict[str, Any]:
    """A process description with only the keys that are kept."""
    kept = {key: value for key, value in info.items() if key in KEPT}
    options = info.get("options")
    if isinstance(options, dict):
        kept["options"] = _without_path_options(options)
    for key in ("notes", "dumped_because"):
        sentences = info.get(key)
        if isinstance(sentences, list):
            redacted = []
            for sentence in sentences:
                told = str(sentence)
                redacted.append(_redacted_sentence(told, info))
            kept[key] = redacted
    capture_range = info.get("capture_range")
    if isinstance(capture_range, str):
        kept["capture_range"] = _without_paths(capture_range)
    kept["redacted"] = True
    return kept


def _redacted_sentence(sentence: str, info: dict[str, Any]) -> str:
    """A note of the process of a description, without its paths, its host and the name that `cutrace merge` gave it."""
    name = str(info.get("name", ""))
    behind = sentence.removeprefix(name)
    if behind.startswith((":", " (")):
        sentence = HIDDEN + behind
    host = str(info.get("host", ""))
    if host:
        word = re.escape(host)
        whole_word = rf"(?<![\w.-]){word}(?![\w-])"
        sentence = re.sub(whole_word, HIDDEN, sentence)
    return _without_paths(sentence)


def redact(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """Write the capture ``source`` to ``destination``, in one step, without command lines, host names, paths and keys
    that this version does not know. Of damaged blocks, only the headers are kept.

    Raises :class:`CutraceError` when the source is not a capture or the destination cannot be written.
    """
    source = Path(source)
    destination = Path(destination)
    check_output(destination, [source])
    with (
        Reader(source) as reader,
        replacing(destination) as temporary,
        temporary.open("wb") as file,
    ):
        blocks = range(len(reader.offsets))
        changes = _Redaction(_file_names(reader))
        copy(reader, blocks, changes, file)


def _file_names(reader: Reader) -> set[bytes]:
    """The file names of Python frames."""
    ids: list[set[int]] = [set() for _ in reader.processes]
    frames = TABLES["frames"].number
    for index in reader.indices(frames).tolist():
        files = reader.read(index)["file"]
        process = reader.process_of[index]
        ids[process].update(files.tolist())
    names: set[bytes] = set()
    if not any(ids):
        return names
    for index in reader.indices(STRINGS_BLOCK).tolist():
        process = reader.process_of[index]
        own = ids[process]
        strings = reader.strings(index) or ()
        names.update(text for number, text in strings if number in own)
    return names


class _Redaction(Changes):
    """Redacts a capture. Each of ``file_names`` is a string that is a path as a whole, even a relative one."""

    def __init__(self, file_names: set[bytes]) -> None:
        self._file_names = file_names

    def description(self, process: int, info: dict[str, Any]) -> dict[str, Any]:
        return description(info)

    def text(self, text: bytes) -> bytes:
        if text in self._file_names and b"/" in text:
            return PATH
        return without_paths(text)
