"""Workers of a batch that die: functions that worker processes import."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cutrace.extras.fleet.parts import Mapped, Task, map_file


def once(task: Task, version: str = "") -> Mapped:
    """Die at the first file named ``killer*``, and map it when it comes again."""
    if Path(task.source).name.startswith("killer"):
        try:
            Path(f"{task.source}.died").touch(exist_ok=False)
        except FileExistsError:
            return map_file(task)
        os.kill(os.getpid(), signal.SIGKILL)
    return map_file(task)


def always(task: Task, version: str = "") -> Mapped:
    """Die at each file named ``killer*``."""
    if Path(task.source).name.startswith("killer"):
        os.kill(os.getpid(), signal.SIGKILL)
    return map_file(task)


def by_name(task: Task, version: str = "") -> Mapped:
    """Die at the first file named ``killer-once*``, and at each named ``killer-always*``."""
    if Path(task.source).name.startswith("killer-always"):
        return always(task)
    return once(task)
