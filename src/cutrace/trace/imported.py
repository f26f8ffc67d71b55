"""What became of the events of a file that another tool wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..units import format_duration


@dataclass(frozen=True)
class Tally:
    """So many events; ``duration_ns`` is the sum of their durations."""

    count: int
    duration_ns: int


@dataclass(frozen=True)
class Account:
    """The events of one kind (``what``) in an imported file: ``seen`` in it, ``kept`` as rows, ``left`` out because a
    capture has no place for them, and ``lost`` because they could not be used; the latter two by reason."""

    what: str
    seen: Tally
    kept: Tally
    left: dict[str, Tally]
    lost: dict[str, Tally]

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for, by count and by duration."""
        parts = (self.kept, *self.left.values(), *self.lost.values())
        return self.seen == Tally(sum(p.count for p in parts), sum(p.duration_ns for p in parts))


@dataclass(frozen=True)
class Imported:
    """A file that was imported: its ``format`` (the importer's name), the name of the file, and the accounts of its
    events. ``process`` is the index of the first process that came from it."""

    format: str
    source: str
    process: int
    accounts: tuple[Account, ...]

    @property
    def lost(self) -> int:
        """How many events could not be used."""
        return sum(tally.count for account in self.accounts for tally in account.lost.values())

    def leftovers(self) -> Iterator[str]:
        """One line for each kind of events that has no place in a capture, for people."""
        for account in self.accounts:
            for why, tally in account.left.items():
                duration = f" ({format_duration(tally.duration_ns)})" if tally.duration_ns else ""
                yield f"{tally.count:,} {account.what}{duration} left out{f': {why}' if why else ''}"


def imported(process: int, info: dict[str, Any]) -> Imported | None:
    """What the description of a process says of an import, of which nothing is certain to be of its type."""
    told = info.get("import")
    if not isinstance(told, dict):
        return None
    events = told.get("events")
    accounts = tuple(
        Account(what, _tally(e.get("seen")), _tally(e.get("kept")), _tallies(e.get("left")), _tallies(e.get("lost")))
        for what, e in (events.items() if isinstance(events, dict) else ())
        if isinstance(e, dict)
    )
    return Imported(str(told.get("format", "")), str(told.get("source", "")), process, accounts)


def _tally(told: object) -> Tally:
    values = [told.get(key) for key in ("count", "duration_ns")] if isinstance(told, dict) else []
    count, duration = (v if isinstance(v, int) else 0 for v in (values or (0, 0)))
    return Tally(count, duration)


def _tallies(told: object) -> dict[str, Tally]:
    return {why: _tally(tally) for why, tally in told.items()} if isinstance(told, dict) else {}
