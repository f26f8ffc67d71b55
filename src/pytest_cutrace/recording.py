"""The recording of a pytest process. It is armed before CUDA is used, and cut after each test.

This module does not initialise CUDA. As long as no test uses CUDA, the cost is a few environment variables, and a
listing of an empty folder for each test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from os import getpid  # Tests patch os.getpid.
from pathlib import Path

from cutrace.collect import Options, completed, cuda, environment
from cutrace.collect.library import Collector, collector, collector_path
from cutrace.errors import CutraceError
from cutrace.outputs import unwritable

#: The seconds to wait, once for each process, until it closes its file.
_GRACE = 1.0
#: The seconds after which a running process has flushed its records.
_FLUSHED = 0.25
#: The start of the names of folders with captures. The process id follows.
_RECORDING = ".recording."
#: The files in /dev of a machine with a GPU. Looking for them needs no driver call.
_NODES = ("nvidia[0-9]*", "dxg", "nvhost-gpu", "nvgpu", "nvmap")
#: The start of the collector's note with the reason why calls have no Python stacks.
_NO_STACKS = "no Python stacks are recorded: "


def refusal() -> str:
    """The reason why recording is not possible on this machine or in this environment; "" if it is."""
    if cuda.driver() is None:
        return "there is no NVIDIA driver (libcuda.so.1)"
    if environment.recorded(os.environ):
        return f"this process is already armed: unset {environment.OPTIONS}, or run without `cutrace record`"
    others = environment.others(os.environ)
    if environment.CUDA in others:
        return f"another tool has set {environment.CUDA} to {others[environment.CUDA]}: unset it"
    return ""


def _remove_left_behind(base: Path) -> None:
    """Remove the captures of processes that were killed."""
    for folder in base.glob(f"{_RECORDING}*"):
        pid = folder.name.split(".")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class CaptureFile:
    """A capture of one process: this one (``own``) or another."""

    path: Path
    own: bool


class SessionRecording:
    """The recording of this pytest process and of processes that its tests start.

    ``refusal`` is the reason why recording is not possible, "" if it is; ``notes`` are sentences for the session's
    header.
    """

    def __init__(self, base: Path, refusal: str, *, code: bool = False) -> None:
        """Arm, unless there is a ``refusal``. Captures are written under ``base``, with the machine code of kernels if
        ``code``. Raises :class:`CutraceError` if that folder is not writable."""
        self.refusal = refusal
        self._code = code
        self.notes: list[str] = []
        self._pid = getpid()
        self._options = ""
        self._variables: dict[str, str] = {}
        self._restore: dict[str, str | None] = {}
        self._native: Collector | None = None
        #: A file of this process. It is remembered for each test, because listing the folder takes longer.
        self._own: Path | None = None
        self._number = 0
        self._paused = False
        self._sizes: dict[str, int] = {}
        self._waited: set[int] = set()
        try:
            _remove_left_behind(base)
            prefix = f"{_RECORDING}{getpid()}."
            self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError as error:
            raise unwritable(base / _RECORDING, error) from None
        self.parts = self.folder / "parts"
        self.parts.mkdir()
        if not refusal:
            try:
                self._arm()
            except CutraceError as error:
                self.refusal = str(error)

    def _arm(self) -> None:
        others = environment.others(os.environ)
        if environment.NVTX in others:
            self.notes.append(
                f"NVTX ranges are not recorded: another tool has set {environment.NVTX} to {others[environment.NVTX]}"
            )
        options = completed(Options(stacks=("later",), code=self._code))
        self._options = options.text(directory=self.folder)
        variables = environment.injection(options, self.folder)
        self._variables = {
            name: value for name, value in variables.items() if name not in others
        }
        for name in self._variables:
            self._restore[name] = os.environ.get(name)
        os.environ.update(self._variables)
        started = cuda.initialised() or cuda.loaded(str(collector_path()))
        # The library is loaded but not started: it tells before and after each test whether it records.
        self._native = collector()
        if started:
            collector().start(self._options)
            self.notes.append(
                "CUDA was initialised before pytest's plugins were loaded: recording costs more than usual"
            )

    def close(self) -> None:
        """End the recording and restore the environment."""
        if not self.here:
            return
        environment.set_variables(self._restore)
        # Errors were already reported after each test.
        with contextlib.suppress(CutraceError):
            if self._recording() and self._own_file():
                collector().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def here(self) -> bool:
        """Whether this is the process that was armed, not a fork of it."""
        return getpid() == self._pid

    def ready(self) -> str:
        """Before a test, restore the environment that an earlier test changed. Returns a sentence if that was
        necessary."""
        if self.refusal:
            return ""
        paused = self._paused
        self._paused = False
        missing = [
            name
            for name, value in self._variables.items()
            if os.environ.get(name) != value
        ]
        for name in missing:
            os.environ[name] = self._variables[name]
        if not self._recording() and cuda.initialised():
            try:
                collector().start(self._options)
            except CutraceError:
                return ""  # unseen() returns the reason.
        if paused or not missing:
            return ""
        return f"an earlier test had changed {', '.join(missing)}: put back"

    def pause(self) -> None:
        """Release CUPTI and the environment until the next :meth:`ready`, for a test that records itself."""
        if self.refusal:
            return
        self._paused = True
        environment.set_variables(dict.fromkeys(self._variables))
        if self._recording() and self._own_file():
            collector().stop()

    def begin(self) -> bool:
        """Wait for the GPU before a window. Returns False if the recording has not started."""
        if not self._recording():
            return False
        collector().synchronize()
        return True

    def mark(self, text: str) -> None:
        if self._recording():
            collector().mark(text)

    def stacks(self, calls: str) -> str:
        """Record the Python stacks of calls of these groups (``"sync,alloc,copy,launch"``) from now on, even if CUDA is
        not in use yet. "" ends this. Call it from the main thread, so that Python's frames are checked immediately.
        Returns the reason why calls have no stacks, "" if none is known."""
        if self._native is None:
            return self.refusal
        try:
            self._native.stacks(calls)
        except CutraceError as error:
            return str(error)
        for note in self._native.notes().splitlines():
            if note.startswith(_NO_STACKS):
                return note.removeprefix(_NO_STACKS)
        return ""

    def take(self, *, patient: bool) -> tuple[CaptureFile, ...]:
        """Return the captures since the last call: wait for the GPU, cut this process's recording, and collect the
        files of other processes. ``patient``: wait until running processes have flushed their records."""
        if self.refusal:
            return ()
        self._number += 1
        captures: list[CaptureFile] = []
        path = self.parts / f"{self._number:06}.bin"
        records = self._recording() and self._own_file()
        if records and collector().cut(path):
            captures.append(CaptureFile(path, own=True))
        captures += self._others(patient)
        return tuple(captures)

    def unseen(self, *, others: bool = False) -> str:
        """The reason why GPU work of this process is not recorded; "" if it is recorded or if there is none. With
        ``others``, another process of a test was recorded, so there is a GPU."""
        if self.refusal:
            return self.refusal
        recording = self._recording()
        if recording:
            if not self._own_file():
                return "cutrace.record() or cutrace.arm() holds the recording of this process"
            if collector().stats().cupti_active:
                return ""
        used = cuda.initialised()
        if used and recording:
            notes = collector().notes().splitlines()
            return "; ".join(notes) or "CUPTI is not active: run `cutrace doctor`"
        if used:
            return "CUDA was initialised without the collector: the test removed the variables that load it"
        if used or others:
            return ""
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return f"CUDA_VISIBLE_DEVICES={hidden} hides all GPUs"
        for pattern in _NODES:
            if any(Path("/dev").glob(pattern)):
                return ""
        return "this machine has no GPU (/dev/nvidia0)"

    def _recording(self) -> bool:
        return self._native is not None and self._native.running

    def _own_file(self) -> bool:
        """Whether the folder of captures has a file of this process. If it has, the running recording belongs to this
        session."""
        if self._own is None or not self._own.exists():
            start = f"{self._pid}-"
            self._own = None
            for name in self._names():
                if name.startswith(start):
                    self._own = self.folder / name
        return self._own is not None

    def _names(self) -> list[str]:
        """The names in the folder of captures."""
        try:
            with os.scandir(self.folder) as entries:
                return [entry.name for entry in entries]
        except OSError:
            return []

    def _others(self, patient: bool) -> list[CaptureFile]:
        """The files of other processes that have new records."""
        captures: list[CaptureFile] = []
        files = []
        own = f"{self._pid}-"
        for name in sorted(self._names()):
            if name.startswith(own):
                continue
            if name.endswith(".bin"):
                files.append(self.folder / name)
        writers = [self._writer(path) for path in files]
        if patient and any(writers):
            time.sleep(_FLUSHED)
        for path, pid in zip(files, writers, strict=True):
            size = path.stat().st_size
            if not size or (pid and self._sizes.get(path.name) == size):
                continue
            copy = self.parts / f"{self._number:06}-{path.name}"
            if pid:
                self._sizes[path.name] = size
                from cutrace.collect.join import join

                join([path], copy, moving=False)
            else:
                path.replace(copy)
            captures.append(CaptureFile(copy, own=False))
        return captures

    def _writer(self, path: Path) -> int:
        """The process that still writes to a file, 0 for none. The first call for a process gives it some time to close
        the file."""
        from cutrace.collect.join import writer

        deadline = time.monotonic() + _GRACE
        while (pid := writer(path)) is not None:
            if pid in self._waited or time.monotonic() > deadline:
                self._waited.add(pid)
                return pid
            time.sleep(0.01)
        return 0
