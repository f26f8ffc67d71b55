"""Faults of the system, for programs that are recorded: ``import inject``.

The program is started with ``libfaults.so`` (tests/native/fake_system.cpp), which injects them. They affect the
collector's file operations and the REALTIME clock.
"""

from __future__ import annotations

import ctypes
from functools import cache


@cache
def _faults() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "fault_writes"):
        raise RuntimeError("libfaults.so is not preloaded: start the program with the fixture `measure`")
    return library


def writes_fail(error: int, *, before: int = 0, count: int = 1 << 40) -> None:
    """Let ``before`` writes succeed, then fail ``count`` writes with this errno."""
    _faults().fault_writes(error, ctypes.c_int64(before), ctypes.c_int64(count))


def writes_work() -> None:
    _faults().fault_writes(0, ctypes.c_int64(0), ctypes.c_int64(0))


def writes_are_short(bytes: int) -> None:
    """Limit the number of bytes of each write."""
    _faults().fault_short_writes(ctypes.c_uint64(bytes))


def writes_are_interrupted(count: int) -> None:
    """Fail the next ``count`` writes with EINTR."""
    _faults().fault_interrupted_writes(ctypes.c_int64(count))


def writes_are_slow(bytes_per_second: int) -> None:
    """Limit the speed of writes; 0 removes the limit."""
    _faults().fault_slow_writes(ctypes.c_uint64(bytes_per_second))


def truncates_fail(error: int) -> None:
    """Fail with this errno when a file is truncated to a size above 0."""
    _faults().fault_truncates(error)


def close_fails(error: int) -> None:
    """Close a capture, but fail with this errno."""
    _faults().fault_closes(error)


def copies(error: int = 0, milliseconds: int = 0) -> None:
    """Set the duration of copies to a dump, and let them fail with this errno unless it is 0."""
    _faults().fault_copies(error, ctypes.c_uint(milliseconds))


def copies_are_held(on: bool = True) -> None:
    """Let copying to a dump wait until this is switched off."""
    _faults().fault_hold_copies(ctypes.c_bool(on))


def copies_begun() -> int:
    """The number of started copies to dumps."""
    library = _faults()
    library.fault_copies_begun.restype = ctypes.c_uint64
    return int(library.fault_copies_begun())


def realtime_steps(seconds: float) -> None:
    """Shift the REALTIME clock."""
    _faults().fault_realtime(ctypes.c_int64(int(seconds * 1e9)))


def count() -> int:
    """The number of calls that failed or were shortened."""
    library = _faults()
    library.fault_count.restype = ctypes.c_uint64
    return int(library.fault_count())
