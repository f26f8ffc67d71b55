"""Arguments of imported slices in Perfetto traces. Shared values are written once, but numbers are written with each
slice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cutrace
from cutrace.exporters.perfetto import annotations
from cutrace.runbin import TABLES, Writer
from pftrace import decode

SHAPES = {"Input Dims": [[8, 64], []], "Input type": ["float", "Scalar"]}


def converted(folder: Path, texts: list[str]) -> dict[str, dict[str, Any]]:
    """The arguments of slices with these JSON strings, by the name of the slice."""
    rows = np.zeros(len(texts), TABLES["host_slices"].dtype)
    with Writer(folder / "x.bin", pid=1) as writer:
        for i, (row, text) in enumerate(zip(rows, texts, strict=True)):
            row["start"], row["end"], row["thread"] = 10 + 10 * i, 15 + 10 * i, 1
            row["name"], row["arguments"] = writer.string(f"s{i}"), writer.string(text)
        writer.rows("host_slices", rows)
    cutrace.convert(folder / "x.bin", folder / "x.pftrace")
    return {s.name: s.args for s in decode(folder / "x.pftrace").slices}


def test_numbers_stay_numbers_and_texts_stay_texts(tmp_path: Path) -> None:
    found = converted(tmp_path, ['{"n": 3, "m": -2.5, "t": "a", "b": true, "z": null}', "", '{"n": 4, "t": "a"}'])
    assert found == {
        "s0": {"n": 3, "m": -2.5, "t": "a", "b": "true", "z": "null"},
        "s1": {},
        "s2": {"n": 4, "t": "a"},
    }


def test_one_list_has_its_name_and_several_are_one_argument(tmp_path: Path) -> None:
    found = converted(tmp_path, ['{"Input Dims": [[1]]}', json.dumps({**SHAPES, "Sequence number": 7})])
    assert found["s0"] == {"Input Dims": "[[1]]"}
    assert json.loads(found["s1"].pop("arguments")) == SHAPES
    assert found["s1"] == {"Sequence number": 7}


@pytest.mark.parametrize("text", ["no JSON", "[1]", "3", "[" * 5000, '{"a": 1'])
def test_what_is_no_object_is_shown_as_it_is(tmp_path: Path, text: str) -> None:
    assert converted(tmp_path, [text])["s0"] == {"arguments": text}


def test_a_slice_more_costs_no_second_copy_of_its_shapes(tmp_path: Path) -> None:
    def size(count: int) -> int:
        converted(tmp_path, [json.dumps({**SHAPES, "Sequence number": i}) for i in range(count)])
        return (tmp_path / "x.pftrace").stat().st_size

    assert (size(2000) - size(1000)) / 1000 < 80


def test_beyond_so_many_they_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "MOST_SHARED", 2)
    found = converted(tmp_path, [json.dumps({"list": [i], "n": i}) for i in range(5)])
    assert [found[f"s{i}"]["n"] for i in range(5)] == [0, 1, 2, 3, 4]
    assert [found[f"s{i}"]["list"] for i in range(5)] == ["[0]", "[1]", [2], [3], [4]]
