"""The data that the collectors of one pass share: the trace, the options, and tables of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..trace import Trace
from ..trace.power import Power
from ..trace.ranges import RangesBy
from .calls import UNKNOWN_CALL, plain_name, synchronizes
from .gpu import Kinds
from .marks import Window
from .names import UNKNOWN, normalize_kernel
from .sweep import Groups, Work
from .windows import whole

#: Gaps up to this (ns) are the delay between consecutive kernels (HTA: consecutive kernel delay).
CONSECUTIVE_NS = 30
#: The length of a full queue, in launches. The next launching call waits.
FULL_QUEUE = 1024

# The fields of `launches` in a launch configuration, in the order of _configuration().
_CONFIGURATION_FIELDS = (
    *("grid_x", "grid_y", "grid_z"),
    *("block_x", "block_y", "block_z"),
    *("cluster_x", "cluster_y", "cluster_z"),
    *("registers", "static_shared", "dynamic_shared"),
)


@dataclass(frozen=True)
class StatsOptions:
    """Options of the statistics. ``names`` maps the name of a kernel to the name that it is counted under. Kernels that
    take less than ``short_ns`` (ns) are short. Gaps of streams up to ``consecutive_ns`` (ns) are a kernel wait. A queue
    of ``full_queue`` launches is full. With ``ranges="own"``, ranges adopt no work of other threads. Steps are the
    ranges whose name matches ``name`` (:mod:`cutrace.patterns`). "" selects no range."""

    names: Callable[[str], str] = normalize_kernel
    short_ns: int = 10_000
    consecutive_ns: int = CONSECUTIVE_NS
    full_queue: int = FULL_QUEUE
    ranges: RangesBy = "adopted"
    name: str = ""


DEFAULTS = StatsOptions()


@dataclass(frozen=True)
class Numbering:
    """Numbers of the distinct names of ``launches`` or ``functions``: ``numbers`` by row, ``names`` by number."""

    numbers: np.ndarray
    names: list[str]

    @classmethod
    def of(cls, names: Iterable[str]) -> Numbering:
        known: dict[str, int] = {}
        numbers = [known.setdefault(name, len(known)) for name in names]
        return cls(np.array(numbers, np.uint32), list(known))


@dataclass(frozen=True)
class Configuration:
    """A kernel and its launch configuration. ``shared`` is the static and the dynamic shared memory of a block
    (bytes)."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    registers: int
    shared: tuple[int, int]


class CollectorContext:
    """The trace, the options and the tables of names that the collectors of one pass share."""

    def __init__(self, trace: Trace, options: StatsOptions) -> None:
        self.trace = trace
        self.options = options
        self.text = trace.strings.__getitem__

    @cached_property
    def kernels(self) -> Numbering:
        """The names of kernels by launch configuration."""
        ids = self.trace.launches["name"]
        names = self.trace.strings.take(ids, self.options.names).tolist()
        return Numbering.of(name or UNKNOWN for name in names)

    @cached_property
    def functions(self) -> Numbering:
        """The names of API functions."""
        ids = self.trace.functions["name"]
        names = self.trace.strings.take(ids, plain_name).tolist()
        return Numbering.of(name or UNKNOWN_CALL for name in names)

    @cached_property
    def waiting_functions(self) -> np.ndarray:
        """A mask of the API functions that wait for the GPU."""
        names = self.trace.functions["name"]
        return self.trace.strings.take(names, synchronizes).astype(bool)

    @cached_property
    def power(self) -> Power:
        """The power of GPUs."""
        return Power(self.trace)

    @cached_property
    def regions(self) -> tuple[Window, ...]:
        """The regions between marks."""
        return whole(self.trace).regions

    @cached_property
    def configurations(self) -> tuple[np.ndarray, list[Configuration]]:
        """The number of each launch configuration of the trace, and the distinct configurations by number."""
        groups = Groups(self._configuration)
        launches = self.trace.table("launches")
        fields = [launches[field] for field in _CONFIGURATION_FIELDS]
        numbers = groups.of(self.kernels.numbers, *fields)
        return numbers, groups.values

    def _configuration(self, name: int, *fields: int) -> Configuration:
        gx, gy, gz, bx, by, bz, cx, cy, cz, registers, static, dynamic = fields
        return Configuration(
            self.kernels.names[name],
            grid=(gx, gy, gz),
            block=(bx, by, bz),
            cluster=(cx, cy, cz),
            registers=registers,
            shared=(static, dynamic),
        )

    @cached_property
    def kinds(self) -> Kinds:
        """The kinds of GPU work."""
        return Kinds(self.trace)

    def created(self, work: Work) -> np.ndarray | None:
        """The path of the ranges in which the graph node of each piece of work was created (``Trace.origins``); None in
        a trace without origins."""
        origins = self.trace.origins
        if origins is None or work.node is None:
            return None
        return origins.path_of.take(work.node)
