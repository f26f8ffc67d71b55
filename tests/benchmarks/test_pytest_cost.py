"""The benchmark of the plugin's cost, for one test with many parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from support.fakedriver import ROOT, FakeDriver

pytestmark = pytest.mark.campaign

PROGRAM = ROOT / "benchmarks" / "pytest_cost.py"


@pytest.fixture(scope="module")
def parameters(fake_driver: FakeDriver) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), "--fake", str(fake_driver.directory.parent), "--parts", "parameters"]
    command += ["--parameters", "40", "--rounds", "1", "--parameter-rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["parameters"]
    return found


def test_all_parameters_are_in_one_file_with_little_to_read(parameters: dict[str, Any]) -> None:
    assert (parameters["tests"], parameters["golden_files"]) == (40, 1)
    assert 0 < parameters["bytes_a_test"] < 300


def test_a_changed_count_is_a_difference_of_two_lines(parameters: dict[str, Any]) -> None:
    assert parameters["changed_lines"] == 2


def test_each_target_has_a_value(parameters: dict[str, Any]) -> None:
    assert set(parameters["targets"]) <= set(parameters)
    for name, target in parameters["targets"].items():
        assert target["met"] == (parameters[name] <= target["at most"])
