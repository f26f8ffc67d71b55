"""GPU work: one ``gpu_render_stage_event`` for each kernel, copy, fill and graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..._native import Submissions
from ...trace.rows import chosen, time_order
from .gpu_styles import SentStyles, StyleIndex
from .packets import Output
from .proto import Columns, Delta, Each, FromColumn, Piece, SegmentPiece, Template, When

Lists = tuple[np.ndarray, np.ndarray]  # offsets by row, and ids


class GpuRows(NamedTuple):
    """The rows of a block in the order of their start. ``kinds`` numbers the styles of these rows in order of
    appearance, and ``first`` has the first row of each. ``frames`` (:meth:`StyleIndex.frames`) and the ``computed``
    columns are by row."""

    rows: np.ndarray
    frames: np.ndarray | None
    kinds: np.ndarray
    first: np.ndarray
    computed: dict[str, np.ndarray]


@dataclass
class GpuBlock:
    """A block of rows in the order of their start. ``styles``, the event ``ids`` and the ``computed`` columns are by
    row. The first ``written`` rows are in parts."""

    index: StyleIndex
    rows: np.ndarray
    styles: np.ndarray
    ids: np.ndarray
    computed: dict[str, np.ndarray]
    written: int = 0

    def before(self, moment: int) -> GpuPart:
        """The rows that start before ``moment`` and are not in a part yet."""
        starts = self.rows["start"]
        end = len(self.rows)
        if starts[-1] >= moment:
            starts = np.ascontiguousarray(starts)
            end = int(np.searchsorted(starts, np.uint64(moment)))
        part = GpuPart(self, self.written, end)
        self.written = end
        return part


@dataclass(frozen=True)
class GpuPart:
    """The rows of a block from ``begin`` to ``end``."""

    block: GpuBlock
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def rows(self) -> np.ndarray:
        return self.block.rows[self.begin : self.end]

    @property
    def styles(self) -> np.ndarray:
        return self.block.styles[self.begin : self.end]

    @property
    def queues(self) -> np.ndarray:
        """The number of each row's stream."""
        return self.block.index.queues_of(self.styles)

    @property
    def paths(self) -> np.ndarray:
        """The number of the path (:class:`cutrace.trace.origins.Origins`) of each row's graph node."""
        return self.block.index.paths_of(self.styles)

    def computed(self, column: str) -> np.ndarray:
        return self.block.computed[column][self.begin : self.end]


class GpuEvents:
    """Writes the rows of one table of one process, part by part."""

    def __init__(
        self, index: StyleIndex, output: Output, submissions: Submissions
    ) -> None:
        self._table = index.table
        self._index = index
        self._output = output
        self._submissions = submissions
        self._common = index.common
        # _template also adds the names of the arguments to index.common.
        self._templates = {waits: self._template(waits) for waits in (False, True)}
        self._open()

    def prepare(self, rows: np.ndarray) -> GpuRows:
        """Compute the part of a block that does not depend on other blocks; thread-safe."""
        order = time_order(rows["start"])
        if order is not None:
            rows = chosen(rows, order)
        duration = rows["end"] - rows["start"]
        computed = {"duration": duration}
        if "bandwidth" in self._table.arguments:
            computed["bandwidth"] = _bandwidth(rows["bytes"], duration)
        frames = self._index.frames(rows)
        columns = self._index.columns(rows, frames)
        kinds, first = self._index.keys().ids(columns)
        return GpuRows(rows, frames, kinds, first, computed)

    def block(self, part: GpuRows) -> GpuBlock:
        """Make a block. Gives numbers to its styles and ids to its events."""
        frames = part.frames
        if frames is not None:
            frames = frames[part.first]
        styles = self._index.of(chosen(part.rows, part.first), frames)
        ids = self._submissions.assign(part.rows["correlation"])
        return GpuBlock(
            self._index,
            part.rows,
            styles.take(part.kinds),
            ids,
            part.computed,
        )

    def write(self, part: GpuPart, waits: Lists | None = None) -> None:
        """Write a part. ``waits`` has the ids of the events that each row of its block waited for."""
        block = part.block
        rows = block.rows
        first = int(rows["start"][part.begin])
        if first < self._sequence.anchored:
            # Blocks come in the order of the first times in their headers. The header of this block was wrong.
            self._open()
        fresh = self._sequence.time < 0
        self._sequence.anchor(first)
        if fresh:
            self._sequence.intern(self._common)
        unsent = self._sent.styles.add(part.styles)
        if len(unsent):
            self._index.intern(unsent, self._sequence, self._sent)
        columns: Columns = {
            "start": rows["start"],
            "event_id": block.ids,
            "correlation": rows["correlation"],
            "style": block.styles,
            "styles": self._index.events,
            "prefixes": self._output.prefixes,
        }
        for name in self._table.arguments:
            if name not in block.computed:
                columns[name] = rows[name]
        columns |= block.computed
        if waits:
            columns["wait_offsets"], columns["waits"] = waits
        stream = self._templates[waits is not None].bind(columns)
        offsets = np.array([part.begin, part.end], np.uint32)
        self._output.events([stream], [self._sequence], offsets, rows["start"])

    def _open(self) -> None:
        self._sequence = self._output.sequence()
        self._sent = SentStyles()

    def _template(self, waits: bool) -> Template:
        args = []
        for name in self._table.arguments:
            iid = self._common.name("compute_arg_names", name)
            args.append(When(name, {"name_iid": iid, "uint_value": FromColumn(name)}))
        event: dict[str, Any] = {
            "event_id": FromColumn("event_id"),
            "duration": FromColumn("duration"),
            # submission_id is left out: viewers show it as an argument, so each event would need separate arguments.
            "cutrace_correlation": FromColumn("correlation", omit=0),
            "style": Piece("style", "styles"),
        }
        if waits:
            event["event_wait_ids"] = Each("wait_offsets", "waits")
        if args:
            event["launch"] = {"args": args}
        packet = {
            "sequence": SegmentPiece("prefixes"),
            "timestamp": Delta("start"),
            "gpu_render_stage_event": event,
        }
        return Template("Trace", {"packet": packet})


def _bandwidth(size: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Bytes per second of each copy; 0 for a copy without duration, which omits the argument."""
    out = np.zeros(len(size))
    np.divide(size * 1e9, duration, out=out, where=duration > 0)
    np.minimum(out, 2.0**63, out=out)
    return np.rint(out).astype(np.uint64)
