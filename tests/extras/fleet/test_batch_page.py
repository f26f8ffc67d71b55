"""The pages of batch reports: charts contain all values, and strings cannot become markup."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest

from cutrace.analysis.tables import Column, Table, columns_of
from cutrace.extras.fleet.model import Bars, HeatMap, Histogram, Lines, Matrix, Picture, Result
from cutrace.extras.fleet.page import html, index_html

EVIL = "<script>alert(1)</script>"


def page(*pictures: Picture, rows: int = 1, sentences: tuple[str, ...] = ()) -> str:
    table = Table("t", "All ranks", (Column("rank", "text"), Column("time", "ns")), [("rank 0", 1_500)] * rows)
    return html(Result([table], list(sentences), list(pictures)), "3 files")


def chart(text: str, number: int = 0) -> dict:
    return json.loads(re.search(rf'id="chart{number}">(.*?)</script>', text)[1])


def cells(heat: dict) -> np.ndarray:
    """The values of a heat map, row by row."""
    levels = np.array([*heat["levels"], np.nan])
    return levels[np.frombuffer(base64.b64decode(heat["cells"]), np.uint8)]


def test_a_page_has_sentences_and_tables_and_nothing_from_outside():
    text = page(rows=250, sentences=(f"rank 7 is slow {EVIL}",))
    assert "<h1>All ranks</h1>" in text
    assert "rank 7 is slow &lt;script&gt;" in text
    assert EVIL not in text
    assert text.count("<td>1.5us</td>") == 200
    assert "and 50 more" in text
    assert "default-src &#x27;none&#x27;" in text
    assert not re.search(r"(src|href)=", text)


@pytest.mark.parametrize(
    ("columns", "row", "name"),
    [
        ("time: ns, rank: text, kernel: text", (1, "rank 0", "gemm"), "kernel"),
        ("rank: text, time: ns, group: text", ("rank 0", 1, "all"), "rank"),
        ("time: ns, GPU: text, host: text spare", (1, "GPU 0", "node0"), "GPU"),
        ("time: ns, group: text, communicator: text", (1, "all", ""), "group"),
    ],
)
def test_the_column_that_names_a_row_comes_first(columns, row, name):
    table = Table("t", "All ranks", columns_of(columns), [row])
    heads = re.findall("<th scope=col(.*?)>(.*?)</th>", html(Result([table]), "a file"))
    assert heads[0] == (' class="text name"', name)
    assert len(heads) == len(row)


def test_readers_sort_all_rows():
    rows = json.loads(re.search(r'id="rows-t">(.*?)</script>', page(rows=5_000))[1])
    assert rows["units"] == ["text", "ns"]
    assert rows["rows"] == [["rank 0", 1_500]] * 4_000
    assert rows["others"] == 1_000


def test_the_index_links_sentences_to_pages_and_none_of_them_is_markup():
    table = Table("t", "All ranks", (Column("rank", "text"),), [("rank 0",)])
    text = index_html({"kernels": Result([table], [f"rank 7 {EVIL}"]), "a&b": Result([table])}, "3 files")
    assert '<a href="kernels.html">rank 7 &lt;script&gt;' in text
    assert 'href="a%26b.html"' in text
    assert EVIL not in text


def test_many_sentences_are_folded_so_that_charts_are_seen():
    table = Table("t", "All ranks", (Column("rank", "text"),), [("rank 0",)])
    sentences = [f"rank {rank}: slow" for rank in range(45)]
    for text in (html(Result([table], sentences), "a file"), index_html({"t": Result([table], sentences)}, "a file")):
        shown, folded = text.split("<details>")
        assert shown.count(": slow") == 10
        assert folded.count(": slow") == 35
        assert "<summary>and 35 more</summary>" in folded


def test_a_report_without_rows_is_not_one_in_which_nothing_stands_out():
    columns = (Column("rank", "text"),)
    empty = Result([Table("m", "Memory", columns, [])])
    full = Result([Table("t", "All ranks", columns, [("rank 0",)])])
    assert "<p>No file has records for this report.</p>" in html(empty, "3 files")
    assert "No file has records" not in html(full, "3 files")
    text = index_html({"kernels": full, "memory": empty}, "3 files")
    headings = re.findall(r'<h2>([^<]*)</h2><ul><li><a href="(.*?)"', text)
    assert headings == [("Nothing stands out", "kernels.html"), ("No records", "memory.html")]


def test_a_page_links_to_those_beside_it():
    table = Table("t", "All ranks", (Column("rank", "text"),), [("rank 0",)])
    text = html(Result([table]), "3 files", "gaps", ["kernels", "gaps"])
    assert re.findall(r'<a href="(.*?)"(.*?)>', text) == [
        ("index.html", ""), ("kernels.html", ""), ("gaps.html", " aria-current=page"),
    ]  # fmt: skip


def test_a_histogram_has_all_bins():
    text = page(Histogram(EVIL, [0, 1_000, 1_024], [1, 1_024, 1_056], [1, 5, 2]))
    assert chart(text) == {
        "kind": "histogram",
        "unit": "ns",
        "begins": [0, 1_000, 1_024],
        "ends": [1, 1_024, 1_056],
        "counts": [1, 5, 2],
    }
    assert EVIL not in text


def test_bars_have_seven_digits_of_each_value():
    text = page(Bars("change", "1", ["a", EVIL], {"change": [1 / 3, -0.05], "other": [float("nan"), 2]}))
    assert EVIL not in text
    assert chart(text) == {
        "kind": "bars",
        "unit": "1",
        "labels": ["a", EVIL],
        "series": [{"name": "change", "values": [0.3333333, -0.05]}, {"name": "other", "values": [None, 2]}],
    }


def test_the_cells_of_a_heat_map_have_the_values_of_their_levels():
    values = np.array([[0.0, 0.5, np.nan], [1.0, 0.25, 0.75]])
    start = 1_700_000_000 * 10**9 + 5
    heat = chart(page(HeatMap("busy", "1", ["rank 0", EVIL], start, 1 << 20, values, ["node0", "node1"])))
    np.testing.assert_allclose(cells(heat), values.ravel(), atol=0.003)
    assert heat["labels"] == ["rank 0", EVIL]
    assert heat["hosts"] == ["node0", "node1"]
    assert heat["start"] == {"day": "2023-11-14", "at": 80_000 * 10**9 + 5}
    assert heat["step"] == 1 << 20


def test_a_clock_that_starts_with_its_machine_has_no_day():
    heat = chart(page(HeatMap("busy", "1", ["rank 0"], 10**15, 1 << 20, np.ones((1, 1)))))
    assert heat["start"] == {"day": "", "at": 0}


def test_a_peak_does_not_take_the_levels_of_other_values():
    values = np.random.default_rng(1).uniform(0.5, 0.6, (100, 100))
    values[3, 7] = 1e6
    heat = chart(page(HeatMap("busy", "1", [f"rank {n}" for n in range(100)], 10**18, 1 << 20, values)))
    shown = cells(heat)
    assert shown[307] == 1e6
    others = np.delete(values.ravel(), 307)
    assert np.abs(np.delete(shown, 307) - others).max() < 0.002


def test_lines_have_gaps_where_there_is_no_value():
    values = np.array([[1.0, np.nan, 3.0]])
    assert chart(page(Lines("bandwidth", "bytes/s", ["all"], 10**18, 1 << 30, values))) == {
        "kind": "lines",
        "unit": "bytes/s",
        "start": {"day": "2001-09-09", "at": 6_400 * 10**9},
        "step": 1 << 30,
        "series": [{"name": "all", "values": [1, None, 3]}],
    }


def test_a_matrix_has_columns_and_differences():
    heat = chart(page(Matrix("kernels", "1", ["gemm"], ["rank 0", "rank 1"], np.array([[0.0, 0.25]]))))
    assert heat["columns"] == ["rank 0", "rank 1"]
    assert heat["differences"]
    assert cells(heat).tolist() == [0, 0.25]


def test_a_page_of_2000_ranks_is_small():
    random = np.random.default_rng(1)
    labels = [f"rank {n} GPU {n % 8}" for n in range(2_000)]
    heat = HeatMap("busy", "1", labels, 10**18, 1 << 30, random.random((2_000, 256)), ["node0001"] * 2_000)
    bars = Bars("busy", "ns", labels, {"busy": random.random(2_000).tolist()})
    columns = tuple(Column(f"column {n}") for n in range(10))
    table = Table(
        "t", "All ranks", (Column("GPU", "text"), *columns), [(label, *random.random(10)) for label in labels]
    )
    text = html(Result([table], [], [heat, bars]), "2,000 files")
    assert len(text) < 1_500_000


def test_nothing_to_draw_is_said():
    text = page(
        Histogram("none", [], [], []),
        Bars("none", "ns", [], {}),
        HeatMap("none", "1", [], 0, 1, np.zeros((0, 3))),
    )
    assert text.count("<p class=note>nothing</p>") == 3
