"""A report as one self-contained HTML page: it needs no server, no network and no other script.

The list of tests is HTML. The details of a test are JSON in the page, parsed and drawn only when the test is selected,
so a page with hundreds of timelines opens quickly. Data from tests go into the page only through :func:`escaped` or
:func:`data_script`, and the content security policy of the page allows no other script.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..analysis.definitions import METRICS, Value
from ..analysis.tables import Cell, Column, Table
from ..golden.compare import Row
from ..golden.model import Stored, Verdict, part_of, place, plain
from ..units import printable
from .model import STATES, Case, SessionReport, State, Style, Timeline
from .tables import cell
from .text import (
    added_lines,
    changes,
    comment,
    names_shortened,
    remarks,
    style_of,
)
from .values import counts, duration, pair, short, title, value_text

_FOLDER = Path(__file__).parent
_THEME = '<button type=button id=theme title="Light or dark" aria-label="Light or dark">◐</button>'
#: Metrics that the list of tests shows.
_HEADLINE = ("kernel_launches", "kernel_time_ns")
#: The maximum of parts that a table lists.
_PARTS = 100
#: The maximum of rows that readers sort.
_KEPT = 4000
#: The library of charts.
_UPLOT = "vendor/uplot/uPlot"
#: The maximum of bytes of a compressed trace in the page, and of all traces together.
_TRACE = 256 << 10
_TRACES = 4 << 20


def html(report: SessionReport, folder: Path | None = None) -> str:
    """The page of a report. Links to artifacts are relative to the folder of the page. With ``folder``, the page holds
    the traces of tests that failed, so that it can hand them to ui.perfetto.dev."""
    order = list(STATES)
    cases = list(report.cases)
    # Tests that cutrace failed come first, then tests that failed for another reason.
    cases.sort(
        key=lambda case: (not case.drifted, not case.bad, order.index(case.state))
    )
    environments = {case.environment for case in cases if case.environment}
    several = len(environments) > 1
    # Timelines share their styles, because tests run the same kernels.
    styles: dict[Style, int] = {}
    details = []
    entries = []
    room = _TRACES
    for number, case in enumerate(cases):
        details.append(data_script(f"c{number}", _case(case, styles)))
        trace = ""
        if folder is not None and case.bad:
            trace = _trace(case, folder)
        if trace and len(trace) <= room:
            room -= len(trace)
            details.append(data_script(f"p{number}", trace))
        entries.append(_entry(number, case, several=several))
    looks = [(style.name, style.detail, style.kind) for style in styles]
    details.insert(0, data_script("styles", looks))
    return page(
        "page",
        "cutrace report",
        about="".join(_about(report)),
        filters="".join(_filters(report)),
        main="\n".join(entries),
        data="\n".join(details),
    )


def page(
    name: str,
    title: str,
    *,
    about: str,
    main: str,
    data: str = "",
    folder: Path = _FOLDER,
    shared: Sequence[str] = (),
    **parts: str,
) -> str:
    """The page of this name: the frame of all pages with the body of this page. It gets the style, the script if there
    is one, a policy that allows only these two, and the other arguments. Arguments are HTML, except the ``title``.
    ``folder`` has the style, script and body of this page. ``shared`` are scripts that this page uses, together with
    their styles: ``charts`` for :func:`figure`, ``tables`` for :func:`figures` and :func:`sortable`."""
    style = style_of_page(name, folder, shared)
    body = _file(f"{name}.html", folder) or _file("document.html")
    script = _file(f"{name}.js", folder)
    element = ""
    theme = ""
    if script:
        script = "\n".join([_file("common.js"), *_scripts(shared), script])
        element = f"<script>{script}</script>"
        theme = _THEME
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    parts |= {
        "title": escaped(title),
        "about": about,
        "main": main,
        "data": data,
        "policy": escape(policy),
        "style": style,
        "script": element,
        "theme": theme,
    }
    # Replace in one pass, so that placeholders in the inserted parts are not replaced.
    template = _file("frame.html").replace("{{body}}", body)
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def section(title: str, content: str) -> str:
    """A part of a document with a heading; empty without content."""
    return content and f"<section><h2>{escaped(title)}</h2>\n{content}</section>"


def figure(identity: str, title: str, chart: Mapping[str, object] | None) -> str:
    """A chart with a title. The ``kind`` in ``chart`` is a function of charts.js, which gets the other values.
    ``identity`` is unique in the page. Without a chart (None) the figure says "nothing"."""
    caption = f"<figcaption>{escaped(title)}</figcaption>"
    if chart is None:
        return f"<figure>{caption}<p class=note>nothing</p></figure>"
    data = data_script(identity, chart)
    return f"<figure data-chart>{caption}\n{data}</figure>"


def figures(made: Table, most: int, more: str) -> str:
    """A table that readers sort and filter. Its first ``most`` rows are HTML; the script of the page shows the other
    rows. Below the table is ``more`` with the number of these rows. The column with the names of rows comes first.
    Without rows, the result is empty."""
    rows = list(made.rows)
    if not rows:
        return ""
    order = list(range(len(made.columns)))
    name = _name_column(made.columns, rows)
    if name is not None:
        order.remove(name)
        order.insert(0, name)
    columns = [made.columns[at] for at in order]
    rows = [tuple(row[at] for at in order) for row in rows]
    names = [column.name for column in columns]
    cells = [list(map(cell, row, columns)) for row in rows[:most]]
    classes = {column.name: "text" for column in columns if column.is_text}
    if name is not None:
        classes[names[0]] = "text name"
    content = table(names, cells, classes)
    others = len(rows) - most
    if others > 0:
        kept = rows[:_KEPT]
        data = {
            "units": [column.unit for column in columns],
            "rows": [list(map(rounded, row)) for row in kept],
            "others": len(rows) - len(kept),
        }
        content += data_script(f"rows-{made.name}", data)
        content += f"<p class=note>{escaped(more.format(others))}</p>"
    return sortable(content)


def _name_column(
    columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]]
) -> int | None:
    """The index of the column with the names of rows. It is the first column if this column has strings. Otherwise it
    is the last column of strings, if possible one without empty cells that narrow terminals show. None without
    strings."""
    named = [at for at, column in enumerate(columns) if column.is_text]
    if not named or named[0] == 0:
        return min(named, default=None)
    for at in reversed(named):
        if not columns[at].spare and all(row[at] for row in rows):
            return at
    return named[-1]


def sortable(content: str) -> str:
    """A table that readers sort and filter."""
    return f"<div class=figures>{content}</div>"


def rounded(value: Cell) -> Cell:
    """A cell as a JSON value. Numbers have seven digits; NaN and infinite numbers become None."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.7g}")
    return value


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], classes: Mapping[str, str]
) -> str:
    """A table of strings. ``classes`` has the CSS classes of columns, by their heads; the class ``name`` is for long
    strings."""
    kinds = []
    for name in head:
        attribute = ""
        if name in classes:
            attribute = f' class="{classes[name]}"'
        kinds.append(attribute)

    def cells(tag: str, end: str, words: Sequence[str]) -> str:
        row = ""
        for word, kind in zip(words, kinds, strict=True):
            content = escaped(word)
            if tag == "td" and "name" in kind:
                content = f"<div>{content}</div>"
            row += f"<{tag}{kind}>{content}</{end}>"
        return f"<tr>{row}</tr>"

    top = cells("th scope=col", "th", head)
    body = "\n".join(cells("td", "td", row) for row in rows)
    return f"<div class=scroll><table><thead>{top}</thead><tbody>\n{body}\n</tbody></table></div>"


def style_of_page(name: str, folder: Path = _FOLDER, shared: Sequence[str] = ()) -> str:
    """The CSS of the page of this name. The report of tests fills the window; the other pages are documents. ``shared``
    is as in :func:`page`."""
    styles = [_file("base.css")]
    if name != "page":
        styles.append(_file("document.css"))
    for used in shared:
        if used == "charts":
            styles.append(_file(f"{_UPLOT}.min.css"))
        styles.append(_file(f"{used}.css"))
    styles.append(_file(f"{name}.css", folder))
    return "".join(styles)


def _scripts(shared: Sequence[str]) -> Iterator[str]:
    for used in shared:
        if used == "charts":
            yield _file(f"{_UPLOT}.iife.min.js")
        yield _file(f"{used}.js")


def _file(name: str, folder: Path = _FOLDER) -> str:
    path = folder / name
    if path.exists():
        return path.read_text("utf-8")
    return ""


# The list


def _about(report: SessionReport) -> Iterator[str]:
    facts = [report.job, report.header]
    if report.commit:
        facts.append(f"commit {report.commit[:12]}")
    facts.append(report.started)
    facts += report.devices
    if report.duration_s:
        facts.append(f"{report.duration_s:.1f} s")
    facts += [f"{name} {version}" for name, version in report.versions.items()]
    if report.account:
        facts.append(f"golden values {report.account}")
    for fact in filter(None, facts):
        yield f"<span>{escaped(fact)}</span>"
    for note in report.notes:
        yield f"<p class=note>{escaped(note)}</p>"


def _filters(report: SessionReport) -> Iterator[str]:
    cases = report.cases
    failed = sum(case.bad for case in cases)
    better = len(report.better)
    yield _filter("", "all", len(cases), pressed="true")
    yield _filter("failed", "failed", failed)
    yield _filter("better", "better", better)
    for state, count in report.counts.items():
        label, _ = STATES[state]
        yield _filter(state.value, label, count)


def _filter(key: str, label: str, count: int, *, pressed: str = "false") -> str:
    """A button that filters the tests. It is empty if no test fits, except for the button of all tests."""
    if key and not count:
        return ""
    return f'<button type=button data-filter="{key}" aria-pressed={pressed}>{label} <b>{count:,}</b></button>'


def _entry(number: int, case: Case, *, several: bool) -> str:
    """An entry of the list. With ``several`` environments in the report, the entry names its environment."""
    where = [case.job, case.file]
    if several:
        where.insert(0, case.environment)
    drift = ", ".join(_drift(case)) or _reason(case)
    spans = {
        "name": case.name,
        "file": " · ".join(filter(None, where)),
        "what": " · ".join(_headline(case)),
        "drift": short(drift, 120),
    }
    content = ""
    for name, text in spans.items():
        content += f"<span class={name}>{escaped(text)}</span>"
    key = _key(case)
    mark = ""
    if case.bad:
        mark = " data-failed"
    elif case.better:
        mark = " data-better"
    return (
        f'<li data-state={case.state.value}{mark}><a href="#t{number}">'
        f'<i class="dot {key}" title="{key}"></i>{content}</a></li>'
    )


def _headline(case: Case) -> list[str]:
    """The metrics that the list shows: ``3 kernels``, ``1.23ms``."""
    texts = []
    for name in _HEADLINE:
        value = case.values.get(name)
        if value:
            texts.append(value_text(name, value))
    if not texts:
        return []
    noun = "kernels"
    if texts[0] == "1":
        noun = "kernel"
    return [f"{texts[0]} {noun}", *texts[1:]]


def _drift(case: Case) -> Iterator[str]:
    """The changes, as short strings."""
    if case.problems:
        yield "not verified"
    yield from _arrows("", case.failed_rows)
    yield from _arrows("updated: ", case.updated)
    yield from _arrows("", case.other_code)
    if not case.failed_rows:
        yield from _arrows("better: ", case.better)


def _arrows(word: str, rows: Sequence[Row]) -> Iterator[str]:
    """The changes of rows, after a word."""
    for change in changes(rows):
        yield word + change.replace(" -> ", " → ")
        word = ""


def _reason(case: Case) -> str:
    if case.state is State.UNCONFIRMED:
        return case.why
    if case.state is not State.GATED:
        return case.reason
    return ""


# A test


def _case(case: Case, styles: dict[Style, int]) -> dict[str, Any]:
    label, _ = STATES[case.state]
    links = [(name, _link(path)) for name, path in case.artifacts.items()]
    user = [(str(name), _user(value)) for name, value in case.user.items()]
    picture = None
    if case.timeline is not None:
        picture = _timeline(case.timeline, styles)
    return {
        "nodeid": case.nodeid,
        "name": case.name,
        "file": case.file,
        "outcome": case.outcome,
        "added": added_lines(case),
        "problems": case.problems,
        "notes": [*case.notes, *remarks(case)],
        "golden": case.golden,
        "state": label,
        "key": _key(case),
        "reason": _reason(case),
        "facts": list(_facts(case)),
        "links": links,
        "tables": list(_tables(case)),
        "user": user,
        "kernels": list(_kernels(case)),
        "timeline": picture,
    }


def _trace(case: Case, folder: Path) -> str:
    """The trace of a test as the base64 of a gzip file. "" if the test has no trace, or one that is too large."""
    path = folder / case.artifacts.get("trace.pftrace", "")
    # A report of another machine must not add files of this machine to the page.
    if path.suffix != ".pftrace":
        return ""
    try:
        content = path.read_bytes()
    except (OSError, ValueError):  # A NUL in the name raises ValueError.
        return ""
    packed = gzip.compress(content, mtime=0)
    if len(packed) > _TRACE:
        return ""
    return base64.b64encode(packed).decode()


def _key(case: Case) -> str:
    """The name by which the list filters a test."""
    if case.bad:
        return "failed"
    return case.state.value


def _facts(case: Case) -> Iterator[str]:
    yield from filter(None, (case.job, case.device, case.recorded_on))
    if case.duration_s:
        yield duration(case.duration_s * 1e9)
    if case.runs > 1:
        yield f"{case.runs} runs"
    if case.worker:
        yield case.worker


def _tables(case: Case) -> Iterator[dict[str, Any]]:
    """The metrics of the test and of each region, with golden values if they were compared."""
    compared: dict[str, list[Row]] = {"": []}
    for row in case.rows:
        compared.setdefault(row.region, []).append(row)
    failed = {row.region for row in case.failed_rows}
    regions = list({**compared, **case.regions})
    # After the whole test, regions that failed.
    regions.sort(key=lambda region: (region != "", region not in failed))
    for region in regions:
        values = case.values
        if region:
            values = case.regions.get(region, {})
        rows = list(_table_rows(case, compared.get(region, ()), values))
        if rows:
            rows.sort(key=lambda row: place(row[0]))
            yield {"region": region, "rows": [row for _, row in rows]}


def _table_rows(
    case: Case, compared: Sequence[Row], values: Mapping[str, Value]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The metric and the row of each comparison, then of each value without a comparison. Parts are in the row of their
    total."""
    parts = _breakdowns(values)
    names = set()
    for row in compared:
        name = row.metric
        names.add(name)
        yield name, _row(row, parts.get(name), row in case.updated)
    for name, value in values.items():
        total = _total(name)
        if name in names or total in names or total in values:
            continue
        measured = {
            "name": title(name),
            "now": value_text(name, value),
            "dull": _empty(value),
            "parts": _parts(name, parts.get(name, value)),
        }
        yield name, measured


def _row(row: Row, parts: object, updated: bool) -> dict[str, Any]:
    metric = row.metric
    golden, now = pair(metric, row.golden, row.now)
    if isinstance(row.now, Mapping):
        parts = row.now
    as_before = row.verdict in (Verdict.SAME, Verdict.NEW) and not row.failed
    shown = {
        "name": title(metric),
        "golden": golden,
        "now": now,
        "rule": row.rule,
        "verdict": row.verdict.value,
        "detail": comment(row),
        "mark": style_of(row),
        "dull": as_before and _empty(row.now),
        "parts": _parts(metric, parts),
    }
    if updated:
        shown["verdict"] = "updated"
        shown["detail"] = names_shortened(row.detail)
        shown["mark"] = "new"
    return shown


def _parts(name: str, value: object) -> list[tuple[str, str]]:
    """Parts with their counts or bytes as strings: ``2 x``, ``4 B``."""
    parts = []
    for part, count in counts(value, name)[:_PARTS]:
        if count[-1:].isdigit():
            count += "\u00a0\u00d7"
        parts.append((part, count))
    return parts


def _breakdowns(values: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """The parts by name of each total among the values."""
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        total = _total(name)
        if not total:
            continue
        of_total = parts.setdefault(total, {})
        if isinstance(value, dict):
            of_total.update(value)
        else:
            of_total[part_of(METRICS[name])] = value
    return parts


def _total(name: str) -> str:
    if name in METRICS:
        return METRICS[name].total
    return ""


def _empty(value: Stored | object) -> bool:
    return value in (None, 0, {})


def _kernels(case: Case) -> Iterator[tuple[str | float, ...]]:
    most = max((kernel.total_ns for kernel in case.kernels), default=0)
    for kernel in case.kernels:
        total = kernel.total_ns
        mean = 0.0
        if kernel.count:
            mean = total / kernel.count
        share = 0.0
        if most > 0:
            share = min(max(total / most, 0.0), 1.0)
        yield (
            kernel.name,
            f"{kernel.count:,}",
            duration(total),
            duration(mean),
            duration(kernel.min_ns),
            duration(kernel.max_ns),
            round(share, 3),
        )


def _timeline(picture: Timeline, styles: dict[Style, int]) -> dict[str, Any]:
    """A timeline as JSON values. The slices of a lane are one flat list of numbers: time since the start of the
    previous slice (ns), duration (ns), style, depth, link."""
    numbers = [styles.setdefault(style, len(styles)) for style in picture.styles]
    lanes = []
    for lane in picture.lanes:
        flat: list[int] = []
        before = 0
        for start, length, style, depth, link in lane.slices:
            since = start - before
            flat += (since, length, numbers[style], depth, link)
            before = start
        lanes.append((lane.title, lane.group, flat))
    return {
        "span": picture.span_ns,
        "left": picture.left_out,
        "lanes": lanes,
    }


def _user(value: object) -> str:
    made = plain(value)
    if isinstance(made, int | float):
        return value_text("", made)
    return json.dumps(made, ensure_ascii=False)


def _link(path: str) -> str:
    """The URL of a path. File names cannot turn it into another kind of URL."""
    address = quote(path.encode("utf-8", "surrogateescape"), safe="/")
    if address.startswith(("/", "./", "../")):
        return address
    return f"./{address}"


# Escaping


def escaped(text: str) -> str:
    """Escape text for HTML elements and quoted attributes."""
    return escape(printable(text))


def data_script(identity: str, data: object) -> str:
    """Data for the page's script: JSON in which no string can end the script or start a comment."""
    values = plain(data)
    text = json.dumps(
        values, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    text = re.sub(r"[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)
    return f'<script type="application/json" id="{identity}">{text}</script>'


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
