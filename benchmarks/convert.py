"""Measure the conversion of a capture to a Perfetto trace: its time, its memory, and the size of the trace.

    python benchmarks/convert.py --events 10000000 [--capture tests/data/torch_step.bin] [--out results.json]

Tiles a capture to that many rows. Each copy is later in time and has separate correlation ids and times, because equal
copies would compress better than a recording. Each gap between two moments of the capture is scaled by a random factor
(normal around 1, deviation 5 %, seeded). The factor is the same for all tables, so that nesting is kept. For
comparison, durations of one kernel differ by about 3 % in the captures. All other values repeat, as in a program with a
loop.

Each round converts in a fresh process that is pinned to one core, or to ``--cores``. ``seconds`` is the time of
``import cutrace`` and ``cutrace.convert()`` in it, including reading and writing. ``process_seconds`` adds the start
and end of the interpreter. Both are medians of the rounds, as are ``user_seconds`` and ``system_seconds``, the
processor time in the program and in the kernel. Files are in the page cache, in the folder TMPDIR. A first round is not
counted. A virtual machine may have to ask its host for unused memory, which can take as long as the conversion. This
shows in ``system_seconds``; ``seconds_all`` has every round.

The traces do not contain the capture (``--no-capture``). Only ``with_capture`` measures the default of ``convert``, a
trace that contains the capture. Its ``reopen_seconds`` is the time in which ``cutrace.load()`` opens that trace in a
fresh process. ``records_only`` is the time with ``--no-derived``.

``ratio_to_protobuf`` is the speed divided by the speed of the perfetto package's protobuf classes for the same events.
It is measured on a part of the rows. Prints one JSON line; ``--out`` adds it to the results in a file.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from cutrace.runbin import TABLES, Writer
from workloads import options

ROOT = Path(__file__).resolve().parent.parent

#: Runs in a separate process: converts, then prints the time and the peak memory.
CHILD = """
import json, resource, sys, time
source, destination, compress, derived, capture = sys.argv[1:6]
begin = time.perf_counter()
import cutrace
cutrace.convert(source, destination, compress=compress or None, derived=bool(derived), capture=bool(capture))
seconds = time.perf_counter() - begin
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
usage = resource.getrusage(resource.RUSAGE_SELF)
times = {"seconds": seconds, "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime}
print(json.dumps(times | {"peak_rss_mib": peak / 1024}))
"""

#: The factors of gaps: their deviation, and their bounds.
JITTER, FACTORS = 0.05, (0.75, 1.25)
SEED = 2


def default_capture(folder: Path) -> Path:
    """Return the largest committed capture, or a synthetic one if there is none."""
    captures = sorted((ROOT / "tests" / "data").glob("*.bin"), key=lambda p: p.stat().st_size)
    if captures:
        return captures[-1]
    sys.path.insert(0, str(ROOT / "tests"))
    from captures import training_steps

    return training_steps(folder / "synthetic.bin", steps=200)


def tile(source: Path, target: Path, events: int) -> int:
    """Write copies of a capture, one after the other, until there are ``events`` rows. Returns the number of rows."""
    with cutrace.load(source) as trace:
        timed = [name for name, table in TABLES.items() if table.start_field]
        timeless = [
            name for name, table in TABLES.items() if not table.start_field and name not in ("launches", "functions")
        ]
        parts, total = [], 0
        moments = _moments([trace.table(name) for name in timed])
        share = events / sum(len(trace.table(name)) for name in timed)
        for process in trace.processes:
            rows = {name: _of(trace.table(name), process.index) for name in timed}
            rows = {name: r for name, r in rows.items() if len(r)}
            copies = max(1, round(share))
            part = target.with_suffix(f".{process.index}")
            parts.append(part)
            with Writer(part, pid=process.pid, host=process.host, command=list(process.command)) as writer:
                # Strings keep the ids of the trace, because the writer numbers them in the same order.
                for text in list(trace.strings)[1:]:
                    writer.string(text)
                writer.rows("launches", trace.launches[1:])
                writer.rows("functions", trace.functions[1:])
                for name in timeless:
                    writer.rows(name, _of(trace.table(name), process.index))
                total += _write_copies(writer, rows, copies, moments)
    with target.open("wb") as out:
        for part in parts:
            with part.open("rb") as data:
                while chunk := data.read(1 << 24):
                    out.write(chunk)
            part.unlink()
    return total


def _of(rows: np.ndarray, process: int) -> np.ndarray:
    if "process" not in (rows.dtype.names or ()):
        return rows
    rows = rows[rows["process"] == process].copy()
    rows["process"] = 0
    return rows


def _times(rows: np.ndarray) -> list[str]:
    return [field for field in ("start", "end", "time") if field in (rows.dtype.names or ())]


def _moments(tables: list[np.ndarray]) -> np.ndarray:
    """Return all times of a capture, sorted and unique. The first is 0, the unknown time."""
    times = [rows[field] for rows in tables for field in _times(rows)]
    return np.unique(np.concatenate([np.zeros(1, np.uint64), *times]))


class _Jitter:
    """The moments of successive copies. They are the same for every process of the capture."""

    def __init__(self, moments: np.ndarray) -> None:
        self._random = np.random.default_rng(SEED)
        self._gaps = np.diff(moments[1:], prepend=moments[1] - np.uint64(1000)).astype(np.float64)
        self._next = float(moments[1])

    def copies(self, count: int) -> np.ndarray:
        """Return the moments of ``count`` copies, shape (copies, moments). The unknown moment stays 0."""
        factors = np.clip(self._random.normal(1, JITTER, (count, len(self._gaps))), *FACTORS)
        times = self._next + np.cumsum(factors * self._gaps).reshape(count, -1)
        self._next = float(times[-1, -1])
        return np.hstack([np.zeros((count, 1), np.uint64), times.astype(np.uint64)])


def _write_copies(writer: Writer, rows: dict[str, np.ndarray], copies: int, moments: np.ndarray) -> int:
    """Write copies of all tables. A few copies are written at a time, so that blocks of the tables alternate as in a
    recording."""
    # Calls that were not recorded leave gaps in the ids. Most of them are calls while CUDA starts. A copy repeats the
    # part after the start, so its ids have no gaps.
    with_ids = [r for r in rows.values() if "correlation" in r.dtype.names]
    used = np.unique(np.concatenate([np.zeros(1, np.uint32), *(r["correlation"] for r in with_ids)]))
    for r in with_ids:
        r["correlation"] = np.searchsorted(used, r["correlation"])
    correlations = len(used) - 1
    at_once = max(1, 500_000 // sum(map(len, rows.values())))
    places = {
        name: {field: np.searchsorted(moments, one[field]) for field in _times(one)} for name, one in rows.items()
    }
    jitter = _Jitter(moments)
    total = 0
    for first in range(0, copies, at_once):
        count = min(at_once, copies - first)
        times = jitter.copies(count)
        for name, one in rows.items():
            many = np.tile(one, count)
            number = np.repeat(np.arange(first, first + count, dtype=np.uint64), len(one))
            for field, place in places[name].items():
                many[field] = times[:, place].reshape(-1)
            if "correlation" in many.dtype.names:
                shift = (number * np.uint64(correlations)).astype(np.uint32)
                many["correlation"] += np.where(many["correlation"] > 0, shift, np.uint32(0))
            writer.rows(name, many)
            total += len(many)
    return total


def reopen(trace: Path) -> float:
    """Return the time (s) in which a fresh process opens the capture in a trace and counts the kernels."""
    program = (
        "import sys, time; begin = time.perf_counter(); import cutrace; trace = cutrace.load(sys.argv[1]); "
        "assert trace.count('kernels'); print(time.perf_counter() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(trace)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def convert(
    source: Path,
    destination: Path,
    compress: str = "",
    *,
    derived: bool = True,
    capture: bool = False,
    cores: int = 1,
) -> dict[str, Any]:
    """Convert in a fresh process on ``cores`` cores."""
    used = sorted(os.sched_getaffinity(0))[-cores:]
    # The first conversion writes the bytecode of modules in a checkout. Installed modules already have it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(destination.parent / "compiled")
    begin = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            str(source),
            str(destination),
            compress,
            "1" if derived else "",
            "1" if capture else "",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, used),
    )
    seconds = time.perf_counter() - begin
    result: dict[str, Any] = json.loads(done.stdout)
    result |= {"process_seconds": seconds, "bytes": destination.stat().st_size}
    if capture:
        result["reopen_seconds"] = reopen(destination)
    destination.unlink()
    return result


def through_protobuf(source: Path, target: Path, rows: int) -> float:
    """Return the events per second when the perfetto package's classes make the same packets."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    with cutrace.load(source) as trace:
        tables = [name for name, table in TABLES.items() if table.start_field]
        sizes = {name: trace.count(name) for name in tables}
        share = min(1.0, rows / sum(sizes.values()))
        parts = {name: next(iter(trace.blocks(name)))[: int(sizes[name] * share)] for name in tables if sizes[name]}
        launches = trace.launches
    done = sum(map(len, parts.values()))
    begin = time.perf_counter()
    with target.open("wb") as out:

        def write(packet: Any) -> None:
            trace_of_one = protos.Trace()
            trace_of_one.packet.append(packet)
            out.write(trace_of_one.SerializeToString())

        for table in ("kernels", "memcpys", "memsets"):  # most of the work on a GPU
            for row in parts.get(table, ()):
                packet = protos.TracePacket()
                packet.timestamp = int(row["start"])
                packet.trusted_packet_sequence_id = 2
                packet.sequence_flags = 2
                event = packet.gpu_render_stage_event
                event.event_id = int(row["correlation"])
                event.submission_id = int(row["correlation"])
                event.duration = int(row["end"]) - int(row["start"])
                event.hw_queue_iid = int(row["stream"]) + 1
                event.stage_iid = 1
                event.context = int(row["context"])
                event.name_iid = 1
                if table == "kernels":
                    launch = launches[row["launch"]]
                    event.kernel_iid = int(row["launch"])
                    for dim, what in ((event.launch.grid_size, "grid"), (event.launch.workgroup_size, "block")):
                        dim.x, dim.y, dim.z = (int(launch[f"{what}_{axis}"]) for axis in "xyz")
                else:
                    arg = event.launch.args.add()
                    arg.name_iid = 1
                    arg.uint_value = int(row["bytes"])
                write(packet)
        for table in [name for name in parts if name not in ("kernels", "memcpys", "memsets")]:
            fields = [f for f in parts[table].dtype.names if f not in ("start", "end", "time", "process", "thread")]
            for row in parts[table]:
                slices = "end" in parts[table].dtype.names
                for kind in (1, 2) if slices else (3,):
                    packet = protos.TracePacket()
                    packet.timestamp = int(row["end" if kind == 2 else "start" if slices else "time"])
                    packet.trusted_packet_sequence_id = 3
                    packet.sequence_flags = 2
                    event = packet.track_event
                    event.type = kind
                    if kind != 2:
                        event.category_iids.append(1)
                        event.name_iid = 1
                        for i, name in enumerate(fields):
                            if row[name]:
                                annotation = event.debug_annotations.add()
                                annotation.name_iid = i + 1
                                annotation.uint_value = int(row[name])
                    write(packet)
    return done / (time.perf_counter() - begin)


def hardware(cores: int = 1) -> dict[str, Any]:
    """Return the machine's hardware, without host names."""
    facts = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    model = next((value.strip() for key, _, value in facts if key.strip() == "model name"), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    virtual = any("hypervisor" in value.split() for key, _, value in facts if key.strip() == "flags")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "cores_used": cores,
        "memory_gib": round(memory / (1 << 30), 1),
        "virtual_machine": virtual,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def add_result(path: Path, result: dict[str, Any]) -> None:
    """Add a result to a file of results, replacing an older one of the same capture and size."""
    results = json.loads(path.read_text()) if path.exists() else []
    same = ("benchmark", "capture", "events")

    def other(old: dict[str, Any]) -> bool:
        cores = (r.get("hardware", {}).get("cores_used") for r in (old, result))
        return any(old[key] != result[key] for key in same) or len(set(cores)) > 1

    results = [r for r in results if other(r)] + [result]
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    parser = options.parser(__doc__, events=10_000_000, capture=None, rounds=5, out=None)
    parser.add_argument("--cores", type=int, default=1, help="cores to convert on (1)")
    parser.add_argument("--sample", type=int, default=20_000, help="rows written through protobuf (20000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        capture = args.capture or default_capture(folder)
        source = folder / "tiled.bin"
        events = tile(capture, source, args.events)
        os.sync()  # otherwise the system writes the capture to the disk during the conversion
        plain, carrying, records = [], [], []
        for _ in range(args.rounds + 1):
            plain.append(convert(source, folder / "plain.pftrace", cores=args.cores))
            carrying.append(convert(source, folder / "carrying.pftrace", capture=True, cores=args.cores))
            records.append(convert(source, folder / "records.pftrace", derived=False, cores=args.cores))
        plain, carrying, records = plain[1:], carrying[1:], records[1:]
        packed = convert(source, folder / "packed.pftrace", "zstd", cores=args.cores)
        protobuf = through_protobuf(capture, folder / "protobuf.pftrace", args.sample)

        def median(what: str, rounds: list[dict[str, Any]] = plain) -> float:
            return float(np.median([p[what] for p in rounds]))

        result = {
            "benchmark": "convert",
            "capture": capture.name,
            "events": events,
            "capture_bytes": source.stat().st_size,
            "events_per_second": round(events / median("seconds")),
            "seconds": round(median("seconds"), 3),
            "seconds_all": [round(p["seconds"], 3) for p in plain],
            "process_seconds": round(median("process_seconds"), 3),
            "user_seconds": round(median("user_seconds"), 3),
            "system_seconds": round(median("system_seconds"), 3),
            "with_capture": {
                "events_per_second": round(events / median("seconds", carrying)),
                "user_seconds": round(median("user_seconds", carrying), 3),
                "system_seconds": round(median("system_seconds", carrying), 3),
                "peak_rss_mib": round(max(p["peak_rss_mib"] for p in carrying), 1),
                "bytes_per_event": round(carrying[0]["bytes"] / events, 2),
                "reopen_seconds": round(median("reopen_seconds", carrying), 3),
            },
            "records_only": {
                "events_per_second": round(events / median("seconds", records)),
                "user_seconds": round(median("user_seconds", records), 3),
                "system_seconds": round(median("system_seconds", records), 3),
                "bytes_per_event": round(records[0]["bytes"] / events, 2),
            },
            "peak_rss_mib": round(max(p["peak_rss_mib"] for p in plain), 1),
            "bytes_per_event": round(plain[0]["bytes"] / events, 2),
            "bytes_per_event_compressed": round(packed["bytes"] / events, 2),
            "events_per_second_compressed": round(events / packed["seconds"]),
            "peak_rss_mib_compressed": round(packed["peak_rss_mib"], 1),
            "protobuf_events_per_second": round(protobuf),
            "ratio_to_protobuf": round(events / median("seconds") / protobuf, 1),
            "hardware": hardware(args.cores),
        }
    print(json.dumps(result))
    if args.out:
        add_result(args.out, result)


if __name__ == "__main__":
    main()
