"""Recording: a command (:func:`record_command`), this process (:func:`record`, :func:`arm`), or a process that runs
already (:func:`attach`).

Each name is loaded on first use: a traced test session needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .capture import Armed, Capture, arm, dump, mark, record
    from .command import record_command
    from .environment import variables
    from .join import Recording
    from .options import KINDS, Options, completed
    from .standby import Attachment, StandbyProcess, attach, processes

__all__ = [
    "KINDS", "Armed", "Attachment", "Capture", "Options", "Recording", "StandbyProcess", "arm", "attach", "completed",
    "dump", "mark", "processes", "record", "record_command",
    "variables",
]  # fmt: skip

_HOMES = {
    "KINDS": "options",
    "Armed": "capture",
    "Attachment": "standby",
    "Capture": "capture",
    "Options": "options",
    "Recording": "join",
    "StandbyProcess": "standby",
    "arm": "capture",
    "attach": "standby",
    "completed": "options",
    "dump": "capture",
    "mark": "capture",
    "processes": "standby",
    "record": "capture",
    "record_command": "command",
    "variables": "environment",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_HOMES[name]}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value
