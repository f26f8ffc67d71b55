"""Format values for people: ``18.7us``, ``64 MiB``, ``12,345``. No function fails for any value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ..analysis.definitions import METRICS, hardware, is_full_name
from ..golden.model import Interval, Span, amount, text_of
from ..units import format_duration, format_size, printable

#: The text of a missing value.
NOTHING = "-"
#: Numbers above this are written as powers of two, because Python may refuse to write all digits.
_HUGE = 10**18


def unit_of(name: str) -> str:
    """The unit of a metric. The unit of a counter of the project follows from the end of its name."""
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
    """A value of a metric as text: the median of an interval, the sum of counts by name, ``1 or 2`` for alternatives,
    ``0 to 3`` for a range. ``exact``: with all digits."""
    if isinstance(value, Interval):
        value = value.median
    elif isinstance(value, Mapping):
        value = _total(value)
    if isinstance(value, tuple) and value:
        return " or ".join(value_text(name, one, exact=exact) for one in value)
    if isinstance(value, Span):
        least, most = (
            value_text(name, edge, exact=exact) for edge in (value.min, value.max)
        )
        if least == most:
            return least
        return f"{least} to {most}"
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return short(text_of(value), 40) or '""'
    if isinstance(value, float) and not math.isfinite(value):
        if value > 0:
            return "inf"
        if value < 0:
            return "-inf"
        return "NaN"
    unit = unit_of(name)
    if value < 0 and unit:
        return "-" + value_text(name, -value, exact=exact)
    if abs(value) >= _HUGE:
        return _power(value, unit)
    if unit == "1" and not exact:
        return f"{value:.1%}".replace("%", " %")
    if exact or unit not in ("bytes", "ns", "bytes/s"):
        digits = f"{value:,}" if exact else number_text(value)
        if unit == "bytes":
            return f"{digits} B"
        if unit not in ("", "1"):
            return f"{digits} {unit}"
        return digits
    if unit == "ns":
        return duration(value)
    return size(value) + ("/s" if unit == "bytes/s" else "")


def number_text(value: float) -> str:
    """A number without unit: all digits of an integer, at least four of others."""
    if isinstance(value, int):
        return f"{value:,}"
    # From here on four digits would be rounded up to 1e+04.
    if abs(value) < 9999.5:
        return f"{value:,.4g}"
    return f"{value:,.0f}"


def pair(name: str, golden: object, now: object) -> tuple[str, str]:
    """Two values as texts. If rounding would make different values equal, all digits are written."""
    texts = value_text(name, golden), value_text(name, now)
    if (
        texts[0] == texts[1]
        and not isinstance(golden, Interval | Mapping)
        and golden != now
    ):
        return value_text(name, golden, exact=True), value_text(name, now, exact=True)
    return texts


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
    """A long name on one line, shortened in the middle: its begin and its end identify it."""
    text = printable(text)
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def listed(names: Sequence[str], most: int) -> str:
    """The first names and the number of others: ``a, b, c and 2 more``."""
    return ", ".join(names[:most]) + (
        f" and {len(names) - most:,} more" if len(names) > most else ""
    )


def counts(value: object, metric: str = "") -> list[tuple[str, str]]:
    """Counts (or bytes, by the unit of ``metric``) by name as texts, largest first."""
    if not isinstance(value, Mapping):
        return []
    known = [
        (printable(text_of(name)), count)
        for name, count in value.items()
        if _is_count(count)
    ]
    known.sort(key=lambda item: (-(amount(item[1]) or 0), item[0]))
    return [(name, value_text(metric, count)) for name, count in known]


def _is_count(value: object) -> bool:
    return isinstance(value, int) or (
        isinstance(value, tuple)
        and value != ()
        and all(isinstance(one, int) for one in value)
    )


def _total(parts: Mapping[object, object]) -> int | tuple[int, ...] | Span:
    """The sum of counts by name; a range if more than one has alternatives."""
    known = [count for count in parts.values() if _is_count(count)]
    fixed = sum(count for count in known if isinstance(count, int))
    several = [count for count in known if isinstance(count, tuple)]
    if not several:
        return fixed
    if len(several) == 1:
        return tuple(fixed + one for one in several[0])
    return Span(fixed + sum(map(min, several)), fixed + sum(map(max, several)))


def _power(value: float, unit: str) -> str:
    size = abs(Fraction(value))
    exponent = (size.numerator // size.denominator).bit_length() - 1
    sign = "-" if value < 0 else ""
    shown = f"{sign}2^{exponent}"
    if unit not in ("", "1"):
        return f"{shown} {unit}"
    return shown
