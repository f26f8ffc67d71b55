"""Running a module of cutrace in a new Python process."""

from __future__ import annotations

import sys

# The effect of the option -P, for Python 3.10: "" is the working folder.
_RUN_SAFELY = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs a module. Unlike ``python -m``, it does not import from the working folder: a file
    ``json.py`` there would run with the rights of the user."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", _RUN_SAFELY, module, *arguments]
