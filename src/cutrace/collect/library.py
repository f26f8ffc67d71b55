"""The collector library: its path, and its C API."""

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
    """The path of the collector library. Raises :class:`CutraceError` when it is not installed."""
    return installed(NAME)


@cache
def installed(name: str) -> Path:
    """The path of an injected library. Raises :class:`CutraceError` when it is not installed."""
    # The library is in the folder of the extension module. An editable install has the Python files in another folder.
    spec = importlib.util.find_spec("cutrace._native")
    folders = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    folders.append(Path(__file__).parents[1])
    for folder in folders:
        path = folder / name
        if path.is_file():
            return path
    if sys.platform != "linux":
        raise CutraceError(
            f"cutrace records on Linux only, and this is {sys.platform}: record on Linux, and read the file here"
        )
    raise CutraceError(
        f"{name} is missing from {folders[0]}: this build reads and converts captures but cannot record. "
        "Install a build with the collector, for example from the source tree."
    )


class CollectorStats(ctypes.Structure):
    """Counters of the collector, from the start of the capture."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "size", "rows_written", "bytes_written", "buffers_requested", "buffers_completed", "records_dropped",
            "records_discarded", "nvtx_events", "memory_bytes", "blocks_written",
        )
    ] + [("state", ctypes.c_uint32), ("cupti_active", ctypes.c_uint32)]  # fmt: skip


class Collector:
    """The C API of the collector in this process. A process has one collector."""

    def __init__(self) -> None:
        try:
            # The driver and NVTX open the library by the same path, so this is the same instance.
            self._library = ctypes.CDLL(str(collector_path()))
            self._library.cutrace_start.argtypes = [ctypes.c_char_p]
            self._library.cutrace_mark.argtypes = [ctypes.c_char_p]
            self._library.cutrace_stacks.argtypes = [ctypes.c_char_p]
            self._library.cutrace_cut.argtypes = [ctypes.c_char_p]
            self._library.cutrace_notes.restype = ctypes.c_char_p
            self._library.cutrace_stats.argtypes = [
                ctypes.POINTER(CollectorStats),
                ctypes.c_size_t,
            ]
            self._library.cutrace_last_error.restype = ctypes.c_char_p
            self._library.cutrace_version.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise CutraceError(
                f"the collector cannot be loaded ({error}): install cutrace again"
            ) from None

    def start(self, options: str) -> None:
        """Start recording. Raises :class:`CutraceError` when a recording runs or the options are invalid."""
        self._check(self._library.cutrace_start(os.fsencode(options)))

    def stop(self) -> None:
        """End the recording and close the file."""
        self._check(self._library.cutrace_stop())

    def synchronize(self) -> None:
        """Wait until the GPU has finished its work. The wait is not recorded. Returns at once if no GPU activity is
        recorded. Raises :class:`CutraceError` when the GPU takes too long."""
        self._check(self._library.cutrace_synchronize())

    def cut(self, path: str | os.PathLike[str]) -> bool:
        """Wait for the GPU as :meth:`synchronize` does, write the rows since the last cut to ``path``, as a complete
        capture, and go on recording.

        Returns False, and writes no file, when there are no rows except marks. The marks go to the next file. ``path``
        must be on the file system of the recording. Raises :class:`CutraceError` when no recording runs, the GPU takes
        too long, or the file cannot be written; the recording goes on.
        """
        return self._wrote(self._library.cutrace_cut(os.fsencode(path)))

    def dump(self, path: str | os.PathLike[str]) -> bool:
        """Write the rows that a recording of the newest rows holds to ``path``, as a capture; replaces the file.

        Returns False, and writes no file, when nothing is recorded yet. Raises :class:`CutraceError` when no recording
        runs, the recording keeps all its rows, or the file cannot be written; the recording goes on.
        """
        return self._wrote(
            self._library.cutrace_dump(ctypes.c_char_p(os.fsencode(path)))
        )

    def notes(self) -> str:
        """Sentences about data that this recording, or the last one, cannot record, and the cause, such as another tool
        that holds CUPTI. One sentence on each line, "" for none."""
        return self._library.cutrace_notes().decode(errors="replace")

    def mark(self, text: str) -> None:
        """Put a mark at the current time."""
        self._check(self._library.cutrace_mark(text.encode()))

    def stacks(self, calls: str) -> None:
        """Record the Python stacks of calls of these groups (``"sync,alloc,copy,launch"``) from now on; "" ends that.

        If CUPTI does not record yet, the stacks start together with the recording of GPU activity. The recording needs
        the option ``stacks=later``. Raises :class:`CutraceError` for another recording and for an unknown group.
        """
        self._check(self._library.cutrace_stacks(calls.encode()))

    def stats(self) -> CollectorStats:
        stats = CollectorStats(size=ctypes.sizeof(CollectorStats))
        self._check(
            self._library.cutrace_stats(ctypes.byref(stats), ctypes.sizeof(stats))
        )
        return stats

    @property
    def running(self) -> bool:
        return bool(self._library.cutrace_running())

    @property
    def version(self) -> str:
        return self._library.cutrace_version().decode()

    @property
    def last_error(self) -> str:
        """The sentence of the last failure in this thread, "" for none."""
        text: bytes | None = self._library.cutrace_last_error()
        if text:
            return text.decode(errors="replace")
        return ""

    def _wrote(self, status: int) -> bool:
        self._check(min(status, 0))
        return status == 0

    def _check(self, status: int) -> None:
        if status != 0:
            raise CutraceError(
                self.last_error or f"the collector failed with status {status}"
            )


@cache
def collector() -> Collector:
    """The collector of this process."""
    return Collector()
