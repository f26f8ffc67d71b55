"""Faults of the system under a recording, for measured programs: ``import inject``.

They come through ``libfaults.so`` (tests/native/fake_system.cpp), which the program is started with, and strike what
the collector does with its file, and the REALTIME clock.
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
    """After ``before`` good writes, ``count`` writes fail with this errno."""
    _faults().fault_writes(error, ctypes.c_int64(before), ctypes.c_int64(count))


def writes_work() -> None:
    _faults().fault_writes(0, ctypes.c_int64(0), ctypes.c_int64(0))


def writes_are_short(bytes: int) -> None:
    """Limit the bytes of a write."""
    _faults().fault_short_writes(ctypes.c_uint64(bytes))


def writes_are_interrupted(count: int) -> None:
    """Fail the next writes with EINTR."""
    _faults().fault_interrupted_writes(ctypes.c_int64(count))


def writes_are_slow(bytes_per_second: int) -> None:
    """0: as fast as the disk."""
    _faults().fault_slow_writes(ctypes.c_uint64(bytes_per_second))


def truncates_fail(error: int) -> None:
    """Cutting a file back fails with this errno; emptying one still works."""
    _faults().fault_truncates(error)


def close_fails(error: int) -> None:
    """Closing a capture fails with this errno (and closes it)."""
    _faults().fault_closes(error)


def copies(error: int = 0, milliseconds: int = 0) -> None:
    """Copying to a dump takes so long, and fails with this errno unless it is 0."""
    _faults().fault_copies(error, ctypes.c_uint(milliseconds))


def copies_are_held(on: bool = True) -> None:
    """Copying to a dump waits until this is off again."""
    _faults().fault_hold_copies(ctypes.c_bool(on))


def copies_begun() -> int:
    """The number of copies to dumps that have begun."""
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
