"""Sampling hardware counters during a recording: starting and ending the process that samples."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .. import plugins
from ..errors import CutraceError
from ..interpreter import module_command
from . import environment
from .checks import counters_refused
from .options import Options

#: The file with the samples, in the folder of a recording.
SAMPLES = "samples.bin"
# The driver needs some time to release many GPUs.
_END_S = 30


def start_sampling(options: Options, directory: Path) -> Sampling | None:
    """Start to sample metrics into a folder if the options ask for it. Raises :class:`CutraceError` when that fails,
    and when program counters are to be sampled but this user may not read counters."""
    if options.samples_program_counters and (refused := counters_refused()):
        finding, advice = refused
        raise CutraceError(
            f"program counters cannot be sampled: {finding}. To fix it: {advice}"
        )
    if options.sampled_metrics is None:
        return None
    return Sampling(options, directory)


class Sampling:
    """A process that samples the GPUs into the folder of a recording until :meth:`stop`. The program is in an extra.

    It is a separate process because CUDA and CUPTI start threads. These could receive the signals of the process that
    runs the command, or take time from the measured process.
    """

    def __init__(self, options: Options, directory: Path) -> None:
        """Start sampling and wait until it runs. Raises :class:`CutraceError` when it cannot start."""
        samplers = plugins.of_extras("cutrace_samplers")
        if not samplers:
            raise CutraceError(
                "this installation of cutrace lacks hardware metrics: record without --sample"
            )
        request = {
            "file": str((directory / SAMPLES).absolute()),
            "metrics": options.sampled_metrics,
            "interval_ns": options.interval_ns,
            "cupti": options.cupti,
            "max_size": options.max_size,
        }
        injection = {environment.CUDA, environment.NVTX, environment.OPTIONS}
        self._process = subprocess.Popen(
            module_command(samplers[0], json.dumps(request)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                name: value
                for name, value in os.environ.items()
                if name not in injection
            },
            start_new_session=True,  # Signals of the terminal are for the command.
        )
        try:
            assert self._process.stdout is not None
            line = next(
                (line for line in self._process.stdout if line.startswith("{")), "{}"
            )
            if "ready" not in (answer := json.loads(line)):
                status = self._process.wait()
                raise CutraceError(
                    str(
                        answer.get("error")
                        or f"the process that samples ended with status {status} at its start"
                    )
                )
        except BaseException:
            self.kill()
            raise

    def stop(self) -> str:
        """End sampling. Returns a sentence about an error, "" for none. Earlier samples are kept."""
        try:
            self._process.communicate("\n", timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return (
                f"sampling did not end within {_END_S} s: its last samples are missing"
            )
        status = self._process.returncode
        if status:
            return (
                f"sampling ended early, with status {status}: later samples are missing"
            )
        return ""

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate()
