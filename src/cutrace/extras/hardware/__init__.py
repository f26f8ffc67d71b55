"""Hardware metrics of GPUs: the list of metrics of a chip, metrics counted for kernels or over ranges, and metrics
sampled over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...plugins import Verb, hookimpl

if TYPE_CHECKING:
    from ...analysis.statistic import Statistic
    from .counting import Counting


@hookimpl
def cutrace_verbs() -> list[Verb]:
    verbs = "cutrace.extras.hardware.verbs"
    return [
        Verb(
            "profile",
            "Count hardware metrics of chosen kernels of a command.",
            f"{verbs}.profile:profile",
        ),
        Verb(
            "why",
            "Say why kernels are slow.",
            f"{verbs}.why:why",
        ),
        Verb(
            "metrics",
            "List and describe the hardware metrics of a GPU.",
            f"{verbs}.metrics:metrics",
        ),
    ]


@hookimpl
def cutrace_counters() -> list[Counting]:
    """The hardware counters that tests can use."""
    from .counting import counting

    return [counting()]


@hookimpl
def cutrace_line_pages() -> list[Callable[..., None]]:
    """The function that writes the page of source lines."""
    from .source_page import write_page

    return [write_page]


@hookimpl
def cutrace_samplers() -> list[str]:
    """The name of the module that samples GPUs when it runs as a program."""
    return ["cutrace.extras.hardware.sampling"]


@hookimpl
def cutrace_statistics() -> tuple[Statistic, ...]:
    from .statistics import STATISTICS

    return STATISTICS
