"""docs/reference agrees with the declarations in the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from cutrace.extras.fleet.running import batch_reports
from cutrace.reports.tables import key

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

SCRIPT = Path(__file__).parents[1] / "docs" / "reference.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _loaded()


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    made = reference.page(name)
    assert (reference.FOLDER / f"{name}.md").read_text() == made, f"run `{reference.COMMAND}`"


def section(page: str, title: str) -> str:
    """The section of a page below a title, up to the next title of the same or a higher level."""
    level = title.partition(" ")[0]
    after = f"\n{page}".split(f"\n{title}\n")[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", after)[0]


@pytest.mark.parametrize("name", batch_reports())
def test_the_reference_has_every_column_of_a_batch_report(name: str) -> None:
    page = (reference.FOLDER / "statistics.md").read_text()
    report = section(page, f"### {name}")
    common = section(page, f"### {reference.COMMON_BATCH_COLUMNS}")
    assert batch_reports()[name].tables
    for table in batch_reports()[name].tables:
        own = section(report, f"#### {table.title} (`{table.name}`)")
        rows, _, link = own.partition(f"[{reference.COMMON_BATCH_COLUMNS}]")
        for column in table.columns:
            row = f"\n| {column.name} | `{key(column)}` |"
            assert row in rows or (row in common and re.search(rf"[:,] {column.name}[,.]", link)), column
