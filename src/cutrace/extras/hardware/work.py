"""Select the work that `cutrace profile` counts: launches of kernels, or whole NVTX ranges.

Work is identified in the second run by its names and its number among the work with these names in its process, in the
order of its begins. So the program must do the same work in each run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from ..._native import demangle
from ...analysis.names import normalize_kernel
from ...errors import CutraceError
from ...loading import selected
from ...patterns import matcher
from ...runbin.writer import Writer
from ...slicing import Conditions, resolve
from ...trace import Trace
from ...trace.quality import summed
from ...units import count_of


@dataclass(frozen=True)
class CountedWork(ABC):
    """A launch or a range. ``row`` is its row of the trace, ``place`` the index of its process among the processes that
    count work in its run, sorted by process id."""

    process: int
    names: tuple[bytes, ...]
    number: int
    row: np.void
    place: int = 0

    @property
    def key(self) -> tuple[tuple[bytes, ...], int]:
        """Identifies it among the work of its process."""
        return self.names, self.number

    @property
    def time(self) -> int:
        """How long it took (ns)."""
        return int(self.row["end"] - self.row["start"])

    @property
    def title(self) -> str:
        """Its name, for people."""
        return self.names[-1].decode("utf-8", "replace")

    @abstractmethod
    def columns(self, to: Writer) -> dict[str, int]:
        """The columns of ``kernel_metrics`` that identify it."""


@dataclass(frozen=True)
class Launch(CountedWork):
    """A launch of a kernel, outside of CUDA graphs. ``names`` has its mangled name, ``shape`` its grid and block."""

    shape: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return normalize_kernel(demangle(super().title))

    def columns(self, to: Writer) -> dict[str, int]:
        return {
            "correlation": int(self.row["correlation"]),
            "device": int(self.row["device"]),
        }


@dataclass(frozen=True)
class Range(CountedWork):
    """An NVTX range. ``names`` are its domain and its name; ``device`` is the GPU that counted it."""

    device: int = 0

    def columns(self, to: Writer) -> dict[str, int]:
        return {"device": self.device, "range": to.string(self.names[-1])}


_Counted = TypeVar("_Counted", bound=CountedWork)


def choose_launches(
    trace: Trace, kernel: str | None, nvtx: str | None, skip: int, count: int | None
) -> tuple[list[Launch], int]:
    """The launches of kernels that match the pattern ``kernel`` inside NVTX ranges ``nvtx``: in each process at most
    ``count`` after the first ``skip``. Also returns the number of such launches inside CUDA graphs, which cannot be
    replayed one by one.

    Raises :class:`CutraceError` if no launch is selected.
    """
    conditions = Conditions(
        kernel=(kernel,) if kernel else (), nvtx=(nvtx,) if nvtx else ()
    )
    with selected(trace, resolve(trace, conditions)[0]) as part:
        pids = [process.pid for process in part.processes]
        wanted = {
            (pids[row["process"]], int(row["correlation"])) for row in part.kernels
        }
        in_graphs = int((part.launches["graph"][part.kernels["launch"]] > 0).sum())
    found = [
        launch
        for launch in launches(trace)
        if (trace.processes[launch.process].pid, int(launch.row["correlation"]))
        in wanted
    ]
    if in_graphs:
        graphs = (
            f", and {in_graphs} inside CUDA graphs, which cannot be replayed one by one"
        )
    else:
        graphs = ""
    met = f"{count_of(len(found), 'launch')} met the filter{graphs}. Change --kernel, --nvtx, --skip or --count."
    return _some(found, skip, count, met), in_graphs


def choose_ranges(
    trace: Trace, pattern: str, skip: int, count: int | None
) -> tuple[list[Range], int, int]:
    """The ranges whose names match a pattern, with their places: in each process at most ``count`` after the first
    ``skip``. Also returns the number of places, and of ranges left out because they begin inside another one: the GPU
    counts one range at a time.

    Raises :class:`CutraceError` if no range is selected.
    """
    resolve(
        trace, Conditions(nvtx=(pattern,))
    )  # raises an error that lists the ranges if none matches
    everything = list(_ranges(trace, pattern))
    ends: dict[int, int] = defaultdict(int)
    found = []
    inside = 0
    for each in everything:
        start = int(each.row["start"])
        end = int(each.row["end"])
        if end and start < ends[each.process]:
            inside += 1
        elif end:  # else it never ended
            ends[each.process] = end
            found.append(each)
    met = f"{count_of(len(found), 'NVTX range')} met the filter. Change --ranges, --skip or --count."
    return *placed(trace, _some(found, skip, count, met), everything), inside


def placed(
    trace: Trace, chosen: Sequence[_Counted], everything: Iterable[CountedWork]
) -> tuple[list[_Counted], int]:
    """The chosen work of one run with its places, and the number of places. Each process with work of these keys counts
    it, also if the work was chosen in another process."""
    if len(trace.processes) == 1:
        return list(chosen), 1
    keys = {one.key for one in chosen}
    counting = {one.process for one in everything if one.key in keys}
    places = sorted(counting, key=lambda process: trace.processes[process].pid)
    return [replace(one, place=places.index(one.process)) for one in chosen], len(
        places
    )


#: Losses by which launches may be missing, and the details of those that can concern other records only.
_LOSSES_OF_LAUNCHES = {
    "cupti_dropped": (),
    "kept_back": (),
    "name_unknown": (),
    "let_go": (),
    "memory_limit": ("activity records", "buffers that were not read"),
    "size_limit": ("kernels", "launches", "strings"),
    "write_error": ("kernels", "launches", "strings"),
    "table_limit": ("launches", "strings"),
}


def lost_launches(trace: Trace) -> list[str]:
    """Sentences on losses by which launches may be missing, so that the numbers of others are too low."""
    quality = trace.quality
    losses = [
        loss
        for loss in quality.losses
        if loss.reason in _LOSSES_OF_LAUNCHES
        and loss.detail in (_LOSSES_OF_LAUNCHES[loss.reason] or (loss.detail,))
    ]
    sentences = [f"{count:,} {text}" for text, count in summed(losses, ()).items()]
    return [*sentences, *(damage.reason for damage in quality.damage)]


def launches(trace: Trace) -> Iterator[Launch]:
    """The launches of each process of a trace, in order, outside of CUDA graphs. Those without known times count."""
    configurations = trace.launches
    kernels = np.concatenate([trace.kernels, trace.unknown("kernels")])
    kernels = kernels[configurations["graph"][kernels["launch"]] == 0]
    seen: dict[tuple[int, bytes], int] = defaultdict(int)
    for row in kernels[np.lexsort((kernels["correlation"], kernels["process"]))]:
        configuration = configurations[row["launch"]]
        process = int(row["process"])
        name = trace.strings.bytes(int(configuration["name"]))
        shape = tuple(
            int(configuration[f"{what}_{axis}"])
            for what in ("grid", "block")
            for axis in "xyz"
        )
        yield Launch(process, (name,), seen[process, name], row, shape=shape)
        seen[process, name] += 1


def _ranges(trace: Trace, pattern: str) -> Iterator[Range]:
    """The ranges of each process whose names match a pattern, in order."""
    matches = matcher(pattern)
    rows = trace.nvtx_ranges
    ids = [
        name
        for name in np.unique(rows["name"]).tolist()
        if name and matches(trace.strings[name])
    ]
    rows = rows[np.isin(rows["name"], ids)]
    seen: dict[tuple[int, tuple[bytes, ...]], int] = defaultdict(int)
    for row in rows[np.lexsort((rows["start"], rows["process"]))]:
        process = int(row["process"])
        names = tuple(trace.strings.bytes(int(row[x])) for x in ("domain", "name"))
        yield Range(process, names, seen[process, names], row)
        seen[process, names] += 1


def _some(
    found: Iterable[_Counted], skip: int, count: int | None, met: str
) -> list[_Counted]:
    """In each process at most ``count`` after the first ``skip``. Raises :class:`CutraceError` if nothing is left."""
    by_process: dict[int, list[_Counted]] = defaultdict(list)
    for one in found:
        by_process[one.process].append(one)
    last = None if count is None else skip + count
    chosen = [one for own in by_process.values() for one in own[skip:last]]
    if not chosen:
        raise CutraceError(f"nothing is left to profile: {met}")
    return chosen
