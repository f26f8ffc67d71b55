"""Ranks and GPUs that stand out from the others, by host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .model import Part

# A rank stands out if its robust z-score exceeds this.
OUTSTANDING = 6.0
# The distance of such a rank from the median is also at least this share of the median.
_SHARE = 0.03
# The smallest number of ranks for a search for outliers.
_FEWEST = 4
# Of two groups, the usual one has at least this share of all ranks.
_USUAL = 0.25
# The other group has at least this share of all ranks.
_APART = 0.4
# The gap between the groups is at least this share of the distance of their medians.
_GAP = 0.6
# At most one of this many ranks of a group may be inside the gap.
_STRAY = 8
# With fewer ranks, groups also have to consist of whole hosts, because 20 random numbers with one peak form two groups
# by chance in one of 250 sets.
_MANY = 20
_WORDS = re.compile(r"(\D*)(\d*)")
# The number of names in a longer list.
_NAMED = 8


@dataclass(frozen=True)
class Measured:
    """A measured value of a rank or of one of its GPUs. ``kind`` is ``rank`` or ``GPU``."""

    label: str
    host: str
    job: str
    value: float
    kind: str = "rank"

    @classmethod
    def of(
        cls,
        part: Part,
        value: float,
        device: int | None = None,
    ) -> Measured:
        if device is None:
            return cls(part.label, part.host, part.job, value)
        return cls(
            part.gpu(device),
            part.host,
            part.job,
            value,
            "GPU",
        )


@dataclass(frozen=True)
class Outstanding:
    """Ranks or GPUs that stand out together: all of a host, several hosts, or a single one."""

    name: str
    members: Sequence[Measured]

    @property
    def value(self) -> float:
        return _mean(self.members)


#: The ranks that stand out, the words for the others, and the usual value of the others.
_Finding = tuple[Outstanding, str, float]


def robust_scores(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the distance of each number from the median, in standard deviations. The median absolute deviation
    estimates the standard deviation, so up to half of the numbers may be outliers."""
    away = np.asarray(values, np.float64) - np.median(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(away == 0, 0.0, away / _deviation(away))


def _deviation(numbers: np.ndarray) -> float:
    away = np.abs(numbers - np.median(numbers))
    return 1.4826 * float(np.median(away))


def stragglers(
    values: Sequence[Measured],
    sentence: str,
    *,
    low: bool = False,
    halves: bool = True,
) -> list[str]:
    """Return a sentence for each rank with a value far above the median (with ``low``, far below it), the farthest
    first. If all ranks of a host stand out, they share a sentence. If the ranks of a job form two groups, the upper
    group (with ``low``, the lower) shares a sentence, unless ``halves`` is False. ``sentence`` is a format string with
    the fields ``who``, its pronoun ``its``, its ``value``, ``others``, their ``usual`` value, and the ``ratio`` of the
    two values."""
    sentences = []
    for group, others, usual in standing_out(values, low=low, halves=halves):
        its = "its"
        if len(group.members) > 1:
            its = "their"
        ratio = float("inf")
        if usual:
            ratio = group.value / usual
        words = {"who": group.name, "its": its, "others": others}
        numbers = {"value": group.value, "usual": usual, "ratio": ratio}
        sentences.append(sentence.format(**words, **numbers))
    return sentences


def standing_out(
    values: Sequence[Measured],
    *,
    low: bool,
    halves: bool = True,
) -> list[_Finding]:
    """Return the ranks that stand out, the words for the others, and their usual value. :func:`stragglers` describes
    the options."""
    sign = 1
    if low:
        sign = -1
    jobs: dict[str, list[Measured]] = {}
    for one in values:
        jobs.setdefault(one.job, []).append(one)
    findings = []
    usual: list[Measured] = []
    for of_job in jobs.values():
        group: Outstanding | None = None
        rest: Sequence[Measured] = of_job
        if halves:
            group, rest = _halves(of_job, sign)
        usual += rest
        if not group:
            continue
        kind = group.members[0].kind
        others = f"the other {kind}s"
        findings.append((group, others, _mean(rest)))
        others = f"the median of these {kind}s"
        findings += _far_from_median(group.members, others, sign)
    if usual:
        others = f"the median {usual[0].kind}"
        findings += _far_from_median(usual, others, sign)
    return findings


def _far_from_median(
    values: Sequence[Measured],
    others: str,
    sign: int,
) -> list[_Finding]:
    if len(values) < _FEWEST:
        return []
    numbers = _values(values)
    median = float(np.median(numbers))
    if median <= 0:
        return []
    scores = robust_scores(numbers)
    outstanding = []
    for one, score in zip(values, scores, strict=True):
        excess = sign * (one.value - median)
        if excess <= _SHARE * median:
            continue
        if sign * score > OUTSTANDING:
            outstanding.append(one)
    groups = by_host(outstanding, values)
    groups.sort(key=lambda group: sign * group.value, reverse=True)
    return [(group, others, median) for group in groups]


def by_host(
    outstanding: Sequence[Measured],
    everyone: Sequence[Measured],
) -> list[Outstanding]:
    """Group the ranks that stand out, in their order. If all ranks of a host stand out, they are one group."""
    hosts = _of_hosts(everyone)
    whole = _whole_hosts(outstanding, hosts)
    known = {one.host for one in everyone}
    several = len(known) > 1
    groups: dict[str, Outstanding] = {}
    for one in outstanding:
        if one.host in whole:
            count = len(hosts[one.host])
            name = f"{count} of {count} {one.kind}s of {one.host}"
            groups[name] = Outstanding(name, hosts[one.host])
            continue
        name = one.label
        if several and one.host:
            name = f"{name} on {one.host}"
        groups[name] = Outstanding(name, [one])
    return list(groups.values())


def _of_hosts(values: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The ranks of each known host, sorted by host name: node2 before node10."""
    hosts: dict[str, list[Measured]] = {}
    for one in sorted(values, key=lambda one: _in_order(one.host)):
        if one.host:
            hosts.setdefault(one.host, []).append(one)
    return hosts


def _whole_hosts(
    some: Sequence[Measured],
    hosts: Mapping[str, Sequence[Measured]],
) -> list[str]:
    """The hosts with several ranks and all ranks in ``some``, sorted by name."""
    whole = []
    for host, ranks in _of_hosts(some).items():
        count = len(hosts[host])
        if count > 1 and len(ranks) == count:
            whole.append(host)
    return whole


def _halves(
    values: Sequence[Measured],
    sign: int,
) -> tuple[Outstanding | None, Sequence[Measured]]:
    """Split the ranks into two groups, if there are two. Returns the upper group (with a ``sign`` of -1, the lower) and
    the ranks of the other group. With one group, returns None and all ranks."""
    ordered = sorted(values, key=lambda one: sign * one.value)
    at = _parting(sign * _values(ordered))
    if not at:
        return None, values
    usual = ordered[:at]
    apart = ordered[at:]
    hosts = _of_hosts(values)
    whole = _whole_hosts(apart, hosts)
    alone = [one.label for one in apart if one.host not in whole]
    in_whole = len(_whole_hosts(usual, hosts)) + len(whole)
    are_hosts = not alone and in_whole == len(hosts)
    if len(values) < _MANY and not are_hosts:
        return None, values
    alone.sort(key=_in_order)
    names = _spans(whole, list(hosts))
    names += alone
    who = listed(names)
    if whole:
        who = f"all of {who}"
    count = f"{len(apart):,} of {len(values):,} {values[0].kind}s"
    return Outstanding(f"{count}, {who}", apart), usual


def _parting(ordered: np.ndarray) -> int:
    """Return the index at which the second of two groups of ascending numbers starts; 0 if there is one group."""
    total = len(ordered)
    first = max(_FEWEST, int(np.ceil(_USUAL * total)))
    last = total - max(_FEWEST, int(np.ceil(_APART * total)))
    if first > last:
        return 0
    # Choose the two groups with the means that explain most of the variance.
    sizes = np.arange(first, last + 1)
    stray = total // _STRAY
    sums = np.cumsum(ordered.clip(ordered[stray], ordered[-1 - stray]))
    below = sums[sizes - 1] / sizes
    above = (sums[-1] - sums[sizes - 1]) / (total - sizes)
    explained = sizes * (total - sizes) * (above - below) ** 2
    at = int(sizes[explained.argmax()])
    lower = ordered[:at]
    upper = ordered[at:]
    low = float(np.median(lower))
    high = float(np.median(upper))
    distance = high - low
    spread = max(_deviation(lower), _deviation(upper))
    highest = lower[-1 - len(lower) // _STRAY]
    lowest = upper[len(upper) // _STRAY]
    gap = lowest - highest
    size = max(abs(low), abs(high))
    least = max(
        _SHARE * size,
        OUTSTANDING * spread,
    )
    if distance > least and gap > _GAP * distance:
        return at
    return 0


def _spans(
    names: Sequence[str],
    every: Sequence[str],
) -> list[str]:
    """Shorten names: three or more that are consecutive in ``every`` become ``first to last``."""
    runs: list[list[str]] = []
    for name in names:
        place = every.index(name)
        if runs and place and every[place - 1] == runs[-1][-1]:
            runs[-1].append(name)
        else:
            runs.append([name])
    spans = []
    for run in runs:
        if len(run) > 2:
            spans.append(f"{run[0]} to {run[-1]}")
        else:
            spans += run
    return spans


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence. Only the first names of a long list."""
    some = list(names)
    more = len(some) - _NAMED
    if more > 0:
        some[_NAMED:] = [f"{more:,} more"]
    last = some.pop()
    if not some:
        return last
    first = ", ".join(some)
    return f"{first} and {last}"


def _in_order(name: str) -> list[tuple[str, int]]:
    """A sort key that compares numbers in names as numbers."""
    key = []
    for word, number in _WORDS.findall(name):
        key.append((word, int(number or 0)))
    return key


def _mean(members: Sequence[Measured]) -> float:
    return float(_values(members).mean())


def _values(members: Sequence[Measured]) -> np.ndarray:
    return np.array([one.value for one in members])
