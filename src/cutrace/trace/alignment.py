"""The relation of the clocks of several machines, from snapshots of each machine's clocks.

BOOTTIME counts from the boot of one machine. REALTIME, the wall clock, is about the same everywhere. A snapshot reads
both together, so their difference, the lead, places BOOTTIME on the wall clock. Two leads relate two machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from .rows import TIMES, changed

# The kernel slews a wall clock by half a millisecond a second at most: a steeper slope is not a drift.
_STEEPEST = 500e-6
# Leads drift when they differ by this many times the reading error of a clock, and when a line explains at least this
# share of the difference.
_CLEARLY = 4
_EXPLAINED = 0.75
_LEAST_READING = 1_000
_FEWEST = 3
#: A larger unexplained difference of leads (ns) means that the wall clock was set.
STEP = 1_000_000
# Offsets larger than this (146 years in ns) come from wrong snapshots.
_FARTHEST = 1 << 62


#: Notes on files whose clock cannot be related to the first file's: on moved times, and on kept times.
MOVED = "a file without clock snapshots was moved in time to start with the first file: `clock='keep'` keeps its times"
KEPT = "a file has the times of its own clock, not of the first file's: `clock='align'` aligns it"


@dataclass(frozen=True)
class Alignment:
    """The conversion of one machine's BOOTTIME to another's: add ``offset`` ns, and ``drift`` ns for each ns since
    ``at``. ``error`` (ns) is the error of reading the clocks, None when it is unknown. It excludes the difference
    between the wall clocks of the machines. ``stepped`` says that the machine's wall clock was set between
    snapshots."""

    offset: int = 0
    drift: float = 0.0
    at: int = 0
    error: int | None = 0
    stepped: bool = False

    def moved(self, times: np.ndarray) -> np.ndarray:
        """Times (ns, unsigned) on the other clock. Unknown times stay as they are."""
        if not self.moves:
            return times
        known = (times > 0) & (times < np.uint64(1 << 63))
        signed = times.astype(np.int64)
        shift: np.ndarray | int = self.offset
        if self.drift:
            since = (signed - self.at).astype(np.float64)
            drifted = np.rint(since * self.drift)
            shift = self.offset + drifted.astype(np.int64)
        moved = (signed + shift).astype(np.uint64)
        return np.where(known, moved, times)

    def moved_rows(self, rows: np.ndarray) -> np.ndarray:
        """Rows of any table with their times on the other clock; the same array where nothing changes."""
        if not self.moves:
            return rows
        times = {}
        for name in TIMES:
            if name in (rows.dtype.names or ()):
                times[name] = self.moved(rows[name])
        return changed(rows, times)

    @property
    def moves(self) -> bool:
        """Whether the alignment changes any time."""
        return bool(self.offset or self.drift)

    def moment(self, time: int) -> int:
        """One time on the other clock."""
        drifted = round((time - self.at) * self.drift)
        return time + self.offset + drifted


def wall_clock(snapshots: np.ndarray) -> int | None:
    """The wall clock (ns since 1970) at time 0, by the first of some rows of ``clocks`` that has it; None if it is not
    known."""
    known = snapshots[snapshots["realtime"] > 0]
    if not len(known):
        return None
    return int(known["realtime"][0]) - int(known["boottime"][0])


def recorded(snapshots: np.ndarray, start: int) -> datetime | None:
    """The wall-clock time at which a recording started, None if it is not known. ``start`` is the first time (ns) of
    its records. It is 0 without records; then the first snapshot is the start."""
    began = wall_clock(snapshots)
    if began is None:
        return None
    first = start or int(snapshots["boottime"][0])
    return datetime.fromtimestamp((began + first) / 1e9)


def lead(snapshots: np.ndarray) -> Alignment | None:
    """The lead of one machine, REALTIME less BOOTTIME, as the alignment of its BOOTTIME with its wall clock. It is
    computed from its rows of ``clocks``; None without rows.

    The lead is the median of the rows, or a line through them where they clearly drift.
    """
    if not len(snapshots):
        return None
    boottime = snapshots["boottime"].astype(np.int64)
    leads = snapshots["realtime"].astype(np.int64) - boottime
    # A float holds such small differences exactly.
    at = int(boottime[0])
    first = int(leads[0])
    time = (boottime - at).astype(np.float64)
    above = (leads - first).astype(np.float64)
    reading = float(np.median(snapshots["spread"].astype(np.float64)))
    median = float(np.median(above))
    away = float(np.abs(above - median).max())
    drift = 0.0
    level = median
    rest = away
    differs = away > _CLEARLY * max(reading, _LEAST_READING)
    if differs and len(np.unique(boottime)) >= _FEWEST:
        slope, base = np.polyfit(time, above, 1)
        line = base + slope * time
        left = float(np.abs(above - line).max())
        if abs(slope) <= _STEEPEST and left <= (1 - _EXPLAINED) * away:
            drift = float(slope)
            level = float(base)
            rest = left
    return Alignment(
        offset=first + round(level),
        at=at,
        drift=drift,
        error=round(rest + reading),
        stepped=rest > STEP,
    )


def aligned(own: Alignment, reference: Alignment) -> Alignment:
    """The alignment of one machine's BOOTTIME with the reference's, from their leads. The wall clock relates the
    two."""
    apart = own.at + own.offset - reference.at - reference.offset
    rate = 1 + reference.drift
    correction = round(-reference.drift * apart / rate)
    drift = (own.drift - reference.drift) / rate
    return Alignment(
        offset=own.offset - reference.offset + correction,
        drift=drift,
        at=own.at,
        error=(own.error or 0) + (reference.error or 0),
        stepped=own.stepped,
    )


def alignments(
    snapshots: Mapping[str, np.ndarray], begins: Mapping[str, int]
) -> tuple[str, dict[str, Alignment]]:
    """Choose the reference boot, and align each boot with it.

    ``snapshots`` has rows of ``clocks`` for each boot, in the order of the file, and ``begins`` the first time (ns) of
    boots with records. The reference is the first boot. If another boot would then have negative times, the reference
    is the boot that starts earliest on the wall clock. A boot without snapshots is moved to start when the reference
    starts.
    """
    leads = {}
    for boot, rows in snapshots.items():
        leads[boot] = lead(rows)
    reference = next(iter(leads))
    by_boot = _toward(reference, leads, begins)
    moments = []
    for boot, first in begins.items():
        moment = by_boot[boot].moment(first)
        moments.append(moment)
    if min(moments, default=1) > 0:
        return reference, by_boot
    booted = {}
    for boot, own in leads.items():
        if own is not None:
            booted[boot] = own.offset
    if booted:
        reference = min(booted, key=lambda boot: booted[boot])
        by_boot = _toward(reference, leads, begins)
    return reference, by_boot


def _toward(
    reference: str, leads: Mapping[str, Alignment | None], begins: Mapping[str, int]
) -> dict[str, Alignment]:
    target = leads[reference]

    def one(boot: str) -> Alignment:
        own = leads[boot]
        if boot == reference:
            return Alignment()
        if own is not None and target is not None:
            alignment = aligned(own, target)
            if abs(alignment.offset) < _FARTHEST:
                return alignment
        offset = begins.get(reference, 0) - begins.get(boot, 0)
        if abs(offset) >= _FARTHEST:
            offset = 0
        return Alignment(offset, error=None)

    return {boot: one(boot) for boot in leads}
