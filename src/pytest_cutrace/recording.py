"""The one recording of a pytest process: armed before CUDA is used, never started by a test, cut after each.

Nothing here initialises CUDA. While no test uses it, arming is a few environment variables, and each test costs
a look into an empty folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cutrace.collect import Options, completed, cuda, environment
from cutrace.collect.join import join, writer
from cutrace.collect.library import Collector, collector, collector_path
from cutrace.errors import CutraceError
from cutrace.outputs import unwritable

#: Seconds that a process which is about to end has to close its file. Each process gets them once.
_GRACE = 1.0
#: Seconds after which a running process has written its records.
_FLUSHED = 0.25
#: What the driver answers before cuInit().
_NOT_INITIALISED = 3
#: Files of /dev that show that the machine has a GPU, without a call of the driver.
_NODES = ("nvidia[0-9]*", "dxg", "nvhost-gpu", "nvgpu", "nvmap")


def refusal() -> str:
    """Why nothing can be recorded on this machine, in this environment; "" if it can."""
    if cuda.driver() is None:
        return "there is no NVIDIA driver (libcuda.so.1)"
    if environment.OPTIONS in os.environ:
        return f"this process is to be recorded already: unset {environment.OPTIONS}, or run without `cutrace record`"
    others = environment.others(os.environ)
    if environment.CUDA in others:
        return f"another tool has set {environment.CUDA} to {others[environment.CUDA]}: unset it"
    return ""


@dataclass(frozen=True)
class CaptureFile:
    """A file of what one process did: this one (``own``) or another."""

    path: Path
    own: bool


class SessionRecording:
    """The recording of this pytest process and of those that its tests start.

    ``refusal`` is why nothing at all can be recorded, "" if it can; ``notes`` are sentences for the session's header.
    """

    def __init__(self, base: Path, refusal: str) -> None:
        """Arm; ``base`` is the folder in which captures are made, ``refusal`` what :func:`refusal` said. Raises
        :class:`CutraceError` when the folder cannot be written to."""
        self.refusal = refusal
        self.notes: list[str] = []
        self._pid = os.getpid()
        self._options = ""
        self._variables: dict[str, str] = {}
        self._restore: dict[str, str] = {}
        self._driver: ctypes.CDLL | None = None
        self._native: Collector | None = None
        self._number = 0
        self._paused = False
        self._sizes: dict[str, int] = {}
        self._waited: set[int] = set()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=".recording.", dir=base))
        except OSError as error:
            raise unwritable(base / ".recording", error) from None
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
        options = completed(Options())
        self._options = options.text(directory=self.folder)
        variables = environment.injection(options, self.folder)
        self._variables = {name: value for name, value in variables.items() if name not in others}
        self._restore = {name: os.environ[name] for name in self._variables if name in os.environ}
        os.environ.update(self._variables)
        self._driver = cuda.driver()
        started = self._used() or cuda.loaded(str(collector_path()))
        # The idle library tells before and after each test whether it records. Loading it has no other effect.
        self._native = collector()
        if started:
            collector().start(self._options)
            self.notes.append("CUDA was in use before pytest's plugins: recording it costs more than usual")

    def close(self) -> None:
        """End the recording and put the environment back."""
        if os.getpid() != self._pid:
            return
        for name in self._variables:
            os.environ.pop(name, None)
        os.environ.update(self._restore)
        # Its messages about tests were reported after each test.
        with contextlib.suppress(CutraceError):
            if self._recording() and self._own_file():
                collector().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def here(self) -> bool:
        """Whether this is the process that was armed, not a fork of it."""
        return os.getpid() == self._pid

    def ready(self) -> str:
        """Before a test: put back what an earlier one removed. Returns a sentence if something had to be done."""
        if self.refusal:
            return ""
        paused, self._paused = self._paused, False
        missing = [name for name, value in self._variables.items() if os.environ.get(name) != value]
        for name in missing:
            os.environ[name] = self._variables[name]
        if not self._recording() and self._used():
            try:
                collector().start(self._options)
            except CutraceError:
                return ""  # unseen() names the reason
        return f"an earlier test had changed {', '.join(missing)}: put back" if missing and not paused else ""

    def pause(self) -> None:
        """Release CUPTI and the environment until the next :meth:`ready`, for a test that records itself."""
        if self.refusal:
            return
        self._paused = True
        for name in self._variables:
            os.environ.pop(name, None)
        if self._recording() and self._own_file():
            collector().stop()

    def begin(self) -> bool:
        """Wait for the GPU before a window. False when nothing is being recorded yet."""
        if not self._recording():
            return False
        collector().synchronize()
        return True

    def mark(self, text: str) -> None:
        if self._recording():
            collector().mark(text)

    def take(self, *, patient: bool) -> tuple[CaptureFile, ...]:
        """What was recorded since the last call: waits for the GPU and cuts this process's recording, and looks for the
        files of others. ``patient``: wait for what processes that go on have not written yet."""
        if self.refusal:
            return ()
        self._number += 1
        path = self.parts / f"{self._number:06}.bin"
        own = self._recording() and self._own_file()
        if own:
            collector().synchronize()
            own = bool(collector().cut(path))
        return (*([CaptureFile(path, own=True)] if own else ()), *self._others(patient))

    def unseen(self, *, others: bool = False) -> str:
        """Why GPU work of this process is not recorded now, "" if it is or if there is none. ``others``: a process that
        a test started was recorded, so that there is a GPU."""
        if self.refusal:
            return self.refusal
        used = self._used()
        if self._recording():
            if not self._own_file():
                return "cutrace.record() or cutrace.arm() holds the recording of this process"
            native = collector()
            if native.stats().cupti_active:
                return ""
            if used:
                notes = native.notes().splitlines()
                return "; ".join(notes) or "CUPTI records nothing here: run `cutrace doctor`"
        elif used:
            return "CUDA was initialised without the collector: the test had removed the variables that load it"
        if used or others:
            return ""
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return f"CUDA_VISIBLE_DEVICES={hidden} hides all GPUs"
        if not any(next(Path("/dev").glob(node), None) for node in _NODES):
            return "this machine shows no GPU (/dev/nvidia0)"
        return ""

    def _recording(self) -> bool:
        return self._native is not None and self._native.running

    def _used(self) -> bool:
        """Whether this process has initialised CUDA."""
        count = ctypes.c_int()
        return self._driver is not None and self._driver.cuDeviceGetCount(ctypes.byref(count)) != _NOT_INITIALISED

    def _own_file(self) -> bool:
        """Whether the recording that runs here is this one."""
        return any(name.startswith(f"{self._pid}-") for name in self._names())

    def _names(self) -> Iterator[str]:
        return (path.name for path in self.folder.iterdir())

    def _others(self, patient: bool) -> tuple[CaptureFile, ...]:
        """The files of other processes that have something new."""
        found: list[CaptureFile] = []
        names = sorted(name for name in self._names() if name.endswith(".bin"))
        files = [self.folder / name for name in names if not name.startswith(f"{self._pid}-")]
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
                join([path], copy, moving=False)
            else:
                path.replace(copy)
            found.append(CaptureFile(copy, own=False))
        return tuple(found)

    def _writer(self, path: Path) -> int:
        """The process that still writes to a file, after a moment's grace at the first look; 0 for none."""
        deadline = time.monotonic() + _GRACE
        while (pid := writer(path)) is not None:
            if pid in self._waited or time.monotonic() > deadline:
                self._waited.add(pid)
                return pid
            time.sleep(0.01)
        return 0
