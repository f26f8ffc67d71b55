"""The collector's walker over Python frames as a separate library, and a check of the stacks that it captures.

:func:`build` builds the library. A program in any interpreter then imports this module with ``PYSTACKS_LIBRARY`` set::

    import pystacks

    pystacks.start()
    pystacks.check()  # a capture here has the frames that sys._getframe() and traceback.extract_stack() have

The module imports only the standard library, and works with Python 3.10 or later.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "src" / "cutrace" / "native"
SOURCES = [
    ROOT / "tests" / "native" / "python_stacks.cpp",
    *(
        NATIVE / "collector" / "features" / "stacks" / f"{name}.cpp"
        for name in ("python_frames", "code_deaths", "thread_stacks", "interpreter_check")
    ),
]
_LAYOUT = ROOT / "src" / "cutrace" / "runbin" / "layout.py"
_FLAGS = (
    "-std=c++20", "-O2", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-static-libstdc++", "-static-libgcc",
    "-pthread",
)  # fmt: skip

#: The largest number of frames of a captured stack, which has the innermost frames.
MOST_FRAMES = 256
#: The results of a capture, in the order of the C++ enumeration ``Captured``.
RESULTS = ("stack", "no_python", "closing", "nested", "unreadable", "no_memory", "sink_is_full")
#: Values of the C++ enumeration ``Trust``.
UNKNOWN, ASKED, TRUSTED, REFUSED = range(4)

Row = tuple[str, str, int]


class MissingCompiler(Exception):
    """There is no C++ compiler on this machine."""


def build(cache: Path, *flags: str) -> Path:
    """Return the library, from ``cache`` or newly built. Raises :class:`MissingCompiler`."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise MissingCompiler("needs a C++ compiler")
    headers = [*(NATIVE / "collector" / "features" / "stacks").glob("*.h"), _LAYOUT, Path(__file__)]
    digest = hashlib.sha256("\0".join([compiler, *_FLAGS, *flags]).encode())
    for source in [*SOURCES, *sorted(headers)]:
        digest.update(source.read_bytes())
    library = cache / f"libpystacks-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    generated = cache / f"generated-{os.getpid()}"
    (generated / "cutrace").mkdir(parents=True, exist_ok=True)
    made = generated / library.name
    subprocess.run([sys.executable, _LAYOUT, generated / "cutrace" / "rows.h"], check=True)
    includes = [f"-I{folder}" for folder in (NATIVE, NATIVE / "collector", generated)]
    subprocess.run([compiler, *_FLAGS, *flags, *includes, *map(str, SOURCES), "-o", made, "-ldl"], check=True)
    made.rename(library)
    shutil.rmtree(generated)
    return library


# ---- inside the interpreter ----

_PATH = os.environ.get("PYSTACKS_LIBRARY", "")
#: The same library twice: calls through ``free`` release the interpreter's lock, and calls through ``held`` keep it.
free: Any = ctypes.CDLL(_PATH) if _PATH else None
held: Any = ctypes.PyDLL(_PATH) if _PATH else None
for _library in (free, held) if _PATH else ():
    for _name in ("stacks_start", "stacks_ask"):
        getattr(_library, _name).restype = ctypes.c_char_p
    for _name in ("results", "truncated", "forgotten", "memory", "signals"):
        getattr(_library, f"stacks_{_name}").restype = ctypes.c_uint64
    for _name in ("stacks_capture", "stacks_capture_until", "stacks_capture_on_c_thread", "stacks_call_on_c_thread"):
        getattr(_library, _name).restype = ctypes.c_uint32
    _library.stacks_read.restype = ctypes.c_size_t
    _library.stacks_limit_memory.argtypes = [ctypes.c_size_t]
    _library.stacks_time_cold.argtypes = [ctypes.c_int, ctypes.c_size_t]
    for _name in ("known", "cold", "once", "new", "clock"):
        getattr(_library, f"stacks_time_{_name}").restype = ctypes.c_double

_BUFFER = 1 << 21
_own = threading.local()
_FUNCTION = "co_qualname" if sys.version_info >= (3, 11) else "co_name"

checked = 0
wrong: list[str] = []
empty = 0


def start() -> None:
    """Check the interpreter, and start to watch the deletion of code objects."""
    problem = held.stacks_start().decode()
    if problem:
        raise RuntimeError(problem)


def results() -> dict[str, int]:
    """The number of captures by result."""
    return {name: int(free.stacks_results(i)) for i, name in enumerate(RESULTS)}


def read(number: int) -> list[Row]:
    """File, function and line of each frame of a captured stack, innermost first."""
    if not hasattr(_own, "buffer"):
        _own.buffer = ctypes.create_string_buffer(_BUFFER)
    size = free.stacks_read(ctypes.c_uint32(number), _own.buffer, ctypes.c_size_t(_BUFFER))
    rows = ctypes.string_at(_own.buffer, size).decode().split("\n")[:-1]
    parts = [row.rsplit("\t", 2) for row in rows]
    return [(file, function, int(line)) for file, function, line in parts]


def _shown(name: str, room: int) -> str:
    """A name in its captured form: without lone surrogates, and truncated to ``room``."""
    whole = "".join("\N{REPLACEMENT CHARACTER}" if "\ud800" <= c < "\ue000" else c for c in name)
    return whole.encode()[:room].decode(errors="ignore")


def frames_of(frame: FrameType | None) -> list[Row]:
    """The expected rows of a capture in this frame."""
    rows: list[Row] = []
    while frame is not None and len(rows) < MOST_FRAMES:
        code = frame.f_code
        rows.append((_shown(code.co_filename, 4096), _shown(getattr(code, _FUNCTION), 1024), frame.f_lineno or 0))
        frame = frame.f_back
    return rows


def _report(number: int, got: list[Row], want: list[Row]) -> None:
    different = [f"  got {a}, want {b}" for a, b in zip(got, want, strict=False) if a != b]
    wrong.append("\n".join([f"stack {number}: {len(got)} frames, want {len(want)}", *different[:10]]))


def check(capture: Callable[[], int] | None = None) -> bool:
    """Capture a stack here, and compare it with ``sys._getframe()`` and ``traceback.extract_stack()``."""
    global checked, empty
    take = capture or free.stacks_capture
    number, frame, line, stack = take(), sys._getframe(), sys._getframe().f_lineno, traceback.extract_stack()
    want = frames_of(frame)
    want[0] = (*want[0][:2], line)
    got = read(number)
    summary = [(_shown(row.filename, 4096), row.name, row.lineno or 0) for row in reversed(stack)][:MOST_FRAMES]
    short = [(file, function.rpartition(".")[2], line) for file, function, line in got]
    same = got == want and short == [(file, _shown(name, 1024), line) for file, name, line in summary]
    checked += 1
    if number == 0:
        empty += 1
    if not same:
        _report(number, got, want)
    return same


def both() -> bool:
    """Check twice: without the interpreter's lock, and with it."""
    without = check(free.stacks_capture)
    return check(held.stacks_capture) and without
