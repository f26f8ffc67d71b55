"""The values of options, as users write them. Each function returns the value that :class:`.options.Options` holds, and
raises :class:`CutraceError` for a value that it cannot read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CutraceError
from ..units import parse_duration, parse_size
from . import annotate

#: The kinds of activity for ``kinds``, and the records of each kind.
KINDS: dict[str, str] = {
    "default": "the default kinds, from kernel to nvtx in this list",
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "memory fills",
    "api": "calls of the CUDA runtime and driver API",
    "memory": "allocations and releases",
    "pool": "memory pools",
    "overhead": "time taken by CUPTI and the driver's compiler",
    "device": "properties of the GPUs",
    "context": "CUDA contexts",
    "stream": "CUDA streams",
    "name": "names given to CUDA objects",
    "nvtx": "NVTX ranges and marks",
    "sync": "waits of the host and of streams; slows down every CUDA call",
    "event": "CUDA events; slows down every CUDA call",
    "module": "modules and their functions",
    "jit": "compilations at run time",
    "unified_memory": "migrations and faults of unified memory",
    "environment": "clocks, power, temperature",
    "external": "ids of other systems",
}
#: The values of a capture range for users. A capture range opens and closes the windows of a recording.
CAPTURE_RANGES = "profiler (cudaProfilerStart, cudaProfilerStop) or nvtx:NAME (ranges of this name), such as nvtx:step"
#: The prefix of a capture range that is an NVTX range.
OF_NVTX = "nvtx:"

_MOST = (8000 << 40) - 1
_MS = 10**6
_LONGEST = 365 * 24 * 3600 * 10**9
# The default of cutrace. CUPTI 13.0 would choose 2048 on an H200, and decoding the samples would take longer than the
# program.
_PERIOD = 1 << 15
_PERIODS = [1 << power for power in range(5, 32)]
_MOST_ANNOTATED = 64
# The kinds of API calls with Python stacks. For launches, a recording can take the stack of one call in N.
_STACKS = ("sync", "alloc", "copy", "launch")
_LARGEST = 2**32 - 1


def kinds(given: str | Sequence[str]) -> tuple[str, ...]:
    """Kinds of activity, as a list or separated by commas."""
    words = given.split(",") if isinstance(given, str) else given
    names = [word.strip() for word in words]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise CutraceError(
            f"unknown kind of activity: {', '.join(map(repr, unknown))}; choose from {', '.join(KINDS)}"
        )
    if not names:
        raise CutraceError(
            f"no kind of activity is named: choose from {', '.join(KINDS)}"
        )
    return tuple(dict.fromkeys(names))


def annotated(given: str | Sequence[str]) -> tuple[str, ...]:
    """Names of Python functions, one or several."""
    if isinstance(given, str):
        given = [given]
    names = tuple(dict.fromkeys(given))
    for name in names:
        problem = annotate.problem_of(name)
        if problem:
            raise CutraceError(problem)
    if len(names) > _MOST_ANNOTATED:
        raise CutraceError(
            f"{len(names)} names to annotate are too many: give up to {_MOST_ANNOTATED}, or patterns"
        )
    return names


def stacks(given: str | Sequence[str]) -> tuple[str, ...]:
    """The kinds of calls with stacks, as a list or separated by commas, in the collector's order and notation."""
    words = given.split(",") if isinstance(given, str) else given
    chosen: dict[str, str] = {}
    for word in words:
        kind, colon, share = word.strip().partition(":")
        if kind not in _STACKS:
            raise CutraceError(
                f"calls of the kind {kind!r} have no stacks: choose from {', '.join(_STACKS)}, "
                "and launch:1/N for one launch in N"
            )
        chosen[kind] = kind
        one_in = 1
        if colon:
            one_in = _one_in(kind, share)
        if one_in > 1:
            chosen[kind] = f"{kind}:{one_in}"
    if not chosen:
        raise CutraceError(
            f"no kind of call with stacks is named: choose from {', '.join(_STACKS)}"
        )
    return tuple(chosen[kind] for kind in _STACKS if kind in chosen)


def _one_in(kind: str, share: str) -> int:
    """The number N of ``1/N``."""
    if kind != "launch":
        raise CutraceError(
            f"{kind}:{share} is not possible: only launches can have a stack in one of N calls"
        )
    one, _, number = share.partition("/")
    is_share = one == "1" and number.isascii() and number.isdecimal()
    count = int(number) if is_share else 0
    if not 1 <= count <= _LARGEST:
        raise CutraceError(
            f"launch:{share} is not a share of the launches: write launch:1/N, such as launch:1/100"
        )
    return count


@dataclass(frozen=True)
class _Within:
    """A parser of a number, a time or a size from ``least`` to ``most``. ``refusal`` is the message about another
    value. The result is in units of ``unit``."""

    refusal: str
    parse: Callable[[Any], int]
    least: int
    most: int
    unit: int = 1

    def __call__(self, given: Any) -> int:
        value = self.parse(given)
        if not self.least <= value <= self.most:
            raise CutraceError(self.refusal.format(given))
        return value // self.unit


#: The least time (ns) of calls with stacks.
stacks_min = _Within(
    "the least time of calls with stacks cannot be {}: give 1ns or more, such as 20us",
    parse_duration,
    1,
    _LONGEST,
)
#: The time (ns) between two samples.
interval = _Within(
    "samples cannot be {} apart: give 1us or more, up to 1s, such as 100us",
    parse_duration,
    1_000,
    10**9,
)
#: The time (ms) whose rows a recording keeps.
time_to_keep = _Within(
    "the time to keep cannot be {}: give 1ms or more, up to a year, such as 30s",
    parse_duration,
    _MS,
    _LONGEST,
    _MS,
)
#: The least time (ms) between two dumps.
dump_pause = _Within(
    "the pause between dumps cannot be {}: give 1ms or more, up to a year, such as 30s",
    parse_duration,
    _MS,
    _LONGEST,
    _MS,
)
#: The number of dumps of a condition.
dump_limit = _Within(
    f"the limit of dumps cannot be {{}}: give 1 or more, up to {_LARGEST}",
    int,
    1,
    _LARGEST,
)
#: The time (ms) between flushes.
flush_ms = _Within(
    "the time between flushes cannot be {} ms: give 1 or more, such as 100",
    int,
    1,
    _LARGEST,
)
#: The limit (bytes) of the collector's memory, which has to hold the first buffers and blocks of a recording.
max_memory = _Within(
    "the limit of memory cannot be {}: give 1 MiB or more, up to 8000 TiB",
    parse_size,
    1 << 20,
    _MOST,
)
#: The limit (bytes) of a file.
max_size = _Within(
    "the limit of size cannot be {}: give 64 KiB or more, up to 8000 TiB",
    parse_size,
    1 << 16,
    _MOST,
)


def capture_range(given: str) -> str:
    """The capture range, which opens windows: ``profiler``, ``nvtx:NAME`` or ``none``."""
    if given in ("profiler", "none"):
        return given
    if not given.startswith(OF_NVTX):
        raise CutraceError(
            f"the capture range {given!r} is unknown: write {CAPTURE_RANGES}"
        )
    name = given.removeprefix(OF_NVTX).strip()
    if not name:
        raise CutraceError(
            f"the capture range {given!r} names no range: write {CAPTURE_RANGES}"
        )
    if ";" in name or "\n" in name:
        raise CutraceError(
            f"the capture range {given!r} has a semicolon or a line break: write ? in its place"
        )
    return f"{OF_NVTX}{name}"


def capture_range_end(given: str) -> str:
    """The number of windows: ``stop``, ``repeat`` or ``repeat:N``."""
    if not re.fullmatch(r"stop|repeat(:0*[1-9][0-9]{0,17})?", given):
        raise CutraceError(
            f"the end of capture ranges {given!r} is unknown: write stop, repeat or repeat:N"
        )
    return given


def conditions(given: str | Sequence[str]) -> tuple[str, ...]:
    """The conditions of dumps, one or several."""
    from .._native import is_condition

    listed = [given] if isinstance(given, str) else given
    found = tuple(dict.fromkeys(condition.strip() for condition in listed))
    for condition in found:
        if not is_condition(condition) or ";" in condition or "\n" in condition:
            raise CutraceError(_unreadable(condition))
    return found


def _unreadable(condition: str) -> str:
    from difflib import get_close_matches

    forms = {
        "nvtx": "nvtx:NAME > 1.5s",
        "gpu idle": "gpu idle > 500ms",
        "memory": "memory > 70GiB",
    }
    subject = re.split("[:>]", condition.lower())[0].strip()
    close = get_close_matches(subject, forms, 1)
    meant = f" Did you mean {forms[close[0]]}?" if close and close[0] != subject else ""
    return (
        f"the dump condition {condition!r} cannot be read.{meant} Write nvtx:NAME > 1.5s, nvtx:NAME > 3x median, "
        "gpu idle > 500ms or memory > 70GiB, without semicolons; times are 1ns to a year, sizes up to 8000TiB."
    )


def sample(given: str | Sequence[str]) -> str | None:
    """The samples to take: ``metrics``, ``metrics=SET|NAME,...``, or ``pc=CYCLES`` with the number of cycles filled
    in."""
    listed = [given] if isinstance(given, str) else given
    if len(listed) > 1:
        raise CutraceError(
            "CUPTI cannot sample metrics and program counters together: give `sample=` once"
        )
    if not listed:
        return None
    what, equals, chosen = listed[0].partition("=")
    if what not in ("metrics", "pc") or (equals and not chosen):
        raise CutraceError(
            f"{listed[0]!r} cannot be sampled: write metrics, metrics=NAME,... for metrics of your choice, or pc"
        )
    if what == "metrics":
        return listed[0]
    if not equals:
        return f"pc={_PERIOD}"
    cycles = int(chosen) if chosen.isdecimal() else 0
    if cycles not in _PERIODS:
        raise CutraceError(
            f"program counters cannot be sampled every {chosen} cycles: give 32, 64, 128, ... 2147483648"
        )
    return f"pc={cycles}"
