"""Select the work that `cutrace profile` counts: launches of kernels, or whole NVTX ranges.

The second run identifies work by its names and by its number. Work with the same names in a process is numbered in the
order of starts. So the program must do the same work in each run.
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
from ...patterns import Patterns, matcher
from ...runbin.writer import Writer
from ...slicing import Conditions, resolve
from ...trace import Trace
from ...trace.quality import summed
from ...units import count_of


@dataclass(frozen=True)
class CountedWork(ABC):
    """A launch or a range. ``row`` is its row in the trace. ``place`` is the index of its process among the processes
    that count work in this run, sorted by process id."""

    process: int
    names: tuple[bytes, ...]
    number: int
    row: np.void
    place: int = 0

    @property
    def key(self) -> Key:
        """The key that identifies it among the work of its process."""
        return self.names, self.number

    @property
    def time(self) -> int:
        """Its duration (ns)."""
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


#: The names of a kernel or range, and its number among the work with these names in its process. A kernel has one name.
#: A range has a domain and a name.
Key = tuple[tuple[bytes, ...], int]
#: The columns of ``launches`` with the grid and the block.
SHAPE = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]

_Counted = TypeVar("_Counted", bound=CountedWork)


def choose_launches(
    trace: Trace,
    kernel: Patterns | None,
    nvtx: Patterns | None,
    skip: int,
    count: int | None,
) -> tuple[list[Launch], int]:
    """The launches of kernels that match the patterns ``kernel``, inside NVTX ranges that match ``nvtx``. In each
    process, the first ``skip`` launches are skipped and at most ``count`` follow. Also returns the number of matching
    launches inside CUDA graphs, which cannot be replayed one by one.

    Raises :class:`CutraceError` if no launch is selected.
    """
    conditions = Conditions(kernel=kernel or (), nvtx=nvtx or ())
    wanted = set()
    with selected(trace, resolve(trace, conditions)[0]) as part:
        kernels = part.kernels
        graphs = part.launches["graph"][kernels["launch"]]
        in_graphs = int(np.count_nonzero(graphs))
        for process, correlation in kernels[["process", "correlation"]].tolist():
            wanted.add((part.processes[process].pid, correlation))
    found = []
    for launch in launches(trace):
        pid = trace.processes[launch.process].pid
        if (pid, int(launch.row["correlation"])) in wanted:
            found.append(launch)
    met = f"{count_of(len(found), 'launch')} met the filter"
    if in_graphs:
        met += (
            f", and {in_graphs} inside CUDA graphs, which cannot be replayed one by one"
        )
    met += ". Change `kernel=`, `nvtx=`, `skip=` or `count=`."
    return _some(found, skip, count, met), in_graphs


def choose_ranges(
    trace: Trace,
    pattern: str,
    skip: int,
    count: int | None,
) -> tuple[list[Range], int, int]:
    """The ranges with names that match a pattern, with their places. In each process, the first ``skip`` ranges are
    skipped and at most ``count`` follow. Also returns the number of places, and the number of ranges that are left out
    because they start inside another range. The GPU counts one range at a time.

    Raises :class:`CutraceError` if no range is selected.
    """
    # If no range matches, this raises an error that lists the ranges.
    resolve(trace, Conditions(nvtx=(pattern,)))
    everything = list(_ranges(trace, pattern))
    ends: dict[int, int] = defaultdict(int)
    found = []
    inside = 0
    for each in everything:
        start = int(each.row["start"])
        end = int(each.row["end"])
        if end and start < ends[each.process]:
            inside += 1
        elif end:  # 0: the range never ended
            ends[each.process] = end
            found.append(each)
    met = f"{count_of(len(found), 'NVTX range')} met the filter. Change `ranges=`, `skip=` or `count=`."
    chosen, places = placed(trace, _some(found, skip, count, met), everything)
    return chosen, places, inside


def placed(
    trace: Trace,
    chosen: Sequence[_Counted],
    everything: Iterable[CountedWork],
) -> tuple[list[_Counted], int]:
    """Return the chosen work with its places, and the number of places. Each process with work of a chosen key has a
    place, even if only work of another process was chosen."""
    if len(trace.processes) == 1:
        return list(chosen), 1
    keys = {one.key for one in chosen}
    counting = {one.process for one in everything if one.key in keys}
    places = sorted(counting, key=lambda process: trace.processes[process].pid)
    with_places = [replace(one, place=places.index(one.process)) for one in chosen]
    return with_places, len(places)


#: Losses that may include launches. The values are details of losses without launches.
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
    """Sentences on losses that may include launches. After a missing launch, the numbers of the others are too low."""
    quality = trace.quality
    losses = []
    for loss in quality.losses:
        if loss.reason in _LOSSES_OF_LAUNCHES:
            details = _LOSSES_OF_LAUNCHES[loss.reason]
            if not details or loss.detail in details:
                losses.append(loss)
    sentences = list(summed(losses, ()))
    sentences += [damage.reason for damage in quality.damage]
    return sentences


def launches(trace: Trace) -> Iterator[Launch]:
    """The launches of each process of a trace outside CUDA graphs, in order, including launches without known times."""
    configurations = trace.launches
    kernels = np.concatenate([trace.kernels, trace.unknown("kernels")])
    kernels = kernels[configurations["graph"][kernels["launch"]] == 0]
    order = np.lexsort((kernels["correlation"], kernels["process"]))
    seen: dict[tuple[int, bytes], int] = defaultdict(int)
    for row in kernels[order]:
        configuration = configurations[row["launch"]]
        process = int(row["process"])
        name = trace.strings.bytes(int(configuration["name"]))
        shape = configuration[SHAPE].item()
        yield Launch(process, (name,), seen[process, name], row, shape=shape)
        seen[process, name] += 1


def _ranges(trace: Trace, pattern: str) -> Iterator[Range]:
    """The ranges of each process with names that match a pattern, in order."""
    matches = matcher(pattern)
    rows = trace.nvtx_ranges
    names = np.unique(rows["name"]).tolist()
    ids = [name for name in names if name and matches(trace.strings[name])]
    rows = rows[np.isin(rows["name"], ids)]
    order = np.lexsort((rows["start"], rows["process"]))
    seen: dict[tuple[int, tuple[bytes, ...]], int] = defaultdict(int)
    for row in rows[order]:
        process = int(row["process"])
        domain = trace.strings.bytes(int(row["domain"]))
        key = (domain, trace.strings.bytes(int(row["name"])))
        yield Range(process, key, seen[process, key], row)
        seen[process, key] += 1


def _some(
    found: Iterable[_Counted],
    skip: int,
    count: int | None,
    met: str,
) -> list[_Counted]:
    """In each process, skip the first ``skip`` and return at most ``count``. Raises :class:`CutraceError` if nothing is
    left."""
    by_process: dict[int, list[_Counted]] = defaultdict(list)
    for one in found:
        by_process[one.process].append(one)
    chosen: list[_Counted] = []
    for own in by_process.values():
        left = own[skip:]
        chosen += left[:count]
    if not chosen:
        raise CutraceError(f"nothing is left to profile: {met}")
    return chosen
