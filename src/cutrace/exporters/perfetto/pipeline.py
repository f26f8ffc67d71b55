"""The threads of a conversion. Packets are encoded and compressed by several, and written in order by one.

The bytes of the file depend on what is given to it alone, not on the number of threads.
"""

from __future__ import annotations

import gzip
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ...runbin import BlockInfo

T = TypeVar("T")
#: Encodes into a buffer, from an offset and an event on, what has room. Returns the offset and the event to go on from.
Encode = Callable[[np.ndarray, int, int], tuple[int, int]]

#: Bytes of packets that are written, and compressed, together.
GROUP_SIZE = 4 << 20

#: A call with fewer events is encoded at once: handing it to a thread takes longer.
_FEW_EVENTS = 1 << 12

#: What keeps an order is done by three threads, whatever the number of cores. More workers would wait for them.
_MOST_WORKERS = 4

#: Blocks that are read before they are asked for.
_BLOCKS_AHEAD = 4


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OrderedThread:
    """Runs calls in the order in which they are given, in a thread of its own, or at once on one core. :meth:`run`
    waits as long as more than ``ahead`` calls are not done, which bounds the memory that they hold. An error of a call
    is raised by a later one, or by :meth:`wait`."""

    def __init__(self, ahead: int, threads: bool) -> None:
        self._thread: Executor = ThreadPoolExecutor(1) if threads else _AtOnce()
        self._given: deque[Future[Any]] = deque()
        self._ahead = ahead

    def run(self, call: Callable[..., object], *args: Any) -> None:
        self._given.append(self._thread.submit(call, *args))
        self.wait(self._ahead)

    def wait(self, left: int = 0) -> None:
        """Wait until at most so many calls are not done."""
        while len(self._given) > left:
            self._given.popleft().result()

    def __enter__(self) -> OrderedThread:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


class PacketFile:
    """Writes packets to ``path``; a path that ends with .gz is compressed as a whole. ``wrap`` makes a packet that
    holds a group of packets compressed; several threads call it. An error of a thread is raised by a later call, or
    when the ``with`` block is left."""

    def __init__(self, path: Path, wrap: Callable[[bytes], bytes] | None = None, workers: int | None = None) -> None:
        self._wrap = wrap
        self._workers = min(available_cores(), _MOST_WORKERS) if workers is None else workers
        self._group, self._used = np.empty(GROUP_SIZE, np.uint8), 0
        self._spare: SimpleQueue[np.ndarray] = SimpleQueue()
        # Packets that wait to be compressed together, and groups that are being compressed. Only the writer uses these.
        self._gathered: list[np.ndarray] = []
        self._packed: deque[Future[bytes]] = deque()
        self._raw: BinaryIO = path.open("wb", buffering=0)
        self._file: Any = gzip.GzipFile("", "wb", 6, self._raw, 0) if path.suffix == ".gz" else self._raw
        self._pool: Executor = ThreadPoolExecutor(self._workers) if self._workers > 1 else _AtOnce()
        self._writer = self.thread(self._workers + 2)

    def put(self, packets: bytes) -> None:
        if self._used + len(packets) > len(self._group):
            self._send_group()
        if len(packets) > len(self._group):
            self._send(_done([np.frombuffer(packets, np.uint8)]))
            return
        self._group[self._used : self._used + len(packets)] = np.frombuffer(packets, np.uint8)
        self._used += len(packets)

    def events(self, encoded: Encode, first: int, stop: int) -> None:
        """Write the packets of events from ``first`` to ``stop``, which ``encoded`` puts into a buffer."""
        if stop - first < _FEW_EVENTS:
            self._used, first = encoded(self._group, self._used, first)
        if first < stop:
            self._send_group()
            self._send(self._pool.submit(self._encode, encoded, first, stop))

    def put_made(self, make: Callable[[], bytes]) -> None:
        """Write the encoded packets that a function makes, in a thread. They are not compressed with others."""
        self._send_group()
        self._writer.run(self._write_alone, self.submit(make))

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in one of the threads."""
        return self._pool.submit(call, *args)

    def thread(self, ahead: int) -> OrderedThread:
        """A thread beside those of the file (see :class:`OrderedThread`)."""
        return OrderedThread(ahead, self._workers > 1)

    def read_ahead(self, read: Callable[[BlockInfo], T], blocks: Iterable[BlockInfo]) -> Callable[[BlockInfo], T]:
        """The function ``read``, whose results for ``blocks`` (each asked for once, about in this order) are made
        before they are asked for."""
        if self._workers < 2:
            return read
        left = deque(blocks)
        ready: dict[int, Future[T]] = {}

        def advance() -> None:
            while left and len(ready) < _BLOCKS_AHEAD:
                block = left.popleft()
                ready[block.offset] = self._pool.submit(read, block)

        def result(block: BlockInfo) -> T:
            advance()
            job = ready.pop(block.offset, None)
            if job is None and block in left:
                left.remove(block)
            advance()
            return read(block) if job is None else job.result()

        return result

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with ExitStack() as last:
            last.callback(self._raw.close)
            last.callback(self._file.close)
            last.enter_context(self._writer)
            last.callback(self._pool.shutdown, cancel_futures=True)
            if kind is None:
                self._finish()

    # The caller's thread

    def _send_group(self) -> None:
        if self._used:
            group, self._group = self._group[: self._used], self._buffer()
            self._used = 0
            self._send(_done([group]))

    def _finish(self) -> None:
        self._send_group()
        self._writer.wait()
        self._pack()
        self._drain(0)

    def _send(self, packets: Future[list[np.ndarray]]) -> None:
        """Let packets be written behind those sent before."""
        self._writer.run(self._write, packets)

    # The threads of the pool

    def _encode(self, encoded: Encode, event: int, stop: int) -> list[np.ndarray]:
        """The packets of events, each array at most a group unless one packet is larger."""
        parts, buffer = [], self._buffer()
        while event < stop:
            size, event = encoded(buffer, 0, event)
            if size:
                parts.append(buffer[:size])
            if event < stop:
                buffer = self._buffer() if size else np.empty(2 * len(buffer), np.uint8)
        return parts

    def _buffer(self) -> np.ndarray:
        """Memory for a group: the system need not clear what was used before."""
        try:
            return self._spare.get_nowait()
        except Empty:
            return np.empty(GROUP_SIZE, np.uint8)

    # The writer's thread

    def _write(self, packets: Future[list[np.ndarray]]) -> None:
        for part in packets.result():
            if self._wrap is None:
                self._out(part.data)
                self._give_back(part)
                continue
            if sum(map(len, self._gathered)) + len(part) > GROUP_SIZE:
                self._pack()
                self._drain(self._workers)
            self._gathered.append(part)

    def _write_alone(self, packets: Future[bytes]) -> None:
        self._pack()
        self._drain(0)
        self._out(packets.result())

    def _pack(self) -> None:
        """Let the gathered packets be compressed."""
        if self._gathered and self._wrap:
            self._packed.append(self._pool.submit(self._wrap, b"".join(part.data for part in self._gathered)))
            for part in self._gathered:
                self._give_back(part)
            self._gathered.clear()

    def _drain(self, left: int) -> None:
        """Write compressed groups until so many are left."""
        while len(self._packed) > left:
            self._out(self._packed.popleft().result())

    def _out(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            view = view[self._file.write(view) :]

    def _give_back(self, part: np.ndarray) -> None:
        if isinstance(part.base, np.ndarray) and len(part.base) == GROUP_SIZE:
            self._spare.put(part.base)


class _AtOnce(Executor):
    """Runs what is submitted before it returns: on one core, threads would only take turns."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return _done(call(*args, **kwargs))


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
