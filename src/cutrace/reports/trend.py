"""Trends over commits as one HTML page: totals of the suite, and a line for each test. Changed tests come first.

The page is self-contained, like the page of :mod:`.html`. The lines of tests are inline SVG; the script draws the
totals and filters the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..units import count_of
from .html import escaped, figure, page
from .jobs import TOTALS, Key, keys, total
from .model import Case, SessionReport
from .values import change_text, short, unit_of, value_text

#: The share by which a time must change to count as changed. Other metrics count with any change.
_TIME_SHARE = 0.1
#: The size of the line of a test.
_SPARK_WIDTH = 100
_SPARK_HEIGHT = 20
#: The rank of tests that did not change.
_UNCHANGED = 2

#: One value for each report; None for a report without the metric.
Series = list[int | None]


def trend(reports: Sequence[tuple[str, SessionReport]]) -> str:
    """The page of reports, given with their names in the order of time."""
    names = []
    sessions = []
    for name, report in reports:
        names.append(_commit(name, report))
        sessions.append(report)
    facts = [f"{count_of(len(names), 'report')}, {names[0]} to {names[-1]}"]
    facts += sessions[-1].devices
    totals = "\n".join(_totals(sessions, names))
    heads = "<th scope=col>test</th>"
    for title in TOTALS.values():
        heads += f"<th scope=col>{title}</th>"
    lines = []
    moved = 0
    for rank, line in _test_rows(sessions):
        lines.append(line)
        moved += rank < _UNCHANGED
    count = f"{count_of(len(lines), 'test')}, {moved:,} with changes"
    body = "\n".join(lines)
    return page(
        "trend",
        "cutrace trends",
        shared=("charts",),
        about=escaped(" · ".join(facts)),
        main=(
            f'<section class=totals aria-label="Totals of the suite">\n{totals}\n</section>\n'
            "<div class=tools>"
            '<input type=search id=search placeholder="Search tests   ( / )" aria-label="Search tests">'
            f"<span class=hint id=count>{count}</span></div>\n"
            f"<table id=tests><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
        ),
    )


def _test_rows(reports: Sequence[SessionReport]) -> list[tuple[int, str]]:
    """The rank and the row of each test with values, by rank, then in the order of the latest reports."""
    by_report = [keys(report.cases) for report in reports]
    tests: dict[Key, None] = {}
    for cases in reversed(by_report):
        tests |= dict.fromkeys(cases)
    environments = {environment for _, environment, _ in tests if environment}
    several = len(environments) > 1
    rows = []
    for key in tests:
        cases_of_test = [cases.get(key) for cases in by_report]
        series = {name: _series(cases_of_test, name) for name in TOTALS}
        if any(map(_known, series.values())):
            where = _where(key, several=several)
            if cases_of_test[-1] is None:
                where.append("gone")
            rows.append((_rank(series), _row(key[0], where, series)))
    rows.sort(key=lambda row: row[0])
    return rows


def _series(cases: Sequence[Case | None], name: str) -> Series:
    """The values of a test for a metric, None if a value is no whole number."""
    values: Series = []
    for case in cases:
        value = case and case.values.get(name)
        if not isinstance(value, int):
            value = None
        values.append(value)
    return values


def _known(values: Sequence[int | None]) -> list[int]:
    """The values of the reports that have the metric."""
    return [value for value in values if value is not None]


def _where(key: Key, *, several: bool) -> list[str]:
    """The place of a test's run: its environment, if there are several, and its job."""
    _, environment, job = key
    where = []
    if several and environment:
        where.append(environment)
    if job:
        where.append(job)
    return where


def _commit(name: str, report: SessionReport) -> str:
    """The name of a report on an axis."""
    if report.commit:
        return report.commit[:8]
    if report.started:
        return report.started[:16].replace("T", " ")
    return name


def _rank(series: dict[str, Series]) -> int:
    """The rank of a test: 0 if a count or its memory changed, 1 if only its time changed, else :data:`_UNCHANGED`."""
    rank = _UNCHANGED
    for name, values in series.items():
        known = _known(values)
        most = max(known, default=0)
        change = most - min(known, default=0)
        if name == "kernel_time_ns":
            if change > _TIME_SHARE * most:
                rank = 1
        elif change:
            return 0
    return rank


def _totals(reports: Sequence[SessionReport], names: Sequence[str]) -> Iterator[str]:
    traced = []
    failed = []
    for report in reports:
        traced.append(sum(bool(case.values) for case in report.cases))
        failed.append(len(report.drifted))
    yield _picture("tests traced", "", traced, names)
    yield _picture("tests failed", "", failed, names)
    for metric, title in TOTALS.items():
        if metric == "peak_memory_bytes":
            title += ", highest"
        values = [total(report.cases, metric) for report in reports]
        yield _picture(title, metric, values, names)


def _picture(title: str, metric: str, values: list[int], names: Sequence[str]) -> str:
    """A line chart of values with a point for each report."""
    change = change_text(metric, values[0], values[-1], "→")
    chart = {
        "kind": "lines",
        "unit": unit_of(metric),
        "labels": [short(name, 16) for name in names],
        "series": [{"name": title, "values": values}],
        "height": 170,
        "near": True,
    }
    return figure(f"total-{title}", f"{title} {change}", chart)


def _row(test: str, where: Sequence[str], series: dict[str, Series]) -> str:
    head = f"<span class=mono>{escaped(test)}</span>"
    if where:
        head += f" <small>{escaped(', '.join(where))}</small>"
    cells = ""
    for name, values in series.items():
        cells += f'<td data-name="{TOTALS[name]}">{_spark(name, values)}</td>'
    return f"<tr><th scope=row>{head}</th>{cells}</tr>"


def _spark(name: str, values: Series) -> str:
    """The last value, with a line chart if the value changed."""
    known = _known(values)
    if not known:
        return ""
    first = value_text(name, known[0])
    last = escaped(value_text(name, known[-1]))
    if min(known) == max(known):
        return last
    least = min(known)
    step = (_SPARK_WIDTH - 4) / (len(values) - 1)
    scale = (_SPARK_HEIGHT - 4) / (max(known) - least)
    points = []
    for at, value in enumerate(values):
        if value is not None:
            y = _SPARK_HEIGHT - 2 - scale * (value - least)
            points.append(f"{2 + step * at:.0f},{y:.1f}")
    line = " ".join(points)
    label = last
    if escaped(first) != last:
        label = f"{escaped(first)} → {last}"
    return (
        f'<svg viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" role="img" aria-label="{label}">'
        f"<title>{label}</title>"
        f'<polyline points="{line}"/></svg>{last}'
    )
