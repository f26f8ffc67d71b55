"""The test suite of a user, which pytest runs in a separate process on the fake GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fakedriver import FakeDriver
from support.suites import Suite


@pytest.fixture
def suite(fake_driver: FakeDriver, tmp_path: Path) -> Suite:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return Suite(tmp_path, fake_driver)
