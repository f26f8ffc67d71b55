"""The machine code of kernels.

A launch configuration has the hash of its code if the collector was certain which code ran. The table ``kernel_codes``
has the codes of all launched names. If a launch has no hash and its name has several codes, its code is ambiguous.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .._native import demangle

if TYPE_CHECKING:
    from .trace import Trace

#: Strings in place of the hash of a launch: its name has several codes, or its code is not recorded.
AMBIGUOUS = "ambiguous"
UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class KernelCode:
    """The machine code of a kernel.

    ``hash`` covers the code, its constants, and the code of the functions that it calls. ``size`` is the size of its
    code (bytes). ``registers`` and ``local`` (bytes) are per thread, ``static_shared`` (bytes) is per block.
    ``architecture`` is 90 for sm_90.
    """

    hash: int
    registers: int
    static_shared: int
    local: int
    size: int
    architecture: int

    @property
    def text(self) -> str:
        """The hash for display: 16 hexadecimal digits."""
        return hash_text(self.hash)

    @property
    def description(self) -> str:
        """The hash with the properties that are not 0: ``9f3c52d0a1b2c3d4 registers=32 shared=1024 bytes=512``."""
        properties = {
            "registers": self.registers,
            "shared": self.static_shared,
            "local": self.local,
            "bytes": self.size,
        }
        words = [self.text]
        for name, value in properties.items():
            if value:
                words.append(f"{name}={value}")
        return " ".join(words)


@dataclass(frozen=True)
class CodesOfKernel:
    """The machine code of the launches of one kernel name.

    ``codes`` certainly ran. ``unknown`` says that there are launches whose code is not known. ``candidates`` are the
    codes that may have run in these launches.
    """

    codes: frozenset[KernelCode]
    candidates: frozenset[KernelCode]
    unknown: bool

    @property
    def text(self) -> str:
        """The hashes, in order; :data:`AMBIGUOUS` or :data:`UNKNOWN` for launches without one."""
        hashes = [code.text for code in sorted(self.codes)]
        return ", ".join([*hashes, *self._uncertainty])

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The codes as :attr:`KernelCode.description`, in order; :data:`AMBIGUOUS` or :data:`UNKNOWN` for launches
        without one."""
        codes = [code.description for code in sorted(self.codes)]
        return (*codes, *self._uncertainty)

    @property
    def _uncertainty(self) -> list[str]:
        if not self.unknown:
            return []
        hashes = {code.hash for code in self.candidates}
        return [_uncertain(len(hashes))]


class KernelCodes:
    """The machine code of the kernels of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._by_name: defaultdict[tuple[int, str], set[KernelCode]] = defaultdict(set)
        fields = [
            "code",
            "registers",
            "static_shared",
            "local_per_thread",
            "size",
            "architecture",
        ]
        rows = trace.kernel_codes[["process", "name", *fields]]
        for process, name, *values in rows.tolist():
            codes = self._by_name[process, trace.strings[name]]
            codes.add(KernelCode(*values))

    def candidates(self, process: int, name: str) -> frozenset[KernelCode]:
        """The recorded codes of a kernel (mangled name) in a process."""
        return frozenset(self._by_name.get((process, name), ()))

    def text(self, process: int, name: str, code: int) -> str:
        """The hash of a launch for display. ``name`` is the mangled name, ``code`` the field of its launch
        configuration."""
        if code:
            return hash_text(code)
        hashes = {known.hash for known in self.candidates(process, name)}
        return _uncertain(len(hashes))

    @cached_property
    def by_kernel(self) -> dict[str, CodesOfKernel]:
        """The codes of the launched kernels, by demangled name."""
        return self.by_name(demangle)

    def by_name(self, name_of: Callable[[str], str]) -> dict[str, CodesOfKernel]:
        """The codes of the launched kernels, by the name that ``name_of`` makes of their mangled names."""
        used: set[tuple[int, int]] = set()
        for rows in self._trace.blocks("kernels"):
            used |= _launches(rows)
        return self._by_name_of(used, name_of)

    def of_kernels(
        self, kernels: np.ndarray, name_of: Callable[[str], str]
    ) -> dict[str, CodesOfKernel]:
        """The result of :meth:`by_name` for these rows of the table ``kernels`` alone."""
        return self._by_name_of(_launches(kernels), name_of)

    def _by_name_of(
        self, launches: set[tuple[int, int]], name_of: Callable[[str], str]
    ) -> dict[str, CodesOfKernel]:
        found: defaultdict[str, _Found] = defaultdict(_Found)
        for process, launch in sorted(launches):
            row = self._trace.launches[launch]
            mangled = self._trace.strings[row["name"]]
            candidates = self.candidates(process, mangled)
            found[name_of(mangled)].add(int(row["code"]), candidates)
        return {name: found[name].result() for name in sorted(found)}


def _launches(kernels: np.ndarray) -> set[tuple[int, int]]:
    """The known launch configurations of kernels, each with its process."""
    known = kernels[kernels["launch"] > 0]
    return set(known[["process", "launch"]].tolist())


class _Found:
    """The codes of one name that were found so far."""

    def __init__(self) -> None:
        self.codes: set[KernelCode] = set()
        self.candidates: set[KernelCode] = set()
        self.unknown = False

    def add(self, code: int, recorded: frozenset[KernelCode]) -> None:
        same = {known for known in recorded if known.hash == code}
        self.codes |= same
        if not same:
            self.unknown = True
            self.candidates |= recorded

    def result(self) -> CodesOfKernel:
        return CodesOfKernel(
            frozenset(self.codes), frozenset(self.candidates), self.unknown
        )


def hash_text(code: int) -> str:
    """The hash of machine code for display."""
    return f"{code:016x}"


def _uncertain(codes: int) -> str:
    if codes > 1:
        return AMBIGUOUS
    return UNKNOWN
