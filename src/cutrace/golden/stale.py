"""Golden values whose test is gone, found without running or importing any test.

Values are stale only when that is certain: the test file is not there, or defines no such function or class in any way
that can be seen in the source. Names made at run time, inherited from elsewhere or imported by a star are left alone. A
list of collected ids decides what the source cannot: parameters.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..errors import CutraceError
from .files import golden_files, read, write
from .model import joined, split
from .naming import golden_path

#: Base classes that bring no tests.
_EMPTY_BASES = frozenset({"object", "ABC", "Protocol", "TestCase", "IsolatedAsyncioTestCase"})
#: Calls that make names which the source does not show.
_DYNAMIC = frozenset({"globals", "setattr", "exec"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Stale:
    """The values of a test that is gone: the golden file, the id, and how one knows."""

    path: Path
    nodeid: str
    reason: str


@dataclass(frozen=True)
class Check:
    """The result for all golden files: how many files and tests, the stale values, and a sentence for each file that
    cannot be read."""

    files: int
    tests: int
    stale: tuple[Stale, ...]
    damaged: tuple[str, ...]


def check(root: Path, tests: Path, collected: Sequence[str] | None = None) -> Check:
    """Look at all golden files under ``root``, of tests whose ids are relative to the folder ``tests``.

    ``collected`` are the ids of the tests that there are, as :func:`collected_ids` reads them. It decides for the test
    files of which it names a test, and has to be complete for those.
    """
    if not root.is_dir():
        raise CutraceError(f"there is no folder of golden files at {root}: name it with --golden-dir")
    ids = frozenset(collected or ())
    covered = frozenset(split(nodeid)[0] for nodeid in ids)
    modules = cache(_module)
    stale: list[Stale] = []
    damaged: list[str] = []
    count = 0
    for path in (files := list(golden_files(root))):
        try:
            golden = read(path)
        except CutraceError as error:
            damaged.append(str(error))
            continue
        count += len(golden.tests)
        at_home = golden_path(root, joined(golden.path, ""))
        elsewhere = f"the golden file of its test is {at_home}" if path != at_home and at_home.is_file() else ""
        for test in golden.tests:
            nodeid = joined(golden.path, test)
            reason = _reason(nodeid, tests, ids if golden.path in covered else None, modules) or elsewhere
            if reason:
                stale.append(Stale(path, nodeid, reason))
    return Check(len(files), count, tuple(stale), tuple(damaged))


def prune(stale: Iterable[Stale], root: Path) -> None:
    """Delete stale values, and the files and the folders under ``root`` that are empty then."""
    gone: dict[Path, set[str]] = {}
    for one in stale:
        gone.setdefault(one.path, set()).add(split(one.nodeid)[1])
    for path, names in gone.items():
        golden = read(path)
        left = {test: entry for test, entry in golden.tests.items() if test not in names}
        if left:
            write(replace(golden, tests=left), path)
            continue
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()


def collected_ids(output: str) -> tuple[str, ...]:
    """The ids in what ``pytest --collect-only -q`` prints, or any list with an id a line."""
    ids = tuple(
        line for line in output.splitlines() if "::" in line and not line.startswith((" ", "ERROR ", "FAILED "))
    )
    if not ids:
        raise CutraceError("there is no test id in the list of collected tests: make it with pytest --collect-only -q")
    return ids


def _reason(test: str, tests: Path, ids: frozenset[str] | None, modules: Callable[[Path], _Scope | None]) -> str:
    """Why no test has this id, or "" if one has or may have it."""
    file, _, rest = test.partition("::")
    source = tests / file
    try:
        if not source.exists():
            return f"{file} is gone"
    except (OSError, ValueError):
        return f"{file} is gone"
    if ids is not None:
        return "" if test in ids else "no such test was collected"
    module = modules(source) if source.suffix == ".py" and rest else None
    missing = module.missing(rest.partition("[")[0].split("::")) if module is not None else ""
    return f"{file} has no {missing}" if missing else ""


def _module(source: Path) -> _Scope | None:
    """What a test file defines, or None if that cannot be told."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    names = {(node.func.id, len(node.args)) for node in calls}  # type: ignore[attr-defined]
    dynamic = ("type", 3) in names or any(name in _DYNAMIC for name, _ in names)
    return None if dynamic else _Scope(tree.body)


class _Scope:
    """The names that a module or a class defines, in any branch of it."""

    def __init__(self, body: Iterable[ast.AST], outer: _Scope | None = None) -> None:
        self.names: dict[str, ast.AST] = {}
        self.open = False
        self.outer = outer
        for node in _statements(body):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.open |= any(alias.name == "*" for alias in node.names)
                bound = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, _DEFINITIONS):
                bound = [node.name]
            else:
                bound = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
            self.names.update(dict.fromkeys(bound, node))

    def missing(self, names: Sequence[str]) -> str:
        """What of a path of names is certainly not defined: its first part that is not, or ""."""
        name, *rest = names
        node = self.names.get(name)
        if node is None:
            return "" if self.open or self._decorated(name) else name
        if not rest or not isinstance(node, ast.ClassDef):
            return ""
        return f"{name}::{'::'.join(rest)}" if self._lacks(node, rest, set()) else ""

    def _lacks(self, node: ast.ClassDef, names: Sequence[str], seen: set[str]) -> bool:
        """Whether neither a class nor any class that it inherits from defines a name."""
        seen.add(node.name)
        inner = _Scope(node.body, self)
        if node.keywords or _makers(node) or not inner.missing(names):
            return False
        for base in node.bases:
            name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            known = self._find(name)
            if isinstance(known, ast.ClassDef):
                if name not in seen and not self._lacks(known, names, seen):
                    return False
            elif name not in _EMPTY_BASES:
                return False
        return True

    def _find(self, name: str) -> ast.AST | None:
        return self.names.get(name) or (self.outer._find(name) if self.outer else None)

    def _decorated(self, name: str) -> bool:
        """Whether a decorator may have made this name of another: ``TestAdd_param_0`` of ``TestAdd``."""
        return any(name.startswith(known) and _makers(node) for known, node in self.names.items())


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a body and of its branches, but not of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, _DEFINITIONS):
            parts = ast.iter_child_nodes(node)
            yield from _statements(p for p in parts if isinstance(p, ast.stmt | ast.excepthandler | ast.match_case))


def _makers(node: ast.AST) -> bool:
    """Whether a definition has decorators that may define more than it; those of pytest do not."""
    decorators = node.decorator_list if isinstance(node, _DEFINITIONS) else []
    return any(not ast.unparse(decorator).startswith("pytest.") for decorator in decorators)
