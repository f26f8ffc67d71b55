"""Measure how fast Perfetto's own engine opens a trace of cutrace, compared with JSON of the same session.

    python benchmarks/opening.py --trace-processor trace_processor_shell [session ...] [--rounds 9] [--out results.json]

Each session is a capture, or JSON of torch.profiler. The default sessions are ``gpu`` and ``cpu``. ``gpu`` has copies
of tests/data/cuda_graph.bin with 100,000 events of GPU work. ``cpu`` has copies of a session of torch.profiler in which
9 of 10 events are events of the host. ``cutrace convert`` writes each as a trace that does not contain the capture, and
captures also as JSON. JSON of torch.profiler is opened unchanged. ``--against`` names a Python with another version of
cutrace. Each round also opens the trace of that version, as ``against``.

In each round, trace_processor opens one file after the other and counts the arguments. ``seconds`` is the median of its
user and system time, and ``lowest_seconds`` the lowest of the rounds. ``peak_rss_mib`` is the largest memory of the
rounds. ``conversion`` has the same figures for ``cutrace convert`` to a trace that contains the capture. ``empty`` has
both figures for files with one event. They differ because trace_processor loads descriptions of Perfetto's messages
only for a trace. ``json_to_pftrace`` is the ratio of the medians; the target is at least 1.3. Prints one JSON line;
``--out`` adds it to the results in a file.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from convert import add_result, hardware, tile
from workloads import options

TARGET = 1.3
DATA = Path(__file__).parent.parent / "tests" / "data"
#: The rows of ``gpu``, and the bytes of ``cpu``.
GPU_ROWS, CPU_BYTES = 125_000, 60_000_000
#: Arguments of torch.profiler that number events. They get new numbers in each copy of a session.
_NUMBERS = ("correlation", "External id", "Ev Idx", "Python id", "Python parent id")
_ARGUMENTS = "select count(*) from args"


def sessions(folder: Path) -> dict[str, Path]:
    """Write the two sessions in a separate process, because the system counts the memory of a process for its children,
    too."""
    writer = get_context("spawn").Process(target=write_sessions, args=(folder,))
    writer.start()
    writer.join()
    return {"gpu": folder / "gpu.bin", "cpu": folder / "cpu.json"}


def write_sessions(folder: Path) -> None:
    tile(DATA / "cuda_graph.bin", folder / "gpu.bin", GPU_ROWS)
    source = DATA / "kineto-torch2.11-h200-train-graph.json.gz"
    tile_json(source, folder / "cpu.json", CPU_BYTES)


def tile_json(source: Path, target: Path, size: int) -> None:
    """Write copies of a session of torch.profiler, one after the other, until they have ``size`` bytes."""
    session = json.loads(gzip.decompress(source.read_bytes()))
    events = session["traceEvents"]
    timed = [event for event in events if event["ph"] != "M"]
    ends = [event["ts"] + event.get("dur", 0) for event in timed]
    span = max(ends) - min(event["ts"] for event in timed)
    copies = round(size / len(json.dumps(events)))
    session["traceEvents"] = [event for event in events if event["ph"] == "M"]
    for number in range(copies):
        session["traceEvents"] += [_moved(event, number, span) for event in timed]
    target.write_text(json.dumps(session))


def _moved(event: dict[str, Any], number: int, span: float) -> dict[str, Any]:
    """Return an event as it is in copy ``number``."""
    moved = {**event, "ts": round(event["ts"] + number * span, 3)}
    if event["ph"] in ("s", "t", "f"):
        moved["id"] = f"{event['id']}.{number}"
    if "args" in event:
        moved["args"] = dict(event["args"])
        for name in _NUMBERS:
            if moved["args"].get(name):
                moved["args"][name] += number * 1_000_000
    return moved


def run(command: list[str]) -> dict[str, Any]:
    """Run a command. Returns its user and system time, its peak memory, and its output."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
        out.seek(0)
        written = out.read().decode()
    return {
        "seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_mib": usage.ru_maxrss / 1024,
        "written": written,
    }


def figures(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The times and the memory of several runs of one command."""
    seconds = [each["seconds"] for each in runs]
    return {
        "seconds": round(float(np.median(seconds)), 3),
        "lowest_seconds": round(min(seconds), 3),
        "peak_rss_mib": round(max(each["peak_rss_mib"] for each in runs), 1),
    }


def converters(session: Path, folder: Path, against: str | None) -> dict[str, list[str]]:
    """The commands that write a trace with the capture in it, by version of cutrace."""
    pythons = {"pftrace": sys.executable}
    if against:
        pythons["against"] = against
    commands = {}
    for name, python in pythons.items():
        target = folder / f"{name}.pftrace"
        commands[name] = [python, "-m", "cutrace", "convert", str(session), "-o", str(target), "-q"]
    return commands


def measured(session: Path, shell: str, rounds: int, against: str | None) -> dict[str, Any]:
    """Convert a session and open the results, in turn."""
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        convert = converters(session, folder, against)
        converted: dict[str, list[dict[str, Any]]] = {version: [] for version in convert}
        for _ in range(rounds):
            for version, command in convert.items():
                converted[version].append(run(command))
        files = {"json": session}
        if session.suffix == ".bin":
            files["json"] = folder / "session.json"
            run([sys.executable, "-m", "cutrace", "convert", str(session), "-o", str(files["json"]), "-q"])
        for version, command in convert.items():
            run([*command, "--no-capture"])
            files[version] = folder / f"{version}.pftrace"
        opened = turns(files, shell, rounds)
        out: dict[str, Any] = {}
        for version, runs in opened.items():
            arguments = int(runs[0]["written"].split()[-1])
            out[version] = {"bytes": files[version].stat().st_size, "arguments": arguments, **figures(runs)}
    for version, runs in converted.items():
        out[version]["conversion"] = figures(runs)
    out["json_to_pftrace"] = round(out["json"]["seconds"] / out["pftrace"]["seconds"], 2)
    return out


def turns(files: dict[str, Path], shell: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Open the files in turn, in each round."""
    opened: dict[str, list[dict[str, Any]]] = {name: [] for name in files}
    for _ in range(rounds):
        for name, file in files.items():
            opened[name].append(run([shell, "query", str(file), _ARGUMENTS]))
    return opened


def empty(folder: Path, shell: str, rounds: int) -> dict[str, Any]:
    """Open JSON and a trace, each with one event."""
    files = {"json": folder / "one.json", "pftrace": folder / "one.pftrace"}
    files["json"].write_text('{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]}')
    cutrace.convert(files["json"], files["pftrace"], capture=False)
    return {name: figures(runs) for name, runs in turns(files, shell, rounds).items()}


def main() -> None:
    parser = options.parser(__doc__, rounds=9, out=None)
    parser.add_argument("session", type=Path, nargs="*", help="a capture, or a file of another tool")
    parser.add_argument("--trace-processor", metavar="SHELL", required=True, help="a trace_processor_shell")
    parser.add_argument("--against", metavar="PYTHON", help="a Python with another version of cutrace")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        chosen = {path.name: path for path in args.session} or sessions(Path(name))
        results = {}
        floor = empty(Path(name), args.trace_processor, args.rounds)
        for session, path in chosen.items():
            results[session] = measured(path, args.trace_processor, args.rounds, args.against)
    version = run([args.trace_processor, "--version"])["written"].split()
    result: dict[str, Any] = {
        "benchmark": "opening",
        "trace_processor": version[1],
        "rounds": args.rounds,
        "empty": floor,
        "sessions": results,
        "targets_met": all(each["json_to_pftrace"] >= TARGET for each in results.values()),
        "hardware": hardware(),
    }
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
