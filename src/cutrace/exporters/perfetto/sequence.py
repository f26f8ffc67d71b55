"""Packet sequences: streams of packets with a clock, interned data and defaults of their own.

Times on a sequence are differences to the packet before (an incremental clock, sequence-scoped), which cost two or
three bytes where a full timestamp costs eight. A clock snapshot says where the differences begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from . import schema
from .output import Output

BOOTTIME = 6
INCREMENTAL = 64  # the first of the clock ids that belong to a sequence

CLEARED, NEEDS_STATE = 1, 2


@dataclass(frozen=True)
class Interned:
    """One entry of interned data: the field of InternedData, and the entry itself with its ``iid``."""

    field: str
    iid: int
    values: dict[str, Any]


@dataclass
class Sequence:
    """One packet sequence.

    ``time`` is where its clock stands (ns of BOOTTIME, -1 before it is opened), ``anchored`` where it was last set:
    snapshots of a clock must not go back, while the packets behind one may lie ahead of the next. ``piece`` is the
    number of what all its packets have in common in ``output.prefixes`` and ``bare_prefixes``.
    """

    id: int
    output: Output
    defaults: dict[str, Any] = field(default_factory=dict)
    time: int = -1
    anchored: int = field(init=False, default=-1)
    piece: int = field(init=False)
    _sent: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        fields = {"trusted_packet_sequence_id": self.id}
        self.output.bare_prefixes.add(schema.encode("TracePacket", fields))
        fields["sequence_flags"] = NEEDS_STATE
        self.piece = self.output.prefixes.add(schema.encode("TracePacket", fields))

    def packet(self, values: dict[str, Any]) -> None:
        """A packet that does not need the clock."""
        self.output.packet({"trusted_packet_sequence_id": self.id, **values})

    def anchor(self, time: int) -> None:
        """Set the clock to a moment that is not before :attr:`anchored`; the first one opens the sequence."""
        assert time >= self.anchored, "snapshots of one clock do not go back"
        if self.time < 0:
            defaults = {"timestamp_clock_id": INCREMENTAL, **self.defaults}
            self.packet({"sequence_flags": CLEARED, "trace_packet_defaults": defaults})
        self.time = self.anchored = time
        clocks = [
            {"clock_id": BOOTTIME, "timestamp": time},
            {"clock_id": INCREMENTAL, "timestamp": time, "is_incremental": True},
        ]
        self.packet({"clock_snapshot": {"clocks": clocks}})

    def intern(self, entries: Iterable[Interned]) -> None:
        """Send the entries that this sequence has not seen."""
        data: dict[str, list[dict[str, Any]]] = {}
        for entry in entries:
            if (entry.field, entry.iid) not in self._sent:
                self._sent.add((entry.field, entry.iid))
                data.setdefault(entry.field, []).append({"iid": entry.iid, **entry.values})
        if data:
            self.packet({"sequence_flags": NEEDS_STATE, "interned_data": data})
