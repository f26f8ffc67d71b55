"""Reports as JSON: one file of a session, and ``metrics.json`` of one test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CutraceError
from ..outputs import write_text as write
from .model import Case, Report

#: The version of what the files hold; it grows when a key changes its meaning.
FORMAT = 2

__all__ = ["case_text", "read_case", "read_report", "rendered", "report_text", "write"]


def report_text(report: Report) -> str:
    """The session without pictures of timelines, which are in the captures."""
    return _text({"format": FORMAT, "kind": "cutrace report", **report.to_json()})


def case_text(case: Case) -> str:
    """``metrics.json`` of one test."""
    return _text({"format": FORMAT, "kind": "cutrace test", **case.to_json()})


def read_report(path: Path) -> Report:
    """The report of a file written from :func:`report_text`."""
    report: Report = _made(Report.from_json, path, "cutrace report")
    return report


def read_case(path: Path) -> Case:
    """The test of a ``metrics.json``."""
    case: Case = _made(Case.from_json, path, "cutrace test")
    return case


def rendered(report: Report, kind: str) -> str:
    """The report of a kind: ``json``, ``markdown`` or ``html``."""
    from .html import html
    from .markdown import markdown

    return {"json": report_text, "markdown": markdown, "html": html}[kind](report)


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _made(make: Callable[[dict[str, Any]], Any], path: Path, kind: str) -> Any:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CutraceError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CutraceError(f"{path} is not JSON: {error}. Was it written by cutrace?") from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise CutraceError(f"{path} is no {kind}: name a file that cutrace wrote")
    if (found := data.get("format")) != FORMAT:
        older = isinstance(found, int) and found < FORMAT
        advice = "write it again with this cutrace" if older else "update cutrace"
        raise CutraceError(f"{path} has format {found!r}, this cutrace knows {FORMAT}: {advice}")
    try:
        return make(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CutraceError(f"{path} is damaged: {type(error).__name__}: {error}. Write it again") from None
