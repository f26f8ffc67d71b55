"""Trace-event JSON of any program, the format of chrome://tracing."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..errors import BadCapture
from ..trace_events import LOSSES, MISSING, OWN
from .base import DAMAGED, HEAD, WITHOUT_CAPTURE, Import, SourceFile, value_of
from .events import EventReader
from .generic import RULES, Generic
from .timeline import ImportTimeline

#: The reason why an event could not be read, by the scanner's code.
_PROBLEMS = {
    "syntax": "invalid JSON",
    "deep": "nested too deeply",
    "large": "larger than 16 MiB",
    "not_object": "not a JSON object",
    "no_phase": "no phase",
    "truncated": "the file ends inside it",
}
#: The largest top-level value (bytes of JSON) that is kept.
_LARGEST_VALUE = 1 << 20

#: The number of bytes (unpacked) of an object in which its events are searched.
_FURTHEST = 64 << 20

#: Tables that cutrace exports as events, by the category of the events. An import puts these events into other tables.
_OTHER_TABLES = {
    "nvtx": "nvtx_ranges and nvtx_marks",
    "allocation": "allocations",
    "memory_pool": "memory_pools",
    "unified_memory": "unified_memory",
    "jit": "jit",
}

_ARRAY = re.compile(rb"\[\s*(?:\{|\]|$)")
_PHASE = re.compile(rb'"ph"\s*:\s*"')
_OBJECT = re.compile(rb'"traceEvents"\s*:\s*\[')


class ChromeImporter:
    """See :class:`cutrace.importers.base.Importer`."""

    name = "chrome"
    description = "trace-event JSON (chrome://tracing)"

    def recognizes(self, source: SourceFile) -> bool:
        return looks_like_events(source.head) or _has_events_later(source)

    def read(self, source: SourceFile, out: Import) -> None:
        events = EventReader(source, RULES, out)
        read(events, out, lambda phase, category: f"{phase} events", Generic)


def looks_like_events(head: bytes) -> bool:
    """Whether a file with this head is trace-event JSON: an array of events, or an object with such an array."""
    head = without_mark(head)
    if _ARRAY.match(head):
        return head[1:].lstrip()[:1] in (b"", b"]") or bool(_PHASE.search(head))
    return head.startswith(b"{") and bool(_OBJECT.search(head))


def without_mark(head: bytes) -> bytes:
    """The head of a string without a byte order mark and white space."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()


def _has_events_later(source: SourceFile) -> bool:
    """Whether an object has an array of events after long other values."""
    if len(source.head) < HEAD or not without_mark(source.head).startswith(b"{"):
        return False
    rest = b""
    read = 0
    try:
        with source.open() as file:
            while read < _FURTHEST and (chunk := file.read(1 << 20)):
                if _OBJECT.search(rest + chunk):
                    return True
                rest = chunk[-64:]
                read = read + len(chunk)
    except DAMAGED:
        pass  # the rest is unreadable
    return False


def read(
    reader: EventReader,
    out: Import,
    label: Callable[[str, str], str],
    make: Callable[[ImportTimeline], Generic],
) -> None:
    """Convert the events of a file. ``make`` returns the object that converts all groups of the reader."""
    timeline = ImportTimeline(out, reader, label)
    converter = make(timeline)
    for batch in reader:
        timeline.begin(batch)
        converter.begin(batch)
        for events in batch:
            converter.take(events)
    nothing = not timeline.process_count and not converter.metadata
    if not reader.has_events or (nothing and any(reader.scanner.problems.values())):
        raise BadCapture(
            f"{reader.path} holds no readable trace events: check how it was written."
        )
    others = {}
    for key, text in reader.others.items():
        if 0 < len(text) <= _LARGEST_VALUE:
            others[key] = value_of(text)
        else:
            why = "larger than 1 MiB or nested too deeply"
            out.left(f"top-level value {key}", 1, why=why)
    of_cutrace = others.pop(OWN, None) is not None
    if of_cutrace:
        out.note(WITHOUT_CAPTURE)
    missing = others.pop(MISSING, None)
    carried = others.pop(LOSSES, None)
    if carried is None:
        # Older versions wrote only sentences.
        carried = {"notes": missing}
    out.carried(carried)
    converter.finish(others)
    converter.finish_metadata()
    if of_cutrace:
        _leave_tables(timeline, out)
    if not timeline.process_count:
        timeline.process_index(0)
    timeline.writer(0).process({"trace_metadata": others})
    timeline.finish()
    for reason, count in reader.scanner.problems.items():
        out.lost("events", count, why=_PROBLEMS[reason])


def _leave_tables(timeline: ImportTimeline, out: Import) -> None:
    """Count the rows that became rows of another table."""
    for category, tables in _OTHER_TABLES.items():
        count = timeline.kept_of(category)
        why = "their events became slices and instants"
        out.left(f"rows of {tables}", count, why=why)


CHROME = ChromeImporter()
