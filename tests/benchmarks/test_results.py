"""The result files of benchmarks."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The name of a file. It may be a pattern: nvtx-h200-[1-3].json.
FILE = re.compile(r"[\w.*\[\]-]+\.(?:csv|json|md|txt)")


def test_a_page_names_each_result_file():
    named = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named.update(FILE.findall(page.read_text()))
    results = sorted(path.name for path in (ROOT / "benchmarks" / "results").iterdir())
    assert [name for name in results if not any(fnmatch(name, pattern) for pattern in named)] == []
