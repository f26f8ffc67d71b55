"""Where the golden file of a test file is, and where the artifacts of a test are: readable paths that nothing shares.

A path is made of the id itself where its characters allow that, and can be read back then. In every other id odd
characters are replaced, and a hash of the whole id is added behind ``~``, a character that plain paths do not have.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from .model import split

#: Longest name of a file or folder, in characters; what is longer is cut and gets a hash.
LONGEST = 100
#: Most folders that a path is given; of longer ones the last are kept, and a hash is added.
DEEPEST = 20

_NAME = r"(?!\.)[A-Za-z0-9_.+=,@-]+"
_PLAIN_FILE = re.compile(rf"(?:{_NAME}/)*{_NAME}", re.ASCII)
_PLAIN_TEST = re.compile(rf"\w+(?:::\w+)*(?:\[{_NAME}\])?", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_.+=,@-]")
_HASH_DIGITS = 12


def golden_path(root: Path, nodeid: str) -> Path:
    """The golden file under ``root`` for all tests of the file that ``nodeid`` is of: ``tests/test_a.toml`` for
    ``tests/test_a.py::test_b``.

    Any text is a valid ``nodeid``; different test files have different golden files. On a file system that does not
    tell ``a`` from ``A`` two may meet all the same: the path stored in the file then shows it, see
    :func:`cutrace.golden.read`.
    """
    file, test = split(nodeid)
    file = file or test
    parts = file.split("/")
    dots = parts[-1].count(".")
    # Names without a dot, which no test file of pytest's own has, would meet those of modules.
    if _PLAIN_FILE.fullmatch(file) and _fits(parts, ".toml") and dots:
        return root / f"{file.removesuffix('.py') if dots == 1 else file}.toml"
    return root.joinpath(*_hashed(parts, file, ".toml"))


def artifact_path(root: Path, nodeid: str) -> Path:
    """The place under ``root`` for what a test leaves: ``tests/test_a.py/TestB.test_c/float16`` for
    ``tests/test_a.py::TestB::test_c[float16]``. Different ids have different places."""
    file, test = split(nodeid)
    names, bracket, parameters = test.partition("[")
    # A parameter is put below its function, and no name that a file can have may look like a function.
    parts = [*file.split("/"), names.replace("::", "."), *([parameters.removesuffix("]")] if bracket else [])]
    plain = _PLAIN_FILE.fullmatch(file) and file.endswith(".py") and _PLAIN_TEST.fullmatch(test)
    return root.joinpath(*(parts if plain and _fits(parts, ".py", file.count("/")) else _hashed(parts, nodeid)))


def _fits(parts: list[str], ending: str, folders: int = -1) -> bool:
    """Whether a path is short enough, and none of its folders looks like a file."""
    short = len(parts) <= DEEPEST and all(len(part) <= LONGEST for part in parts)
    return short and not any(part.endswith(ending) for part in parts[:folders])


def _hashed(parts: list[str], whole: str, ending: str = "") -> list[str]:
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    *folders, name = [part for part in parts if part][-DEEPEST:] or ["_"]
    # No folder may have the name of a file.
    return [
        *(_clean(folder.replace(".toml", "_toml")) for folder in folders),
        f"{_clean(name)[: LONGEST - _HASH_DIGITS - 1]}~{digest}{ending}",
    ]


def _clean(text: str) -> str:
    name = _ODD.sub("_", text)[:LONGEST]
    return "_" + name[1:] if name.startswith(".") else name
