"""cutrace demo: record and convert a small GPU workload."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from ..errors import CutraceError
from ..interpreter import module_command
from . import options


@click.command()
@options.output("Trace to write; see `cutrace record --help`.", default="demo.pftrace")
def demo(output: Path) -> None:
    """Record a small workload (kernels and copies on two streams, NVTX ranges) and convert it to a Perfetto trace.

    It needs a GPU and the packages of `pip install 'cutrace[demo]'`.
    """
    from ..collect import cuda
    from ..collect.command import record_command
    from ..collect.options import Options, completed
    from ..conversion import check_destination
    from ..outputs import size_of
    from ..units import format_size

    check_destination(output, ())
    missing = [name for name, module in _PACKAGES.items() if not _installed(module)]
    if cuda.driver_version() is None:
        raise CutraceError(
            "the demo needs an NVIDIA GPU and this machine has no driver. For a sample, convert a capture of the "
            "source tree: cutrace convert tests/data/cuda_core.bin -o demo.pftrace"
        )
    if missing:
        raise CutraceError(
            f"the demo needs {' and '.join(missing)}: pip install 'cutrace[demo]'"
        )
    recording = record_command(_COMMAND, output, completed(Options()))
    if recording.status:
        raise CutraceError(
            f"the demo's workload ended with status {recording.status}: run `cutrace doctor`"
        )
    if recording.output is None:
        raise CutraceError("the demo's workload left no capture: run `cutrace doctor`")
    capture = recording.capture
    click.echo(
        f"{output}  {format_size(size_of(output))}: the trace; `cutrace open {output}` shows it"
    )
    click.echo(f"`cutrace info {capture}` shows the recording")


_COMMAND = module_command("cutrace.cli.demo_workload")
_PACKAGES = {"cuda-core": "cuda.core", "nvtx": "nvtx"}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
