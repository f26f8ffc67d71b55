"""What is expected of a test: by its markers, and by its golden values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Entry, Module, golden_path, read, split

from .bodies import benchmarked
from .markers import Wishes, wishes
from .options import Settings


@dataclass(frozen=True)
class Expectation:
    """What is expected of a test. ``path`` is the golden file of its module, ``entry`` what that says of the test;
    ``siblings``: it has golden values of other tests. ``passed_over`` is why the test is neither recorded nor compared
    with golden values, "" if it is."""

    wishes: Wishes
    path: Path
    entry: Entry | None = None
    siblings: bool = False
    passed_over: str = ""

    @property
    def any(self) -> bool:
        """Whether the test would be verified."""
        return self.entry is not None or self.wishes.marked or self.wishes.limits is not None


class Expectations:
    """Finds out what is expected of tests. Each golden file is read once. ``name`` gives the id of a test."""

    def __init__(self, settings: Settings, name: Callable[[pytest.Item], str]) -> None:
        self._settings = settings
        self._name = name
        self._paths: dict[str, Path] = {}
        self._modules: dict[tuple[Path, str], Module | CutraceError | None] = {}

    def of(self, item: pytest.Item) -> Expectation:
        """Raises :class:`CutraceError` or :class:`pytest.UsageError` for markers or a golden file that are not
        understood."""
        settings = self._settings
        found = wishes(item, settings.rules, settings.repeat)
        file, test = split(self._name(item))
        given = item.ihook.pytest_cutrace_golden_path(item=item, root=settings.golden_root)
        path = self._usual(file, self._name(item)) if given is None else Path(given)
        if found.off or (settings.scope == "marked" and not found.marked):
            return Expectation(found, path)
        if benchmarked(item) and not found.marked:
            return Expectation(found, path, passed_over="a benchmark decides how often it runs")
        module = self._module(path, file)
        if module is None:
            return Expectation(found, path)
        return Expectation(found, path, module.tests.get(test), siblings=bool(module.tests))

    def _usual(self, file: str, nodeid: str) -> Path:
        key = file or nodeid
        if key not in self._paths:
            self._paths[key] = golden_path(self._settings.golden_root, nodeid)
        return self._paths[key]

    def _module(self, path: Path, file: str) -> Module | None:
        if (path, file) not in self._modules:
            self._modules[path, file] = _read(path, file)
        found = self._modules[path, file]
        if isinstance(found, CutraceError):
            raise found
        return found


def _read(path: Path, file: str) -> Module | CutraceError | None:
    try:
        return read(path, module=file) if path.is_file() else None
    except CutraceError as error:
        return error
