"""Trends over commits as one HTML page: totals of the suite, and a line for each test, changed ones first.

The page is self-contained like that of :mod:`.html`. Charts are inline SVG; the script filters the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..units import count_of
from .html import escaped, page
from .jobs import TOTALS, Key, keys, total
from .model import Case, SessionReport
from .values import pair, short, value_text

#: The share by which a time must change to count as changed. Other metrics count if they change at all.
_TIME_SHARE = 0.1
#: The sizes of the charts of totals and of tests.
_WIDTH = 300
_HEIGHT = 80
_SPARK_WIDTH = 100
_SPARK_HEIGHT = 20

#: One value for each report; None for a report without the metric.
Series = list[int | None]


def trend(reports: Sequence[tuple[str, SessionReport]]) -> str:
    """The page of reports, given with their names in the order of time."""
    names = [_commit(name, report) for name, report in reports]
    by_report = [keys(report.cases) for _, report in reports]
    tests: dict[Key, None] = dict.fromkeys(
        key for cases in reversed(by_report) for key in cases
    )
    rows = []
    several = len({environment for _, environment, _ in tests if environment}) > 1
    for key in tests:
        cases = [one.get(key) for one in by_report]
        series = {name: [_number(case, name) for case in cases] for name in TOTALS}
        if any(value is not None for numbers in series.values() for value in numbers):
            rows.append(
                (
                    _rank(series),
                    _row(key, series, gone=cases[-1] is None, several=several),
                )
            )
    rows.sort(key=lambda row: row[0])
    moved = sum(rank < 2 for rank, _ in rows)
    about = f"{count_of(len(reports), 'report')}, {names[0]} to {names[-1]}"
    totals = "\n".join(_totals([report for _, report in reports], names))
    heads = "".join(
        f"<th scope=col>{title}</th>" for title in ("test", *TOTALS.values())
    )
    lines = "\n".join(line for _, line in rows)
    return page(
        "trend",
        "cutrace trends",
        about=escaped(" · ".join([about, *reports[-1][1].devices])),
        main=(
            f'<section class=totals aria-label="Totals of the suite">\n{totals}\n</section>\n'
            "<div class=tools>"
            '<input type=search id=search placeholder="Search tests   ( / )" aria-label="Search tests">'
            f"<span class=hint id=count>{count_of(len(rows), 'test')}, {moved:,} with changes</span></div>\n"
            f"<table id=tests><thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody></table>"
        ),
    )


def _number(case: Case | None, name: str) -> int | None:
    """The metric of a case, None where it has no whole number."""
    value = case.values.get(name) if case is not None else None
    if isinstance(value, int):
        return value
    return None


def _commit(name: str, report: SessionReport) -> str:
    return report.commit[:8] or report.started[:16].replace("T", " ") or name


def _rank(series: dict[str, Series]) -> int:
    """0 if a count or the memory of a test changed, 1 if only its time changed, else 2."""
    moved = {}
    for name, values in series.items():
        known = [value for value in values if value is not None]
        least = min(known, default=0)
        most = max(known, default=0)
        moved[name] = most - least > (
            _TIME_SHARE * most if name == "kernel_time_ns" else 0
        )
    timed = moved.pop("kernel_time_ns")
    if any(moved.values()):
        return 0
    if timed:
        return 1
    return 2


def _totals(reports: Sequence[SessionReport], names: Sequence[str]) -> Iterator[str]:
    traced = [len([case for case in report.cases if case.values]) for report in reports]
    yield _picture("tests traced", "", traced, names)
    yield _picture(
        "tests failed", "", [len(report.drifted) for report in reports], names
    )
    for name, title in TOTALS.items():
        values = [total(report.cases, name) for report in reports]
        yield _picture(
            f"{title}, highest" if name == "peak_memory_bytes" else title,
            name,
            values,
            names,
        )


def _picture(title: str, metric: str, values: list[int], names: Sequence[str]) -> str:
    points = _points(values, _WIDTH, _HEIGHT, 6)
    titles = (
        escaped(f"{name}: {value_text(metric, value)}")
        for name, value in zip(names, values, strict=True)
    )
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{label}</title></circle>'
        for (x, y), label in zip(points, titles, strict=True)
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    levels = "".join(
        f"<span>{escaped(value_text(metric, at))}</span>"
        for at in dict.fromkeys((max(values), min(values)))
    )
    first, last = pair(metric, values[0], values[-1])
    change = f"{first} → {last}" if first != last else last
    labels = "".join(
        f"<span>{escaped(short(mark, 16))}</span>" for mark in (names[0], names[-1])
    )
    return (
        f"<figure><figcaption>{escaped(title)} <b>{escaped(change)}</b></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(f"{title}: {change}")}">'
        f'<polyline points="{line}"/>{dots}</svg>'
        f"<div class=levels>{levels}</div><div class=axis>{labels}</div></figure>"
    )


def _row(key: Key, series: dict[str, Series], *, gone: bool, several: bool) -> str:
    test, environment, job = key
    where = [job] if job else []
    if several and environment:
        where.insert(0, environment)
    if gone:
        where.append("gone")
    more = f" <small>{escaped(', '.join(where))}</small>" if where else ""
    cells = "".join(
        f'<td data-name="{TOTALS[name]}">{_spark(name, values)}</td>'
        for name, values in series.items()
    )
    return f"<tr><th scope=row><span class=mono>{escaped(test)}</span>{more}</th>{cells}</tr>"


def _spark(name: str, values: Series) -> str:
    """The last value, with a line chart if the value changed."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    now = escaped(value_text(name, known[-1]))
    if min(known) == max(known):
        return now
    points = " ".join(
        f"{x:.0f},{y:.1f}" for x, y in _points(values, _SPARK_WIDTH, _SPARK_HEIGHT, 2)
    )
    label = " → ".join(
        dict.fromkeys((value_text(name, known[0]), value_text(name, known[-1])))
    )
    return (
        f'<svg viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" role="img" aria-label="{escaped(label)}">'
        f"<title>{escaped(label)}</title>"
        f'<polyline points="{points}"/></svg>{now}'
    )


def _points(
    values: Sequence[int | None], width: int, height: int, margin: int
) -> list[tuple[float, float]]:
    """The coordinates of the known values in a chart."""
    known = [value for value in values if value is not None]
    least = min(known)
    most = max(known)
    step = (width - 2 * margin) / max(len(values) - 1, 1)

    def height_of(value: int) -> float:
        share = (value - least) / (most - least) if most > least else 0.5
        return height - margin - share * (height - 2 * margin)

    return [
        (margin + at * step, height_of(value))
        for at, value in enumerate(values)
        if value is not None
    ]
