"""The function that reports over many traces; :mod:`cutrace` exports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...api import Report
from ...arguments import checked
from ...loading import Clock, StrPath, listed
from ...outputs import keep_sources, write_text
from ...units import Time, parse_duration

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from distributed import Client

    from .parts import FileOutcome


@dataclass(frozen=True)
class Batch:
    """Reports over many traces. ``reports`` are their tables, ``sentences`` describe outliers and other findings, and
    ``files`` holds the outcome of each file. ``missing`` has sentences about missing data in the files; it is empty if
    no data are known to be missing. Printing a batch shows its tables."""

    reports: list[Report]
    sentences: list[str]
    files: list[FileOutcome]
    missing: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a file lacks records, or could not be read completely."""
        return any(file.bad for file in self.files)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.reports), *self.sentences, *self.missing])

    def _repr_html_(self) -> str:
        pieces = [report._repr_html_() for report in self.reports]
        pieces += [
            f"<p>{sentence}</p>" for sentence in (*self.sentences, *self.missing)
        ]
        return "".join(pieces)


@checked
def batch(
    report: str,
    sources: StrPath | Sequence[StrPath],
    destination: StrPath,
    *,
    mode: str = "processes",
    workers: int | None = None,
    scheduler: StrPath | Client | None = None,
    executor: Executor | None = None,
    wait: Time = "30s",
    job: str = "",
    name: str = "",
    baseline: StrPath | Sequence[StrPath] = (),
    clock: Clock = "align",
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Batch:
    """Report over many traces: one file or several for each rank. docs/internals/batch.md lists the reports.

    :param report: the name of a report, or ``all`` for every report with complete inputs. Each file is read once.
    :param sources: paths, or URLs that fsspec reads; ``*`` in a URL matches several files.
    :param destination: a folder for the page with its charts, and for partial results that a later call uses again.
    :param mode: ``processes`` on this machine, ``sequential`` in this process, or ``dask``.
    :param workers: the number of processes; by default the number of cores.
    :param scheduler: the address or the scheduler file of a Dask cluster, or a ``distributed.Client``.
    :param executor: any :class:`concurrent.futures.Executor`, instead of a mode.
    :param wait: the longest wait for a worker of ``scheduler`` or ``executor``.
    :param job: the name of the job of all files. By default it is the name in a file, or the name of its folder.
    :param name: for ``pace``: the name of a kernel, range or step, a pattern with ``*``, or ``/a regular expression/``.
    :param baseline: further traces; ``regressions`` compares the sources with them.
    :param clock: ``align`` the times of ranks on different machines, or ``keep`` them, as in :func:`cutrace.load`.
    :param progress: called with the number of finished files and the number of all files.
    :param say: called with messages, such as the address of Dask's dashboard.

    Raises :class:`CutraceError` if there is no such report, no file can be read, there are no workers, or the folder
    cannot be written.
    """
    from .engines import Engine
    from .model import BatchOptions
    from .page import html, index_html
    from .remote import is_url, named
    from .running import ALL, batch_reports, run

    before = named(listed(baseline))
    every = [*before, *named(listed(sources))]
    folder = Path(destination)
    index = folder / "index.html"
    outputs = [folder / f"{report}.html", folder / f"{report}.manifest.json"]
    if report == ALL:
        outputs.append(index)
        outputs += [folder / f"{name}.html" for name in batch_reports()]
    keep_sources(outputs, [source for source in every if not is_url(source)])
    options = BatchOptions(name=name, baseline=tuple(before))
    engine = Engine(
        mode,
        workers,
        scheduler,
        executor,
        parse_duration(wait) / 1e9,
        say,
    )
    done = run(
        report,
        every,
        folder,
        engine=engine,
        job=job,
        options=options,
        clock=clock,
        progress=progress,
    )
    names: list[str] = []
    if report == ALL:
        names = list(done.results)
    for of_report, result in done.results.items():
        page = folder / f"{of_report}.html"
        write_text(page, html(result, done.about[of_report], of_report, names))
    if report == ALL:
        write_text(index, index_html(done.results, done.about[ALL]))
    reports = []
    sentences = []
    for result in done.results.values():
        reports += [Report(**vars(table)) for table in result.tables]
        sentences += result.sentences
    return Batch(
        reports,
        sentences,
        done.files,
        done.missing,
    )
