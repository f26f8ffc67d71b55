"""Hardware metrics of GPUs: the metrics of a chip, counted over ranges, sampled over time, or counted for kernels."""

from __future__ import annotations

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
            "source",
            "Show lines of source with instruction counts and stall reasons.",
            f"{verbs}.source:source",
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
    """The hardware counters of tests."""
    from .counting import counting

    return [counting()]


@hookimpl
def cutrace_samplers() -> list[str]:
    """The module that samples GPUs when it runs as a program."""
    return ["cutrace.extras.hardware.sampling"]


@hookimpl
def cutrace_statistics() -> tuple[Statistic, ...]:
    from .statistics import STATISTICS

    return STATISTICS
