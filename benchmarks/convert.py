"""How fast a capture becomes a Perfetto trace, how much memory that takes, and how large the trace is.

    python benchmarks/convert.py --events 10000000 [--capture tests/data/torch.bin]

Tiles a capture to that many rows (each copy later in time, with correlation ids of its own), converts it in a fresh
process pinned to one core, and prints one JSON line. The same events are also written through the protobuf classes of
the perfetto package, on a part of the rows, which is what ``ratio_to_protobuf`` compares with.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent

#: Runs in a process of its own: convert, then say how long it took and how much memory it had at most.
CHILD = """
import sys, time, json
source, destination, compress = sys.argv[1:4]
import cutrace
begin = time.perf_counter()
cutrace.convert(source, destination, compress=compress or None)
seconds = time.perf_counter() - begin
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "peak_rss_mib": peak / 1024}))
"""


def default_capture(folder: Path) -> Path:
    """The largest committed capture, or one made by hand where there is none."""
    captures = sorted((ROOT / "tests" / "data").glob("*.bin"), key=lambda p: p.stat().st_size)
    if captures:
        return captures[-1]
    sys.path.insert(0, str(ROOT / "tests"))
    from captures import training_steps

    return training_steps(folder / "synthetic.bin", steps=200)


def tile(source: Path, target: Path, events: int) -> int:
    """Write copies of a capture one after the other until there are ``events`` rows; the number of rows."""
    with cutrace.load(source) as trace:
        timed = [name for name, table in TABLES.items() if table.start_field]
        timeless = [
            name for name, table in TABLES.items() if not table.start_field and name not in ("launches", "functions")
        ]
        period = trace.end - trace.start + 1_000
        parts, total = [], 0
        share = events / sum(len(trace.table(name)) for name in timed)
        for process in trace.processes:
            rows = {name: _of(trace.table(name), process.index) for name in timed}
            rows = {name: r for name, r in rows.items() if len(r)}
            copies = max(1, round(share))
            part = target.with_suffix(f".{process.index}")
            parts.append(part)
            with Writer(part, pid=process.pid, host=process.host, command=list(process.command)) as writer:
                # Texts get the ids they have in the trace, since it numbers them the same way.
                for text in list(trace.strings)[1:]:
                    writer.string(text)
                writer.rows("launches", trace.launches[1:])
                writer.rows("functions", trace.functions[1:])
                for name in timeless:
                    writer.rows(name, _of(trace.table(name), process.index))
                total += _write_copies(writer, rows, copies, period)
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


def _write_copies(writer: Writer, rows: dict[str, np.ndarray], copies: int, period: int) -> int:
    """Copies of all tables, some at a time, so that blocks of the tables alternate as in a recording."""
    # Calls that were not recorded, most of them while CUDA starts, leave gaps in the ids; a copy repeats what follows
    # the start, so its ids are numbered without them.
    with_ids = [r for r in rows.values() if "correlation" in r.dtype.names]
    used = np.unique(np.concatenate([np.zeros(1, np.uint32), *(r["correlation"] for r in with_ids)]))
    for r in with_ids:
        r["correlation"] = np.searchsorted(used, r["correlation"])
    correlations = len(used) - 1
    at_once = max(1, 500_000 // sum(map(len, rows.values())))
    total = 0
    for first in range(0, copies, at_once):
        count = min(at_once, copies - first)
        for name, one in rows.items():
            many = np.tile(one, count)
            number = np.repeat(np.arange(first, first + count, dtype=np.uint64), len(one))
            for field in ("start", "end", "time"):
                if field in many.dtype.names:
                    many[field] += np.where(many[field] > 0, number * np.uint64(period), np.uint64(0))
            if "correlation" in many.dtype.names:
                shift = (number * np.uint64(correlations)).astype(np.uint32)
                many["correlation"] += np.where(many["correlation"] > 0, shift, np.uint32(0))
            writer.rows(name, many)
            total += len(many)
    return total


def convert(source: Path, destination: Path, compress: str = "") -> dict[str, Any]:
    """Convert in a fresh process on one core."""
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(destination), compress],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    result: dict[str, Any] = json.loads(done.stdout)
    result["bytes"] = destination.stat().st_size
    destination.unlink()
    return result


def through_protobuf(source: Path, target: Path, rows: int) -> float:
    """Events a second when the packets of the same events are made with the perfetto package's classes."""
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


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="rows to convert (10000000)")
    parser.add_argument("--capture", type=Path, help="the capture to tile (the largest of tests/data)")
    parser.add_argument("--rounds", type=int, default=3, help="conversions, of which the median counts (3)")
    parser.add_argument("--sample", type=int, default=20_000, help="rows written through protobuf (20000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cutrace.") as name:
        folder = Path(name)
        capture = args.capture or default_capture(folder)
        source = folder / "tiled.bin"
        events = tile(capture, source, args.events)
        plain = [convert(source, folder / "plain.pftrace") for _ in range(args.rounds)]
        packed = convert(source, folder / "packed.pftrace", "zstd")
        protobuf = through_protobuf(capture, folder / "protobuf.pftrace", args.sample)
        seconds = float(np.median([p["seconds"] for p in plain]))
        result = {
            "benchmark": "convert",
            "capture": capture.name,
            "events": events,
            "capture_bytes": source.stat().st_size,
            "events_per_second": round(events / seconds),
            "seconds": round(seconds, 3),
            "seconds_all": [round(p["seconds"], 3) for p in plain],
            "peak_rss_mib": round(max(p["peak_rss_mib"] for p in plain), 1),
            "bytes_per_event": round(plain[0]["bytes"] / events, 2),
            "bytes_per_event_compressed": round(packed["bytes"] / events, 2),
            "events_per_second_compressed": round(events / packed["seconds"]),
            "peak_rss_mib_compressed": round(packed["peak_rss_mib"], 1),
            "protobuf_events_per_second": round(protobuf),
            "ratio_to_protobuf": round(events / seconds / protobuf, 1),
            "processor": processor(),
            "cores_used": 1,
            "python": platform.python_version(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
