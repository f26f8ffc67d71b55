"""Recording from inside a Python program: :func:`record` starts now, :func:`arm` at the first CUDA or NVTX call."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import signal
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from importlib import import_module
from os import getpid  # Tests patch os.getpid.
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..arguments import checked
from ..errors import CutraceError
from . import annotate, cuda, environment
from .command import collected
from .join import Destination, free_output, is_numbered, output_name
from .library import collector, collector_path
from .options import Options, completed

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from .options import OptionArguments

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The priority of a finalizer of multiprocessing: it runs after the program's finalizers and before the collector's
# (features/children).
_LATE = -500

# Seconds between two looks for complete windows.
_WINDOW_INTERVAL = 0.25

# Locked while a call of a decorated function is recorded. Any thread may release it, because a generator may end in
# another thread.
_recorded_call = threading.Lock()


def _forget_recorded_call() -> None:
    """Let a forked child record calls. The thread that held the lock may be missing there."""
    global _recorded_call
    _recorded_call = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_forget_recorded_call)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM while a recording ends, and deliver them then. Without effect outside of the main
    thread, where Python handles no signal."""
    taken: list[int] = []
    try:
        with ExitStack() as holding:
            # A sub-interpreter handles no signals either.
            with suppress(ValueError):
                held = collected((signal.SIGINT, signal.SIGTERM))
                taken = holding.enter_context(held)
            yield
    finally:
        # SIGTERM is first, because the exception of SIGINT ends this loop.
        for number in sorted(set(taken), reverse=True):
            signal.raise_signal(number)


class Recorder:
    """A recording as a context manager."""

    def start(self) -> None:
        """Start the recording, unless it was started when it was made."""

    def stop(self) -> object:
        """End the recording."""

    def __enter__(self: _Recorder) -> _Recorder:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        except CutraceError as failure:
            # An exception of the block takes precedence.
            if error is None:
                raise
            warnings.warn(str(failure), RuntimeWarning, stacklevel=2)


_Recorder = TypeVar("_Recorder", bound=Recorder)


class Capture(Recorder):
    """A recording of this process: a context manager, and a decorator that records each call.

    ``path`` is the capture. The file exists when the recording has ended, unless its capture range never opened. ``%i``
    in the name is a number from then on; with several windows ``path`` is the file of the last one.

    As a decorator it takes functions, generator functions and coroutine functions. The first call is recorded to
    ``path`` (``run.bin``), each further one to the first of ``run-1.bin``, ``run-2.bin``, ... that does not exist. A
    call during a recorded call, in any thread, belongs to the recording of that call. A call that cannot be recorded
    warns and runs without a recording.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options) -> None:
        self._output = output_name(path)
        self.path = self._output
        self._options = options
        self._to: Destination | None = None
        self._windows: _WindowWriter | None = None
        self._pid = 0
        self._calls = 0

    def start(self) -> None:
        """Start the recording. The recording ends with the program unless :meth:`stop` ends it earlier. Raises
        :class:`CutraceError` when the output cannot be written, this process is recorded already, another tool holds
        CUPTI, or counters cannot be sampled."""
        _refuse_a_second(self._to is not None)
        native = collector()
        options = completed(self._options)
        # The program may change the folder.
        self._output = self._output.absolute()
        to = Destination.of(self._output, options)
        if options.records_nvtx:
            # Each library that uses NVTX reads this variable at its first NVTX call. The variable alone starts no
            # recording.
            os.environ.setdefault(environment.NVTX, str(collector_path()))
        try:
            native.start(
                options.text(
                    output=to.directory / "capture.bin", dump=to.dump, annotator=False
                )
            )
            if options.annotate:
                annotate.start(options.annotate, str(collector_path()))
            _require_cupti(options)
        except BaseException:
            annotate.stop()
            to.discard()
            raise
        self._to = to
        self.path = to.output
        self._windows = _WindowWriter.of(to, options)
        self._pid = getpid()
        _call_at_end(self.stop, to)

    def stop(self) -> None:
        """End the recording and write the capture to ``path``; an existing file is replaced in one step. Warns when
        the capture is empty. Raises :class:`CutraceError` when the recording failed or had already ended."""
        with signals_held():
            to = self._to
            self._to = None
            # A forked child leaves the parent's recording alone.
            if to is None or getpid() != self._pid:
                return
            atexit.unregister(self.stop)
            for name in annotate.stop():
                warnings.warn(annotate.unused(name), RuntimeWarning, stacklevel=2)
            written = _finish(to, self._windows)
            if written is None:
                if self._options.records_windows:
                    reason = self._options.never_opened
                    warnings.warn(
                        f"nothing was recorded to {self.path}: {reason}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                    return
                raise CutraceError(
                    f"nothing was recorded to {self.path}: the recording had already ended"
                )
            self.path = written
            if not collector().stats().nvtx_events and not cuda.initialised():
                warnings.warn(
                    f"{self.path} is empty: the program made no CUDA or NVTX call that cutrace could record. Libraries "
                    "that called NVTX before cutrace.record() are not recorded: call cutrace.arm() before their first "
                    "call, or use `cutrace record`",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def __call__(self, function: _Function) -> _Function:
        recorded: Any
        if inspect.isasyncgenfunction(function):

            async def recorded(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                with self._call(function):
                    # Asynchronous generators have no `yield from`.
                    async with aclosing(function(*args, **kwargs)) as items:
                        step = items.asend(None)
                        while True:
                            try:
                                item = await step
                            except StopAsyncIteration:
                                return
                            try:
                                sent = yield item
                            except BaseException as error:
                                step = items.athrow(error)
                            else:
                                step = items.asend(sent)
        elif inspect.iscoroutinefunction(function):

            async def recorded(*args: Any, **kwargs: Any) -> Any:
                with self._call(function):
                    return await function(*args, **kwargs)
        elif inspect.isgeneratorfunction(function):

            def recorded(*args: Any, **kwargs: Any) -> Any:
                with self._call(function):
                    return (yield from function(*args, **kwargs))
        else:

            def recorded(*args: Any, **kwargs: Any) -> Any:
                with self._call(function):
                    return function(*args, **kwargs)

        return cast(_Function, functools.wraps(function)(recorded))

    @contextmanager
    def _call(self, function: Callable[..., Any]) -> Iterator[None]:
        """Record one call of a decorated function. The function runs whether or not it can be recorded."""
        lock = _recorded_call
        if not lock.acquire(blocking=False):
            yield
            return
        try:
            capture = self._start_call(function)
            try:
                yield
            finally:
                if capture is not None:
                    _stop_call(function, capture)
        finally:
            lock.release()

    def _start_call(self, function: Callable[..., Any]) -> Capture | None:
        try:
            capture = Capture(self._path_of_call(), self._options)
            capture.start()
        except (CutraceError, OSError) as error:
            _warn_of_call(function, f"runs without a recording: {error}")
            return None
        self._calls += 1
        return capture

    def _path_of_call(self) -> Path:
        if not self._calls or is_numbered(self._output):
            return self._output
        return free_output(self._output)


def _stop_call(function: Callable[..., Any], capture: Capture) -> None:
    try:
        capture.stop()
    except (CutraceError, OSError) as error:
        _warn_of_call(function, f"ran, but its recording failed: {error}")


def _warn_of_call(function: Callable[..., Any], what: str) -> None:
    name = getattr(function, "__qualname__", repr(function))
    # The caller's line: above the frames of start or stop, _call, the context manager and the wrapper.
    warnings.warn(f"{name}() {what}", RuntimeWarning, stacklevel=6)


class _WindowWriter:
    """A thread that writes each complete window to its file while the program runs."""

    def __init__(self, to: Destination) -> None:
        self._to = to
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="cutrace windows", daemon=True
        )
        self._thread.start()

    @classmethod
    def of(cls, to: Destination, options: Options) -> _WindowWriter | None:
        """The writer of a recording whose windows have files of their own, None for other recordings."""
        if options.records_windows and is_numbered(to.output):
            return cls(to)
        return None

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_WINDOW_INTERVAL):
            with suppress(CutraceError):  # The end of the recording tries again.
                self._to.publish_windows()


class Armed(Recorder):
    """A recording of this process and the processes that it starts. Each is recorded from its first CUDA or NVTX call
    on.

    ``path`` is the capture. The file exists after :meth:`stop` if there was such a call; ``%i`` in the name is a number
    from then on.
    """

    def __init__(
        self,
        to: Destination,
        options: Options,
        restore: dict[str, str | None],
    ) -> None:
        self.path = to.output
        self._to: Destination | None = to
        self._windows = _WindowWriter.of(to, options)
        self._restore = restore
        self._pid = getpid()
        _call_at_end(self.stop, to)

    def stop(self) -> Path | None:
        """End the recording and join the files of all processes. Runs at the end of the program if not called before.

        Returns the path of the capture, None when nothing was recorded. If a child process still runs, the capture has
        the records that the child wrote so far. Later records are lost.
        """
        with signals_held():
            to = self._to
            self._to = None
            if to is None or getpid() != self._pid:
                return None
            atexit.unregister(self.stop)
            environment.set_variables(self._restore)
            written = _finish(to, self._windows)
            if written is not None:
                self.path = written
            return written


@checked
def record(path: str | os.PathLike[str], **options: Unpack[OptionArguments]) -> Capture:
    """Record this process to ``path``, as a context manager or a decorator::

        with cutrace.record("run.bin"):
            step()

        @cutrace.record("run.bin", kinds="kernel,nvtx")
        def step(): ...

    ``path`` may have the ending of another format. ``run.pftrace`` embeds the capture; for ``run.json`` and others the
    capture is ``run.bin`` in the same folder. The options are the arguments of :class:`cutrace.collect.Options`. Only
    libraries that make their first NVTX call after this call are recorded. Child processes are not recorded: see
    :func:`arm`.

    Raises :class:`CutraceError` for an invalid option, and on entry the errors of :meth:`Capture.start`.
    """
    return Capture(path, Options.of(**options))


@checked
def arm(path: str | os.PathLike[str], **options: Unpack[OptionArguments]) -> Armed:
    """Record this process and the processes it starts, from the first CUDA or NVTX call on, until ``stop()`` or the
    end.

    Call it before the first CUDA call: the driver loads the collector when the program initialises CUDA. If CUDA is
    already in use, or cutrace has recorded before, the recording starts at once.

    Raises :class:`CutraceError` when the output cannot be written, an option is invalid, cutrace or another tool
    records this process or will do so, or counters cannot be sampled.
    """
    chosen = completed(Options.of(**options))
    _refuse_a_second()
    for name, library in environment.others(os.environ).items():
        raise CutraceError(
            f"another tool has set {name} to {library}: unset it, or run without that tool"
        )
    # The program may change the folder.
    to = Destination.of(output_name(path).absolute(), chosen)
    restore: dict[str, str | None] = {}
    try:
        variables = environment.injection(chosen, to.directory, to.dump)
        restore = {name: os.environ.get(name) for name in variables}
        environment.set_variables(variables)
        # The driver and NVTX load the collector only once. If they have loaded it already, start it here.
        if cuda.initialised() or cuda.loaded(str(collector_path())):
            collector().start(chosen.text(directory=to.directory, dump=to.dump))
            _require_cupti(chosen)
    except BaseException:
        environment.set_variables(restore)
        to.discard()
        raise
    return Armed(to, chosen, restore)


def _call_at_end(stop: Callable[[], object], to: Destination) -> None:
    """Call ``stop`` at the end of the program. It may be called twice."""
    atexit.register(stop)
    if to.output != to.dump:
        # Conversions and pandas import this module, which cannot be loaded when the program ends.
        import_module("concurrent.futures.thread")
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        # Before Python 3.13, children from fork and forkserver run no exit handlers.
        Finalize(None, stop, exitpriority=_LATE)


def _refuse_a_second(started: bool = False) -> None:
    """Raise :class:`CutraceError` when this process is recorded, or will be from its first CUDA or NVTX call on."""
    if started or _recording():
        raise CutraceError("this process is recorded already: end that recording first")
    if environment.recorded(os.environ):
        raise CutraceError(
            "this process is recorded already, by `cutrace record` or cutrace.arm(): use only one of them"
        )


def _recording() -> bool:
    """Whether this process is recorded. Does not load the collector."""
    return cuda.loaded(str(collector_path())) is not None and collector().running


def _finish(to: Destination, windows: _WindowWriter | None) -> Path | None:
    """End the recording of this process and join the files of its processes. Returns the output, None when there are
    no files.

    If the recording failed, the error is raised after the files are joined.
    """
    failure: CutraceError | None = None
    try:
        if _recording():
            collector().stop()
    except CutraceError as error:
        failure = error
    if windows is not None:
        windows.stop()
    recording = to.finish()
    if recording.trouble:
        warnings.warn(recording.trouble, RuntimeWarning, stacklevel=3)
    if failure is not None:
        raise failure
    return recording.output


def _require_cupti(options: Options) -> None:
    """End a recording that has just started if CUDA is in use and CUPTI is not active. Raises :class:`CutraceError`
    with the collector's reason."""
    native = collector()
    if (
        options.kinds == ("nvtx",)
        or native.stats().cupti_active
        or not cuda.initialised()
    ):
        return
    native.stop()
    raise CutraceError(
        "; ".join(native.notes().splitlines())
        or "GPU activity cannot be recorded: run `cutrace doctor`"
    )


@checked
def dump(path: str | os.PathLike[str]) -> bool:
    """Write the rows that the recording of this process holds to ``path``, as a capture, and go on recording.

    For recordings that keep only their newest rows: ``cutrace record --last 30s``,
    ``cutrace.arm("run.bin", last="30s")``, ``cutrace.record("run.bin", last="30s")``. Unfinished GPU work is not in the
    dump. Returns False, and writes no file, when nothing is recorded yet. Raises :class:`CutraceError` when this
    process is not recorded, its recording keeps all its rows, or the file cannot be written.
    """
    if not _recording():
        raise CutraceError(
            "nothing to dump: this process is not recorded, or has made no CUDA or NVTX call yet"
        )
    return collector().dump(path)


@checked
def mark(text: str) -> None:
    """Put a mark with this string into the recording of this process. Does nothing when the process is not
    recorded."""
    if _recording():
        collector().mark(text)
