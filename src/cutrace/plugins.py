"""Formats: which importer reads a file, and which exporter writes one.

cutrace's own formats come first, and each is loaded on first use. Other packages are asked only when none of cutrace's
own formats fits; a package that cannot be loaded is named in a warning and skipped. Such a package has an entry point
of the group ``cutrace``. It names a module or object with one or both of these functions::

    from cutrace.plugins import hookimpl

    @hookimpl
    def cutrace_importers():
        return [MyImporter()]

    @hookimpl
    def cutrace_exporters():
        return [Exporter("mine", "a table of mine", (".mine",), "my_package.mine:write")]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import CutraceError, did_you_mean
from .exporters.base import Exporter

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .importers.base import Importer, SourceFile

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: cutrace's own importers as ``module:object``, in the order in which they are asked.
IMPORTERS = (
    "parquet:PARQUET",
    "perfetto:PERFETTO",
    "kineto:KINETO",
    "chrome:CHROME",
    "nsys:SQLITE",
    "nsys:ARROW",
    "nvprof:NVPROF",
)
#: Asked last: it says why a file cannot be read, and what to do about it.
UNSUPPORTED = ("unsupported:UNSUPPORTED",)

#: cutrace's own exporters.
EXPORTERS = (
    Exporter(
        "perfetto",
        "a trace for ui.perfetto.dev",
        (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz"),
        "cutrace.exporters.perfetto:write",
    ),
    Exporter("parquet", "a folder of Parquet files", (".parquet",), "cutrace.exporters.parquet:write", folder=True),
    Exporter(
        "sqlite",
        "a database with the tables of Nsight Systems",
        (".sqlite", ".sqlite3", ".db"),
        "cutrace.exporters.sqlite:write",
    ),
    Exporter("csv", "one table as text", (".csv", ".csv.gz"), "cutrace.exporters.csvfile:write"),
    Exporter("chrome", "trace-event JSON", (".json", ".json.gz"), "cutrace.exporters.chrome:write"),
    Exporter("folded", "collapsed stacks of GPU time", (".folded",), "cutrace.exporters.flame:write_folded"),
    Exporter(
        "speedscope", "a profile for speedscope.app", (".speedscope.json",), "cutrace.exporters.flame:write_speedscope"
    ),
    Exporter("capture", "a capture, as `cutrace record` makes one", (".bin",), "cutrace.exporters.base:write_capture"),
)

#: The attributes that a format of another package needs.
_ATTRIBUTES = {
    "cutrace_importers": ("name", "description", "recognizes", "read"),
    "cutrace_exporters": ("name", "description", "suffixes", "folder", "__call__"),
}


def hookimpl(function: _Function) -> _Function:
    """Mark a function of another package as one that cutrace calls."""
    return function


def importer(source: SourceFile) -> Importer | None:
    """Return the first importer that recognizes the source, or None."""
    fitting = next((i for i in _own(IMPORTERS) if i.recognizes(source)), None)
    fitting = fitting or next((i for i in others("cutrace_importers") if _recognizes(i, source)), None)
    return fitting or next((i for i in _own(UNSUPPORTED) if i.recognizes(source)), None)


def exporter(path: Path, name: str | None = None) -> Exporter:
    """Return the exporter with this name or ending (without its point). Without a name, the ending of the output
    decides; the longest ending wins. Raises :class:`CutraceError` when no exporter fits."""
    fitting = _fitting(EXPORTERS, path, name) or _fitting(others("cutrace_exporters"), path, name)
    if fitting:
        return fitting
    known = [*EXPORTERS, *others("cutrace_exporters")]
    if name:
        names = [e.name for e in known]
        hint = did_you_mean(name.lower(), names, f"it can be {', '.join(names)}", most=2)
        raise CutraceError(f"there is no format {name!r}: {hint}")
    examples = ", ".join(dict.fromkeys(e.suffixes[0] for e in known))
    hint = _similar_endings(path, known) or f"let its name end with one of {examples}"
    raise CutraceError(f"cannot tell the format of {path}: {hint}")


def misspelt(path: Path) -> str:
    """Return ``did you mean .pftrace?`` for an output whose ending is unknown and similar to a known one, else ""."""
    return "" if _fitting(EXPORTERS, path, None) else _similar_endings(path, EXPORTERS)


@cache
def others(hook: str) -> tuple[Any, ...]:
    """Return the formats of other packages, from their functions ``hook``. Searches all installed packages once."""
    from importlib.metadata import entry_points

    return tuple(f for entry in entry_points(group="cutrace") for f in _loaded(entry, hook))


def _loaded(entry: EntryPoint, hook: str) -> list[Any]:
    try:
        function = getattr(entry.load(), hook, None)
        formats = [] if function is None else list(function())
        missing = [name for f in formats for name in _ATTRIBUTES[hook] if not hasattr(f, name)]
        if missing:
            raise TypeError(f"a format has no {missing[0]}")
    except Exception as error:
        _warn(f"The entry point {entry.name!r} ({entry.value})", error)
        return []
    return formats


def _recognizes(importer: Importer, source: SourceFile) -> bool:
    """Whether an importer of another package recognizes the source."""
    try:
        return importer.recognizes(source)
    except Exception as error:
        _warn(f"The importer {importer.name!r}", error)
        return False


def _own(names: Iterable[str]) -> Iterator[Importer]:
    for name in names:
        module, _, attribute = name.partition(":")
        yield getattr(import_module(f"cutrace.importers.{module}"), attribute)


def _fitting(exporters: Iterable[Exporter], path: Path, name: str | None) -> Exporter | None:
    if name:
        return next((e for e in exporters if name == e.name or f".{name}" in e.suffixes), None)
    fitting = [(len(suffix), e) for e in exporters for suffix in e.suffixes if path.name.lower().endswith(suffix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _similar_endings(path: Path, exporters: Iterable[Exporter]) -> str:
    return did_you_mean(path.suffix.lower(), [suffix for e in exporters for suffix in e.suffixes], "", most=2)


def _warn(what: str, error: Exception) -> None:
    warnings.warn(
        f"{what} of another package is skipped, because it failed: {type(error).__name__}: {error}. "
        "Update or uninstall that package.",
        RuntimeWarning,
        stacklevel=4,
    )
