"""The table of rooms in docs/internals/architecture.md is complete, and imports follow it."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cutrace"
#: Packages that every package may use.
COMMON = {"arguments", "errors", "units", "patterns", "outputs"}


def rooms() -> dict[str, set[str]]:
    """Each package (room) and the packages that it may use. The set is empty if the table allows all."""
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text()
    table = re.findall(r"^\| (`.*?) \| .* \| (.*?) ?\|$", page, re.MULTILINE)
    return {
        name.removeprefix("cutrace/").rstrip("/").removesuffix(".py"): set(re.findall(r"`(\w+)`", may))
        for names, may in table
        for name in re.findall(r"`([^` ]+)`", names)
    }


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """The nodes of the syntax tree of a file. Several tests read them."""
    return tuple(ast.walk(ast.parse(file.read_text())))


def imports(file: Path) -> Iterator[str]:
    """The rooms from which a file imports, including its own."""
    here = file.relative_to(SOURCE.parent).with_suffix("").parts
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = (
                (*here[: len(here) - node.level], *(node.module or "").split("."))
                if node.module
                else here[: -node.level]
            )
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]


def test_every_part_of_the_package_is_in_the_table():
    parts = {p.stem for p in SOURCE.iterdir() if p.suffix == ".py" or (p.is_dir() and p.name != "__pycache__")}
    known = {name.split("/")[0] for name in rooms()}
    assert parts - {"__main__"} <= known


def test_every_room_is_there():
    for name in rooms():
        places = (SOURCE / name, SOURCE / f"{name}.py", ROOT / name, ROOT / "src" / name)
        assert any(place.exists() for place in places), name


@pytest.mark.parametrize(
    ("page", "folders", "pattern", "shown"),
    [
        ("perfetto", [SOURCE / "exporters" / "perfetto"], "**/*.py", "{0.stem}"),
        ("collector", [SOURCE / "native" / "collector", SOURCE / "native" / "cuda"], "**/*.cpp", "{0.name}"),
        ("benchmarks", [ROOT / "benchmarks"], "*.py", "{0.name}"),
    ],
)
def test_a_page_lists_all_modules_of_its_part(page: str, folders: list[Path], pattern: str, shown: str):
    text = (ROOT / "docs" / "internals" / f"{page}.md").read_text()
    listed = {name for code in re.findall(r"`([^`\n]+)`", text) for name in re.split("[ /]", code)}
    files = [file for folder in folders for file in folder.glob(pattern) if file.name != "__init__.py"]
    assert files
    assert {shown.format(file) for file in files} <= listed


def test_imports_keep_to_the_table():
    for name, may in rooms().items():
        files = [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else (SOURCE / name).rglob("*.py")
        for file in files:
            if name not in ("__init__", "api", "cli", "extras"):
                assert set(imports(file)) <= {name, *may, *COMMON}, file


def test_the_core_knows_no_extra_and_no_extra_another():
    extras = SOURCE / "extras"
    names = {path.parent.name for path in extras.glob("*/__init__.py")}
    assert len(names) == 5
    for file in SOURCE.rglob("*.py"):
        if file.name == "__init__.py" and file.parent == SOURCE:
            continue  # names the home of each public function
        of = file.relative_to(extras).parts[0] if extras in file.parents else ""
        absolute = set(re.findall(r"cutrace\.extras\.(\w+)", file.read_text()))
        relative = {
            name for module in imported_packages(file) for name in re.findall(r"^cutrace\.extras\.(\w+)", module)
        }
        assert (absolute | relative) <= {of}, file


def imported_packages(file: Path) -> Iterator[str]:
    """The full names of the modules that a file imports relatively."""
    here = file.relative_to(SOURCE.parent).with_suffix("").parts
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*here[: -node.level], *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def test_nothing_but_the_plugin_knows_pytest():
    for file in SOURCE.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (pytest|_pytest|pytest_cutrace)\b", file.read_text(), re.MULTILINE), (
            file
        )


def imported_modules(file: Path, modules: dict[Path, str]) -> Iterator[str]:
    """The modules of this project that a file imports when it runs. Imports inside functions count, too."""
    for_types = {
        id(inner)
        for node in nodes(file)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in node.body
    }
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in for_types:
            folder = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                place = folder / name.name
                found = [
                    place.with_suffix(".py"),
                    place / "__init__.py",
                    folder.with_suffix(".py"),
                    folder / "__init__.py",
                ]
                yield from [modules[path] for path in found if path in modules][:1]


def test_no_modules_import_each_other_in_a_circle():
    files = [*SOURCE.rglob("*.py"), *(SOURCE.parent / "pytest_cutrace").rglob("*.py")]
    modules = {file: str(file.relative_to(SOURCE.parent)) for file in files}
    graph = {name: set(imported_modules(file, modules)) - {name} for file, name in modules.items()}
    assert sum(map(len, graph.values())) > len(graph)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


#: For each package, the nodes of the syntax tree per line, and the dense constructs per 100 lines. They may only fall.
#: Lower a number when the code gets below it.
DENSITY = {
    "analysis": (8.2, 2.4),
    "cli": (6.5, 1.8),
    "collect": (7.4, 3.3),
    "cutrace": (7.8, 3.0),
    "exporters": (9.1, 2.6),
    "extras": (8.2, 2.7),
    "golden": (8.7, 3.1),
    "importers": (9.0, 2.9),
    "pytest_cutrace": (7.9, 3.2),
    "reports": (9.4, 3.5),
    "runbin": (6.4, 3.1),
    "trace": (9.7, 3.0),
}
_DENSE = (ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)


def is_dense(node: ast.AST) -> bool:
    """Whether a node is a conditional expression, a comprehension, ``:=``, or an assignment of a tuple to a tuple."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        return any(isinstance(target, ast.Tuple) for target in node.targets)
    return isinstance(node, _DENSE)


def count(file: Path) -> tuple[int, int, int]:
    """The number of nodes without docstrings, of lines of code, and of dense constructs."""
    tree = ast.parse(file.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(n.body[0]) for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n) is not None
    }
    nodes = dense = 0
    lines: set[int] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in docstrings:
            continue
        nodes += 1
        dense += is_dense(node)
        if isinstance(node, ast.expr):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif hasattr(node, "lineno"):
            lines.add(node.lineno)
        waiting.extend(ast.iter_child_nodes(node))
    return nodes, len(lines), dense


def densities() -> dict[str, tuple[float, float]]:
    """The nodes per line and the dense constructs per 100 lines, by package."""
    sums: dict[str, list[int]] = {}
    for file in [*SOURCE.rglob("*.py"), *(SOURCE.parent / "pytest_cutrace").rglob("*.py")]:
        parts = file.relative_to(SOURCE.parent).parts
        if "third_party" in parts or file.name == "callback_names.py":
            continue
        package = parts[0] if parts[0] != "cutrace" else parts[1] if len(parts) > 2 else "cutrace"
        sums[package] = [a + b for a, b in zip(sums.get(package, [0, 0, 0]), count(file), strict=True)]
    return {name: (nodes / lines, 100 * dense / lines) for name, (nodes, lines, dense) in sums.items() if lines > 50}


def test_a_class_name_exists_once():
    homes: dict[str, list[str]] = {}
    for file in [*SOURCE.rglob("*.py"), *(SOURCE.parent / "pytest_cutrace").rglob("*.py")]:
        for node in nodes(file):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(SOURCE.parent)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_code_gets_no_denser():
    found = densities()
    assert set(found) == set(DENSITY)
    for package, (nodes, dense) in found.items():
        most_nodes, most_dense = DENSITY[package]
        assert nodes <= most_nodes, f"{package}: one idea a statement, steps with names"
        assert dense <= most_dense, f"{package}: at most one comprehension or conditional expression in a statement"
