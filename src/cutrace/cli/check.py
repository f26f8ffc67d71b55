"""cutrace check: compare captures with golden files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CutraceError
from ..units import count_of, printable
from . import options
from .output import put_json

if TYPE_CHECKING:
    from ..analysis.definitions import Metrics
    from ..golden import Comparison

_NAMES = 5


@click.command()
@options.sources("CAPTURE...")
@click.option(
    "--golden",
    "golden_file",
    type=options.FILE,
    required=True,
    help="Golden file to compare with.",
)
@click.option(
    "--test",
    metavar="NODEID",
    help="Test to compare; else all tests that the captures mark.",
)
@click.option(
    "--gate",
    default="work,counter",
    show_default=True,
    help="Metrics and classes that fail, or none; with less, less of them fails too.",
)
@click.option(
    "--tolerance",
    multiple=True,
    metavar="METRIC=SHARE",
    help="E.g. kernels=5% or kernel_time=10%.",
)
@options.ignore
@click.option(
    "--own",
    multiple=True,
    metavar="PATTERN",
    help="Kernels that apply in every environment: 'mylib::*'.",
)
@click.option(
    "--environment",
    metavar="NAME",
    help="Environment to compare with, e.g. sm_90; else the capture's.",
)
@options.variant
@options.form(["text", "json"])
def check(
    sources: tuple[Path, ...],
    golden_file: Path,
    test: str | None,
    gate: str,
    tolerance: tuple[str, ...],
    ignore: tuple[str, ...],
    own: tuple[str, ...],
    environment: str | None,
    variant: str,
    form: str,
) -> int:
    """Compare the tests in CAPTURE with their golden file. Each CAPTURE is one run.

    A capture without marks of tests is compared as a whole, with the only test of the golden file or with --test. The
    exit status is 1 if a gated metric changed or could not be compared.
    """
    from .. import golden as gold

    rules = gold.Rules(
        gate=gold.parse_gate(gate),
        tolerance=gold.parse_tolerance(tolerance),
        ignore=gold.parse_ignore(ignore),
        own=gold.parse_own(own),
    )
    golden = gold.read(golden_file)
    known = {}
    environments: set[str] = set()
    counted: set[str] = set()
    for name, entry in golden.tests.items():
        known[gold.joined(golden.path, name)] = entry
        environments.update(entry)
        counted.update(gold.counters_in(entry))
    if test is not None and test not in known:
        raise CutraceError(
            f"{golden_file} has no test {printable(test)}: it has {_some(known)}"
        )
    if environment and environment not in environments:
        seen = ", ".join(sorted(environments)) or "none"
        raise CutraceError(
            f"{golden_file} knows no environment {environment}: it knows {seen}"
        )
    default = test
    if len(known) == 1:
        default = test or next(iter(known))
    counters = sorted(counted)
    if counters:
        rules = replace(rules, ignore=(*rules.ignore, *counters))
    if counters and form == "text":
        click.echo(
            f"not compared: {', '.join(map(printable, counters))}: only tests count them, no capture holds them"
        )
    wrong = False
    tests = []
    for nodeid, runs in measured_runs(sources, test, default).items():
        if nodeid not in known:
            raise CutraceError(
                f"{golden_file} has no test {printable(nodeid)}: it has {_some(known)}"
            )
        chosen = environment
        if not chosen:
            first = runs[0]
            chosen = gold.environment(first, gold.variant(variant, first.facts))
        comparison = gold.compare(known[nodeid], runs, environment=chosen, rules=rules)
        if form == "text":
            _print(gold.split(nodeid)[1], comparison, chosen, len(runs))
        tests.append(_object(nodeid, comparison, chosen, len(runs)))
        wrong |= _verdict(comparison) != "passed"
    if form == "json":
        put_json("cutrace check", failed=wrong, not_compared=counters, tests=tests)
    if wrong:
        return 1
    return 0


def measured_runs(
    sources: Sequence[Path], test: str | None, default: str | None = None
) -> dict[str, list[Metrics]]:
    """Return the runs of each marked test, or of ``test`` alone. A capture without marks counts as a run of
    ``default``."""
    from ..analysis.metrics import measure
    from ..analysis.windows import whole, windows
    from ..loading import opened

    runs: dict[str, list[Metrics]] = {}
    names: dict[str, None] = {}
    for source in sources:
        with opened([source]) as trace:
            marked = windows(trace)
            names.update(dict.fromkeys(window.name for window in marked))
            if not marked:
                name = test or default
                if name is None:
                    raise CutraceError(f"{source} marks no test: name it with --test")
                marked = (replace(whole(trace), name=name),)
            for window in marked:
                if test in (None, window.name):
                    runs.setdefault(window.name, []).append(measure(trace, window))
    if not runs:
        raise CutraceError(
            f"the captures have no run of {printable(test or '')}: they have {_some(names)}"
        )
    return runs


def _some(names: Iterable[str]) -> str:
    from ..reports.values import listed

    return listed([printable(name) for name in names], _NAMES) or "none"


def _verdict(comparison: Comparison) -> str:
    if comparison.failed:
        return "failed"
    if comparison.unconfirmed:
        return "not confirmed"
    if comparison.unverified:
        return "not verified"
    return "passed"


def _object(
    nodeid: str, comparison: Comparison, environment: str, runs: int
) -> dict[str, Any]:
    from ..golden.model import plain

    return {
        "nodeid": nodeid,
        "environment": environment,
        "runs": runs,
        "verdict": _verdict(comparison),
        "reason": comparison.unverified,
        "problems": list(comparison.problems),
        "notes": list(comparison.notes),
        "rows": plain(comparison.rows),
    }


def _print(name: str, comparison: Comparison, environment: str, runs: int) -> None:
    from ..golden import Verdict
    from ..reports.text import styled, table_lines

    title = f"cutrace: {printable(name)}  on {printable(environment) or 'no GPU'}"
    if runs > 1:
        title += f", {count_of(runs, 'run')}"
    click.secho(title, bold=True)
    for sentence in (*comparison.problems, *comparison.notes):
        click.echo(f"  {printable(sentence)}")
    # Equal metrics are only counted; a difference gets a line even if it is not gated.
    different = [row for row in comparison.rows if row.verdict is not Verdict.SAME]
    for line, style in table_lines(different):
        click.echo(styled((f"  {line}", style)))
    same = len(comparison.rows) - len(different)
    verdict = _verdict(comparison)
    colour = {"passed": "green", "failed": "red"}.get(verdict, "yellow")
    if verdict == "not confirmed":
        verdict += ": the golden values are those of one run"
    elif verdict == "not verified":
        verdict += f": {comparison.unverified}"
    as_before = f"{count_of(same, 'metric')} of {len(comparison.rows):,} as before"
    click.echo(f"  {click.style(verdict, fg=colour)}: {as_before}")
