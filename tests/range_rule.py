"""The rule of ranges as a simple loop, for comparison with other implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cutrace import Trace
from cutrace.trace.rows import never_ended

WORK = ("kernels", "memcpys", "memsets", "graph_launches")
WAYS = ("own", "adopted", "several", "none")


@dataclass(frozen=True)
class Range:
    process: int
    thread: int
    start: int
    end: float
    name: str
    domain: str
    style: str = "push/pop"

    @property
    def frame(self) -> str:
        """The name of the range's frame in a flame graph."""
        return f"{self.domain}:{self.name}" if self.domain else self.name


@dataclass(frozen=True)
class Piece:
    """GPU work, with its stream, the thread that launched it, and its relation to ranges."""

    start: int
    end: int
    stream: tuple[int, int, int, int]
    thread: int | None
    how: str
    ranges: tuple[Range, ...]


def ranges_of(trace: Trace) -> list[Range]:
    """The NVTX ranges of a trace. Ranges that never end have an infinite end."""
    unknown = trace.unknown("nvtx_ranges")
    still_open = unknown[never_ended("nvtx_ranges", unknown)]
    found = []
    for rows, endless in ((trace.nvtx_ranges, False), (still_open, True)):
        for row in rows:
            end = float("inf") if endless else int(row["end"])
            name, domain = (trace.strings[int(row[field])] for field in ("name", "domain"))
            style = ("push/pop", "start/end")[row["kind"]]
            found.append(Range(int(row["process"]), int(row["thread"]), int(row["start"]), end, name, domain, style))
    return found


def owner(ranges: list[Range], process: int, thread: int, time: int, by: str = "adopted") -> tuple[str, int]:
    """The relation of a launch to the ranges of one domain, and the thread of these ranges."""
    threads = {r.thread for r in ranges if r.process == process and r.start <= time < r.end}
    if thread in threads:
        return "own", thread
    if by == "own" or not threads:
        return "none", -1
    if len(threads) > 1:
        return "several", -1
    return "adopted", threads.pop()


def owners(
    ranges: list[Range], process: int, thread: int, time: int, by: str = "adopted"
) -> tuple[str, set[tuple[int, str]]]:
    """The closest relation of a launch to ranges of any domain, and the threads and domains of these ranges."""
    ways, nests = {"none"}, set()
    for domain in {r.domain for r in ranges}:
        way, of = owner([r for r in ranges if r.domain == domain], process, thread, time, by)
        ways.add(way)
        if way in ("own", "adopted"):
            nests.add((of, domain))
    return min(ways, key=WAYS.index), nests


def pieces(trace: Trace, by: str = "adopted") -> list[Piece]:
    """The GPU work of a trace with the ranges around its launch."""
    ranges = ranges_of(trace)
    calls: dict[tuple[int, int], tuple[int, int, int]] = {}
    for row in trace.api_calls:
        key = int(row["process"]), int(row["correlation"])
        call = int(row["start"]), -int(row["end"]), int(row["thread"])
        calls[key] = min(calls.get(key, call), call)
    found = []
    for table in WORK:
        for row in trace.table(table):
            process, correlation = int(row["process"]), int(row["correlation"])
            call = calls.get((process, correlation)) if correlation else None
            how, around, thread = "none", (), None
            if call:
                thread = call[2]
                how, nests = owners(ranges, process, thread, call[0], by)
                around = tuple(r for r in ranges if r.process == process and (r.thread, r.domain) in nests)
                around = tuple(r for r in around if r.start <= call[0] < r.end)
            stream = process, *(int(row[field]) for field in ("device", "context", "stream"))
            found.append(Piece(int(row["start"]), int(row["end"]), stream, thread, how, around))
    return found


def time_by_name(work: list[Piece], name_of: Callable[[Range], str]) -> Counter[str]:
    """The GPU time of the ranges of each name. Work in several ranges of a name counts once."""
    times: Counter[str] = Counter()
    for piece in work:
        for name in set(map(name_of, piece.ranges)):
            times[name] += piece.end - piece.start
    return times


def time_by_range(work: list[Piece]) -> Counter[str]:
    """The GPU time of the ranges of each name. Each range counts separately."""
    times: Counter[str] = Counter()
    for piece in work:
        for around in piece.ranges:
            times[around.name] += piece.end - piece.start
    return times
