"""Runs pytest in forks of a process that has already imported it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from .program_server import server_for


class PytestServer:
    """The server of programs for the search paths of ``environment``."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._server = server_for(environment)

    def run(
        self, arguments: list[str], folder: Path, environment: dict[str, str], while_running: Callable[[int], None]
    ) -> tuple[int, str]:
        """Run pytest, and call ``while_running`` with its process id. Returns the exit status and the output."""
        with tempfile.TemporaryFile() as output:
            status = self._server.run(["pytest", *arguments], folder, environment, output, output, while_running)
            output.seek(0)
            return status, output.read().decode(errors="replace")
