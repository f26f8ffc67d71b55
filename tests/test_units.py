"""Sizes and times as people write them."""

from __future__ import annotations

import pytest

from cutrace.errors import CutraceError
from cutrace.units import count_of, format_duration, format_size, parse_duration, parse_moment, parse_size, parse_words


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1K", 1024), ("64MiB", 64 << 20), ("2 GB", 2 * 10**9), ("1.5g", 3 << 29), (7, 7)],
)
def test_sizes_take_binary_and_decimal_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1 parsec", "1e9", "1.2.3", -1])
def test_what_is_not_a_size_is_refused_with_an_example(text):
    with pytest.raises(CutraceError, match="512MiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1.5s", 1_500_000_000), ("200ms", 200_000_000), ("30us", 30_000), ("30µs", 30_000), ("7ns", 7), ("2", 2 * 10**9),
     ("2m", 120 * 10**9), ("0.000000001", 1)],
)  # fmt: skip
def test_times_are_seconds_unless_they_say_otherwise(text, ns):
    assert parse_duration(text) == ns


def test_a_time_is_exact_to_the_nanosecond():
    assert parse_duration("123456789.123456789s") == 123456789123456789


@pytest.mark.parametrize("text", ["", "soon", "1y", "-1s", "1,5s", "9" * 5_000, f"0.{'9' * 5_000}s"])
def test_what_is_not_a_time_is_refused_with_an_example(text):
    with pytest.raises(CutraceError, match="200ms"):
        parse_duration(text)


def test_a_moment_with_thousands_of_digits_is_refused():
    with pytest.raises(CutraceError, match="@ and nanoseconds"):
        parse_moment("@" + "9" * 5_000, 0)


def test_figures_are_written_for_people():
    assert [format_size(n) for n in (0, 999, 1024, 5 << 20, (1 << 30) - 1, 3 << 40)] == [
        "0 B", "999 B", "1 KiB", "5 MiB", "1 GiB", "3 TiB",
    ]  # fmt: skip
    assert [format_duration(n) for n in (7, 12_300, 999_949, 999_960, 4_560_000, 1_234_000_000, 90 * 10**9)] == [
        "7 ns", "12.3 us", "999.9 us", "1.00 ms", "4.56 ms", "1.234 s", "90.000 s",
    ]  # fmt: skip
    assert [count_of(1, "process"), count_of(2, "process"), count_of(3, "copy"), count_of(4000, "kernel")] == [
        "1 process", "2 processes", "3 copies", "4,000 kernels",
    ]  # fmt: skip


def test_every_unit_has_its_size():
    sizes = {
        "5": 5, "5B": 5, "5k": 5 << 10, "5M": 5 << 20, "5G": 5 << 30, "5T": 5 << 40, "5KiB": 5 << 10, "5MiB": 5 << 20,
        "5GiB": 5 << 30, "5TiB": 5 << 40, "5KB": 5 * 10**3, "5MB": 5 * 10**6, "5GB": 5 * 10**9, "5TB": 5 * 10**12,
    }  # fmt: skip
    assert {text: parse_size(text) for text in sizes} == sizes
    times = {
        "5ns": 5, "5us": 5_000, "5µs": 5_000, "5ms": 5 * 10**6, "5s": 5 * 10**9, "5": 5 * 10**9, "5m": 300 * 10**9,
        "5h": 18_000 * 10**9, ".5s": 5 * 10**8, "5.s": 5 * 10**9, " 5 ms ": 5 * 10**6,
    }  # fmt: skip
    assert {text: parse_duration(text) for text in times} == times


def test_units_change_where_four_digits_would_begin():
    sizes = [1023, 1023.94, 1023.96, 1024 * 1023, (1 << 20) - 1, 1 << 50, 1 << 60, 1 << 70, -2048]
    assert [format_size(size) for size in sizes] == [
        "1023 B", "1023.9 B", "1 KiB", "1023 KiB", "1 MiB", "1 PiB", "1 EiB", "1024 EiB", "-2 KiB",
    ]  # fmt: skip
    times = [0, 999, 1000, 999_949, 999_951, 999_994_000, 999_996_000, 10**12, -1500]
    assert [format_duration(time, "") for time in times] == [
        "0ns", "999ns", "1.0us", "999.9us", "1.00ms", "999.99ms", "1.000s", "1000.000s", "-1.5us",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [("a", ["a"]), (" a, b,,a ", ["a", "b"]), ("", []), (",", [])])
def test_words(text, words):
    assert parse_words(text) == words


@pytest.mark.parametrize(
    ("time", "ns"), [(5, 5), ("@5", 5), ("5ns", 105), ("1us", 1100), (0, 0), ("0", 100), ("@0", 0)]
)
def test_moments(time, ns):
    assert parse_moment(time, 100) == ns


@pytest.mark.parametrize("time", [-1, 1.5, True, None, "@", "@-1", "@1.5", "@x", "soon", "", "1.5 parsecs", "@1ns"])
def test_what_is_no_moment_is_one_sentence(time):
    with pytest.raises(CutraceError, match=r"is not a time: (write|give) "):
        parse_moment(time, 100)


@pytest.mark.parametrize("time", [-1, 0.5, False, "@5", "soon"])
def test_what_is_no_duration_is_one_sentence(time):
    with pytest.raises(CutraceError, match=r"is not a time: (write|give) "):
        parse_duration(time)
