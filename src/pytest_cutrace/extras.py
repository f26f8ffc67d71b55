"""The content for a traced test in a page of pytest-html."""

from __future__ import annotations

from html import escape
from typing import Any

from cutrace.reports.model import Case
from cutrace.reports.text import plain, table_lines
from cutrace.reports.values import title, value_text
from cutrace.units import printable


def extras(case: Case) -> list[dict[str, Any]]:
    """The entries for ``report.extras``: state, comparison or metrics, and files; none for a test without values."""
    if not case.values:
        return []
    lines = [f"cutrace: {case.state.value}  on {case.gpu}"]
    lines.extend(f"  {problem}" for problem in case.problems)
    compared = plain(table_lines(case.rows))
    lines += compared
    if not compared:
        for name, value in case.values.items():
            lines.append(f"{title(name)}  {value_text(name, value)}")
    for name, path in case.artifacts.items():
        lines.append(f"{name}  {path}")
    text = "\n".join(map(printable, lines))
    content = f"<pre>{escape(text)}</pre>"
    return [
        {
            "name": None,
            "format_type": "html",
            "content": content,
            "mime_type": None,
            "extension": None,
        }
    ]
