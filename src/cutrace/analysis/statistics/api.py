"""API calls, synchronisations, and the overheads of the driver and of tracing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...runbin import labels
from ..collection import Grouping, Rows, Timed, by_label
from ..context import CollectorContext
from ..distribution import Spread
from ..statistic import Statistic, count_column, text_column


@dataclass(frozen=True)
class CallUse(Timed):
    """The calls of one API function, all versions together; ``failed`` of them returned an error."""

    failed: int


def _function(context: CollectorContext, rows: Rows) -> Sequence[np.ndarray]:
    return (context.functions.numbers.take(rows["function"]),)


def _has_failed(context: CollectorContext, rows: Rows) -> np.ndarray:
    status = context.trace.functions["status"].take(rows["function"])
    return status != 0


def _call_use(
    context: CollectorContext, key: tuple[int], time: Spread, failed: int
) -> CallUse:
    return CallUse(context.functions.names[key[0]], time, failed)


#: The API calls by function.
CALLS = Grouping(("api_calls",), key=_function, row=_call_use, marked=_has_failed)

CUDA_API_SUM = Statistic(
    "cuda_api_sum",
    "API calls",
    CALLS,
    (
        count_column("failed", spare=True, doc="calls that returned an error"),
        text_column("name", doc="function, without version suffix"),
    ),
    spread="time",
    doc="Which CUDA calls take the host's time.",
)


#: The synchronisations by kind.
SYNCHRONIZATIONS = by_label("synchronizations", "type", labels.SYNCHRONIZATIONS)

SYNC_SUM = Statistic(
    "sync_sum",
    "Synchronisations",
    SYNCHRONIZATIONS,
    (text_column("kind", "name", doc="kind of wait"),),
    spread="time",
    doc="How long the host and streams wait for the GPU. Needs a recording with --kinds default,sync.",
)


#: The overheads by kind.
OVERHEADS = by_label("overheads", "kind", labels.OVERHEADS)

OVERHEAD_SUM = Statistic(
    "overhead_sum",
    "Overheads of the driver and of tracing",
    OVERHEADS,
    (text_column("kind", "name", doc="kind of overhead"),),
    spread="time",
    usual=False,
    doc="How much time the driver's compiler and CUPTI take.",
)
