"""The paths of golden files and of artifacts of tests: readable and unique.

If all characters of an id are allowed, the path is the id. Otherwise forbidden characters are replaced, and ``~`` and a
hash of the whole id are appended. Plain paths have no ``~``.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from .model import split

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The maximum length of the name of a file or folder, in characters. Longer names are cut and get a hash.
LONGEST = 100
#: The maximum number of parts of a path. Longer paths keep the last parts and get a hash.
DEEPEST = 20

#: The folder of golden files in the rootdir, unless the ini value ``cutrace_golden_dir`` names another.
GOLDEN = "golden"
#: The files in which pytest looks for ini values, in its order, with their section; "" for TOML.
_INI_FILES = {
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "pytest.toml": "",
    ".pytest.toml": "",
    "pyproject.toml": "",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}

_NAME = r"(?!\.)[A-Za-z0-9_.+=,@-]+"
_PLAIN_FILE = re.compile(rf"(?:{_NAME}/)*{_NAME}", re.ASCII)
_PLAIN_TEST = re.compile(rf"\w+(?:::\w+)*(?:\[{_NAME}\])?", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_.+=,@-]")
_HASH_DIGITS = 12


class Suite(NamedTuple):
    """The folder that ids of tests are relative to, and the folder of golden files."""

    rootdir: Path
    golden_root: Path


def suite_of(folder: Path) -> Suite:
    """The suite of a folder. The folder and its parents are searched for a file with ini values, in the same way as by
    pytest. Without such a file, the folder is the rootdir."""
    for candidate in (folder, *folder.parents):
        for name, section in _INI_FILES.items():
            values = _ini_values(candidate / name, section)
            if values is not None:
                named = str(values.get("cutrace_golden_dir") or GOLDEN)
                return Suite(candidate, candidate / named)
    return Suite(folder, folder / GOLDEN)


def _ini_values(path: Path, section: str) -> dict[str, Any] | None:
    """The ini values for pytest in a file; None if the file has no section for pytest. A damaged file gives None,
    because pytest reports the damage."""
    import configparser  # Most sessions do not need it.

    try:
        content = path.read_text(encoding="utf-8")
        if not section:
            return _toml_values(tomllib.loads(content), path.name)
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(content)
    except (OSError, ValueError, configparser.Error):
        return None
    if parser.has_section(section):
        return dict(parser[section])
    if path.name.endswith("pytest.ini"):
        return {}  # pytest uses it even if it is empty.
    return None


def _toml_values(tables: dict[str, Any], name: str) -> dict[str, Any] | None:
    if name != "pyproject.toml":
        return dict(tables.get("pytest", {}))
    tool = tables.get("tool", {}).get("pytest", {})
    values = tool.get("ini_options", tool)
    if not values:
        return None
    return dict(values)


def golden_path(root: Path, nodeid: str) -> Path:
    """The golden file under ``root`` of a test: ``tests/test_a.toml`` for ``tests/test_a.py::test_b``.

    Any string is a valid ``nodeid``. Different test files have different golden files. On a case-insensitive file
    system two paths may be the same file. :func:`cutrace.golden.read` detects that by the path stored in the file.
    """
    file, test = split(nodeid)
    file = file or test
    parts = file.split("/")
    dots = parts[-1].count(".")
    # Names without a dot would collide with the files of modules. Test files of pytest itself have a dot.
    plain = _PLAIN_FILE.fullmatch(file) and _fits(parts, ".toml") and dots
    if not plain:
        return root.joinpath(*_hashed(parts, file, ".toml"))
    if dots == 1:
        file = file.removesuffix(".py")
    return root / f"{file}.toml"


def artifact_path(root: Path, nodeid: str) -> Path:
    """The path under ``root`` for the artifacts of a test: ``tests/test_a.py/TestB.test_c/float16`` for
    ``tests/test_a.py::TestB::test_c[float16]``. Different ids have different paths."""
    file, test = split(nodeid)
    names, bracket, parameters = test.partition("[")
    parts = file.split("/")
    parts.append(names.replace("::", "."))
    if bracket:  # Parameters are below their function.
        parts.append(parameters.removesuffix("]"))
    plain = (
        _PLAIN_FILE.fullmatch(file)
        and file.endswith(".py")
        and _PLAIN_TEST.fullmatch(test)
    )
    # A file name must not look like a function.
    if plain and _fits(parts, ".py", file.count("/")):
        return root.joinpath(*parts)
    return root.joinpath(*_hashed(parts, nodeid))


def _fits(parts: list[str], ending: str, folders: int = -1) -> bool:
    """Whether a path is short enough, and none of its folders looks like a file."""
    longest = max(map(len, parts))
    if longest > LONGEST or len(parts) > DEEPEST:
        return False
    return not any(folder.endswith(ending) for folder in parts[:folders])


def _hashed(parts: list[str], whole: str, ending: str = "") -> list[str]:
    data = whole.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(data).hexdigest()
    suffix = f"~{digest[:_HASH_DIGITS]}"
    named = list(filter(None, parts))
    *folders, name = named[-DEEPEST:] or ["_"]
    # A folder must not have the name of a golden file.
    path = [_clean(folder.replace(".toml", "_toml")) for folder in folders]
    most = LONGEST - len(suffix)
    path.append(f"{_clean(name)[:most]}{suffix}{ending}")
    return path


def _clean(text: str) -> str:
    name = _ODD.sub("_", text)[:LONGEST]
    if name.startswith("."):
        return "_" + name[1:]
    return name
