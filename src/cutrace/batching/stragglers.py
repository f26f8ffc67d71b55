"""Ranks that stand out from the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A rank stands out beyond this robust z-score, and if it is this share of the median away. Fewer ranks have no median
# that one of them could stand out from.
_SCORE, _SHARE, _FEWEST = 6.0, 0.03, 4


def robust_scores(values: Sequence[float]) -> np.ndarray:
    """Return the distance of each number from the median, in standard deviations estimated from the median absolute
    deviation. Half of the numbers may be outliers."""
    numbers = np.asarray(values, np.float64)
    away = numbers - np.median(numbers)
    deviation = 1.4826 * np.median(np.abs(away))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(away == 0, 0.0, away / deviation)


def stragglers(labels: Sequence[str], values: Sequence[float], sentence: str) -> list[str]:
    """Return a sentence for each rank whose number is far above the median, the largest first. ``sentence`` formats the
    ``rank``, its ``value`` and the ``ratio`` to the median."""
    if len(values) < _FEWEST:
        return []
    median = float(np.median(values))
    found = [
        (value, label)
        for label, value, score in zip(labels, values, robust_scores(values).tolist(), strict=True)
        if score > _SCORE and value > median * (1 + _SHARE)
    ]
    found.sort(reverse=True)
    return [
        sentence.format(rank=label, value=value, ratio=value / median if median else float("inf"))
        for value, label in found
    ]
