"""The runs of tests in captures, and their comparison with a golden file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import CutraceError
from ..units import count_of, first_names, printable
from . import options
from .output import put_json

if TYPE_CHECKING:
    from ..analysis.definitions import Metrics
    from ..golden import Comparison

_NAMES = 5


def compare_runs(
    sources: Sequence[Path],
    golden_file: Path,
    *,
    test: str | None,
    gate: str,
    tolerance: Sequence[str],
    ignore: Sequence[str],
    own: Sequence[str],
    environment: str | None,
    variant: str,
    form: str,
) -> int:
    """Compare the tests in captures with their golden file, and print the comparison. Each capture is one run. Returns
    the exit status: 1 if a gated metric changed or could not be compared."""
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
        raise _unknown_test(golden_file, test, known)
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
        names = ", ".join(map(printable, counters))
        click.echo(
            f"not compared: {names}: only tests count them, no capture holds them"
        )
    wrong = False
    failed: list[str] = []
    tests = []
    for nodeid, runs in measured_runs(sources, test, default).items():
        if nodeid not in known:
            raise _unknown_test(golden_file, nodeid, known)
        chosen = environment
        if not chosen:
            first = runs[0]
            variant_name = gold.variant(variant, first.facts)
            chosen = gold.environment(first, variant_name)
        comparison = gold.compare(known[nodeid], runs, environment=chosen, rules=rules)
        if form == "text":
            _, name = gold.split(nodeid)
            _print(name, comparison, chosen, len(runs))
        tests.append(_object(nodeid, comparison, chosen, len(runs)))
        wrong |= _verdict(comparison) != "passed"
        if _verdict(comparison) == "failed":
            failed.append(nodeid)
    # The values of other gates and environments can need other options.
    usual = gate == options.GATE and not environment
    if failed and form == "text" and usual:
        command = _update(sources, golden_file, failed, variant)
        click.echo(f"if intended: {printable(command)}")
    if form == "json":
        put_json(
            "cutrace diff golden", failed=wrong, not_compared=counters, tests=tests
        )
    if wrong:
        return 1
    return 0


def measured_runs(
    sources: Sequence[Path],
    test: str | None,
    default: str | None = None,
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


def _unknown_test(path: Path, nodeid: str, known: Iterable[str]) -> CutraceError:
    name = printable(nodeid)
    some = _some(known)
    return CutraceError(f"{path} has no test {name}: it has {some}")


def _some(names: Iterable[str]) -> str:
    return first_names(list(map(printable, names)), _NAMES) or "none"


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

    where = printable(environment) or "no GPU"
    title = f"cutrace: {printable(name)} on {where}"
    if runs > 1:
        many = count_of(runs, "run")
        title += f", {many}"
    click.secho(title, bold=True)
    for sentence in (*comparison.problems, *comparison.notes):
        click.echo(f"  {printable(sentence)}")
    # Equal metrics are only counted. A difference gets a line even if it is not gated.
    different = [row for row in comparison.rows if row.verdict is not Verdict.SAME]
    for line, style in table_lines(different):
        click.echo(styled((f"  {line}", style)))
    verdict = _verdict(comparison)
    colour = {"passed": "green", "failed": "red"}.get(verdict, "yellow")
    if verdict == "not confirmed":
        verdict += ": the golden values come from one run"
    elif verdict == "not verified":
        verdict += f": {comparison.unverified}"
    styled_verdict = click.style(verdict, fg=colour)
    every = count_of(len(comparison.rows), "metric")
    result = f"{every} as before"
    if different:
        result = f"{len(different):,} of {every} changed"
    click.echo(f"  {styled_verdict}: {result}")


def _update(
    sources: Sequence[Path],
    golden_file: Path,
    failed: Sequence[str],
    variant: str,
) -> str:
    """The command that writes the values of these tests in the captures into the golden file."""
    command = ["cutrace", "golden", "create", *map(str, sources)]
    if len(failed) == 1:
        command += ["--test", failed[0]]
    if variant:
        command += ["--variant", variant]
    return shlex.join([*command, "-o", str(golden_file)])
