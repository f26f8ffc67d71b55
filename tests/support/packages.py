"""Packages that add formats, installed for one test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from cutrace import plugins


@contextmanager
def installed(folder: Path, name: str, source: str = "", **functions: object) -> Iterator[None]:
    """Install a package in ``folder`` with an entry point of the group ``cutrace``. Its module has this source, or
    these functions."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[cutrace]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    if functions:
        sys.modules[name] = SimpleNamespace(**functions)  # type: ignore[assignment]
    plugins.others.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
        plugins.others.cache_clear()
