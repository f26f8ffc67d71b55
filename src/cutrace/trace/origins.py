"""Where the nodes of CUDA graphs were created: the NVTX ranges, the thread and the API call.

The work of a replay has the id of its node, and ``graph_nodes`` has the nodes whose creation was recorded. Nodes are
looked up by arrays of ids.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .rows import LATEST, changes, spanned

if TYPE_CHECKING:
    from .trace import Trace

#: Two numbers for work outside of graphs, and for work of nodes whose creation was not recorded. The numbers of nodes
#: and of paths come after them.
OUTSIDE = 0
UNRECORDED = 1
#: The tables with work of graph nodes, and the field with the node or its launch configuration.
NODE_FIELDS = {"kernels": "launch", "memcpys": "graph_node", "memsets": "graph_node"}
#: The strings of paths without ranges.
NOT_RECORDED = "(not recorded)"
NO_RANGE = "(no range)"

#: An API call, and the nodes that were created in it, as a span of indices.
_CREATING = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        ("function", np.int64),
        ("first", np.int64),
        ("last", np.int64),
    ]
)


class Creation(NamedTuple):
    """The creation of nodes: the number of their path, the thread, and the API function ("" if unknown)."""

    path: int
    thread: int
    call: str


class Origins:
    """The recorded creations of the graph nodes of a trace.

    A *path* is the names of the NVTX ranges around a creation, outermost first; ``paths`` has the distinct paths by
    number. Paths :data:`OUTSIDE` and :data:`UNRECORDED` are empty. The path of a node created outside of all ranges is
    empty, too. ``path_of`` maps the numbers of nodes (:meth:`nodes`) to paths, ``created`` to the times of their
    creation (ns, 0 if unknown).
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        rows = trace.graph_nodes
        rows = rows[np.lexsort((rows["graph_node"], rows["process"]))]
        # A damaged file may repeat a node.
        rows = rows[changes(rows["process"], rows["graph_node"])]
        self._rows = rows
        created = np.minimum(rows["created"], LATEST).astype(np.int64)
        self.created = np.append([0, 0], created)
        processes = np.arange(len(trace.processes) + 1)
        self._edges = np.searchsorted(rows["process"], processes)
        texts, numbers = np.unique(rows["ranges"], return_inverse=True)
        known: dict[tuple[str, ...], int] = {}
        path_of_text = np.zeros(len(texts), np.uint32)
        for at, text in enumerate(texts.tolist()):
            path = _names(trace.strings[text])
            path_of_text[at] = known.setdefault(path, len(known) + 2)
        self.paths: tuple[tuple[str, ...], ...] = ((), (), *known)
        outside = np.array([OUTSIDE, UNRECORDED], np.uint32)
        self.path_of = np.append(outside, path_of_text[numbers])
        self._of_launches: dict[int, np.ndarray] = {}

    def nodes(self, process: int, ids: np.ndarray) -> np.ndarray:
        """The number of each node id (0 outside of graphs) of a process."""
        begin, end = self._edges[process : process + 2].tolist()
        recorded = self._rows["graph_node"][begin:end]
        known = np.append(recorded, np.uint64(0))
        at = np.searchsorted(known[:-1], ids)
        is_known = known[at] == ids
        numbers = np.where(is_known, at + begin + 2, UNRECORDED)
        numbers[ids == 0] = OUTSIDE
        return numbers.astype(np.uint32)

    def of_launches(self, process: int) -> np.ndarray:
        """The number of the node of each launch configuration of the trace, as a kernel of this process."""
        if process not in self._of_launches:
            ids = self._trace.launches["graph_node"]
            self._of_launches[process] = self.nodes(process, ids)
        return self._of_launches[process]

    def of(self, process: int, table: str, rows: Any) -> np.ndarray:
        """The number of the node of each row of GPU work of a process. ``rows`` has the field in :data:`NODE_FIELDS`,
        if there is one."""
        field = NODE_FIELDS.get(table)
        if field == "launch":
            return self.of_launches(process)[rows[field]]
        if field:
            return self.nodes(process, rows[field])
        return np.full(len(rows), OUTSIDE, np.uint32)

    def of_rows(self, table: str, rows: np.ndarray) -> np.ndarray:
        """The result of :meth:`of` for rows of any processes."""
        numbers = np.full(len(rows), OUTSIDE, np.uint32)
        for process in np.unique(rows["process"]).tolist():
            at = rows["process"] == process
            numbers[at] = self.of(process, table, rows[at])
        return numbers

    def text(self, path: int) -> str:
        """The names of a path with slashes between, or a string in brackets if there are none; "" for
        :data:`OUTSIDE`."""
        if path == OUTSIDE:
            return ""
        if path == UNRECORDED:
            return NOT_RECORDED
        return "/".join(self.paths[path]) or NO_RANGE

    @cached_property
    def levels(self) -> tuple[np.ndarray, list[str]]:
        """Number the distinct prefixes of paths. Returns the number of each path's prefix of each length, 0 beyond the
        end of the path, and for each number the name of its last range."""
        known: dict[tuple[str, ...], int] = {}
        deepest = max(map(len, self.paths))
        numbers = np.zeros((len(self.paths), deepest), np.uint32)
        last_names = [""]
        for path, names in enumerate(self.paths):
            for depth, name in enumerate(names):
                beginning = names[: depth + 1]
                if beginning not in known:
                    known[beginning] = len(last_names)
                    last_names.append(name)
                numbers[path, depth] = known[beginning]
        return numbers, last_names

    @cached_property
    def creations(self) -> tuple[np.ndarray, list[Creation]]:
        """The number of the creation of each node, and the distinct creations by number. Reads the blocks of API calls
        from the time in which nodes were created."""
        processes = range(len(self._edges) - 1)
        functions = [np.zeros(2, np.int64)]
        functions.extend(map(self._functions, processes))
        threads = np.append([0, 0], self._rows["thread"])
        columns = [self.path_of, threads, np.concatenate(functions)]
        rows = np.stack(columns, axis=1)
        distinct, numbers = np.unique(rows, axis=0, return_inverse=True)
        names = self._trace.strings.take(self._trace.functions["name"])
        creations = []
        for path, thread, function in distinct.tolist():
            creations.append(Creation(path, thread, str(names[function])))
        return numbers.reshape(-1).astype(np.uint32), creations

    def _functions(self, process: int) -> np.ndarray:
        """The API function (an id) that created each node of a process, 0 if unknown. If calls are nested, it is the
        outermost one."""
        start, end = self._edges[process : process + 2].tolist()
        rows = self._rows[start:end]
        functions = np.zeros(len(rows), np.int64)
        if not len(rows):
            return functions
        order = np.lexsort((rows["created"], rows["thread"]))
        nodes = rows[order]
        calls = self._creating_calls(process, nodes)
        # Assign an outer call after the calls inside it, so that the outer call stays. An outer call starts before its
        # inner calls or ends after them.
        inner_last = np.lexsort((calls["end"], -calls["start"]))
        calls = calls[inner_last]
        created = order[spanned(calls["first"], calls["last"])]
        counts = calls["last"] - calls["first"]
        functions[created] = np.repeat(calls["function"], counts)
        return functions

    def _creating_calls(self, process: int, nodes: np.ndarray) -> np.ndarray:
        """The API calls in which nodes were created (:data:`_CREATING`). ``nodes`` are sorted by thread and time."""
        created = nodes["created"]
        start = int(created.min())
        end = int(created.max()) + 1
        threads, begins = np.unique(nodes["thread"], return_index=True)
        ends = np.append(begins[1:], len(nodes))
        found = [np.zeros(0, _CREATING)]
        for info in self._trace.block_infos("api_calls", start, end):
            if info.process != process:
                continue
            calls, _ = self._trace.block(info)
            for thread, begin, end in zip(threads, begins, ends, strict=True):
                mine = calls[calls["thread"] == thread]
                times = created[begin:end]
                creating = np.zeros(len(mine), _CREATING)
                for field in ("start", "end", "function"):
                    creating[field] = mine[field]
                first = np.searchsorted(times, mine["start"], "left")
                last = np.searchsorted(times, mine["end"], "right")
                creating["first"] = begin + first
                creating["last"] = begin + last
                found.append(creating[first < last])
        return np.concatenate(found)


def _names(text: str) -> tuple[str, ...]:
    """The names in a string of ``graph_nodes``. The string is a JSON array; any other string is one name."""
    try:
        names = json.loads(text or "[]")
    except (ValueError, RecursionError):
        names = None
    if isinstance(names, list):
        return tuple(map(str, names))
    return (text,)
