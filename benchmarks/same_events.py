"""Compare the traces of the same captures by two versions, as read by Perfetto's engine.

    python benchmarks/same_events.py --before PYTHON --after PYTHON [--events N] [--out result.json] CAPTURE...

``PYTHON`` is an interpreter with one of the versions. Slices, their arguments, counters and flows are grouped by track
and name. Their numbers, times, durations and values are summed up, and each sum that differs is in the result. With
``--events N``, each capture is first tiled to N rows, as by convert.py. Needs ``trace_processor_shell`` on PATH. Exit
status 1 when a sum differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "workloads"))

import machine
import options

from convert import tile

_TRACK = "coalesce(t.name, '')"
#: The compared sums: the columns of their key, then the summed columns.
QUERIES = {
    "slices": f"""select {_TRACK}, coalesce(s.name, ''), coalesce(s.category, ''), s.depth,
        count(*), sum(s.ts % 1000000007), sum(s.dur)
        from slice s join track t on s.track_id = t.id group by 1, 2, 3, 4""",
    "arguments": f"""select {_TRACK}, coalesce(s.name, ''), a.flat_key, coalesce(a.display_value, ''),
        count(*), sum(s.ts % 1000000007) from slice s join track t on s.track_id = t.id
        join args a on a.arg_set_id = s.arg_set_id group by 1, 2, 3, 4""",
    "counters": f"""select {_TRACK}, count(*), sum(c.ts % 1000000007), sum(c.value)
        from counter c join track t on c.track_id = t.id group by 1""",
    "flows": """select a.name, b.name, count(*), sum(a.ts % 1000000007), sum(b.ts % 1000000007)
        from flow f join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in group by 1, 2""",
    "errors": "select name, value from stats where value <> 0 and severity <> 'info'",
}
_CONVERT = "import sys, cutrace; cutrace.convert(sys.argv[1], sys.argv[2], capture=False)"
#: The largest number of differences of each kind in a result.
_SHOWN = 1000


def sums(trace: Path, query: str) -> Counter[str]:
    """The rows of a query, as lines of CSV."""
    command = ["trace_processor_shell", "query", str(trace), query]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return Counter(done.stdout.splitlines()[1:])


def compare(before: str, after: str, capture: Path, folder: Path) -> dict[str, dict[str, object]]:
    """Return, for each kind, the number of sums and the sums that only one version has."""
    traces = []
    for number, python in enumerate((before, after)):
        trace = folder / f"{number}.pftrace"
        subprocess.run([python, "-c", _CONVERT, str(capture), str(trace)], check=True)
        traces.append(trace)
    compared: dict[str, dict[str, object]] = {}
    for what, query in QUERIES.items():
        old = sums(traces[0], query)
        new = sums(traces[1], query)
        compared[what] = {
            "sums": len(old),
            "before alone": sorted(old - new)[:_SHOWN],
            "after alone": sorted(new - old)[:_SHOWN],
        }
    return compared


def main() -> int:
    parser = options.parser(__doc__, out=None, events=0)
    parser.add_argument("--before", required=True, metavar="PYTHON")
    parser.add_argument("--after", required=True, metavar="PYTHON")
    parser.add_argument("captures", nargs="+", type=Path, metavar="CAPTURE")
    args = parser.parse_args()
    result: dict[str, object] = {"benchmark": "same_events", "machine": machine.facts(), "events": args.events}
    captures: dict[str, object] = {}
    different = False
    for capture in args.captures:
        with tempfile.TemporaryDirectory(prefix="same-events-") as name:
            folder = Path(name)
            source = capture
            if args.events:
                source = folder / "tiled.bin"
                tile(capture, source, args.events)
            compared = compare(args.before, args.after, source, folder)
        captures[capture.name] = compared
        for what, found in compared.items():
            alone = [found["before alone"], found["after alone"]]
            different = different or any(alone)
            numbers = " and ".join(str(len(lines)) for lines in alone)
            print(f"{capture.name}: {what}: {found['sums']} sums, {numbers} of one version alone", flush=True)
    result["captures"] = captures
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
