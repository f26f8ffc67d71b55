"""The communicator, the size and the kind of each communication kernel of a rank.

NCCL's NVTX ranges and the annotations of torch.profiler say what a thread asked for. A kernel belongs to the calls in
whose time its thread launched it. Calls between ncclGroupStart and ncclGroupEnd are launched by the outermost
ncclGroupEnd, and one kernel may do several of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...trace.nccl import payload_fields
from .model import RankTrace

#: A size (bytes) that is not known.
UNKNOWN = -1
#: Kinds of calls by the letters of their names, in the order in which they are looked for.
_KINDS = {
    "allreduce": "all-reduce",
    "barrier": "all-reduce",
    "crossdevicereduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "send": "send-recv",
    "recv": "send-recv",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "scatter": "scatter",
    "gather": "gather",
    "reduce": "reduce",
}
POINT_TO_POINT = "send-recv"
#: Kinds of calls that no rank ends before all ranks have begun, and that all end together.
TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")

# Ranges of NCCL, and slices of torch.profiler.
_GROUP_START = "ncclGroupStart"
_GROUP_END = "ncclGroupEnd"
_PARAMETERS = "record_param_comms"
_COALESCED = "nccl:coalesced"
#: Bytes of an element, by torch's names of types.
_ITEM_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}


def kind_of(name: str) -> str:
    """The kind of call that a kernel, a function of NCCL or a collective of torch does; "" if its name does not say."""
    letters = re.sub(
        "[^a-z]",
        "",
        name.lower(),
    )
    for part, kind in _KINDS.items():
        if part in letters:
            return kind
    return ""


class Asked(NamedTuple):
    """A call that a thread asked for. ``communicator`` is equal on all of its ranks, and ``ranks`` is their number (0
    if unknown). ``bytes`` is the size as NCCL counts it: what one rank sends in an all-gather, what it receives in a
    reduce-scatter, what it sends to each other one in an all-to-all."""

    communicator: str
    ranks: int
    kind: str
    bytes: int

    @property
    def launches(self) -> bool:
        """Whether it needs a kernel: a rank alone needs none."""
        return self.ranks != 1


#: The kernel of a call that is not known.
NOT_ASKED = Asked(
    "",
    0,
    "",
    UNKNOWN,
)


@dataclass
class _Window:
    """A time (ns) in which a thread launches the kernels of some calls."""

    start: int
    end: int
    calls: list[Asked]
    #: The indices of the kernels that were launched in it.
    kernels: list[int] = field(default_factory=list)
    #: It launches what the thread asked for before it.
    of_earlier: bool = False


#: The windows of each thread, by process and thread.
_Windows = dict[tuple[int, int], list[_Window]]


class Kernels(NamedTuple):
    """Communication kernels: process, stream (an index), start and end (ns), launch configuration, if it was launched
    in a graph, and the thread and time (ns) of the launching call, 0 if unknown. Columns have one entry a kernel."""

    process: np.ndarray
    stream: np.ndarray
    start: np.ndarray
    end: np.ndarray
    launch: np.ndarray
    in_graph: np.ndarray
    thread: np.ndarray
    launched: np.ndarray

    @classmethod
    def of(
        cls,
        rank: RankTrace,
        communicates: np.ndarray,
    ) -> Kernels:
        """The kernels of a rank. ``communicates`` is a mask of launch configurations."""
        launches = rank.trace.launches
        parts = [np.zeros((8, 0), np.int64)]
        for process, sweep in zip(
            rank.processes, rank.sweeps("kernels", "api_calls"), strict=True
        ):
            for batch in sweep:
                work = batch.work
                chosen = communicates[work.launch]
                launch = work.launch[chosen]
                columns = (
                    np.full(len(launch), process),
                    work.stream[chosen],
                    work.start[chosen],
                    work.end[chosen],
                    launch,
                    launches["graph_node"][launch] != 0,
                    work.calls.thread[chosen],
                    work.calls.start[chosen],
                )
                parts.append(np.stack([column.astype(np.int64) for column in columns]))
        return cls(*np.concatenate(parts, axis=1))


def asked_of(
    rank: RankTrace,
    kernels: Kernels,
    kinds: Sequence[str],
) -> list[Asked]:
    """The call of each kernel, :data:`NOT_ASKED` where it is not known. ``kinds`` are those of the kernels by name."""
    asked = [NOT_ASKED] * len(kernels.start)
    windows = _nvtx_windows(rank)
    for thread, of_torch in _torch_windows(rank).items():
        windows.setdefault(thread, of_torch)
    _launch(windows, kernels)
    for of_thread in windows.values():
        _hand_over(of_thread)
    streams = _Streams(kernels)
    several = []
    for of_thread in windows.values():
        for window in of_thread:
            if len({call.communicator for call in window.calls}) > 1:
                several.append(window)
                continue
            for kernel, call in _one_communicator(window):
                asked[kernel] = call
                streams.add(kernel, call)
    for window in several:
        for kernel, call in _several_communicators(
            window,
            kinds,
            streams,
        ):
            asked[kernel] = call
            streams.add(kernel, call)
    for kernel, call in enumerate(asked):
        if call is NOT_ASKED and not kernels.in_graph[kernel]:
            communicator, ranks = streams.only(kernel)
            asked[kernel] = Asked(
                communicator,
                ranks,
                "",
                UNKNOWN,
            )
    return asked


# Windows


def _nvtx_windows(rank: RankTrace) -> _Windows:
    trace = rank.trace
    nccl = trace.nccl
    domain = trace.strings.find("NCCL")
    rows_of: defaultdict[tuple[int, int], list[tuple[int, int, int, int]]]
    rows_of = defaultdict(list)
    if domain is None:
        return {}
    for rows in rank.rows("nvtx_ranges"):
        own = rows[rows["domain"] == domain]
        columns = (own["start"], own["end"], own["name"], nccl.of_rows(own))
        values = zip(*(column.tolist() for column in columns), strict=True)
        threads = zip(
            own["process"].tolist(),
            own["thread"].tolist(),
            strict=True,
        )
        for thread, row in zip(
            threads,
            values,
            strict=True,
        ):
            rows_of[thread].append(row)
    calls = nccl.calls
    windows = {}
    for thread, of_thread in rows_of.items():
        of_thread.sort()
        found = _Grouping()
        for start, end, text, number in of_thread:
            name = trace.strings[text]
            call = calls[number]
            ranks = 0
            communicator = ""
            if call.communicator is not None:
                communicator = str(call.communicator)
                ranks = nccl.sizes.get(call.communicator, 0)
            size = UNKNOWN if call.bytes is None else call.bytes
            found.add(
                start,
                end,
                name,
                Asked(
                    communicator,
                    ranks,
                    kind_of(name),
                    size,
                ),
            )
        windows[thread] = found.windows
    return windows


class _Grouping:
    """The windows of a thread, from its ranges of NCCL in the order of time."""

    def __init__(self) -> None:
        self.windows: list[_Window] = []
        self._depth = 0
        self._pending: list[Asked] = []
        self._end = 0

    def add(
        self,
        start: int,
        end: int,
        name: str,
        call: Asked,
    ) -> None:
        if start < self._end:
            return  # inside of a call
        if name == _GROUP_START:
            self._depth += 1
        elif name == _GROUP_END:
            self._depth = max(self._depth - 1, 0)
            if not self._depth:
                self._launched(
                    start,
                    end,
                    self._pending,
                )
                self._pending = []
        elif call.kind and self._depth:
            self._pending.append(call)
        elif call.kind:
            self._launched(
                start,
                end,
                [call],
            )

    def _launched(
        self,
        start: int,
        end: int,
        calls: list[Asked],
    ) -> None:
        self._end = end
        self.windows.append(
            _Window(
                start,
                end,
                [c for c in calls if c.launches],
            )
        )


def _torch_windows(rank: RankTrace) -> _Windows:
    strings = rank.trace.strings
    parameters = strings.find(_PARAMETERS)
    coalesced = strings.find(_COALESCED)
    windows: defaultdict[tuple[int, int], list[_Window]] = defaultdict(list)
    if parameters is None:
        return windows
    known: dict[int, Asked] = {}
    for rows in rank.rows("host_slices"):
        named = rows["name"] == parameters
        if coalesced is not None:
            named |= rows["name"] == coalesced
        fields = ["process", "thread", "start", "end", "name", "arguments"]
        for process, thread, start, end, name, arguments in rows[fields][
            named
        ].tolist():
            window = _Window(
                start,
                end,
                [],
                of_earlier=name == coalesced,
            )
            if name == parameters:
                if arguments not in known:
                    known[arguments] = _torch_call(strings[arguments])
                window.calls.append(known[arguments])
            windows[process, thread].append(window)
    for of_thread in windows.values():
        of_thread.sort(key=lambda window: window.start)
    return windows


def _torch_call(text: str) -> Asked:
    """The call that the arguments of a slice of torch.profiler describe."""
    fields = payload_fields(text)
    name = str(fields.get("Collective name", ""))
    kind = kind_of(name)
    group = str(fields.get("Process Group Name", ""))
    ranks = fields.get("Group size")
    if not isinstance(ranks, int):
        ranks = 0
    if not group or not kind:
        return Asked(
            "",
            ranks,
            kind,
            UNKNOWN,
        )
    about = str(fields.get("Process Group Description", ""))
    if about in ("", "undefined"):
        about = "process group"
    members = fields.get("Process Group Ranks", "")
    return Asked(
        f"{about} {group} {members}",
        ranks,
        kind,
        _torch_bytes(fields, kind),
    )


def _torch_bytes(
    fields: dict[str, Any],
    kind: str,
) -> int:
    """The size as NCCL counts it."""
    which = "Out msg nelems" if kind == "reduce-scatter" else "In msg nelems"
    count = fields.get(which)
    item = _ITEM_BYTES.get(str(fields.get("dtype")))
    if not isinstance(count, int) or not item or count < 0:
        return UNKNOWN
    size = count * item
    if kind == "all-to-all":
        size //= max(int(fields.get("Group size") or 1), 1)
    return size


# Kernels of windows


def _launch(windows: _Windows, kernels: Kernels) -> None:
    """Give each kernel to the innermost window in whose time its thread launched it."""
    starts = {}
    for thread, of_thread in windows.items():
        starts[thread] = np.array([window.start for window in of_thread])
    launched = np.flatnonzero(kernels.launched)
    order = launched[np.argsort(kernels.launched[launched], kind="stable")]
    columns = (kernels.process[order], kernels.thread[order], kernels.launched[order])
    rows = zip(
        order.tolist(),
        *(column.tolist() for column in columns),
        strict=True,
    )
    for kernel, process, thread, time in rows:
        own = starts.get((process, thread))
        if own is None:
            continue
        at = (
            int(
                np.searchsorted(
                    own,
                    time,
                    "right",
                )
            )
            - 1
        )
        if at >= 0 and time <= windows[process, thread][at].end:
            windows[process, thread][at].kernels.append(kernel)


def _hand_over(windows: Sequence[_Window]) -> None:
    """Move the calls of windows without a kernel to the window that launches them."""
    earlier: list[Asked] = []
    for window in windows:
        if not window.of_earlier:
            if not window.kernels:
                earlier += [call for call in window.calls if call.launches]
            continue
        window.calls = earlier
        earlier = []


class _Streams:
    """The communicators that are known to use each stream."""

    def __init__(self, kernels: Kernels) -> None:
        pairs = zip(
            kernels.process.tolist(),
            kernels.stream.tolist(),
            strict=True,
        )
        self._stream_of = list(pairs)
        self._users: defaultdict[tuple[int, int], set[tuple[str, int]]]
        self._users = defaultdict(set)

    def add(
        self,
        kernel: int,
        call: Asked,
    ) -> None:
        if call.communicator:
            user = (call.communicator, call.ranks)
            self._users[self._stream_of[kernel]].add(user)

    def only(self, kernel: int) -> tuple[str, int]:
        """The communicator that alone uses the stream of a kernel, or "", and its number of ranks."""
        users = self._users[self._stream_of[kernel]]
        if len(users) == 1:
            return next(iter(users))
        return "", 0


def _one_communicator(window: _Window) -> Iterator[tuple[int, Asked]]:
    """The kernels of a window and what they do. The calls are of one communicator."""
    calls = window.calls
    if not calls:
        return
    if len(calls) == len(window.kernels):
        yield from zip(
            window.kernels,
            calls,
            strict=True,
        )
        return
    size = UNKNOWN
    if len(window.kernels) == 1 and all(call.bytes != UNKNOWN for call in calls):
        size = sum(call.bytes for call in calls)
    kind = ""
    if len({call.kind for call in calls}) == 1:
        kind = calls[0].kind
    for kernel in window.kernels:
        yield kernel, calls[0]._replace(kind=kind, bytes=size)


def _several_communicators(
    window: _Window, kinds: Sequence[str], streams: _Streams
) -> Iterator[tuple[int, Asked]]:
    """The same for a window with calls of several communicators. A kernel whose communicator its stream does not tell,
    and neither its kind, stays without one."""
    calls: defaultdict[str, list[Asked]] = defaultdict(list)
    for call in window.calls:
        calls[call.communicator].append(call)
    own: defaultdict[str, list[int]] = defaultdict(list)
    for kernel in window.kernels:
        communicator, _ = streams.only(kernel)
        if communicator not in calls:
            users = set()
            for call in window.calls:
                if call.kind == kinds[kernel]:
                    users.add(call.communicator)
            communicator = users.pop() if len(users) == 1 else ""
        if communicator in calls:
            own[communicator].append(kernel)
    for communicator, of_it in own.items():
        part = _Window(
            window.start,
            window.end,
            calls[communicator],
            of_it,
        )
        yield from _one_communicator(part)
