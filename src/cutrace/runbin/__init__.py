"""The run.bin format: row layouts, reader with recovery, writer. docs/internals/run-bin.md specifies the bytes."""

from .blocks import BlockInfo, Damage
from .layout import FORMAT_VERSION, LOSS_REASONS, TABLES, Field, TableLayout
from .reader import Reader
from .writer import Writer

__all__ = [
    "FORMAT_VERSION",
    "LOSS_REASONS",
    "TABLES",
    "BlockInfo",
    "Damage",
    "Field",
    "Reader",
    "TableLayout",
    "Writer",
]
