"""Parts that can be added to cutrace: importers, exporters, statistics, reports of batch, verbs.

The core's objects come first, then the objects of the extras (folders of ``extras/``), then the objects of other
packages. Each is loaded on first use. Other packages are searched for an importer, exporter or verb only if none of
cutrace fits. If a package cannot be loaded, a warning names it and it is skipped. A package has an entry point of the
group ``cutrace``, which names a module or object with some of these functions. An extra has them in its
``__init__.py``::

    from cutrace.plugins import Verb, hookimpl

    @hookimpl
    def cutrace_importers():
        return [MyImporter()]

    @hookimpl
    def cutrace_exporters():
        return [Exporter("mine", "a table of mine", (".mine",), "my_package.mine:write")]

    @hookimpl
    def cutrace_verbs():
        return [Verb("mylib", "Show what mylib did.", "my_package.cli:mylib")]  # a click.Command

    @hookimpl
    def cutrace_statistics():
        return [MY_STATISTIC]  # cutrace.analysis.statistic.Statistic

    @hookimpl
    def cutrace_batch_reports():
        return [MY_REPORT]  # a BatchReport of the extra `fleet`
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import CutraceError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from .exporters.base import Exporter
    from .importers.base import Importer, SourceFile

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: The importers of the core as ``module:object``, in the order in which they check a file.
IMPORTERS = ("perfetto:PERFETTO", "kineto:KINETO", "xla:XLA", "chrome:CHROME")
#: The last importer. It raises the error for a file that cannot be read.
UNSUPPORTED = "unsupported:UNSUPPORTED"

#: The required attributes of the objects of a package, by the function that returns them.
_ATTRIBUTES = {
    "cutrace_importers": ("name", "description", "recognizes", "read"),
    "cutrace_exporters": ("name", "description", "suffixes", "folder", "__call__"),
    "cutrace_verbs": ("name", "help", "command"),
    "cutrace_statistics": ("name", "title", "collections", "table", "usual", "options"),
    "cutrace_batch_reports": ("name", "title", "needs"),
}


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: its name, its line in ``cutrace --help``, and its ``click.Command`` as
    ``module:object``, which is imported when the verb is called."""

    name: str
    help: str
    command: str


def hookimpl(function: _Function) -> _Function:
    """Mark a function of another package for calls from cutrace."""
    return function


@cache
def extras() -> tuple[ModuleType, ...]:
    """The extras that are installed, by name."""
    folder = Path(__file__).parent / "extras"
    names = sorted(init.parent.name for init in folder.glob("*/__init__.py"))
    return tuple(import_module(f".extras.{name}", __package__) for name in names)


@cache
def of_extras(hook: str) -> tuple[Any, ...]:
    """The objects that the functions ``hook`` of the extras return."""
    added: list[Any] = []
    for extra in extras():
        function = getattr(extra, hook, None)
        if function is not None:
            added += function()
    return tuple(added)


#: Endings that no exporter has, each with what to write instead.
_INSTEAD = {
    ".html": "`cutrace view` writes a page",
    ".nsys-rep": "only nsys writes it; .sqlite has the tables of its exports",
    ".pprof": "let its name end with .pb.gz, for pprof",
    ".prof": "let its name end with .pb.gz, for pprof",
    ".svg": "write .folded, and make a picture of it with flamegraph.pl",
}


@cache
def own_exporters() -> tuple[Exporter, ...]:
    """The exporters of the core and of the extras."""
    from .exporters.base import EXPORTERS

    return (*EXPORTERS, *of_extras("cutrace_exporters"))


def importer(source: SourceFile) -> Importer | None:
    """Return the first importer that recognizes the source, or None."""
    for name in IMPORTERS:
        candidate = _core_importer(name)
        if candidate.recognizes(source):
            return candidate
    for candidate in of_extras("cutrace_importers"):
        if candidate.recognizes(source):
            return candidate
    for candidate in others("cutrace_importers"):
        if _recognizes(candidate, source):
            return candidate
    unsupported = _core_importer(UNSUPPORTED)
    if unsupported.recognizes(source):
        return unsupported
    return None


def exporter(path: Path, name: str | None = None) -> Exporter:
    """Return the exporter with this name or ending (without its point). Without a name, the ending of the output
    decides. The longest matching ending counts. Raises :class:`CutraceError` when no exporter fits."""
    fitting = _fitting(own_exporters(), path, name)
    if fitting:
        return fitting
    fitting = _fitting(others("cutrace_exporters"), path, name)
    if fitting:
        return fitting
    known = [*own_exporters(), *others("cutrace_exporters")]
    if name:
        names = [e.name for e in known]
        every = f"it can be {', '.join(names)}"
        hint = did_you_mean(name.lower(), names, every, most=2)
        raise CutraceError(f"there is no format {name!r}: {hint}")
    hint = _INSTEAD.get(path.suffix.lower(), "")
    if not hint:
        hint = _similar_endings(path, known)
    if not hint:
        examples = ", ".join(dict.fromkeys(e.suffixes[0] for e in known))
        hint = f"let its name end with one of {examples}"
    raise CutraceError(f"cannot tell the format of {path}: {hint}")


@cache
def others(hook: str) -> tuple[Any, ...]:
    """Return the objects that the functions ``hook`` of other packages return. Searches all installed packages once."""
    from importlib.metadata import entry_points

    added: list[Any] = []
    for entry in entry_points(group="cutrace"):
        added += _loaded(entry, hook)
    return tuple(added)


def _loaded(entry: EntryPoint, hook: str) -> list[Any]:
    try:
        function = getattr(entry.load(), hook, None)
        if function is None:
            return []
        added = list(function())
        for one in added:
            for name in _ATTRIBUTES[hook]:
                if not hasattr(one, name):
                    raise TypeError(f"an object from {hook}() has no {name}")
    except Exception as error:
        _warn(f"The entry point {entry.name!r} ({entry.value})", error)
        return []
    return added


def _recognizes(importer: Importer, source: SourceFile) -> bool:
    """Whether an importer of another package recognizes the source."""
    try:
        return importer.recognizes(source)
    except Exception as error:
        _warn(f"The importer {importer.name!r}", error)
        return False


def _core_importer(name: str) -> Importer:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"cutrace.importers.{module}"), attribute)


def _fitting(
    exporters: Iterable[Exporter], path: Path, name: str | None
) -> Exporter | None:
    if name:
        for exporter in exporters:
            if name == exporter.name or f".{name}" in exporter.suffixes:
                return exporter
        return None
    fitting = None
    longest = ""
    for exporter in exporters:
        for suffix in exporter.suffixes:
            fits = path.name.lower().endswith(suffix)
            if fits and len(suffix) > len(longest):
                fitting = exporter
                longest = suffix
    return fitting


def _similar_endings(path: Path, exporters: Iterable[Exporter]) -> str:
    endings: list[str] = []
    for exporter in exporters:
        endings += exporter.suffixes
    return did_you_mean(path.suffix.lower(), endings, "", most=2)


def _warn(what: str, error: Exception) -> None:
    warnings.warn(
        f"{what} of another package is skipped, because it failed: {type(error).__name__}: {error}. "
        "Update or uninstall that package.",
        RuntimeWarning,
        stacklevel=4,
    )
