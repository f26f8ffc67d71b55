"""The file of packets: the same bytes with any number of threads, and no file after an error."""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import captures
import cutrace
from cutrace._native import Blobs, Program, encode
from cutrace.exporters.perfetto import export, host_writer, pipeline
from cutrace.exporters.perfetto.pipeline import OrderedThread, PacketFile

WORKERS = (1, 2, 5)
DELTA, VARINT, BLOB = 3, 1, 4
#: An event: the time since the previous event, a number, and a string.
PROGRAM = Program(
    [
        (DELTA, b"\x08", 0, 0, False, False, 0, 0, b""),
        (VARINT, b"\x10", 1, 0, False, False, 0, 0, b""),
        (BLOB, b"", 2, 3, False, False, 0, 0, b""),
    ]
)


@dataclass
class Batch:
    """The arguments of one call of ``events()``."""

    columns: list[np.ndarray | Blobs]
    offsets: np.ndarray
    pieces: np.ndarray
    clocks: np.ndarray

    @classmethod
    def of(cls, random: np.random.Generator, count: int, texts: Blobs) -> Batch:
        times = np.sort(random.integers(0, 1 << 40, count, np.uint64))
        numbers = random.integers(0, 1 << 60, count, np.uint64)
        text = random.integers(0, len(texts), count, np.uint32)
        offsets = np.array([0, count // 3, count], np.uint32)
        return cls([times, numbers, text, texts], offsets, np.zeros(2, np.uint32), np.zeros(2, np.uint64))

    def write(self, file: PacketFile) -> None:
        fixed = [(PROGRAM, self.columns)], self.offsets, self.pieces, self.clocks.copy()
        file.events(lambda buffer, at, event: encode(buffer, at, *fixed, event), 0, int(self.offsets[-1]))

    def encoded(self) -> bytes:
        out = np.empty(1 << 24, np.uint8)
        size, event = encode(out, 0, [(PROGRAM, self.columns)], self.offsets, self.pieces, self.clocks.copy())
        assert event == self.offsets[-1]
        return out[:size].tobytes()


def packed(group: bytes) -> bytes:
    return len(group).to_bytes(4, "big") + zlib.compress(group, 1)


def unpacked(data: bytes) -> bytes:
    out = b""
    while data:
        inflate = zlib.decompressobj()
        out += inflate.decompress(data[4:])
        assert len(out) >= int.from_bytes(data[:4], "big")
        data = inflate.unused_data
    return out


@pytest.mark.parametrize("wrapped", [False, True])
def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path: Path, wrapped: bool) -> None:
    random = np.random.default_rng(1)
    texts = Blobs()
    for size in (3, 70, 5000):
        texts.add(random.bytes(size))
    whole = b""
    parts: list[bytes | Batch] = []
    for count in (10, 30_000, 0, 4095, 4096, 2, 100_000, 1, 3000, 3000):
        parts += [random.bytes(count % 97), Batch.of(random, count // 60 if count > 5000 else count // 3, texts)]
    parts += [random.bytes(pipeline.GROUP_SIZE + 1), Batch.of(random, 6000, texts), b"end"]
    for part in parts:
        whole += part if isinstance(part, bytes) else part.encoded()
    written = set()
    for workers in WORKERS:
        path = tmp_path / f"{workers}.pftrace"
        with PacketFile(path, packed if wrapped else None, workers) as file:
            for part in parts:
                file.put(part) if isinstance(part, bytes) else part.write(file)
        written.add(path.read_bytes())
    assert len(written) == 1
    data = written.pop()
    assert (unpacked(data) if wrapped else data) == whole
    assert len(whole) > 5 * pipeline.GROUP_SIZE


def test_a_packet_larger_than_a_group_is_whole(tmp_path: Path) -> None:
    texts = Blobs()
    texts.add(b"x" * (pipeline.GROUP_SIZE + 100))
    batch = Batch.of(np.random.default_rng(2), 3, texts)
    for workers in WORKERS:
        path = tmp_path / f"{workers}.pftrace"
        with PacketFile(path, workers=workers) as file:
            batch.write(file)
        assert path.read_bytes() == batch.encoded()


@pytest.mark.parametrize("compress", [None, "zstd"])
@pytest.mark.parametrize("replayed", [False, True])
def test_a_trace_does_not_depend_on_the_number_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: Literal["zstd"] | None, replayed: bool
) -> None:
    capture = Path(__file__).parents[1] / "data" / "torch_step.bin"
    if replayed:
        capture = captures.replays(tmp_path / "replays.bin", count=1_000)
    monkeypatch.setattr(pipeline, "_FEW_EVENTS", 16)
    monkeypatch.setattr(pipeline, "GROUP_SIZE", 1 << 16)
    monkeypatch.setattr(export, "GPU_WINDOW", 1 << 14)
    monkeypatch.setattr(host_writer, "HOST_WINDOW", 1 << 14)
    monkeypatch.setattr(os, "urandom", lambda count: b"\5" * count)
    written = set()
    for cores in WORKERS:
        monkeypatch.setattr(pipeline, "available_cores", lambda cores=cores: cores)
        path = tmp_path / f"{cores}.pftrace"
        cutrace.convert(capture, path, compress=compress, capture=True)
        written.add(path.read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("threads", [False, True])
def test_calls_are_made_in_order_and_few_of_them_wait(threads: bool) -> None:
    go_on, made = threading.Event(), list[int]()

    def call(number: int) -> None:
        assert not threads or go_on.wait(10)
        made.append(number)

    with OrderedThread(3, threads) as thread:
        for number in range(3):
            thread.run(call, number)
        assert made == ([] if threads else [0, 1, 2])
        go_on.set()
        for number in range(3, 20):
            thread.run(call, number)
            assert len(made) >= number - 2
        thread.wait()
        assert made == list(range(20))


@pytest.mark.parametrize("threads", [False, True])
def test_an_error_of_a_call_is_raised_where_it_is_waited_for(threads: bool) -> None:
    def broken() -> None:
        raise OSError("no such window")

    def write() -> None:
        with OrderedThread(3, threads) as thread:
            thread.run(broken)
            thread.wait()

    with pytest.raises(OSError, match="no such window"):
        write()


@pytest.mark.parametrize("wrapped", [False, True])
def test_packets_made_by_a_function_stand_alone_in_their_place(tmp_path: Path, wrapped: bool) -> None:
    for workers in WORKERS:
        path = tmp_path / f"{workers}.pftrace"
        with PacketFile(path, (lambda group: b"(" + group + b")") if wrapped else None, workers) as file:
            file.put(b"a")
            for number in range(20):
                file.put_made(lambda number=number: b"%d;" % number)  # type: ignore[misc]
            file.put(b"b")
        alone = b"".join(b"%d;" % number for number in range(20))
        assert path.read_bytes() == (b"(a)" + alone + b"(b)" if wrapped else b"a" + alone + b"b")


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_encoder_is_raised(tmp_path: Path, workers: int) -> None:
    texts = Blobs()
    texts.add(b"")
    good, bad = (Batch.of(np.random.default_rng(3), 20_000, texts) for _ in range(2))
    bad.clocks[1] = 1 << 62

    def write() -> None:
        with PacketFile(tmp_path / "out.pftrace", None, workers) as file:
            for batch in (good, bad, *[good] * 20):
                batch.write(file)

    with pytest.raises(ValueError, match="the times of a sequence must not decrease"):
        write()


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_compressor_is_raised(tmp_path: Path, workers: int) -> None:
    def broken(group: bytes) -> bytes:
        raise MemoryError("no memory for the compressor")

    path = tmp_path / "out.pftrace"
    with pytest.raises(MemoryError, match="compressor"), PacketFile(path, broken, workers) as file:
        file.put(b"packet")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_disk_is_raised(workers: int) -> None:
    with pytest.raises(OSError, match="No space"), PacketFile(Path("/dev/full"), None, workers) as file:
        file.put(bytes(2 * pipeline.GROUP_SIZE))


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_of_the_caller_ends_the_threads(tmp_path: Path, workers: int) -> None:
    texts = Blobs()
    texts.add(b"")
    batch = Batch.of(np.random.default_rng(4), 50_000, texts)

    def write() -> None:
        with PacketFile(tmp_path / "out.pftrace", None, workers) as file:
            batch.write(file)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()


@dataclass(frozen=True)
class Block:
    offset: int


@pytest.mark.parametrize("workers", WORKERS)
def test_reading_ahead_gives_each_block_its_own_result(tmp_path: Path, workers: int) -> None:
    def read(block: Block) -> int:
        if block.offset == 13:
            raise OSError("cannot read block 13")
        return block.offset * 2

    order = [Block(i) for i in range(12)]
    asked = [*order[:3], Block(5), Block(4), Block(3), *order[6:], Block(2), Block(40)]
    with PacketFile(tmp_path / "out.pftrace", None, workers) as file:
        ahead = file.read_ahead(read, order)  # type: ignore[arg-type, type-var]
        assert [ahead(block) for block in asked] == [block.offset * 2 for block in asked]  # type: ignore[arg-type]
        ahead = file.read_ahead(read, [Block(12), Block(13)])  # type: ignore[arg-type, type-var]
        assert ahead(Block(12)) == 24  # type: ignore[arg-type]
        with pytest.raises(OSError, match="block 13"):
            ahead(Block(13))  # type: ignore[arg-type]


def test_pieces_may_be_added_while_others_are_encoded() -> None:
    random = np.random.default_rng(5)
    texts = Blobs()
    for number in range(100):
        texts.add(bytes([number]) * (number % 50))
    batch = Batch.of(random, 200_000, texts)
    expected = batch.encoded()
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(batch.encoded())) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for _ in range(2000):
            texts.add(b"y" * 40)
    assert got == [expected, expected]


def test_pieces_are_found_by_id() -> None:
    random = np.random.default_rng(6)
    texts = Blobs()
    pieces = [random.bytes(int(size)) for size in random.integers(0, 300, 3000)] + [random.bytes(1 << 16), b"", b"z"]
    assert [texts.add(piece) for piece in pieces] == list(range(len(pieces)))
    assert len(texts) == len(pieces)
    count = len(pieces)
    columns: list[np.ndarray | Blobs] = [np.arange(count, dtype=np.uint32), texts]
    program = Program([(BLOB, b"", 0, 1, False, False, 0, 0, b"")])
    out = np.empty(1 << 22, np.uint8)
    one = np.zeros(1, np.uint64)
    size, _ = encode(out, 0, [(program, columns)], np.array([0, count], np.uint32), one.astype(np.uint32), one)
    assert out[:size].tobytes() == b"".join(pieces)
