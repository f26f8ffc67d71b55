"""Recording: a command (:func:`record_command`), or this process (:func:`record`, :func:`arm`)."""

from .capture import Armed, Capture, arm, dump, mark, record
from .command import Recording, record_command
from .options import KINDS, Options, completed

__all__ = [
    "KINDS", "Armed", "Capture", "Options", "Recording", "arm", "completed", "dump", "mark", "record", "record_command",
]  # fmt: skip
