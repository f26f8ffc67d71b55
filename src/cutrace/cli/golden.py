"""cutrace golden: maintain golden files, on any machine and without running a test."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CutraceError
from ..outputs import keep_sources
from ..units import count_of, printable
from . import options
from .output import put_json, say

if TYPE_CHECKING:
    from ..golden import Difference, StaleCheck


def _of_suite(part: str) -> str:
    """A folder of the suite to which the working folder belongs, relative to it."""
    from ..golden.naming import suite_of

    here = Path.cwd()
    return os.path.relpath(getattr(suite_of(here), part), here)


_golden_dir = click.option(
    "--golden-dir",
    "root",
    type=options.FILE,
    default=functools.partial(_of_suite, "golden_root"),
    show_default="cutrace_golden_dir of pytest's ini file, else golden",
    help="Folder of the golden files.",
)
_tests = click.option(
    "--rootdir",
    "tests",
    type=options.FILE,
    default=functools.partial(_of_suite, "rootdir"),
    show_default="that of pytest",
    help="Folder that the ids of tests are relative to.",
)
_collected = click.option(
    "--collected",
    metavar="FILE",
    help="Output of `pytest --collect-only -q` for the whole suite; - is stdin. It shows which parameters exist.",
)
_form = options.form(["text", "json"])


@click.group(cls=options.Group)
def golden() -> None:
    """Create, check, accept, prune and compare golden files, on any machine and without running a test."""


@golden.command(short_help="Make a golden file from captures.")
@options.sources("CAPTURE...")
@click.option(
    "-o",
    "--output",
    type=options.FILE,
    help="Golden file; else that of the test in --golden-dir.",
)
@_golden_dir
@click.option(
    "--test",
    metavar="NODEID",
    help="Id of the test; else those of the tests that the captures mark.",
)
@click.option(
    "--gate",
    default="work,counter",
    show_default=True,
    help="Metrics and classes to gate.",
)
@options.ignore
@options.variant
@click.option(
    "--update",
    metavar="WORDS",
    default="changed",
    show_default=True,
    help="What to write: missing, changed or all, and names of metrics.",
)
@_form
def create(
    sources: tuple[Path, ...],
    output: Path | None,
    root: Path,
    test: str | None,
    gate: str,
    ignore: tuple[str, ...],
    variant: str,
    update: str,
    form: str,
) -> None:
    """Write the tests in CAPTURE into golden files; without marks of tests, all of it as the test NODEID.

    Each CAPTURE is one run. Values on which runs differ are written as unstable.
    """
    from .. import golden as gold
    from .check import measured_runs

    if output is not None:
        keep_sources([output], sources)
    rules = gold.Rules(gold.parse_gate(gate), ignore=gold.parse_ignore(ignore))
    mode = gold.parse_update(update)
    changes = []
    different = []
    for nodeid, runs in measured_runs(sources, test).items():
        environment = gold.environment(runs[0], gold.variant(variant, runs[0].facts))
        if not environment:
            raise CutraceError(
                f"the capture of {nodeid} names no GPU on which work ran: a golden file needs one"
            )
        path = output or gold.golden_path(root, nodeid)
        file, name = gold.split(nodeid)
        old = gold.existing(path, file).tests.get(name)
        # A capture holds no hardware counters: their golden values are kept.
        kept = replace(rules, ignore=(*rules.ignore, *gold.counters_in(old or {})))
        entry, notes = gold.merged(
            old,
            gold.observed(runs, rules),
            environment=environment,
            update=mode,
            rules=kept,
        )
        change = gold.difference(nodeid, old, entry)
        different.append(replace(change, notes=(*change.notes, *notes)))
        if form == "text":
            _print(change)
            for note in notes:
                click.echo(f"  {printable(note)}")
        changes.append(gold.Change(nodeid, path, environment, entry[environment]))
    written = gold.write_changes(changes)
    _told(
        form,
        different,
        f"{count_of(len(changes), 'test')}, {count_of(len(written), 'golden file')} written",
    )


@golden.command(short_help="Find golden values whose test is gone, and damaged files.")
@_golden_dir
@_tests
@_collected
@_form
def check(root: Path, tests: Path, collected: str | None, form: str) -> int:
    """Find golden values whose test is gone, and damaged files.

    Tests are searched in the source of their files, which is not run. The exit status is 1 if values are stale, 2 if a
    file is damaged.
    """
    result = _checked(root, tests, collected, form)
    if form == "json":
        _put_stale(result)
    else:
        click.echo(
            f"{count_of(result.tests, 'test')} in {count_of(result.files, 'golden file')}, "
            f"{len(result.stale):,} stale, {len(result.damaged):,} damaged"
        )
    if result.stale and form == "text":
        click.echo("`cutrace golden prune` deletes the stale ones.", err=True)
    if result.damaged:
        return 2
    if result.stale:
        return 1
    return 0


@golden.command(short_help="Delete golden values whose test is gone.")
@_golden_dir
@_tests
@_collected
@click.option("--yes", is_flag=True, help="Do not ask.")
@_form
def prune(root: Path, tests: Path, collected: str | None, yes: bool, form: str) -> int:
    """Delete golden values whose test is gone, after a question. Damaged files stay."""
    from ..golden import prune as delete

    if collected == "-" and not yes:
        raise click.UsageError(
            "--collected - takes stdin, where the answer would come from: add --yes"
        )
    result = _checked(root, tests, collected, form)
    many = f"values of {count_of(len(result.stale), 'test')}"
    if result.stale and not yes:
        try:
            confirmed = click.confirm(f"Delete the {many}?", err=True)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise CutraceError(
                "nobody answered whether to delete: nothing was deleted. Add --yes"
            ) from None
        if not confirmed:
            click.echo("Nothing was deleted.", err=form == "json")
            return 1
    delete(result.stale, root)
    if form == "json":
        _put_stale(result)
    elif result.stale:
        click.echo(f"{many} deleted")
    else:
        click.echo("no golden value is stale")
    if result.damaged:
        return 2
    return 0


@golden.command(short_help="Apply the candidates that a run of the tests left.")
@click.argument("folder", metavar="DIR", type=options.FILE)
@click.argument("select", metavar="[TEST]...", nargs=-1)
@_golden_dir
@_tests
@click.option(
    "--dry-run", is_flag=True, help="Show what would change, and write nothing."
)
@_form
def accept(
    folder: Path,
    select: tuple[str, ...],
    root: Path,
    tests: Path,
    dry_run: bool,
    form: str,
) -> None:
    """Apply the candidates in DIR, such as .cutrace/proposed. Tests that failed or had no golden value left them.

    TEST is an id, the begin of one (tests/test_a.py, tests/test_a.py::test_b) or a pattern. All candidates are checked
    before the first golden file is written; a candidate older than the golden file is refused.
    """
    from .. import golden as gold

    accepted = gold.accept(folder, root, select=select, dry_run=dry_run, tests=tests)
    different = [
        gold.difference(one.nodeid, one.old or None, one.new) for one in accepted
    ]
    if form == "text":
        for one in different:
            _print(one)
    changed = sum(one.changed for one in accepted)
    done = "would change" if dry_run else "changed"
    _told(
        form,
        different,
        f"{count_of(len(accepted), 'candidate')}, {count_of(changed, 'test')} {done}",
    )


@golden.command(short_help="Show what changed between golden files.")
@click.argument("a", type=options.FILE)
@click.argument("b", type=options.FILE)
@_form
def diff(a: Path, b: Path, form: str) -> int:
    """Show what changed from A to B, two golden files or two folders of them. The exit status is 1 if something did."""
    from ..golden import differences

    changed = list(differences(a, b))
    if form == "json":
        _told(form, changed, "")
    else:
        for one in changed:
            _print(one)
    if changed:
        return 1
    return 0


def _told(form: str, different: Sequence[Difference], sentence: str) -> None:
    """Print what changed as JSON, or the last sentence for people."""
    if form == "text":
        click.echo(sentence)
        return
    from ..golden.model import plain

    put_json("cutrace golden changes", tests=plain([d for d in different if d]))


def _put_stale(result: StaleCheck) -> None:
    from ..golden.model import plain

    put_json("cutrace golden stale", **plain(result))


def _checked(root: Path, tests: Path, collected: str | None, form: str) -> StaleCheck:
    from .. import golden as gold

    if not tests.is_dir():
        raise CutraceError(
            f"there is no folder {tests}: name the root folder of the tests with --rootdir"
        )
    listed = None
    try:
        if collected is not None:
            if collected == "-":
                listed = sys.stdin.read()
            else:
                listed = Path(collected).read_text("utf-8", "surrogateescape")
    except OSError as error:
        reason = f"{error.strerror}. Check its name and permissions."
        raise CutraceError(
            f"cannot read the list of tests {collected}: {reason}"
        ) from None
    ids = None
    if listed is not None:
        ids = gold.collected_ids(listed)
        deselected = gold.deselected_in(listed)
        if deselected:
            ids = None
            say(
                f"the list lacks {count_of(deselected, 'test')} that pytest deselected: only sources are searched"
            )
    result = gold.check(root, tests, ids)
    say(*result.damaged)
    if form == "text":
        for one in result.stale:
            click.echo(f"{one.path}: {printable(one.reason)}: {printable(one.nodeid)}")
    return result


def _print(difference: Difference) -> None:
    """Print the id of a test, and the changes in each environment."""
    from ..reports.text import styled, table_lines

    if not difference:
        return
    name = click.style(printable(difference.nodeid), bold=True)
    notes = difference.notes
    if len(notes) == 1 and not difference.environments:
        click.echo(f"{name} {notes[0]}")
        return
    click.echo(name)
    for note in notes:
        click.echo(f"  {printable(note)}")
    for environment, rows in difference.environments.items():
        for line, style in table_lines(rows, head=(environment, "old", "new", "")):
            click.echo(styled((f"  {line}", style)))
