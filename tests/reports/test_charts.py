"""The library of charts is identical to the released file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UPLOT = ROOT / "src" / "cutrace" / "reports" / "vendor" / "uplot"
# The files of the tag 1.6.32 of https://github.com/leeoniya/uPlot.
RELEASED = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_file_of_the_library_is_unchanged(name):
    assert hashlib.sha256((UPLOT / name).read_bytes()).hexdigest() == RELEASED[name]


def test_the_wheel_has_the_licence_of_the_library():
    licence = (UPLOT / "LICENSE").relative_to(ROOT)
    assert f'"{licence}"' in (ROOT / "pyproject.toml").read_text()
