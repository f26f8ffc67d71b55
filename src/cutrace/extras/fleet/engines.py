"""Engines, which map the files of a batch. An engine is this process, processes of this machine, Dask, or any executor.

Each engine yields a task, its result (None if each worker that read the file died) and the number of tries.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from asyncio import TimeoutError as AsyncTimeoutError
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic, sleep
from types import FrameType, ModuleType
from typing import Any
from weakref import WeakSet

from ...errors import CutraceError, package
from ...outputs import available_cores
from ...units import count_of
from .parts import Mapped, Task, map_file, own_version

MODES = ("processes", "sequential", "dask")
#: Seconds to wait for a worker.
WAIT = 30.0

# Tasks that are queued for a worker of this machine in addition to its current one, so that it never waits for work.
_AHEAD = 2
# The largest number of tasks that an executor has at a time, because their results stay in the memory of this process.
_IN_FLIGHT = 4096
# Seconds between two checks for lost workers.
_LOOK = 1.0

# The errors, by module, with which executors report that a task's workers died.
_KILLED = {"distributed": "KilledWorker", "submitit.core.utils": "UncompletedJobError"}

# The errors of a Dask future without a result in time. Python 3.10 has two such errors.
_TIMEOUTS = (TimeoutError, AsyncTimeoutError)

_Done = tuple[Task, Mapped | None, int]


class _LostResultError(Exception):
    """The worker with the result of a task has died."""


@dataclass(frozen=True)
class Engine:
    """The choice of an engine. ``scheduler`` is the address or the scheduler file of Dask, or a client. ``executor`` is
    any :class:`concurrent.futures.Executor`; it is used instead of ``mode``. ``wait`` is the longest wait for a worker
    (s). ``say`` is called with messages."""

    mode: str = "processes"
    workers: int | None = None
    scheduler: Any = None
    executor: Executor | None = None
    wait: float = WAIT
    say: Callable[[str], None] | None = None

    def check(self) -> None:
        """Raise :class:`CutraceError` if there is no such mode, or an option would have no effect."""
        if self.mode not in MODES:
            raise CutraceError(
                f"there is no mode {self.mode!r}: use one of {', '.join(MODES)}"
            )
        if self.executor is not None and self.mode != "processes":
            raise CutraceError(
                "executor is used instead of a mode: leave out one of the two"
            )
        if self.scheduler is not None and self.mode != "dask":
            raise CutraceError(
                "`scheduler=` has no effect without `mode='dask'`: add it, or leave out `scheduler=`"
            )
        if self.workers is None:
            return
        if self.workers < 1:
            raise CutraceError(
                f"the number of workers cannot be {self.workers}: give 1 or more"
            )
        if self.executor is not None:
            place = "the executor has its own"
        elif self.mode == "sequential":
            place = "`mode='sequential'` has one"
        elif self.scheduler is not None:
            place = "the scheduler has its own"
        else:
            return
        raise CutraceError(f"`workers=` has no effect, because {place}: leave it out")

    def mapped(self, tasks: Sequence[Task]) -> Iterator[_Done]:
        """Map the tasks, and yield each when it is finished. Raises :class:`CutraceError` when no worker is left."""
        if not tasks:
            return iter(())
        if self.executor is not None:
            pool = _Pool(self.executor.submit, "the executor", self.wait)
            return pool.mapped(tasks)
        if self.mode == "dask":
            return self._on_dask(tasks)
        if self.mode == "sequential":
            return ((task, map_file(task), 1) for task in tasks)
        return self._in_processes(tasks)

    def _in_processes(self, tasks: Sequence[Task]) -> Iterator[_Done]:
        count = min(self.workers or available_cores(), len(tasks))
        with _processes(count) as submit:
            pool = _Pool(submit, "this machine", self.wait, own=count)
            yield from pool.mapped(tasks)

    def _on_dask(self, tasks: Sequence[Task]) -> Iterator[_Done]:
        with ExitStack() as stack:
            client = self._client(stack)
            # A scheduler without a dashboard raises KeyError here.
            with suppress(KeyError):
                if self.say and client.dashboard_link:
                    self.say(f"Dask's dashboard: {client.dashboard_link}")
            place = f"the Dask scheduler {client.scheduler.addr}"
            # The set is weak, because a worker keeps a result as long as its future exists.
            submitted: WeakSet[Any] = WeakSet()

            def submit(function: Callable[..., Any], *arguments: Any) -> Any:
                # When a worker dies, Dask runs its task again, as often as the scheduler's configuration allows. The
                # client is used directly, because a future of Dask's Executor can lose the error and then never finish.
                future = client.submit(function, *arguments, pure=False)
                submitted.add(future)
                return future

            pool = _Pool(submit, place, self.wait, client.nthreads)
            try:
                yield from pool.mapped(tasks)
            finally:
                if client.status == "running":
                    client.cancel(list(submitted))

    def _client(self, stack: ExitStack) -> Any:
        """The client of ``scheduler``, else of the scheduler in ``DASK_SCHEDULER_ADDRESS``, else of new local
        processes."""
        distributed: Any = package("distributed", "batch on Dask")
        scheduler = self.scheduler
        if scheduler is None:
            scheduler = os.environ.get("DASK_SCHEDULER_ADDRESS")
        if isinstance(scheduler, distributed.Client):
            return scheduler
        stack.enter_context(_without_logs("distributed.client"))
        stack.enter_context(_without_logs("tornado.application"))
        try:
            if scheduler is None:
                with _apart():
                    cluster = distributed.LocalCluster(
                        self.workers or available_cores(),
                        threads_per_worker=1,
                        dashboard_address=":0",
                    )
                stack.enter_context(cluster)
                client = distributed.Client(cluster)
            elif Path(scheduler).is_file():
                client = distributed.Client(
                    scheduler_file=os.fspath(scheduler),
                    timeout=self.wait,
                )
            else:
                client = distributed.Client(str(scheduler), timeout=self.wait)
        except (OSError, ValueError, MemoryError) as error:
            # MemoryError: another server than Dask's seems to announce messages of petabytes.
            raise CutraceError(
                f"cannot reach the Dask scheduler {scheduler} within {self.wait:g} s: {error}. "
                "Start it with `dask scheduler`, or leave `scheduler=` out for workers on this machine"
            ) from None
        return stack.enter_context(client)


@contextmanager
def _without_logs(name: str) -> Iterator[None]:
    """Suppress the log of a package. Its problems reach the user as errors."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


# Any executor


class _Pool:
    """Workers behind a function that submits work like :meth:`concurrent.futures.Executor.submit`. ``place`` names
    them, and ``patience`` is the longest wait for a worker (s). ``workers`` returns an empty collection if there are no
    workers now. Without ``workers``, the pool itself reports that it is broken. ``own`` is the number of processes, if
    they are of this machine; ``submit`` then replaces dead ones."""

    def __init__(
        self,
        submit: Callable[..., Any],
        place: str,
        patience: float,
        workers: Callable[[], Any] | None = None,
        own: int = 0,
    ) -> None:
        self._submit = submit
        self._place = place
        self._patience = patience
        self._workers = workers
        self._own = own
        self._most = own * _AHEAD or _IN_FLIGHT

    def mapped(self, tasks: Sequence[Task]) -> Iterator[_Done]:
        waiting = list(reversed(tasks))
        running: dict[Any, Task] = {}
        # When a worker dies, any of its files may be the cause. They are tried once more, one at a time.
        suspects: list[Task] = []
        tried: set[str] = set()
        finished = 0
        own = own_version()
        try:
            if not self._own:
                self._probe(own)
            seen = monotonic()
            while waiting or running or suspects:
                if not waiting and not running:
                    waiting.append(suspects.pop())
                while waiting and len(running) < self._most:
                    task = waiting.pop()
                    running[self._submit(map_on_worker, task, own)] = task
                future = _first_done(running, _LOOK)
                mapped = None
                if future is not None:
                    try:
                        mapped = self._result(future)
                    except _LostResultError:
                        # Dask runs the task again, on the next worker.
                        future = None
                if future is not None:
                    task = running.pop(future)
                    if mapped is None and task.source not in tried:
                        tried.add(task.source)
                        suspects.append(task)
                        continue
                    finished += 1
                    tries = 1
                    if task.source in tried:
                        tries = 2
                    yield task, mapped, tries
                elif self._workers is None or self._workers():
                    seen = monotonic()
                elif monotonic() - seen > self._patience:
                    raise _stopped(
                        f"{self._place} has had no worker for {self._patience:g} s: start workers",
                        finished,
                    )
        except (BrokenExecutor, CancelledError, ImportError, OSError) as error:
            if self._own:
                raise
            raise _stopped(self._why(error), finished) from None
        finally:
            # The client of Dask cancels all its tasks at once.
            if self._workers is None:
                for future in running:
                    future.cancel()

    def _result(self, future: Any) -> Mapped | None:
        """The result of a finished future; None if each worker that read the file died. Raises
        :class:`_LostResultError` if Dask lost the result with its worker."""
        if self._own:
            with suppress(BrokenProcessPool):
                return _result(future)
            return None
        if self._workers is None or future.status == "error":
            return _result(future)
        with suppress(*_TIMEOUTS):
            return _result(future, _LOOK)
        if self._workers():
            with suppress(*_TIMEOUTS):
                return _result(future, self._patience)
        raise _LostResultError

    def _why(self, error: Exception) -> str:
        """Return the reason why the pool accepts no more work, and advice."""
        if isinstance(error, BrokenExecutor):
            return f"a worker of {self._place} died, so {self._place} accepts no more work: make a new one"
        if isinstance(error, ImportError):
            return (
                f"{self._place} cannot run cutrace: {error}. Install it on each worker, and on Dask's scheduler, in "
                f"version {own_version()} and with pyarrow"
            )
        return f"the connection to {self._place} was lost: start it"

    def _probe(self, own: str) -> None:
        """Raise :class:`CutraceError` if no worker comes in time, or if the worker has another version of cutrace than
        ``own``. Raise :class:`ImportError` if the worker lacks cutrace."""
        end = monotonic() + self._patience
        # Probe with a function of the standard library first, because Dask keeps resending a function of cutrace to a
        # worker that lacks cutrace.
        self._soon(end, resolve_name, f"{__name__}:{version_here.__name__}")
        of_worker = self._soon(end, version_here)
        _check_version(of_worker, own)

    def _soon(self, end: float, function: Callable[..., Any], *arguments: str) -> Any:
        """Call a function on a worker and return its result. ``end`` is the deadline (monotonic time, s)."""
        future = self._submit(function, *arguments)
        if _first_done([future], end - monotonic()) is None:
            raise CutraceError(
                f"no worker of {self._place} took work within {self._patience:g} s: start workers, or wait longer "
                "with `wait=`"
            )
        try:
            return future.result()
        except (BrokenExecutor, CancelledError, ImportError, OSError):
            raise
        except Exception as error:
            # Dask's scheduler also unpickles the functions, so this error may come from the scheduler.
            words = " ".join(str(error).split())
            sentence, _, _ = words.partition(". ")
            raise ImportError(sentence) from None


def _first_done(futures: Iterable[Any], seconds: float) -> Any:
    """The first future that is done within these seconds, else None. Futures are polled, because jobs of submitit have
    no callbacks."""
    began = monotonic()
    while True:
        for future in futures:
            if future.done():
                return future
        waited = monotonic() - began
        if waited > seconds:
            return None
        # A worker has its next task already, so a pause that is shorter than a task does no harm.
        sleep(max(waited / 4, _LOOK / 100))


def _result(future: Any, *timeout: float) -> Mapped | None:
    """The result of a finished future; None if each worker that read the file died."""
    try:
        mapped: Mapped = future.result(*timeout)
    except Exception as error:
        for module, name in _KILLED.items():
            # The module is loaded if the future comes from it.
            package_of_future = sys.modules.get(module)
            killed = getattr(package_of_future, name, ())
            if isinstance(error, killed):
                return None
        raise
    return mapped


def _stopped(reason: str, finished: int) -> CutraceError:
    """The error of a pool that accepts no more work after ``finished`` files."""
    sentence = f"{reason}, and run this again"
    if finished:
        files = count_of(finished, "file")
        sentence += f": what was read before ({files}) is not read again"
    return CutraceError(sentence)


def version_here() -> str:
    """The version of cutrace on a worker. Raises :class:`ImportError` if pyarrow is missing."""
    import_module("pyarrow.parquet")
    return own_version()


def _check_version(of_worker: str, own: str) -> None:
    if of_worker != own:
        raise CutraceError(
            f"a worker has cutrace {of_worker}, and this process has {own}: install the same version on both"
        )


def map_on_worker(task: Task, own: str) -> Mapped:
    """Map a task on a worker. ``own`` is the version of cutrace of the calling process."""
    _check_version(own_version(), own)
    return map_file(task)


# Processes of this machine


@contextmanager
def _processes(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that submits work to processes of this machine. A process that dies breaks its pool, and a new
    pool replaces it."""
    pools: list[ProcessPoolExecutor] = []

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with _signals_later(), _apart():
            if pools:
                with suppress(BrokenProcessPool):
                    return pools[-1].submit(function, *arguments)
            # Ctrl-C ends this process. This process then ends each worker after its current file.
            pool = ProcessPoolExecutor(
                count,
                get_context("spawn"),
                signal.signal,
                (signal.SIGINT, signal.SIG_IGN),
            )
            pools.append(pool)
            return pool.submit(function, *arguments)

    try:
        yield submit
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Until the block ends, delay signals that would end this process. An interrupted start would leave a worker that
    waits forever for its first message, and this process would wait forever for the worker."""
    # Only the main thread handles signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            number = getattr(signal, name)
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
    received: list[tuple[int, FrameType | None]] = []
    for number in handlers:
        signal.signal(number, lambda *signaled: received.append(signaled))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in received:
            handlers[number](number, frame)


@contextmanager
def _apart() -> Iterator[None]:
    """Let new processes of multiprocessing run no code of this program. They do not import the modules of
    multiprocessing from the working folder (Python 3.10 does), and get the ``sys.path`` of this process later. They do
    not import the main module, because a script without a guard would start the same batch again."""
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
