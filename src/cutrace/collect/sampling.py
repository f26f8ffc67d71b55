"""Sampling hardware counters beside a recording: starting and ending the process that does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ..errors import CutraceError
from . import environment
from .join import SAMPLES
from .options import Options

# The driver takes a while to let go of many GPUs.
_END_S = 30


class Sampling:
    """Samples the GPUs into a folder of files of processes, until :meth:`stop`: see :mod:`cutrace.metrics.sampling`.

    It is a process of its own: CUDA and CUPTI have threads, which would take signals of the one that runs a command and
    time of the one that is measured.
    """

    def __init__(self, options: Options, directory: Path) -> None:
        """Returns when sampling has begun. Raises :class:`CutraceError` where it cannot run."""
        wanted = {
            "file": str((directory / SAMPLES).absolute()),
            "metrics": options.sample,
            "interval_ns": options.interval_ns,
            "cupti": options.cupti,
            "max_size": options.max_size,
        }
        unwanted = {environment.CUDA, environment.NVTX, environment.OPTIONS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cutrace.metrics.sampling", json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name not in unwanted},
            start_new_session=True,  # what the terminal sends is for the command
        )
        try:
            assert self._process.stdout is not None
            said = next((line for line in self._process.stdout if line.startswith("{")), "{}")
            if "ready" not in (answer := json.loads(said)):
                status = self._process.wait()
                raise CutraceError(
                    str(answer.get("error") or f"the process that samples ended with status {status} at its begin")
                )
        except BaseException:
            self.kill()
            raise

    def stop(self) -> str:
        """End sampling. Returns a sentence for what went wrong, "" for nothing; what was sampled before is kept."""
        try:
            self._process.communicate("\n", timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"sampling did not end within {_END_S} s: its last samples are missing"
        status = self._process.returncode
        return f"sampling ended early, with status {status}: later samples are missing" if status else ""

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.communicate()
