"""The names of kernels: short names for events, because slices have little room, and whole names as arguments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ..._native import Blobs, demangle
from ...trace.rows import distinct
from ...trace.strings import StringTable
from . import proto
from .packets import InternedNames, InternedTexts

#: The name of kernels without a launch configuration.
_UNKNOWN = "(unknown kernel)"

#: Characters of a short name, unless more are needed to tell kernels apart.
LONGEST = 64

#: A lambda inside a function, with the parameters of that function.
_LAMBDA = re.compile(
    r"(?:\([^(){}]*\)|::operator\(\)\(\) const)::\{lambda\([^(){}]*\)#\d+\}"
)
_NAMESPACE = re.compile(r"(?:\b[A-Za-z_]\w*|\(anonymous namespace\))::")
_BRACKET = re.compile(r"[()]")


class KernelNameColumns:
    """The names of the kernels of a trace, as columns: ``mangled`` as recorded, ``demangled``, and ``shown`` as the
    names of events."""

    def __init__(self, strings: StringTable, names: InternedNames) -> None:
        self._strings = strings
        self.mangled = Blobs()
        self.demangled = Blobs()
        self.shown = InternedTexts(names, "event_names")
        self._short = ShortNames()
        # By string id: the id of the event's name (0 if it was not looked up yet), and the numbers of the mangled and
        # the demangled name. The last entry is for unknown kernels.
        count = len(strings) + 1
        self._ids = np.zeros(count, np.uint32)
        self._mangled = np.zeros(count, np.uint32)
        self._demangled = np.zeros(count, np.uint32)

    def describe(
        self, styles: np.ndarray, names: np.ndarray, known: np.ndarray
    ) -> None:
        """Set the names of styles, given the string ids in their launch configurations, where these are ``known``."""
        names = np.where(known, names, len(self._strings))
        new = names[self._ids[names] == 0]
        self._look_up(distinct(new))
        styles["name"] = self._ids[names]
        styles["mangled"] = self._mangled[names]
        styles["demangled"] = self._demangled[names]

    def _look_up(self, strings: np.ndarray) -> None:
        mangled = []
        demangled = []
        shown = []
        for number in strings.tolist():
            name = _UNKNOWN
            if number < len(self._strings):
                name = self._strings[number]
            whole = demangle(name)
            mangled.append(self.mangled.add(proto.utf8(name)))
            demangled.append(self.demangled.add(proto.utf8(whole)))
            shown.append(self._short.of(whole))
        self._mangled[strings] = mangled
        self._demangled[strings] = demangled
        self._ids[strings] = self.shown.add(shown)


class ShortNames:
    """Short names of functions, all different."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._repeated: Counter[str] = Counter()

    def of(self, name: str) -> str:
        """The shortest form of a new name that no other name has. If all forms are taken, the name gets a number."""
        for form in forms(name):
            if form not in self._taken:
                self._taken.add(form)
                return form
        self._repeated[name] += 1
        return f"{name} #{self._repeated[name] + 1}"


def forms(name: str) -> Iterator[str]:
    """Forms of the name of a function, the shortest first. The first form has no type, parameters, namespaces and
    lambdas, and is cut if it is long. Later forms have lambdas and namespaces."""
    function = without_parameters(name)
    short = function
    if "{lambda" in short:
        short = _LAMBDA.sub("", short)
    if "::" in short:
        short = _NAMESPACE.sub("", short)
    if len(short) > LONGEST:
        yield short[: LONGEST - 1] + "…"
    yield short
    yield function


def without_parameters(name: str) -> str:
    """The name of a function without the type of its result, and without its parameters."""
    name = name.removeprefix("void ")
    if not name.endswith(")"):
        return name
    start = name.rfind("(")
    if name.count(")", start) == 1:
        return name[:start] or name
    depth = 0
    for bracket in reversed(list(_BRACKET.finditer(name))):
        depth += 1 if bracket[0] == ")" else -1
        if not depth:
            return name[: bracket.start()] or name
    return name
