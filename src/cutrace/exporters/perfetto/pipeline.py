"""The threads of a conversion. Several threads encode and compress packets; one thread writes them in order.

The bytes of the file do not depend on the number of threads.
"""

from __future__ import annotations

import gzip
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ...outputs import available_cores
from ...runbin import BlockInfo

T = TypeVar("T")
#: Encodes events into a buffer until it is full, starting at an offset and an event. Returns the next offset and event.
Encode = Callable[[np.ndarray, int, int], tuple[int, int]]

#: Bytes of packets that are compressed and written together.
GROUP_SIZE = 4 << 20

#: The caller's thread encodes calls with fewer events, because handing them to another thread takes longer.
_FEW_EVENTS = 1 << 12

#: More workers would wait for the three threads that do the work in order.
_MOST_WORKERS = 4

#: Calls whose packets are not written yet. Each holds a window and its packets.
_WRITES_AHEAD = 3

#: The number of blocks to read ahead.
_BLOCKS_AHEAD = 4


class OrderedThread:
    """Runs calls in order, in a thread of its own; without ``threads``, in the caller's thread. :meth:`run` waits while
    more than ``ahead`` calls are not done, which bounds the memory that they hold. A later :meth:`run` or :meth:`wait`
    raises the error of a call."""

    def __init__(self, ahead: int, threads: bool) -> None:
        self._thread: Executor = ThreadPoolExecutor(1) if threads else _AtOnce()
        self._given: deque[Future[Any]] = deque()
        self._ahead = ahead

    def run(self, call: Callable[..., object], *args: Any) -> None:
        self._given.append(self._thread.submit(call, *args))
        self.wait(self._ahead)

    def wait(self, left: int = 0) -> None:
        """Wait until at most ``left`` calls are not done."""
        while len(self._given) > left:
            self._given.popleft().result()

    def __enter__(self) -> OrderedThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


class PacketFile:
    """Writes packets to ``path``; a path that ends with .gz is compressed as a whole. ``wrap`` compresses a group of
    packets into one packet; it must be thread-safe. A later call, or the end of the ``with`` block, raises the error of
    a thread."""

    def __init__(
        self,
        path: Path,
        wrap: Callable[[bytes], bytes] | None = None,
        workers: int | None = None,
    ) -> None:
        self._wrap = wrap
        if workers is not None:
            self._workers = workers
        elif threading.main_thread().is_alive():
            self._workers = min(available_cores(), _MOST_WORKERS)
        else:
            # The program ends: executors start no threads any more.
            self._workers = 1
        self._group = np.empty(GROUP_SIZE, np.uint8)
        self._used = 0
        self._spare: SimpleQueue[np.ndarray] = SimpleQueue()
        # Packets of the next group, and groups that are being compressed. Only the writer's thread uses these.
        self._gathered: list[np.ndarray] = []
        self._packed: deque[Future[bytes]] = deque()
        self._raw: BinaryIO = path.open("wb", buffering=0)
        self._file: Any = (
            gzip.GzipFile("", "wb", 6, self._raw, 0)
            if path.suffix == ".gz"
            else self._raw
        )
        self._pool: Executor = (
            ThreadPoolExecutor(self._workers) if self._workers > 1 else _AtOnce()
        )
        self._writer = self.thread(_WRITES_AHEAD)

    def put(self, packets: bytes) -> None:
        if self._used + len(packets) > len(self._group):
            self._send_group()
        if len(packets) > len(self._group):
            self._send(_done([np.frombuffer(packets, np.uint8)]))
            return
        self._group[self._used : self._used + len(packets)] = np.frombuffer(
            packets, np.uint8
        )
        self._used += len(packets)

    def events(self, encode: Encode, first: int, stop: int) -> None:
        """Write the packets of the events from ``first`` to ``stop``, which ``encode`` encodes."""
        if stop - first < _FEW_EVENTS:
            self._used, first = encode(self._group, self._used, first)
        if first < stop:
            group = self._group
            used = self._used
            self._group = self._buffer()
            self._used = 0
            self._send(
                self._pool.submit(self._encode, encode, first, stop, group, used)
            )

    def put_made(self, make: Callable[[], bytes]) -> None:
        """Write the encoded packets that ``make`` returns. A thread calls ``make``. The packets are not compressed
        again."""
        self._send_group()
        self._writer.run(self._write_alone, self.submit(make))

    def submit(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in one of the threads."""
        return self._pool.submit(call, *args)

    def thread(self, ahead: int) -> OrderedThread:
        """A further thread (see :class:`OrderedThread`)."""
        return OrderedThread(ahead, self._workers > 1)

    def read_ahead(
        self, read: Callable[[BlockInfo], T], blocks: Iterable[BlockInfo]
    ) -> Callable[[BlockInfo], T]:
        """A function like ``read`` that reads ``blocks`` ahead. The caller asks for each block once, about in this
        order."""
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
            if job is None:
                return read(block)
            return job.result()

        return result

    def __enter__(self) -> PacketFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
            group = self._group[: self._used]
            self._group = self._buffer()
            self._used = 0
            self._send(_done([group]))

    def _finish(self) -> None:
        self._send_group()
        self._writer.wait()
        self._pack()
        self._drain(0)

    def _send(self, packets: Future[list[np.ndarray]]) -> None:
        """Queue packets for the writer's thread."""
        self._writer.run(self._write, packets)

    # The threads of the pool

    def _encode(
        self, encode: Encode, event: int, stop: int, buffer: np.ndarray, used: int
    ) -> list[np.ndarray]:
        """The ``used`` bytes of a buffer and the packets of events, in arrays of at most :data:`GROUP_SIZE` bytes
        unless one packet is larger."""
        parts = []
        while True:
            size, event = encode(buffer, used, event)
            if size:
                parts.append(buffer[:size])
            if event >= stop:
                return parts
            if size:
                buffer = self._buffer()
            else:
                buffer = np.empty(2 * len(buffer), np.uint8)
            used = 0

    def _buffer(self) -> np.ndarray:
        """A buffer for a group. Buffers are reused, because the system would clear new memory."""
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
                self._drain(self._workers - 1)
            self._gathered.append(part)

    def _write_alone(self, packets: Future[bytes]) -> None:
        self._pack()
        self._drain(0)
        self._out(packets.result())

    def _pack(self) -> None:
        """Start to compress the gathered packets."""
        if self._gathered and self._wrap:
            self._packed.append(
                self._pool.submit(
                    self._wrap, b"".join(part.data for part in self._gathered)
                )
            )
            for part in self._gathered:
                self._give_back(part)
            self._gathered.clear()

    def _drain(self, left: int) -> None:
        """Write compressed groups until ``left`` are left."""
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
    """Runs calls inside ``submit``: on one core, threads would only take turns."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return _done(call(*args, **kwargs))


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
