"""Check sampling of hardware counters: the sum of the bytes, the number of lost samples, and the cost.

    python benchmarks/sampling.py --out sampling.json [--seconds 20] [--intervals 1ms,100us,20us]

A program copies memory for a while, with pauses, and then launches small kernels one by one. For each interval it runs
under `cutrace record --sample metrics`. The sum of the sampled DRAM bytes is compared with the copied bytes. The time
of a small launch is compared with the time under `cutrace record` alone. Memory and processor time of the sampling
process come from /proc. Needs an NVIDIA GPU with readable counters, and PyTorch.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine

import cutrace

PROGRAM = """
import json, sys, time, torch
seconds = float(sys.argv[1])
x = torch.zeros(1 << 28, device="cuda")
y = torch.empty_like(x)
y.copy_(x)
torch.cuda.synchronize()
time.sleep(0.5)
begin, copies = time.clock_gettime_ns(time.CLOCK_BOOTTIME), 0
while time.clock_gettime_ns(time.CLOCK_BOOTTIME) - begin < seconds * 1e9:
    for _ in range(20):
        y.copy_(x)
    torch.cuda.synchronize()
    copies += 20
    time.sleep(0.01)
end = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
time.sleep(0.2)
small = torch.zeros(1024, device="cuda")
for turn in range(2):
    began = time.perf_counter()
    for _ in range(100_000):
        small.add_(1)
    torch.cuda.synchronize()
each = (time.perf_counter() - began) * 1e4
print(json.dumps({"begin": begin, "end": end, "bytes": copies * 4 << 28, "ns_per_op": each}))
"""


def sampler_of(pid: int) -> int | None:
    """Return the sampling process, a child of the recording process."""
    done = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "cutrace.extras.hardware.sampling"], capture_output=True, text=True
    )
    return int(done.stdout.split()[0]) if done.stdout else None


def run(folder: Path, seconds: float, interval: str | None) -> dict[str, Any]:
    capture = folder / "run.bin"
    options = ["--sample", "metrics", "--interval", interval] if interval else []
    command = ["cutrace", "record", "-o", str(capture), *options, "--", sys.executable, "-c", PROGRAM, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    memory: list[int] = []
    cpu = 0.0
    while process.poll() is None:
        time.sleep(0.5)
        if (pid := sampler_of(process.pid)) is not None:
            try:
                status = Path(f"/proc/{pid}/status").read_text().split()
                memory.append(int(status[status.index("VmRSS:") + 1]) // 1024)
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, ValueError):
                continue
    output, errors = process.communicate()
    if process.returncode:
        sys.exit(f"the recording ended with {process.returncode}:\n{errors[-3000:]}")
    program = json.loads(next(line for line in output.splitlines() if line.startswith('{"begin"')))
    result: dict[str, Any] = {"interval": interval, "ns_per_op": round(program["ns_per_op"], 1)}
    if interval:
        result |= {
            "sampler_mib": [memory[len(memory) // 3], memory[-1]] if memory else [], "sampler_cpu_seconds": cpu,
            "said": errors.strip().splitlines()[1:4], **integrals(capture, program),
        }  # fmt: skip
    return result


def integrals(capture: Path, program: dict[str, int]) -> dict[str, Any]:
    """Return the sums of the samples, divided by the bytes copied in the same time."""
    sums: dict[str, Any] = {"capture_bytes": capture.stat().st_size}
    with cutrace.load(capture) as trace:
        rows, names = trace.counters, trace.strings
        sums["lost"] = int(sum(loss.count for loss in trace.named_losses))
        for number in np.unique(rows["name"]).tolist():
            name = names[number]
            mine = np.sort(rows[rows["name"] == number], order="time")
            inside = mine[(mine["time"] >= program["begin"]) & (mine["time"] < program["end"] + 50_000_000)]
            sums["samples"] = len(inside)
            if name.startswith("dram__bytes_") and len(inside) > 1:
                spans = np.diff(inside["time"].astype(np.int64)) / 1e9
                total = float(np.nansum(inside["value"][:-1] * spans))
                sums[name] = round(total / program["bytes"], 4)
    return sums


def main() -> None:
    parser = options.parser(__doc__, out=options.REQUIRED)
    parser.add_argument("--seconds", type=float, default=20, help="how long each sampled program copies")
    parser.add_argument("--intervals", type=options.words, default=["1ms", "100us", "20us"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(Path(folder), min(args.seconds, 5), None)]
        runs += [run(Path(folder), args.seconds, interval) for interval in args.intervals]
    result = {
        "benchmark": "sampling", "seconds": args.seconds, "machine": machine.facts(), "runs": runs,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    for each in runs:
        print(each)


if __name__ == "__main__":
    main()
