"""All outputs of captures as strings, so that any change of them is noticed.

``python tests/outputs.py FOLDER`` writes the strings to files, for a comparison of two versions with ``diff -r``.
``python tests/outputs.py --update`` writes the digests that test_outputs.py expects.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from google.protobuf.text_format import MessageToString

import captures
import cutrace
from contents import everything
from cutrace import Trace
from cutrace.analysis.flame import FramesBy
from cutrace.analysis.reports import statistics
from cutrace.conversion import write
from cutrace.exporters.base import Request
from cutrace.runbin import TABLES
from cutrace.slicing import Conditions, cut
from pftrace import packets
from profiled import profiled_capture
from random_captures import random_capture
from sampled import sampled_capture

DATA = Path(__file__).parent / "data"
DIGESTS = DATA / "outputs.json"
#: Captures and traces of real programs.
RECORDED = sorted(path.name for path in DATA.iterdir() if path.name.endswith((".bin", ".json.gz", ".sqlite")))
_PROFILED = (
    ("_Z4axpyv", 2_000, {"dram_bytes.sum": 4096.0, "sm__cycles.avg": 12.5}),
    ("_Z3sumv", 900, {"sm__cycles.avg": 3.0}),
)
#: Captures of this module, with contents that recorded captures lack.
MADE: dict[str, Callable[[Path], Path]] = {
    "awkward": captures.awkward,
    "python_calls": captures.python_calls,
    "replays": captures.replays,
    "training_steps": captures.training_steps,
    "profiled": lambda path: profiled_capture(path, *_PROFILED),
    "sampled": sampled_capture,
    **{f"random {seed}": lambda path, seed=seed: random_capture(path, Random(seed)) for seed in range(4)},
}
NAMES = (*RECORDED, *MADE)
#: Random ids of Perfetto traces and of imports.
_RANDOM = re.compile(r"trace_uuid \{[^}]*\}|import-[0-9a-f]{16}")
_FRACTION = re.compile(r"-?[0-9]+\.[0-9]{6,}(?:e[-+]?[0-9]+)?")


def source(name: str, folder: Path) -> Path:
    """The capture, or the trace of another tool, with this name."""
    if name in RECORDED:
        return DATA / name
    path = folder / f"{name.replace(' ', '-')}.bin"
    MADE[name](path)
    return path


def outputs(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """All nonempty outputs of a capture, by name. For an output with an error, its message."""
    makers = {
        "info": _info,
        "rows": _contents,
        **{f"stats {report}": partial(_report, report=report) for report in statistics()},
        **{f"arrow {table}": partial(_arrow, table=table) for table in TABLES},
        "folded by range": partial(_folded, by="range"),
        "folded by stack": partial(_folded, by="stack"),
        "chrome": _chrome,
        "perfetto": _perfetto,
        "sqlite": _sqlite,
        "redacted": _redacted,
        "slice": _slice,
    }
    with cutrace.load(source(name, folder)) as trace:
        for output, make in makers.items():
            try:
                string = make(trace, folder)
            except cutrace.CutraceError as error:
                string = f"error: {error}"
            string = string.replace(str(folder), "FOLDER").replace(str(DATA), "DATA")
            if string:
                yield output, _RANDOM.sub("", string)


def _info(trace: Trace, folder: Path) -> str:
    return str(cutrace.info(trace))


def _contents(trace: Trace, folder: Path) -> str:
    return "\n".join(sorted(map(repr, everything(trace).items())))


def _report(trace: Trace, folder: Path, report: str) -> str:
    name = ""
    if "name" in statistics()[report].options:
        name = "*"
    return _lines(cutrace.stats(trace, report, name=name).rows)


def _arrow(trace: Trace, folder: Path, table: str) -> str:
    return _lines(trace.arrow(table).to_pylist())


def _folded(trace: Trace, folder: Path, by: FramesBy) -> str:
    write(trace, folder / "out.folded", Request(by=by))
    return (folder / "out.folded").read_text()


def _chrome(trace: Trace, folder: Path) -> str:
    write(trace, folder / "out.json", Request(capture=False))
    return (folder / "out.json").read_text()


def _perfetto(trace: Trace, folder: Path) -> str:
    write(trace, folder / "out.pftrace", Request(capture=False))
    return "\n".join(map(MessageToString, packets(folder / "out.pftrace")))


def _sqlite(trace: Trace, folder: Path) -> str:
    write(trace, folder / "out.sqlite", Request(capture=False))
    with closing(sqlite3.connect(folder / "out.sqlite")) as database:
        return "\n".join(database.iterdump())


def _redacted(trace: Trace, folder: Path) -> str:
    cutrace.redact(trace.sources[0], folder / "redacted.bin")
    return _reloaded(folder / "redacted.bin")


def _slice(trace: Trace, folder: Path) -> str:
    kernels = trace.kernels
    middle = int(np.median(kernels["start"])) if len(kernels) else None
    cut(trace.sources[0], folder / "slice.bin", Conditions(end=middle))
    return _reloaded(folder / "slice.bin")


def _reloaded(path: Path) -> str:
    with cutrace.load(path) as trace:
        return _contents(trace, path.parent)


def digests(name: str, folder: Path) -> dict[str, str]:
    """The digest of each output of a capture."""
    return {output: _digest(string) for output, string in outputs(name, folder)}


def _lines(rows: Iterable[object]) -> str:
    return "\n".join(map(repr, rows))


def _digest(string: str) -> str:
    """The first characters of a hash. The last digits of fractions are ignored, because processors round sums
    differently."""
    string = _FRACTION.sub(lambda match: f"{float(match[0]):.9g}", string)
    string = string.replace(cutrace.__version__, "VERSION")
    return hashlib.sha256(string.encode(errors="surrogatepass")).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--update", action="store_true", help="write the digests anew")
    chosen.add_argument("folder", nargs="?", type=Path, help="write the outputs themselves into a folder")
    arguments = parser.parse_args()
    expected = {}
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            if arguments.update:
                expected[name] = digests(name, Path(folder))
                continue
            for output, string in outputs(name, Path(folder)):
                path = arguments.folder / name / f"{output}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(string, errors="surrogatepass")
    if arguments.update:
        DIGESTS.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
