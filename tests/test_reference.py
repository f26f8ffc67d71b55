"""docs/reference agrees with the declarations in the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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
