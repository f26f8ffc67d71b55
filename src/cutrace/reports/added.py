"""Find the lines of Python that launched added work, by a run of the test with Python stacks."""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis.call_sites import WITH_SITES, MetricWork, counted_work
from ..analysis.definitions import METRICS, Metrics
from ..analysis.marks import Window
from ..golden.compare import Row, increases
from ..golden.model import amount, grouped, part_of
from ..trace import Trace
from ..trace.stacks import PythonFrame
from .model import AddedWork, CallSite
from .values import pair, title, unit_of

#: Maximum of names of a metric, and of sites of a name.
_NAMES = 6
_SITES = 20
#: Metrics of memory in use. Their sites are the sites of allocations, but their value is not the sum of the
#: allocations.
_IN_USE = ("peak_memory_bytes", "net_memory_bytes")
#: Metrics with the names of another metric. If both rose, the other one is shown.
_SAME_WORK = {
    "memcpy_bytes": "memcpy_count",
    "memset_bytes": "memset_count",
    "net_memory_bytes": "peak_memory_bytes",
}
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Project:
    """The code of the project: files below ``root`` that are not installed. The test has the lines ``first`` to
    ``last`` of ``test_file``. All paths, also in frames, are absolute and without symbolic links."""

    root: Path
    test_file: str
    first: int = 0
    last: int = 0

    def place_of(self, frames: Sequence[PythonFrame]) -> tuple[str, str]:
        """The ``place`` and ``test`` of a :class:`.CallSite`, from a stack with its outermost frame first. The place is
        the innermost frame in code of the project, or else the innermost frame."""
        inner = frames[-1]
        for frame in frames[::-1]:
            if self.owns(frame.file):
                inner = frame
                break
        place = self._line(inner)
        test = self._test_line(frames)
        if test == place:
            test = ""
        if inner.function:
            place += f" in {inner.function}"
        return place, test

    def _test_line(self, frames: Sequence[PythonFrame]) -> str:
        """The line in the body of the test, "" if the stack has none."""
        outermost = ""
        for frame in frames:
            if frame.file != self.test_file:
                continue
            if self.first <= frame.line <= self.last:
                return self._line(frame)
            outermost = outermost or self._line(frame)
        return outermost

    def owns(self, file: str) -> bool:
        """Whether a file is code of the project."""
        if file == self.test_file:
            return True
        path = Path(file)
        if _INSTALLED.intersection(path.parts) or path.is_relative_to(_library()):
            return False
        return path.is_relative_to(self.root)

    def _line(self, frame: PythonFrame) -> str:
        return f"{self.shown(frame.file)}:{frame.line}"

    def shown(self, file: str) -> str:
        """A file relative to the root, or to the folder of installed packages."""
        path = Path(file)
        for at, part in enumerate(path.parts):
            if part in _INSTALLED:
                return "/".join(path.parts[at + 1 :])
        if path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return path.as_posix()


@lru_cache(maxsize=1024)
def _real(file: str) -> str:
    """The file without symbolic links. Code that was made at run time, such as ``<string>``, has no file."""
    if Path(file).is_absolute():
        return os.path.realpath(file)
    return file or "(unknown file)"


@lru_cache
def _library() -> str:
    """The folder of the standard library."""
    return os.path.realpath(sysconfig.get_path("stdlib"))


@dataclass(frozen=True)
class Increase:
    """An increase in a failed row: ``name`` is a part of the ``metric``, "" for the whole metric. ``before`` and
    ``now`` are the golden and the present amount, and ``change`` describes them."""

    metric: str
    region: str
    name: str
    before: int
    now: int
    change: str


def increases_of(rows: Sequence[Row]) -> list[Increase]:
    """The increases in failed rows of metrics with call sites. An increase in several rows is listed once."""
    # The whole test comes before its regions. Rows with golden values come before limits, because they have names.
    ordered = sorted(rows, key=lambda row: (bool(row.region), row.rule == "limit"))
    metrics: set[str] = set()
    told: set[tuple[str, str, str]] = set()
    increases = []
    for row in filter(attrgetter("failed"), ordered):
        for increase in islice(_increases(row), _NAMES):
            metric = increase.metric
            if row.rule == "limit" and metric in metrics:
                continue
            same = {metric, _SAME_WORK.get(metric, metric)}
            keys = set(product({"", row.region}, same, {increase.name}))
            if told.isdisjoint(keys):
                increases.append(increase)
            told.add((row.region, metric, increase.name))
        metrics.update(one.metric for one in increases)
    return increases


def _increases(row: Row) -> Iterator[Increase]:
    metric = row.metric
    part = ""
    declared = METRICS.get(metric)
    if declared is not None and part_of(declared):
        metric = declared.total
        part = part_of(declared)
    if metric not in WITH_SITES:
        return
    for name, (before, now) in increases(row).items():
        change = _change(row, name, before, now)
        yield Increase(metric, row.region, name or part, before, now, change)


def _change(row: Row, name: str, before: int, now: int) -> str:
    golden, present = pair(row.metric, before, now)
    subject = name or title(row.metric)
    if row.rule == "limit":
        change = f"{subject} {present}"
    elif name and not before:
        change = f"+ {subject}"
    else:
        change = f"{subject} {golden} -> {present}"
    if row.region:
        return f"{row.region}: {change}"
    return change


@dataclass(frozen=True)
class StackedRun:
    """A run with Python stacks: its capture, its window and its metrics. ``normalize`` returns the stable name of a
    kernel."""

    trace: Trace
    window: Window
    metrics: Metrics
    normalize: Callable[[str], str]

    def added(self, increase: Increase, project: Project) -> AddedWork | None:
        """The sites of the work of an increase; None if this run did not do exactly the same work."""
        metric = increase.metric
        name = increase.name
        if self._amount(increase) != increase.now:
            return None
        work = counted_work(
            self.trace,
            self.window,
            metric,
            region=increase.region,
            normalize=self.normalize,
        )
        if name:
            work = work.named(name)
        total = len(work)
        in_bytes = unit_of(metric) == "bytes"
        if in_bytes:
            total = int(work.size.sum())
        if metric not in _IN_USE and total != increase.now:
            return None
        sites = self._sites(work, project)
        sites.sort(key=lambda site: -(site.bytes if in_bytes else site.count))
        return AddedWork(
            metric,
            increase.region,
            name,
            increase.change,
            tuple(sites[:_SITES]),
            len(sites[_SITES:]),
        )

    def _amount(self, increase: Increase) -> int:
        """The amount in this run."""
        values = self.metrics.values
        if increase.region:
            values = self.metrics.regions.get(increase.region, {})
        value: Any = values.get(increase.metric)
        if increase.name:
            value = grouped(values).get(increase.metric, {}).get(increase.name)
        return amount(value) or 0

    def _sites(self, work: MetricWork, project: Project) -> list[CallSite]:
        counts = Counter[tuple[str, str]]()
        sizes = Counter[tuple[str, str]]()
        stacks, at = np.unique(work.stack, return_inverse=True)
        calls = np.bincount(at, minlength=len(stacks))
        size = np.zeros(len(stacks), np.int64)
        np.add.at(size, at, work.size)
        for number, stack in enumerate(stacks.tolist()):
            place = self._place(stack, project)
            counts[place] += int(calls[number])
            sizes[place] += int(size[number])
        return [CallSite(*place, counts[place], sizes[place]) for place in counts]

    def _place(self, stack: int, project: Project) -> tuple[str, str]:
        frames = frames_of(self.trace, stack)
        if not frames:
            return "", ""
        return project.place_of(frames)


def frames_of(trace: Trace, stack: int) -> list[PythonFrame]:
    """The frames of a Python stack, outermost first, with the files that :class:`Project` expects; none for stack 0."""
    stacks = trace.python_stacks
    if stacks is None:
        return []
    frames = []
    for number in stacks.frames(stack):
        frame = stacks.frame(number)
        frames.append(frame._replace(file=_real(frame.file)))
    return frames
