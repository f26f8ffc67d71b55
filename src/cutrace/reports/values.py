"""Format values for people: ``18.7us``, ``64 MiB``, ``12,345``. No function fails for any value."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

from ..analysis.definitions import METRICS, hardware, is_full_name
from ..golden.model import Codes, Interval, Span, amount, text_of
from ..units import count_of, format_duration, format_size, printable

#: The string for a missing value.
NOTHING = "-"
#: Larger numbers are written as powers of two, because Python may refuse to write all digits.
_HUGE = 10**18


def unit_of(name: str) -> str:
    """The unit of a metric. The end of the name of a project's counter determines its unit."""
    if name in METRICS:
        return METRICS[name].unit
    if is_full_name(name):
        return hardware(name, "").unit
    if name.endswith("_ns"):
        return "ns"
    if name.endswith("_bytes"):
        return "bytes"
    return ""


def title(name: str) -> str:
    """The name of a metric in tables, without a unit that its values show."""
    if name.endswith("_memory_bytes"):
        shortened = name.removesuffix("_bytes")
    else:
        shortened = name.removesuffix("_ns")
    return shortened or name


def value_text(name: str, value: object, *, exact: bool = False) -> str:
    """A value of a metric as a string: the median of an interval, the sum of counts by name, ``1 or 2`` for
    alternatives, ``0 to 3`` for a range, ``2 kernels`` for codes. With ``exact`` all digits are written."""
    if isinstance(value, Codes):
        return count_of(len(value.by_kernel), "kernel")
    if isinstance(value, Interval):
        value = value.median
    elif isinstance(value, Mapping):
        value = _total(value)
    if isinstance(value, tuple) and value:
        texts = [value_text(name, one, exact=exact) for one in value]
        return " or ".join(texts)
    if isinstance(value, Span):
        texts = [value_text(name, one, exact=exact) for one in (value.min, value.max)]
        return " to ".join(dict.fromkeys(texts))
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return short(text_of(value), 40) or '""'
    return _amount_text(value, unit_of(name), exact=exact)


def _amount_text(value: float, unit: str, *, exact: bool) -> str:
    """A number in a unit."""
    if isinstance(value, float) and not math.isfinite(value):
        return _infinite_text(value)
    if value < 0 and unit:
        return "-" + _amount_text(-value, unit, exact=exact)
    if abs(value) >= _HUGE:
        return _power(value, unit)
    if exact:
        return _with_unit(f"{value:,}", unit)
    if unit == "1":
        return f"{value:.1%}".replace("%", " %")
    if unit == "ns":
        return duration(value)
    if unit == "bytes":
        return size(value)
    if unit == "bytes/s":
        return f"{size(value)}/s"
    return _with_unit(number_text(value), unit)


def _infinite_text(value: float) -> str:
    if value > 0:
        return "inf"
    if value < 0:
        return "-inf"
    return "NaN"


def _with_unit(digits: str, unit: str) -> str:
    if unit == "bytes":
        return f"{digits} B"
    if unit not in ("", "1"):
        return f"{digits} {unit}"
    return digits


def number_text(value: float) -> str:
    """A number without a unit: all digits of an integer, at least four digits of other numbers."""
    if isinstance(value, int):
        return f"{value:,}"
    # From here on four digits would be rounded up to 1e+04.
    if abs(value) < 9999.5:
        return f"{value:,.4g}"
    return f"{value:,.0f}"


def pair(name: str, golden: object, now: object) -> tuple[str, str]:
    """Two values as strings. If rounding would make different values equal, all digits are written."""
    before = value_text(name, golden)
    after = value_text(name, now)
    if before != after or golden == now:
        return before, after
    if isinstance(golden, Interval | Mapping):
        return before, after
    before = value_text(name, golden, exact=True)
    after = value_text(name, now, exact=True)
    return before, after


def change_text(name: str, before: object, now: object, arrow: str = "->") -> str:
    """Two values as a string: ``3 -> 4``; one value if both look equal."""
    old, new = pair(name, before, now)
    if old == new:
        return new
    return f"{old} {arrow} {new}"


def duration(ns: float) -> str:
    """A time: ``850ns``, ``18.7us``, ``4.56ms``, ``1.234s``."""
    if _is_huge(ns):
        return value_text("", ns)
    return format_duration(ns, "")


def size(count: float) -> str:
    """A number of bytes: ``4 B``, ``64 MiB``, ``1.5 GiB``."""
    if _is_huge(count):
        return value_text("", count)
    return format_size(count)


def _is_huge(value: float) -> bool:
    return not math.isfinite(value) or abs(value) >= _HUGE


def short(text: str, width: int = 60) -> str:
    """A long name in at most ``width`` columns, shortened in the middle, because its start and its end identify it."""
    text = printable(text)
    if width_of(text) <= width:
        return text
    tail = (width - 1) // 3
    head = width - 1 - tail
    last = _start(text[::-1], tail)[::-1]
    return f"{_start(text, head)}…{last}"


def width_of(text: str) -> int:
    """The columns of a terminal that a string takes: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 1


def _start(text: str, width: int) -> str:
    """The longest start of a string that fits into this many columns."""
    for end, character in enumerate(text):
        width -= _columns_of(character)
        if width < 0:
            return text[:end]
    return text


def counts(value: object, metric: str = "") -> list[tuple[str, str]]:
    """Counts (or bytes, by the unit of ``metric``) by name as strings, largest first."""
    if not isinstance(value, Mapping):
        return []
    known = []
    for key, count in value.items():
        if _is_count(count):
            name = printable(text_of(key))
            most = amount(count) or 0
            known.append((-most, name, value_text(metric, count)))
    known.sort(key=lambda item: item[:2])
    return [(name, text) for _, name, text in known]


def _is_count(value: object) -> bool:
    """Whether this is a count, or alternatives of one."""
    if isinstance(value, tuple) and value:
        return all(isinstance(one, int) for one in value)
    return isinstance(value, int)


def _total(parts: Mapping[object, object]) -> int | tuple[int, ...] | Span:
    """The sum of counts by name; a range if several counts have alternatives."""
    fixed = 0
    several: list[tuple[int, ...]] = []
    for count in parts.values():
        if isinstance(count, int):
            fixed += count
        elif isinstance(count, tuple) and _is_count(count):
            several.append(count)
    if not several:
        return fixed
    if len(several) == 1:
        return tuple(fixed + one for one in several[0])
    least = fixed
    most = fixed
    for alternatives in several:
        least += min(alternatives)
        most += max(alternatives)
    return Span(least, most)


def _power(value: float, unit: str) -> str:
    from fractions import Fraction  # Most sessions do not need it.

    size = abs(Fraction(value))
    exponent = (size.numerator // size.denominator).bit_length() - 1
    power = f"2^{exponent}"
    if value < 0:
        power = f"-{power}"
    if unit not in ("", "1"):
        return f"{power} {unit}"
    return power
