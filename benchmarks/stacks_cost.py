"""Measure the cost of capturing a Python stack, by depth and by the known part of the stack.

    python benchmarks/stacks_cost.py [--depths 5 30 100] [--python PATH]

Builds the collector's walker as a library (tests/support/pystacks.py). Each depth has separate functions with 40 lines
each, as in a real program. Prints one JSON line with the nanoseconds of a capture, for each depth and these
cases:

``known``         the same known stack each time
``known, cold``   the same, after the program has touched 4 MiB of other memory
``known frames``   a stack of known functions, with another line in the innermost function
``new``           a stack of unknown functions

The smallest of seven rounds counts. For ``known frames`` the median counts, because each capture has another stack.
Needs a C++ compiler, no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

import pystacks  # noqa: E402
from pystacks import free  # noqa: E402

ROUNDS = 7
COLD_BYTES = 4 << 20


def functions(depth: int) -> Callable[[Callable[[], None]], None]:
    """Return a function that calls others down to ``depth``. The last one calls its argument."""
    lines = "".join(f"  x{i} = {i}\n" for i in range(20))
    text = ""
    for i in range(depth):
        call = f"layer_number_{i + 1}(work)" if i + 1 < depth else "work()"
        text += f"def layer_number_{i}(work):\n{lines}  {call}\n{lines}"
    variables: dict[str, Any] = {}
    exec(compile(text, f"/usr/lib/python3/dist-packages/some_framework/modules/part_{depth}.py", "exec"), variables)
    first: Callable[[Callable[[], None]], None] = variables["layer_number_0"]
    return first


def other_lines() -> list[float]:
    """The nanoseconds of captures in functions of 40 lines. Each capture is at another line."""
    times: list[float] = []
    for number in range(25):
        text = f"def work_{number}(once):\n return [\n  once()" + ",\n  once()" * 39 + "]\n"
        variables: dict[str, Any] = {}
        exec(compile(text, "/usr/lib/python3/dist-packages/some_framework/modules/lines.py", "exec"), variables)
        times += variables[f"work_{number}"](free.stacks_time_once)[1:]  # in the first one the function becomes known
    return times


def smallest(function: Callable[..., float], *arguments: object) -> float:
    return min(float(function(*arguments)) for _ in range(ROUNDS))


def measure(depth: int) -> dict[str, float]:
    """The nanoseconds of captures in a stack of this depth or a little more, by case."""
    found: dict[str, float] = {}
    clock = smallest(free.stacks_time_clock, 20_000)

    def work() -> None:
        found["frames"] = len(pystacks.read(free.stacks_capture()))
        found["known"] = smallest(free.stacks_time_known, 200_000)
        found["known, cold"] = smallest(free.stacks_time_cold, 300, COLD_BYTES) - clock
        found["known frames"] = statistics.median(other_lines()) - clock
        found["new"] = smallest(free.stacks_time_new, 200) - clock

    functions(depth)(work)
    return {name: round(value, 1) for name, value in found.items()}


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[5, 30, 100])
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    arguments = parser.parse_args()
    if pystacks.free is not None:
        pystacks.start()
        costs = [measure(depth) for depth in arguments.depths]
        print(json.dumps({"python": platform.python_version(), "cpu": processor(), "ns": costs}))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYSTACKS_LIBRARY": str(pystacks.build(Path(folder)))}
        command = [arguments.python, str(Path(__file__).resolve()), "--depths", *map(str, arguments.depths)]
        sys.exit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
