"""cutrace doctor: can this machine record?"""

from __future__ import annotations

import json
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
    width = max(len(check.name) for check in checks)
    for check in checks:
        console.print(f"{_MARKS[check.status]}  {check.name:{width}}  {escape(check.finding)}", soft_wrap=True)
        if check.advice:
            console.print(f"{'':9}{'':{width}}  -> {escape(check.advice)}", soft_wrap=True)
    nvtx = any(check.name == "NVTX" and check.status == "ok" for check in checks)
    if able:
        verdict = "GPU work can be recorded here."
    elif nvtx:
        verdict = "GPU work cannot be recorded here, NVTX can. Captures can be converted and inspected anywhere."
    else:
        verdict = "Nothing can be recorded here. Captures can be converted and inspected anywhere."
    console.print(verdict, soft_wrap=True)
