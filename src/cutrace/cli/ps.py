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
    """List the processes of this user that `cutrace attach` can record, and what they do."""
    found = processes()
    if form == "json":
        return put_json("cutrace ps", processes=list(map(asdict, found)))
    if not found:
        return put(["no process is on standby: `cutrace arm -- command` starts one\n"])
    from ..analysis.tables import Table, columns_of

    columns = columns_of(
        "pid: text, standby for: text, CUDA: text, doing: text, command: text"
    )
    rows = [
        (
            str(p.pid),
            _age(p.since),
            "used" if p.cuda else "",
            _doing(p),
            " ".join(p.command),
        )
        for p in found
    ]
    title = f"{count_of(len(found), 'process')} on standby"
    put_tables("cutrace ps", [Table("processes", title, columns, rows)], form)


def _age(since: float | None) -> str:
    if since is None:
        return ""
    return format_duration(int(max(time.time() - since, 0) * 1e9))


def _doing(process: StandbyProcess) -> str:
    if process.state != "recording":
        if process.state == "silent":
            return "does not answer"
        return "asleep"
    written = f"{count_of(process.rows, 'row')}, {format_size(process.bytes)}"
    if process.recorded_by == "program":
        return f"records itself, {written}"
    by = "" if process.attached_pid is None else f" by process {process.attached_pid}"
    return f"recorded{by} for {_age(process.recording_since)}, {written}"
