"""A project's own part of an environment: versions that decide which kernels its libraries pick."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from ..errors import CutraceError

_PLACEHOLDER = re.compile(r"\{([^{}:]*)(?::([0-9]))?\}")
_ODD = re.compile(r"[^A-Za-z0-9._+-]")


def variant(template: str, facts: Mapping[str, str]) -> str:
    """The variant of a template such as ``cuda{cuda}-torch{torch:2}``.

    ``{cuda}`` is CUDA's major version as the capture knows it (``facts``, of :class:`.Metrics`), any other name that of
    an installed package: its version, without what follows a ``+``; ``:2`` keeps the first two numbers. Raises
    :class:`CutraceError` for a package that is not installed.
    """

    def value(match: re.Match[str]) -> str:
        name, numbers = match[1].strip(), int(match[2] or 0)
        full = facts.get("cuda", "") if name == "cuda" else _version(name)
        kept = full.partition("+")[0].split(".")
        return ".".join(kept[: numbers or (1 if name == "cuda" else len(kept))])

    return _ODD.sub("_", _PLACEHOLDER.sub(value, template))


def check_variant(template: str) -> None:
    """Raise :class:`CutraceError` for a template that is not understood, or names a package that is not installed."""
    if re.search(r"[{}]", _PLACEHOLDER.sub("", template)):
        raise CutraceError(f"{template!r} is no variant: write names in braces, such as cuda{{cuda}}-torch{{torch}}")
    variant(template, {"cuda": "0"})


def _version(package: str) -> str:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        raise CutraceError(f"{{{package}}} is neither cuda nor a package that is installed") from None
