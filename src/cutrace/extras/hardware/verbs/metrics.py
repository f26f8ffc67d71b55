"""cutrace metrics: list the metrics of a GPU, with or without the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....analysis.tables import Table, columns_of
from ....cli import options
from ....cli.output import put_tables
from ....errors import CutraceError
from ....patterns import matcher
from ....units import count_of

if TYPE_CHECKING:
    from ..host import Chip, ChipMetric

_KIND = "cutrace metrics"
_form = options.form(["table", "csv", "json", "markdown"])
_sampled = click.option(
    "--sampled",
    is_flag=True,
    help="Metrics that can be sampled over time, instead of metrics of kernels.",
)


def _of_a_chip(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of verbs that ask libcupti about a chip."""
    cupti = click.option(
        "--cupti",
        type=options.FILE,
        metavar="LIB",
        help="The libcupti to ask; by default the one that a recording uses.",
    )
    chip = click.option(
        "--chip",
        metavar="NAME",
        help="The chip, e.g. GH100; by default that of the first GPU here.",
    )
    return chip(cupti(function))


@click.group(cls=options.Group)
def metrics() -> None:
    """List and describe the hardware metrics of a GPU, with or without the GPU."""


@metrics.command("list", short_help="List the metrics of a chip.")
@click.argument("pattern", required=False)
@_sampled
@click.option(
    "--lines",
    is_flag=True,
    help="Metrics of instructions, which `cutrace profile --lines` counts.",
)
@_of_a_chip
@_form
def list_metrics(
    pattern: str | None,
    sampled: bool,
    lines: bool,
    chip: str | None,
    cupti: Path | None,
    form: str,
) -> None:
    """List the metrics of a chip, or those that match PATTERN: a name with *, ? or [...], or /a regular expression/."""
    from ..instructions import metrics_of

    if lines and sampled:
        raise CutraceError("--lines and --sampled are two lists: ask for one of them")
    matches = matcher(pattern or "*")
    with _chip(chip, cupti, sampled=sampled) as device:
        if lines:
            known = metrics_of(device.cupti, device.name)
            described = [metric for metric in known if matches(metric.name)]
        else:
            names = [name for name in device.names() if matches(name)]
            described = [device.describe(name) for name in names]
    if not described:
        raise CutraceError(
            f"no metric of {device.name} matches {pattern!r}: write '*word*' for names that contain a word"
        )
    described.sort(key=lambda metric: metric.name)
    put_tables(_KIND, [_table_of(device, described)], form)


@metrics.command(short_help="Describe metrics and their passes.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_sampled
@_of_a_chip
@_form
def describe(
    names: tuple[str, ...],
    sampled: bool,
    chip: str | None,
    cupti: Path | None,
    form: str,
) -> None:
    """Describe what metrics count. Names without a rollup get a list of their endings; full names get the number of
    passes that they need together."""
    with _chip(chip, cupti, sampled=sampled) as device:
        described = [device.describe(name) for name in names]
        endings = []
        for name in names:
            if "." not in name:
                endings += [(name + ending,) for ending in device.submetrics(name)]
        passes = ""
        if not endings:
            passes = f", {count_of(device.configure(names).passes, 'pass')} together"
    tables = [_table_of(device, described, passes)]
    if endings:
        title = "Ways to count them"
        tables.append(Table("endings", title, columns_of("name: text"), endings))
    put_tables(_KIND, tables, form)


@metrics.command(short_help="List the sets of metrics, or the metrics of one.")
@click.argument("name", required=False, metavar="[SET]")
@_of_a_chip
@_form
def sets(name: str | None, chip: str | None, cupti: Path | None, form: str) -> None:
    """List the sets of metrics with their passes on a chip, or the metrics of one SET."""
    from ..sets import SETS, chosen, hint, in_set

    if name is None:
        with _chip(chip, cupti) as device:
            rows = []
            for each in SETS.values():
                names = in_set(device, each.name)
                passes = 0
                if names:
                    passes = device.configure(names).passes
                rows.append((each.name, len(names), passes, each.asks))
        columns = columns_of("set: text, metrics, passes, question: text")
        table = Table("sets", f"Sets of metrics on {device.name}", columns, rows)
        return put_tables(_KIND, [table], form)
    if name not in SETS:
        raise CutraceError(f"there is no set {name}: {hint(name)}")
    with _chip(chip, cupti) as device:
        described = [device.describe(metric) for metric in chosen(device, name)]
    inside = [(metric.name, metric.description) for metric in described]
    columns = columns_of("metric: text, description: text")
    inside += SETS[name].formulas
    put_tables(_KIND, [Table(name, SETS[name].asks, columns, inside)], form)


@contextmanager
def _chip(
    name: str | None,
    path: Path | None,
    *,
    sampled: bool = False,
) -> Iterator[Chip]:
    from ..cupti import Cupti
    from ..host import RANGES, SAMPLES, Chip, chips, first_chip

    if path:
        cupti = Cupti(path)
    else:
        cupti = Cupti.found()
    name = name or first_chip(cupti)
    if name is None:
        raise CutraceError(
            f"there is no GPU here: name a chip with --chip, one of {', '.join(chips(cupti))}"
        )
    profiler = RANGES
    if sampled:
        profiler = SAMPLES
    with Chip(cupti, name, profiler) as chip:
        yield chip


def _table_of(chip: Chip, described: list[ChipMetric], more: str = "") -> Table:
    columns = columns_of(
        "name: text, kind: text, unit: text, dimension: text, description: text"
    )
    rows = [(m.name, m.kind, m.unit, m.dimension, m.description) for m in described]
    return Table("metrics", f"Metrics of {chip.name}{more}", columns, rows)
