"""The options of a recording: each is declared once, as a field of :class:`Options`.

The arguments of :func:`cutrace.record`, the options of the command line, the string that the collector parses and
docs/reference are made from the fields.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..arguments import check, types_of
from ..errors import CutraceError, did_you_mean
from ..outputs import mode_of_new_files
from ..units import Size, Time, format_size
from . import annotate, option_values
from .option_values import CAPTURE_RANGES, KINDS, OF_NVTX

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["KINDS", "Option", "OptionArguments", "Options", "completed"]

# The smallest size of the newest rows. They are in files of an eighth of this size, and each file repeats the first
# blocks.
_LEAST_ROTATED = 16 << 20
# The default size limit of the newest rows, so that they do not fill the disk.
_NEWEST_SIZE = 4 << 30
# The default time (ns) between samples of metrics.
_INTERVAL = 1_000_000
# The kinds of activity that a condition needs, by its first word.
_NEEDED = {"nvtx": ("nvtx",), "gpu": ("kernel", "api"), "memory": ("memory",)}

_RECORDINGS = ("record", "arm", "attach")
#: The verbs of options that are not in `cutrace arm`, because `cutrace attach` sets them or they need the name of the
#: output.
_OF_OUTPUT = ("record", "attach")


def _as_given(value: Any) -> Any:
    return value


def _one_line(value: Any) -> list[object]:
    """The collector's value: names are separated by commas, and truth is 1 or 0."""
    if isinstance(value, tuple):
        return [",".join(value)]
    return [int(value) if isinstance(value, bool) else value]


def _program_counters(sample: str) -> list[object]:
    """The collector samples program counters; another process samples metrics."""
    if sample.startswith("pc="):
        return [sample]
    return []


@dataclass(frozen=True)
class Option:
    """An option: its notation for users and for the collector.

    :param help: sentences for the command line and the reference; literals are in backquotes.
    :param parse: returns the field's value for a value of the user. Raises :class:`CutraceError`.
    :param more: sentences for the reference alone, in Markdown.
    :param keyword: the name of the argument in Python, and with dashes of the option on the command line. The default
        is the field's name.
    :param switch: the value of an option of the command line that takes none.
    :param metavar: how help shows the value.
    :param choices: the values that are allowed, if they are few.
    :param number: whether the value is an integer on the command line.
    :param repeated: whether the command line takes the option several times.
    :param default: the value without the option, as users write it.
    :param example: a value, as users write it.
    :param verbs: the verbs of the command line that have it; Python has all options.
    :param key: the name of the option for the collector, "" for options that the collector does not get. The default is
        the field's name.
    :param lines: returns the collector's values of the field, one for each line.
    """

    help: str
    parse: Callable[[Any], Any]
    more: str = ""
    keyword: str = ""
    switch: bool | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    number: bool = False
    repeated: bool = False
    default: str = ""
    example: str = ""
    verbs: tuple[str, ...] = _RECORDINGS
    key: str | None = None
    lines: Callable[[Any], Iterable[object]] = _one_line

    @property
    def flag(self) -> str:
        """The option on the command line."""
        name = self.keyword.replace("_", "-")
        if self.switch is False:
            return f"--no-{name}"
        return f"--{name}"

    def parsed(self, given: Any) -> Any:
        """Return the field's value for a value of the user. Raises :class:`CutraceError`."""
        if self.choices and given not in self.choices:
            raise CutraceError(
                f"{self.keyword}={given!r} is unknown: choose one of {', '.join(self.choices)}"
            )
        return self.parse(given)


def option(
    help: str,
    parse: Callable[[Any], Any] = _as_given,
    *,
    initial: Any = None,
    **more: Any,
) -> Any:
    """Declare an option as a field of :class:`Options`. ``initial`` is the field's value without the option, ``more``
    the other fields of :class:`Option`."""
    return field(default=initial, metadata={"option": Option(help, parse, **more)})


class OptionArguments(TypedDict, total=False):
    """The keyword arguments of :func:`cutrace.record` and :func:`cutrace.arm`; see :class:`Options`."""

    kinds: str | Sequence[str] | None
    api: Literal["launch", "all", "none"]
    cuda_graph: Literal["node", "graph"]
    nvtx: bool
    annotate: str | Sequence[str]
    stacks: str | Sequence[str] | None
    stacks_min: Time | None
    code: bool
    capture_range: str | None
    capture_range_end: str | None
    max_memory: Size | None
    max_size: Size | None
    last: Time | None
    rotate: bool
    dump_when: str | Sequence[str]
    dump_limit: int | None
    dump_pause: Time | None
    flush_ms: int | None
    share: bool
    cupti: str | os.PathLike[str] | None
    sample: str | Sequence[str] | None
    interval: Time
    redact: bool


@dataclass(frozen=True)
class Options:
    """The options of a recording. With None, the recorded process decides: `cutrace arm` or the collector."""

    kinds: tuple[str, ...] | None = option(
        "Record these kinds of activity only (listed below).",
        option_values.kinds,
        more="Separated by commas.",
        metavar="KIND,...",
        example="kernel,nvtx",
    )
    api: str | None = option(
        "CUDA calls to record: calls that launch, copy, set, synchronise, allocate or load; all; none.",
        choices=("launch", "all", "none"),
        default="launch",
        example="all",
    )
    cuda_graph: str | None = option(
        "Record each node of a CUDA graph, or each replay as one row, which costs less. Replays need a recording from "
        "the start of the program, without capture ranges.",
        choices=("node", "graph"),
        default="node",
        example="graph",
        key="graph",
    )
    nvtx: bool | None = option("Do not record NVTX.", switch=False)
    annotate: tuple[str, ...] = option(
        "Put a range around each call of a Python function: `package.module.function`, or patterns such as "
        "`'mylib.*:step'`. May be repeated.",
        option_values.annotated,
        initial=(),
        more="See [PyTorch](howto/pytorch.md#see-modules).",
        repeated=True,
        metavar="NAME",
        example="mylib.*:step",
    )
    stacks: tuple[str, ...] | None = option(
        "Record the Python stacks of calls that synchronise, allocate, copy or launch: `sync`, `alloc`, `copy`, "
        "`launch`, or `launch:1/N` for one launch in N.",
        option_values.stacks,
        more="`alloc` has releases too, and `copy` fills; see [PyTorch](howto/pytorch.md#see-lines).",
        metavar="KIND,...",
        example="sync,launch:1/100",
    )
    stacks_min_ns: int | None = option(
        "Record stacks of calls that take at least TIME only, e.g. `20us`.",
        option_values.stacks_min,
        keyword="stacks_min",
        metavar="TIME",
        example="20us",
    )
    code: bool = option(
        "Record hash, registers, memory and size of kernels' machine code.",
        initial=False,
        more="See [PyTorch](howto/pytorch.md#which-code-ran).",
        switch=True,
    )
    capture_range: str | None = option(
        "Record only between cudaProfilerStart() and cudaProfilerStop(), or inside NVTX ranges of this name.",
        option_values.capture_range,
        more="`none` takes back the range of `cutrace arm`; see [Long runs](howto/long-runs.md#record-only-parts).",
        metavar="profiler|nvtx:NAME",
        example="nvtx:step",
    )
    capture_range_end: str | None = option(
        "Record one capture range, all of them, or the first N.",
        option_values.capture_range_end,
        metavar="stop|repeat[:N]",
        default="repeat",
        example="repeat:3",
    )
    max_memory: int | None = option(
        "Host memory the collector may use in a process, e.g. `64MiB`.",
        option_values.max_memory,
        more="1 MiB or more. Records that do not fit are counted as lost.",
        metavar="SIZE",
        example="64MiB",
    )
    max_size: int | None = option(
        "Size limit of a process's file, e.g. `2GiB`.",
        option_values.max_size,
        more="64 KiB or more. Rows beyond it are counted as lost.",
        metavar="SIZE",
        example="2GiB",
    )
    last_ms: int | None = option(
        "Keep only the last TIME, e.g. `30s`, before the end. SIGUSR2 writes it to run-1.bin, run-2.bin, ...",
        option_values.time_to_keep,
        more="See [Long runs](howto/long-runs.md#keep-the-newest).",
        keyword="last",
        metavar="TIME",
        example="30s",
    )
    rotate: bool = option(
        "At --max-size drop the oldest rows instead of new ones.",
        initial=False,
        more="The size is then 16 MiB or more.",
        switch=True,
    )
    dump_when: tuple[str, ...] = option(
        "Write the newest rows to run-1.bin, run-2.bin, ... when `'nvtx:NAME > 1.5s'`, `'nvtx:NAME > 3x median'`, "
        "`'gpu idle > 500ms'` or `'memory > 70GiB'`. Needs --last or --rotate. May be repeated.",
        option_values.conditions,
        initial=(),
        more="See [Long runs](howto/long-runs.md#keep-the-slow-moment).",
        repeated=True,
        metavar="CONDITION",
        example="gpu idle > 500ms",
        verbs=_OF_OUTPUT,
        lines=list,
    )
    dump_limit: int | None = option(
        "Dumps of each condition.",
        option_values.dump_limit,
        number=True,
        metavar="N",
        default="5",
        example="10",
        verbs=_OF_OUTPUT,
    )
    dump_pause_ms: int | None = option(
        "Least time between two dumps of a condition.",
        option_values.dump_pause,
        keyword="dump_pause",
        metavar="TIME",
        default="30s",
        example="60s",
        verbs=_OF_OUTPUT,
    )
    flush_ms: int | None = option(
        "Milliseconds between flushes of complete records.",
        option_values.flush_ms,
        number=True,
        default="100",
        example="50",
        verbs=(),
    )
    share: bool = option(
        "Ask for a CUPTI that serves other tools too (13.5 and later).",
        initial=False,
        more="See [Collector](internals/collector.md#several-subscribers).",
        switch=True,
    )
    cupti: str | None = option(
        "Path of the libcupti to load where the program has loaded none.",
        os.fspath,
        example="/opt/cuda/lib64/libcupti.so",
        verbs=(),
    )
    sample: str | None = option(
        "Sample hardware counters of all GPUs over time: SM, tensor cores, DRAM, NVLink, PCIe, or the named ones. "
        "`pc`: sample at which instructions warps are, and why they wait there.",
        option_values.sample,
        more="See [A slow kernel](howto/slow-kernel.md).",
        repeated=True,
        metavar="metrics[=SET|NAME,...]|pc[=CYCLES]",
        example="metrics",
        verbs=_OF_OUTPUT,
        lines=_program_counters,
    )
    interval_ns: int | None = option(
        "Time between two samples of metrics, e.g. `200us`.",
        option_values.interval,
        more="1 us to 1 s.",
        keyword="interval",
        metavar="TIME",
        default="1ms",
        example="200us",
        verbs=_OF_OUTPUT,
        key="",
    )
    redact: bool = option(
        "Leave out command lines, host names and paths.",
        initial=False,
        more="See [Concepts](concepts.md#what-a-capture-says-about-you).",
        switch=True,
        verbs=_OF_OUTPUT,
    )

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """Each option by the name of its field."""
        found: dict[str, Option] = {}
        for declared in fields(cls):
            row: Option = declared.metadata["option"]
            key = declared.name if row.key is None else row.key
            found[declared.name] = replace(
                row, keyword=row.keyword or declared.name, key=key
            )
        return found

    @classmethod
    def of(cls, **given: Unpack[OptionArguments]) -> Options:
        """Parse the options of users: sizes such as ``"512MiB"``, times such as ``"30s"``, several names as a
        list or in one string. A value of None means that the option is not given. With ``last``, the default of
        ``max_size`` is 4 GiB.

        Raises :class:`CutraceError` for an invalid value, and for options that do not go together.
        """
        left = {name: value for name, value in given.items() if value is not None}
        check(types_of(OptionArguments), left)
        values: dict[str, Any] = {}
        for name, row in cls.declared().items():
            if row.keyword in left:
                values[name] = row.parsed(left.pop(row.keyword))
        for name in left:
            known = [row.keyword for row in cls.declared().values()]
            hint = did_you_mean(name, known, f"there is {', '.join(known)}")
            raise CutraceError(f"a recording has no option {name!r}: {hint}")
        options = cls(**values)
        options._check_activity()
        options._check_windows()
        options._check_newest_rows()
        options._check_dumps()
        if options.last_ms is not None and options.max_size is None:
            options = replace(options, max_size=_NEWEST_SIZE)
        if options.sampled_metrics is not None and options.interval_ns is None:
            options = replace(options, interval_ns=_INTERVAL)
        return options

    def _check_activity(self) -> None:
        """Raise :class:`CutraceError` for an option that needs an activity which is not recorded."""
        if self.annotate and not self._records("nvtx"):
            raise CutraceError("annotated functions are NVTX ranges: record NVTX too")
        if self.code and not self._records("kernel"):
            raise CutraceError(
                "machine code needs recorded kernels: record the kind of activity 'kernel' too"
            )
        if self.stacks_min_ns is not None and self.stacks is None:
            raise CutraceError(
                "a least time of calls with stacks needs stacks: name the calls with stacks, such as sync"
            )
        if self.interval_ns is not None and self.sampled_metrics is None:
            raise CutraceError(
                "an interval needs samples of metrics: say what to sample, such as metrics"
            )

    def _check_windows(self) -> None:
        """Raise :class:`CutraceError` if a capture range contradicts the other options."""
        if self.capture_range_end is not None and self.capture_range is None:
            raise CutraceError(
                f"the end of capture ranges needs a capture range: write {CAPTURE_RANGES}"
            )
        if not self.records_windows:
            return
        if str(self.capture_range).startswith(OF_NVTX) and not self._records("nvtx"):
            raise CutraceError(
                f"the capture range {self.capture_range!r} needs NVTX: record it too"
            )
        if self.keeps_newest:
            raise CutraceError(
                "a recording of capture ranges cannot keep the newest rows: leave out last and rotate"
            )
        if self.sample is not None:
            raise CutraceError(
                "a recording of capture ranges cannot sample: leave out one of them"
            )

    def _check_newest_rows(self) -> None:
        """Raise :class:`CutraceError` if the newest rows cannot be kept with these options."""
        if self.keeps_newest and self.sampled_metrics is not None:
            raise CutraceError(
                "a recording of the newest rows cannot hold samples of metrics: leave out one of the two"
            )
        if self.rotate and self.max_size is None and self.last_ms is None:
            raise CutraceError("rotate needs a maximum size: give one, such as 1GiB")
        if (
            self.keeps_newest
            and self.max_size is not None
            and self.max_size < _LEAST_ROTATED
        ):
            raise CutraceError(
                f"this size is too small for the newest rows: give {format_size(_LEAST_ROTATED)} or more"
            )

    def _check_dumps(self) -> None:
        """Raise :class:`CutraceError` for conditions that cannot become true, and limits without a condition."""
        has_limit = self.dump_limit is not None or self.dump_pause_ms is not None
        if has_limit and not self.dump_when:
            raise CutraceError(
                "a limit or a pause of dumps needs a condition for dumps, such as 'gpu idle > 500ms'"
            )
        if self.dump_when and not self.keeps_newest:
            raise CutraceError(
                "only a recording of the newest rows is dumped: say how much it keeps, such as `last='30s'`"
            )
        for condition in self.dump_when:
            subject = re.split("[: \t>]", condition)[0]
            for kind in _NEEDED[subject]:
                if not self._records(kind):
                    raise CutraceError(
                        f"the dump condition {condition!r} needs the kind of activity {kind!r}: record it too"
                    )

    def _records(self, kind: str) -> bool:
        """Whether the recording has a default kind of activity."""
        if kind == "nvtx" and not self.records_nvtx:
            return False
        if kind == "api" and self.api == "none":
            return False
        return self.kinds is None or kind in self.kinds or "default" in self.kinds

    @property
    def records_nvtx(self) -> bool:
        """Whether the options allow NVTX. The kinds may still leave it out."""
        return self.nvtx is not False

    @property
    def records_windows(self) -> bool:
        """Whether the recording has only windows that the program opens. False when `cutrace arm` decides."""
        return self.capture_range not in (None, "none")

    @property
    def never_opened(self) -> str:
        """The reason why a recording with a capture range has no rows."""
        return f"the capture range {self.capture_range!r} never opened"

    @property
    def keeps_newest(self) -> bool:
        """Whether the recording drops older rows. Only such a recording can be dumped."""
        return self.rotate or self.last_ms is not None

    @property
    def sampled_metrics(self) -> str | None:
        """The metrics to sample: ``SET|NAME,...``, "" for the default set, None for none."""
        if self.sample is None or self.samples_program_counters:
            return None
        return self.sample.removeprefix("metrics").removeprefix("=")

    @property
    def samples_program_counters(self) -> bool:
        """Whether the collector samples program counters."""
        return self.sample is not None and self.sample.startswith("pc=")

    def text(
        self,
        *,
        directory: os.PathLike[str] | str | None = None,
        output: os.PathLike[str] | str | None = None,
        dump: os.PathLike[str] | str | None = None,
        annotator: bool = True,
    ) -> str:
        """The string that the collector parses, one ``key=value`` a line.

        Each process writes its own file into ``directory``, or one process writes ``output``. With neither, the process
        waits for `cutrace attach`. On SIGUSR2, a process that keeps its newest rows writes them to ``run-1.bin``,
        ``run-2.bin``, ... for ``dump`` ``run.bin``. With ``annotator`` the collector hooks into Python for
        ``annotate``; otherwise the caller does.
        """
        if directory is not None and output is not None:
            raise ValueError("give one of directory and output")
        lines: list[str] = []
        if directory is not None:
            lines.append(f"directory={Path(directory).absolute()}")
        elif output is not None:
            lines.append(f"output={Path(output).absolute()}")
        else:
            lines.append("standby=1")
        if dump is not None and self.keeps_newest:
            lines.append(f"dump={Path(dump).absolute()}")
            folder = directory if output is None else Path(output).parent
            if folder is not None:
                # The collector publishes dumps itself. Python publishes all other files when they are complete.
                lines.append(f"file_mode={mode_of_new_files(Path(folder)):o}")
        if annotator and self.annotate:
            lines.append(f"annotator={Path(annotate.__file__).absolute()}")
        for name, row in self.declared().items():
            value = getattr(self, name)
            # The attribute of the class is the value without the option.
            is_given = value != getattr(type(self), name)
            if row.key and is_given:
                lines += [f"{row.key}={written}" for written in row.lines(value)]
        for line in lines:
            # The collector splits its options at semicolons and line breaks.
            if "\n" in line or ";" in line:
                raise CutraceError(
                    f"the path {line.partition('=')[2]!r} contains a semicolon or a line break: choose another path"
                )
        return "\n".join(lines)


def completed(options: Options) -> Options:
    """The options with the libcupti of this machine filled in where none is named."""
    if options.cupti is not None:
        return options
    from .cuda import find_cupti

    path = find_cupti()
    if path is None:
        return options
    return replace(options, cupti=str(path))
