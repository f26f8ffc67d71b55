"""Functions for worker processes of a batch that make the workers die."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cutrace.extras.fleet.parts import Mapped, Task, map_file


def once(task: Task, version: str = "") -> Mapped:
    """Die at a file named ``killer*`` the first time, and map it the second time."""
    if Path(task.source).name.startswith("killer"):
        try:
            Path(f"{task.source}.died").touch(exist_ok=False)
        except FileExistsError:
            return map_file(task)
        os.kill(os.getpid(), signal.SIGKILL)
    return map_file(task)


def always(task: Task, version: str = "") -> Mapped:
    """Die at each file named ``killer*``, each time."""
    if Path(task.source).name.startswith("killer"):
        os.kill(os.getpid(), signal.SIGKILL)
    return map_file(task)


def by_name(task: Task, version: str = "") -> Mapped:
    """Die at a file named ``killer-once*`` the first time, and at a file named ``killer-always*`` each time."""
    if Path(task.source).name.startswith("killer-always"):
        return always(task)
    return once(task)
