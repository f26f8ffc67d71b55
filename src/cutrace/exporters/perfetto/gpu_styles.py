"""Styles of GPU work, as columns. A style is all data of an event except its times and ids: name, launch configuration
and queue.

A capture can have as many styles, names and streams as events. So the fields that differ between the styles of a family
(see :mod:`.gpu_tables`) are encoded from columns, and interned entries are written many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np

from ..._native import Blobs, Keys, encode_pieces
from ...runbin.layout import TABLES
from ...trace.codes import KernelCodes
from ...trace.rows import distinct
from ...trace.strings import StringTable
from . import proto
from .descriptors import COMPUTE, Descriptors
from .gpu_tables import ABSENT, QUEUE_FIELDS, GpuTable
from .kernel_names import KernelNameColumns
from .packets import (
    Interned,
    InternedNames,
    InternedRefs,
    InternedTexts,
    Output,
    SentNumbers,
    Sequence,
)
from .proto import Columns, FromColumn, Piece, SegmentPiece, String, Template, When

#: The columns of a style: its family and queue, the path of ranges in which its graph node was created, the ids of its
#: name and of the string about its code (0 for none), and the numbers of its names among the names of kernels.
_STYLE = np.dtype(
    [
        ("family", np.uint32),
        ("queue", np.uint32),
        ("path", np.uint32),
        ("name", np.uint32),
        ("code", np.uint32),
        ("mangled", np.uint32),
        ("demangled", np.uint32),
    ]
)

#: The arguments of the fields of a queue. Perfetto's page names a stream "Stream #7" if its GPU work has the arguments
#: "device" and "stream". Otherwise the stream has the name of its queue.
_QUEUE_ARGUMENTS = {"device": "device", "context": "context", "stream": "stream_id"}

_QUEUE_ENTRY = Template(
    "InternedData",
    {
        "gpu_specifications": {
            "iid": FromColumn("iid"),
            "name": String("queue", "names"),
            "category": COMPUTE,
        }
    },
)


class KeyIndex:
    """Numbers for the combinations of some fields, in order of appearance. ``keys`` has the combination of each
    number."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields
        self.keys: list[tuple[int, ...]] = []
        self._numbers = Keys(len(fields))

    def of(self, rows: np.ndarray) -> np.ndarray:
        columns = [rows[field] for field in self.fields]
        numbers, new = self._numbers.ids(columns)
        new_values = [column[new].tolist() for column in columns]
        self.keys += zip(*new_values, strict=True)
        return numbers


class Queues(KeyIndex):
    """The streams of one process. By number, ``queue_ids`` and ``context_ids`` have the interned ids of a stream and
    its context, ``gpus`` the index of its GPU."""

    def __init__(self, descriptors: Descriptors, process: int) -> None:
        super().__init__(*QUEUE_FIELDS)
        self._devices = descriptors.devices
        self._process = process
        self.queue_ids = self.context_ids = self.gpus = np.zeros(0, np.uint32)
        self._names = Blobs()
        self._contexts: dict[int, Interned] = {}

    def of(self, rows: np.ndarray) -> np.ndarray:
        numbers = super().of(rows)
        if len(self.keys) > len(self.gpus):
            self._describe(self.keys[len(self.gpus) :])
        return numbers

    def _describe(self, keys: Ordered[tuple[int, ...]]) -> None:
        devices = self._devices
        process = self._process
        described = []
        for device, context, stream in keys:
            queue_id, name = devices.queue(process, device, context, stream)
            self._names.add(proto.utf8(name))
            entry = devices.context(process, context)
            self._contexts[entry.iid] = entry
            described.append((queue_id, entry.iid, devices.gpu(process, device)))
        queue_ids, context_ids, gpus = np.array(described, np.uint32).T
        self.queue_ids = np.append(self.queue_ids, queue_ids)
        self.context_ids = np.append(self.context_ids, context_ids)
        self.gpus = np.append(self.gpus, gpus)

    def contexts(self, queues: np.ndarray) -> list[Interned]:
        """The interned entries of the contexts of some streams."""
        iids = distinct(self.context_ids[queues])
        return [self._contexts[iid] for iid in iids.tolist()]

    def entries(self, queues: np.ndarray) -> bytes:
        """The interned entries of some streams, encoded."""
        columns: Columns = {
            "iid": self.queue_ids[queues],
            "queue": queues,
            "names": self._names,
        }
        return _QUEUE_ENTRY.rows(columns, len(queues))


class _CodeTexts:
    """The strings about the machine code of kernels of one process, which are interned."""

    def __init__(
        self,
        codes: KernelCodes,
        strings: StringTable,
        process: int,
        names: InternedNames,
    ) -> None:
        self._codes = codes
        self._strings = strings
        self._process = process
        self.texts = InternedTexts(names, "debug_annotation_string_values")
        self._keys = Keys(2)
        self._ids = np.zeros(0, np.uint32)  # of strings, by key

    def of(self, names: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """The ids of the strings of launch configurations, given their names and codes."""
        # A known code has the same string for all names.
        names_of_unknown = np.where(codes == 0, names, np.uint32(0))
        keys, new = self._keys.ids([names_of_unknown, codes])
        texts = []
        for number in new.tolist():
            name = self._strings[int(names[number])]
            code = int(codes[number])
            texts.append(self._codes.text(self._process, name, code))
        self._ids = np.append(self._ids, self.texts.add(texts))
        return self._ids[keys]


class SentStyles:
    """The styles, families, queues and strings whose interned entries a sequence has received."""

    def __init__(self) -> None:
        self.styles = SentNumbers()
        self.families = SentNumbers()
        self.queues = SentNumbers()
        self.names = SentNumbers()
        self.codes = SentNumbers()


class StyleIndex:
    """The styles of one table in one process, numbered in order of appearance. ``queues`` numbers the streams."""

    def __init__(
        self,
        table: GpuTable,
        descriptors: Descriptors,
        process: int,
        output: Output,
        queues: Queues,
        names: KernelNameColumns,
    ) -> None:
        self.table = table
        self._descriptors = descriptors
        self._process = process
        self._output = output
        self._queues = queues
        self._names = names
        trace = descriptors.trace
        self._origins = trace.origins
        self._python_stacks = trace.python_stacks
        self._codes: _CodeTexts | None = None
        if trace.codes:
            self._codes = _CodeTexts(trace.codes, trace.strings, process, output.names)
        fields = (*table.number_fields, *table.family_fields, *QUEUE_FIELDS)
        self.fields = tuple(dict.fromkeys(fields))
        self._keys = self.keys()
        # A family also depends on whether the launch configuration is known, on the creation of the graph node, and on
        # the Python frame of the launch.
        self._family_fields = ("device", *table.family_fields)
        family_columns = len(self._family_fields) + len(table.launch_fields) + 3
        self._family_keys = Keys(family_columns)
        # By style.
        types = TABLES[table.name].dtype
        row = [(field, types[field]) for field in self.fields]
        self._rows = np.zeros(0, row)
        self._styles = np.zeros(0, _STYLE)
        #: By style, the encoded fields of the event.
        self.events = Blobs()
        # By family: the id of its name, the interned entries that it needs, and the encoded fields of its kernels
        # (before the arguments, and inside them).
        self._family_names = np.zeros(0, np.uint32)
        self._refs: list[InternedRefs] = []
        self._kernel_pieces = Blobs()
        self._argument_pieces = Blobs()
        #: The interned entries that each sequence with styles of this table needs.
        self.common = InternedRefs(output.names)
        self._event = self._event_template()
        self._kernel = self._kernel_template()

    def __len__(self) -> int:
        return len(self._styles)

    def keys(self) -> Keys:
        """Keys for :meth:`columns`."""
        return Keys(len(self.fields) + (self._python_stacks is not None))

    def columns(self, rows: np.ndarray, frames: np.ndarray | None) -> list[np.ndarray]:
        """The columns that determine the style of rows. ``frames`` is the result of :meth:`frames`."""
        columns = [rows[f] for f in self.fields]
        if frames is None:
            return columns
        return [*columns, frames]

    def frames(self, rows: np.ndarray) -> np.ndarray | None:
        """The innermost Python frame of the launching call of each row, 0 if unknown; None in a trace without stacks.
        Thread-safe."""
        if self._python_stacks is None:
            return None
        stacks = self._python_stacks.of(self._process, rows["correlation"])
        return self._python_stacks.innermost(stacks)

    def of(self, rows: np.ndarray, frames: np.ndarray | None) -> np.ndarray:
        """The styles of rows."""
        styles, new = self._keys.ids(self.columns(rows, frames))
        if len(new):
            frames_of_new = np.zeros(len(new), np.uint32)
            if frames is not None:
                frames_of_new = frames[new]
            self._add(rows[new], frames_of_new)
        return styles

    def queues_of(self, styles: np.ndarray) -> np.ndarray:
        """The number of the stream of each of some styles."""
        return self._styles["queue"].take(styles)

    def paths_of(self, styles: np.ndarray) -> np.ndarray:
        """The path (:class:`cutrace.trace.origins.Origins`) of the graph node of each of some styles."""
        return self._styles["path"].take(styles)

    def intern(self, styles: np.ndarray, sequence: Sequence, sent: SentStyles) -> None:
        """Write the interned entries of styles that a sequence has not received. ``sent`` is updated."""
        chosen = self._styles[styles]
        queues = sent.queues.add(chosen["queue"])
        entries: list[Interned] = []
        for family in sent.families.add(chosen["family"]).tolist():
            entries += self._refs[family]
        entries += self._queues.contexts(queues)
        encoded = self._queues.entries(queues)
        if self.table.launched:
            names = sent.names.add(chosen["name"])
            encoded += self._names.shown.entries(names)
        if self._codes:
            known = chosen["code"][chosen["code"] != 0]
            encoded += self._codes.texts.entries(sent.codes.add(known))
        sequence.intern(entries, encoded)
        self._write_kernels(styles, chosen, sequence)

    def _write_kernels(
        self, styles: np.ndarray, chosen: np.ndarray, sequence: Sequence
    ) -> None:
        """Write the interned kernels of styles."""
        rows = self._rows[styles]
        numbers = self.table.numbers(self._descriptors, self._process, rows)
        columns: Columns = {
            **numbers,
            "iid": styles + 1,
            "family": chosen["family"],
            "kernels": self._kernel_pieces,
            "arguments": self._argument_pieces,
            "mangled": chosen["mangled"],
            "mangled_names": self._names.mangled,
            "demangled": chosen["demangled"],
            "demangled_names": self._names.demangled,
            "code": chosen["code"],
            "prefixes": self._output.prefixes,
        }
        columns |= {name: rows[name] for name in QUEUE_FIELDS}
        self._output.series(self._kernel.bind(columns), sequence, len(styles))

    def _add(self, rows: np.ndarray, frames: np.ndarray) -> None:
        """Add the styles of rows, one for each."""
        first = len(self)
        launches = None
        if self.table.launched:
            launches = self._descriptors.trace.launches[rows["launch"]]
        styles = np.zeros(len(rows), _STYLE)
        self._find_families(styles, rows, launches, frames)
        styles["queue"] = self._queues.of(rows)
        if launches is None:
            styles["name"] = self._family_names[styles["family"]]
        else:
            known = rows["launch"] != 0
            self._names.describe(styles, launches["name"], known)
            if self._codes:
                names = launches["name"][known]
                codes = launches["code"][known]
                styles["code"][known] = self._codes.of(names, codes)
        self._styles = np.append(self._styles, styles)
        self._rows.resize(len(self), refcheck=False)
        for f in self._rows.dtype.names or ():
            self._rows[f][first:] = rows[f]
        self._encode_events(styles, first)

    def _find_families(
        self,
        styles: np.ndarray,
        rows: np.ndarray,
        launches: np.ndarray | None,
        frames: np.ndarray,
    ) -> None:
        """Set the families and paths of styles, and describe new families."""
        columns = [rows[f] for f in self._family_fields]
        known = np.zeros(len(rows), bool)
        creation = np.zeros(len(rows), np.uint32)
        if launches is not None:
            columns += [launches[f] for f in self.table.launch_fields]
            known = rows["launch"] != 0
        if self._origins:
            nodes = self._origins.of(self._process, self.table.name, rows)
            styles["path"] = self._origins.path_of[nodes]
            creation = self._origins.creations[0][nodes]
        columns += [known, creation, frames]
        styles["family"], new = self._family_keys.ids(columns)
        for number in new.tolist():
            frame = int(frames[number])
            self._add_family(rows[number], int(creation[number]), frame)

    def _encode_events(self, styles: np.ndarray, first: int) -> None:
        """Encode the fields of the events of new styles, which are numbered from ``first``."""
        queues = styles["queue"]
        columns: Columns = {
            "queue": self._queues.queue_ids[queues],
            "gpu": self._queues.gpus[queues],
            "context": self._queues.context_ids[queues],
            "name": styles["name"],
            "iid": np.arange(first + 1, len(self) + 1),
        }
        encode_pieces(self.events, self._event.bind(columns), len(styles))

    def _created(self, number: int) -> dict[str, int | str | None]:
        """The arguments of a creation of graph nodes."""
        if not number or not self._origins:
            return {}
        path, thread, call = self._origins.creations[1][number]
        creator = None
        if thread:
            creator = f"{call or 'a call'}, thread {thread}"
        return {"created_in": self._origins.text(path), "created_by": creator}

    def _launched(self, frame: int) -> dict[str, int | str | None]:
        """The argument of the Python frame of a launch."""
        if frame and self._python_stacks:
            return {"launched_at": self._python_stacks.place(frame)}
        return {}

    def _add_family(self, row: np.void, creation: int, frame: int) -> None:
        family = self.table.describe(self._descriptors, self._process, row)
        refs = InternedRefs(self._output.names)
        arguments = {
            **family.arguments,
            **self._created(creation),
            **self._launched(frame),
        }
        args = {"args": refs.compute_args(arguments)}
        self._argument_pieces.add(proto.encode("InternedComputeKernel", args))
        self._kernel_pieces.add(proto.encode("InternedComputeKernel", family.kernel))
        name = 0
        if not self.table.launched:
            name = refs.name("event_names", family.name)
        self._family_names = np.append(self._family_names, np.uint32(name))
        self._refs.append(refs)

    def _event_template(self) -> Template:
        stage = self._descriptors.devices.stage(self.table.stage)
        event: dict[str, Any] = {
            "hw_queue_iid": FromColumn("queue"),
            "stage_iid": self.common.add(stage),
            "gpu_id": FromColumn("gpu", omit=0),  # The default is 0.
            "context": FromColumn("context"),
            "name_iid": FromColumn("name"),
            "kernel_iid": FromColumn("iid"),
        }
        return Template("GpuRenderStageEvent", event)

    def _kernel_template(self) -> Template:
        def argument(name: str, kind: str, column: str = "") -> dict[str, Any]:
            name_iid = self.common.name("compute_arg_names", name)
            return {"name_iid": name_iid, kind: FromColumn(column or name)}

        kernel: dict[str, Any] = {"iid": FromColumn("iid")}
        if self.table.launched:
            kernel["name"] = String("mangled", "mangled_names")
            kernel["demangled_name"] = String("demangled", "demangled_names")
        kernel["family"] = Piece("family", "kernels")
        args: list[Any] = []
        for field, name in _QUEUE_ARGUMENTS.items():
            args.append(argument(name, "uint_value", field))
        args.append(Piece("family", "arguments"))
        if self._codes:
            args.append(When("code", argument("code_hash", "string_value_iid", "code")))
        for name in self.table.counts:
            number = argument(name, "uint_value")
            args.append(When(name, number, unless=ABSENT))
        for name in self.table.ratios:
            ratio = argument(name, "double_value")
            args.append(When("occupancy_limit_blocks", ratio, unless=ABSENT))
        kernel["args"] = args
        packet = {
            "sequence": SegmentPiece("prefixes"),
            "interned_data": {"compute_kernels": kernel},
        }
        return Template("Trace", {"packet": packet})
