"""The counters of tests and regions: which are counted, one range at a time, and whose turn it is on a GPU."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ..collect import mark
from ..collect.library import collector
from ..errors import CutraceError
from .ranges import Context, RangeCounters
from .sets import COUNTERS

#: Seconds that a range waits until other processes have read the counters of its GPU.
PATIENCE = 300.0
_POLL = 0.01


@contextlib.contextmanager
def region(name: str, counters: Sequence[str]) -> Iterator[dict[str, float]]:
    """Count what the GPU does in a part of this program: its current CUDA context, all streams and graphs. It waits for
    the GPU at the begin and the end, and needs one pass: nothing runs twice.

    ``counters`` are names such as ``instructions`` and ``dram_bytes``, or CUPTI's own with a rollup. Gives a dict that
    has their values when the region is over; a recording gets a mark with them. Raises :class:`CutraceError` for what
    keeps them from being read, such as another region or test with counters around this one.
    """
    found: dict[str, float] = {}
    shared = counting()
    shared.start([counters] if isinstance(counters, str) else counters)
    try:
        yield found
        found.update(shared.stop())
    finally:
        shared.end()
    with contextlib.suppress(CutraceError):  # a recording without NVTX takes no marks
        mark(f"{name}: {', '.join(f'{counter} {value:,}' for counter, value in found.items())}")


@cache
def counting() -> Counting:
    """The counters of this process: a context has one user of them at a time."""
    return Counting()


class Counting:
    """The hardware counters of this process. Names are those of :data:`.sets.COUNTERS`, or CUPTI's own.

    Each range prepares CUPTI anew, which takes 0.1 s: while one process is prepared, CUPTI refuses all others on its
    GPU.
    """

    def __init__(self) -> None:
        #: What is counted, or was last.
        self.names: tuple[str, ...] = ()
        self._context: Context | None = None
        self._ranges: RangeCounters | None = None
        self._lock: _GpuLock | None = None

    @property
    def running(self) -> bool:
        """Whether a range has begun and not ended."""
        return self._lock is not None

    def start(self, names: Sequence[str]) -> None:
        """Wait for the GPU and begin a range.

        Raises :class:`.ranges.NoContext` when CUDA is not in use yet, and :class:`CutraceError` for whatever else keeps
        these counters from being read.
        """
        if self.running:
            raise CutraceError(
                "the GPU counts one range at a time, and one has begun already: ask for counters in one of them"
            )
        context = Context.current()
        self._lock = _GpuLock(context.uuid)
        try:
            full = list(dict.fromkeys(COUNTERS.get(name, name) for name in names))
            self._ranges = RangeCounters(full, context=context)
            self.names, self._context = tuple(names), context
            self._wait()
            self._ranges.start()
        except BaseException:
            self._drop()
            self._unlock()
            raise

    def stop(self) -> dict[str, float]:
        """Wait for the GPU and end the range. Returns the values by name, whole numbers as such.

        Raises :class:`CutraceError` when they are lost.
        """
        try:
            if self._ranges is None or self._context is None or not self._context.alive:
                raise CutraceError("the counters are lost: the CUDA context that was counted has ended")
            self._wait()
            found = self._ranges.stop()
        finally:
            self._drop()
            self._unlock()
        values = {name: found[COUNTERS.get(name, name)] for name in self.names}
        if odd := [name for name, value in values.items() if not math.isfinite(value)]:
            raise CutraceError(f"the GPU gave no value of {', '.join(odd)}")
        return {name: int(value) if value.is_integer() else value for name, value in values.items()}

    def end(self) -> None:
        """End a range whose counts nobody wants. Without one, do nothing."""
        if self.running:
            with contextlib.suppress(CutraceError):
                self.stop()

    def close(self) -> None:
        """Let go of the counters, those of a range that has not ended too."""
        self.end()
        self._drop()

    def _wait(self) -> None:
        assert self._context is not None
        native = collector()
        if native.running and native.stats().cupti_active:
            native.synchronize()  # the recording does not show this call
        else:
            self._context.synchronize()

    def _drop(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges is not None:
            with contextlib.suppress(CutraceError):
                ranges.close()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class _GpuLock:
    """The turn to count on a GPU, which one process of a user has at a time. A file holds it, and ends with it."""

    #: GPUs for which this process has waited in vain: it does not wait again.
    _given_up: set[str] = set()

    def __init__(self, uuid: str) -> None:
        """Wait for the turn. Raises :class:`CutraceError` when it does not come."""
        import fcntl  # Windows has none, and no counters either

        path = Path(tempfile.gettempdir()) / f"cutrace-{os.getuid()}-{uuid}.lock"
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CutraceError(f"cannot open {path}, by which tests take turns to count: {error.strerror}") from None
        deadline = time.monotonic() + (0 if uuid in self._given_up else PATIENCE)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(_POLL)
                    continue
                os.close(self._file)
                self._given_up.add(uuid)
                raise CutraceError(
                    f"another process has counted on this GPU for more than {PATIENCE:g} s ({path}): run fewer workers "
                    "on it, or end that process"
                ) from None
            return

    def release(self) -> None:
        import fcntl

        # A child that was forked meanwhile has the file open too.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)
