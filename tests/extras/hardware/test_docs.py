"""docs/internals/hardware-metrics.md lists each metric of each set with CUPTI's unit, and the number of passes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cutrace.extras.hardware.sets import SETS
from support import cutrace

PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "hardware-metrics.md").read_text()


def section(name: str) -> str:
    return re.split(r"^##+ ", PAGE.split(f"### {name}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines]


def expanded(name: str) -> list[str]:
    if match := re.search(r"\{(.*?)\}", name):
        return [name.replace(match[0], word) for word in match[1].split(",")]
    return [name]


def units(name: str) -> dict[str, str]:
    """The metrics of a set with their units, from the page."""
    return {metric: unit for cell, unit, _ in rows(section(name)) for metric in expanded(cell)}


@pytest.mark.parametrize("name", SETS)
def test_each_set_has_its_metrics_and_formulas(name):
    assert sorted(units(name)) == sorted(SETS[name].names)
    for what, formula in SETS[name].formulas:
        assert f"* {what} = `{formula}`" in section(name)


def test_sets_have_their_questions():
    table = rows(PAGE.split("## Sets\n")[1].split("### ")[0])
    assert [(name, question) for name, question, *_ in table] == [(each.name, each.asks) for each in SETS.values()]


@pytest.mark.parametrize("name", SETS)
def test_units_are_those_of_cupti(real_cupti, name):
    shown = units(name)
    done = cutrace("metrics", "sets", name, "--chip", "GH100", "--cupti", real_cupti, "--format", "json")
    known = {row["metric"] for row in json.loads(done.stdout)["reports"][0]["rows"]} & set(shown)
    done = cutrace("metrics", "describe", *sorted(known), "--chip", "GH100", "--cupti", real_cupti, "--format", "json")
    described = {row["name"]: row["dimension"] for row in json.loads(done.stdout)["reports"][0]["rows"]}
    assert {metric: unit for metric, unit in shown.items() if metric in known} == described


@pytest.mark.parametrize(("column", "chip"), [(2, "GH100"), (3, "GA100"), (4, "AD102"), (5, "GB100")])
def test_passes_are_those_of_cupti(real_cupti, column, chip):
    table = rows(PAGE.split("## Sets\n")[1].split("### ")[0])
    done = cutrace("metrics", "sets", "--chip", chip, "--cupti", real_cupti, "--format", "json")
    passes = {row["set"]: row["passes"] for row in json.loads(done.stdout)["reports"][0]["rows"]}
    assert {row[0]: int(row[column]) for row in table} == passes
