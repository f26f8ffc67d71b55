"""The environment on which golden values depend: the GPU architecture, and versions that a project names as variant."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..analysis.definitions import Metrics
from ..errors import CutraceError

_PLACEHOLDER = re.compile(r"\{([^{}:]*)(?::([0-9]))?\}")
_ODD = re.compile(r"[^A-Za-z0-9._+-]")


def environment(run: Metrics, variant: str = "") -> str:
    """The name of the environment of a run: ``sm_90``, with a variant ``sm_90-cuda13``; "" if no device is known."""
    capability = run.facts.get("compute capability", "")
    numbers = capability.replace(".", "").split("+")
    architecture = "+".join(f"sm_{number}" for number in numbers if number)
    if not architecture or not variant:
        return architecture
    return f"{architecture}-{variant}"


def recorded_on(run: Metrics) -> str:
    """The driver, CUDA version and clock of a run, for reports: ``driver 580.159, CUDA 13.0, 1980 MHz``."""
    parts = []
    for label, name in (("driver ", "driver"), ("CUDA ", "cuda"), ("", "clock")):
        fact = run.facts.get(name)
        if fact:
            parts.append(label + fact)
    return ", ".join(parts)


def variant(template: str, facts: Mapping[str, str]) -> str:
    """The variant of a template such as ``cuda{cuda}-torch{torch:2}``.

    ``{cuda}`` stands for CUDA's major version in ``facts`` (of :class:`.Metrics`). Any other name stands for the
    version of the installed package, without the part after a ``+``. ``:2`` keeps the first two numbers of the version.
    Raises :class:`CutraceError` for a package that is not installed.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        if name == "cuda":
            full = facts.get("cuda", "")
        else:
            full = _version(name)
        release, _, _ = full.partition("+")
        numbers = release.split(".")
        if match[2]:
            numbers = numbers[: int(match[2])]
        elif name == "cuda":
            numbers = numbers[:1]
        return ".".join(numbers)

    return _ODD.sub("_", _PLACEHOLDER.sub(value, template))


def check_variant(template: str) -> str:
    """Return a template. Raises :class:`CutraceError` if it is invalid or names a package that is not installed."""
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        raise CutraceError(
            f"{template!r} is not a variant: write names in braces, such as cuda{{cuda}}-torch{{torch}}"
        )
    variant(template, {"cuda": "0"})
    return template


def _version(package: str) -> str:
    # This import takes longer than all other imports of this package.
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )

    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        raise CutraceError(
            f"{{{package}}} is neither cuda nor an installed package: install it or correct the variant"
        ) from None
