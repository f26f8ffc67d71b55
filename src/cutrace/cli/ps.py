"""cutrace ps: list processes on standby."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from ..collect import StandbyProcess, processes
from ..units import count_of, format_duration, format_size
from . import options
from .output import put, put_json, put_tables


@click.command()
@options.form(("text", "json"))
def ps(form: str) -> None:
    """List the processes of this user that `cutrace attach` can record, and their state."""
    found = processes()
    if form == "json":
        return put_json("cutrace ps", processes=list(map(asdict, found)))
    if not found:
        return put(["no process is on standby: `cutrace arm -- command` starts one\n"])
    from ..analysis.tables import Table, columns_of

    columns = columns_of(
        "pid: text, standby for: text, CUDA: text, doing: text, command: text"
    )
    title = f"{count_of(len(found), 'process')} on standby"
    rows = list(map(_row, found))
    put_tables("cutrace ps", [Table("processes", title, columns, rows)], form)


def _row(process: StandbyProcess) -> tuple[str, ...]:
    cuda = ""
    if process.cuda:
        cuda = "used"
    return (
        str(process.pid),
        _age(process.since),
        cuda,
        _doing(process),
        " ".join(process.command),
    )


def _age(since: float | None) -> str:
    if since is None:
        return ""
    return format_duration(int(max(time.time() - since, 0) * 1e9))


def _doing(process: StandbyProcess) -> str:
    if process.state == "silent":
        return "does not answer"
    if process.state != "recording":
        return "asleep"
    written = f"{count_of(process.rows, 'row')}, {format_size(process.bytes)}"
    if process.recorded_by == "program":
        return f"records itself, {written}"
    age = _age(process.recording_since)
    if process.attached_pid is None:
        return f"recorded for {age}, {written}"
    return f"recorded by process {process.attached_pid} for {age}, {written}"
