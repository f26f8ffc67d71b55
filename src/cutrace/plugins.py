"""Importers and exporters from other packages.

A package adds its own by an entry point of the group ``cutrace`` that names a module or object with the hooks below,
decorated with :data:`hookimpl`::

    from cutrace.plugins import hookimpl

    @hookimpl
    def cutrace_importers():
        return [MyImporter()]
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from .exporters.base import Exporter
    from .importers.base import Importer

_GROUP = "cutrace"

hookspec = pluggy.HookspecMarker(_GROUP)
hookimpl = pluggy.HookimplMarker(_GROUP)


class Hooks:
    """What a plugin may implement."""

    @hookspec
    def cutrace_importers(self) -> list[Importer]:  # type: ignore[empty-body]
        """Importers, asked before cutrace's own whether they recognise a file that is no capture."""

    @hookspec
    def cutrace_exporters(self) -> list[Exporter]:  # type: ignore[empty-body]
        """Exporters, for endings of file names that cutrace itself does not know."""


@cache
def manager() -> pluggy.PluginManager:
    """The plugins that are installed, loaded once."""
    found = pluggy.PluginManager(_GROUP)
    found.add_hookspecs(Hooks)
    found.load_setuptools_entrypoints(_GROUP)
    return found


def importers() -> list[Importer]:
    """What the installed plugins can read."""
    return [importer for some in manager().hook.cutrace_importers() for importer in some]


def exporters() -> list[Exporter]:
    """What the installed plugins can write."""
    return [exporter for some in manager().hook.cutrace_exporters() for exporter in some]
