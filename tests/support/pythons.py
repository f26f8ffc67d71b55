"""The Python interpreters on this machine. ``CUTRACE_TEST_PYTHONS`` names more of them, separated as in PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def version_of(python: str) -> tuple[int, int]:
    """The version of an interpreter, (0, 0) if it does not run."""
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    major, minor = map(int, done.stdout.split()) if done.returncode == 0 else (0, 0)
    return major, minor


@cache
def pythons() -> dict[str, str]:
    """One interpreter of each version from 3.10 on, by version. This one comes first."""
    named = filter(None, os.environ.get("CUTRACE_TEST_PYTHONS", "").split(os.pathsep))
    of_pyenv = Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python")
    on_path = filter(None, (shutil.which(f"python3.{minor}") for minor in range(10, 16)))
    found: dict[str, str] = {}
    for python in [sys.executable, *named, *map(str, of_pyenv), *on_path]:
        version = version_of(python)
        if version >= (3, 10):
            found.setdefault("{}.{}".format(*version), python)
    return found
