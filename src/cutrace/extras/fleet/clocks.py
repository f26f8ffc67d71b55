"""Clock errors and call numbers, from calls that all ranks of a group end together.

Ranks of one boot share a clock. So a clock has one error for all its ranks. The error is computed over all groups that
contain several clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...importers.base import FILE_BOOT
from .model import Part

#: The largest difference (ns) between the ends of a call on ranks with right clocks, and the largest gap between work
#: that overlaps.
TOLERANCE_NS = 20_000
# Intervals between ends are the same if they differ by this share of their length.
_SHARE = 0.02
# With fewer calls, the intervals do not identify a call.
_FEWEST = 4
# With fewer calls, the ends do not show a drift.
_FEWEST_OF_DRIFT = 8
# The largest number of intervals that are compared to find a shift.
_COMPARED = 1 << 22
# offset_of() compares half as many ends of one clock, and twice as many ends of the other.
_LONGEST = 1 << 11


def clock_ids(parts: Sequence[Part]) -> np.ndarray:
    """The number of the clock of each part. Parts of one boot share a clock, and so do parts of one host without a
    known boot. An imported file has a separate boot id, but uses the clock of its host."""
    numbers: dict[tuple[str, str], int] = {}
    ids = []
    for index, part in enumerate(parts):
        clock = ("boot", part.boot)
        of_file = part.host and part.boot.startswith(FILE_BOOT)
        if of_file or not part.boot:
            clock = ("host", part.host)
        if not clock[1]:
            clock = ("part", str(index))
        ids.append(numbers.setdefault(clock, len(numbers)))
    return np.array(ids, np.int64)


def median(values: np.ndarray, axis: int) -> np.ndarray:
    """The median along an axis, without NaN values and without a warning. NaN where there are no values."""
    if not values.shape[axis]:
        return np.full(values.shape[1 - axis], np.nan)
    ordered = np.sort(values, axis=axis)  # NaN sorts after all numbers
    count = (~np.isnan(values)).sum(axis=axis, keepdims=True)
    low = np.maximum(count - 1, 0) // 2
    high = np.minimum(count // 2, values.shape[axis] - 1)
    both = np.take_along_axis(ordered, low, axis) + np.take_along_axis(
        ordered, high, axis
    )
    return (both / 2).squeeze(axis)


@dataclass(frozen=True)
class Sample:
    """Some calls of a group. ``times`` (ns, NaN where unknown) has three layers: starts since a base, ends since the
    base, and the time of the rank before the call (:meth:`.rank_calls.RankCalls.times`). Its rows are the ranks with
    the parts ``members``, and its columns are the calls. ``together`` is a mask of the calls that all ranks end
    together."""

    members: list[int]
    times: np.ndarray
    together: np.ndarray

    @property
    def common_ends(self) -> np.ndarray:
        """The ends of the calls that all ranks end together."""
        return self.times[1][:, self.together]

    def without(self, parts: Collection[int]) -> Sample:
        """The sample without some members."""
        kept = [row for row, part in enumerate(self.members) if part not in parts]
        members = [self.members[row] for row in kept]
        return Sample(members, self.times[:, kept], self.together)

    def on_one_clock(self, ahead: np.ndarray) -> np.ndarray:
        """Starts and ends without the errors of clocks. ``ahead`` has the error (ns) of each part."""
        errors = ahead[self.members]
        return self.times[:2] - errors[:, None]

    def misfits(self, ahead: np.ndarray) -> np.ndarray:
        """For each member, the share of its calls that do not overlap with the calls of most other members."""
        starts, ends = self.on_one_clock(ahead)[..., self.together]
        if not ends.shape[1]:
            return np.zeros(len(ends))
        apart = ends + TOLERANCE_NS < median(starts, 0)
        apart |= starts - TOLERANCE_NS > median(ends, 0)
        known = (~np.isnan(ends)).sum(axis=1)
        return apart.sum(axis=1) / np.maximum(known, 1)

    def torn(self, ahead: np.ndarray) -> float:
        """The share of calls that one rank seems to end before another rank has started them."""
        starts, ends = self.on_one_clock(ahead)[..., self.together]
        several = (~np.isnan(ends)).sum(axis=0) > 1
        if not several.any():
            return 0.0
        latest = np.nanmax(starts[:, several], axis=0)
        earliest = np.nanmin(ends[:, several], axis=0)
        return float((latest > earliest + TOLERANCE_NS).mean())

    def lateness(self, ahead: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lateness (ns) of each member at each call, compared with the median, and the part that the member causes
        itself. Time in the previous call or in other communication is not caused by the member."""
        starts, _ = self.on_one_clock(ahead)
        late = starts - median(starts, 0)
        own = self.times[2] - median(self.times[2], 0)
        # The time before the first call is unknown.
        known = (late > 0) & ~np.isnan(own)
        own_part = np.clip(own, 0, np.maximum(late, 0))
        by_itself = np.where(known, own_part, late)
        return late, by_itself


#: The sample of a group before its calls are known.
NO_SAMPLE = Sample([], np.zeros((3, 0, 0)), np.zeros(0, bool))


def clock_errors(clocks: np.ndarray, samples: Sequence[Sample]) -> np.ndarray:
    """The time (ns) that the clock of each part is ahead of the median of the comparable clocks; 0 for a clock that
    cannot be compared. ``clocks`` has the number of the clock of each part."""
    count = int(clocks.max(initial=-1)) + 1
    # Least squares: these errors minimise the remaining differences within groups.
    matrix = np.zeros((count, count))
    right = np.zeros(count)
    for sample in samples:
        ends = sample.common_ends
        own = clocks[sample.members]
        distinct = np.unique(own)
        by_clock = np.stack([median(ends[own == clock], 0) for clock in distinct])
        several = (~np.isnan(by_clock)).sum(axis=0) > 1
        by_clock = by_clock[:, several]
        differences = median(by_clock - median(by_clock, 0), 1)
        known = ~np.isnan(differences)
        differences = differences[known]
        distinct = distinct[known]
        if len(distinct) < 2:
            continue
        matrix[distinct, distinct] += 1
        matrix[np.ix_(distinct, distinct)] -= 1 / len(distinct)
        right[distinct] += differences - differences.mean()
    errors, *_ = np.linalg.lstsq(matrix, right, rcond=None)
    of_parts: np.ndarray = errors[clocks]
    for compared in _components(matrix):
        inside = np.isin(clocks, compared)
        of_parts[inside] -= np.median(of_parts[inside])
    return of_parts.round()


def drifts(clocks: np.ndarray, sample: Sample) -> dict[int, float]:
    """The drift (ns a ns) of the clock of each member against the clock of most members. Members without a clear drift
    are left out."""
    ends = sample.common_ends
    own = clocks[sample.members]
    distinct, counts = np.unique(own, return_counts=True)
    usual = distinct[counts.argmax()]
    time = median(ends[own == usual], 0)
    found = {}
    for clock in distinct.tolist():
        drift = _drift(time, median(ends[own == clock], 0))
        if drift:
            for row in np.flatnonzero(own == clock).tolist():
                found[sample.members[row]] = drift
    return found


def _drift(time: np.ndarray, ends: np.ndarray) -> float:
    """The drift of a clock from the ends of the same calls on the usual clock, ``time``, and on it; 0 if the
    differences do not grow evenly."""
    known = ~np.isnan(time) & ~np.isnan(ends)
    time = time[known]
    ahead = ends[known] - time
    if len(time) < _FEWEST_OF_DRIFT:
        return 0.0
    since = time - time[0]
    slope, level = np.polyfit(since, ahead, 1)
    grown = abs(slope) * float(since[-1])
    rest = np.abs(ahead - level - slope * since)
    if grown > 2 * TOLERANCE_NS and float(rest.max()) <= TOLERANCE_NS:
        return float(slope)
    return 0.0


def _components(matrix: np.ndarray) -> list[list[int]]:
    """Sets of clocks that groups connect, directly or through other clocks."""
    left = set(range(len(matrix)))
    components = []
    while left:
        reached = {min(left)}
        new = list(reached)
        while new:
            neighbours = np.flatnonzero(matrix[new.pop()]).tolist()
            new += set(neighbours) - reached
            reached.update(neighbours)
        left -= reached
        components.append(sorted(reached))
    return components


def shift_of(own: np.ndarray, others: np.ndarray, guess: int | None) -> int | None:
    """Return the index of a rank's first call among the calls of the others, from the ends (ns) of both. It is negative
    if the rank started first. None if no index fits.

    Clock errors do not change the intervals between ends. ``guess`` is the time (ns) that the rank's clock is ahead,
    None if unknown. It decides when the intervals fit several indices.
    """
    ends = _Ends(own, others)
    missing = len(others) - len(own)
    inside = range(min(missing, 0), max(missing, 0) + 1)
    shortest = min(len(own), len(others))
    if shortest <= _FEWEST:
        return ends.nearest(inside, guess)
    if not missing and ends.fit(0):
        return 0
    fewest = max(_FEWEST, shortest // 2)
    shifts = range(fewest - len(own), len(others) - fewest + 1)
    if len(shifts) * shortest > _COMPARED * 8:
        shifts = inside
    most = max(_COMPARED // len(shifts), 64)
    differences = {shift: ends.difference(shift, most) for shift in shifts}
    allowed = 2 * min(differences.values()) + 1
    near = [shift for shift in shifts if differences[shift] <= allowed]
    # By default the shorter list of calls is taken as a part of the longer list.
    near = [shift for shift in near if shift in inside] or near
    best = ends.nearest(near, guess)
    if ends.fit(best):
        return best
    return None


class _Ends(NamedTuple):
    """The ends (ns) of the calls of a rank, and the ends of the calls of the others."""

    own: np.ndarray
    others: np.ndarray

    def common(self, shift: int) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the calls in both lists."""
        first = max(-shift, 0)
        others = self.others[shift + first : shift + len(self.own)]
        return self.own[first : first + len(others)], others

    def nearest(self, shifts: Sequence[int], guess: int | None) -> int:
        """The shift with the smallest difference of times. The first shift if ``guess`` is unknown."""
        if guess is None:
            return shifts[0]
        away = []
        for shift in shifts:
            own, others = self.common(shift)
            apart = int(own[0]) - int(others[0])
            away.append(abs(apart - guess))
        return shifts[int(np.argmin(away))]

    def difference(self, shift: int, most: int = _COMPARED) -> float:
        """The median difference (ns) of at most ``most`` intervals between ends."""
        own, others = self.common(shift)
        mine = np.diff(own[:most])
        theirs = np.diff(others[:most])
        return float(np.median(np.abs(mine - theirs)))

    def fit(self, shift: int) -> bool:
        own, _ = self.common(shift)
        length = float(np.median(np.diff(own)))
        return self.difference(shift) <= max(TOLERANCE_NS, _SHARE * length)


def offset_of(own: np.ndarray, others: np.ndarray) -> int:
    """Return the time (ns) that a clock is ahead of another clock: the most frequent difference of two ends. ``own``
    and ``others`` are the ends of calls on the two clocks. Most calls are in both arrays."""
    mine = own[: _LONGEST // 2]
    theirs = others[: _LONGEST * 2]
    every = mine[:, None] - theirs[None, :]
    differences = np.sort(every.reshape(-1))
    behind = np.searchsorted(differences, differences + TOLERANCE_NS // 4)
    at = int((behind - np.arange(len(differences))).argmax())
    return int(np.median(differences[at : behind[at]]))
