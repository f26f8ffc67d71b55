"""Ranks and GPUs that stand out from the others, by host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .model import Part

# A rank stands out beyond this robust z-score, and if it is this share of the median away. Fewer ranks have no median
# that one of them could stand out from.
OUTSTANDING = 6.0
_SHARE = 0.03
_FEWEST = 4
# Two groups of ranks: the usual ones and those apart are at least these shares of all. Between them is a gap of this
# share of the distance of their medians; one rank in so many of a group may be in it. Of 20 random numbers with one
# peak, one set in 250 looks like this. Fewer ranks have to be whole hosts, too.
_USUAL = 0.25
_APART = 0.4
_GAP = 0.6
_STRAY = 8
_MANY = 20
_WORDS = re.compile(r"(\D*)(\d*)")
# Longer lists name the first ones.
_NAMED = 8


@dataclass(frozen=True)
class Measured:
    """A number of a rank, or of one of its GPUs. ``kind`` is ``rank`` or ``GPU``."""

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
    """Ranks or GPUs that stand out together: all of a host, or one alone."""

    name: str
    members: Sequence[Measured]

    @property
    def value(self) -> float:
        return _mean(self.members)


#: Who stands out, who the others are, and their usual value.
_Finding = tuple[Outstanding, str, float]


def robust_scores(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the distance of each number from the median, in standard deviations estimated from the median absolute
    deviation. Half of the numbers may be outliers."""
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
    """Return a sentence for each rank whose number is far above the median, the largest first; or far below it, with
    ``low``. All ranks of a host that stand out share a sentence. So do those of the upper (lower) one of two groups of
    a job, unless ``halves`` is False. ``sentence`` formats ``who`` stands out (``its`` is the pronoun), the ``value``,
    ``others``, their ``usual`` value, and the ``ratio`` of the two."""
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
    """Return who stands out as for :func:`stragglers`, who the others are, and their usual value."""
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
    """Return the ranks that stand out, in their order. All of a host make one group."""
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
    """The ranks of each host that is known, in the order of the names of hosts, node2 before node10."""
    hosts: dict[str, list[Measured]] = {}
    for one in sorted(values, key=lambda one: _in_order(one.host)):
        if one.host:
            hosts.setdefault(one.host, []).append(one)
    return hosts


def _whole_hosts(
    some: Sequence[Measured],
    hosts: Mapping[str, Sequence[Measured]],
) -> list[str]:
    """The hosts with several ranks of which all are among ``some``, in the order of their names."""
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
    """Return the upper one of two groups, the lower one with a ``sign`` of -1, and the ranks of the other one. If there
    is one group, return None and all ranks."""
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
    """Return the index where the second of two groups of ascending numbers begins; 0 if there is one group."""
    total = len(ordered)
    first = max(_FEWEST, int(np.ceil(_USUAL * total)))
    last = total - max(_FEWEST, int(np.ceil(_APART * total)))
    if first > last:
        return 0
    # The two groups whose means explain most of the variance.
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
    """The names, where three or more that follow each other among ``every`` become ``first to last``."""
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
    """The names in a sentence; the first ones of many."""
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
    """The key that sorts names with numbers by these."""
    key = []
    for word, number in _WORDS.findall(name):
        key.append((word, int(number or 0)))
    return key


def _mean(members: Sequence[Measured]) -> float:
    return float(_values(members).mean())


def _values(members: Sequence[Measured]) -> np.ndarray:
    return np.array([one.value for one in members])
