"""cutrace doctor: can this machine record?"""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import asdict

import click

from ..collect.checks import Check, can_record, run_checks

_MARKS = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}


@click.command(short_help="Check whether this machine can record, and say what to do if not.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check driver, GPU, CUPTI, other tools, permissions and NVTX, and record a small program as a trial.

    The exit status is 0 when GPU work can be recorded here, else 1.
    """
    checks = run_checks()
    able = can_record(checks)
    if as_json:
        click.echo(json.dumps({"can_record": able, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks, able)
    return 0 if able else 1


def _print(checks: tuple[Check, ...], able: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    column = max(len(check.name) for check in checks)
    # Wrapped by hand: a terminal gets an indented column, a file whole lines.
    room = console.width - column - 11 if console.is_terminal else sys.maxsize
    for check in checks:
        texts = textwrap.wrap(check.finding, max(room, 40), break_long_words=False, break_on_hyphens=False)
        texts += textwrap.wrap(
            check.advice, max(room, 40), initial_indent="-> ", break_long_words=False, break_on_hyphens=False
        )
        for at, text in enumerate(texts):
            begin = f"{_MARKS[check.status]}  {check.name:{column}}" if at == 0 else f"{'':9}{'':{column}}"
            console.print(f"{begin}  {escape(text)}", soft_wrap=True)
    nvtx = any(check.name == "NVTX" and check.status == "ok" for check in checks)
    if able:
        verdict = "GPU work can be recorded here."
    elif nvtx:
        verdict = "GPU work cannot be recorded here, NVTX can. Captures can be converted and inspected anywhere."
    else:
        verdict = "Nothing can be recorded here. Captures can be converted and inspected anywhere."
    console.print(verdict, soft_wrap=not console.is_terminal)
