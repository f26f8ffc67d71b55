"""Tables for people and for programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from cutrace.analysis.tables import Column, Table
from cutrace.reports.tables import cell, key, render

COLUMNS = (
    Column("share", "1"), Column("total", "ns"), Column("count"), Column("max", "ns", spare=True),
    Column("size", "bytes"), Column("name", "text"),
)  # fmt: skip
ROWS = [
    (0.75, 1_500_000, 12_345, 20_000, 1 << 20, "at::native::elementwise"),
    (0.25, 500, 1, None, 0, 'a,"b"\n|c'),
]
TABLE = Table("kern_sum", "Kernels", COLUMNS, ROWS)


def text(form: str, table: Table = TABLE, **options) -> str:
    return "".join(render([table], form, **options))


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "ns", "-"),
        (0.5, "1", "50.0%"),
        (0.0001, "1", "<0.1%"),
        (0.9994, "1", "99.9%"),
        (0.99999, "1", ">99.9%"),
        (1.0, "1", "100.0%"),
        (True, "text", "true"),
        (1_500, "ns", "1.5us"),
        (1_500, "change", "+1.5us"),
        (-1_500, "change", "-1.5us"),
        (12_000_000_345, "moment", "@12000000345"),
        (2048, "bytes", "2 KiB"),
        (1e9, "bytes/s", "953.7 MiB/s"),
        (12_345, "", "12,345"),
        (1.23456, "number", "1.235"),
        (float("nan"), "number", "nan"),
        ("a\x1b[2Jb", "text", "a\ufffd[2Jb"),
    ],
)
def test_values_are_shown_in_the_words_of_their_unit(value, unit, shown):
    assert cell(value, Column("x", unit)) == shown


def test_a_table_has_numbers_on_the_right_and_words_on_the_left():
    assert text("table").splitlines() == [
        "Kernels (kern_sum)",
        "  share   total   count     max   size  name",
        "  75.0%  1.50ms  12,345  20.0us  1 MiB  at::native::elementwise",
        '  25.0%   500ns       1       -    0 B  a,"b"\ufffd|c',
    ]


def test_a_narrow_terminal_does_without_what_can_be_spared_and_shortens_names():
    lines = text("table", width=50).splitlines()
    assert lines[1].split() == ["share", "total", "count", "size", "name"]
    assert all(len(line) <= 50 for line in lines)
    assert "…" in lines[2]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 160])
def test_lines_fit_where_the_terminal_has_room_for_the_numbers(width):
    long = Table("t", "T", COLUMNS, [(*ROWS[0][:-1], "n" * 200)])
    needed = 2 + len("75.0%  1.50ms  12,345  1 MiB") + 2 + 16
    assert max(map(len, text("table", long, width=width).splitlines())) <= max(width, needed)


def test_wide_characters_take_two_columns_and_accents_none():
    table = Table("t", "T", (Column("name", "text"), Column("n")), [("学" * 60, 1), ("e\u0301" * 3, 2), ("a", 3)])
    _, _, first, second, third = text("table", table, width=40).splitlines()
    assert first == "  " + "学" * 11 + "…" + "学" * 5 + "    1"
    assert second == "  " + "e\u0301" * 3 + " " * 32 + "  2"
    assert third == "  a" + " " * 34 + "  3"


def test_the_limit_says_how_much_more_there_is():
    assert text("table", limit=1).splitlines()[-1] == "  and 1 more: --limit 0 shows all"
    lazy = Table("t", "T", COLUMNS, iter(ROWS), listing=True)
    assert text("table", lazy, limit=1).splitlines()[-1] == "  and more: --limit 0 shows all"
    assert "more" not in text("table", limit=2)


def test_a_table_without_rows_says_so():
    assert text("table", Table("t", "T", COLUMNS, [])) == "T\n  nothing\n"


def test_csv_has_plain_numbers_under_names_with_units():
    rows = list(csv.reader(io.StringIO(text("csv"))))
    assert rows[0] == ["share", "total_ns", "count", "max_ns", "size_bytes", "name"]
    assert rows[1] == ["0.75", "1500000", "12345", "20000", "1048576", "at::native::elementwise"]
    assert rows[2] == ["0.25", "500", "1", "", "0", 'a,"b"\n|c']


def test_several_tables_in_csv_say_which_they_are():
    shown = "".join(render([TABLE, Table("other", "O", COLUMNS[:1], [(1.0,)])], "csv"))
    assert shown.startswith("# kern_sum\nshare,")
    assert "\n\n# other\nshare\n1.0\n" in shown


def test_json_has_columns_with_units_and_rows_as_objects():
    found = json.loads(text("json"))
    assert (found["format"], found["kind"]) == (1, "cutrace stats")
    (report,) = found["reports"]
    assert (report["name"], report["title"]) == ("kern_sum", "Kernels")
    assert report["columns"][1] == {"key": "total_ns", "name": "total", "unit": "ns"}
    assert report["rows"][1] == {
        "share": 0.25, "total_ns": 500, "count": 1, "max_ns": None, "size_bytes": 0, "name": 'a,"b"\n|c',
    }  # fmt: skip


def test_json_shows_the_letters_of_all_languages():
    table = Table("größe", "Größen", (Column("größe"), Column("naïve name", "text")), [(1, "日本")])
    written = text("json", table, about={"source": "é.bin"})
    assert [word in written for word in ("größe", "Größen", "naïve", "日本", "é.bin")] == [True] * 5
    assert "\\u" not in written


def test_programs_get_all_digits():
    table = Table("t", "T", (Column("x", "number"),), [(1.5e-08,), (1 / 3,)])
    assert [row["x"] for row in json.loads(text("json", table))["reports"][0]["rows"]] == [1.5e-08, 1 / 3]
    assert list(map(float, text("csv", table).split()[1:])) == [1.5e-08, 1 / 3]


def test_json_knows_no_infinite_numbers():
    table = Table("t", "T", (Column("x", "number"),), [(float("inf"),), (float("nan"),)])
    assert [row["x"] for row in json.loads(text("json", table))["reports"][0]["rows"]] == [None, None]


@pytest.mark.parametrize("rows", [0, 1, 4096, 4097, 10_000])
def test_long_listings_are_written_in_pieces(rows):
    table = Table("t", "T", (Column("n"),), ((n,) for n in range(rows)), listing=True)
    found = json.loads(text("json", table))["reports"][0]["rows"]
    assert [row["n"] for row in found] == list(range(rows))
    table = Table("t", "T", (Column("n"),), ((n,) for n in range(rows)), listing=True)
    assert text("csv", table, limit=5).split() == ["n", *map(str, range(min(rows, 5)))]


def test_no_tables_are_an_empty_list():
    assert json.loads("".join(render([], "json")))["reports"] == []
    assert "".join(render([], "table")) == ""


def test_markdown_keeps_names_from_being_markup():
    lines = text("markdown").splitlines()
    assert lines[0] == "### Kernels"
    assert lines[2] == "| share | total | count | max | size | name |"
    assert lines[3] == "|--:|--:|--:|--:|--:|---|"
    assert lines[4].startswith("| 75.0% | 1.50ms | 12,345 | 20.0us | 1 MiB | <code>at&#58;&#58;native")
    assert "|c" not in lines[5]


def test_keys_are_words_for_programs():
    assert [key(c) for c in (Column("mean time", "ns"), Column("bytes", "bytes"), Column("bandwidth", "bytes/s"))] == [
        "mean_time_ns",
        "bytes",
        "bandwidth_bytes_per_s",
    ]


@pytest.mark.parametrize(
    ("width", "head", "where", "name"),
    [
        (None, "count same differs last_same where name", 30, 100),
        (200, "count same differs last_same where name", 30, 120),
        (120, "count same differs last_same where name", 16, 63),
        (100, "count same differs last_same where name", 16, 43),
        (97, "count same differs last_same where name", 16, 40),
        (96, "count same differs where name", 16, 50),
        (82, "count differs where name", 16, 42),
        (80, "count differs where name", 16, 40),
        (79, "count where name", 16, 48),
        (60, "count where name", 16, 29),
        (47, "count where name", 16, 16),
        (40, "count where name", 9, 16),
        (20, "count where name", 8, 16),
    ],
)
def test_the_width_of_a_terminal_is_shared_out(width, head, where, name):
    columns = (
        Column("count"), Column("same", spare=True), Column("differs", spare=True), Column("last_same", spare=True),
        Column("where", "text"), Column("name", "text"),
    )  # fmt: skip
    rows = [(1_234_567, 5, 6, 7, "w" * 30, "n" * 120), (2, 5, 60, 7, "x", "m")]
    shown = text("table", Table("t", "t", columns, rows), width=width).splitlines()[1:]
    assert shown[0].split() == head.split()
    assert shown[1].split()[0] == "1,234,567"
    assert list(map(len, shown[1].split()[-2:])) == [where, name]
    assert shown[2].split() == [word for word in ("2", "5", "60", "7", "x", "m") if word in shown[2].split()]
    assert len(shown[1]) <= max(width or 0, 39) or width is None
    # Numbers are aligned on the right, and words on the left.
    assert shown[0].index("where") == shown[2].index("x") == shown[1].index("w")
    assert shown[0].index("count") + len("count") == shown[1].index("1,234,567") + len("1,234,567")


def test_the_columns_of_a_table_without_words_need_no_name():
    columns = (Column("a"), Column("b", "ns"), Column("c", spare=True))
    shown = text("table", Table("t", "t", columns, [(1, 2_000, 3), (10, None, 3)]), width=14).splitlines()
    assert shown == ["t", "   a      b  c", "   1  2.0us  3", "  10      -  3"]
    narrow = text("table", Table("t", "t", columns, [(1, 2_000, 3), (10, None, 3)]), width=11).splitlines()
    assert narrow == ["t", "   a      b", "   1  2.0us", "  10      -"]


@pytest.mark.parametrize(
    ("rows", "limit", "more"),
    [
        (list(range(3)), 3, ""), (list(range(4)), 3, "and 1 more: --limit 0 shows all"), (list(range(4)), 0, ""),
        (list(range(2003)), 3, "and 2,000 more: --limit 0 shows all"), (iter(range(3)), 3, ""),
        (iter(range(4)), 3, "and more: --limit 0 shows all"),
    ],
)  # fmt: skip
def test_rows_beyond_the_limit_are_counted(rows, limit, more):
    cells = ((n,) for n in rows)
    table = Table("t", "t", (Column("n"),), list(cells) if isinstance(rows, list) else cells)
    shown = text("table", table, limit=limit).splitlines()[2:]
    assert len(shown) == (limit or 4) + bool(more)
    assert (shown[-1].strip() if more else "") == more
