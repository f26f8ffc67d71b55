"""Queries of traces with trace_processor. Tests that use it are skipped if it is missing."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest

_PROBLEMS = "select name, source, value from stats where severity in ('error', 'data_loss') and value > 0"


def query(trace: Path, sql: str) -> list[dict[str, str]]:
    """The rows of an answer, as dicts by column name."""
    if (shell := shutil.which("trace_processor_shell")) is None:
        pytest.skip("needs trace_processor_shell on PATH")
    command = [shell, "query", str(trace), sql]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def problems(trace: Path) -> list[dict[str, str]]:
    """The errors and losses that trace_processor counts when it reads a trace."""
    return query(trace, _PROBLEMS)
