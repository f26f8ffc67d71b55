"""cutrace doctor: check whether this machine can record."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict

import click

from ..collect.checks import Check, can_record, run_checks
from . import options
from .output import put_json, terminal_width

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@options.form(["text", "json"])
def doctor(form: str) -> int:
    """Check driver, GPU, CUPTI, other tools, permissions and NVTX, and record a small program as a trial.

    The exit status is 0 when GPU work can be recorded here, else 1.
    """
    checks = run_checks()
    able = can_record(checks)
    if form == "json":
        put_json("cutrace doctor", can_record=able, checks=list(map(asdict, checks)))
    else:
        _print(checks, able)
    if able:
        return 0
    return 1


def _print(checks: tuple[Check, ...], able: bool) -> None:
    column = max(len(check.name) for check in checks)
    # Wrap lines here: a terminal gets an indented column, a file gets whole lines.
    width = terminal_width() or sys.maxsize
    room = max(width - column - 11, 40)
    fold = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False)
    what = "Nothing can be recorded here"
    for check in checks:
        first, *others = fold.wrap(check.finding)
        if check.advice:
            others += fold.wrap(f"-> {check.advice}")
        colour = _COLOURS[check.status]
        mark = click.style(f"{check.status:7}", fg=colour)
        name = f"{check.name:{column}}"
        click.echo(f"{mark}  {name}  {first}")
        margin = " " * (column + 9)
        for text in others:
            click.echo(f"{margin}  {text}")
        if check.name == "NVTX" and check.status == "ok":
            what = "GPU work cannot be recorded here, NVTX can"
    if able:
        click.echo("GPU work can be recorded here.")
    else:
        click.echo(f"{what}. Captures can be converted and inspected anywhere.")
