"""How the clocks of machines relate, told by snapshots in which each read its own clocks together.

BOOTTIME counts from the boot of one machine, REALTIME is meant to be the same everywhere. A snapshot has both, so the
lead of one over the other places a machine's BOOTTIME on the wall clock, and two leads place it on another machine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .rows import TIMES, copied

# A wall clock is slewed by half a millisecond a second at most: what looks steeper is no drift.
_STEEPEST = 500e-6
# A drift is believed when the snapshots are this many times further apart than the reading of a clock, and when a line
# explains at least so much of it.
_CLEARLY, _EXPLAINED = 4, 0.75
_LEAST_READING = 1_000
_FEWEST = 3
#: A wall clock that was set while it was read (ns).
STEP = 1_000_000
# Clocks of machines lie no 146 years (ns) apart: snapshots that say so are wrong.
_FARTHEST = 1 << 62


@dataclass(frozen=True)
class Lead:
    """By how much REALTIME leads BOOTTIME on one machine: ``ns`` at the moment ``at`` (ns of BOOTTIME), growing by
    ``drift`` (ns a ns), known to within ``error`` ns; ``stepped`` when the wall clock was set between snapshots."""

    ns: int
    at: int
    drift: float
    error: int
    stepped: bool


def lead(snapshots: np.ndarray) -> Lead | None:
    """The lead that rows of ``clocks`` of one machine tell, None without rows.

    It is their median, or a line through them where they clearly drift.
    """
    if not len(snapshots):
        return None
    boottime = snapshots["boottime"].astype(np.int64)
    leads = snapshots["realtime"].astype(np.int64) - boottime
    # From here on in small numbers, which a float holds to the nanosecond.
    at, first = int(boottime[0]), int(leads[0])
    time, above = (boottime - at).astype(np.float64), (leads - first).astype(np.float64)
    reading = float(np.median(snapshots["spread"].astype(np.float64)))
    median = float(np.median(above))
    away = float(np.abs(above - median).max())
    drift, level, rest = 0.0, median, away
    if len(np.unique(boottime)) >= _FEWEST and away > _CLEARLY * max(reading, _LEAST_READING):
        slope, base = np.polyfit(time, above, 1)
        left = float(np.abs(above - (base + slope * time)).max())
        if abs(slope) <= _STEEPEST and left <= (1 - _EXPLAINED) * away:
            drift, level, rest = float(slope), float(base), left
    return Lead(first + round(level), at, drift, round(rest + reading), rest > STEP)


@dataclass(frozen=True)
class Alignment:
    """What to add to one machine's BOOTTIME so that it is another's: ``offset`` ns, and ``drift`` ns for each ns since
    ``at``. ``error`` (ns) is what the reading of the clocks leaves open; None where nothing is known. How far the wall
    clocks of the machines are apart is in no snapshot. ``stepped`` when the machine's wall clock was set meanwhile."""

    offset: int = 0
    drift: float = 0.0
    at: int = 0
    error: int | None = 0
    stepped: bool = False

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Times (ns, unsigned) on the other clock. Those that are not known stay as they are."""
        if not self.moves:
            return times
        known = (times > 0) & (times < np.uint64(1 << 63))
        signed = times.astype(np.int64)
        shift: np.ndarray | int = self.offset
        if self.drift:
            shift = self.offset + np.rint((signed - self.at).astype(np.float64) * self.drift).astype(np.int64)
        return np.where(known, (signed + shift).astype(np.uint64), times)

    def moved_rows(self, rows: np.ndarray) -> np.ndarray:
        """Rows of any table with their times on the other clock; themselves where nothing moves."""
        names = [name for name in TIMES if name in (rows.dtype.names or ())]
        if not names or not self.moves:
            return rows
        moved = copied(rows)
        for name in names:
            moved[name] = self.moved(rows[name])
        return moved

    @property
    def moves(self) -> bool:
        """Whether it changes any time."""
        return bool(self.offset or self.drift)

    def moment(self, time: int) -> int:
        """One time on the other clock."""
        return time + self.offset + round((time - self.at) * self.drift)


def aligned(own: Lead, reference: Lead) -> Alignment:
    """From one machine's BOOTTIME to another's: both leads lead to the same wall clock."""
    apart = own.at + own.ns - reference.at - reference.ns
    correction = round(-reference.drift * apart / (1 + reference.drift))
    drift = (own.drift - reference.drift) / (1 + reference.drift)
    return Alignment(own.ns - reference.ns + correction, drift, own.at, own.error + reference.error, own.stepped)


def alignments(snapshots: Mapping[str, np.ndarray], begins: Mapping[str, int]) -> tuple[str, dict[str, Alignment]]:
    """The boot that all times are to count from, and for each boot how its times become that one's.

    ``snapshots`` has rows of ``clocks`` for each boot, in the order of the file, and ``begins`` the first time (ns) of
    boots with records. The first boot is the reference, unless another one's records would then lie before its zero. A
    boot without snapshots is put where the reference begins.
    """
    leads = {boot: lead(rows) for boot, rows in snapshots.items()}
    reference = next(iter(leads))
    found = _toward(reference, leads, begins)
    if any(found[boot].moment(first) <= 0 for boot, first in begins.items()):
        booted = {boot: known.ns for boot, known in leads.items() if known is not None}
        if booted:
            reference = min(booted, key=lambda boot: booted[boot])
            found = _toward(reference, leads, begins)
    return reference, found


def _toward(reference: str, leads: Mapping[str, Lead | None], begins: Mapping[str, int]) -> dict[str, Alignment]:
    target = leads[reference]

    def one(boot: str) -> Alignment:
        own = leads[boot]
        if boot == reference:
            return Alignment()
        if own is not None and target is not None:
            found = aligned(own, target)
            if abs(found.offset) < _FARTHEST:
                return found
        offset = begins.get(reference, 0) - begins.get(boot, 0)
        return Alignment(offset if abs(offset) < _FARTHEST else 0, error=None)

    return {boot: one(boot) for boot in leads}
