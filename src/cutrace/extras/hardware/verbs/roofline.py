"""cutrace roofline: draw kernels against the limits of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....cli import options
from ....cli.output import put_json, say, say_written

if TYPE_CHECKING:
    from ....loading import Clock
    from ..roofline import Roofline


@click.command()
@options.sources()
@options.output("The picture: .html (with tables) or .svg.", required=False)
@options.clock
@options.form(["picture", "json"])
def roofline(
    sources: tuple[Path, ...],
    output: Path | None,
    clock: Clock,
    form: str,
) -> None:
    """Draw the kernels of FILE, or of several as one, against the ceilings of their GPU. `cutrace profile` counts their
    operations and bytes. With --format json the numbers are printed; a picture is drawn if it is named.

    \b
    cutrace profile --metrics flops -- python train.py
    cutrace roofline run.bin -o roofline.html
    """
    from .. import api

    if output is None and form == "picture":
        raise click.UsageError("Name the picture with -o, or ask for --format json.")
    roofs = api.roofline(sources, output, clock=clock)
    if form == "json":
        put_json("cutrace roofline", rooflines=_objects(roofs))
    else:
        say(*dict.fromkeys(note for roof in roofs for note in roof.notes))
    if output is not None:
        say_written(output)


def _objects(roofs: Sequence[Roofline]) -> list[dict[str, Any]]:
    """The rooflines with the derived numbers of each point: operations and bytes a second, operations a byte."""
    objects = []
    for roof in roofs:
        made = asdict(roof)
        for values, point in zip(made["points"], roof.points, strict=True):
            values |= {
                "time_ns": values.pop("time"),
                "operations_per_second": point.rate,
                "bytes_per_second": point.traffic,
                "operations_per_byte": point.intensity,
            }
        made["gpu"]["clock_hz"] = made["gpu"].pop("clock")
        made["gpu"]["bytes_per_second"] = made["gpu"].pop("bandwidth")
        objects.append(made)
    return objects
