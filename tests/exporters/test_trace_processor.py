"""Perfetto's own engine reads converted traces without errors and losses, and finds all slices at their depths."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import captures
import cutrace
import pftrace
from captures import DATA, Capture
from random_captures import random_capture
from support.traceprocessor import query

#: Host slices with the slice around each, the number of GPU events, and errors and losses.
_CONTENTS = """
select 'slice' as kind, hex(s.name) as name, s.ts, s.dur, s.depth, hex(parent.name) as parent, parent.ts as parent_ts
from slice s left join slice parent on s.parent_id = parent.id left join gpu_slice g on s.id = g.id where g.id is null
union all select 'work', '', count(*), 0, 0, '', 0 from gpu_slice
union all select 'problem', hex(name), value, 0, 0, '', 0 from stats
where severity in ('error', 'data_loss') and value > 0
"""
_SEEDS = range(80)
_SHARES = 8


def expected(trace: Path) -> tuple[Counter[tuple[Any, ...]], int]:
    """Return the expected slices and instants, and the number of GPU events. Each slice or instant has its name, start,
    duration and depth, and the name and start of the slice around it."""
    found = pftrace.decode(trace)
    slices: Counter[tuple[Any, ...]] = Counter()
    for each in (*found.slices, *found.derived):
        duration = -1
        if each.end is not None:
            duration = each.end - each.start
        parent = ("", 0)
        if each.around:
            parent = (each.around[-1].name, each.around[-1].start)
        slices[(each.name, each.start, duration, len(each.around), *parent)] += 1
    return slices, len(found.gpu)


def read(trace: Path) -> tuple[Counter[tuple[Any, ...]], int]:
    """Read the same contents with Perfetto's engine, which must count no errors and losses."""
    slices: Counter[tuple[Any, ...]] = Counter()
    work = 0
    for row in query(trace, _CONTENTS):
        name = bytes.fromhex(row["name"]).decode()
        assert row["kind"] != "problem", f"{name}: {row['ts']}"
        if row["kind"] == "work":
            work = int(row["ts"])
            continue
        parent = ("", 0)
        if row["parent_ts"] != "[NULL]":
            parent = (bytes.fromhex(row["parent"]).decode(), int(row["parent_ts"]))
        slices[(name, int(row["ts"]), int(row["dur"]), int(row["depth"]), *parent)] += 1
    return slices, work


def check(capture: Path) -> Path:
    """Convert a capture and compare the expected contents with the read contents. Returns the trace."""
    trace = capture.with_suffix(".pftrace")
    cutrace.convert(capture, trace)
    assert read(trace) == expected(trace)
    return trace


@pytest.mark.parametrize("path", sorted(DATA.glob("*.bin")), ids=lambda path: path.name)
def test_captures(path: Path, tmp_path: Path) -> None:
    check(Path(shutil.copy(path, tmp_path)))


@pytest.mark.parametrize("share", range(_SHARES))
def test_random_captures(share: int, tmp_path: Path) -> None:
    for seed in _SEEDS[share::_SHARES]:
        check(random_capture(tmp_path / f"{seed}.bin", Random(seed)))


def test_more_slices_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for depth in range(1_300):
            c.push_pop(f"range {depth}", depth, 5_000 - depth, depth=depth)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as slices, max(depth) as depth from slice where name glob 'range *'")
    assert (int(row["slices"]), int(row["depth"])) == (1_300, 499)
    (row,) = query(trace, "select count(*) as said from slice where name glob '800 slices*'")
    assert int(row["said"]) == 1


def test_more_slices_that_never_end_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        for number in range(1_300):
            c.push_pop(f"range {number}", number, None)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as slices from slice where dur = -1 and name glob 'range *'")
    assert int(row["slices"]) == 1_300


def test_more_moments_at_one_time_than_perfetto_keeps_open(tmp_path: Path) -> None:
    with Capture(tmp_path / "run.bin") as c:
        c.push_pop("range", 5, 20)
        for number in range(1_300):
            c.mark(f"mark {number}", 10)
    trace = check(tmp_path / "run.bin")
    (row,) = query(trace, "select count(*) as marks from slice where name glob 'mark *'")
    assert int(row["marks"]) == 1_300


def arguments(trace: Path, sql: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The arguments of the slices that a query selects, by name and key, with JSON types. The query has the columns
    ``id`` and ``key``."""
    joined = f"""
    select hex(s.name) as name, chosen.key as key, hex(a.key) as argument, hex(coalesce(a.string_value, '')) as text,
    coalesce(a.int_value, a.real_value, '') as number
    from ({sql}) chosen join slice s using (id) join args a on a.arg_set_id = s.arg_set_id
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in query(trace, joined):
        name, argument, text = (bytes.fromhex(row[column]).decode() for column in ("name", "argument", "text"))
        value: Any = text
        if row["number"]:
            value = float(row["number"])
        argument = argument.removeprefix("debug.").removeprefix("args.")
        found.setdefault((name, row["key"]), {})[argument] = value
    return found


def test_fields_of_nvtx_payloads_are_arguments_of_their_slices(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    fields = {"bytes": 4096, "ratio": 0.5, "op": "Sum", "sizes": [1, 2], "of": {"peer": 3}}
    with Capture(path) as c:
        for number, name in enumerate(("plain", "reduce")):
            texts = json.dumps(fields | {"bytes": 4096 + number}) if number else 0
            at = 1_000 * number
            c.push_pop(name, at, at + 300, domain="NCCL", arguments=texts)
            c.api("cudaLaunchKernel", at + 10, at + 20, correlation=1 + number)
            c.kernel(c.launch("k"), at + 400, at + 500, correlation=1 + number)
        c.mark("mark", 2_000, arguments=json.dumps(fields))
    trace = check(path)
    found = arguments(trace, "select id, cast(dur as text) as key from slice")
    for key, size in ((("reduce", "300"), 4097), (("reduce", "100"), 4097), (("mark", "0"), 4096)):
        of_slice = found[key]
        assert {"bytes": size, "ratio": 0.5, "op": "Sum"}.items() <= of_slice.items()
        assert json.loads(of_slice["arguments"]) == {"sizes": [1, 2], "of": {"peer": 3}}
    assert not {"bytes", "ratio", "op", "arguments"} & found["plain", "300"].keys()


def test_stacks_are_arguments_of_calls_and_of_the_work_that_they_launched(tmp_path: Path) -> None:
    path = captures.python_calls(tmp_path / "run.bin")
    trace = check(path)
    calls = arguments(trace, "select id, cast(extract_arg(arg_set_id, 'debug.correlation') as text) as key from slice")
    with cutrace.load(path) as source:
        stacks = {(name, number): stack for name, number, stack in _stacks(source)}
    found = {(name, int(number)): each["stack"] for (name, number), each in calls.items() if "stack" in each}
    assert found == stacks
    work = arguments(trace, "select id, '' as key from gpu_slice")
    assert work["add", ""]["launched_at"] == "ops.py:7 in fused_add"


def _stacks(trace: cutrace.Trace) -> Iterator[tuple[str, int, str]]:
    """The name, correlation id and stack of each call with a stack."""
    python = trace.python_stacks
    assert python
    stacks = python.of_rows(trace.api_calls)
    for row, stack in zip(trace.api_calls, stacks.tolist(), strict=True):
        if stack:
            name = trace.strings[trace.functions[int(row["function"])]["name"]]
            yield name, int(row["correlation"]), python.text(stack)


def test_hashes_of_code_are_arguments_of_their_kernels(tmp_path: Path) -> None:
    path = tmp_path / "run.bin"
    with Capture(path) as c:
        for number, code in enumerate(((1 << 64) - 1, 2, 0)):
            c.add("kernel_codes", name="_Z1kv", code=code or 7, context=1)
            c.kernel(
                c.launch("_Z1kv", code=code), 1_000 * number, 1_000 * number + 500 + number, correlation=1 + number
            )
    found = arguments(check(path), "select id, cast(dur as text) as key from gpu_slice")
    hashes = {key: each["code_hash"] for (_, key), each in found.items()}
    assert hashes == {"500": "ffffffffffffffff", "501": "0000000000000002", "502": "ambiguous"}
