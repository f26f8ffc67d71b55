"""Measure the cost of cutting a recording: ``Collector.synchronize()`` and ``Collector.cut()``, on the fake GPU.

Prints one JSON line: median microseconds without new rows (``0``), and after each number of launches. Needs a C++
compiler and the CUDA and CUPTI headers, no GPU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads import options

TESTS = Path(__file__).parents[1] / "tests"

PROGRAM = """
import json, os, sys, time
import cutrace, fakegpu
from cutrace.collect.library import collector

folder, rounds, counts = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
armed = cutrace.arm(folder + "/run.bin")
fakegpu.init()
native = collector()
times = {}
for count in counts:
    rows = times[count] = {"synchronize_us": [], "cut_us": []}
    for _ in range(rounds):
        for i in range(count):
            fakegpu.launch(f"kernel_{i % 20}", duration_ns=100)
        fakegpu.synchronize() if count else None
        begin = time.perf_counter()
        native.synchronize()
        middle = time.perf_counter()
        made = native.cut(folder + "/part.bin")  # a new name: replacing a file makes some file systems write it out
        end = time.perf_counter()
        assert made == bool(count)
        if made:
            os.unlink(folder + "/part.bin")
        rows["synchronize_us"].append((middle - begin) * 1e6)
        rows["cut_us"].append((end - middle) * 1e6)
print(json.dumps(times))
"""


def main() -> None:
    parser = options.parser(__doc__, rounds=100)
    parser.add_argument("--launches", type=int, nargs="+", default=[0, 1, 100, 1000, 10000])
    arguments = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from support.fakedriver import build

    with tempfile.TemporaryDirectory() as folder:
        driver = build(Path(folder) / "driver")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, folder, str(arguments.rounds), json.dumps(arguments.launches)],
            env=driver.environment(), stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
    times = json.loads(done.stdout)
    result = {
        launches: {name: round(statistics.median(values), 1) for name, values in rows.items()}
        for launches, rows in times.items()
    }
    print(json.dumps({"launches": result}))


if __name__ == "__main__":
    main()
