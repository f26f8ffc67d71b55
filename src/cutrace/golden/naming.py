"""Where the golden file of a test is: a readable path that no other test has.

``tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]`` is kept in
``tests/test_softmax.py/TestSoftmax.test_fwd/float16-1024x4096.toml``. An id of that plain form can be read back from
its path, so no two plain ids share one. Every other id has its odd characters replaced, and a hash of the whole id
behind ``~``, a character that plain paths do not have.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

#: Longest name of a file or folder, in characters, before ``.toml``; what is longer is cut and gets a hash.
LONGEST = 100
#: Most folders that the path of a test file is given; of longer ones the last are kept, and a hash is added.
DEEPEST = 20

_FOLDER = r"(?!\.)[A-Za-z0-9_.+=,@-]+"
_PLAIN = re.compile(
    rf"(?P<folders>(?:{_FOLDER}/)*)(?P<file>{_FOLDER}\.py)"
    r"::(?P<names>\w+(?:::\w+)*)"
    rf"(?:\[(?P<parameters>{_FOLDER})\])?",
    re.ASCII,
)
_ODD = re.compile(r"[^A-Za-z0-9_.+=,@-]")
_HASH_DIGITS = 12


def golden_path(root: Path, nodeid: str) -> Path:
    """The golden file of a test under the folder ``root``: ``<test file>/<Class.function>[/<parameters>].toml``.

    Any text is a valid ``nodeid``; different ids have different paths. On a file system that does not tell ``a`` from
    ``A`` two ids may meet all the same: the id stored in the file then shows it, see :func:`cutrace.golden.read`.
    """
    plain = _plain(nodeid)
    return root / (plain if plain is not None else _hashed(nodeid))


def _plain(nodeid: str) -> str | None:
    """The path of an id that needs no hash, or None."""
    match = _PLAIN.fullmatch(nodeid)
    if match is None:
        return None
    folders = match["folders"].split("/")[:-1]
    function = match["names"].replace("::", ".")
    parts = [*folders, match["file"], function, *([match["parameters"]] if match["parameters"] else [])]
    # The first part that ends with .py has to be the test file, and no folder may look like a golden file.
    mistakable = any(name.lower().endswith((".py", ".toml")) for name in (*folders, function))
    if mistakable or len(folders) >= DEEPEST or any(len(part) > LONGEST for part in parts):
        return None
    return "/".join(parts) + ".toml"


def _hashed(nodeid: str) -> str:
    file, _, rest = nodeid.partition("::")
    names, bracket, parameters = rest.partition("[")
    folders = [_folder(part) for part in file.split("/") if part][-DEEPEST:] or ["_"]
    function = _clean(names.replace("::", "\0").replace(".", "_").replace("\0", "."), LONGEST)
    digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    room = LONGEST - _HASH_DIGITS - 1
    if bracket:
        folders.append(_folder(function))
        name = _clean(parameters.removesuffix("]"), room)
    else:
        name = function[:room]
    return "/".join([*folders, f"{name}~{digest}.toml"])


def _folder(text: str) -> str:
    name = _clean(text, LONGEST)
    # A folder of such a name would be in the way of a golden file.
    return name[:-5] + "_toml" if name.lower().endswith(".toml") else name


def _clean(text: str, longest: int) -> str:
    name = _ODD.sub("_", text)[:longest] or "_"
    return "_" + name[1:] if name.startswith(".") else name
