"""Reports as JSON: one file of a session, and ``metrics.json`` of one test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ..errors import CutraceError
from ..outputs import unwritable
from .model import Case, Report

#: The version of what the files hold; it grows when a key changes its meaning.
FORMAT = 1


def report_text(report: Report) -> str:
    """The session without pictures of timelines, which are in the captures."""
    return _text({"format": FORMAT, "kind": "cutrace report", **report.to_json(timeline=False)})


def case_text(case: Case) -> str:
    """``metrics.json`` of one test."""
    return _text({"format": FORMAT, "kind": "cutrace test", **case.to_json(timeline=False)})


def read_report(path: Path) -> Report:
    """The report of a file written from :func:`report_text`."""
    return Report.from_json(_read(path, "cutrace report"))


def read_case(path: Path) -> Case:
    """The test of a ``metrics.json``."""
    return Case.from_json(_read(path, "cutrace test"))


def write(path: Path, text: str) -> None:
    """Write a report; the file is there whole or not at all. Text that UTF-8 cannot hold is escaped."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name[:100]}.", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(text.encode("utf-8", "backslashreplace"))
                file.close()
                temporary.chmod(0o666 & ~_umask())
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise unwritable(path, error) from None


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def _read(path: Path, kind: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CutraceError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CutraceError(f"{path} is not JSON: {error}. Was it written by cutrace?") from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise CutraceError(f"{path} is no {kind}: name a file that cutrace wrote")
    if data.get("format") != FORMAT:
        raise CutraceError(f"{path} has format {data.get('format')!r}, this cutrace knows {FORMAT}: update cutrace")
    return data
