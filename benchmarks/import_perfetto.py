"""Measure how fast the events of a Perfetto trace are imported when the trace does not contain its capture.

    python benchmarks/import_perfetto.py tests/data/torch_step.bin [--copies 100] [--rounds 3] [--out results.json]

The file is a capture, or a ``.pftrace`` of any program, which is read unchanged. The events of a capture are written
``--copies`` times, one copy after the other. The result is a trace for Perfetto without the capture, as another program
would write it. ``rows`` is the number of rows that the import makes. ``rows_per_second`` divides them by the CPU time,
which other work on the machine changes least. Each round is one of ``import_json.py``: a fresh process on one core.
Prints one JSON line; ``--out`` adds it to the results in a file.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import cutrace
from cutrace.runbin import TABLES
from import_json import machine, measured
from workloads import options


def foreign(capture: Path, copies: int, folder: Path) -> Path:
    """Return a trace with ``copies`` copies of the events of a capture, and without the capture."""
    one = folder / "one.pftrace"
    cutrace.convert(capture, one, capture=False)
    trace = folder / "foreign.pftrace"
    trace.write_bytes(one.read_bytes() * copies)
    return trace


def rows_of(path: Path) -> int:
    with cutrace.load(path) as trace:
        return sum(trace.count(name) for name, table in TABLES.items() if table.start_field)


def main() -> None:
    parser = options.parser(__doc__, rounds=3, out=None)
    parser.add_argument("file", type=Path, help="a capture, or a trace for Perfetto")
    parser.add_argument("--copies", type=int, default=100, help="copies of the events of a capture (default: 100)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        is_trace = ".pftrace" in chosen.file.name
        trace = chosen.file if is_trace else foreign(chosen.file, chosen.copies, Path(name))
        size, rows = trace.stat().st_size, rows_of(trace)
        figures = measured(trace, size, chosen.rounds)
    result: dict[str, Any] = {
        "benchmark": "import_perfetto", "version": cutrace.__version__, "machine": machine(), "file": chosen.file.name,
        "copies": 1 if is_trace else chosen.copies, "bytes": size, "rows": rows,
        "rows_per_second": round(rows / figures["cpu_seconds"]), "rounds": chosen.rounds, **figures,
    }  # fmt: skip
    print(json.dumps(result))
    if chosen.out:
        known = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
        chosen.out.write_text(json.dumps([*known, result], indent=2) + "\n")


if __name__ == "__main__":
    main()
