"""What a golden file says: the metrics of a test that hold on every GPU, and those that hold on one."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..analysis.metrics import METRICS, Gate, Metric, Value

#: The newest format of golden files that is known here.
FORMAT = 1
#: Exact metrics that have a line only where they occur, and are 0 elsewhere: the kinds of copies.
KINDS = tuple(m.name for m in METRICS.values() if m.gate is Gate.EXACT and not m.always)
#: Metrics that may be negative: a test can free more than it allocates.
SIGNED = frozenset({"net_memory_bytes"})
#: Totals, and what they are totals of: a metric by name, or the counts or bytes of the kinds of copies.
TOTALS = {
    "kernel_launches": "kernels",
    "sync_calls": "syncs",
    "allocations": "allocators",
    "memcpy_count": "count",
    "memcpy_bytes": "bytes",
}
#: Where any of these is above 0, there was GPU work.
WORK = ("kernel_launches", "graph_launches", "memcpy_count", "memset_count")


class Verdict(enum.Enum):
    """How a value now compares with the golden one."""

    SAME = "SAME"
    #: An exact metric differs, and not only by doing less.
    CHANGED = "CHANGED"
    #: Less work, or less memory beyond the tolerance.
    BETTER = "BETTER"
    #: More memory than the tolerance allows, or more than a limit.
    WORSE = "WORSE"
    FAST = "FAST"
    SLOW = "SLOW"
    #: Times that neither settle on the same nor differ plainly.
    AMBIGUOUS = "AMBIGUOUS"
    #: There is no golden value.
    NEW = "NEW"
    #: Runs did not agree when the golden file was written.
    UNSTABLE = "UNSTABLE"


@dataclass(frozen=True)
class Interval:
    """Repeated measurements of a time, in ns: their least, median and third quartile, and how many there were.

    ``samples`` are kept from :data:`cutrace.golden.statistics.ENOUGH` repeats on, for the rank test.
    """

    min: int
    median: int
    q3: int
    n: int
    samples: tuple[int, ...] = ()


Stored = Value | Interval
Values = dict[str, Stored]


@dataclass(frozen=True)
class Section:
    """``[common]`` or ``[gpu.KEY]``: metrics by name, the same by region, on what they were recorded, and the metrics
    on which runs did not agree (those of a region as ``region/metric``)."""

    metrics: Values = field(default_factory=dict)
    regions: dict[str, Values] = field(default_factory=dict)
    recorded: str = ""
    unstable: tuple[str, ...] = ()

    def scopes(self) -> Iterator[tuple[str, Values]]:
        """The metrics of the whole window under the name "", then those of each region."""
        yield "", self.metrics
        yield from self.regions.items()

    def __bool__(self) -> bool:
        return bool(self.metrics or self.regions or self.recorded or self.unstable)


@dataclass(frozen=True)
class Golden:
    """The golden file of one test."""

    test: str
    common: Section = field(default_factory=Section)
    gpus: dict[str, Section] = field(default_factory=dict)
    format: int = FORMAT

    def on(self, gpu: str) -> Section:
        """What holds on a GPU: the most specific value of each metric wins. A metric is unstable there if a section
        that applies lists it and no more specific one has a value."""
        own = self.gpus.get(gpu)
        if own is None:
            return self.common
        regions = {
            name: {**self.common.regions.get(name, {}), **own.regions.get(name, {})}
            for name in dict.fromkeys((*self.common.regions, *own.regions))
        }
        told = {scoped(region, name) for region, values in own.scopes() for name in values}
        unstable = (*(name for name in self.common.unstable if name not in told), *own.unstable)
        return Section({**self.common.metrics, **own.metrics}, regions, own.recorded, tuple(dict.fromkeys(unstable)))


def scoped(region: str, name: str) -> str:
    """How a metric of a region is named in a list: ``region/metric``; of the whole window: ``metric``."""
    return f"{region}/{name}" if region else name


def metric(name: str, known: Mapping[str, Metric] = METRICS) -> Metric | None:
    """The metric of this name. A name with a dot in it is a project's own metric, an exact one."""
    found = known.get(name)
    if found is None and "." in name.strip("."):
        return Metric(name, Gate.EXACT, "", "a metric of the project's own")
    return found


def gpu_name(names: Sequence[str]) -> str:
    """The key of the GPUs that a test used: ``nvidia-h200``, ``nvidia-h200-x2``, ``nvidia-a100-and-nvidia-h200``."""
    keys = Counter(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in names)
    return "-and-".join(f"{key}-x{count}" if count > 1 else key for key, count in sorted(keys.items()))
