"""The verbs of the command line as functions. :mod:`cutrace` exports them under the same names.

``source`` is a path, several paths that are opened as one trace, or an open :class:`cutrace.Trace`, which stays open.
Every function raises :class:`cutrace.CutraceError` for a wrong argument, and when a source cannot be used or a
destination cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from . import conversion
from ._native import demangle as _demangle
from .analysis import reports
from .analysis.collection import Collected, collect
from .analysis.context import StatsOptions
from .analysis.names import normalize_kernel
from .analysis.summary import Summary, summarize
from .analysis.tables import Cell, Table
from .arguments import checked
from .errors import CutraceError, did_you_mean, package
from .golden.captures import (
    COMPARED,
    CaptureComparison,
    CaptureRules,
    compare_captures,
    difference_tables,
    parse_aspects,
    parse_tolerances,
    verdict,
)
from .loading import Clock, Source, StrPath, as_capture, opened
from .outputs import scratch
from .patterns import several
from .queries import answered, tables_of
from .reports.tables import cell, key, render
from .serving import PORT, Server
from .trace import Trace, arrow
from .trace.ranges import RangesBy
from .units import Time, format_duration, html_table, parse_duration, printable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from perfetto.trace_processor import TraceProcessor


Names = Literal["stable", "full"]

_SHOWN = 20
# The first bytes of files that Perfetto reads unchanged: its own traces (packets in field 1), ZIP and TAR.
_TRACE = b"\x0a"
_ZIP = b"PK\x03\x04"
_TAR = b"ustar"
_TAR_OFFSET = 257
# The largest trace of another tool that is read. Larger traces are served unread.
_MOST_READ = 256 << 20


@dataclass(frozen=True, repr=False)
class Report(Table):
    """A report of :func:`stats` or :func:`diff`: ``columns`` with names and units, and ``rows`` of cells in the same
    order. Cells are strings, numbers and None. It prints as a table of its first 20 rows, also in a notebook."""

    @checked
    def head(self, count: int) -> Report:
        """Return a report of the first ``count`` rows. Raises :class:`CutraceError` for a negative ``count``."""
        if count < 0:
            raise CutraceError(f"a report cannot have {count} rows: give 0 or more")
        return replace(self, rows=list(islice(self.rows, count)))

    def arrow(self) -> pyarrow.Table:
        """Return all rows as a ``pyarrow.Table``. Columns have the names of JSON and CSV, with units: ``total_ns``."""
        pa = arrow.pyarrow()
        rows = list(self.rows)
        by_column = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        names = list(map(key, self.columns))
        return pa.table(list(map(pa.array, by_column)), names)

    def df(self) -> pandas.DataFrame:
        """Return the rows of :meth:`arrow` as a ``pandas.DataFrame``."""
        return arrow.pandas(self.arrow())

    def pl(self) -> polars.DataFrame:
        """Return the rows of :meth:`arrow` as a ``polars.DataFrame``."""
        return arrow.polars(self.arrow())

    def __str__(self) -> str:
        return "".join(render([self], "table", limit=_SHOWN)).rstrip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [list(map(cell, row, self.columns)) for row in islice(self.rows, _SHOWN)]
        return html_table(self.title, [column.name for column in self.columns], rows)


class _Listing:
    """The rows of a listing, read again on each iteration."""

    def __init__(self, rows: Callable[[], Iterable[tuple[Cell, ...]]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return iter(self._rows())


@overload
def stats(  # type: ignore[overload-overlap]  # a str is a sequence of str too
    source: Source,
    report: str,
    *,
    sort: str | None = ...,
    names: Names = ...,
    short: Time = ...,
    kernel_wait: Time = ...,
    ranges: RangesBy = ...,
    name: str = ...,
) -> Report: ...
@overload
def stats(
    source: Source,
    report: Sequence[str] | None = ...,
    *,
    sort: str | None = ...,
    names: Names = ...,
    short: Time = ...,
    kernel_wait: Time = ...,
    ranges: RangesBy = ...,
    name: str = ...,
) -> list[Report]: ...
@checked
def stats(
    source: Source,
    report: str | Sequence[str] | None = None,
    *,
    sort: str | None = None,
    names: Names = "stable",
    short: Time = "10us",
    kernel_wait: Time = "30ns",
    ranges: RangesBy = "adopted",
    name: str = "",
) -> Report | list[Report]:
    """Return the report of this name, such as ``"cuda_gpu_kern_sum"``. For several names, return a list of reports.
    Without a name, return a list of the usual reports that have rows. docs/reference/statistics.md lists them and
    defines their columns.

    :param sort: sort by this column: numbers from the largest, strings from A.
    :param names: kernels by ``stable`` names, or by ``full`` names with template arguments.
    :param short: kernels below this time are short.
    :param kernel_wait: idle times below this are a kernel wait.
    :param ranges: with ``own`` NVTX ranges contain the work of their own thread only (docs/concepts.md).
    :param name: the name of the ranges that are steps, or a pattern such as ``step *``.

    The rows of a listing (``cuda_gpu_trace``) of an open trace are read on use. Raises :class:`CutraceError` for a
    report, a column or a step that does not exist, and for an option that none of the named reports uses.
    """
    options = StatsOptions(
        normalize_kernel if names == "stable" else demangle,
        parse_duration(short),
        parse_duration(kernel_wait),
        ranges=ranges,
        name=name,
    )
    wanted = [report] if isinstance(report, str) else report
    if wanted is not None:
        reports.check_options(wanted, options)

    def listing(trace: Trace, name: str) -> Iterable[tuple[Cell, ...]]:
        if trace is source:
            return _Listing(lambda: reports.tables(trace, [name], options)[0].rows)
        return list(reports.tables(trace, [name], options)[0].rows)

    with opened(source) as trace:
        results = []
        for table in reports.tables(trace, wanted, options):
            rows: Iterable[tuple[Cell, ...]]
            if table.listing:
                rows = listing(trace, table.name)
            else:
                rows = list(table.rows)
            results.append(Report(**vars(table) | {"rows": rows}))
    if sort is not None:
        known: dict[str, None] = {}
        for one in results:
            known |= dict.fromkeys(column.name for column in one.columns)
        if results and sort not in known:
            among = f"there are {', '.join(known)}"
            raise CutraceError(
                f"no report has a column {sort!r}: {did_you_mean(sort, known, among)}"
            )
        results = [replace(one, rows=one.sorted(sort).rows) for one in results]
    if isinstance(report, str):
        return results[0]
    return results


@checked
def info(source: Source) -> Summary:
    """Return the figures of a trace: its processes, GPUs, rows by table, and losses. Times are in ns.

    Raises :class:`CutraceError` when the source cannot be used.
    """
    with opened(source) as trace:
        return summarize(trace)


@checked
def sql(source: Source, query: str) -> pyarrow.Table:
    """Return the result of a query in the SQL of DuckDB over the tables of a trace, or of a folder of cutrace batch.

    Each table of :meth:`cutrace.Trace.arrow` is a table of the same name, and ``processes`` has the processes. In a
    folder of ``cutrace batch`` each report is a table, with the rows of all its parts. Only the tables that the query
    names are read. Times are in ns. docs/reference/tables.md has examples. Raises
    :class:`CutraceError` when the query fails, or
    duckdb or pyarrow is not installed.
    """
    with (
        tables_of(source) as tables,
        answered(tables, query) as (schema, batches),
    ):
        return arrow.pyarrow().Table.from_batches(batches, schema)


@dataclass(frozen=True, repr=False)
class Diff:
    """The changes from one trace to another. ``failed`` is true if a failing aspect differs; ``notes`` are sentences on
    missing data of the traces. It prints as tables, with these sentences."""

    comparison: CaptureComparison
    notes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def failed(self) -> bool:
        """Whether an aspect of ``fail_on`` differs."""
        return self.comparison.failed

    @property
    def verdict(self) -> str:
        """One line with the number of differences and of failures."""
        return verdict(self.comparison)

    def reports(self, *, everything: bool = False) -> list[Report]:
        """Return a report for each section with differences; with ``everything`` also for equal sections."""
        tables = difference_tables(self.comparison, everything=everything)
        return [Report(**vars(table)) for table in tables]

    @property
    def missing(self) -> list[str]:
        """The sentences of :attr:`notes`, each with its side."""
        sentences = []
        for side, notes in zip(("before", "after"), self.notes, strict=True):
            sentences += [printable(f"{side}: {note}") for note in notes]
        return sentences

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.reports()), *self.missing, self.verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        page = "".join(report._repr_html_() for report in self.reports())
        for sentence in (*self.missing, self.verdict):
            page += f"<p>{escape(sentence)}</p>"
        return page


@checked
def diff(
    before: Source,
    after: Source,
    *,
    fail_on: str | Sequence[str] = "exact",
    tolerance: str | Sequence[str] = (),
    clock: Clock = "align",
) -> Diff:
    """Compare two traces: kernels, API calls, copies, waits, memory. docs/reference/statistics.md has the rules.

    :param fail_on: the aspects that fail, as a list or with commas between: ``counts``, ``bytes``, ``launches``,
        ``memory``, ``time``, ``code``; ``exact`` means the first three; ``all`` and ``none`` are possible too.
    :param tolerance: the largest accepted differences, one or several, such as ``"time=10%"``.
    :param clock: align several files of a side, or ``keep`` their times, as in :func:`cutrace.load`.

    Raises :class:`CutraceError` for an aspect or a tolerance that does not exist, and when a source cannot be used.
    """
    aspects = parse_aspects(",".join(several(fail_on)))
    rules = CaptureRules(aspects, parse_tolerances(several(tolerance)))

    def collected(source: Source) -> tuple[Collected, tuple[str, ...]]:
        with opened(source, clock=clock) as trace:
            return collect(trace, COMPARED), tuple(trace.quality.sentences())

    # Threads are useful: reading and counting run in NumPy, which releases Python's lock.
    with ThreadPoolExecutor(2) as pool:
        sides = pool.map(collected, (before, after))
        (earlier, notes_before), (later, notes_after) = sides
    comparison = compare_captures(earlier, later, rules)
    return Diff(comparison, (notes_before, notes_after))


@checked
def redact(source: StrPath, destination: StrPath) -> None:
    """Write a trace without command lines, host names and paths: as a capture (``.bin``), or in any format that
    :func:`cutrace.convert` writes. docs/internals/privacy.md lists the contents that stay.

    Raises :class:`CutraceError` when the source cannot be used or the destination cannot be written; nothing is then
    left at the destination.
    """
    if conversion.check_destination(Path(destination), [source]).name != "capture":
        conversion.convert(source, destination, redact=True)
        return
    from .runbin import redaction

    with ExitStack() as files:
        redaction.redact(as_capture(Path(source), files), destination)


@checked
def demangle(name: str) -> str:
    """Return the name of a kernel as in its source: ``"saxpy(int, float)"`` of ``"_Z5saxpyif"``. A name that is not
    mangled is returned unchanged."""
    if name.startswith("_Z"):
        return _demangle(name)
    return name


@checked
def open(
    source: Source,
    *,
    browser: bool = True,
    port: int = PORT,
    timeout: Time = "5m",
    clock: Clock = "align",
    say: Callable[[str], None] = print,
) -> None:
    """Show a trace in ui.perfetto.dev, in the browser of this machine, and return when the page has fetched it.

    :param browser: start the browser; else only ``say`` the link.
    :param port: port of the loopback interface. The page may fetch from 9001 only.
    :param timeout: how long to wait for the page.
    :param clock: align several files, or ``keep`` their times, as in :func:`cutrace.load`. A trace that Perfetto reads
        is shown as it is.
    :param say: called with sentences for the user, the link first.

    Raises :class:`CutraceError` when the port is taken or nobody fetched the trace.
    """
    import webbrowser  # The other functions do not need this import.

    patience = parse_duration(timeout)
    with (
        _for_perfetto(source, say, clock) as (path, shown),
        Server(path, port=port, shown=shown) as server,
    ):
        if not browser:
            say(server.link)
        else:
            say(f"opening {server.link}")
            if not webbrowser.open_new_tab(server.link):
                say("no browser could be started: open the link yourself")
        if port != PORT:
            say(
                f"the page fetches from port {port} only while its flag 'Relax Content Security Policy for "
                "127.0.0.1:*' is on"
            )
        if not server.serve(patience / 1e9):
            raise CutraceError(
                f"nobody fetched the trace in {format_duration(patience)}: open the link in a browser here"
            )


@checked
def trace_processor(source: Source, *, shell: StrPath | None = None) -> TraceProcessor:
    """Return a ``perfetto.trace_processor.TraceProcessor`` with a trace, for queries in the SQL of Perfetto.

    Close it, or use it in a ``with`` statement. It holds the trace in memory: a temporary file is removed before this
    function returns.

    :param shell: the program ``trace_processor_shell`` to start. By default, the ``perfetto`` package downloads it on
        first use and keeps it.

    Raises :class:`CutraceError` when the package is not installed, or the program cannot be found, downloaded or
    started.
    """
    engine = package("perfetto.trace_processor", "trace_processor()")
    program = None
    if shell is not None:
        program = str(Path(shell))
    config = engine.TraceProcessorConfig(bin_path=program)
    with (
        _for_perfetto(source, lambda sentence: None) as (path, _),
        path.open("rb") as file,
    ):
        try:
            made: TraceProcessor = engine.TraceProcessor(trace=file, config=config)
        except Exception as error:  # The package raises Exception.
            sentence = " ".join(str(error).split())
            raise CutraceError(
                f"the trace processor of Perfetto failed: {sentence.rstrip('.')}. "
                "Name a trace_processor_shell that runs here with shell=..."
            ) from error
    return made


@contextmanager
def _for_perfetto(
    source: Source, say: Callable[[str], None], clock: Clock = "align"
) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a file that Perfetto reads (the source, or a temporary trace made of it), and the parameters for its first
    view."""
    from .exporters.perfetto.first_screen import first_screen

    name = "run"
    if isinstance(source, str | Path):
        from .importers.base import SourceFile

        head = SourceFile.at(Path(source)).head
        if head.startswith((_TRACE, _ZIP)) or head.startswith(_TAR, _TAR_OFFSET):
            yield Path(source), _shown_of(Path(source), head)
            return
        name = Path(source).name.partition(".")[0] or name
    with scratch() as folder, opened(source, clock=clock) as trace:
        path = folder / f"{name}.pftrace"
        conversion.write(trace, path)
        for sentence in trace.quality.sentences():
            say(sentence)
        yield path, first_screen(trace)


def _shown_of(path: Path, head: bytes) -> dict[str, str]:
    """The parameters for the first view of a file in Perfetto. They are empty if cutrace cannot read the file, or if
    the file is large and holds no capture: only Perfetto's reader is fast enough for it."""
    from .embedding import begins_with_capture
    from .exporters.perfetto.first_screen import first_screen

    large = path.stat().st_size > _MOST_READ
    if large and not begins_with_capture(head):
        return {}
    try:
        with opened(path) as trace:
            return first_screen(trace)
    except CutraceError:
        return {}
