"""The machine code of kernels in golden files.

A code is a string with its hash and the properties that are not 0: ``9f3c52d0a1b2c3d4 registers=32 bytes=512``. A
kernel has several if its launches ran different codes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ..units import first_of

_CODE = re.compile(
    r"[0-9a-f]{16}( registers=[0-9]+)?( shared=[0-9]+)?( local=[0-9]+)?( bytes=[0-9]+)?",
    re.ASCII,
)
#: The properties of a code, by their names in golden files, with their labels.
_LABELS = {
    "registers": "registers",
    "shared": "static shared",
    "local": "local",
    "bytes": "code bytes",
}
#: The maximum of kernels in a detail. Other kernels are counted.
_LISTED = 6


def is_code(string: str) -> bool:
    """Whether a string is a code. A word for an unknown code is none."""
    return _CODE.fullmatch(string) is not None


def code_difference(old: Collection[str], new: Collection[str]) -> list[str]:
    """The differences between the codes of a kernel, as phrases. The list is empty if all hashes are equal."""
    if _hashes(old) == _hashes(new):
        return []
    gone = set(old).difference(new)
    come = set(new).difference(old)
    if len(gone) != 1 or len(come) != 1:
        return [f"other code ({len(gone)} gone, {len(come)} new)"]
    before = _properties(*gone)
    after = _properties(*come)
    phrases = ["other code"]
    for name, label in _LABELS.items():
        old_value = before.get(name, "0")
        new_value = after.get(name, "0")
        if old_value != new_value:
            phrases.append(f"{label} {old_value} -> {new_value}")
    return phrases


def changed_codes(
    old: Mapping[str, Collection[str]], new: Mapping[str, Collection[str]]
) -> str:
    """The kernels with other code: ``softmax: other code, registers 32 -> 40; + code of fill``. "" if all are equal."""
    changes = []
    for name in sorted({**old, **new}):
        if name not in new:
            changes.append(f"- code of {name}")
        elif name not in old:
            changes.append(f"+ code of {name}")
        else:
            phrases = code_difference(old[name], new[name])
            if phrases:
                changes.append(f"{name}: {', '.join(phrases)}")
    return "; ".join(first_of(changes, _LISTED))


def _hashes(codes: Collection[str]) -> set[str]:
    return {code.split()[0] for code in codes}


def _properties(code: str) -> dict[str, str]:
    """The properties of a code that are not 0."""
    properties = {}
    for word in code.split()[1:]:
        name, _, value = word.partition("=")
        properties[name] = value
    return properties
