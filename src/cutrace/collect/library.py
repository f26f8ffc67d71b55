"""The collector library: where it is, and its C API."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

from ..errors import CutraceError

NAME = "libcutrace_collector.so"


def collector_path() -> Path:
    """The installed collector library. Raises :class:`CutraceError` when it is not there."""
    return installed(NAME)


@cache
def installed(name: str) -> Path:
    """A library that is injected into programs. Raises :class:`CutraceError` when it is not there."""
    # Beside the extension module: in an editable install the Python files are elsewhere.
    spec = importlib.util.find_spec("cutrace._native")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    places.append(Path(__file__).parents[1])
    for place in places:
        path = place / name
        if path.is_file():
            return path
    if sys.platform != "linux":
        raise CutraceError(
            f"cutrace records on Linux only, and this is {sys.platform}: record there, and read the file here"
        )
    raise CutraceError(
        f"{name} is missing from {places[0]}: this build reads and converts captures but cannot record. "
        "Install a build with the collector (pip install --force-reinstall cutrace)."
    )


class Stats(ctypes.Structure):
    """What the collector has done so far; counts add up from the start of the capture."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size", "rows_written", "bytes_written", "buffers_requested", "buffers_completed", "records_dropped",
            "records_discarded", "nvtx_events", "memory_bytes", "blocks_written",
        )
    ] + [("state", ctypes.c_uint32), ("cupti_active", ctypes.c_uint32)]  # fmt: skip


class Collector:
    """The C API of the collector in this process. There is one collector a process."""

    def __init__(self) -> None:
        try:
            # The driver and NVTX open the library by the same path, so this is the same instance.
            self._library = ctypes.CDLL(str(collector_path()))
            self._library.cutrace_start.argtypes = [ctypes.c_char_p]
            self._library.cutrace_mark.argtypes = [ctypes.c_char_p]
            self._library.cutrace_cut.argtypes = [ctypes.c_char_p]
            self._library.cutrace_notes.restype = ctypes.c_char_p
            self._library.cutrace_stats.argtypes = [ctypes.POINTER(Stats), ctypes.c_size_t]
            self._library.cutrace_now.restype = ctypes.c_uint64
            self._library.cutrace_last_error.restype = ctypes.c_char_p
            self._library.cutrace_version.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise CutraceError(f"the collector cannot be loaded ({error}): install cutrace again") from None

    def start(self, options: str) -> None:
        """Start collecting. Raises :class:`CutraceError` when it already runs or the options are refused."""
        self._check(self._library.cutrace_start(options.encode()))

    def stop(self) -> None:
        """Write what is held and close the file."""
        self._check(self._library.cutrace_stop())

    def flush(self) -> None:
        """Write what has been completed."""
        self._check(self._library.cutrace_flush())

    def synchronize(self) -> None:
        """Wait until the GPU has done what it was given. The capture does not show it, and there is nothing to wait for
        while no GPU activity is recorded. Raises :class:`CutraceError` when the GPU takes too long."""
        self._check(self._library.cutrace_synchronize())

    def cut(self, path: str | os.PathLike[str]) -> bool:
        """Put what has been recorded since the last cut at ``path``, a capture by itself, and go on recording.

        Returns False, and makes no file, when the program has done nothing since then; marks do not count and come with
        the next file. ``path`` must be on the file system of the recording. What the GPU has not done yet is in a later
        file: :meth:`synchronize` comes before. Raises :class:`CutraceError` when nothing is recorded or the file cannot
        be put there; the recording then goes on.
        """
        return self._made(self._library.cutrace_cut(os.fsencode(path)))

    def dump(self, path: str | os.PathLike[str]) -> bool:
        """Write what a recording of the newest rows holds now, as a capture, to ``path``; what is there is replaced.

        Returns False, and makes no file, when nothing has been recorded yet. Raises :class:`CutraceError` when nothing
        is being recorded, the recording keeps all its rows, or the file cannot be written; the recording then goes on.
        """
        return self._made(self._library.cutrace_dump(ctypes.c_char_p(os.fsencode(path))))

    def notes(self) -> str:
        """Sentences about what this recording, or the last one, cannot record, such as who holds CUPTI: one a line, ""
        for none."""
        return str(self._library.cutrace_notes().decode(errors="replace"))

    def mark(self, text: str) -> None:
        """Put a mark at the current time."""
        self._check(self._library.cutrace_mark(text.encode()))

    def now(self) -> int:
        """Nanoseconds of the clock that a capture uses (BOOTTIME)."""
        return int(self._library.cutrace_now())

    def stats(self) -> Stats:
        stats = Stats(size=ctypes.sizeof(Stats))
        self._check(self._library.cutrace_stats(ctypes.byref(stats), ctypes.sizeof(stats)))
        return stats

    @property
    def running(self) -> bool:
        return bool(self._library.cutrace_running())

    @property
    def version(self) -> str:
        return str(self._library.cutrace_version().decode())

    @property
    def last_error(self) -> str:
        """The sentence of the last failure in this thread, "" for none."""
        text = self._library.cutrace_last_error()
        return text.decode(errors="replace") if text else ""

    def _made(self, status: int) -> bool:
        self._check(min(status, 0))
        return status == 0

    def _check(self, status: int) -> None:
        if status != 0:
            raise CutraceError(self.last_error or f"the collector failed with status {status}")


@cache
def collector() -> Collector:
    """The collector of this process."""
    return Collector()
