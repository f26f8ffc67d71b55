"""Measure the cost of ranges around Python functions (``--annotate``): nanoseconds of processor time per call.

Each interpreter runs a program with and without annotation, in alternating rounds, and the lowest value of all rounds
counts. Both variants are recorded. Prints one JSON line for each interpreter. Needs no GPU::

    python benchmarks/annotate.py --python python3.11 --python python3.13 --out annotate.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))
import machine

import cutrace
from cutrace.collect import annotate
from cutrace.collect.library import collector_path

PROGRAM = """
import ctypes, json, runpy, sys, time

class Module:
    def __init__(self, **modules):
        self._modules, self._parameters = modules, {}
    def named_modules(self):
        pass
    def __call__(self, x):
        for module in self._modules.values():
            module(x)
        return x

def annotated(x):
    return x
def other(x):
    return x
def several(x):
    return len(str(other(x)))  # a call of Python, two of built-in functions

blocks = {str(i): Module(attention=Module(), mlp=Module()) for i in range(8)}
model = Module(layers=Module(**blocks))
modules = 2 + 3 * len(blocks)

def lowest(call, count, calls=1):
    best = float("inf")
    for _ in range(300):
        begin = time.thread_time_ns()
        for _ in range(count):
            call(1)
        best = min(best, (time.thread_time_ns() - begin) / count / calls)
        time.sleep(0.001)  # the writer empties the ring
    return best

output, annotator, library, on = sys.argv[1:]
native = ctypes.CDLL(library)
assert native.cutrace_start(f"output={output};kinds=nvtx".encode()) == 0
if on == "1":
    names = ["__main__.annotated", "__main__.Module.__call__"]
    runpy.run_path(annotator, run_name="annotator")["start"](names, library)
for call in (annotated, other, several, model):
    call(1)
result = {
    "annotated": lowest(annotated, 500),
    "not_annotated": lowest(other, 500),
    "not_annotated_with_builtins": lowest(several, 500),
    "module": lowest(model, 20, modules),
}
native.cutrace_stop()
print(json.dumps(result))
"""


def run(python: str, annotated: bool) -> dict[str, float]:
    """Run one process. Returns the nanoseconds of each kind of call."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "run.bin")
        arguments = [str(capture), str(annotate.__file__), str(collector_path()), str(int(annotated))]
        done = subprocess.run([python, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
        with cutrace.load(capture) as trace:
            assert trace.quality.lossless
            assert bool(trace.count("nvtx_ranges")) == annotated
    return dict(json.loads(done.stdout))


def measure(python: str, rounds: int) -> dict[str, Any]:
    lowest: dict[bool, dict[str, float]] = {}
    for _ in range(rounds):
        for annotated in (False, True):
            for name, value in run(python, annotated).items():
                kept = lowest.setdefault(annotated, {})
                kept[name] = min(kept.get(name, value), value)
    version = subprocess.run([python, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    return {
        "python": version.stdout.decode().strip(),
        "plain_ns": {name: round(value) for name, value in lowest[False].items()},
        "annotate_ns": {name: round(value) for name, value in lowest[True].items()},
        "added_ns": {name: round(lowest[True][name] - lowest[False][name]) for name in lowest[True]},
    }


def main() -> None:
    parser = options.parser(__doc__, rounds=3, out=None)
    parser.add_argument("--python", action="append", help="an interpreter; by default the one that runs this")
    args = parser.parse_args()
    results = []
    for python in args.python or [sys.executable]:
        results.append(measure(python, args.rounds))
        print(json.dumps(results[-1]), flush=True)
    if args.out:
        args.out.write_text(
            json.dumps({"rounds": args.rounds, "results": results, "machine": machine.facts()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
