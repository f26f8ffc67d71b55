"""PC samples, summed by function and stall reason, and by source line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..trace import Trace
from .instructions import Place
from .names import UNKNOWN, normalize_kernel

#: The stall reason of warps that issued an instruction and did not wait.
SELECTED = "selected"


@dataclass(frozen=True)
class StallUse:
    """The samples of a function with one stall reason: the number of ``samples``, those of them taken when the
    scheduler issued no instruction (``not_issued``), and the ``share`` (0 to 1) of the function's samples."""

    function: str
    stall: str
    samples: int
    not_issued: int
    share: float


@dataclass(frozen=True)
class SampledLine:
    """The samples of one line, or of one instruction without line information: the number of ``samples``, those of them
    taken when the scheduler issued no instruction (``not_issued``), and the ``share`` (0 to 1) of all samples.
    ``stalls`` has the samples by stall reason, largest first."""

    place: Place
    samples: int
    not_issued: int
    share: float
    stalls: dict[str, int]

    @property
    def stall(self) -> str:
        """The most frequent stall reason except :data:`SELECTED`; empty without one."""
        return next((name for name in self.stalls if name != SELECTED), "")


def stall_uses(trace: Trace, names: Callable[[str], str] = normalize_kernel) -> list[StallUse]:
    """The samples of each function by stall reason: functions with the most samples first, and for each the largest
    values first. ``names`` converts mangled names of functions."""
    sums: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    function_names = _names(trace, names)
    for (function, stall), *counts in _sums(trace, "function", "stall"):
        _add(sums[function_names(function)][trace.strings[stall]], counts)
    totals = {function: sum(samples for samples, _ in stalls.values()) for function, stalls in sums.items()}
    uses = [
        StallUse(function, stall, samples, not_issued, samples / (totals[function] or 1))
        for function, stalls in sums.items()
        for stall, (samples, not_issued) in stalls.items()
    ]
    return sorted(uses, key=lambda use: (-totals[use.function], use.function, -use.samples, use.stall))


def sampled_lines(trace: Trace, names: Callable[[str], str] = normalize_kernel) -> list[SampledLine]:
    """The samples of each line, or of each instruction without line information, largest values first. ``names``
    converts mangled names of functions."""
    # Functions with the same name share lines but not offsets.
    sums: dict[tuple[int, Place], list[int]] = defaultdict(lambda: [0, 0])
    stalls: dict[tuple[int, Place], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    function_names, text = _names(trace, names), trace.strings
    for (function, file, line, offset, stall), *counts in _sums(trace, "function", "file", "line", "offset", "stall"):
        place = Place.of(function_names(function), text[file], line, offset)
        key = (0 if file else function, place)
        _add(sums[key], counts)
        stalls[key][text[stall]] += counts[0]
    whole = sum(samples for samples, _ in sums.values())
    lines = []
    for key, (samples, not_issued) in sums.items():
        place, largest = key[1], sorted(stalls[key].items(), key=lambda item: (-item[1], item[0]))
        lines.append(SampledLine(place, samples, not_issued, samples / (whole or 1), dict(largest)))
    return sorted(lines, key=lambda line: (-line.samples, line.place))


def _add(to: list[int], counts: list[int]) -> None:
    to[0] += counts[0]
    to[1] += counts[1]


def _names(trace: Trace, names: Callable[[str], str]) -> Callable[[int], str]:
    """A cached function from the string id of a mangled name to the converted name."""
    known: dict[int, str] = {}

    def name(number: int) -> str:
        if number not in known:
            mangled = trace.strings[number]
            known[number] = (mangled and names(mangled)) or UNKNOWN
        return known[number]

    return name


def _sums(trace: Trace, *fields: str) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """For each combination of these fields, the sums of ``samples`` and ``not_issued``. A combination is yielded once
    for each block that contains it."""
    for rows in trace.blocks("pc_samples"):
        keys, inverse = np.unique(np.stack([rows[name] for name in fields]), axis=1, return_inverse=True)
        counts = np.zeros((2, keys.shape[1]), np.uint64)
        for count, name in zip(counts, ("samples", "not_issued"), strict=True):
            np.add.at(count, inverse.reshape(-1), rows[name])
        for key, samples, not_issued in zip(keys.T.tolist(), *counts.tolist(), strict=True):
            yield tuple(key), samples, not_issued
