"""Hardware counters of tests and regions. A GPU counts one range of one process at a time."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ...arguments import checked
from ...collect import mark
from ...collect.library import collector
from ...collect.private_folder import usable_folders
from ...errors import CutraceError
from ...patterns import several
from .ranges import Context, RangeCounters
from .sets import COUNTERS

#: The longest wait (s) for other processes that count on the same GPU.
PATIENCE = 300.0
_POLL = 0.01


@contextlib.contextmanager
@checked
def region(name: str, counters: str | Sequence[str]) -> Iterator[dict[str, float]]:
    """Count the GPU work of a part of this program, in its current CUDA context, with all streams and graphs. Waits for
    the GPU at the start and the end. Counts in one pass, so nothing runs twice.

    ``counters`` are names such as ``instructions`` and ``dram_bytes``, or CUPTI's names with a rollup. Yields a dict;
    after the region it has the values by name. A running recording gets a mark with the values. Raises
    :class:`CutraceError` if the counters cannot be read, for example inside another region or a test with counters.
    """
    values: dict[str, float] = {}
    shared = counting()
    shared.start(several(counters))
    try:
        yield values
        values.update(shared.stop())
    finally:
        shared.end()
    counts = [f"{counter} {value:,}" for counter, value in values.items()]
    with contextlib.suppress(CutraceError):  # a recording without NVTX accepts no marks
        mark(f"{name}: {', '.join(counts)}")


@cache
def counting() -> Counting:
    """The counters of this process."""
    return Counting()


class Counting:
    """The hardware counters of this process. Names are keys of :data:`.sets.COUNTERS` or CUPTI's own names.

    Each range enables CUPTI's counters again, which takes 0.1 s, because CUPTI refuses other processes on the GPU while
    counters are enabled.
    """

    def __init__(self) -> None:
        #: The counter names of the current or the last range.
        self.names: tuple[str, ...] = ()
        self._context: Context | None = None
        self._ranges: RangeCounters | None = None
        self._lock: _GpuLock | None = None

    @property
    def running(self) -> bool:
        """Whether a range is open."""
        return self._lock is not None

    def start(self, names: Sequence[str]) -> None:
        """Wait for the GPU and start a range.

        Raises :class:`.ranges.NoContext` if CUDA is not in use yet, and :class:`CutraceError` if these counters cannot
        be read for another reason.
        """
        if self.running:
            raise CutraceError(
                "the GPU counts one range at a time, and one is open already: use counters in only one of them"
            )
        context = Context.current()
        self._lock = _GpuLock(context.uuid)
        try:
            full = dict.fromkeys(COUNTERS.get(name, name) for name in names)
            self._ranges = RangeCounters(list(full), context)
            self.names = tuple(names)
            self._context = context
            self._wait()
            self._ranges.start()
        except BaseException:
            self._release()
            raise

    def stop(self) -> dict[str, float]:
        """Wait for the GPU and end the range. Returns the values by name, whole numbers as int.

        Raises :class:`CutraceError` if they are lost.
        """
        try:
            if self._ranges is None or self._context is None or not self._context.alive:
                raise CutraceError(
                    "the counters are lost: the CUDA context that was counted has ended"
                )
            self._wait()
            counts = self._ranges.stop()
        finally:
            self._release()
        values: dict[str, float] = {}
        odd = []
        for name in self.names:
            value = counts[COUNTERS.get(name, name)]
            if not math.isfinite(value):
                odd.append(name)
            elif value.is_integer():
                values[name] = int(value)
            else:
                values[name] = value
        if odd:
            raise CutraceError(f"the GPU gave no value of {', '.join(odd)}")
        return values

    def end(self) -> None:
        """End the range, if there is one, and discard its counts."""
        if self.running:
            with contextlib.suppress(CutraceError):
                self.stop()

    def _wait(self) -> None:
        assert self._context is not None
        native = collector()
        if native.running and native.stats().cupti_active:
            native.synchronize()  # the collector does not record its own call
        else:
            self._context.synchronize()

    def _release(self) -> None:
        """Release the counters, so that other processes can use the GPU."""
        ranges = self._ranges
        lock = self._lock
        self._ranges = None
        self._lock = None
        if ranges is not None:
            with contextlib.suppress(CutraceError):
                ranges.close()
        if lock is not None:
            lock.release()


class _GpuLock:
    """A file lock that lets one process of a user count on a GPU at a time. It ends with the process.

    If the user cannot create the file, processes do not wait for each other, and CUPTI accepts only one of them.
    """

    #: GPUs with a lock that this process has not got in time. It does not wait for them again.
    _given_up: set[str] = set()
    _held: set[int] = set()

    def __init__(self, uuid: str) -> None:
        """Wait for the lock. Raises :class:`CutraceError` after :data:`PATIENCE`."""
        import fcntl  # imported here because Windows lacks it

        self._file, path = _open_lock(f"{uuid}.lock")
        if self._file < 0:
            return
        deadline = time.monotonic()
        if uuid not in self._given_up:
            deadline += PATIENCE
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
            self._held.add(self._file)
            return

    def release(self) -> None:
        import fcntl

        if self._file in self._held:  # a forked child does not hold it
            self._held.remove(self._file)
            # Unlock explicitly, because a child forked by C code may also have the file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)

    @classmethod
    def leave_to_parent(cls) -> None:
        """Close the files in a forked child, because the child would otherwise hold the locks until it ends."""
        while cls._held:
            os.close(cls._held.pop())


def _open_lock(name: str) -> tuple[int, Path]:
    """A file descriptor of a lock file in the private folder of this user, and the path of the file. The descriptor is
    -1 if no file can be created. The collector locks the same file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        for folder in usable_folders():
            with contextlib.suppress(OSError):
                path = folder / name
                return os.open(path, flags, 0o600), path
    return -1, Path(name)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_GpuLock.leave_to_parent)
