"""Measure the time and the memory of `cutrace view` on a large capture, and the size of its page.

    python benchmarks/view.py --events 10000000 [--capture tests/data/torch_step.bin] [--out results.json]

Tiles a capture, or an imported file of another tool, to ``--events`` rows as benchmarks/convert.py does. Each
round runs ``cutrace view`` in a fresh process on one core. Times are as in benchmarks/stats.py; ``lowest_seconds`` and
``lowest_user_seconds`` are the lowest of the rounds. ``folded`` has the same figures for ``cutrace convert`` to
collapsed stacks. ``totals_equal`` is true if the GPU time of all stacks is exactly the sum of the report
``cuda_gpu_sum``.

The targets are less than 5 s and a page of less than 5 MB. Prints one JSON line; ``--out`` adds it to the results in a
file.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from convert import add_result, default_capture, hardware, tile
from stats import run
from workloads import options

SECONDS, PAGE_BYTES = 5.0, 5_000_000


def measured(arguments: list[str], folder: Path, rounds: int) -> dict[str, Any]:
    """Run a verb once as a warm-up, and then once in each round."""
    results = [run(arguments, folder, cores=1) for _ in range(rounds + 1)][1:]
    figures = {key: round(float(np.median([r[key] for r in results])), 3) for key in results[0]}
    figures["peak_rss_mib"] = round(max(r["peak_rss_mib"] for r in results), 1)
    for key in ("seconds", "user_seconds"):
        figures[f"lowest_{key}"] = round(min(r[key] for r in results), 3)
    return {**figures, "seconds_all": [round(r["seconds"], 3) for r in results]}


def main() -> None:
    parser = options.parser(__doc__, events=10_000_000, capture=None, rounds=5, out=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        capture = args.capture or default_capture(folder)
        if capture.suffix != ".bin":
            cutrace.convert(capture, folder / "imported.bin")
        source, page, stacks = folder / "tiled.bin", folder / "page.html", folder / "stacks.folded"
        events = tile(capture if capture.suffix == ".bin" else folder / "imported.bin", source, args.events)
        os.sync()  # otherwise the system writes the capture to the disk while it is read
        viewed = measured(["view", str(source), "-o", str(page)], folder, args.rounds)
        folded = measured(["convert", str(source), "-o", str(stacks), "-q"], folder, args.rounds)
        in_stacks = sum(int(line.rpartition(" ")[2]) for line in stacks.read_text("utf-8").splitlines())
        report = cutrace.stats(source, "cuda_gpu_sum")
        place = report.place("total")
        result: dict[str, Any] = {
            "benchmark": "view",
            "capture": capture.name,
            "events": events,
            "capture_bytes": source.stat().st_size,
            "page_bytes": page.stat().st_size,
            "view": viewed,
            "folded": folded,
            "totals_equal": in_stacks == sum(row[place] for row in report.rows),
        }
    met = viewed["lowest_seconds"] < SECONDS and result["page_bytes"] < PAGE_BYTES and result["totals_equal"]
    result |= {"targets_met": met, "hardware": hardware() | {"cores_used": 1}}
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
