"""cutrace check: a capture against a golden file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CutraceError
from ..units import printable

if TYPE_CHECKING:
    from ..analysis.windows import Window
    from ..golden import Comparison, Golden
    from ..trace import Trace

_NAMES = 5


@click.command(short_help="Compare a capture with a golden file.")
@click.argument(
    "sources", nargs=-1, required=True, metavar="CAPTURE...", type=click.Path(path_type=Path, readable=False)
)
@click.option(
    "--golden",
    "golden_file",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    help="Golden file to compare with.",
)
@click.option("--test", metavar="NODEID", help="Test whose golden file it has to be.")
@click.option("--gate", default="exact,memory", show_default=True, help="Classes that fail: exact, memory, time; none.")
@click.option("--tolerance", multiple=True, metavar="METRIC=SHARE", help="E.g. peak_memory=0.05 or kernel_time=10%.")
@click.option("--ignore", multiple=True, metavar="PATTERN", help="Leave out kernels with such names, e.g. 'nccl*'.")
@click.option("--gpu", metavar="KEY", help="Section of the golden file that holds; else that of the GPU recorded.")
@click.option("--strict", is_flag=True, help="Fail for improvements and for what has no golden value too.")
def check(
    sources: tuple[Path, ...],
    golden_file: Path,
    test: str | None,
    gate: str,
    tolerance: tuple[str, ...],
    ignore: tuple[str, ...],
    gpu: str | None,
    strict: bool,
) -> int:
    """Compare what CAPTURE, or several as one, holds of a test with the golden file of the test.

    A capture without marks of tests is compared as a whole. The exit status is 1 if something gated changed, or the
    capture is not complete enough to tell.
    """
    from ..analysis.metrics import measure
    from ..golden import Rules, compare, gpu_name, parse_gate, parse_tolerance, read
    from ..loading import opened

    rules = Rules(parse_gate(gate), parse_tolerance(tolerance), ignore, strict)
    golden = read(golden_file, test=test)
    with opened(sources) as trace:
        runs = [measure(trace, window, ignore=ignore) for window in _windows(trace, golden.test)]
    key = gpu if gpu is not None else gpu_name(runs[0].gpus)
    if gpu is not None and gpu not in golden.gpus:
        known = ", ".join(sorted(golden.gpus)) or "no GPU"
        raise CutraceError(f"{golden_file} has no section for {gpu}: it has values for {known}")
    comparison = compare(golden, runs, gpu=key, rules=rules)
    _print(golden, comparison, key, len(runs))
    return 1 if comparison.failed else 0


def _windows(trace: Trace, test: str) -> Sequence[Window]:
    """The runs of a test, or the whole capture if no test is marked in it."""
    from ..analysis.windows import whole, windows

    found = windows(trace)
    if not found:
        return (whole(trace),)
    runs = [window for window in found if window.name == test]
    if not runs:
        names = list(dict.fromkeys(printable(window.name) for window in found))
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        raise CutraceError(f"the capture has no run of {printable(test)}: it has {', '.join(names[:_NAMES])}{more}")
    return runs


def _print(golden: Golden, comparison: Comparison, gpu: str, runs: int) -> None:
    from ..golden import Verdict
    from ..reports.text import table
    from ..units import count_of

    many = f", {count_of(runs, 'run')}" if runs > 1 else ""
    click.echo(f"cutrace: {printable(golden.test)}  on {gpu or 'no GPU'}{many}")
    for sentence in (*comparison.problems, *comparison.notes):
        click.echo(f"  {printable(sentence)}")
    # What is as it was is counted; what is not gated and differs is still worth a line.
    shown = [row for row in comparison.rows if row.verdict is not Verdict.SAME]
    for line in table(shown) if shown else ():
        click.echo(f"  {line}")
    same = len(comparison.rows) - len(shown)
    verdict = "failed" if comparison.failed else "passed"
    click.echo(f"  {verdict}: {count_of(same, 'metric')} of {len(comparison.rows):,} as before")
