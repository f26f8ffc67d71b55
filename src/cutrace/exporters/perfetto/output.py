"""The file that packets go to: gathered in groups of a few MiB, compressed on request, written as they fill."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from ..._native import Blobs, Program, encode
from ...embedding import pieces
from ...outputs import create
from ...trace import Trace
from ..base import Compression
from . import schema

Stream = tuple[Program, "list[np.ndarray | Blobs]"]

#: Bytes of packets that are written, and compressed, together.
GROUP_SIZE = 4 << 20


class Output:
    """Writes packets to ``path``; a path that ends with .gz is compressed as a whole. Leaving the ``with`` block by
    an exception removes the file."""

    def __init__(self, path: Path, compress: Compression) -> None:
        self._path = path
        self._wrap = _wrapper(compress)
        self._group = np.empty(GROUP_SIZE, np.uint8)
        self._used = 0
        # What the packets of each sequence have in common, by the number that a sequence has here. The flag that tells
        # a reader to leave out a packet when some before it were lost is not in the bare ones: no packet of a file gets
        # lost on its own, and no id means one thing here and another there. It would be a tenth of a host event.
        self.prefixes, self.bare_prefixes = Blobs(), Blobs()
        self._raw: BinaryIO = os.fdopen(create(path), "wb", buffering=0)
        self._file: Any = gzip.GzipFile("", "wb", 6, self._raw, 0) if path.suffix.lower() == ".gz" else self._raw

    @property
    def prefixed(self) -> dict[str, Blobs]:
        """The columns that templates of events begin with."""
        return {"prefixes": self.prefixes, "bare_prefixes": self.bare_prefixes}

    def packet(self, values: Mapping[str, Any]) -> None:
        """One packet from values by field name (see :func:`schema.encode`)."""
        self._bytes(schema.encode("Trace", {"packet": values}))

    def capture(self, trace: Trace) -> None:
        """The capture behind a trace, in packets that viewers skip and that are compressed as they are."""
        self.flush()
        for piece in pieces(trace):
            packet = {"trusted_packet_sequence_id": 1, "cutrace_capture": piece}
            self._write(schema.encode("Trace", {"packet": packet}))

    def events(
        self,
        streams: Sequence[Stream],
        offsets: np.ndarray,
        pieces: np.ndarray,
        lasts: np.ndarray,
        *,
        which: np.ndarray | None = None,
        rows: np.ndarray | None = None,
        first: int = 0,
    ) -> None:
        """Encode events in segments (see ``cutrace._native.encode``), beginning with event ``first``; ``lasts`` is
        updated."""
        event, stop = first, int(offsets[-1])
        while event < stop:
            before = event
            self._used, event = encode(self._group, self._used, streams, offsets, pieces, lasts, event, which, rows)
            if event < stop:
                if self._used:
                    self.flush()
                elif event == before:
                    self._group = np.empty(2 * len(self._group), np.uint8)  # one event larger than a group

    def flush(self) -> None:
        """Write the packets gathered so far."""
        if self._used:
            self._write(self._wrap(self._group[: self._used].data))
            self._used = 0

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
            if self._file is not self._raw:
                self._file.close()
        except OSError:
            kind = OSError
            raise
        finally:
            self._raw.close()
            if kind is not None:
                self._path.unlink(missing_ok=True)

    def _bytes(self, data: bytes) -> None:
        if self._used + len(data) > len(self._group):
            self.flush()
        if len(data) > len(self._group):
            self._write(self._wrap(memoryview(data)))
            return
        self._group[self._used : self._used + len(data)] = np.frombuffer(data, np.uint8)
        self._used += len(data)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view) :]


def _wrapper(compress: Compression) -> Callable[[memoryview], bytes | memoryview]:
    """What becomes of a group of packets: itself, or one packet that holds it compressed."""
    if compress == "zstd":
        import zstandard

        # The constant bytes of a packet between two numbers are often no more than four, and what is like a packet is
        # mostly near: few, recent places to look for short matches find the ones that are cheapest to refer to. Against
        # the level's own settings that saves a third of the time and up to a tenth of the size.
        settings = zstandard.ZstdCompressionParameters.from_level(
            3, min_match=4, hash_log=15, chain_log=8, window_log=19
        )
        compressor = zstandard.ZstdCompressor(compression_params=settings)
        return lambda group: schema.encode("Trace", {"packet": {"zstd_compressed_packets": compressor.compress(group)}})
    if compress == "deflate":
        return lambda group: schema.encode("Trace", {"packet": {"compressed_packets": zlib.compress(group, 6)}})
    return lambda group: group
