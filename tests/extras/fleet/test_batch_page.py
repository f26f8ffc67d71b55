"""The page of a batch report: pictures with all values, texts that cannot become markup."""

from __future__ import annotations

import base64
import json
import re

import numpy as np

from cutrace.analysis.tables import Column, Table
from cutrace.extras.fleet.model import Bars, HeatMap, Histogram, Result
from cutrace.extras.fleet.page import html, index_html

EVIL = "<script>alert(1)</script>"


def page(*pictures: Histogram | Bars | HeatMap, rows: int = 1, sentences: tuple[str, ...] = ()) -> str:
    table = Table("t", "All ranks", (Column("rank", "text"), Column("time", "ns")), [("rank 0", 1_500)] * rows)
    return html(Result([table], list(sentences), list(pictures)), "3 files")


def test_a_page_has_sentences_and_tables_and_nothing_from_outside():
    text = page(rows=250, sentences=(f"rank 7 is slow {EVIL}",))
    assert "<h1>All ranks</h1>" in text
    assert "rank 7 is slow &lt;script&gt;" in text
    assert EVIL not in text
    assert text.count("<td>1.5us</td>") == 200
    assert "and 50 more" in text
    assert "default-src &#x27;none&#x27;" in text
    assert not re.search(r"(src|href)=", text)


def test_the_index_links_sentences_to_pages_and_none_of_them_is_markup():
    table = Table("t", "All ranks", (Column("rank", "text"),), [("rank 0",)])
    text = index_html({"kernels": Result([table], [f"rank 7 {EVIL}"]), "a&b": Result([table])}, "3 files")
    assert '<a href="kernels.html">rank 7 &lt;script&gt;' in text
    assert 'href="a%26b.html"' in text
    assert EVIL not in text


def test_a_histogram_has_a_bar_for_each_bin():
    text = page(Histogram(EVIL, [0, 1_000, 1_024], [1, 1_024, 1_152], [1, 5, 2]))
    assert re.findall(r"<title>(.*?): (\d+)</title>", text) == [
        ("0ns to 1ns", "1"), ("1.0us to 1.0us", "5"), ("1.0us to 1.2us", "2"),
    ]  # fmt: skip
    assert EVIL not in text
    assert "5 in the highest bin" in text


def test_bars_of_few_labels_are_listed_and_those_of_many_stand_side_by_side():
    few = page(Bars("change", "1", ["a", EVIL], {"change": [0.1, -0.05]}))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, change: -5.0%" in few
    assert re.findall(r'<rect class="s0" x="(.*?)" y="0" width="(.*?)"', few) == [
        ("333.333", "666.667"), ("0", "333.333"),
    ]  # fmt: skip
    labels = [f"rank {n}" for n in range(100)]
    many = page(Bars("time", "ns", labels, {"busy": list(range(100)), "idle": [100 - n for n in range(100)]}))
    assert many.count("<rect") == 200
    assert "rank 99, idle: 1ns" in many
    # Stacks of equal height reach the top.
    assert many.count('y="0" ') == 100
    assert "<span class=s1>idle</span>" in many


def test_coordinates_are_small_whatever_the_values_are():
    labels = [f"rank {n}" for n in range(30)]
    text = page(Bars("time", "ns", labels, {"t": [10**12 * n for n in range(30)]}), Histogram("h", [1], [2], [10**9]))
    numbers = re.findall(r' (?:x|y|width|height)="(.*?)"', text)
    assert max(map(float, numbers)) == 1000
    assert 'x="966.667" y="0" width="33.3333" height="1000"' in text


def test_a_heat_map_has_a_byte_for_each_cell():
    values = np.array([[0.0, 0.5, np.nan], [1.0, 0.25, 0.75]])
    text = page(HeatMap("busy", "1", ["rank 0", "rank 1"], 10**18, 1 << 20, values))
    heat = json.loads(re.search(r'id="heat0">(.*?)</script>', text)[1])
    assert list(base64.b64decode(heat["cells"])) == [0, 127, 255, 254, 64, 190]
    assert (heat["texts"][0], heat["texts"][254]) == ("0.0%", "100.0%")
    assert heat["times"] == ["0ns", "1.05ms", "2.10ms"]
    assert '<canvas width="3" height="2"' in text


def test_nothing_to_draw_is_said():
    text = page(Histogram("none", [], [], []), Bars("none", "ns", [], {}))
    assert text.count("<p class=note>nothing</p>") == 2
