"""Random captures with legal and illegal rows of all tables, to test properties that hold for any capture."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from captures import ORIGIN, Capture, join
from cutrace.runbin import TABLES
from cutrace.runbin.layout import REFERENCES, Field, TableLayout

TEXTS = ("a", "b", "", "ä µ 漢字", 'comma, "quotes"\r\nand lines', "_Z4nodev", "nvtx", "x" * 300)
#: JSON strings, and strings that look like JSON.
ARGUMENTS = (
    *(f'{{"n":{n},"shape":[[8,64],[]]}}' for n in (-1, 0, 7, (1 << 63) - 1, 1 << 63, 1 << 64)),
    '{"n":-0,"shape":[[8,64],[]]}',
    '{"n":1.5, "m": -0.0, "o": 1e300, "big": NaN}',
    '{"n": 3, "m": 2.5, "o": 7, "t": "a"}',
    '{"n": 4, "m": 2.5, "o": 7, "t": "a"}',
    '{"a":{"n":5},"n":5}',
    '{"a":{"n":5},"n":6}',
    '{"a":{"n":5},"n": 5}',
    '{"n":1,"n":2}',
    '{"n":5e1,"m":007}',
    '{"n":5e1}',
    '{"external":7,"thread":3,"correlation":1,"self":2,"arguments":4,"x":[1],"y":[2]}',
    '{"\\u00e9":1,"é":2,"\\"q":3,"":4,"\\u0001":5}',
    '{"n":9,"\\ud800":8}',
    '{"payload":2}',
    "[1,2]",
    '{"n":',
    "{}",
)
#: Ranges around the creation of a graph node.
RANGES = ('["a"]', '["a","b"]', '["b", "a", "b"]', "[]", '["a"', "7", "")
_SIZES = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}
#: Fields with ids and numbers of threads, streams, contexts and devices. They get few values, so that rows share
#: tracks.
_FEW = frozenset(("thread", "end_thread", "stream", "context", "device", "correlation", "depth"))


def random_capture(path: Path, random: Random, *, texts: tuple[str, ...] = TEXTS, most: int = 6) -> Path:
    """A capture of up to three processes, some of them on other machines. Each table has up to ``most`` rows."""
    parts = [path.with_suffix(f".{i}") for i in range(random.randint(1, 3))]
    for i, part in enumerate(parts):
        boot = random.choice(("boot", "boot", "other"))
        with Capture(part, pid=random.choice((100, 200)), boot_id=boot, command=["program", str(i)]) as c:
            c.clocks(random.choice((0, 0, 5_000)))
            made = _References(c, random, texts)
            for table in TABLES.values():
                if table.name in ("launches", "functions", "clocks"):
                    continue
                for _ in range(random.choice((0, 1, most))):
                    c.add(table.name, **random_row(table, random, made.reference))
                    if random.random() < 0.1:
                        c.flush()  # further rows are in another block
    return join(path, parts)


class _References:
    def __init__(self, c: Capture, random: Random, texts: tuple[str, ...]) -> None:
        self._c, self._random, self._texts = c, random, texts
        self._launches = [0, *(c.launch(self._text(), grid=(i, 1, 1), registers=i, graph_node=i) for i in range(3))]
        self._functions = [0]
        for i in range(3):
            # Some functions differ only in values that no event shows.
            self._functions.append(c.writer.intern_one("functions", name="cudaLaunchKernel", domain=2, callback=i))

    def reference(self, kind: str) -> int:
        """A value for a field that refers to a row or a string. Some values refer to nothing."""
        if kind == "string":
            return self._c.writer.string(self._text())
        if kind == "arguments":
            return self._c.writer.string(self._random.choice((*ARGUMENTS, *self._texts)))
        if kind == "ranges":
            return self._c.writer.string(self._random.choice(RANGES))
        if kind in ("frame", "stack"):
            return self._random.choice((0, 1, 2, 3, 60_000))
        return self._random.choice([*(self._launches if kind == "launch" else self._functions), 60_000])

    def _text(self) -> str:
        return self._random.choice(self._texts)


def random_row(table: TableLayout, random: Random, reference: Callable[[str], int]) -> dict[str, Any]:
    row: dict[str, Any] = {f.name: _value(f, random, reference) for f in table.fields if f.name != "process"}
    if "start" in row:
        row |= _span(random)
    elif "time" in row:
        row["time"] = ORIGIN + random.randint(0, 100) if random.random() < 0.95 else random.choice((0, (1 << 64) - 1))
    if "payload" in row:
        row["payload_type"], row["payload"] = _payload(random)
    return row


def _span(random: Random) -> dict[str, int]:
    start = ORIGIN + random.randint(0, 100)
    if random.random() < 0.1:
        return {"start": random.choice((0, start)), "end": random.choice((0, start - 1, (1 << 64) - 1))}
    return {"start": start, "end": start + random.choice((0, 1, random.randint(0, 200)))}


def _payload(random: Random) -> tuple[int, int]:
    kind = random.randint(0, 6)
    number = random.choice((0, 1, 7, (1 << 31) + 1))
    if kind == 3:
        return kind, int.from_bytes(struct.pack("<d", random.choice((0.0, -1.5, math.inf))), "little")
    if kind == 6:
        return kind, int.from_bytes(struct.pack("<f", random.choice((0.0, -1.5, math.inf))), "little")
    return kind, 0 if kind == 0 else number if kind in (4, 5) else random.choice((number, (1 << 64) - number - 1))


def _value(field: Field, random: Random, reference: Callable[[str], int]) -> Any:
    if field.name in ("arguments", "ranges") and field.type == "string":
        return reference(field.name)
    if field.type in REFERENCES:
        return reference(field.type)
    if field.type == "bytes16":
        return np.void(bytes(random.randint(0, 255) for _ in range(16)))
    if field.type == "f64":
        return random.choice((0.0, -0.0, 1.5, 3.0, -math.inf, math.nan))
    if field.type in ("i32", "i64"):
        return random.choice((0, -1, 5))
    if field.name in _FEW:
        return random.randint(0, 3)
    return random.choice((0, 1, 2, 3, (1 << _SIZES[field.type]) - 1))
