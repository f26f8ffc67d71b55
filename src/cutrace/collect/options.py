"""The options of a recording, and their text form for the collector."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..errors import CutraceError
from ..outputs import mode_of_new_files
from ..units import format_size, parse_duration, parse_size
from . import annotate

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Kinds of activity that ``kinds`` may name, with what each records.
KINDS: dict[str, str] = {
    "default": "the default kinds: those from kernel to nvtx",
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
# Room for the first buffers and blocks of a recording.
_LEAST_MEMORY = 1 << 20
_LEAST_SIZE = 1 << 16
_TOO_MUCH = 8000 << 40
# The newest rows are in files of an eighth of this size, and each file begins with blocks that all files repeat.
_LEAST_ROTATED = 16 << 20
# The default size limit of the newest rows, so that they do not fill the disk.
_NEWEST_SIZE = 4 << 30
_LONGEST = 365 * 24 * 3600 * 10**9
# The kinds of activity that a condition needs, by its first word.
_NEEDED = {"nvtx": ("nvtx",), "gpu": ("kernel", "api"), "memory": ("memory",)}
_MS = 10**6
# CUPTI 13.0 chooses 2048 on an H200, and needs longer than the program to decode so many samples.
_PERIOD = 1 << 15
_PERIODS = [1 << power for power in range(5, 32)]
_MOST_ANNOTATED = 64
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 1_000, 10**9
# The kinds of API calls with Python stacks. Of launches, one in so many can have one.
_STACKS = ("sync", "alloc", "copy", "launch")
_FEWEST_STACKS = 2**32 - 1
#: What opens and closes the windows of a recording, as users write it.
CAPTURE_RANGES = "profiler (cudaProfilerStart, cudaProfilerStop) or nvtx:NAME (ranges of this name), such as nvtx:step"
_OF_NVTX = "nvtx:"
API_MODES = ("launch", "all", "none")
GRAPH_MODES = ("node", "graph")


class OptionArguments(TypedDict, total=False):
    """The keyword arguments of :func:`cutrace.record` and :func:`cutrace.arm`; see :class:`Options`."""

    kinds: str | tuple[str, ...] | list[str] | None
    api: Literal["launch", "all", "none"]
    cuda_graph: Literal["node", "graph"]
    nvtx: bool
    annotate: str | Sequence[str]
    stacks: str | Sequence[str] | None
    stacks_min: int | str | None
    capture_range: str | None
    capture_range_end: str | None
    max_memory: int | str | None
    max_size: int | str | None
    last: int | str | None
    rotate: bool
    dump_when: str | tuple[str, ...] | list[str]
    dump_limit: int | None
    dump_pause: int | str | None
    flush_ms: int | None
    redact: bool
    share: bool
    code: bool
    cupti: str | None
    sample: str | None
    interval: int | str


@dataclass(frozen=True)
class Options:
    """The options of a capture. None leaves an option to the recorded process: to `cutrace arm` or the collector.

    :param kinds: names from :data:`KINDS`.
    :param api: ``launch``, the default, records calls that launch, copy, set, synchronise, allocate or load; ``all``
        records every call, ``none`` no call.
    :param cuda_graph: ``node``, the default, records each node of a replayed CUDA graph; ``graph`` records one row a
        replay, which costs less.
    :param nvtx: record NVTX, as by default.
    :param annotate: functions of Python programs that get NVTX ranges, by name: see docs/annotate.md.
    :param stacks: kinds of API calls whose Python stacks are recorded, in the notation of the collector: ``sync``,
        ``alloc``, ``copy``, ``launch``, and ``launch:N`` for one launch in N; see docs/stacks.md.
    :param stacks_min_ns: record the stacks of calls that take at least this many nanoseconds.
    :param capture_range: record only windows that the program opens and closes: ``profiler`` for cudaProfilerStart()
        and cudaProfilerStop(), ``nvtx:NAME`` for NVTX ranges; ``none`` takes back that of `cutrace arm`. docs/cli.md
        describes them.
    :param capture_range_end: ``repeat``, the default, records all windows, ``repeat:N`` the first N, ``stop`` one.
    :param max_memory: bytes of host memory that the collector may use; records that do not fit are counted as lost.
    :param max_size: bytes that a process may write; later rows are counted as lost.
    :param last_ms: keep only the rows of this many milliseconds before the end, and before each dump (up to an eighth
        more); older rows are dropped and counted.
    :param rotate: at ``max_size`` drop and count the oldest rows, not the new ones.
    :param dump_when: conditions on which a process dumps its newest rows by itself: ``nvtx:NAME > 1.5s``,
        ``nvtx:NAME > 3x median``, ``gpu idle > 500ms``, ``memory > 70GiB``; see docs/triggers.md.
    :param dump_limit: dumps of each condition, 5 by default.
    :param dump_pause_ms: least milliseconds between two dumps of one condition, 30 s by default.
    :param flush_ms: milliseconds between flushes of complete records.
    :param redact: leave out command lines, host names and paths: see docs/privacy.md.
    :param share: share CUPTI with other tools, where CUPTI and the driver can: see docs/collector.md.
    :param code: record the hash of the machine code of each launched kernel, its registers, memory and size.
    :param cupti: path of the libcupti to load where the program has loaded none.
    :param sample: sample hardware counters of the GPUs: ``SET|NAME,...``, "" for the default set, None for none.
    :param interval_ns: nanoseconds between two samples.
    :param sample_pc: sample program counters, each multiprocessor once in so many cycles; None for no samples.
    """

    kinds: tuple[str, ...] | None = None
    api: str | None = None
    cuda_graph: str | None = None
    nvtx: bool | None = None
    annotate: tuple[str, ...] = ()
    stacks: tuple[str, ...] | None = None
    stacks_min_ns: int | None = None
    capture_range: str | None = None
    capture_range_end: str | None = None
    max_memory: int | None = None
    max_size: int | None = None
    last_ms: int | None = None
    rotate: bool = False
    dump_when: tuple[str, ...] = ()
    dump_limit: int | None = None
    dump_pause_ms: int | None = None
    flush_ms: int | None = None
    redact: bool = False
    share: bool = False
    code: bool = False
    cupti: str | None = None
    sample: str | None = None
    interval_ns: int = 1_000_000
    sample_pc: int | None = None

    @classmethod
    def of(cls, **given: Unpack[OptionArguments]) -> Options:
        """Parse the options of users: sizes such as ``"512MiB"``, kinds as a list or separated by commas, ``stacks`` as
        a list or as ``"sync,launch:1/100"``, ``last``, ``dump_pause`` and ``stacks_min`` in seconds or as ``"30s"``,
        ``dump_when`` as one condition or several, ``sample`` as ``"metrics"``, ``"metrics=SET|NAME,..."``, ``"pc"`` or
        ``"pc=CYCLES"``, and ``interval`` as ``"100us"``. With ``last``, the default of ``max_size`` is 4 GiB.

        Raises :class:`CutraceError` for an invalid value.
        """
        fields: dict[str, Any] = {**given}
        last, interval, pause = (fields.pop(name, None) for name in ("last", "interval", "dump_pause"))
        stacks = _stacks(fields.pop("stacks", None))
        stacks_min = fields.pop("stacks_min", None)
        options = cls(
            **fields,
            stacks=stacks,
            stacks_min_ns=_stacks_min(stacks_min, stacks),
            last_ms=None if last is None else _milliseconds("time to keep", last),
            dump_pause_ms=None if pause is None else _milliseconds("pause between dumps", pause),
        )
        if interval is not None:
            options = replace(options, interval_ns=_interval(interval, options.sample))
        if options.sample is not None:
            options = _sampled(options, options.sample)
        for name, modes in (("api", API_MODES), ("cuda_graph", GRAPH_MODES)):
            if getattr(options, name) not in (None, *modes):
                raise CutraceError(f"{name}={getattr(options, name)!r} is unknown: choose one of {', '.join(modes)}")
        options = replace(options, kinds=_kinds(options.kinds), annotate=_annotated(options.annotate))
        if options.annotate and not (options.records_nvtx and {"nvtx", "default"} & set(options.kinds or ("default",))):
            raise CutraceError("annotated functions are NVTX ranges: record NVTX too")
        if options.code and not {"kernel", "default"} & set(options.kinds or ("default",)):
            raise CutraceError("the machine code is that of recorded kernels: record the kind of activity 'kernel' too")
        options = replace(options, capture_range=_capture_range(options), capture_range_end=_capture_range_end(options))
        size = _size("size", options.max_size, _LEAST_SIZE)
        if options.rotate and size is None and last is None:
            raise CutraceError("rotate needs a maximum size: give one, such as 1GiB")
        if options.keeps_newest and size is not None and size < _LEAST_ROTATED:
            raise CutraceError(
                f"this size is too small for the newest rows: give {format_size(_LEAST_ROTATED)} or more"
            )
        return replace(
            options,
            dump_when=_conditions(options),
            max_memory=_size("memory", options.max_memory, _LEAST_MEMORY),
            max_size=_NEWEST_SIZE if size is None and last is not None else size,
            cupti=None if options.cupti is None else os.fspath(options.cupti),
        )

    @property
    def records_nvtx(self) -> bool:
        """Whether the recording has NVTX, unless its kinds leave it out."""
        return self.nvtx is not False

    @property
    def records_windows(self) -> bool:
        """Whether the recording has only windows that the program opens. False when `cutrace arm` decides."""
        return self.capture_range not in (None, "none")

    @property
    def never_opened(self) -> str:
        """The reason why nothing was recorded, if there is a capture range."""
        return f"the capture range {self.capture_range!r} never opened"

    @property
    def keeps_newest(self) -> bool:
        """Whether the recording drops older rows. Only such a recording can be dumped."""
        return self.rotate or self.last_ms is not None

    def text(
        self,
        *,
        directory: os.PathLike[str] | str | None = None,
        output: os.PathLike[str] | str | None = None,
        dump: os.PathLike[str] | str | None = None,
        annotator: bool = True,
    ) -> str:
        """The text that the collector parses, one ``key=value`` a line.

        ``directory`` is where each process writes its own file, ``output`` the file of one process. With neither, the
        process waits for somebody to attach. On SIGUSR2, a process that keeps its newest rows writes them to
        ``run-1.bin``, ``run-2.bin``, ... for ``dump`` ``run.bin``. With ``annotator`` the collector hooks into Python
        for ``annotate``; without, the caller does.
        """
        if directory is not None and output is not None:
            raise ValueError("give one of directory and output")
        paths = {"directory": directory, "output": output, "dump": dump if self.keeps_newest else None}
        folder = directory if output is None else Path(output).parent
        # The collector publishes dumps itself; all other files are published when they are complete.
        publishes = folder is not None and paths["dump"] is not None
        values: dict[str, object] = {
            "file_mode": f"{mode_of_new_files(Path(folder)):o}" if folder is not None and publishes else None,
            **{name: Path(path).absolute() for name, path in paths.items() if path is not None},
            "kinds": None if self.kinds is None else ",".join(self.kinds),
            "api": self.api,
            "graph": self.cuda_graph,
            "nvtx": None if self.nvtx is None else int(self.nvtx),
            "annotate": ",".join(self.annotate) or None,
            "annotator": Path(annotate.__file__).absolute() if annotator and self.annotate else None,
            "stacks": None if self.stacks is None else ",".join(self.stacks),
            "stacks_min_ns": self.stacks_min_ns,
            "capture_range": self.capture_range,
            "capture_range_end": self.capture_range_end,
            **{name: getattr(self, name) for name in ("max_memory", "max_size", "last_ms", "flush_ms", "cupti")},
            **{name: 1 for name in ("rotate", "redact", "share", "code") if getattr(self, name)},
            "sample": None if self.sample_pc is None else f"pc={self.sample_pc}",
            **{name: getattr(self, name) for name in ("dump_limit", "dump_pause_ms")},
            "standby": 1 if directory is None and output is None else None,
        }
        lines = [f"{key}={value}" for key, value in values.items() if value is not None]
        lines += [f"dump_when={condition}" for condition in self.dump_when]
        for line in lines:
            # The collector splits its options at both.
            if "\n" in line or ";" in line:
                raise CutraceError(
                    f"the path {line.partition('=')[2]!r} contains a semicolon or a line break: choose another path"
                )
        return "\n".join(lines)


def _size(name: str, given: int | str | None, least: int) -> int | None:
    if given is None:
        return None
    size = parse_size(given)
    if not least <= size < _TOO_MUCH:
        raise CutraceError(f"the limit of {name} cannot be {given}: give {format_size(least)} or more, up to 8000 TiB")
    return size


def _milliseconds(what: str, time: int | str) -> int:
    span = parse_duration(time)
    if not _MS <= span <= _LONGEST:
        raise CutraceError(f"the {what} cannot be {time}: give 1ms or more, up to a year, such as 30s")
    return span // _MS


def _capture_range(options: Options) -> str | None:
    """The capture range. Raises :class:`CutraceError` when it is unknown, or does not go with the other options."""
    given = options.capture_range
    if given is None or given == "none":
        return given
    name = given.removeprefix(_OF_NVTX).strip()
    of_nvtx = given.startswith(_OF_NVTX)
    if not of_nvtx and given != "profiler":
        raise CutraceError(f"the capture range {given!r} is unknown: write {CAPTURE_RANGES}")
    if not name:
        raise CutraceError(f"the capture range {given!r} names no range: write {CAPTURE_RANGES}")
    if ";" in name or "\n" in name:
        raise CutraceError(f"the capture range {given!r} has a semicolon or a line break: write ? in its place")
    if of_nvtx and not (options.records_nvtx and {"nvtx", "default"} & set(options.kinds or ("default",))):
        raise CutraceError(f"the capture range {given!r} needs NVTX: record it too")
    if options.keeps_newest:
        raise CutraceError("a recording of capture ranges cannot keep the newest rows: leave out last and rotate")
    if options.sample is not None or options.sample_pc is not None:
        raise CutraceError("a recording of capture ranges cannot sample: leave out one of them")
    return f"{_OF_NVTX}{name}" if of_nvtx else given


def _capture_range_end(options: Options) -> str | None:
    given = options.capture_range_end
    if given is None:
        return None
    if not re.fullmatch(r"stop|repeat(:0*[1-9][0-9]{0,17})?", given):
        raise CutraceError(f"the end of capture ranges {given!r} is unknown: write stop, repeat or repeat:N")
    if options.capture_range is None:
        raise CutraceError(f"the end of capture ranges needs a capture range: write {CAPTURE_RANGES}")
    return given


def _conditions(options: Options) -> tuple[str, ...]:
    """The conditions for dumps. Raises :class:`CutraceError` for those that cannot be read or cannot become true."""
    from .._native import is_condition

    given = (options.dump_when,) if isinstance(options.dump_when, str) else options.dump_when
    conditions = tuple(dict.fromkeys(condition.strip() for condition in given))
    for name in ("dump_limit", "dump_pause_ms"):
        if getattr(options, name) is not None and not conditions:
            raise CutraceError("a limit or a pause of dumps needs a condition for dumps, such as 'gpu idle > 500ms'")
    if options.dump_limit is not None and options.dump_limit < 1:
        raise CutraceError(f"the limit of dumps cannot be {options.dump_limit}: give 1 or more")
    if conditions and not options.keeps_newest:
        raise CutraceError(
            'only a recording of the newest rows is dumped: say how much it keeps, such as --last 30s (last="30s")'
        )
    off = [] if options.records_nvtx else ["nvtx"]
    off += ["api"] if options.api == "none" else []
    for condition in conditions:
        if not is_condition(condition) or ";" in condition or "\n" in condition:
            raise CutraceError(_unreadable(condition))
        for kind in _NEEDED[re.split("[: \t>]", condition)[0]]:
            if kind in off or not {kind, "default"} & set(options.kinds or ("default",)):
                raise CutraceError(
                    f"the dump condition {condition!r} needs the kind of activity {kind!r}: record it too"
                )
    return conditions


def _unreadable(condition: str) -> str:
    from difflib import get_close_matches

    forms = {"nvtx": "nvtx:NAME > 1.5s", "gpu idle": "gpu idle > 500ms", "memory": "memory > 70GiB"}
    words = re.split("[:>]", condition.lower())[0].strip()
    close = get_close_matches(words, forms, 1)
    meant = f" Did you mean {forms[close[0]]}?" if close and close[0] != words else ""
    return (
        f"the dump condition {condition!r} cannot be read.{meant} Write nvtx:NAME > 1.5s, nvtx:NAME > 3x median, "
        "gpu idle > 500ms or memory > 70GiB, without semicolons; times are 1ns to a year, sizes up to 8000TiB."
    )


def _sampled(options: Options, sample: str) -> Options:
    """The options with what is to be sampled, as users write it."""
    what, equals, given = sample.partition("=")
    if what not in ("metrics", "pc") or (equals and not given):
        raise CutraceError(
            f"{sample!r} cannot be sampled: write metrics, metrics=NAME,... for metrics of your choice, or pc"
        )
    if what == "pc":
        cycles = int(given) if given.isdecimal() else 0 if equals else _PERIOD
        if cycles not in _PERIODS:
            raise CutraceError(
                f"program counters cannot be sampled every {given} cycles: give 32, 64, 128, ... 2147483648"
            )
        return replace(options, sample=None, sample_pc=cycles)
    if options.keeps_newest:
        raise CutraceError("a recording of the newest rows cannot hold samples of metrics: leave out one of the two")
    return replace(options, sample=given)


def _interval(interval: int | str, sample: str | None) -> int:
    ns = parse_duration(interval)
    if sample is None or not sample.startswith("metrics"):
        raise CutraceError("an interval needs samples of metrics: say what to sample, such as metrics")
    if not _SHORTEST_INTERVAL <= ns <= _LONGEST_INTERVAL:
        raise CutraceError(f"samples cannot be {interval} apart: give 1us or more, up to 1s, such as 100us")
    return ns


def _annotated(names: str | Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    for problem in filter(None, map(annotate.problem_of, names)):
        raise CutraceError(problem)
    if len(names) > _MOST_ANNOTATED:
        raise CutraceError(f"{len(names)} names to annotate are too many: give up to {_MOST_ANNOTATED}, or patterns")
    return names


def _stacks(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The kinds of calls with stacks, in the collector's order and notation."""
    if given is None:
        return None
    chosen: dict[str, str] = {}
    for word in given.split(",") if isinstance(given, str) else given:
        kind, colon, share = word.strip().partition(":")
        if kind not in _STACKS:
            raise CutraceError(
                f"calls of the kind {kind!r} have no stacks: choose from {', '.join(_STACKS)}, "
                "and launch:1/N for one launch in N"
            )
        one_in = _one_in(kind, share) if colon else 1
        chosen[kind] = kind if one_in == 1 else f"{kind}:{one_in}"
    if not chosen:
        raise CutraceError(f"no kind of call with stacks is named: choose from {', '.join(_STACKS)}")
    return tuple(chosen[kind] for kind in _STACKS if kind in chosen)


def _one_in(kind: str, share: str) -> int:
    """The number N of ``1/N``."""
    if kind != "launch":
        raise CutraceError(f"{kind}:{share} is not possible: only launches can have a stack in one of N calls")
    one, _, number = share.partition("/")
    count = int(number) if one == "1" and number.isascii() and number.isdecimal() else 0
    if not 1 <= count <= _FEWEST_STACKS:
        raise CutraceError(f"launch:{share} says no share of the launches: write launch:1/N, such as launch:1/100")
    return count


def _stacks_min(time: int | str | None, stacks: tuple[str, ...] | None) -> int | None:
    if time is None:
        return None
    if stacks is None:
        raise CutraceError("a least time of calls with stacks needs stacks: say of which calls, such as sync")
    ns = parse_duration(time)
    if not 1 <= ns <= _LONGEST:
        raise CutraceError(f"the least time of calls with stacks cannot be {time}: give 1ns or more, such as 20us")
    return ns


def _kinds(kinds: str | tuple[str, ...] | list[str] | None) -> tuple[str, ...] | None:
    if kinds is None:
        return None
    names = [name.strip() for name in (kinds.split(",") if isinstance(kinds, str) else kinds)]
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise CutraceError(f"unknown kind of activity: {', '.join(map(repr, unknown))}; choose from {', '.join(KINDS)}")
    if not names:
        raise CutraceError(f"no kind of activity is named: choose from {', '.join(KINDS)}")
    return tuple(dict.fromkeys(names))


def completed(options: Options) -> Options:
    """The options with the libcupti of this machine filled in where none is named."""
    if options.cupti is not None:
        return options
    from .cuda import find_cupti

    path = find_cupti()
    return options if path is None else replace(options, cupti=str(path))
