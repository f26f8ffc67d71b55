"""Measure the import of torch.profiler's JSON: its speed, its memory, and the size of the trace.

    python benchmarks/make_kineto.py kineto.json.gz --megabytes 100      (needs an NVIDIA GPU and PyTorch)
    python benchmarks/import_json.py kineto.json.gz [--rounds 5] [--out results.json]

The import includes reading the file, building the tables, and writing the temporary capture (run.bin). Each round runs
in a fresh process that is pinned to one core, on the uncompressed file in the page cache. ``mb_per_second`` counts
bytes of JSON (10^6) and the time of the import alone, without the start of the interpreter and module imports.
``peak_mib`` is the peak memory minus the memory before the import. ``table_mib`` is the size of the capture. ``packed``
has the same figures for the gzipped file. ``ratio`` is the size of the JSON divided by the size of the trace for
Perfetto: plain, as .gz, and with ``--compress zstd``. Prints one JSON line; ``--out`` adds it to the results in a file.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cutrace
from workloads import options

#: Runs in a separate process: imports, then prints the time and the peak memory.
CHILD = """
import json, sys, tempfile, time
from pathlib import Path
from cutrace.importers.base import SourceFile, read
from cutrace.plugins import importer

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

source = SourceFile.at(Path(sys.argv[1]))
reader = importer(source)
before = peak()
with tempfile.TemporaryDirectory() as folder:
    wall, cpu = time.perf_counter(), time.process_time()
    capture = read(reader, source, Path(folder))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    figures = {"seconds": wall, "cpu_seconds": cpu, "peak_mib": peak() - before, "process_mib": peak()}
    print(json.dumps(figures | {"table_mib": capture.stat().st_size / 2**20, "format": reader.name}))
"""


def measured(path: Path, size: int, rounds: int) -> dict[str, Any]:
    """Return the figures of imports of a file with ``size`` bytes of JSON. The first round is not counted."""
    results = [json.loads(_run(path)) for _ in range(rounds + 1)][1:]
    rates = [size / 1e6 / one["seconds"] for one in results]
    return {
        "mb_per_second": {"best": round(max(rates), 1), "median": round(statistics.median(rates), 1)},
        "seconds": round(statistics.median(one["seconds"] for one in results), 3),
        "cpu_seconds": round(statistics.median(one["cpu_seconds"] for one in results), 3),
        "peak_mib": round(max(one["peak_mib"] for one in results), 1),
        "process_mib": round(max(one["process_mib"] for one in results), 1),
        "table_mib": round(results[0]["table_mib"], 1),
        "format": results[0]["format"],
    }


def _run(path: Path) -> str:
    def pin() -> None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    command = [sys.executable, "-c", CHILD, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pin).stdout


def sizes(path: Path, size: int, folder: Path) -> dict[str, Any]:
    """Return the size of the trace for Perfetto, plain and compressed."""
    out: dict[str, Any] = {}
    ways = (("pftrace", ".pftrace", None), ("pftrace_gz", ".pftrace.gz", None), ("pftrace_zstd", ".pftrace", "zstd"))
    for name, suffix, compress in ways:
        destination = folder / f"trace{suffix}"
        cutrace.convert(path, destination, compress=compress)
        written = destination.stat().st_size
        out[name] = {"bytes": written, "ratio": round(size / written, 1)}
    return out


def main() -> None:
    parser = options.parser(__doc__, rounds=5, out=None)
    parser.add_argument("file", type=Path, help="trace events as JSON, gzipped or not")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = folder / "plain.json"
        packed = chosen.file.name.endswith(".gz")
        with (gzip.open if packed else open)(chosen.file, "rb") as source, plain.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        size = plain.stat().st_size
        result: dict[str, Any] = {
            "benchmark": "import_json", "version": cutrace.__version__, "machine": machine(), "file": chosen.file.name,
            "json_bytes": size, "rounds": chosen.rounds, **measured(plain, size, chosen.rounds),
        }  # fmt: skip
        if packed:
            result["packed"] = measured(chosen.file, size, chosen.rounds)
        result |= sizes(plain, size, folder)
    print(json.dumps(result))
    if chosen.out:
        known = json.loads(chosen.out.read_text()) if chosen.out.exists() else []
        chosen.out.write_text(json.dumps([*known, result], indent=2) + "\n")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
