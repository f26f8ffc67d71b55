"""Python stacks of API calls: the stack of each call, the frames of each stack, and their strings.

A stack is a frame and the stack of its caller, so stacks form a tree. Id 0 is the empty stack. GPU work has the
correlation id of the call that launched it. Its stack is the stack of that call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..runbin.blocks import BlockInfo
    from .trace import Trace

#: The number of innermost frames in the string of a stack, and the largest length of the string of a frame.
_SHOWN_FRAMES = 8
_LONGEST_PLACE = 160
#: The number of blocks of ``call_stacks`` in memory. Their rows are sorted.
_KEPT_BLOCKS = 32
#: Paths are written in full if this many names at their ends are equal.
_MOST_NAMES = 16


class _StackBlock(NamedTuple):
    """A block of ``call_stacks``: its number, and its smallest and its largest correlation id."""

    number: int
    first: int
    last: int


class PythonFrame(NamedTuple):
    """A frame: file, function and line ("" and 0 if unknown), and all of them as a short string."""

    file: str
    function: str
    line: int
    place: str


class PythonStacks:
    """The Python stacks of the API calls of a trace. ``Trace.frames`` and ``Trace.stacks`` have the rows by id.

    Memory is bounded: the rows of ``call_stacks`` are read by block. Correlation ids rise with time, so the calls of an
    interval are in few blocks.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        infos = trace.block_infos("call_stacks")
        self._rows = lru_cache(_KEPT_BLOCKS)(partial(_sorted_rows, trace, infos))
        self._frames: dict[int, PythonFrame] = {}
        self._places: dict[int, str] = {}
        self._blocks: dict[int, list[_StackBlock]] = {}
        for number, info in enumerate(infos):
            correlations, _ = self._rows(number)
            if len(correlations):
                first = int(correlations[0])
                last = int(correlations[-1])
                block = _StackBlock(number, first, last)
                self._blocks.setdefault(info.process, []).append(block)

    # The stacks of calls

    def of(self, process: int, correlations: np.ndarray) -> np.ndarray:
        """The stack of each call of a process, or of the call that launched each piece of GPU work; 0 for none. If a
        call has several stacks, the last one counts. Thread-safe."""
        found = np.zeros(len(correlations), np.uint32)
        blocks = self._blocks.get(process)
        if not blocks or not len(correlations):
            return found
        first = int(correlations.min())
        last = int(correlations.max())
        for block in blocks:
            if block.first <= last and first <= block.last:
                known, stacks = self._rows(block.number)
                at = np.searchsorted(known, correlations, "right") - 1
                at = np.maximum(at, 0)
                here = known[at] == correlations
                found[here] = stacks[at[here]]
        return found

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """The result of :meth:`of` for rows of any processes."""
        found = np.zeros(len(rows), np.uint32)
        for process in np.unique(rows["process"]).tolist():
            at = rows["process"] == process
            found[at] = self.of(process, rows["correlation"][at])
        return found

    # The frames of stacks

    def frames(self, stack: int) -> list[int]:
        """The ids of the frames of a stack, outermost first."""
        frames: list[int] = []
        parents, of = self._parents_and_frames
        while stack:
            frames.append(int(of[stack]))
            stack = int(parents[stack])
        return frames[::-1]

    def innermost(self, stacks: np.ndarray) -> np.ndarray:
        """The id of the innermost frame of each stack; 0 for no stack."""
        return self._parents_and_frames[1][stacks]

    @cached_property
    def alike(self) -> np.ndarray:
        """For each stack, the id of the first stack with equal frames, in any process."""
        frames = self._trace.frames[["file", "function", "line"]]
        _, numbers = np.unique(frames, return_inverse=True)
        numbers = numbers.reshape(-1)  # The empty frame is the smallest one.
        rows = self._trace.stacks.copy()
        rows["frame"] = numbers[rows["frame"]]
        return join(rows)

    @cached_property
    def _parents_and_frames(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._trace.stacks
        parents = np.ascontiguousarray(rows["parent"])
        frames = np.ascontiguousarray(rows["frame"])
        return parents, frames

    def frame(self, number: int) -> PythonFrame:
        """The frame of an id."""
        if number not in self._frames:
            row = self._trace.frames[number]
            self._frames[number] = PythonFrame(
                file=self._trace.strings[row["file"]],
                function=self._trace.strings[row["function"]],
                line=int(row["line"]),
                place=self.place(number),
            )
        return self._frames[number]

    # Strings

    def place(self, frame: int) -> str:
        """A frame as a string: ``ops.py:42 in fused_add``. The name of the file is as short as possible."""
        if frame not in self._places:
            self._places[frame] = self._place(frame)
        return self._places[frame]

    def _place(self, frame: int) -> str:
        if not frame:
            return "(unknown)"
        row = self._trace.frames[frame]
        place = self._short_files.get(int(row["file"]), "(unknown file)")
        line = int(row["line"])
        if line:
            place += f":{line}"
        function = self._trace.strings[row["function"]]
        if function:
            place += f" in {function}"
        if len(place) <= _LONGEST_PLACE:
            return place
        return f"{place[: _LONGEST_PLACE - 3]}..."

    def text(self, stack: int, most: int = _SHOWN_FRAMES) -> str:
        """The innermost frames of a stack as a string, innermost first: ``ops.py:42 in fused_add < train.py:10 in
        main``. "" for no stack."""
        frames = self.frames(stack)[::-1]
        places = [self.place(frame) for frame in frames[:most]]
        left = len(frames) - len(places)
        if left:
            places.append(f"({left} more)")
        return " < ".join(places)

    @cached_property
    def _short_files(self) -> dict[int, str]:
        """The shortest end of each file name that no other file of the trace has."""
        files = np.unique(self._trace.frames["file"]).tolist()
        names = {file: self._trace.strings[file] for file in files if file}
        short = short_files(names.values())
        return {file: short[names[file]] for file in names}


def short_files(files: Iterable[str]) -> dict[str, str]:
    """For each of some distinct paths, the shortest end, in whole names, that no other path has."""
    parts = {file: file.split("/") for file in files}
    short: dict[str, str] = {}
    depth = 0
    while len(short) < len(parts):
        depth += 1
        ends = {file: "/".join(parts[file][-depth:]) for file in parts}
        times = Counter(ends.values())
        for file, end in ends.items():
            if times[end] == 1:
                short.setdefault(file, end or file)
            elif depth == min(len(parts[file]), _MOST_NAMES):
                short[file] = file
    return short


def _sorted_rows(
    trace: Trace, infos: Sequence[BlockInfo], number: int
) -> tuple[np.ndarray, np.ndarray]:
    """The correlation ids, ascending, and the stacks of the rows of a block."""
    rows, _ = trace.block(infos[number])
    known = (rows["correlation"] != 0) & (rows["stack"] != 0)
    correlations = rows["correlation"][known]
    stacks = rows["stack"][known]
    order = np.argsort(correlations, kind="stable")
    return correlations[order], stacks[order]


def join(rows: np.ndarray) -> np.ndarray:
    """For each row of ``stacks``, the index of the first row with equal frames. The parents of the rows are indices of
    rows. Parents that cannot be callers, because the file is damaged, are set to 0."""
    parents = rows["parent"].astype(np.int64)
    frames = rows["frame"].astype(np.int64)
    first = np.arange(len(rows))
    # In a cycle, at least one parent does not come before its stack.
    ends_cycle = _in_cycles(parents) & (parents >= first)
    parents[ends_cycle] = 0
    known = _with_callers(parents, frames != 0, np.logical_or)
    parents[~known[parents]] = 0
    rows["parent"] = parents
    depths = _with_callers(parents, known.astype(np.int64), np.add)
    first[~known] = 0
    order = np.argsort(depths, kind="stable")
    starts = np.flatnonzero(np.diff(depths[order])) + 1
    for level in np.split(order, starts)[1:]:  # Callers come first.
        callers = first[parents[level]]
        _, at, inverse = np.unique(
            callers << 32 | frames[level],
            return_index=True,
            return_inverse=True,
        )
        first[level] = level[at][inverse.reshape(-1)]
    return first


def by_level(parents: np.ndarray, stacks: np.ndarray) -> list[np.ndarray]:
    """The distinct stacks of ``stacks`` and all their callers, in an order that has each caller before its callees."""
    levels = []
    level = np.unique(stacks[stacks != 0])
    while len(level):
        levels.append(level)
        callers = parents[level]
        level = np.unique(callers[callers != 0])
    return levels[::-1]


def _in_cycles(parents: np.ndarray) -> np.ndarray:
    """A mask of the stacks whose chain of callers has no end, because it runs into a cycle."""
    ancestors = parents
    # Each round doubles the distance to the ancestor. A chain that ends is shorter than the table.
    for _ in range(len(parents).bit_length()):
        if not ancestors.any():
            break
        ancestors = ancestors[ancestors]
    return ancestors != 0


def _with_callers(
    parents: np.ndarray,
    values: np.ndarray,
    both: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """For each stack, the values of the stack and all its callers, joined by ``both``. The value of stack 0 has no
    effect."""
    ancestors = parents
    while ancestors.any():
        values = both(values, values[ancestors])
        ancestors = ancestors[ancestors]
    return values
