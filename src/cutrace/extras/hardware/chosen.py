"""Count launches of kernels that are chosen while the command runs, so that it runs once.

Each process asks this one whether to count launches of a kernel, at the first launch of the kernel
(native/profiler/kernel_choice.h). The capture has the counted launches only. Their times are those of the counter
``gpu__time_duration.sum``.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

import numpy as np

from ..._native import demangle
from ...analysis.names import normalize_kernel
from ...collect.command import signals_blocked
from ...collect.standby import variables_of
from ...collect.surroundings import machine_identity
from ...errors import CutraceError
from ...patterns import Patterns, any_matcher, several
from ...runbin.layout import TABLES
from ...runbin.writer import Writer
from ...slicing import missing_name
from ...trace.process import LAUNCHER_VARIABLES
from .cupti import advised
from .sampling import boottime
from .work import SHAPE, Launch

#: The metric that gives the times of counted launches (ns).
TIME = "gpu__time_duration.sum"
#: The key of a process description whose kernels are counted launches only.
COUNTED_ONLY = "counted_only"
NOTE = (
    "only launches that `cutrace profile` counted are in this capture, with the times of their counted runs: "
    "`timeline=True` also records the other work"
)
IN_GRAPHS = (
    "left out: kernels of CUDA graphs, which cannot be replayed one by one. Count the NVTX range around them "
    "(`ranges=`)"
)
_CREDENTIALS = struct.Struct("3i")
_MOST_OF_A_QUESTION = 1 << 20


class KernelChoice:
    """Answers whether launches of kernels are counted. ``kernels`` has the answers by mangled name, ``processes`` the
    descriptions of the processes that asked, by pid."""

    def __init__(self, kernel: Patterns | None) -> None:
        self._patterns = several(kernel or "*")
        self._matches = any_matcher(self._patterns)
        self.kernels: dict[str, bool] = {}
        self.processes: dict[int, dict[str, Any]] = {}

    @contextmanager
    def answering(self, folder: Path) -> Iterator[None]:
        """Answer questions at the socket ``kernels`` in a folder."""
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            # An address has 108 bytes, and a path can be longer.
            listening.bind(f"/proc/self/fd/{place}/kernels")
            os.close(place)
            listening.listen(64)
            thread = Thread(target=self._answer, args=(listening,), daemon=True)
            with signals_blocked(signal.valid_signals()):
                thread.start()
            try:
                yield
            finally:
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()

    def _answer(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the command has ended
                return
            # The process may have ended, or another program may have connected.
            with connection, suppress(OSError, ValueError):
                question = connection.recv(_MOST_OF_A_QUESTION)
                pid, _, name = question.partition(b"\0")
                if int(pid) not in self.processes:
                    self.processes[int(pid)] = _description(connection, int(pid))
                counted = self._is_counted(name.decode("utf-8", "surrogateescape"))
                connection.send(b"1" if counted else b"0")

    @property
    def chosen(self) -> bool:
        """Whether a kernel was chosen."""
        return any(self.kernels.values())

    def refuse(self, skipped: str) -> NoReturn:
        """Raise :class:`CutraceError`, because no launch was counted."""
        if not self.kernels:
            raise CutraceError("nothing was profiled: the command launched no kernel")
        if self.chosen:
            raise CutraceError(
                f"nothing is left to profile after the first {skipped}. Change `kernel=`, `skip=` or `count=`."
            )
        names = map(normalize_kernel, self.kernels)
        missing_name("kernel", self._patterns, names)

    def _is_counted(self, kernel: str) -> bool:
        if kernel not in self.kernels:
            names = (kernel, normalize_kernel(kernel), demangle(kernel))
            self.kernels[kernel] = any(map(self._matches, names))
        return self.kernels[kernel]


def _description(connection: socket.socket, pid: int) -> dict[str, Any]:
    """The description of a process that asks. Its own ``pid`` differs from the one here in another namespace."""
    size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    there = _CREDENTIALS.unpack(credentials)[0]
    place = Path(f"/proc/{there}")
    command: list[str] = []
    executable = ""
    with suppress(OSError):  # a process of another user
        command = os.fsdecode((place / "cmdline").read_bytes()).split("\0")[:-1]
        executable = str((place / "exe").readlink())
    variables = variables_of(there)
    launcher = variables.keys() & LAUNCHER_VARIABLES
    return {
        **machine_identity(),
        "pid": pid,
        "environment": {name: variables[name] for name in launcher},
        "executable": executable,
        "command": command,
        "started": boottime(),
        "kinds": ["kernels"],
        COUNTED_ONLY: True,
    }


def with_time(names: Sequence[str]) -> list[str]:
    """The metrics, with :data:`TIME`."""
    return list(dict.fromkeys([*names, TIME]))


class ProcessValues:
    """The counted ``launches`` of a process, with their ``values`` and states of the ``caches``. ``notes`` are
    sentences on launches that were not counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pid = int(path.stem)
        self.launches: list[Launch] = []
        self.values: list[tuple[float, ...]] = []
        self.caches: list[int] = []
        self.notes: list[str] = []
        self._configurations: list[dict[str, Any]] = []
        self._devices: list[dict[str, str]] = []

    def read(self, names: Sequence[str]) -> None:
        """Read the file with the values of these metrics."""
        time = with_time(names).index(TIME)
        text = self._path.read_text(errors="surrogateescape")
        for line in text.splitlines():
            kind, *fields = line.split("\t")
            if kind == "error":
                self.notes.append(advised(fields[-1]))
            elif kind == "graphs":
                self.notes.append(IN_GRAPHS)
            elif kind == "device":
                self._devices.append(_facts(fields))
            else:
                facts = _facts([one for one in fields if "=" in one])
                numbers = [one for one in fields[len(SHAPE) + 2 :] if "=" not in one]
                values = tuple(map(float, numbers))
                self._add(int(kind), fields, facts, round(values[time]))
                self.values.append(values[: len(names)])

    def _add(
        self,
        number: int,
        fields: Sequence[str],
        facts: Mapping[str, str],
        time: int,
    ) -> None:
        *shape, caches, kernel = fields[: len(SHAPE) + 2]
        sizes = tuple(map(int, shape))
        start = int(facts["start"])
        row = np.zeros(1, TABLES["kernels"].dtype)[0]
        row["correlation"] = len(self.launches) + 1
        row["start"] = start
        row["end"] = start + time
        row["device"] = int(facts["device"])
        row["stream"] = int(facts.get("stream", 0))
        configuration: dict[str, Any] = {"name": kernel}
        configuration |= zip(SHAPE, sizes, strict=True)
        for column in TABLES["launches"].dtype.names or ():
            if column in facts:
                configuration[column] = int(facts[column])
        names = (os.fsencode(kernel),)
        self.launches.append(Launch(0, names, number, row, shape=sizes))
        self.caches.append(int(caches))
        self._configurations.append(configuration)

    def write(self, to: Writer) -> None:
        """Write the devices, the launch configurations and the kernels."""
        to.rows("devices", np.array([_device(facts, to) for facts in self._devices]))
        rows = np.array([launch.row for launch in self.launches])
        rows["launch"] = [
            to.intern_one("launches", **one) for one in self._configurations
        ]
        to.rows("kernels", rows)


def _facts(fields: Sequence[str]) -> dict[str, str]:
    """The facts of native/profiler/launch_facts.h."""
    facts = {}
    for one in fields:
        column, _, value = one.partition("=")
        facts[column] = value
    return facts


def _device(facts: Mapping[str, str], to: Writer) -> np.ndarray:
    """A row of ``devices``."""
    row = np.zeros((), TABLES["devices"].dtype)
    for column in TABLES["devices"].dtype.names or ():
        if column in ("name", "pci"):
            row[column] = to.string(facts.get(column, ""))
        elif column == "uuid":
            row[column] = bytes.fromhex(facts.get(column, ""))
        elif column in facts:
            row[column] = int(facts[column])
    warp = max(int(row["warp_size"]), 1)
    threads = int(row["max_threads_per_multiprocessor"])
    row["max_warps_per_multiprocessor"] = threads // warp
    # Memory transfers twice a clock. KB/s = kHz * bits / 8 * 2.
    width = int(facts.get("memory_bus_width", 0))
    row["memory_bandwidth"] = int(row["memory_clock"]) * width // 4
    return row
