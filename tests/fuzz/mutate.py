"""Mutations of captures. Most of them update the checksums, so that readers meet wrong data and not a wrong
checksum."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cutrace._native import crc32c
from cutrace.runbin.blocks import HEADER, HEADER_SIZE, MAGIC, pack_header, padded
from cutrace.runbin.layout import BY_NUMBER, PROCESS_BLOCK, STRINGS_BLOCK, TYPES, TableLayout

_NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63)
_TEXTS = (
    "",
    "a",
    "/home/x/y",
    "\ud800",
    "\x1b[31m",
    "é漢",
    "_Z1fi",
    "cutrace begin test: t",
    "cutrace end test: t",
    "x" * 5000,
)


@dataclass(frozen=True)
class Block:
    """A block of a capture: the fields of its header, and the payload."""

    kind: int
    row_size: int
    rows: int
    payload: bytes
    pid: int
    sequence: int
    instance: int
    first_time: int
    last_time: int

    def sealed(self) -> bytes:
        head = pack_header(
            self.kind, row_size=self.row_size, rows=self.rows, payload=self.payload, pid=self.pid,
            sequence=self.sequence, instance=self.instance, first_time=self.first_time, last_time=self.last_time,
        )  # fmt: skip
        return head + self.payload + bytes(padded(len(self.payload)) - len(self.payload))


def blocks_of(data: bytes) -> list[Block]:
    """The blocks of a complete capture."""
    out, at = [], 0
    while at < len(data):
        h = np.frombuffer(data, HEADER, 1, at)[0]
        size = int(h["payload_size"])
        names = ("kind", "row_size", "rows", "pid", "sequence", "instance", "first_time", "last_time")
        out.append(Block(payload=data[at + HEADER_SIZE :][:size], **{name: int(h[name]) for name in names}))
        at += HEADER_SIZE + padded(size)
    return out


def number(rng: random.Random, size: int) -> int:
    """A number of ``size`` bytes, usually a boundary value."""
    kind = rng.random()
    if kind < 0.6:
        value = rng.choice(_NUMBERS) + rng.choice((0, 0, 0, -1, 1))
    elif kind < 0.8:
        value = rng.randrange(20)
    else:
        value = rng.getrandbits(8 * size)
    return value & ((1 << 8 * size) - 1)


def _table(block: Block) -> TableLayout | None:
    """The table of a block, None for other blocks."""
    table = BY_NUMBER.get(block.kind)
    whole = table is not None and block.rows > 0 and len(block.payload) == table.row_size * block.rows
    return table if whole else None


def _rows(rng: random.Random, block: Block) -> Block:
    """Set a field of one row or all rows to another value."""
    table = _table(block)
    if table is None:
        return _bytes(rng, block)
    rows = np.frombuffer(block.payload, table.dtype).copy()
    for _ in range(rng.choice((1, 1, 2, 5))):
        field = rng.choice(table.fields)
        if field.type == "bytes16":
            continue
        size = TYPES[field.type][0]
        value = np.frombuffer(number(rng, size).to_bytes(size, "little"), rows.dtype[field.name])[0]
        if rng.random() < 0.3:
            rows[field.name] = value
        elif rng.random() < 0.2:
            rows[field.name] = np.random.default_rng(rng.getrandbits(32)).permutation(rows[field.name])
        else:
            rows[field.name][rng.randrange(len(rows))] = value
    return replace(block, payload=rows.tobytes())


def _more_rows(rng: random.Random, block: Block) -> Block:
    """Repeat the rows of a block many times, with different values of one field."""
    table = _table(block)
    if table is None:
        return block
    rows = np.tile(np.frombuffer(block.payload, table.dtype), rng.choice((2, 10, 60)))[:2000]
    field = rng.choice([f for f in table.fields if f.type != "bytes16"])
    rows[field.name] += np.arange(len(rows)).astype(rows.dtype[field.name])
    return replace(block, payload=rows.tobytes(), rows=len(rows))


def _bytes(rng: random.Random, block: Block) -> Block:
    data = bytearray(block.payload)
    for _ in range(rng.choice((1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, rng.randrange(256)))
    return replace(block, payload=bytes(data))


def _resized(rng: random.Random, block: Block) -> Block:
    """Make the payload longer or shorter than its size in the header, or change the size in the header."""
    data = block.payload
    data = data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data + rng.randbytes(rng.randrange(64))
    fields: dict[str, Any] = {"payload": data}
    if rng.random() < 0.5:
        fields["row_size"] = rng.choice((0, 1, block.row_size, number(rng, 2)))
        fields["rows"] = len(data) // fields["row_size"] if fields["row_size"] else number(rng, 4)
        fields["payload"] = data[: fields["rows"] * fields["row_size"]] if fields["row_size"] else data
    return replace(block, **fields)


def _header(rng: random.Random, block: Block) -> Block:
    sizes = {"kind": 2, "rows": 4, "pid": 4, "sequence": 4, "first_time": 8, "last_time": 8, "instance": 8}
    name = rng.choice(list(sizes))
    value = rng.choice(list(BY_NUMBER)) if name == "kind" and rng.random() < 0.7 else number(rng, sizes[name])
    return replace(block, **{name: value})


def _value(rng: random.Random, depth: int = 0) -> Any:
    """A random JSON value."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice(("name", "a", "fields", "tables")): _value(rng, depth + 1) for _ in range(rng.randrange(3))}
    number_ = rng.choice(_NUMBERS)
    return (
        None,
        True,
        number_,
        -number_,
        rng.choice((0.5, 1e308, float("inf"), float("nan"))),
        rng.choice(_TEXTS),
        "",
    )[kind]


def _description(rng: random.Random, block: Block) -> Block:
    """Change the process description: other values of its keys, or invalid layouts."""
    try:
        info = json.loads(block.payload)
    except (ValueError, RecursionError):
        return _bytes(rng, block)
    if not isinstance(info, dict):
        return _bytes(rng, block)
    for _ in range(rng.choice((1, 1, 3))):
        tables = info.get("tables")
        if isinstance(tables, dict) and tables and rng.random() < 0.5:
            table = tables[rng.choice(list(tables))]
            fields = table.get("fields") if isinstance(table, dict) else None
            if not isinstance(fields, list) or not fields or rng.random() < 0.2:
                tables[rng.choice(list(tables))] = _value(rng)
            elif rng.random() < 0.3:
                table["row_size"] = rng.choice((*_NUMBERS, _value(rng)))
            else:
                field = fields[rng.randrange(len(fields))]
                place = rng.randrange(4)
                if isinstance(field, list) and len(field) > place:
                    field[place] = rng.choice(
                        ("start", "end", "u8", "u64", "f64", "bytes16", "string", rng.randrange(200), _value(rng))
                    )
        else:
            keys = (
                "pid", "parent_pid", "host", "boot_id", "executable", "command", "started", "ended", "kinds", "options",
                "notes", "nvtx", "format", "tables", "driver_version", "cupti_path", "producer",
            )  # fmt: skip
            info[rng.choice(keys)] = _value(rng)
    # An escaped lone surrogate is valid JSON.
    return replace(block, payload=json.dumps(info).encode())


def _strings(rng: random.Random, block: Block) -> Block:
    """Change the ids, lengths and characters of a strings block."""
    if len(block.payload) < 8 * block.rows or not block.rows:
        return _bytes(rng, block)
    pairs = np.frombuffer(block.payload, "<u4", 2 * block.rows).reshape(-1, 2).copy()
    texts = block.payload[8 * block.rows :]
    if rng.random() < 0.5:
        pairs[rng.randrange(len(pairs)), rng.randrange(2)] = number(rng, 4)
    else:
        text = rng.choice(_TEXTS).encode("utf-8", "surrogatepass") + rng.randbytes(rng.choice((0, 0, 3)))
        pairs = np.append(pairs, np.array([[number(rng, rng.choice((1, 4))), len(text)]], "<u4"), axis=0)
        texts += text
    return replace(block, payload=pairs.astype("<u4").tobytes() + texts, rows=len(pairs))


_OF_KIND: dict[int, Callable[[random.Random, Block], Block]] = {PROCESS_BLOCK: _description, STRINGS_BLOCK: _strings}


def capture(rng: random.Random, seeds: list[list[Block]]) -> bytes:
    """A seed with some mutations, as a capture."""
    blocks = list(rng.choice(seeds))
    if len(blocks) > 12 and rng.random() < 0.7:  # smaller captures are read faster
        kept = sorted(rng.sample(range(2, len(blocks)), 10))
        blocks = blocks[:2] + [blocks[i] for i in kept]
    for _ in range(rng.choice((1, 1, 2, 3, 6, 12))):
        at = rng.randrange(len(blocks))
        kind = rng.random()
        if kind < 0.55:
            blocks[at] = _OF_KIND.get(blocks[at].kind, _rows)(rng, blocks[at])
        elif kind < 0.65:
            blocks[at] = _header(rng, blocks[at])
        elif kind < 0.72:
            blocks[at] = _resized(rng, blocks[at])
        elif kind < 0.77:
            blocks[at] = _more_rows(rng, blocks[at])
        elif kind < 0.82 and len(blocks) > 1:
            del blocks[at]
        elif kind < 0.87:
            blocks.insert(rng.randrange(len(blocks) + 1), replace(blocks[at], sequence=number(rng, 4)))
        elif kind < 0.92:
            other = rng.randrange(len(blocks))
            blocks[at], blocks[other] = blocks[other], blocks[at]
        elif kind < 0.96:  # a part of the capture as another process
            instance = rng.getrandbits(64)
            blocks += [replace(block, instance=instance) for block in rng.choice(seeds)[:8]]
        else:
            blocks[at] = replace(blocks[at], payload=rng.choice(rng.choice(seeds)).payload)
    parts = [block.sealed() for block in blocks]
    if rng.random() < 0.2:
        parts[rng.randrange(len(parts))] = _torn(rng, rng.choice(parts))
    data = b"".join(parts)
    return _torn(rng, data) if rng.random() < 0.1 else data


def _torn(rng: random.Random, data: bytes) -> bytes:
    """Change, remove or insert bytes, with or without a correct header checksum."""
    kind = rng.randrange(5)
    at = rng.randrange(len(data)) if data else 0
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[at:]
    if kind == 2:
        return data[:at] + rng.choice((MAGIC, rng.randbytes(9), MAGIC + bytes(56))) + data[at:]
    changed = bytearray(data)
    for _ in range(3):
        if changed:
            changed[rng.randrange(min(len(changed), HEADER_SIZE) if kind == 3 else len(changed))] = rng.randrange(256)
    if kind == 3 and len(changed) >= HEADER_SIZE:
        changed[60:64] = crc32c(bytes(changed[:60])).to_bytes(4, "little")
    return bytes(changed)
