"""A journal of an update: its changes so far. Each change is on disk when its test ends.

If the process is killed, the next update continues its journal. A journal is a file of lines of JSON. The first line
names the commit of the sources. Each other line is a :class:`~.changes.Change` whose values are a golden file. Several
processes of one machine may append to a journal at the same time.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CutraceError
from ..outputs import unwritable
from .changes import Change, digest
from .files import existing, parse, text
from .model import Module, split


class Journal:
    """The journal at ``path``. ``commit`` is the id of the sources, "" if unknown."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path = path
        self._commit = commit
        self._begun = False

    def begin(self) -> None:
        """Start the file, or continue the file of an interrupted update of the same commit. Raises
        :class:`CutraceError` if that is impossible."""
        known = _lines(self.path)
        continued = next(known, {}).get("commit") == self._commit
        if not continued:
            try:
                self.path.write_text(json.dumps({"commit": self._commit}))
            except OSError as error:
                raise unwritable(self.path, error) from None
        self._begun = True

    def add(self, change: Change) -> None:
        """Write a change. Raises :class:`CutraceError` if that is impossible."""
        if not self._begun:
            self.begin()
        try:
            append(self.path, change)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def remove(self) -> None:
        """Remove the journal of an update that has been written."""
        self._begun = False
        self.path.unlink(missing_ok=True)


def append(path: Path, change: Change) -> None:
    """Append a change to the journal at ``path``. Another process may have started the journal. Raises :class:`OSError`
    or :class:`CutraceError` if that is impossible."""
    # A line that is cut off must not continue in the next line.
    line = b"\n" + json.dumps(_fields(change)).encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        # Lines of several processes do not mix, because each line is appended by one call.
        written = os.write(file, line)
    finally:
        os.close(file)
    if written < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class TakenUp:
    """An interrupted update. ``changes`` still apply. ``outdated`` counts changes that no longer apply, because the
    golden values have changed since. ``other_commit`` is the commit of the update if it differs; no change applies
    then."""

    changes: tuple[Change, ...] = ()
    outdated: int = 0
    other_commit: str = ""


def taken_up(path: Path, commit: str) -> TakenUp:
    """Read the journal at ``path`` for an update of the sources of this commit. A missing journal has no changes."""
    lines = _lines(path)
    before = next(lines, {}).get("commit", commit)
    if before != commit:
        return TakenUp(other_commit=str(before) or "unknown")
    latest: dict[tuple[str, str], Change] = {}
    for line in lines:
        change = _change(path, line)
        if change is not None:
            latest[change.nodeid, change.environment] = change
    valid = tuple(filter(_applies, latest.values()))
    return TakenUp(valid, len(latest) - len(valid))


def _applies(change: Change) -> bool:
    """Whether the golden values are still the values that a change replaces."""
    file, test = split(change.nodeid)
    try:
        entry = existing(change.path, file).tests.get(test)
    except CutraceError:  # the tests of the module fail with this error
        return False
    return digest(entry, change.environment) == change.before


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal. Damaged lines are left out."""
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in content.splitlines():
        try:
            values = json.loads(line)
        except ValueError:  # The process was killed during the write.
            continue
        if isinstance(values, dict):
            yield values


def _fields(change: Change) -> dict[str, Any]:
    file, test = split(change.nodeid)
    entry = {**change.others, change.environment: change.observed}
    return {
        "nodeid": change.nodeid,
        "path": str(change.path),
        "environment": change.environment,
        "line": change.line,
        "before": change.before,
        "source": str(change.source or ""),
        "values": text(Module(file, {test: entry})),
    }


def _change(journal: Path, line: dict[str, Any]) -> Change | None:
    """The change of a line; None if the line is damaged."""
    try:
        nodeid = str(line["nodeid"])
        environment = str(line["environment"])
        file, test = split(nodeid)
        others = dict(parse(str(line["values"]), journal, file).tests[test])
        observed = others.pop(environment)
        source = None
        if line["source"]:
            source = Path(line["source"])
        return Change(
            nodeid,
            Path(line["path"]),
            environment,
            observed,
            int(line["line"]),
            str(line["before"]),
            source,
            others,
        )
    except (KeyError, TypeError, ValueError, CutraceError):
        return None
