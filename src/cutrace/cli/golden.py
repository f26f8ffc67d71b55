"""cutrace golden: care for golden files, on any machine and without running a test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import CutraceError
from ..units import count_of, printable

if TYPE_CHECKING:
    from ..golden import Check, Difference

_Folder = click.Path(path_type=Path, readable=False)
_golden_dir = click.option(
    "--golden-dir", "root", type=_Folder, default="golden", show_default=True, help="Folder of the golden files."
)
_tests = click.option(
    "--rootdir",
    "tests",
    type=_Folder,
    default=".",
    show_default=True,
    help="Folder that the ids of tests are relative to.",
)
_collected = click.option(
    "--collected",
    metavar="FILE",
    help="What `pytest --collect-only -q` printed for the whole suite; - is stdin. It decides on parameters too.",
)


@click.group(short_help="Check, accept, prune and compare golden files.", no_args_is_help=False)
def golden() -> None:
    """Check, accept, prune and compare golden files, on any machine and without running a test."""


@golden.command(short_help="Find golden files whose test is gone, or that are damaged.")
@_golden_dir
@_tests
@_collected
def check(root: Path, tests: Path, collected: str | None) -> int:
    """Find golden files whose test is gone, or that are damaged.

    Tests are looked for in the source of their files, which is not run. The exit status is 1 if a golden file is stale,
    2 if one is damaged.
    """
    found = _checked(root, tests, collected)
    for one in found.stale:
        click.echo(f"{one.path}: {printable(one.reason)}: {printable(one.test)}")
    click.echo(f"{count_of(found.files, 'golden file')}, {len(found.stale):,} stale, {len(found.damaged):,} damaged")
    if found.stale:
        click.echo("`cutrace golden prune` deletes the stale ones.", err=True)
    return 2 if found.damaged else 1 if found.stale else 0


@golden.command(short_help="Delete golden files whose test is gone.")
@_golden_dir
@_tests
@_collected
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(root: Path, tests: Path, collected: str | None, yes: bool) -> int:
    """Delete golden files whose test is gone, after a question. Damaged ones stay."""
    from ..golden import prune as delete

    if collected == "-" and not yes:
        raise click.UsageError("--collected - takes stdin, where the answer would come from: add --yes")
    found = _checked(root, tests, collected)
    for one in found.stale:
        click.echo(f"{one.path}: {printable(one.reason)}: {printable(one.test)}")
    files = count_of(len(found.stale), "golden file")
    if found.stale and not yes:
        try:
            wanted = click.confirm(f"Delete {files}?", err=True)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise CutraceError("nobody answered whether to delete: nothing was deleted. Add --yes") from None
        if not wanted:
            click.echo("Nothing was deleted.")
            return 1
    delete(found.stale, root)
    click.echo(f"{files} deleted" if found.stale else "no golden file is stale")
    return 2 if found.damaged else 0


@golden.command(short_help="Take over the candidates that a run of the tests left.")
@click.argument("folder", metavar="DIR", type=_Folder)
@_golden_dir
def accept(folder: Path, root: Path) -> int:
    """Take over the candidates in DIR, such as .cutrace/proposed, that tests left which failed or had no golden file.

    All of them are checked before the first golden file is written.
    """
    from ..golden import accept as merge
    from ..golden import difference

    accepted = merge(folder, root)
    for one in accepted:
        _print(difference(str(one.path), one.old, one.new))
        for note in one.notes:
            click.echo(f"  {printable(note)}")
    changed = sum(one.changed for one in accepted)
    click.echo(f"{count_of(len(accepted), 'candidate')}, {count_of(changed, 'golden file')} changed")
    return 0


@golden.command(short_help="Show what changed between golden files.")
@click.argument("a", type=_Folder)
@click.argument("b", type=_Folder)
def diff(a: Path, b: Path) -> int:
    """Show what changed from A to B, two golden files or two folders of them. The exit status is 1 if something did."""
    from ..golden import differences

    found = differences(a, b)
    for one in found:
        _print(one)
    return 1 if found else 0


def _checked(root: Path, tests: Path, collected: str | None) -> Check:
    from ..golden import check as look
    from ..golden import collected_ids

    if not tests.is_dir():
        raise CutraceError(f"there is no folder {tests}: name the root folder of the tests with --rootdir")
    ids = None if collected is None else collected_ids(_text(collected))
    found = look(root, tests, ids)
    for sentence in found.damaged:
        click.echo(f"cutrace: {printable(sentence)}", err=True)
    return found


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise CutraceError(f"cannot read the list of tests {source}: {error.strerror}") from None


def _print(found: Difference) -> None:
    """Names of files and sections, and under each what changed."""
    from ..reports.text import table

    if not found:
        return
    name = printable(found.name)
    click.echo(f"{name} {found.notes[0]}" if not found.sections and len(found.notes) == 1 else name)
    for note in found.notes if found.sections or len(found.notes) > 1 else ():
        click.echo(f"  {printable(note)}")
    for title, rows in found.sections.items():
        for line in table(rows, head=(f"[{title}]", "old", "new", "rule")):
            click.echo(f"  {line}")
