"""Reports as JSON: a file for a session, and ``metrics.json`` for a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CutraceError, cannot_read
from ..outputs import write_text as write
from .model import Case, SessionReport

#: The version of the files. It increases when a key changes its meaning.
FORMAT = 2

__all__ = ["case_text", "read_case", "read_report", "rendered", "report_text", "write"]


def report_text(report: SessionReport) -> str:
    """The JSON of a session. It has no timelines, because they can be drawn again from the captures."""
    return _text({"format": FORMAT, "kind": "cutrace report", **report.to_json()})


def case_text(case: Case) -> str:
    """The ``metrics.json`` of a test."""
    return _text({"format": FORMAT, "kind": "cutrace test", **case.to_json()})


def read_report(path: Path) -> SessionReport:
    """Read a file with the text of :func:`report_text`. Raises :class:`CutraceError` if that is not possible."""
    return _made(SessionReport.from_json, path, "cutrace report")


def read_case(path: Path) -> Case:
    """Read a ``metrics.json``. Raises :class:`CutraceError` if that is not possible."""
    return _made(Case.from_json, path, "cutrace test")


def rendered(report: SessionReport, kind: str, folder: Path | None = None) -> str:
    """The report as ``json``, ``markdown`` or ``html``. A page holds traces. Their paths are relative to ``folder``,
    the folder of the page."""
    from .html import html
    from .markdown import markdown

    if kind == "html":
        return html(report, folder)
    return {"json": report_text, "markdown": markdown}[kind](report)


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _made(make: Callable[[dict[str, Any]], Any], path: Path, kind: str) -> Any:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CutraceError(cannot_read(path, error)) from None
    except UnicodeDecodeError:
        raise CutraceError(
            f"{path} is not a {kind} but a binary file: name a JSON file that cutrace wrote; "
            "`cutrace diff` compares captures"
        ) from None
    except ValueError as error:
        raise CutraceError(
            f"{path} is not JSON: {error}. Was it written by cutrace?"
        ) from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise CutraceError(f"{path} is not a {kind}: name a file that cutrace wrote")
    version = data.get("format")
    if version != FORMAT:
        older = isinstance(version, int) and version < FORMAT
        advice = "write it again with this cutrace" if older else "update cutrace"
        raise CutraceError(
            f"{path} has format {version!r}, this cutrace knows {FORMAT}: {advice}"
        )
    try:
        return make(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CutraceError(
            f"{path} is damaged: {type(error).__name__}: {error}. Write it again"
        ) from None
