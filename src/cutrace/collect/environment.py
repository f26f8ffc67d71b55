"""The environment variables through which the driver and NVTX load the collector into a program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .library import collector_path
from .options import Options

CUDA = "CUDA_INJECTION64_PATH"
NVTX = "NVTX_INJECTION64_PATH"
OPTIONS = "CUTRACE_OPTIONS"


def injection(options: Options, directory: Path, dump: Path | None = None) -> dict[str, str]:
    """The variables for a program, its children included, whose processes write their files into ``directory``, and
    what SIGUSR2 asks for beside ``dump`` (see :meth:`Options.text`)."""
    library = str(collector_path())
    variables = {CUDA: library, OPTIONS: options.text(directory=directory, dump=dump)}
    if options.nvtx:
        variables[NVTX] = library
    return variables


def others(environment: Mapping[str, str]) -> dict[str, str]:
    """Injection variables that another tool has set, with the library each names."""
    return {
        name: value
        for name in (CUDA, NVTX)
        if (value := environment.get(name)) and Path(value).name != collector_path().name
    }
