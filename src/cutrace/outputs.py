"""Places to write to: what is wrong with one is said before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import CutraceError


def check_output(path: Path) -> None:
    """Raise :class:`CutraceError` when no file can be written or replaced at ``path``."""
    try:
        occupied = path.exists() and not path.is_file()
    except OSError as error:
        raise unwritable(path, error) from None
    if occupied:
        raise CutraceError(f"cannot write {path}: it is not a file. Choose another name.")
    if not path.parent.is_dir():
        raise CutraceError(f"cannot write {path}: the folder {path.parent} does not exist. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise CutraceError(f"cannot write {path}: no permission to write into its folder. Choose another place.")


def unwritable(path: Path, error: OSError) -> CutraceError:
    """What to raise when the system refuses to write ``path``."""
    return CutraceError(f"cannot write {path}: {error.strerror}. Choose another name or place.")
