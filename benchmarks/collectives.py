"""Compare groups, bytes and bus bandwidth of collectives with the numbers that a PyTorch program counts.

    python benchmarks/collectives.py --out collectives.json [--nccl-tests FOLDER]

Runs ``workloads/collective_calls.py`` on two GPUs under `cutrace record`. For each of its phases, `cutrace batch
collectives` reports over the slice of this phase. These conditions have to hold:

* calls and bytes of each collective are equal to the numbers of the program;
* the group has all ranks and one communicator; DDP with a separate group has another communicator than plain DDP;
* the bus bandwidth is within 5 % of the program's value, for calls of at least 16 MiB. The time of the program includes
  the time between two calls, so its value may be up to 15 % smaller.

``--nccl-tests`` is a folder with built programs of nccl-tests. The result also has their bandwidth for the same sizes,
from a run without cutrace. Needs two NVIDIA GPUs and PyTorch. Exit status 1 when a condition does not hold.
"""

from __future__ import annotations

import datetime
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

PROGRAM = Path(__file__).parent / "workloads" / "collective_calls.py"
RANKS = 2
#: Bytes on the bus of a call, for each byte of its size as NCCL counts it. From nccl-tests.
FACTORS = {
    "all-reduce": 2 * (RANKS - 1) / RANKS,
    "all-gather": RANKS - 1,
    "reduce-scatter": RANKS - 1,
    "broadcast": 1,
}
#: The programs of nccl-tests.
NCCL_TESTS = {
    "all-reduce": "all_reduce_perf",
    "all-gather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
}
KERNELS = {
    "all-reduce": "AllReduce",
    "all-gather": "AllGather",
    "reduce-scatter": "ReduceScatter",
    "broadcast": "Broadcast",
}
LEAST_MIB = 16
#: The bus bandwidth by cutrace / by the program.
LEAST_RATIO, MOST_RATIO = 0.95, 1.15
#: Phases with a separate communicator for their collectives.
OWN = ("DDP with its own group",)


def record(capture: Path) -> list[dict[str, Any]]:
    """Record the program. Returns the counts of each rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [sys.executable, "-m", "cutrace", "record", "-o", str(capture), "--", *torchrun, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the recording ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    print(done.stderr[-600:])
    lines = [line for line in done.stdout.splitlines() if "measured {" in line]
    return [json.loads(line.partition("measured ")[2]) for line in lines]


def by_cutrace(capture: Path, phase: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of the report on a phase: one for each group and kernel."""
    part = folder / "part.bin"
    subprocess.run(
        [sys.executable, "-m", "cutrace", "slice", str(capture), "--nvtx", phase, "-o", str(part)],
        check=True, capture_output=True,
    )  # fmt: skip
    report = cutrace.batch("collectives", part, folder / "batched", mode="sequential")
    (table,) = [table for table in report.reports if table.name == "collectives"]
    names = [column.name for column in table.columns]
    part.unlink()
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def compare(phase: str, counted: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of the program and of the report for each collective of a phase."""
    compared: dict[str, Any] = {}
    for name, own in counted.items():
        found = [row for row in rows if KERNELS[name] in row["collective"]]
        told: dict[str, Any] = {
            "calls": sum(row["calls"] for row in found),
            "bytes": sum(row["bytes"] or 0 for row in found),
            "groups": sorted({str(row["group"]) for row in found}),
            "communicators": sorted({str(row["communicator"]) for row in found}),
        }
        if len(found) == 1 and found[0]["bus bandwidth"]:
            told["bus_gb_s"] = round(found[0]["bus bandwidth"] / 1e9, 2)
        program = dict(own)
        if "seconds" in own:
            program["bus_gb_s"] = round(own["bytes"] * FACTORS[name] / own["seconds"] / 1e9, 2)
        compared[name] = {"program": program, "cutrace": told}
    return compared


def faults(phase: str, compared: dict[str, Any], world: set[str]) -> list[str]:
    """Sentences on the conditions of the docstring that do not hold."""
    found = []
    for name, pair in compared.items():
        program, told = pair["program"], pair["cutrace"]
        found += [
            f"{phase}: {name} has {told[fact]:,} {fact}, the program counted {program[fact]:,}"
            for fact in ("calls", "bytes")
            if fact in program and program[fact] != told[fact]
        ]
        if len(told["groups"]) != 1 or len(told["communicators"]) != 1:
            found.append(f"{phase}: {name} has {told['groups']} with {told['communicators']}")
        elif phase in OWN and told["communicators"][0] in world:
            found.append(f"{phase}: {name} has the communicator {told['communicators'][0]}")
        if "bus_gb_s" not in program:
            continue
        if "bus_gb_s" not in told:
            found.append(f"{phase}: {name} has no bus bandwidth")
            continue
        ratio = told["bus_gb_s"] / program["bus_gb_s"]
        if int(phase.split()[1]) >= LEAST_MIB and not LEAST_RATIO <= ratio <= MOST_RATIO:
            found.append(f"{phase}: {told['bus_gb_s']} GB/s, the program measured {program['bus_gb_s']} GB/s")
    return found


def by_nccl_tests(folder: Path, name: str) -> dict[str, float]:
    """The bus bandwidth (GB/s) by size (MiB) of a program of nccl-tests, out of place."""
    command = [
        str(folder / NCCL_TESTS[name]),
        "-b",
        "1M",
        "-e",
        "256M",
        "-f",
        "2",
        "-g",
        str(RANKS),
        "-n",
        "20",
        "-c",
        "0",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    sizes = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if words and words[0].isdigit():
            # size, count, type, redop, root, time, algorithm bandwidth, bus bandwidth
            sizes[str(int(words[0]) >> 20)] = float(words[7])
    return sizes


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--nccl-tests", type=Path, help="a folder with built programs of nccl-tests")
    args = parser.parse_args()
    result: dict[str, Any] = {"benchmark": "collectives", "machine": machine.facts()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        capture = folder / "run.bin"
        first, *others = record(capture)
        phases: dict[str, Any] = first["phases"]
        for name, counted in phases.items():
            for rank in others:
                for collective, own in counted.items():
                    # The group is as fast as its slowest rank.
                    theirs = rank["phases"][name][collective]
                    if "seconds" in own:
                        own["seconds"] = max(own["seconds"], theirs["seconds"])
        compared = {phase: compare(phase, own, by_cutrace(capture, phase, folder)) for phase, own in phases.items()}
    world = set(compared["DDP"]["all-reduce"]["cutrace"]["communicators"])
    wrong = [sentence for phase, pairs in compared.items() for sentence in faults(phase, pairs, world)]
    result |= {"ranks": RANKS, "phases": compared, "wrong": wrong}
    if args.nccl_tests:
        result["nccl_tests_gb_s"] = {name: by_nccl_tests(args.nccl_tests, name) for name in NCCL_TESTS}
    result["date"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for phase, pairs in compared.items():
        for name, pair in pairs.items():
            print(f"{phase:24} {name:15} {pair['program']} {pair['cutrace']}")
    print(json.dumps(result.get("nccl_tests_gb_s")))
    for sentence in wrong:
        print(sentence)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
