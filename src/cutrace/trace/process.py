"""The processes of a trace, and how their clocks relate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

# Clocks of machines lie no 146 years (ns) apart: snapshots that say so are wrong, and not to be calculated with.
_FARTHEST = 1 << 62


@dataclass(frozen=True)
class Process:
    """One recorded process.

    ``index`` is what the ``process`` field of rows holds. ``info`` is the whole process description of the file
    (docs/run-bin.md lists its keys). ``clock_offset`` (ns) was added to the times of its rows, so that all
    processes of the trace share the clock of the first one; it is 0 for processes of the same boot.
    """

    index: int
    pid: int
    name: str
    host: str
    boot_id: str
    command: tuple[str, ...]
    info: dict[str, Any] = field(repr=False)
    clock_offset: int = 0

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


def describe(index: int, pid: int, info: dict[str, Any], clock_offset: int) -> Process:
    """A process from its description in the file, of which no key is certain to be there or of its type."""
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
        info=info,
        clock_offset=clock_offset,
    )


def clock_of(info: dict[str, Any]) -> str:
    """Which boot of which machine the clock of a process's times counts from, by its description: its own, or that of
    the capture it was merged into."""
    return str(info.get("clock_of") or info.get("boot_id", ""))


def clock_offsets(infos: Sequence[dict[str, Any]], clocks: Sequence[np.ndarray]) -> list[int]:
    """What to add to each process's BOOTTIME (ns) so that it is the first process's.

    Processes of one boot of one machine share the clock as it is. Others are aligned through REALTIME, by the
    median of their clock snapshots (``clocks``: rows of that table for each process); one without snapshots stays
    as it is.
    """

    def lead(rows: np.ndarray) -> int | None:
        if not len(rows):
            return None
        leads = rows["realtime"].astype(np.int64) - rows["boottime"].astype(np.int64)
        # The leads themselves have too many digits for a float.
        return int(leads[0]) + int(np.median(leads - leads[0]))

    reference = lead(clocks[0]) if clocks else None
    offsets = []
    for info, rows in zip(infos, clocks, strict=True):
        same = clock_of(info) == clock_of(infos[0])
        own = None if same else lead(rows)
        offset = 0 if own is None or reference is None else own - reference
        offsets.append(offset if abs(offset) < _FARTHEST else 0)
    return offsets
