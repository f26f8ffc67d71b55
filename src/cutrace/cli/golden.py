"""cutrace golden: maintain golden files, on any machine and without running a test."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from ..errors import CutraceError
from ..outputs import keep_sources
from ..units import count_of, printable
from . import options
from .output import put_json, say

if TYPE_CHECKING:
    from ..golden import Difference, StaleCheck


def _of_suite(part: str) -> str:
    """A folder of the suite of the working folder, relative to the working folder."""
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
    show_default="rootdir of pytest",
    help="Folder that the ids of tests are relative to.",
)
_collected = click.option(
    "--collected",
    metavar="FILE",
    help="Output of `pytest --collect-only -q` for the whole suite; - is stdin. It shows which parameters exist.",
)
_form = options.form(["text", "json"])


_UPDATE = "`cutrace golden create` makes a golden file from captures, and `pytest --cutrace-update` from tests"


class _Verbs(options.Group):
    moved: ClassVar = {
        "diff": "The verb golden diff is now: cutrace diff BEFORE.toml AFTER.toml",
        "prune": "The verb golden prune is now an option: cutrace golden check --prune",
    }

    def instead_of(self, name: str, similar: str) -> str:
        if name == "update":
            return _UPDATE
        return similar


@click.group(cls=_Verbs)
def golden() -> None:
    """Create, check and accept golden files, on any machine and without running a test."""


@golden.command(short_help="Make a golden file from captures.")
@options.sources("CAPTURE...")
@click.option(
    "-o",
    "--output",
    type=options.FILE,
    help="Golden file; else the one of the test in --golden-dir.",
)
@_golden_dir
@click.option(
    "--test",
    metavar="NODEID",
    help="Id of the test; else all tests that the captures mark.",
)
@options.names(
    "--gate",
    default=[options.GATE],
    show_default=True,
    help="Metrics and classes to gate.",
)
@options.ignore
@options.variant
@options.names(
    "--update",
    metavar="WORDS",
    default=["changed"],
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
    from .golden_runs import measured_runs

    if output is not None:
        keep_sources([output], sources)
    rules = gold.Rules(gold.parse_gate(gate), ignore=gold.parse_ignore(ignore))
    mode = gold.parse_update(update)
    changes = []
    different = []
    for nodeid, runs in measured_runs(sources, test).items():
        first = runs[0]
        variant_name = gold.variant(variant, first.facts)
        environment = gold.environment(first, variant_name)
        if not environment:
            raise CutraceError(
                f"the capture of {nodeid} names no GPU on which work ran: a golden file needs one"
            )
        path = output or gold.golden_path(root, nodeid)
        file, name = gold.split(nodeid)
        old = gold.existing(path, file).tests.get(name)
        # Golden values of hardware counters are kept, because a capture has none.
        counters = gold.counters_in(old or {})
        kept = replace(rules, ignore=(*rules.ignore, *counters))
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
    tests = count_of(len(changes), "test")
    files = count_of(len(written), "golden file")
    _told(form, different, f"{tests}, {files} written")


@golden.command(short_help="Find golden values whose test is gone, and damaged files.")
@_golden_dir
@_tests
@_collected
@click.option(
    "--prune",
    is_flag=True,
    help="Delete the values whose test is gone, after a question.",
)
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@_form
def check(
    root: Path,
    tests: Path,
    collected: str | None,
    prune: bool,
    yes: bool,
    form: str,
) -> int:
    """Find golden values whose test is gone, and damaged files.

    Tests are searched in the source of their files, which is not run. The exit status is 1 if values are stale, 2 if a
    file is damaged. Damaged files are never deleted.
    """
    if yes and not prune:
        raise click.UsageError("--yes answers the question of --prune: add --prune")
    if collected == "-" and prune and not yes:
        raise click.UsageError(
            "--collected - takes stdin, where the answer would come from: add --yes"
        )
    result = _checked(root, tests, collected, form)
    if not prune:
        _put_found(result, form)
    elif not _pruned(result, root, yes, form):
        return 1
    if result.damaged:
        return 2
    if result.stale and not prune:
        return 1
    return 0


def _put_found(result: StaleCheck, form: str) -> None:
    if form == "json":
        _put_stale(result)
        return
    tests = count_of(result.tests, "test")
    files = count_of(result.files, "golden file")
    stale = len(result.stale)
    damaged = len(result.damaged)
    click.echo(f"{tests} in {files}, {stale:,} stale, {damaged:,} damaged")
    if stale:
        click.echo("`cutrace golden check --prune` deletes the stale ones.", err=True)


def _pruned(result: StaleCheck, root: Path, yes: bool, form: str) -> bool:
    """Delete the stale values, after a question. Returns whether the user agreed."""
    from ..golden import prune

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
            return False
    prune(result.stale, root)
    if form == "json":
        _put_stale(result)
    elif result.stale:
        click.echo(f"{many} deleted")
    else:
        click.echo("no golden value is stale")
    return True


@golden.command(short_help="Apply the candidates that a run of the tests wrote.")
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
    """Apply the candidates in DIR, such as .cutrace/proposed. Tests that fail or have no golden value write candidates.

    TEST is an id, the start of an id (tests/test_a.py, tests/test_a.py::test_b) or a pattern. All candidates are
    checked before the first golden file is written. A candidate older than the golden file is refused.
    """
    from .. import golden as gold

    accepted = gold.accept(
        folder,
        root,
        select=select,
        dry_run=dry_run,
        tests=tests,
    )
    different = [
        gold.difference(one.nodeid, one.old or None, one.new) for one in accepted
    ]
    if form == "text":
        for one in different:
            _print(one)
    changed = sum(one.changed for one in accepted)
    done = "changed"
    if dry_run:
        done = "would change"
    candidates = count_of(len(accepted), "candidate")
    changed_tests = count_of(changed, "test")
    _told(form, different, f"{candidates}, {changed_tests} {done}")


def put_differences(before: Path, after: Path, form: str) -> int:
    """Print the changes between two golden files or two folders of them. Returns the exit status: 1 if there are
    changes."""
    from ..golden import differences

    changed = list(differences(before, after))
    if form == "json":
        _told(form, changed, "")
    else:
        for one in changed:
            _print(one)
    if changed:
        return 1
    return 0


def _told(form: str, different: Sequence[Difference], sentence: str) -> None:
    """Print the changes as JSON, or the last sentence for people."""
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
