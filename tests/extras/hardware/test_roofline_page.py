"""Sections of rooflines: the values of the chart, the tables, and escaped names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cutrace.extras.hardware.roofline import DRAM, Ceiling, GpuLimits, Point, Roofline
from cutrace.extras.hardware.roofline_page import amount, roofline_section
from cutrace.extras.hardware.why import Why
from cutrace.extras.hardware.why_page import html as page_of
from reports.page import Page

EVIL = "</title><script>alert(1)</script>\"'&\x00"
CEILINGS = (Ceiling(DRAM, 4e12, False, "bus"), Ceiling("fp32", 6e13, False, "lanes"), Ceiling("fp32", 5e13, True, "m"))


def html(roof: Roofline, source: str) -> str:
    return page_of(Why(rooflines=(roof,)), source)


def point(operations: float, moved: float, time: int = 1_000, kernel: str = "k", kind: str = "fp32") -> Point:
    return Point(kernel, kind, 3, time, operations, moved, "fp32", 0.25)


def roof(*points: Point, gpu: str = "H200", ceilings: tuple[Ceiling, ...] = CEILINGS) -> Roofline:
    return Roofline(GpuLimits(gpu), ceilings, points, (f"note about {gpu}",))


MANY = [point(10.0 ** (at % 9), 10.0 ** (at % 4 + 1), kernel=f"kernel {at}") for at in range(40)]


def chart(roof: Roofline) -> dict[str, Any]:
    return json.loads(Page(roofline_section(0, roof)).scripts["roofline0"])


def test_a_point_has_its_operations_a_byte_and_a_second():
    (drawn,) = chart(roof(point(4e6, 2e6, time=1_000)))["points"]
    assert (drawn["number"], drawn["kind"], drawn["x"], drawn["y"]) == (1, "fp32", 2, 4e12)
    assert drawn["details"] == [
        "k",
        "3 launches, 1.0us",
        "4 TFLOP/s fp32",
        "2 TB/s of DRAM",
        "2 operations per byte",
        "25.0% of fp32",
    ]


def test_a_ceiling_of_dram_is_a_slope():
    made = chart(roof(point(1, 1)))["ceilings"]
    assert [(one["label"], one["slope"], one["measured"]) for one in made] == [
        ("DRAM 4 TB/s", True, False),
        ("fp32 60 TFLOP/s", False, False),
        ("fp32 50 TFLOP/s measured", False, True),
    ]


def test_ceilings_of_equal_height_share_a_line():
    tensor = [Ceiling(f"tensor {kind}", 1e15, False, "") for kind in ("fp16", "bf16")]
    measured = Ceiling("fp32", 1e15, True, "")
    made = chart(roof(point(1, 1), ceilings=(*tensor, measured)))["ceilings"]
    assert [(one["label"], one["kind"]) for one in made] == [
        ("tensor fp16, tensor bf16 1 PFLOP/s", "tensor"),
        ("fp32 1 PFLOP/s measured", "fp32"),
    ]


def test_numbers_of_points_are_those_of_the_table():
    kernels = (point(5, 5, kernel="first"), point(0, 5, kernel="second", kind=""), point(5, 5, kernel="third"))
    text = roofline_section(0, roof(*kernels))
    assert [drawn["number"] for drawn in chart(roof(*kernels))["points"]] == [1, 3]
    rows = re.findall(r"<td>(\d*)</td><td class=\"text name\"><div>(\w+)</div></td>(.*)</tr>", text)
    assert [(place, kernel) for place, kernel, _ in rows] == [("1", "first"), ("", "second"), ("3", "third")]
    operations = [re.findall(r"<td class=\"text\">(\w+)</td>", cells) for _, _, cells in rows]
    assert operations == [["fp32", "fp32"], ["fp32", "none"], ["fp32", "fp32"]]
    assert "note about H200." in text


def test_no_name_becomes_markup():
    evil, plain = (
        roof(point(1, 1, kernel=name), gpu=name, ceilings=(Ceiling("fp32", 1e9, True, name),))
        for name in (EVIL, "plain")
    )
    assert [tag for tag, _ in Page(html(evil, EVIL)).tags] == [tag for tag, _ in Page(html(plain, "a")).tags]


def test_the_page_needs_nothing_else():
    page = Page(html(roof(*MANY), "a.bin"))
    assert not {"link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not {name for _, attributes in page.tags for name in attributes} & {"style", "src", "href", "onclick"}


def test_rates_are_per_second():
    text = roofline_section(0, roof(point(3_050, 10, time=1)))
    assert "<td>3.05 TFLOP/s</td><td>10 GB/s</td>" in text
    assert "<td>60 TFLOP/s</td>" in text


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 B"), (0.5, "0.5 B"), (999, "999 B"), (1e3, "1 kB"), (66.9e12, "66.9 TB"), (1.07e15, "1.07 PB")],
)
def test_amounts_have_three_digits_and_a_prefix(value, words):
    assert amount(value, "B") == words
