"""A capture with PC samples."""

from __future__ import annotations

from pathlib import Path

from captures import ORIGIN, Capture

AXPY, SUM = "_Z4axpyIfEvPT_", "_Z3sumPf"
MS = 1_000_000

#: Interval (ms), function, offset, file, line, stall, samples, not issued.
ROWS = [
    (0, AXPY, 0x10, "/src/axpy.cu", 12, "long_scoreboard", 70, 60),
    (0, AXPY, 0x20, "/src/axpy.cu", 12, "selected", 10, 0),
    (0, AXPY, 0x30, "/src/axpy.cu", 13, "wait", 5, 4),
    (500, AXPY, 0x10, "/src/axpy.cu", 12, "long_scoreboard", 7, 6),
    (500, SUM, 0x1C0, "", 0, "barrier", 8, 8),
]  # fmt: skip


def sampled_capture(path: Path, *, in_blocks: bool = False) -> Path:
    """Write a process with a kernel of each function and the samples in :data:`ROWS`."""
    with Capture(path, pid=4711) as c:
        c.device(0)
        c.context(1)
        for number, name in enumerate((AXPY, SUM)):
            c.api("cudaLaunchKernel", number * 500 * MS + 10, number * 500 * MS + 20, correlation=number + 1)
            c.kernel(c.launch(name), number * 500 * MS + 100, (number + 1) * 500 * MS, correlation=number + 1)
        for start, function, offset, file, line, stall, samples, not_issued in ROWS:
            c.add("pc_samples", start=ORIGIN + start * MS, end=ORIGIN + (start + 500) * MS, function=function,
                  offset=offset, file=file, line=line, stall=stall, samples=samples, not_issued=not_issued)  # fmt: skip
            if in_blocks:
                c.flush()
    return path
