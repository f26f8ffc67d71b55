"""Measure the conversion of captures with a separate name, or a separate stream, for each kernel.

    python benchmarks/many_names.py [--events 300000] [--rounds 3] [--out results.json]

Writes two captures. In the first, each of ``--events`` kernels has a separate name, and all run on one stream. In the
second, each of ``--events`` / 3 kernels runs on a separate stream, and all have one name. Each kernel has a launch. A
JIT compiler, or a program that creates a stream for each request, records such captures. Each round converts both to a
Perfetto trace that contains the capture, in a fresh process that is pinned to one core. ``seconds`` is the median time
of ``import cutrace`` and ``cutrace.convert()``. ``peak_rss_mib`` is the largest memory of the rounds. Prints one JSON
line; ``--out`` adds it to the results in a file.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from convert import add_result, convert, hardware
from cutrace.runbin import TABLES, Writer
from workloads import options

#: The time of the first launch (ns of BOOTTIME), the time between launches, and the durations of a call and of a
#: kernel.
ORIGIN, PERIOD, CALL, KERNEL = 1_000_000_000_000, 3_000, 1_000, 2_500
#: The number of launches that are written together.
AT_ONCE = 1 << 15


def write_capture(path: Path, kernels: int, *, names: int = 1, streams: int = 1) -> Path:
    """Write a capture of one process. Its kernels use the names and the streams in turn."""
    with Writer(path, pid=100, host="test", command=["program"]) as writer:
        function = writer.intern_one("functions", name="cudaLaunchKernel", domain=2, callback=211)
        launches = np.zeros(names, TABLES["launches"].dtype)
        launches["name"] = [writer.string(f"_ZN3jit7kernel_{n}ILi{n}ELi4EfEEvPKT1_PS1_i") for n in range(names)]
        for field in ("grid_x", "grid_y", "grid_z", "block_y", "block_z"):
            launches[field] = 1
        launches["block_x"], launches["carveout"] = 256, 255
        launch_ids = writer.intern("launches", launches)
        for first in range(0, kernels, AT_ONCE):
            numbers = np.arange(first, min(first + AT_ONCE, kernels))
            start = ORIGIN + numbers * PERIOD
            calls = np.zeros(len(numbers), TABLES["api_calls"].dtype)
            calls["start"], calls["end"] = start, start + CALL
            calls["thread"], calls["function"], calls["correlation"] = 100, function, numbers + 1
            work = np.zeros(len(numbers), TABLES["kernels"].dtype)
            work["start"], work["end"] = start + CALL, start + CALL + KERNEL
            work["launch"], work["correlation"] = launch_ids[numbers % names], numbers + 1
            work["context"], work["stream"] = 1, 7 + numbers % streams
            writer.rows("api_calls", calls)
            writer.rows("kernels", work)
    return path


def measure(capture: Path, rounds: int) -> dict[str, Any]:
    """Convert a capture several times."""
    done = [convert(capture, capture.with_suffix(".pftrace"), capture=True) for _ in range(rounds)]
    return {
        "seconds": round(float(np.median([r["seconds"] for r in done])), 3),
        "seconds_all": [round(r["seconds"], 3) for r in done],
        "peak_rss_mib": round(max(r["peak_rss_mib"] for r in done), 1),
        "bytes_per_kernel": round(done[0]["bytes"] / capture_kernels(capture), 1),
    }


def capture_kernels(capture: Path) -> int:
    """Return the number of kernels of a capture."""
    import cutrace

    with cutrace.load(capture) as trace:
        return trace.count("kernels")


def main() -> None:
    args = options.parser(__doc__, events=300_000, rounds=3, out=None).parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder, few = Path(name), args.events // 3
        names = write_capture(folder / "names.bin", args.events, names=args.events)
        streams = write_capture(folder / "streams.bin", few, streams=few)
        result = {
            "benchmark": "many_names",
            "capture": "synthetic",
            "events": args.events,
            "names": measure(names, args.rounds),
            "streams": measure(streams, args.rounds),
            "hardware": hardware(),
        }
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
