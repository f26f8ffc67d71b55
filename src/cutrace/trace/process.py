"""The processes of a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import numpy as np

from .alignment import MOVED, Alignment

#: Environment variables with the rank of a process, and with the job, set by launchers.
RANK_VARIABLES = (
    "RANK",
    "JAX_PROCESS_ID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "SLURM_PROCID",
    "FLUX_TASK_RANK",
)
#: The variables with the number of a process among the processes of its job on its host.
LOCAL_RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
    "FLUX_TASK_LOCAL_ID",
)
#: The variables with the number of ranks, by the variable with the rank. ``SLURM_NTASKS`` also counts tasks of other
#: steps.
SIZE_VARIABLES = {
    "RANK": "WORLD_SIZE",
    "JAX_PROCESS_ID": "JAX_NUM_PROCESSES",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}
JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "FLUX_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
)
#: All of these variables, which a process description keeps.
LAUNCHER_VARIABLES = frozenset(
    (*RANK_VARIABLES, *LOCAL_RANK_VARIABLES, *SIZE_VARIABLES.values(), *JOB_VARIABLES)
)


@dataclass(frozen=True)
class RecordedWindow:
    """A window of a capture range, in ns. The window was closed at ``end``, and its GPU work was finished and read at
    ``read``. ``end`` and ``read`` are 0 if the process was killed in the window."""

    start: int
    end: int
    read: int


@dataclass(frozen=True)
class Process:
    """One recorded process.

    ``index`` is the value of the ``process`` field of its rows. ``info`` is the whole process description of the file
    (docs/internals/run-bin.md lists its keys). ``alignment`` is already applied to the times of its rows, so that all
    processes share one clock; ``info["clock_of"]`` then names that clock. ``alignment`` changes nothing if the
    processes share a boot.
    """

    index: int
    pid: int
    name: str
    host: str
    boot_id: str
    command: tuple[str, ...]
    info: dict[str, Any] = field(repr=False)
    alignment: Alignment = field(default_factory=Alignment)

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """The host, boot, pid and start of the process. A capture may hold a process twice, because metrics of kernels
        are appended to it as a copy of their process."""
        return self.host, self.boot_id, self.pid, str(self.info.get("started", ""))

    @property
    def rank(self) -> int | None:
        """Its rank in its job, None if the file does not say."""
        if "rank" in self.info:
            return self.info["rank"]
        return self._first_number(RANK_VARIABLES)

    @property
    def local_rank(self) -> int | None:
        """Its number among the processes of its job on its host, None if the file does not say."""
        return self._first_number(LOCAL_RANK_VARIABLES)

    @property
    def world_size(self) -> int | None:
        """The number of ranks of its job, None if the file does not say."""
        own = self.rank
        if own is None:
            return None
        told = self.info.get("world_size")
        if isinstance(told, int) and own < told:
            return told
        for variable, size_variable in SIZE_VARIABLES.items():
            rank = self._number(variable)
            size = self._number(size_variable)
            if rank is not None and size is not None and rank < size:
                return size
        return None

    @property
    def job(self) -> str:
        """The name or number of its job, "" if the file does not say. torchrun calls a job without a name "none"."""
        for name in JOB_VARIABLES:
            value = self._variable(name)
            if value not in ("", "none"):
                return value
        return ""

    def _first_number(self, names: tuple[str, ...]) -> int | None:
        for name in names:
            number = self._number(name)
            if number is not None:
                return number
        return None

    def _number(self, name: str) -> int | None:
        value = self._variable(name)
        if value.isascii() and value.isdigit():
            return int(value)
        return None

    def _variable(self, name: str) -> str:
        value = self.info.get("environment", {}).get(name)
        if isinstance(value, str):
            return value
        return ""

    @property
    def complete(self) -> bool:
        """Whether its capture was closed in order (not killed, not torn)."""
        return "ended" in self.info

    @property
    def from_start(self) -> bool:
        """Whether its capture covers its GPU work from the start of the program, except for losses."""
        return bool(self.info.get("from_start", False))

    @property
    def capture_range(self) -> str:
        """The event that opened its windows: ``profiler`` or ``nvtx:NAME``. "" for a process that was recorded without
        windows."""
        asked = self.info.get("options", {}).get("capture_range", "")
        if not isinstance(asked, str) or asked == "none":
            asked = ""
        return str(self.info.get("capture_range", asked))

    @property
    def windows(self) -> tuple[RecordedWindow, ...]:
        """The windows that were recorded, in order, if it has a capture range."""
        return tuple(RecordedWindow(*times) for times in sorted(self.times_of_windows))

    @property
    def times_of_windows(self) -> list[list[int]]:
        """The windows, in the notation of a process description."""
        windows = self.info.get("windows", ())
        times = np.array(windows, np.uint64).reshape(-1, 3)
        return self.alignment.moved(times).tolist()

    @property
    def dumped_because(self) -> tuple[str, ...]:
        """The reasons for which the collector dumped this capture by itself: see docs/internals/triggers.md."""
        return tuple(self.info.get("dumped_because", ()))

    @property
    def records_code(self) -> bool:
        """Whether the recording had the option for the machine code of kernels."""
        return self.info.get("options", {}).get("code") == "1"

    @property
    def flush_ms(self) -> int:
        """The interval (ms) between flushes to the file."""
        given = self.info.get("options", {}).get("flush_ms")
        if isinstance(given, str) and given.isdecimal() and len(given) < 10:
            return int(given)
        return 100


def describe(
    index: int, pid: int, info: dict[str, Any], alignment: Alignment, clock: str
) -> Process:
    """A process from its description in the file. Any key may be missing. ``clock`` is the boot that the times of the
    trace count from."""
    words = tuple(info.get("command", ()))
    name = info.get("name") or _program(words, info.get("executable", ""))
    return Process(
        index=index,
        pid=pid,
        name=name or f"process {pid}",
        host=info.get("host", ""),
        boot_id=info.get("boot_id", ""),
        command=words,
        info=_on_clock(info, alignment, clock),
        alignment=alignment,
    )


@lru_cache(maxsize=16)
def _program(command: tuple[str, ...], executable: str) -> str:
    """The name of a program. The captures of a test suite repeat the same command."""
    program = command[0] if command else executable
    name = PurePath(program).name
    if name.startswith("python") and "-c" not in command:
        # The name of the process is the script or module, not an option of python.
        arguments = [word for word in command[1:] if not word.startswith("-")]
        if arguments and arguments[0]:
            name = f"{name} {PurePath(arguments[0]).name}"
    return name


def _on_clock(info: dict[str, Any], alignment: Alignment, clock: str) -> dict[str, Any]:
    """A copy of a process description that names the clock of the times. It has a note if the times were moved without
    snapshots."""
    if alignment == Alignment():
        return info
    info = info | {"clock_of": clock}
    if alignment.error is None and alignment.moves:
        info["notes"] = [*info.get("notes", ()), MOVED]
    return info


def recording_of(pid: int, info: dict[str, Any]) -> tuple[str, int, int] | None:
    """The boot id, pid and start of the recording that a process description belongs to; None if the description lacks
    them. All parts of a recording share it."""
    boot = str(info.get("boot_id", ""))
    started = int(info.get("started", 0))
    if boot and started:
        return (boot, pid, started)
    return None


def clock_of(info: dict[str, Any]) -> str:
    """The id of the boot from which the times of a process count, by its description. It is its own boot, or the boot
    of the capture into which it was merged."""
    return str(info.get("clock_of") or info.get("boot_id", ""))
