"""The environment variables that make the driver and NVTX load the collector into a program."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CutraceError
from .library import collector_path
from .options import Options, completed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import OptionArguments

CUDA = "CUDA_INJECTION64_PATH"
NVTX = "NVTX_INJECTION64_PATH"
OPTIONS = "CUTRACE_OPTIONS"


def variables(
    directory: str | os.PathLike[str] | None = None, **options: Unpack[OptionArguments]
) -> dict[str, str]:
    """The environment variables that record processes of another program, such as the workers of Ray::

        ray.init(runtime_env={"env_vars": cutrace.collect.variables("/shared/captures")})

    From its first CUDA or NVTX call on, each process writes a capture ``<pid>-<number>.bin`` into ``directory``. With
    a capture range it writes ``<pid>-<number>-w1.bin``, ..., one for each window. The directory must exist on every
    machine. Without ``directory`` the processes wait for :func:`attach`. The options are the arguments of
    :class:`cutrace.collect.Options`. cutrace must be installed at the same path for all processes.

    Raises :class:`CutraceError` for an invalid option, and for options that need more than the variables: samples of
    metrics and conditions for dumps.
    """
    folder = None if directory is None else Path(directory).absolute()
    chosen = completed(Options.of(**options))
    if chosen.sampled_metrics is not None:
        raise CutraceError(
            "variables cannot start to sample metrics: give sample to `cutrace record` or `cutrace attach`"
        )
    if chosen.dump_when:
        raise CutraceError(
            "variables name no file for dumps: give dump_when to `cutrace record` or `cutrace attach`"
        )
    return injection(chosen, folder)


def injection(
    options: Options, directory: Path | None, dump: Path | None = None
) -> dict[str, str]:
    """The variables for a program and its children. Each process writes a file into ``directory``, and its dumps next
    to ``dump`` (see :meth:`Options.text`). Without a directory, the processes wait for `cutrace attach`
    (:mod:`.standby`), and ``options`` are the defaults of its recordings."""
    library = str(collector_path())
    text = options.text(directory=directory, dump=dump)
    wants_nvtx = options.records_nvtx or directory is None
    return {CUDA: library, OPTIONS: text, **({NVTX: library} if wants_nvtx else {})}


def on_standby(environment: Mapping[str, str]) -> bool:
    """Whether a program with these variables waits for `cutrace attach`. Otherwise it records from its first CUDA or
    NVTX call on."""
    return (
        re.search(r"(^|[;\n])\s*standby\s*=\s*1", environment.get(OPTIONS, ""))
        is not None
    )


def recorded(environment: Mapping[str, str]) -> bool:
    """Whether a program with these variables is recorded from its first CUDA or NVTX call on."""
    return OPTIONS in environment and not on_standby(environment)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of this process. None removes a variable."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def others(environment: Mapping[str, str]) -> dict[str, str]:
    """The injection variables that another tool has set, and their values."""
    return {
        name: value
        for name in (CUDA, NVTX)
        if (value := environment.get(name))
        and Path(value).name != collector_path().name
    }
