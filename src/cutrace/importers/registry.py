"""Which importer reads a file."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from .. import plugins
from .base import Importer, Source

#: cutrace's own importers as ``module:object``, in the order in which they are asked.
BUILT_IN: tuple[str, ...] = (
    "parquet:PARQUET",
    "perfetto:PERFETTO",
    "kineto:KINETO",
    "chrome:CHROME",
    "nsys:SQLITE",
    "nsys:ARROW",
    "nvprof:NVPROF",
    "database:DATABASE",
    "unread:UNREAD",
)


def known() -> list[Importer]:
    """All importers: those of plugins, then cutrace's own."""
    return [*plugins.importers(), *(_loaded(name) for name in BUILT_IN)]


def find(source: Source) -> Importer | None:
    """The first importer that recognises the source."""
    return next((importer for importer in known() if importer.recognizes(source)), None)


def _loaded(name: str) -> Importer:
    module, _, attribute = name.partition(":")
    return cast(Importer, getattr(import_module(f".{module}", __package__), attribute))
