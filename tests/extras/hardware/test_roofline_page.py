"""Charts of rooflines: axes ascend, all elements are inside the chart, and names are escaped."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from cutrace.extras.hardware.roofline import DRAM, Ceiling, GpuLimits, Point, Roofline
from cutrace.extras.hardware.roofline_page import amount, picture_of, roofline_section
from cutrace.extras.hardware.why import Why
from cutrace.extras.hardware.why_page import html as page_of
from reports.page import Page

SPACE = "{http://www.w3.org/2000/svg}"
EVIL = "</title><script>alert(1)</script>\"'&\x00"
CEILINGS = (Ceiling(DRAM, 4e12, False, "bus"), Ceiling("fp32", 6e13, False, "lanes"), Ceiling("fp32", 5e13, True, "m"))


def svg(roof: Roofline) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg">{picture_of(roof, (900, 520))}</svg>'


def html(roof: Roofline, source: str) -> str:
    return page_of(Why(rooflines=(roof,)), source)


def point(operations: float, moved: float, time: int = 1_000, kernel: str = "k", kind: str = "fp32") -> Point:
    return Point(kernel, kind, 3, time, operations, moved, "fp32", 0.25)


def roof(*points: Point, gpu: str = "H200", ceilings: tuple[Ceiling, ...] = CEILINGS) -> Roofline:
    return Roofline(GpuLimits(gpu), ceilings, points, (f"note about {gpu}",))


MANY = [point(10.0 ** (at % 9), 10.0 ** (at % 4 + 1), kernel=f"kernel {at}") for at in range(40)]


def circles(tree: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in tree.iter(f"{SPACE}circle")]


@pytest.mark.parametrize("ceilings", [CEILINGS, CEILINGS[:1], CEILINGS[1:], ()])
@pytest.mark.parametrize("points", [MANY, MANY[:1], [point(1, 1e12)], [point(1e15, 1)]])
def test_everything_is_inside_the_picture(points, ceilings):
    tree = ElementTree.fromstring(svg(roof(*points, ceilings=ceilings)))
    width, height = 900, 520
    places = circles(tree)
    assert len(places) == len(points)
    for line in tree.iter(f"{SPACE}polyline"):
        places += [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    assert all(50 <= x <= width - 20 and 26 <= y <= height - 40 for x, y in places)


def test_more_intensity_is_farther_right_and_more_operations_a_second_farther_up():
    rising = [point(10.0**at, 100.0) for at in range(6)]
    places = circles(ElementTree.fromstring(svg(roof(*rising))))
    assert places == sorted(places, key=lambda place: place[0])
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    # All decades have the same width.
    steps = [right[0] - left[0] for left, right in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 5, abs=0.2)


def test_the_axes_end_a_quarter_of_a_decade_above_the_largest_value():
    points = [point(10.0**at, 100.0) for at in range(3, 6)]
    tree = ElementTree.fromstring(svg(roof(*points, ceilings=())))
    (x0, y0), _, (x2, y2) = circles(tree)
    assert 880 - x2 == pytest.approx((x2 - x0) / 2 / 4, abs=0.2)
    assert y2 - 26 == pytest.approx((y0 - y2) / 2 / 4, abs=0.2)


def test_the_axes_of_a_single_value_have_two_powers_of_ten():
    tree = ElementTree.fromstring(svg(roof(point(100.0, 100.0), ceilings=())))
    paths = [one.get("d", "") for one in tree.iter(f"{SPACE}path") if one.get("class") == "grid"]
    assert [path.split()[0] for path in paths] == ["M50.0", "M880.0", "M50", "M50"]


def test_a_point_on_the_slope_is_drawn_on_the_slope():
    """The point has 4e12 bytes per second and 1 operation per byte."""
    tree = ElementTree.fromstring(svg(roof(point(4e6, 4e6, time=1_000))))
    ((x, y),) = circles(tree)
    slope = next(line for line in tree.iter(f"{SPACE}polyline") if "DRAM" in line.get("class", ""))
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in slope.get("points", "").split())
    assert y == pytest.approx(y0 + (x - x0) / (x1 - x0) * (y1 - y0), abs=0.3)


def test_flat_ceilings_begin_at_the_slope():
    tree = ElementTree.fromstring(svg(roof(point(4e6, 4e6))))
    lines = {line.get("class"): line.get("points", "").split() for line in tree.iter(f"{SPACE}polyline")}
    assert lines["roof fp32"][0] == lines["roof DRAM"][1]
    assert "roof fp32 measured" in lines


def test_numbers_of_points_are_those_of_the_table():
    text = roofline_section(
        roof(point(5, 5, kernel="first"), point(0, 5, kernel="second", kind=""), point(5, 5, kernel="third"))
    )
    # The numbers occur twice: in the wide chart and in the narrow one.
    assert re.findall(r'<text x="[\d.]+" y="[\d.]+">(\d+)</text></g>', text) == ["1", "3", "1", "3"]
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
    ElementTree.fromstring(svg(evil))


def test_the_page_needs_nothing_else():
    page = Page(html(roof(*MANY), "a.bin"))
    assert not {"link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not {name for _, attributes in page.tags for name in attributes} & {"style", "src", "href", "onclick"}


def test_rates_are_per_second():
    text = roofline_section(roof(point(3_050, 10, time=1)))
    assert "<td>3.05 TFLOP/s</td><td>10 GB/s</td>" in text
    assert "<td>60 TFLOP/s</td>" in text


def test_no_label_covers_another_one():
    """Some ceilings of this GPU are one pixel apart. Labels without a free place become titles."""
    close = [Ceiling("tensor fp16", 1e14 * (1 + at / 100), at % 2 == 0, "") for at in range(12)]
    tree = ElementTree.fromstring(svg(roof(point(1e5, 1e3), ceilings=(CEILINGS[0], *close))))
    texts = [one for one in tree.iter(f"{SPACE}text") if one.get("class") == "tensor"]
    boxes = []
    for one in texts:
        right, base = float(one.get("x", "")), float(one.get("y", ""))
        boxes.append((right - len(one.text or "") * 6, right, base - 10, base))
    for at, (left, right, top, base) in enumerate(boxes):
        for other in boxes[:at]:
            assert left >= other[1] or right <= other[0] or top >= other[3] or base <= other[2]
    assert len(texts) >= 5
    titles = [one.find(f"{SPACE}title") for one in tree.iter(f"{SPACE}polyline")]
    assert len(titles) == 13
    assert all("tensor fp16" in title.text or "DRAM" in title.text for title in titles)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 B"), (0.5, "0.5 B"), (999, "999 B"), (1e3, "1 kB"), (66.9e12, "66.9 TB"), (1.07e15, "1.07 PB")],
)
def test_amounts_have_three_digits_and_a_prefix(value, words):
    assert amount(value, "B") == words
