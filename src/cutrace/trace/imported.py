"""Accounts of an import: how many events of the file were kept, left out or lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..units import format_duration

#: The names of accounts of arguments and keys of events.
_PART = re.compile("(argument|key) (.*) of (.*)", re.DOTALL)


@dataclass(frozen=True)
class Tally:
    """A number of events, and the sum of their durations."""

    count: int
    duration_ns: int


@dataclass(frozen=True)
class Account:
    """The events of one kind (``what``) in an imported file. ``seen`` counts all events, ``kept`` the events that
    became rows. By reason, ``left`` counts the events that no table holds, and ``lost`` the events that could not be
    used."""

    what: str
    seen: Tally
    kept: Tally
    left: dict[str, Tally]
    lost: dict[str, Tally]

    @property
    def balanced(self) -> bool:
        """Whether every event is accounted for, by count and by duration."""
        parts = (self.kept, *self.left.values(), *self.lost.values())
        count = sum(part.count for part in parts)
        duration = sum(part.duration_ns for part in parts)
        return self.seen == Tally(count, duration)


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
        lost = 0
        for account in self.accounts:
            lost += sum(tally.count for tally in account.lost.values())
        return lost

    def leftovers(self) -> Iterator[str]:
        """One sentence for each kind of events that was left out, then one for the arguments of each kind."""
        parts: dict[str, list[str]] = {}
        for account in self.accounts:
            part = _PART.fullmatch(account.what)
            for why, tally in account.left.items():
                if part and not why:
                    noun, name, kind = part.groups()
                    names = parts.setdefault(f"{noun}s of {kind}", [])
                    names.append(f"{name} ({tally.count:,})")
                    continue
                sentence = f"{tally.count:,} {account.what}"
                if tally.duration_ns:
                    sentence += f" ({format_duration(tally.duration_ns)})"
                sentence += " left out"
                if why:
                    sentence += f": {why}"
                yield sentence
        for what, names in parts.items():
            yield f"{what} left out: {', '.join(names)}"


def imported(process: int, info: dict[str, Any]) -> Imported | None:
    """The import that the description of a process holds, None when there is none. Values in the description may have
    any type."""
    entry = info.get("import")
    if entry is None:
        return None
    accounts = []
    for what, tallies in _entries(entry.get("events")):
        if isinstance(tallies, dict):
            accounts.append(_account(what, tallies))
    return Imported(
        format=str(entry.get("format", "")),
        source=str(entry.get("source", "")),
        process=process,
        accounts=tuple(accounts),
    )


def _entries(value: object) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return []


def _account(what: str, entry: dict[str, Any]) -> Account:
    return Account(
        what,
        seen=_tally(entry.get("seen")),
        kept=_tally(entry.get("kept")),
        left={why: _tally(tally) for why, tally in _entries(entry.get("left"))},
        lost={why: _tally(tally) for why, tally in _entries(entry.get("lost"))},
    )


def _tally(entry: object) -> Tally:
    numbers = dict.fromkeys(("count", "duration_ns"), 0)
    for name, value in _entries(entry):
        if name in numbers and isinstance(value, int):
            numbers[name] = value
    return Tally(**numbers)
