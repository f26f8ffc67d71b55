"""Ranks that stand out from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

# A rank stands out beyond this robust z-score, and if it is this share of the median away. Fewer ranks have no median
# that one of them could stand out from.
OUTSTANDING = 6.0
_SHARE = 0.03
_FEWEST = 4


def robust_scores(values: Sequence[float]) -> np.ndarray:
    """Return the distance of each number from the median, in standard deviations estimated from the median absolute
    deviation. Half of the numbers may be outliers."""
    numbers = np.asarray(values, np.float64)
    away = numbers - np.median(numbers)
    deviation = 1.4826 * np.median(np.abs(away))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(away == 0, 0.0, away / deviation)


def stragglers(
    values: Mapping[str, float],
    sentence: str,
    *,
    low: bool = False,
) -> list[str]:
    """Return a sentence for each rank whose number is far above the median, the largest first; or far below it, with
    ``low``. ``values`` are numbers by name of the rank. ``sentence`` formats the ``rank``, its ``value``, the
    ``median`` and the ``ratio`` of the two."""
    if len(values) < _FEWEST:
        return []
    numbers = list(values.values())
    median = float(np.median(numbers))
    if median <= 0:
        return []
    sign = -1 if low else 1
    outstanding = []
    for label, score in zip(values, robust_scores(numbers).tolist(), strict=True):
        excess = sign * (values[label] - median)
        if sign * score > OUTSTANDING and excess > _SHARE * median:
            outstanding.append(label)
    outstanding.sort(key=lambda label: sign * values[label], reverse=True)
    sentences = []
    for label in outstanding:
        value = values[label]
        ratio = value / median
        sentences.append(
            sentence.format(rank=label, value=value, median=median, ratio=ratio)
        )
    return sentences
