"""The communicator, the size and the kind of each communication kernel of a rank.

NCCL's NVTX ranges and the annotations of torch.profiler show the calls that a thread makes. A kernel belongs to the
call during which its thread launched it. Calls between ncclGroupStart and ncclGroupEnd are launched by the outermost
ncclGroupEnd, and one kernel may do several of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ...analysis.context import CollectorContext
from ...analysis.gpu import communicates
from ...analysis.sweep import Stream, SweepBatch
from ...trace.nccl import NcclCall, payload_fields
from .model import RankCollector, RankTrace, Records

#: A size (bytes) that is unknown.
UNKNOWN = -1
#: The kind of a call by the letters of its name. The first match applies.
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
#: Kinds of calls that end on all ranks together, after all ranks have started.
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


@lru_cache(4096)
def kind_of(name: str) -> str:
    """The kind of call, from the name of a kernel, of an NCCL function or of a torch collective; "" if unknown."""
    letters = re.sub("[^a-z]", "", name.lower())
    for part, kind in _KINDS.items():
        if part in letters:
            return kind
    return ""


class Asked(NamedTuple):
    """A call of a thread. ``communicator`` is equal on all ranks of the communicator, and ``ranks`` is their number (0
    if unknown). ``bytes`` is the size as NCCL counts it: the bytes that one rank sends in an all-gather, receives in a
    reduce-scatter, and sends to each other rank in an all-to-all."""

    communicator: str
    ranks: int
    kind: str
    bytes: int

    @property
    def launches(self) -> bool:
        """Whether the call needs a kernel. A communicator of one rank needs none."""
        return self.ranks != 1


#: The types of the fields of :class:`Asked`.
_ASKED = np.dtype(
    [
        ("communicator", object),
        ("ranks", np.int64),
        ("kind", object),
        ("bytes", np.int64),
    ]
)
#: The call of a kernel if nothing is known about it.
NOT_ASKED = Asked(
    "",
    0,
    "",
    UNKNOWN,
)


@dataclass
class _Window:
    """A time interval (ns) in which a thread launches the kernels of some calls."""

    start: int
    end: int
    calls: list[Asked]
    #: The indices of the kernels that were launched in this interval.
    kernels: list[int] = field(default_factory=list)
    #: Whether it launches the earlier calls of the thread.
    of_earlier: bool = False


_Thread = tuple[int, int]
#: The windows of each thread, by process and thread.
_Windows = dict[_Thread, list[_Window]]

#: A communication kernel: process, index of the stream, start and end (ns), launch configuration, a flag for launches
#: by a graph, and the thread and time (ns) of the launching call, 0 if unknown.
_FIELDS = (
    "process",
    "stream",
    "start",
    "end",
    "launch",
    "in_graph",
    "thread",
    "launched",
)
_KERNEL = np.dtype([(name, np.int64) for name in _FIELDS])


class CommunicationKernels(RankCollector):
    """Collects communication kernels, as records of :data:`_KERNEL`."""

    tables = ("kernels", "api_calls")

    def __init__(self, context: CollectorContext, rank: RankTrace) -> None:
        super().__init__(context, rank)
        kernels = rank.context.kernels
        communicating = np.array(list(map(communicates, kernels.names)), bool)
        self._communicates = communicating[kernels.numbers]
        self._in_graph = context.trace.launches["graph_node"] != 0
        self._found: list[Records] = []

    def add(self, batch: SweepBatch) -> None:
        work = batch.work
        chosen = np.flatnonzero(self._communicates[work.launch])
        kernels: Records = np.recarray(len(chosen), _KERNEL)
        kernels.process = batch.process
        kernels.stream = work.stream[chosen]
        kernels.start = work.start[chosen]
        kernels.end = work.end[chosen]
        kernels.launch = work.launch[chosen]
        kernels.in_graph = self._in_graph[kernels.launch]
        kernels.thread = work.calls.thread[chosen]
        kernels.launched = work.calls.start[chosen]
        self._found.append(kernels)

    def end(self, process: int, streams: list[Stream]) -> list[Records]:
        return self._found


def kernels_of(rank: RankTrace) -> Records:
    """The communication kernels of a rank, as records of :data:`_KERNEL`."""
    found = rank.collected(CommunicationKernels)
    return np.concatenate([np.zeros(0, _KERNEL), *found]).view(np.recarray)


def asked_of(rank: RankTrace, kernels: Records, kinds: Sequence[str]) -> Records:
    """The call of each kernel as records of :data:`_ASKED`. Unknown calls are :data:`NOT_ASKED`. ``kinds`` has the kind
    of each kernel, from its name."""
    windows = _torch_windows(rank) | _nvtx_windows(rank)
    _launch(windows, kernels)
    asked = [NOT_ASKED] * len(kernels)
    streams = _Streams(kernels)
    several = []
    for of_thread in windows.values():
        _hand_over(of_thread)
        for window in of_thread:
            if len({call.communicator for call in window.calls}) > 1:
                several.append(window)
                continue
            for kernel, call in _one_communicator(window):
                asked[kernel] = call
                streams.add(kernel, call)
    for window in several:
        for kernel, call in _several_communicators(window, kinds, streams):
            asked[kernel] = call
            streams.add(kernel, call)
    for kernel, call in enumerate(asked):
        if call is NOT_ASKED and not kernels.in_graph[kernel]:
            call = Asked(*streams.only(kernel), "", UNKNOWN)
        asked[kernel] = call._replace(kind=call.kind or kinds[kernel])
    return np.array(asked, _ASKED).view(np.recarray)


# Windows


def _nvtx_windows(rank: RankTrace) -> _Windows:
    nccl = rank.trace.nccl
    strings = rank.trace.strings
    domain = strings.find("NCCL")
    if domain is None:
        return {}
    fields = ["process", "thread", "start", "end", "name"]
    ranges: defaultdict[_Thread, list[tuple[int, ...]]] = defaultdict(list)
    for rows in rank.rows("nvtx_ranges"):
        own = rows[rows["domain"] == domain]
        numbers = nccl.of_rows(own).tolist()
        for row, number in zip(own[fields].tolist(), numbers, strict=True):
            process, thread, *times_and_name = row
            ranges[process, thread].append((*times_and_name, number))
    calls = nccl.calls
    windows = {}
    for of_thread, own_ranges in ranges.items():
        grouping = _Grouping()
        for start, end, text, number in sorted(own_ranges):
            name = strings[text]
            call = _asked(calls[number], name, nccl.sizes)
            grouping.add(_Window(start, end, [call]), name)
        windows[of_thread] = grouping.windows
    return windows


def _asked(call: NcclCall, name: str, sizes: Mapping[int, int]) -> Asked:
    """The call that a range of an NCCL function describes. ``sizes`` has the number of ranks of each communicator."""
    size = UNKNOWN
    if call.bytes is not None:
        size = call.bytes
    communicator = call.communicator
    if communicator is None:
        return Asked(
            "",
            0,
            kind_of(name),
            size,
        )
    ranks = sizes.get(communicator, 0)
    return Asked(
        str(communicator),
        ranks,
        kind_of(name),
        size,
    )


class _Grouping:
    """The windows of a thread, from its ranges of NCCL in the order of time."""

    def __init__(self) -> None:
        self.windows: list[_Window] = []
        self._depth = 0
        self._pending: list[Asked] = []
        self._end = 0

    def add(self, window: _Window, name: str) -> None:
        """Add the range of a function. The end of the outermost group launches the calls in it."""
        if window.start < self._end:
            return  # inside of a call
        (call,) = window.calls
        if name == _GROUP_START:
            self._depth += 1
            return
        if name == _GROUP_END:
            self._depth = max(self._depth - 1, 0)
        elif call.kind:
            self._pending.append(call)
        else:
            return
        if not self._depth:
            window.calls = [call for call in self._pending if call.launches]
            self.windows.append(window)
            self._pending = []
            self._end = window.end


def _torch_windows(rank: RankTrace) -> _Windows:
    strings = rank.trace.strings
    parameters = strings.find(_PARAMETERS)
    coalesced = strings.find(_COALESCED)
    windows: defaultdict[_Thread, list[_Window]] = defaultdict(list)
    if parameters is None:
        return windows
    known: dict[int, Asked] = {}
    fields = ["process", "thread", "start", "end", "name", "arguments"]
    for rows in rank.rows("host_slices"):
        named = rows["name"] == parameters
        if coalesced is not None:
            named |= rows["name"] == coalesced
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
    """The call that the arguments of a torch.profiler slice describe."""
    fields = payload_fields(text)
    kind = kind_of(str(fields.get("Collective name", "")))
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
    communicator = f"{about} {group} {fields.get('Process Group Ranks', '')}"
    return Asked(
        communicator,
        ranks,
        kind,
        _torch_bytes(fields, kind),
    )


def _torch_bytes(fields: dict[str, Any], kind: str) -> int:
    """The size as NCCL counts it."""
    count = fields.get("In msg nelems")
    if kind == "reduce-scatter":
        count = fields.get("Out msg nelems")
    item = _ITEM_BYTES.get(str(fields.get("dtype")))
    if not isinstance(count, int) or not item or count < 0:
        return UNKNOWN
    size = count * item
    if kind == "all-to-all":
        size //= max(int(fields.get("Group size") or 1), 1)
    return size


# Kernels of windows


def _launch(windows: _Windows, kernels: Records) -> None:
    """Assign each kernel to the innermost window during which its thread launched it."""
    fields = ["process", "thread", "launched"]
    order = np.argsort(kernels.launched, kind="stable")
    calls = kernels[fields][order].tolist()
    for kernel, (process, thread, time) in zip(order.tolist(), calls, strict=True):
        own = windows.get((process, thread), [])
        at = bisect_right(own, time, key=lambda window: window.start) - 1
        if time and at >= 0 and time <= own[at].end:
            own[at].kernels.append(kernel)


def _hand_over(windows: Sequence[_Window]) -> None:
    """Move the calls of a window without kernels to the later window that launches them."""
    earlier: list[Asked] = []
    for window in windows:
        if not window.of_earlier:
            if not window.kernels:
                earlier += [call for call in window.calls if call.launches]
            continue
        window.calls = earlier
        earlier = []


class _Streams:
    """The known communicators of each stream."""

    def __init__(self, kernels: Records) -> None:
        self._stream_of = kernels[["process", "stream"]].tolist()
        self._users: defaultdict[tuple[int, int], set[tuple[str, int]]] = defaultdict(
            set
        )

    def add(self, kernel: int, call: Asked) -> None:
        if call.communicator:
            stream = self._stream_of[kernel]
            self._users[stream].add((call.communicator, call.ranks))

    def only(self, kernel: int) -> tuple[str, int]:
        """If a single communicator uses the stream of a kernel: this communicator and its number of ranks. Else "" and
        0."""
        users = self._users[self._stream_of[kernel]]
        if len(users) == 1:
            return next(iter(users))
        return "", 0


def _one_communicator(window: _Window) -> Iterator[tuple[int, Asked]]:
    """Yield each kernel of a window with its call. The calls use one communicator."""
    calls = window.calls
    if not calls:
        return
    if len(calls) == len(window.kernels):
        yield from zip(window.kernels, calls, strict=True)
        return
    sizes = [call.bytes for call in calls]
    size = UNKNOWN
    if len(window.kernels) == 1 and UNKNOWN not in sizes:
        size = sum(sizes)
    kind = ""
    if len({call.kind for call in calls}) == 1:
        kind = calls[0].kind
    for kernel in window.kernels:
        yield kernel, calls[0]._replace(kind=kind, bytes=size)


def _several_communicators(
    window: _Window, kinds: Sequence[str], streams: _Streams
) -> Iterator[tuple[int, Asked]]:
    """Yield each kernel of a window with its call, for calls on several communicators. A kernel gets no communicator if
    neither its stream nor its kind identifies one."""
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
        part = replace(window, calls=calls[communicator], kernels=of_it)
        yield from _one_communicator(part)
