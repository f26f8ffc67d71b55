"""Recording from inside a Python program: :func:`record` from now on, :func:`arm` from the first CUDA call on."""

from __future__ import annotations

import atexit
import os
import shutil
from contextlib import ContextDecorator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CutraceError
from . import cuda, environment
from .command import private_directory
from .join import finished_parts, join
from .library import collector, collector_path
from .options import Options, completed

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Unpack

    from .options import OptionArguments


class Capture(ContextDecorator):
    """A recording of this process: a context manager, and a decorator that records each call anew.

    ``path`` is the capture, which exists from the end of the recording on.
    """

    def __init__(self, path: str | os.PathLike[str], options: Options) -> None:
        self.path = Path(path)
        self._options = options
        self._directory: Path | None = None
        self._pid = 0

    def start(self) -> None:
        """Start to record. Raises :class:`CutraceError` when the output cannot be written, this process is being
        recorded already, or another tool holds CUPTI."""
        native = collector()
        if self._directory is not None or native.running:
            raise CutraceError("this process is being recorded already: end that recording first")
        directory = private_directory(self.path)
        if self._options.nvtx:
            # Read by each library that uses NVTX at its first NVTX call. Without options the collector is passive.
            os.environ.setdefault(environment.NVTX, str(collector_path()))
        try:
            native.start(completed(self._options).text(output=directory / "capture.bin", dump=self.path))
            _require_cupti(self._options, directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        self._directory, self._pid = directory, os.getpid()

    def stop(self) -> None:
        """End the recording and put the capture at ``path``, replacing what is there in one step."""
        directory, self._directory = self._directory, None
        # A forked child leaves the parent's recording alone.
        if directory is None or os.getpid() != self._pid:
            return
        if not _finish(directory, self.path, self._options):
            raise CutraceError(f"nothing was recorded into {self.path}: the recording had ended already")

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self.stop()
        except CutraceError:
            # What went wrong inside matters more.
            if error is None:
                raise


class Armed:
    """A recording that begins with the first CUDA or NVTX call, of this process and of those it starts.

    ``path`` is the capture, which exists after :meth:`stop` if there was such a call.
    """

    def __init__(self, path: Path, directory: Path, restore: dict[str, str | None], options: Options) -> None:
        self.path = path
        self._options = options
        self._directory: Path | None = directory
        self._restore = restore
        self._pid = os.getpid()
        atexit.register(self.stop)

    def stop(self) -> Path | None:
        """End the recording and join what all processes wrote. Runs at the end of the program if not called before.

        Returns the path of the capture, None when there was nothing to record. Children that still run keep
        recording into nowhere; what they had written is in the capture.
        """
        directory, self._directory = self._directory, None
        if directory is None or os.getpid() != self._pid:
            return None
        atexit.unregister(self.stop)
        for name, value in self._restore.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return self.path if _finish(directory, self.path, self._options) else None

    def __enter__(self) -> Armed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def record(path: str | os.PathLike[str], **options: Unpack[OptionArguments]) -> Capture:
    """Record this process into ``path``, as a context manager or a decorator::

        with cutrace.record("run.bin"):
            step()

        @cutrace.record("run.bin", kinds="kernel,nvtx")
        def step(): ...

    The options are those of :class:`cutrace.collect.Options`. NVTX calls are seen from libraries that make their
    first NVTX call after this one. Processes that this one starts are not recorded: see :func:`arm`.

    Raises :class:`CutraceError` for a value that an option does not have, and on entering as
    :meth:`Capture.start` says.
    """
    return Capture(path, Options.of(**options))


def arm(path: str | os.PathLike[str], **options: Unpack[OptionArguments]) -> Armed:
    """Record this process and those it starts, from the first CUDA or NVTX call on, until ``stop()`` or the end.

    CUDA is not initialised by this: the driver loads the collector when the program initialises CUDA, so call it
    before the first CUDA call. Where CUDA is in use already, or cutrace has recorded before, it starts at once.

    Raises :class:`CutraceError` when the output cannot be written, an option does not have the value, or this process
    is set to be recorded already, by cutrace or by another tool.
    """
    chosen = completed(Options.of(**options))
    if environment.OPTIONS in os.environ:
        raise CutraceError("this process is set to be recorded already: end that recording first")
    for name, library in environment.others(os.environ).items():
        raise CutraceError(f"another tool has set {name} to {library}: unset it, or run without that tool")
    path = Path(path)
    directory = private_directory(path)
    variables = environment.injection(chosen, directory, path)
    restore = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    armed = Armed(path, directory, restore, chosen)
    try:
        # The driver and NVTX load the collector once; where they have, nothing but this starts it again.
        if cuda.initialised() or cuda.loaded(str(collector_path())):
            collector().start(chosen.text(directory=directory, dump=path))
            _require_cupti(chosen, directory)
    except BaseException:
        armed.stop()
        raise
    return armed


def _finish(directory: Path, path: Path, options: Options) -> bool:
    """End the recording of this process and put what is in its folder at ``path``. False when there is nothing.

    A recording that did not end well is kept as far as it goes, and what went wrong is raised then.
    """
    failure: CutraceError | None = None
    try:
        if cuda.loaded(str(collector_path())) and collector().running:
            collector().stop()
    except CutraceError as error:
        failure = error
    parts, running = finished_parts(directory)
    if parts:
        try:
            join(parts, path, moving=not running, redacted=options.redact)
        except CutraceError as error:
            raise CutraceError(f"{error} What was recorded is in {directory}.") from None
    shutil.rmtree(directory, ignore_errors=True)
    if failure is not None:
        raise failure
    return bool(parts)


def _require_cupti(options: Options, directory: Path) -> None:
    """End a recording that has just started, with the collector's reason, if it cannot see a GPU that is in use."""
    native = collector()
    if options.kinds == ("nvtx",) or native.stats().cupti_active or not cuda.initialised():
        return
    native.stop()
    from ..runbin import Reader

    notes: list[str] = []
    for file in directory.glob("*.bin"):
        with Reader(file) as reader:
            notes += [str(note) for info in reader.processes for note in info.get("notes", ())]
    raise CutraceError("; ".join(notes) or "GPU activity cannot be recorded: run `cutrace doctor`")


def dump(path: str | os.PathLike[str]) -> bool:
    """Write what this process was recorded doing until now to ``path``, as a capture, and go on recording.

    For recordings that keep only their newest rows: ``cutrace record --last 30s``,
    ``cutrace.arm("run.bin", last="30s")``, ``cutrace.record("run.bin", last="30s")``. What the GPU has not finished is
    not in the dump. Returns False, and makes no file, when there is nothing yet. Raises :class:`CutraceError` when this
    process is not recorded, its recording keeps all its rows, or the file cannot be written.
    """
    if not (cuda.loaded(str(collector_path())) and collector().running):
        raise CutraceError("nothing to dump: this process is not recorded, or has made no CUDA or NVTX call yet")
    return collector().dump(path)


def mark(text: str) -> None:
    """Put a mark into the recording of this process; nothing happens where there is none."""
    if cuda.loaded(str(collector_path())) and collector().running:
        collector().mark(text)
