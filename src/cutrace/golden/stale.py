"""Find golden values whose test is gone, without running or importing tests.

Values are stale only if this is certain: the test file is missing, or its source defines no such function or class.
Names are not reported if they may be made at run time, inherited from other modules or imported with ``*``. Parameters
are checked only with a list of collected ids.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import CutraceError
from .files import golden_files, read, write
from .model import function_of, joined, split
from .naming import golden_path

#: Base classes without tests.
_EMPTY_BASES = frozenset(
    {"object", "ABC", "Protocol", "TestCase", "IsolatedAsyncioTestCase"}
)
_DESELECTED = re.compile(r"^\d+/\d+ tests collected \((\d+) deselected\)", re.MULTILINE)
#: Functions that define names at run time.
_DYNAMIC = frozenset({"globals", "setattr", "exec"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BRANCHES = (ast.stmt, ast.excepthandler, ast.match_case)


@dataclass(frozen=True)
class Stale:
    """The values of a test that is gone: the golden file, the id, and the reason."""

    path: Path
    nodeid: str
    reason: str


@dataclass(frozen=True)
class StaleCheck:
    """The result for all golden files: numbers of files and tests, the stale values, and an error for each file that
    cannot be read."""

    files: int
    tests: int
    stale: tuple[Stale, ...]
    damaged: tuple[str, ...]


def check(
    root: Path, tests: Path, collected: Sequence[str] | None = None
) -> StaleCheck:
    """Find the stale values of all golden files under ``root``. Ids of tests are relative to the folder ``tests``.

    ``collected`` are the ids of collected tests (:func:`collected_ids`). The ids decide about the test files that they
    name, and must be complete for these files. Raises :class:`CutraceError` if there is no folder ``root``.
    """
    if not root.is_dir():
        raise CutraceError(
            f"there is no folder of golden files at {root}: name it with --golden-dir"
        )
    ids = frozenset(collected or ())
    covered = {split(nodeid)[0] for nodeid in ids}
    modules = cache(_module)
    stale: list[Stale] = []
    damaged: list[str] = []
    count = 0
    files = list(golden_files(root))
    for path in files:
        try:
            golden = read(path)
        except CutraceError as error:
            damaged.append(str(error))
            continue
        count += len(golden.tests)
        listed = None
        if golden.path in covered:
            listed = ids
        expected = golden_path(root, joined(golden.path, ""))
        elsewhere = ""
        if path != expected and expected.is_file():
            elsewhere = f"the golden file of its test is {expected}"
        for test in golden.tests:
            nodeid = joined(golden.path, test)
            reason = _reason(nodeid, tests, listed, modules) or elsewhere
            if reason:
                stale.append(Stale(path, nodeid, reason))
    return StaleCheck(len(files), count, tuple(stale), tuple(damaged))


def prune(stale: Iterable[Stale], root: Path) -> None:
    """Delete stale values, and then empty files and folders under ``root``."""
    gone: dict[Path, set[str]] = {}
    for one in stale:
        gone.setdefault(one.path, set()).add(split(one.nodeid)[1])
    for path, names in gone.items():
        golden = read(path)
        for test in names:
            golden.tests.pop(test, None)
        if golden.tests:
            write(golden, path)
            continue
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()


def collected_ids(output: str) -> tuple[str, ...]:
    """The ids in the output of ``pytest --collect-only -q``, or in any list with one id per line. Raises
    :class:`CutraceError` if there is none."""
    lines = [line for line in output.splitlines() if "::" in line]
    ids = [line for line in lines if not line.startswith((" ", "ERROR ", "FAILED "))]
    if not ids:
        raise CutraceError(
            "there is no test id in the list of collected tests: make it with pytest --collect-only --verbosity=-1, "
            "because addopts may have -v or -q too"
        )
    return tuple(ids)


def deselected_in(output: str) -> int:
    """The number of tests that pytest deselected, from the output of ``pytest --collect-only -q``."""
    found = _DESELECTED.findall(output)
    if not found:
        return 0
    return int(found[-1])


def source_order(source: Path, tests: Iterable[str]) -> dict[str, int]:
    """The lines (from 1) of these tests in a test file. Tests that the source does not define are left out."""
    scope = _module(source)
    lines: dict[str, int] = {}
    if scope is None:
        return lines
    for test in tests:
        line = scope.line(function_of(test).split("::"))
        if line:
            lines[test] = line
    return lines


def undefined(source: Path, functions: Iterable[str]) -> set[str]:
    """The functions among ``functions`` that the source of a test file certainly does not define."""
    scope = _module(source)
    if scope is None:
        return set()
    return {name for name in functions if scope.missing(name.split("::"))}


def _reason(
    test: str,
    tests: Path,
    ids: frozenset[str] | None,
    modules: Callable[[Path], _Scope | None],
) -> str:
    """The reason why no test has this id; "" if a test has or may have this id."""
    file, _, rest = test.partition("::")
    source = tests / file
    try:
        if not source.exists():
            return f"{file} is gone"
    except (OSError, ValueError):
        return f"{file} is gone"
    if ids is not None:
        # A list has one id a line.
        if test in ids or len(test.splitlines()) > 1:
            return ""
        return "no such test was collected"
    if source.suffix != ".py" or not rest:
        return ""
    module = modules(source)
    if module is None:
        return ""
    missing = module.missing(function_of(rest).split("::"))
    if missing:
        return f"{file} has no {missing}"
    return ""


def _module(source: Path) -> _Scope | None:
    """The names that a test file defines, None if they cannot be determined."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            makes_class = node.func.id == "type" and len(node.args) == 3
            if makes_class or node.func.id in _DYNAMIC:
                return None
    return _Scope(tree.body)


class _Scope:
    """The names that a module or a class defines, in any of its branches."""

    def __init__(self, body: Iterable[ast.AST], outer: _Scope | None = None) -> None:
        self.names: dict[str, ast.AST] = {}
        self.open = False
        self.outer = outer
        for node in _statements(body):
            names = list(_bound(node))
            self.open |= "*" in names
            self.names.update(dict.fromkeys(names, node))

    def missing(self, names: Sequence[str]) -> str:
        """The first part of a path of names that is certainly not defined; "" if there is none."""
        name, *rest = names
        node = self.names.get(name)
        if node is None:
            if self.open or self._decorated(name):
                return ""
            return name
        if not rest or not isinstance(node, ast.ClassDef):
            return ""
        if self._lacks(node, rest, set()):
            return "::".join(names)
        return ""

    def line(self, names: Sequence[str]) -> int:
        """The line of a path of names, 0 if it is not defined here."""
        name, *rest = names
        node = self.names.get(name)
        if not isinstance(node, _DEFINITIONS):
            return 0
        if rest and isinstance(node, ast.ClassDef):
            return _Scope(node.body, self).line(rest)
        return node.lineno

    def _lacks(self, node: ast.ClassDef, names: Sequence[str], seen: set[str]) -> bool:
        """Whether a name is missing from a class and from its base classes."""
        seen.add(node.name)
        inner = _Scope(node.body, self)
        if node.keywords or _makers(node) or not inner.missing(names):
            return False
        for base in node.bases:
            name = _name_of(base)
            known = self._find(name)
            if isinstance(known, ast.ClassDef):
                if name not in seen and not self._lacks(known, names, seen):
                    return False
            elif name not in _EMPTY_BASES:
                return False
        return True

    def _find(self, name: str) -> ast.AST | None:
        if name in self.names or self.outer is None:
            return self.names.get(name)
        return self.outer._find(name)

    def _decorated(self, name: str) -> bool:
        """Whether a decorator may have made this name from another: ``TestAdd_param_0`` from ``TestAdd``."""
        nodes = self.names.items()
        return any(name.startswith(known) and _makers(node) for known, node in nodes)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds; ``*`` if it imports all names of a module."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            package, _, _ = alias.name.partition(".")
            yield alias.asname or package
    elif isinstance(node, _DEFINITIONS):
        yield node.name
    else:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id


def _name_of(base: ast.expr) -> str:
    """The name of a base class, "" for other expressions."""
    if isinstance(base, ast.Attribute):
        return base.attr
    if isinstance(base, ast.Name):
        return base.id
    return ""


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a body and of its branches, but not of functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, _DEFINITIONS):
            parts = ast.iter_child_nodes(node)
            branches = [part for part in parts if isinstance(part, _BRANCHES)]
            yield from _statements(branches)


def _makers(node: ast.AST) -> bool:
    """Whether a definition has decorators that may define further names. Decorators of pytest define none."""
    if not isinstance(node, _DEFINITIONS):
        return False
    decorators = map(ast.unparse, node.decorator_list)
    return not all(name.startswith("pytest.") for name in decorators)
