"""Accounts of an import: how many events of the file were kept, left out or lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..units import format_duration


@dataclass(frozen=True)
class Tally:
    """A number of events, and the sum of their durations."""

    count: int
    duration_ns: int


@dataclass(frozen=True)
class Account:
    """The events of one kind (``what``) in an imported file: ``seen`` in it, ``kept`` as rows, ``left`` out because no
    table holds them, and ``lost`` because they could not be used. The last two are by reason."""

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
    """An imported file: its ``format`` (the importer's name), its name (``source``), and the accounts of its events.
    ``process`` is the index of its first process."""

    format: str
    source: str
    process: int
    accounts: tuple[Account, ...]

    @property
    def lost(self) -> int:
        """The number of events that could not be used."""
        return sum(tally.count for account in self.accounts for tally in account.lost.values())

    def leftovers(self) -> Iterator[str]:
        """One sentence for each kind of events that was left out."""
        for account in self.accounts:
            for why, tally in account.left.items():
                duration = f" ({format_duration(tally.duration_ns)})" if tally.duration_ns else ""
                yield f"{tally.count:,} {account.what}{duration} left out{f': {why}' if why else ''}"


def imported(process: int, info: dict[str, Any]) -> Imported | None:
    """The import that the description of a process holds, None when there is none. Nothing in it has a certain type."""
    entry = info.get("import")
    if entry is None:
        return None
    events = entry.get("events")
    accounts = tuple(
        Account(what, _tally(e.get("seen")), _tally(e.get("kept")), _tallies(e.get("left")), _tallies(e.get("lost")))
        for what, e in (events.items() if isinstance(events, dict) else ())
        if isinstance(e, dict)
    )
    return Imported(str(entry.get("format", "")), str(entry.get("source", "")), process, accounts)


def _tally(entry: object) -> Tally:
    values = [entry.get(key) for key in ("count", "duration_ns")] if isinstance(entry, dict) else []
    count, duration = (v if isinstance(v, int) else 0 for v in (values or (0, 0)))
    return Tally(count, duration)


def _tallies(entry: object) -> dict[str, Tally]:
    return {why: _tally(tally) for why, tally in entry.items()} if isinstance(entry, dict) else {}
