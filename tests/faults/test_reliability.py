"""The tests that docs/internals/reliability.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "reliability.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| (?!fault |ability |-)", line)
]
NAMES = {
    "n": "tests/native/test_{}.cpp",
    "f": "tests/faults/test_{}.py",
    "g": "tests/gpu/test_{}.py",
    "t": "tests/test_{}.py",
}


def named_tests(row: list[str]) -> list[tuple[str, str]]:
    """The tests that a row names as ``kind:file.test``: the path of the file and the name of the test."""
    found = re.findall(r"`([nfgt]):(\w+)\.(\w+)`", row[1])
    return [(NAMES[kind].format(file), test) for kind, file, test in found]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_has_tests_and_they_exist(row: list[str]) -> None:
    assert all(row), "no cell is empty"
    tests = named_tests(row)
    assert tests
    for path, test in tests:
        pattern = rf"(def test_|^TEST(_OF_THREADS)?\(){test}\(?\b"
        assert re.search(pattern, (ROOT / path).read_text(), re.MULTILINE), f"{path}: {test}"


def test_the_page_has_its_table() -> None:
    assert len(ROWS) > 40
