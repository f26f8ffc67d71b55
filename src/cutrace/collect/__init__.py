"""Recording: a command (:func:`record_command`), this process (:func:`record`, :func:`arm`), or a process that runs
already (:func:`attach`)."""

from .capture import Armed, Capture, arm, dump, mark, record
from .command import record_command
from .join import Recording
from .options import KINDS, Options, completed
from .standby import Attachment, StandbyProcess, attach, processes

__all__ = [
    "KINDS", "Armed", "Attachment", "Capture", "Options", "Recording", "StandbyProcess", "arm", "attach", "completed",
    "dump", "mark", "processes", "record", "record_command",
]  # fmt: skip
