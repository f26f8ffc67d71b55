"""The processes of a trace, and how their clocks relate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from .alignment import Alignment


@dataclass(frozen=True)
class Process:
    """One recorded process.

    ``index`` is what the ``process`` field of rows holds. ``info`` is the whole process description of the file
    (docs/run-bin.md lists its keys). ``alignment`` moved the times of its rows, so that all processes of the trace
    share one clock; ``info["clock_of"]`` then names that clock. It moves nothing where the processes share a boot.
    """

    index: int
    pid: int
    name: str
    host: str
    boot_id: str
    command: tuple[str, ...]
    info: dict[str, Any] = field(repr=False)
    alignment: Alignment = field(default_factory=Alignment)

    @property
    def identity(self) -> tuple[str, str, int, str]:
        """What tells the process from all others. A capture may hold it twice: metrics of kernels are written later."""
        return self.host, self.boot_id, self.pid, str(self.info.get("started", ""))

    @property
    def complete(self) -> bool:
        """Whether its capture was closed in order (not killed, not torn)."""
        return "ended" in self.info

    @property
    def flush_ms(self) -> int:
        """The interval (ms) in which what was recorded went into the file."""
        options = self.info.get("options")
        given = options.get("flush_ms") if isinstance(options, dict) else None
        return int(given) if isinstance(given, str) and given.isdecimal() and len(given) < 10 else 100


def describe(index: int, pid: int, info: dict[str, Any], alignment: Alignment, clock: str) -> Process:
    """A process from its description in the file, of which no key is certain to be there or of its type. ``clock`` is
    the boot that the times of the trace count from."""
    command = info.get("command")
    words = tuple(str(word) for word in command) if isinstance(command, list) else ()
    executable = info.get("executable")
    name = PurePath(words[0] if words else executable if isinstance(executable, str) else "").name
    if name.startswith("python") and len(words) > 1:
        # What runs is the script or module; python's own options say nothing.
        script = next((w for w in words[1:] if not w.startswith("-")), "")
        name = f"{name} {PurePath(script).name}" if script and "-c" not in words else name
    return Process(
        index=index,
        pid=pid,
        name=str(info.get("name") or "") or name or f"process {pid}",
        host=str(info.get("host", "")),
        boot_id=str(info.get("boot_id", "")),
        command=words,
        info=info | {"clock_of": clock} if alignment != Alignment() else info,
        alignment=alignment,
    )


def clock_of(info: dict[str, Any]) -> str:
    """Which boot of which machine the clock of a process's times counts from, by its description: its own, or that of
    the capture it was merged into."""
    return str(info.get("clock_of") or info.get("boot_id", ""))
