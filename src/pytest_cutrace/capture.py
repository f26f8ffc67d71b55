"""One run of a test: its window, its regions, and its metrics."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from cutrace.analysis.definitions import METRICS, Metrics, Value
from cutrace.analysis.marks import Window, begin, end
from cutrace.errors import CutraceError
from cutrace.golden.decide import MeasuredRun
from cutrace.plugins import of_extras

from .recording import CaptureFile, SessionRecording
from .threads import LeftThreads

if TYPE_CHECKING:
    from cutrace.trace import Trace

#: The number of captures of earlier tests to keep. They have the launches of work that ran late.
_EARLIER = 8
#: The modules that measure runs and explain failures. They take as long to load as NumPy.
_MEASURING = (
    "cutrace.analysis.metrics",
    "cutrace.collect.join",
    "cutrace.reports.added",
    "cutrace.reports.allowed",
)


class HardwareCounters(Protocol):
    """Hardware counters of this process. An extra reads them."""

    names: tuple[str, ...]

    def start(self, names: Sequence[str]) -> None: ...

    def stop(self) -> dict[str, float]: ...

    def end(self) -> None: ...


def counters() -> HardwareCounters:
    """The hardware counters of this process. Raises :class:`CutraceError` without hardware metrics."""
    found = of_extras("cutrace_counters")
    if not found:
        raise CutraceError(
            "this installation of cutrace lacks hardware metrics: install all of it to use counters"
        )
    return cast(HardwareCounters, found[0])


#: The metrics of a test without GPU work.
NOTHING: dict[str, Value] = {
    m.name: {} if m.counts else 0 for m in METRICS.values() if m.always
}


@dataclass
class Run:
    """One run of a test: its window (ns of BOOTTIME), and the files with its work."""

    name: str
    start: int = 0
    end: int = 0
    marked: bool = False
    regions: list[Window] = field(default_factory=list)
    #: Returns the stable name of a kernel.
    normalize: Callable[[str], str] = str
    #: Open regions: name and start.
    open: list[tuple[str, int]] = field(default_factory=list)
    #: The counts of hardware counters by region ("" is the whole window), the counts of the region that ended last, and
    #: by region the counters that could not be read, with the reason.
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    uncounted: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    #: Whether the run started before CUDA was in use, so that counting was not possible.
    early: bool = False
    #: The region that is being counted, None for the whole window.
    counting: tuple[str, int] | None = None
    user: dict[str, object] = field(default_factory=dict)
    #: The threads that earlier runs left running, by native id, with the test in which they started.
    left_threads: Mapping[int, str] = field(default_factory=dict)
    parts: tuple[CaptureFile, ...] = ()
    #: The synchronising calls that limits with allowed places count, by region and place.
    waits: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=lambda: Metrics(dict(NOTHING)))
    #: The run for decisions, None before it is measured.
    measured: MeasuredRun | None = None

    @property
    def window(self) -> Window:
        regions = sorted(self.regions, key=lambda region: region.start)
        return Window(self.name, self.start, self.end, regions=tuple(regions))

    @property
    def files(self) -> list[Path]:
        return [part.path for part in self.parts]


class Captures:
    """Cuts the runs of tests out of a recording and measures them."""

    def __init__(self, recording: SessionRecording) -> None:
        self.recording = recording
        self._earlier: dict[Path, None] = {}
        self._threads = LeftThreads()
        #: Whether a test or region is being counted.
        self._counting = False
        self._counters: HardwareCounters | None = None
        #: The modules of cutrace and NumPy, once runs can be measured.
        self._modules: dict[str, ModuleType] = {}

    def load(self) -> None:
        """Load what measures runs. NumPy can be loaded only once, so it must not be removed by a fixture that restores
        ``sys.modules``: call this before the fixtures of a test are set up."""
        if self._modules:
            return
        for name in _MEASURING:
            importlib.import_module(name)
        for name, module in list(sys.modules.items()):
            package, _, _ = name.partition(".")
            if package in ("cutrace", "numpy"):
                self._modules[name] = module

    @contextlib.contextmanager
    def _usable_modules(self) -> Iterator[None]:
        """Put back the modules of cutrace and NumPy that a test removed or replaced. NumPy imports some when it uses
        them."""
        self.load()
        if self._modules.items() <= sys.modules.items():
            yield
            return
        replaced = {}
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                if name in sys.modules:
                    replaced[name] = sys.modules[name]
                sys.modules[name] = module
        try:
            yield
        finally:
            sys.modules.update(replaced)

    @property
    def counters(self) -> HardwareCounters:
        """The hardware counters of this process, loaded when a test needs some."""
        if self._counters is None:
            self._counters = counters()
        return self._counters

    def end_counters(self) -> None:
        """End counting, if any."""
        if self._counters is not None:
            self._counters.end()

    def begin(self, name: str, counters: Sequence[str] = ()) -> Run:
        if self._counting:  # An earlier range was interrupted.
            self._counting = False
            self.counters.end()
        run = Run(name, marked=self.recording.begin())
        run.left_threads = self._threads.begin()
        if counters:
            self._count(run, "", counters)
        run.start = _now()
        self._mark(run, begin("test", name))
        return run

    def _mark(self, run: Run, text: str) -> None:
        """Mark the recording if the begin of the window is marked. An end mark without a begin mark would make the
        window look incomplete."""
        if run.marked:
            self.recording.mark(text)

    def end(self, run: Run, *, patient: bool) -> None:
        """End the window and its regions, wait for its work, and cut the recording. ``patient``: see
        :meth:`.SessionRecording.take`."""
        for region in reversed(run.open[:]):
            self.leave(run, region)
        self._mark(run, end("test", run.name))
        run.end = _now()
        self._threads.end(run.name)
        if self._counting:
            self._counted(run, "")
        run.parts += self.recording.take(patient=patient)

    def enter(
        self, run: Run, name: str, counters: Sequence[str] = ()
    ) -> tuple[str, int]:
        if counters:
            with self._aside(run, "counters"):
                self._count(run, name, counters)
        region = (name, _now())
        run.open.append(region)
        if counters:
            run.counting = region
        self._mark(run, begin("region", name))
        return region

    def leave(self, run: Run, region: tuple[str, int]) -> None:
        # The end of the window has already closed a region that a fixture holds.
        if region not in run.open:
            return
        run.open.remove(region)
        name, start = region
        self._mark(run, end("region", name))
        run.regions.append(Window(name, start, _now()))
        run.latest = {}
        if region is run.counting:
            run.counting = None
            if self._counting:
                with self._aside(run, "counters"):
                    self._counted(run, name)

    def _count(self, run: Run, region: str, counters: Sequence[str]) -> None:
        """Wait for the GPU and start counting."""
        try:
            self.counters.start(counters)
            self._counting = True
        except CutraceError as error:
            run.early |= getattr(error, "before_cuda", False)
            run.uncounted[region] = (tuple(counters), str(error))

    def _counted(self, run: Run, region: str) -> None:
        """Wait for the GPU and stop counting. Counts of regions with the same name are added."""
        self._counting = False
        names = self.counters.names
        try:
            run.latest = {
                name: round(value) for name, value in self.counters.stop().items()
            }
        except CutraceError as error:
            self.counters.end()
            run.uncounted[region] = (names, str(error))
        total = run.counts.setdefault(region, {})
        for name, count in run.latest.items():
            total[name] = total.get(name, 0) + count

    @contextlib.contextmanager
    def _aside(self, run: Run, name: str) -> Iterator[None]:
        """Exclude calls of the plugin inside a window from its metrics."""
        self._mark(run, begin("tool", name))
        try:
            yield
        finally:
            self._mark(run, end("tool", name))

    def measure(
        self,
        run: Run,
        more: Callable[[Trace, Window], Mapping[str, Value]] | None = None,
    ) -> Metrics:
        """Measure a run that has ended. ``more`` computes further metrics from its trace."""
        run.metrics = self._measured(run, run.window, more)
        if run.metrics.without_launch and self._earlier:
            # Work of an earlier test may run late. Its launch is in the capture of that test.
            run.metrics = self._measured(run, run.window, more, self._earlier)
        values = run.metrics.values
        regions = dict(run.metrics.regions)
        for name, counts in run.counts.items():
            if name in run.uncounted:
                continue
            if name in regions:
                regions[name] = {**regions[name], **counts}
            elif not name:
                values = {**values, **counts}
        run.metrics = replace(run.metrics, values=values, regions=regions)
        return run.metrics

    def so_far(self, run: Run) -> Metrics:
        """The metrics of the region that ended last in a run that has not ended."""
        region = run.regions[-1]
        with self._aside(run, "metrics"):
            run.parts += self.recording.take(patient=True)
            metrics = self._measured(run, replace(region, regions=()))
        return replace(metrics, values=metrics.values | run.latest)

    def release(self, runs: Sequence[Run]) -> None:
        """Remove the files of these runs, but keep the latest files of this process."""
        for run in runs:
            for part in run.parts:
                if not part.own:
                    part.path.unlink(missing_ok=True)
                else:
                    self._earlier[part.path] = None
        while len(self._earlier) > _EARLIER:
            oldest = next(iter(self._earlier))
            del self._earlier[oldest]
            oldest.unlink(missing_ok=True)

    @contextlib.contextmanager
    def opened(self, files: Sequence[Path]) -> Iterator[Trace]:
        """Open these files as one trace."""
        with self._usable_modules():
            path = files[0]
            if len(files) > 1:
                from cutrace.collect.join import join

                path = self.recording.folder / "joined"
                join(files, path, moving=False)
            from cutrace.trace import load

            with load(path) as trace:
                yield trace

    def _measured(
        self,
        run: Run,
        window: Window,
        more: Callable[[Trace, Window], Mapping[str, Value]] | None = None,
        earlier: Iterable[Path] = (),
    ) -> Metrics:
        if not run.files:  # No process used CUDA.
            regions = {region.name: dict(NOTHING) for region in window.regions}
            return Metrics(dict(NOTHING), regions)
        with self.opened([*earlier, *run.files]) as trace:
            from cutrace.analysis.metrics import measure

            metrics = measure(trace, window, normalize=run.normalize)
            if "compute capability" not in metrics.facts and len(trace.devices):
                # A window without GPU work belongs to the environment of the first GPU.
                device = trace.devices[0]
                capability = f"{device['compute_major']}.{device['compute_minor']}"
                metrics = replace(
                    metrics, facts={**metrics.facts, "compute capability": capability}
                )
            if more is not None:
                metrics = replace(
                    metrics, values={**metrics.values, **more(trace, window)}
                )
            return metrics


def _now() -> int:
    """The time (ns) on the clock of captures."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
