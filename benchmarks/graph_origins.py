"""Check that replayed kernels of a transformer are mapped to the modules of an eager run.

    python benchmarks/graph_origins.py --out graph-origins.json [--sizes small,large] [--whole] [--keep FOLDER]

Records ``workloads/transformer.py`` eagerly, captured as one CUDA graph, and with compiled blocks. Each call of a
module is in a range. `--annotate` makes the ranges if cutrace has this option, else the program makes them. Kernels of
the eager run have the ranges around their launch, and kernels of replays have the ranges around the creation of their
graph node. The kernels of a step are aligned by name.

In the graph of the same model, kernels with 99 % or more of the GPU time must have the same module as in the eager run.
Compiled blocks have other kernels. These must belong to the block that launched their graph, and the steps must run
through the blocks in the same order. Each replayed kernel must have a module. ``--whole`` adds the model compiled as a
whole. Exit status 1 when a condition does not hold. Needs an NVIDIA GPU, PyTorch 2 and cutrace.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections import Counter
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cutrace
from cutrace.analysis.names import normalize_kernel
from workloads import options
from workloads.machine import facts

PROGRAM = Path(__file__).parent / "workloads" / "transformer.py"
CUTRACE = [sys.executable, "-m", "cutrace"]
MEASURED, STEPS, LEAST = "measured", 20, 0.99
PATTERN = "torch.nn.Module.__call__"


class Kernel(NamedTuple):
    """A kernel of the measured steps. ``ranges`` are the ranges around the creation of its graph node, or around its
    launch outside graphs. ``ns`` is its time. ``replayed`` is True for work of graph nodes. ``launched`` are the ranges
    around its launch without the range of the measurement."""

    name: str
    ranges: tuple[str, ...]
    ns: int
    replayed: bool
    launched: tuple[str, ...]

    @property
    def module(self) -> str:
        return "/".join(self.ranges)


def kernels(trace: cutrace.Trace) -> list[Kernel]:
    """The kernels of calls that started in the measured steps, in order of time. Kernels of graph nodes have the ranges
    of their creation, other kernels have the ranges around their call."""
    ranges = np.sort(trace.nvtx_ranges, order=["start"])
    texts = [trace.strings[name] for name in ranges["name"].tolist()]
    fields = ["process", "correlation", "thread", "start"]
    calls = {(p, c): (t, s) for p, c, t, s in trace.api_calls[fields].tolist()}
    origins, found = trace.origins, []
    for row in np.sort(trace.kernels, order=["start"]):
        process, launch = int(row["process"]), trace.launches[row["launch"]]
        thread, called = calls.get((process, int(row["correlation"])), (0, 0))
        around = (ranges["start"] <= called) & (called < ranges["end"])
        around &= (ranges["thread"] == thread) & (ranges["process"] == process)
        names = tuple(texts[at] for at in np.flatnonzero(around).tolist())
        if MEASURED not in names:
            continue
        path = launched = tuple(name for name in names if name != MEASURED)
        if launch["graph_node"]:
            node = origins.of_launches(process)[row["launch"]] if origins else 0
            path = origins.paths[origins.path_of[node]] if origins else ()
        name = normalize_kernel(trace.strings[int(launch["name"])])
        found.append(Kernel(name, path, int(row["end"] - row["start"]), bool(launch["graph_node"]), launched))
    return found


def mapped(eager: list[Kernel], replayed: list[Kernel]) -> dict[str, Any]:
    """Compare the modules of replayed kernels with the modules of eager kernels. Kernels are aligned by name. Between
    these, equally long runs of kernels with other names are aligned by order. Returns the time of the replayed kernels,
    the time of the kernels with the same module, and the largest differences."""
    places = SequenceMatcher(None, [k.name for k in eager], [k.name for k in replayed], autojunk=False)
    module: dict[int, str] = {}
    for _, a, a_end, b, b_end in places.get_opcodes():
        if a_end - a == b_end - b:
            module |= {b + i: eager[a + i].module for i in range(b_end - b)}
    same, others = 0, Counter()
    for at, kernel in enumerate(replayed):
        if module.get(at) == kernel.module:
            same += kernel.ns
        else:
            others[f"{kernel.name}: {kernel.module or 'nowhere'}, eager: {module.get(at, 'no such kernel')}"] += (
                kernel.ns
            )
    total = sum(kernel.ns for kernel in replayed)
    return {"ns": total, "same_ns": same, "differences": dict(others.most_common(10))}


def steps(found: list[Kernel]) -> list[list[Kernel]]:
    """The kernels of each step. If steps have different numbers of kernels, all kernels as one step."""
    size, rest = divmod(len(found), STEPS)
    return [found] if rest or not size else [found[at : at + size] for at in range(0, len(found), size)]


def compared(eager: list[Kernel], replayed: list[Kernel]) -> dict[str, Any]:
    """Compare the modules of each replayed step with the modules of the same eager step."""
    one, other = steps(eager), steps(replayed)
    if len(one) != len(other):
        one, other = [eager], [replayed]
    parts = [mapped(a, b) for a, b in zip(one, other, strict=True)]
    total, same = (sum(part[name] for part in parts) for name in ("ns", "same_ns"))
    return {
        "kernels": len(replayed), "kernels_eager": len(eager), "ns": total, "share": same / total if total else 0.0,
        "differences": parts[-1]["differences"],
    }  # fmt: skip


def in_blocks(eager: list[Kernel], found: list[Kernel]) -> dict[str, Any]:
    """Return two results on replayed kernels. The first is the share of their time in kernels that were created in the
    block that launched their graph. The second is whether each step runs through the blocks in the same order as the
    eager steps."""
    replayed = [kernel for kernel in found if kernel.replayed]
    total = sum(kernel.ns for kernel in replayed)
    same = sum(kernel.ns for kernel in replayed if kernel.ranges[:2] == kernel.launched[:2])

    def order(kernels: list[Kernel]) -> list[str]:
        blocks = ["/".join(kernel.ranges[:2]) for kernel in kernels]
        return [block for block, _ in groupby(block for block in blocks if "/layers." in block)]

    return {"share": same / total if total else 0.0, "ns": total, "same_order": order(eager) == order(found)}


def by_module(found: list[Kernel], depth: int = 99) -> dict[str, int]:
    """GPU time (ns) by path of modules, cut to the outermost ``depth`` modules."""
    times: Counter[str] = Counter()
    for kernel in found:
        times["/".join(kernel.ranges[:depth])] += kernel.ns
    return dict(sorted(times.items()))


def known(found: list[Kernel]) -> dict[str, Any]:
    """The number of replayed kernels, and the number of them with a module."""
    replayed = [kernel for kernel in found if kernel.replayed]
    without = Counter(kernel.name for kernel in replayed if not kernel.ranges)
    return {
        "replayed": len(replayed),
        "replayed_without_module": without.total(),
        "names": dict(without.most_common(5)),
    }


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr[-2000:])
    if done.returncode:
        sys.exit(f"{' '.join(command[:12])} ... ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def recorded(mode: str, size: str, folder: Path, annotate: bool) -> tuple[list[Kernel], str]:
    """Record the program. Returns the kernels of its steps, and its result."""
    capture = folder / f"{size}-{mode}.bin"
    ranges = ["--annotate", PATTERN] if annotate else []
    program = [sys.executable, str(PROGRAM), mode, size, str(STEPS), *([] if annotate else ["--ranges"])]
    output = run([*CUTRACE, "record", "-o", str(capture), *ranges, "--", *program])
    with cutrace.load(capture) as trace:
        return kernels(trace), output.strip().splitlines()[-1]


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--sizes", default="small,large")
    parser.add_argument("--whole", action="store_true", help="also the model compiled as a whole")
    parser.add_argument("--keep", type=Path, help="folder for the captures")
    args = parser.parse_args()
    annotate = "--annotate" in run([*CUTRACE, "record", "--help"])
    version = run([sys.executable, "-c", "import torch; print(torch.__version__)"]).strip()
    result: dict[str, Any] = {
        "benchmark": "graph_origins",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": facts(), "torch": version, "ranges": "annotate" if annotate else "program", "steps": STEPS,
        "sizes": {},
    }  # fmt: skip
    holds = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for size in args.sizes.split(","):
            eager, value = recorded("eager", size, folder, annotate)
            row: dict[str, Any] = {"eager": {"result": value, "kernels": len(eager), "modules": by_module(eager)}}
            for mode in ("graph", "blocks", *(["whole"] if args.whole else [])):
                found, value = recorded(mode, size, folder, annotate)
                row[mode] = {"result": value, **known(found), "modules": by_module(found)}
                if mode == "graph":
                    row[mode] |= compared(eager, found)
                if mode == "blocks":
                    row[mode] |= in_blocks(eager, found) | {"blocks_eager": by_module(eager, 2)}
                    holds &= row[mode]["same_order"]
                if mode != "whole":
                    holds &= row[mode]["share"] >= LEAST
                    holds &= row[mode]["replayed"] > 0 and not row[mode]["replayed_without_module"]
                names = ("share", "replayed", "replayed_without_module", "same_order")
                print(size, mode, {name: row[mode].get(name) for name in names}, flush=True)
            result["sizes"][size] = row
    result["holds"] = holds
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
